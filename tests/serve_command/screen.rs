//! What it says on its screen.

use std::io::Read;
use std::path::Path;

use tempfile::TempDir;

use crate::certificates::Authority;
use crate::process::{Running, assert_refused, ghostfleet, run, serve};

#[test]
fn the_start_screen_says_what_runs_and_how_to_attach_and_sigterm_drains() {
    let store = TempDir::new().unwrap();
    let summary = store.path().join("summary.json");
    let mut command = serve(&store, &["--num-workers", "3", "--seed", "9", "--summary"]);
    let running = Running::start(command.arg(&summary));
    let directory = store.path().display().to_string();
    for words in [
        "3 x dyn://dynamo.backend.generate",
        "seed 9",
        "--discovery-backend file",
        &format!("DYN_FILE_KV={directory}"),
    ] {
        assert!(
            running.said.contains(words),
            "{words:?} is missing in: {}",
            running.said
        );
    }
    running.signal("-TERM");
    let (said, code) = running.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("3 of 3 workers left in good order"), "{said}");
    assert!(said.contains("left over: 0 streams, 0 sequences, 0 blocks"), "{said}");
    let summary: serde_json::Value = serde_json::from_slice(&std::fs::read(summary).unwrap()).unwrap();
    assert_eq!(summary["drained"], true);
    assert_eq!(summary["fleet"]["workers"].as_array().unwrap().len(), 3);
}

#[test]
fn an_expired_certificate_is_told_with_file_and_date_and_the_command_has_what_frontends_need() {
    let store = TempDir::new().unwrap();
    let authority = Authority::new(store.path(), "authority");
    let old = authority.in_years("old", 2001..2002);
    let early = authority.in_years("early", 2600..2601);
    let start = |variables: &[(&str, &Path)]| {
        let mut command = serve(&store, &[]);
        for (name, value) in variables {
            command.env(name, value);
        }
        let mut running = Running::start(&mut command);
        running.signal("-TERM");
        let mut log = String::new();
        running.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (running.end().0, log)
    };
    let (screen, log) = start(&[
        ("DYN_TCP_TLS_CERT_PATH", &old.certificate),
        ("DYN_TCP_TLS_KEY_PATH", &old.key),
    ]);
    for words in ["DYN_TCP_TLS_CERT_PATH", "old-cert.pem", "has expired on 2002-01-01"] {
        assert!(log.contains(words), "{words:?} is missing in {log}");
    }
    let wanted = " DYN_TCP_TLS_CA_CERT_PATH='<the authority of the workers'\\'' certificate>' ";
    assert!(screen.contains(wanted) && !screen.contains('$'), "{screen}");
    let ca = authority.path();
    let (screen, log) = start(&[
        ("DYN_TCP_TLS_CERT_PATH", &early.certificate),
        ("DYN_TCP_TLS_KEY_PATH", &early.key),
        ("DYN_TCP_TLS_CLIENT_CA_CERT_PATH", &ca),
        ("DYN_TCP_TLS_CA_CERT_PATH", &ca),
    ]);
    assert!(log.contains("early-cert.pem) is not valid before 2600-01-01"), "{log}");
    for words in [
        format!(" DYN_TCP_TLS_CA_CERT_PATH={} ", ca.display()),
        format!(" DYN_TCP_TLS_KEY_PATH={} ", early.key.display()),
        " DYN_TCP_TLS_CLIENT_KEY_PATH='<its key>' ".to_owned(),
    ] {
        assert!(screen.contains(&words), "{words:?} is missing in {screen}");
    }
}

#[test]
fn print_config_names_the_origin_of_every_value() {
    let store = TempDir::new().unwrap();
    let file = store.path().join("fleet.toml");
    std::fs::write(&file, "num_workers = 5\nblock_size = 32\n").unwrap();
    let mut command = serve(&store, &["--print-config", "--block-size", "16", "--config"]);
    let output = run(command.arg(&file).env("DYN_NAMESPACE", "elsewhere"));
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8(output.stdout).unwrap();
    let line = |key: &str| {
        said.lines()
            .find(|line| line.starts_with(&format!("{key} = ")))
            .unwrap()
            .to_owned()
    };
    assert_eq!(line("block_size"), "block_size = 16  # flag");
    assert_eq!(line("num_workers"), format!("num_workers = 5  # {}", file.display()));
    assert_eq!(
        line("namespace"),
        "namespace = \"elsewhere\"  # environment DYN_NAMESPACE"
    );
    assert_eq!(line("max_num_seqs"), "max_num_seqs = 256  # default");
    // What is printed is a config file again.
    std::fs::write(&file, &said).unwrap();
    let again = run(ghostfleet().args(["serve", "--print-config", "--config"]).arg(&file));
    assert_eq!(
        again.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&again.stderr)
    );
}

#[test]
fn free_http_ports_are_printed_and_answer() {
    let store = TempDir::new().unwrap();
    let mut running = Running::start(&mut serve(&store, &["--num-workers", "2", "--http-port", "0"]));
    running.read_until("http ports: ");
    let line = running.said.lines().last().unwrap();
    let urls: Vec<&str> = line
        .split("http://")
        .skip(1)
        .map(|rest| rest.trim_end_matches(", w1 "))
        .collect();
    assert_eq!(urls.len(), 2, "{line}");
    for address in urls {
        let mut answer = ureq::get(&format!("http://{address}/v1/models")).call().unwrap();
        assert!(
            answer.body_mut().read_to_string().unwrap().contains("\"tiny\""),
            "{address}"
        );
    }
    running.signal("-TERM");
    assert_eq!(running.end().1, Some(0));
}

#[test]
fn help_shows_defaults_and_flags_of_the_peer_are_explained() {
    let help = run(ghostfleet().args(["serve", "--help"]));
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    for words in ["[default: 16384]", "[default: lifo]", "[default: -1]", "[default: on]"] {
        assert!(help.contains(words), "{words:?} is missing");
    }
    let store = TempDir::new().unwrap();
    let refused = run(&mut serve(&store, &["--router-temperature", "1"]));
    assert_refused(
        &refused,
        2,
        &["--router-temperature belongs to a router", "dynamo.frontend"],
    );
    let refused = run(&mut serve(&store, &["--aic-nextn", "1", "--ais-nextn", "2"]));
    assert_refused(&refused, 2, &["two spellings of one flag"]);
}
