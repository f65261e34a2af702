//! The admin API.

use std::io::{Read, Write};
use std::net::TcpStream;

use ghostfleet::admin::openapi::OPERATIONS;
use serde_json::{Value, json};

use crate::admin::Admin;
use crate::caller::{call, chat};

#[test]
fn every_operation_of_the_document_is_there_and_nothing_else_is() {
    let admin = Admin::start(&[]);
    let (status, document) = admin.get("/openapi.json");
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    for operation in OPERATIONS {
        let path = operation
            .path
            .replace("{path}", "w0")
            .replace("{worker}", "w0")
            .replace("{id}", "f9")
            .replace("{request}", "none");
        if operation.answer == "EventStream" {
            assert!(admin.live("every_ms=100").next().is_some());
            continue;
        }
        let (status, answer) = match operation.method {
            "get" => admin.get(&path),
            "delete" => admin.delete(&path),
            "post" => admin.post(&path, &json!({})),
            "put" => admin.put(&path, &json!([])),
            other => panic!("{other}"),
        };
        assert_ne!(status, 405, "{} {path}", operation.method);
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(!error.contains("no such path"), "{} {path}: {answer}", operation.method);
        assert!(document["paths"][operation.path][operation.method].is_object());
    }
    assert_eq!(admin.get("/v1/nothing").0, 404);
    assert_eq!(admin.put("/v1/fleet", &json!({})).0, 405);
}

#[test]
fn every_route_of_the_server_is_in_the_document() {
    let source = include_str!("../../src/admin/routes.rs").replace("{*path}", "{path}");
    let mut routes = Vec::new();
    for part in source.split(".route(").skip(1) {
        let (path, handlers) = part.split_once(',').unwrap();
        let path = if path == "dashboard::PATH" {
            "/"
        } else {
            path.trim_matches('"')
        };
        let handlers = handlers.lines().next().unwrap();
        for method in ["get", "post", "put", "delete"] {
            if handlers.contains(&format!(" {method}(")) || handlers.contains(&format!(").{method}(")) {
                routes.push(format!("{method} {path}"));
            }
        }
    }
    let mut told: Vec<String> = OPERATIONS
        .iter()
        .map(|operation| format!("{} {}", operation.method, operation.path))
        .collect();
    routes.sort();
    told.sort();
    assert_eq!(routes, told);
}

#[test]
fn faults_are_added_listed_replaced_and_removed_all_or_nothing() {
    let admin = Admin::start(&["--num-workers", "4"]);
    let fault = json!({"select": "w0-w1", "layer": "engine", "kind": "slow", "params": {"factor": 2}});
    let (status, added) = admin.post("/v1/faults", &json!({"add": [fault, "* hang from=1h"]}));
    assert_eq!(status, 400, "{added}: there is no unit h");
    let (status, added) = admin.post("/v1/faults", &json!({"add": [fault, "* hang from=60m"]}));
    assert_eq!(status, 200, "{added}");
    assert_eq!(
        (&added[0]["phase"], &added[0]["workers"]),
        (&json!("open"), &json!([0, 1]))
    );
    assert_eq!(
        (&added[1]["phase"], &added[1]["workers"]),
        (&json!("waiting"), &json!([]))
    );
    let (_, rows) = admin.get("/v1/workers?select=w0,w3");
    assert_eq!((&rows[0]["faults"], &rows[1]["faults"]), (&json!([1]), &json!([])));
    let (status, error) = admin.post("/v1/faults", &json!({"add": [fault], "remove": ["f1", "f77"]}));
    assert_eq!((status, error["error"].as_str().unwrap().contains("f77")), (404, true));
    assert_eq!(
        admin.get("/v1/faults").1.as_array().unwrap().len(),
        2,
        "nothing has changed"
    );
    let (status, _) = admin.put("/v1/faults", &json!(["w3 slow factor=3"]));
    assert_eq!(status, 200);
    let (_, listed) = admin.get("/v1/faults");
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["id"]), (1, &json!(3)));
    assert_eq!(listed[0]["line"], "w3 engine.slow factor=3.0");
    assert_eq!(admin.delete("/v1/faults/f3").0, 200);
    assert_eq!(admin.get("/v1/faults").1, json!([]));
}

#[test]
fn bad_input_is_refused_in_words() {
    let admin = Admin::start(&[]);
    for (path, body, status, words) in [
        ("/v1/faults", json!("w0 slo factor=2"), 400, "did you mean `slow`"),
        ("/v1/faults", json!("w0 lose_capacity"), 400, "either share"),
        (
            "/v1/faults",
            json!("w0 never_ready"),
            404,
            "only prefill workers have handoffs",
        ),
        ("/v1/faults", json!("w9 hang"), 404, "selects no worker"),
        (
            "/v1/faults",
            json!("w0 crash actor=heart"),
            400,
            "actor=heart is no child of a worker; use r<N>, kv,",
        ),
        (
            "/v1/faults",
            json!("w0 crash actor=native"),
            400,
            "actor=native is no child of a worker",
        ),
        (
            "/v1/faults",
            json!("w0 crash actor=r3/native"),
            400,
            "no worker that w0 selects has it; the first of them has r0, r0/kv, metrics, lease",
        ),
        (
            "/v1/faults",
            json!("* panic actor=rendezvous"),
            400,
            "actor=rendezvous: no worker that * selects has it",
        ),
        ("/v1/faults", json!({"add": [], "more": 1}), 400, "`more`"),
        ("/v1/faults", json!(7), 400, "send a fault"),
        (
            "/v1/commands",
            json!({"command": "explode", "path": "w0"}),
            400,
            "explode",
        ),
        ("/v1/commands", json!({"command": "crash"}), 400, "say whom"),
        (
            "/v1/commands",
            json!({"command": "crash", "path": "x"}),
            400,
            "no actor path",
        ),
    ] {
        let (answered, error) = admin.post(path, &body);
        assert_eq!(answered, status, "{body}: {error}");
        assert!(error["error"].as_str().unwrap().contains(words), "{body}: {error}");
    }
    let (status, answer) = admin.post("/v1/commands", &json!({"command": "crash", "path": "w7"}));
    assert_eq!((status, &answer["results"][0]["ok"]), (404, &json!(false)));
    for (path, word) in [
        ("/v1/journal?after=abc", "after"),
        ("/v1/records", "prefix"),
        ("/v1/requests?worker=w0/r0", "w0/r0"),
        ("/v1/live?x=1", "x"),
        ("/v1/blocks/w0?limit=-1", "limit"),
        ("/v1/cache/w0?x=1", "x"),
        ("/v1/actors/w0?x=1", "x"),
        ("/v1/former/w0?x=1", "x"),
        ("/v1/faults?select=w0", "select"),
        ("/v1/kinds?layer=life", "layer"),
        ("/v1/why/a?worker=w0", "worker"),
    ] {
        let (status, answer) = admin.get(path);
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(status == 400 && error.contains(word), "{path}: {status} {answer}");
    }
    for path in ["/v1/requests?worker=w99", "/v1/workers?select=w99"] {
        let (status, answer) = admin.get(path);
        assert_eq!(status, 404, "{path}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains("w99"), "{path}: {answer}");
    }
    // What would be passed over must not do more than was meant.
    admin.fault("w0 slow factor=2");
    let (status, answer) = admin.delete("/v1/faults?select=w7");
    assert_eq!(status, 400, "{answer}");
    let twice = r#"{"add": ["w0 hang"], "remove": [], "add": ["w0 stall ms=1"]}"#;
    let (status, answer) = admin.send("/v1/faults", twice);
    assert_eq!(status, 400, "{answer}");
    assert!(
        answer["error"].as_str().unwrap().contains("`add` stands there twice"),
        "{answer}"
    );
    assert_eq!(admin.get("/v1/faults").1.as_array().unwrap().len(), 1);
    let (_, none) = admin.get("/v1/journal?limit=0");
    assert_eq!(
        (&none["entries"], &none["next"], &none["more"]),
        (&json!([]), &json!(0), &json!(true))
    );
    let huge = json!("w".repeat(2 << 20));
    assert_eq!(admin.post("/v1/faults", &huge).0, 413);
}

#[test]
fn a_kill_is_seen_live_and_in_the_journal() {
    let admin = Admin::start(&["--num-workers", "2"]);
    let live = admin.live("every_ms=100&workers=true");
    let (status, done) = admin.post("/v1/commands", &json!({"command": "crash", "path": "w1"}));
    assert_eq!((status, &done["results"][0]["ok"]), (200, &json!(true)));
    let (mut told, mut seen) = (false, false);
    for (name, data) in live {
        match name.as_str() {
            "entry" => told |= data["event"] == "state" && data["worker"] == 1 && data["state"] == "dead",
            "sample" => seen |= told && data["workers"][1]["state"] == "dead",
            _ => panic!("{name}"),
        }
        if told && seen {
            break;
        }
    }
    assert!(told && seen);
    let (_, journal) = admin.get("/v1/journal");
    let entries = journal["entries"].as_array().unwrap();
    let done = |entry: &Value| entry["event"] == "done" && entry["act"] == "crash" && entry["path"] == "w1";
    assert!(entries.iter().any(done), "{journal}");
    let (_, nothing) = admin.get(&format!("/v1/journal?after={}", journal["next"]));
    assert!(nothing["entries"].as_array().unwrap().len() < entries.len());
}

#[test]
fn a_worker_that_was_killed_or_drained_a_moment_ago_is_healed_too() {
    let admin = Admin::start(&["--num-workers", "2"]);
    for (times, end) in (1..).zip(["crash", "crash", "crash", "drain", "drain"]) {
        for command in [end, "heal"] {
            let (status, done) = admin.post("/v1/commands", &json!({"command": command, "path": "w1"}));
            assert_eq!(status, 200, "{done}");
        }
        admin.scene.until("it serves again", |_| {
            let row = &admin.get("/v1/workers?select=w1").1[0];
            row["state"] == "ready" && row["incarnation"] == 1 + times
        });
    }
}

#[test]
fn snapshots_tell_of_every_actor_and_the_true_cache() {
    let admin = Admin::start(&[]);
    let outcome = call(&admin.scene.address(0), "a", &chat(&[7; 16], 4))
        .unwrap()
        .finish()
        .unwrap();
    assert!(outcome.complete);
    for child in ["r0", "kv", "metrics", "lease"] {
        let (status, shown) = admin.get(&format!("/v1/actors/w0/{child}"));
        assert_eq!((status, &shown["inside"]["alive"]), (200, &json!(true)), "{shown}");
    }
    let (_, shown) = admin.get("/v1/actors/w0");
    assert_eq!(
        (&shown["state"], &shown["accepted_total"]),
        (&json!("ready"), &json!(1))
    );
    let (_, caches) = admin.get("/v1/cache/w0");
    let blocks = caches[0].as_array().unwrap();
    assert!(blocks.len() >= 4, "{caches}");
    assert_eq!(blocks[0]["parent"], Value::Null);
    assert_eq!(blocks[1]["parent"], blocks[0]["block_hash"]);
    let (_, fleet) = admin.get("/v1/fleet");
    assert_eq!((&fleet["launch"], &fleet["tokens_total"]), (&json!("ready"), &json!(4)));
    for nobody in ["w5", "w0/r5", "w0/r5/kv", "w0/r5/native"] {
        let (status, answer) = admin.get(&format!("/v1/actors/{nobody}"));
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(
            status == 404 && error.contains("there is no actor"),
            "{nobody}: {status} {answer}"
        );
    }
}

#[test]
fn the_server_outlives_clients_that_misbehave() {
    let admin = Admin::start(&[]);
    let address = admin.scene.cluster.facts().admin.unwrap();
    let mut idle = Vec::new();
    for _ in 0..40 {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(b"GET /v1/fleet HTTP/1.1\r\n").unwrap();
        idle.push(socket);
    }
    let mut loud = TcpStream::connect(address).unwrap();
    // The server may close while this is still being written.
    let _ = loud.write_all(&vec![b'x'; 1 << 20]);
    let mut said = Vec::new();
    let _ = loud.read_to_end(&mut said);
    assert!(
        said.is_empty() || said.starts_with(b"HTTP/1.1 4"),
        "{}",
        String::from_utf8_lossy(&said)
    );
    assert_eq!(admin.get("/v1/fleet").0, 200);
}
