//! The `OpenAPI` document says what the admin API does: real answers are held against it, and so is what it takes.

use ghostfleet::admin::openapi::{self, EVENTS, OPERATIONS};
use ghostfleet::faults::journal::{Entry, Event};
use ghostfleet::faults::kind::param::Values;
use serde_json::{Value, json};

use crate::admin::Admin;
use crate::caller::{Said, call, chat};
use crate::json_schema::Schemas;

/// Answers of one kind of fleet, held against the document that it serves.
struct Held {
    admin: Admin,
    document: Value,
    seen: Vec<(&'static str, &'static str)>,
}

impl Held {
    fn start(flags: &[&str]) -> Self {
        let admin = Admin::start(flags);
        let document = admin.get("/openapi.json").1;
        Self {
            admin,
            document,
            seen: Vec::new(),
        }
    }

    /// Holds an answer against what is said of it; `path` without parameters filled in.
    #[track_caller]
    fn hold(&mut self, method: &str, path: &str, (status, answer): &(u16, Value)) {
        let operation = OPERATIONS
            .iter()
            .find(|told| (told.method, told.path) == (method, path));
        let operation = operation.expect("an operation of the document");
        let key = if *status == 200 { "200" } else { "default" };
        let escaped = path.replace('/', "~1");
        let pointer = format!("/paths/{escaped}/{method}/responses/{key}/content/application~1json/schema");
        let held = Schemas(&self.document).check(&pointer, answer);
        assert_eq!(held, Ok(()), "{method} {path}, status {status}");
        if *status == 200 {
            self.seen.push((operation.method, operation.path));
        }
    }

    /// Asks for a path, and holds the answer against what is said of `told`.
    #[track_caller]
    fn get(&mut self, told: &str, path: &str) -> Value {
        let answer = self.admin.get(path);
        self.hold("get", told, &answer);
        answer.1
    }

    #[track_caller]
    fn post(&mut self, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.admin.post(path, body);
        self.hold("post", path, &answer);
        answer
    }
}

#[test]
fn answers_are_what_the_document_says() {
    let mut held = Held::start(&[
        "--num-workers",
        "3",
        "--data-parallel-size",
        "2",
        "--http-port",
        "0",
        "--zmq-kv-events-ports",
        "0,0,0",
        "--zmq-replay-ports",
        "0,0,0",
        "--labels",
        "zone=a|b",
    ]);
    let outcome = call(&held.admin.scene.address(0), "a", &chat(&[7; 16], 4))
        .unwrap()
        .finish();
    assert!(outcome.unwrap().complete);
    held.admin.fault("w2 panic actor=r0");
    held.admin
        .scene
        .until("the death is seen", |scene| !scene.worker(2).deaths.is_empty());
    held.post(
        "/v1/faults",
        &json!({"add": ["* slow_start ms=1 p=0.5 to=60s", "w2 hang from=60s", "w0 silent"]}),
    );
    held.post("/v1/commands", &json!({"command": "crash", "select": ["w2"]}));
    held.post("/v1/commands", &json!({"command": "heal", "select": ["w2"]}));
    held.post("/v1/commands", &json!({"command": "clear_cache", "path": "w0/r0"}));
    held.admin.scene.until("w2 is well", |_| {
        held.admin.get("/v1/workers?select=w2").1[0]["state"] == "ready"
    });
    // One that is under way, by each face's word for it.
    held.admin.fault("w1 hang");
    let mut hung = call(&held.admin.scene.address(1), "hung", &chat(&[1, 2, 3], 5)).unwrap();
    assert!(matches!(hung.next().unwrap(), Said::Header(_)));
    held.admin
        .scene
        .until("it is known", |_| held.admin.get("/v1/why/hung").0 == 200);
    for query in ["", "?workers=rows", "?workers=columns"] {
        held.get("/v1/fleet", &format!("/v1/fleet{query}"));
    }
    held.get("/v1/workers", "/v1/workers");
    for path in [
        "w0",
        "w2",
        "w0/r0",
        "w1/r1",
        "w0/r1/kv",
        "w0/r0/native",
        "w0/metrics",
        "w0/lease",
    ] {
        let told = held.get("/v1/actors/{path}", &format!("/v1/actors/{path}"));
        assert_eq!(told["path"], path);
    }
    for path in ["w0/r9", "w0/r9/kv", "w0/rendezvous", "w9/lease"] {
        assert_eq!(held.admin.get(&format!("/v1/actors/{path}")).0, 404, "{path}");
        held.get("/v1/actors/{path}", &format!("/v1/actors/{path}"));
    }
    assert!(held.get("/v1/cache/{path}", "/v1/cache/w0")[0].is_array());
    held.get("/v1/former/{path}", "/v1/former/w0");
    held.get("/v1/blocks/{path}", "/v1/blocks/w0");
    assert_ne!(held.get("/v1/records", "/v1/records?prefix=v1/"), json!([]));
    held.get("/v1/faults", "/v1/faults");
    held.get("/v1/kinds", "/v1/kinds");
    assert_ne!(held.get("/v1/requests", "/v1/requests")["requests"], json!([]));
    held.get("/v1/why/{request}", "/v1/why/hung");
    let journal = held.get("/v1/journal", "/v1/journal?draws=true");
    let told = |event: &str| {
        journal["entries"]
            .as_array()
            .unwrap()
            .iter()
            .any(|entry| entry["event"] == event)
    };
    for event in ["added", "opened", "drawn", "done", "healed", "state"] {
        assert!(told(event), "{event}: {journal}");
    }
    held.get("/openapi.json", "/openapi.json");
    let put = held.admin.put("/v1/faults", &json!({"add": ["w1 hang"]}));
    held.hold("put", "/v1/faults", &put);
    let removed = held.admin.delete(&format!("/v1/faults/{}", put.1[0]["id"]));
    held.hold("delete", "/v1/faults/{id}", &removed);
    let cleared = held.admin.delete("/v1/faults");
    held.hold("delete", "/v1/faults", &cleared);
    assert!(hung.finish().unwrap().complete);
    for operation in OPERATIONS {
        let is_json = !matches!(operation.answer, "EventStream" | "Page");
        let was_asked = held.seen.contains(&(operation.method, operation.path));
        assert!(was_asked || !is_json, "{} {}", operation.method, operation.path);
    }
}

#[test]
fn answers_of_prefill_workers_and_answers_that_say_no_are_what_the_document_says() {
    let mut held = Held::start(&["--disaggregation-mode", "prefill", "--bootstrap-ports", "0"]);
    held.get("/v1/actors/{path}", "/v1/actors/w0/rendezvous");
    held.get("/v1/actors/{path}", "/v1/actors/w9");
    held.get("/v1/records", "/v1/records?prefix=x");
    held.get("/v1/why/{request}", "/v1/why/nobody");
    held.get("/v1/why/{request}", "/v1/why/%ff");
    held.post("/v1/faults", &json!(7));
    let (status, _) = held.post("/v1/commands", &json!({"command": "crash", "path": "w7"}));
    assert_eq!(status, 404);
    held.post("/v1/commands", &json!({"command": "crash"}));
}

#[test]
fn live_events_are_what_the_document_says() {
    let held = Held::start(&["--num-workers", "2"]);
    let told = &held.document["paths"]["/v1/live"]["get"]["responses"]["200"]["x-events"];
    let mut wanted = vec!["names", "entry", "sample"];
    for (name, data) in held.admin.live("workers=columns&every_ms=100&after=0") {
        let pointer = told[&name]["$ref"].as_str().and_then(|text| text.strip_prefix('#'));
        let pointer = pointer.unwrap_or_else(|| panic!("nothing is said of {name}"));
        assert_eq!(Schemas(&held.document).check(pointer, &data), Ok(()), "{name}");
        wanted.retain(|word| *word != name);
        if wanted.is_empty() {
            break;
        }
    }
    let lost = Schemas(&held.document).check("/components/schemas/Lost", &json!({"after": 3}));
    assert_eq!((lost, EVENTS.len()), (Ok(()), 4));
}

#[test]
fn every_entry_that_a_journal_may_have_is_in_the_document() {
    let by_command = Event::Done {
        id: None,
        path: "w1".to_owned(),
        act: "crash",
        error: None,
    };
    let document = openapi::document();
    let schemas = Schemas(&document);
    for event in Event::examples().into_iter().chain([by_command]) {
        let entry = json!(Entry {
            seq: 1,
            at_ms: 0.5,
            event
        });
        assert_eq!(schemas.check("/components/schemas/Entry", &entry), Ok(()), "{entry}");
    }
}

#[test]
fn a_body_is_taken_exactly_when_the_document_allows_it() {
    let held = Held::start(&["--num-workers", "2"]);
    let allows = |schema: &str, body: &Value| {
        let pointer = format!("/components/schemas/{schema}");
        Schemas(&held.document).check(&pointer, body)
    };
    let select = |select: Value| json!({"command": "heal", "select": select});
    let mut both = [0, 0];
    for body in [
        select(json!("w0")),
        select(json!(["w0", 1])),
        select(json!([0, 1])),
        select(json!(["w0", "w1"])),
        select(json!(5)),
        select(json!([])),
        select(json!([0.5])),
        select(json!([-1])),
        select(json!([0, null])),
        select(json!([[0]])),
        select(json!({"id": 0})),
        select(json!(true)),
        json!({"command": "heal", "path": "w0", "select": null}),
        json!({"command": "heal", "path": "w0", "same_id": true, "seed": 3}),
        json!({"command": "heal", "path": "w0", "seed": -3}),
        json!({"command": "heal", "path": "w0", "now": true}),
        json!({"command": "explode", "path": "w0"}),
        json!(["heal", "w0", null, 0, false]),
    ] {
        let allowed = allows("Command", &body);
        let (status, answer) = held.admin.post("/v1/commands", &body);
        assert_eq!(status != 400, allowed.is_ok(), "{body}: {allowed:?}, {answer}");
        both[usize::from(status == 400)] += 1;
    }
    let fault = |kind: &str, params: Value| json!({"select": "w0", "kind": kind, "params": params});
    for body in [
        fault("slow", json!({"factor": 2})),
        fault("slow", json!({"factor": "fast"})),
        fault("slow", json!({"factor": -1})),
        fault("slow", json!({"times": 2})),
        fault("slow", json!({})),
        json!({"select": "w0", "kind": "slow"}),
        fault("wrong_block_size", json!({"factor": 0})),
        fault("wrong_block_size", json!({"factor": 3.0})),
        fault("wrong_block_size", json!({"factor": 2.5})),
        fault("clear_cache", json!({"event": "without"})),
        fault("clear_cache", json!({"event": "maybe"})),
        fault("crash", json!({"same_id": "yes"})),
        fault("latency", json!({"ms": 3})),
        json!({"select": "w0", "layer": "response", "kind": "latency", "params": {"ms": 3}, "to": null}),
        json!({"select": null, "kind": "silent"}),
        json!({"select": ["w0", 1], "kind": "silent", "layer": null}),
        json!({"select": "w0", "kind": "silent", "layer": "life"}),
        json!({"select": "w0", "kind": "silent", "probability": 1.5}),
        json!({"select": "w0", "kind": "silent", "when": 1}),
        json!(["w0 silent", {"select": "w1", "kind": "silent"}]),
        json!({"add": ["w0 silent"], "remove": []}),
        json!({"add": "w0 silent"}),
        json!({"add": [], "more": 1}),
        json!([["w0", null, "silent", {}, 1.0, 0.0, null, 0]]),
        json!({}),
        json!(7),
        json!(null),
    ] {
        let allowed = allows("Change", &body);
        let (status, answer) = held.admin.post("/v1/faults", &body);
        assert_eq!(status != 400, allowed.is_ok(), "{body}: {allowed:?}, {answer}");
        both[usize::from(status == 400)] += 1;
    }
    assert!(both.iter().all(|many| *many > 10), "{both:?}");
}

#[test]
fn queries_are_taken_as_the_document_says() {
    let held = Held::start(&[]);
    let mut asked = 0;
    for operation in OPERATIONS.iter().filter(|operation| operation.answer != "EventStream") {
        let path = operation.path.replace("{path}", "w0").replace("{request}", "none");
        let needed: Vec<_> = operation.query.iter().filter(|param| param.required).collect();
        let status = |name: &str, value: &str| {
            let others = needed.iter().filter(|param| param.name != name);
            let others: Vec<String> = others.map(|param| format!("&{}=v1/", param.name)).collect();
            held.admin.get(&format!("{path}?{name}={value}{}", others.concat())).0
        };
        for param in operation.query {
            let (good, bad) = match param.values {
                Values::Whole(range) => (vec![range.example.to_string()], vec!["-1", "1.5", "x"]),
                Values::Flag => (vec!["true".to_owned(), "false".to_owned()], vec!["5"]),
                Values::Word(words) => (words.iter().map(|word| (*word).to_owned()).collect(), vec!["x"]),
                Values::Text if param.required => (vec!["v1/".to_owned()], vec![]),
                Values::Text => (vec!["w0".to_owned()], vec![]),
                Values::Number(_) => panic!("no query has one"),
            };
            for value in good {
                assert_eq!(status(param.name, &value), 200, "{path}?{}={value}", param.name);
            }
            for value in bad {
                assert_eq!(status(param.name, value), 400, "{path}?{}={value}", param.name);
            }
            if param.required {
                assert_eq!(held.admin.get(&path).0, 400, "{path} without {}", param.name);
            }
            let told = &held.document["paths"][operation.path]["get"]["parameters"];
            let mut told = told.as_array().unwrap().iter();
            let told = told.find(|told| told["name"] == param.name).unwrap();
            assert_eq!(told["required"], param.required);
            asked += 1;
        }
        if !operation.query.is_empty() {
            assert_eq!(status("nonsense", "1"), 400, "{path}");
        }
    }
    assert!(asked >= 8, "{asked}");
}

#[test]
fn what_is_refused_is_told_by_its_field_and_by_what_it_may_be() {
    let admin = Admin::start(&[]);
    for (path, body, words) in [
        (
            "/v1/commands",
            json!({"command": "heal", "select": 5}),
            "select is 5, expected a text as",
        ),
        (
            "/v1/commands",
            json!({"command": "heal", "select": [0, null]}),
            "select[1] is null, expected a worker",
        ),
        (
            "/v1/commands",
            json!({"command": "heal", "path": 5}),
            "path is 5, expected",
        ),
        (
            "/v1/faults",
            json!({"select": null, "kind": "silent"}),
            "fault 0: select is null, expected a text as",
        ),
        (
            "/v1/faults",
            json!([{"select": [], "kind": "silent"}]),
            "fault 0: select: an empty list selects nobody",
        ),
        (
            "/v1/faults",
            json!({"add": [{"select": {}, "kind": "silent"}]}),
            "or a list of workers as [0, \"w5\"]",
        ),
        (
            "/v1/faults",
            json!({"select": "*", "kind": "silent", "seed": -1}),
            "fault 0: seed is -1, expected a whole",
        ),
        ("/v1/faults", json!({"kind": "silent"}), "fault 0: select is missing"),
        (
            "/v1/faults",
            json!({"add": [], "remove": [1.5]}),
            "remove: it is 1.5, expected a whole number",
        ),
    ] {
        let (status, answer) = admin.post(path, &body);
        let error = answer["error"].as_str().unwrap();
        assert!(status == 400 && error.contains(words), "{body}: {answer}");
    }
}
