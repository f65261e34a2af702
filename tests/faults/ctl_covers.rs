//! `ctl` can do all that the admin API can: whatever its commands ask for is held against the document, both ways.

use std::collections::BTreeSet;
use std::process::Command;

use ghostfleet::admin::openapi::OPERATIONS;
use serde_json::Value;

use crate::admin::Admin;
use crate::recorder::{Asked, Recorder};

/// Commands that together say everything there is to say.
const COMMANDS: &[&[&str]] = &[
    &["fleet", "--workers", "rows"],
    &["list", "w0"],
    &["show", "w0/r0"],
    &["cache", "w0", "--blocks"],
    &["cache", "w0", "--former"],
    &["cache", "w0"],
    &["records", "v1/mdc/"],
    &[
        "faults",
        "add",
        "* slow factor=2 p=0.5 from=1s to=60s seed=3",
        "w1 hang",
    ],
    &["faults", "add", "w1 stall ms=5", "--remove", "f1,f2"],
    &["faults", "replace", "w0 stall ms=5", "w1 stall ms=5"],
    &["faults"],
    &["faults", "remove", "f4"],
    &["faults", "clear"],
    &["faults", "kinds"],
    &["faults", "journal", "--draws"],
    &["clear-cache", "random(1)", "--seed", "5"],
    &["kill", "w1/metrics", "--panic"],
    &["kill", "w1"],
    &["restart", "w1", "--same-id"],
    &["heal", "w1"],
    &["drain", "w1"],
    &["why", "--worker", "w0", "--limit", "5"],
    &["why", "nobody"],
    &[
        "live",
        "--after",
        "0",
        "--every-ms",
        "100",
        "--workers",
        "columns",
        "--draws",
        "--events",
        "3",
    ],
    &["openapi"],
];

/// Whether a path is one of an operation.
fn is_of(template: &str, path: &str) -> bool {
    match template.split_once('{') {
        Some((lead, _)) => path.len() > lead.len() && path.starts_with(lead),
        None => template == path,
    }
}

/// Operations, parameters of their queries, and members of their bodies.
fn told() -> BTreeSet<String> {
    let mut told = BTreeSet::new();
    for operation in OPERATIONS.iter().filter(|operation| operation.answer != "Page") {
        let name = format!("{} {}", operation.method, operation.path);
        told.extend(
            operation
                .query
                .iter()
                .map(|parameter| format!("{name}?{}", parameter.name)),
        );
        told.insert(name);
    }
    let document = ghostfleet::admin::openapi::document();
    let schemas = &document["components"]["schemas"];
    let members = |schema: &Value| -> Vec<String> {
        let names = schema["properties"].as_object().unwrap();
        names.keys().cloned().collect()
    };
    for name in ["Command", "Fault"] {
        told.extend(members(&schemas[name]).iter().map(|member| format!("{name}.{member}")));
    }
    let change = schemas["Change"]["oneOf"].as_array().unwrap().last().unwrap();
    told.extend(members(change).iter().map(|member| format!("Change.{member}")));
    let commands = schemas["Command"]["properties"]["command"]["enum"].as_array().unwrap();
    told.extend(
        commands
            .iter()
            .map(|word| format!("command {}", word.as_str().unwrap())),
    );
    told
}

fn members<'a>(name: &'a str, body: &'a Value) -> impl Iterator<Item = String> + 'a {
    body.as_object()
        .into_iter()
        .flatten()
        .map(move |(member, _)| format!("{name}.{member}"))
}

/// The same of what was asked.
fn done(asked: &[Asked]) -> BTreeSet<String> {
    let mut done = BTreeSet::new();
    for Asked {
        method,
        path,
        query,
        body,
    } in asked
    {
        let operation = OPERATIONS
            .iter()
            .find(|told| told.method == method && is_of(told.path, path));
        let operation = operation.unwrap_or_else(|| panic!("{method} {path} is no operation of the document"));
        let name = format!("{method} {}", operation.path);
        done.extend(query.iter().map(|parameter| format!("{name}?{parameter}")));
        done.insert(name);
        match operation.body {
            Some("Command") => {
                done.extend(members("Command", body));
                done.insert(format!("command {}", body["command"].as_str().unwrap()));
            }
            Some("Change" | "Replacement") => {
                done.extend(members("Change", body));
                let faults = body["add"].as_array().into_iter().flatten();
                done.extend(faults.flat_map(|fault| members("Fault", fault)));
            }
            Some(other) => panic!("what is in a {other}?"),
            None => assert_eq!(*body, Value::Null, "{path}"),
        }
    }
    done
}

#[test]
fn ctl_can_do_all_that_the_api_can_and_nothing_else() {
    let admin = Admin::start(&["--num-workers", "2"]);
    let recorder = Recorder::before(&admin.url);
    for args in COMMANDS {
        let output = Command::new(env!("CARGO_BIN_EXE_ghostfleet"))
            .arg("ctl")
            .args(*args)
            .env("GHOSTFLEET_ADMIN_URL", &recorder.url)
            .env_remove("GHOSTFLEET_ADMIN_TOKEN")
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let wanted = i32::from(args.contains(&"nobody"));
        assert_eq!(output.status.code(), Some(wanted), "{args:?}: {error}");
    }
    let (told, done) = (told(), done(&recorder.asked()));
    let missing: Vec<_> = told.difference(&done).collect();
    assert!(missing.is_empty(), "the API has, and ctl has not: {missing:?}");
    let unknown: Vec<_> = done.difference(&told).collect();
    assert!(
        unknown.is_empty(),
        "ctl asks for what is not said of the API: {unknown:?}"
    );
}
