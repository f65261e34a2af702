//! What the admin API shows: columns for views, labels, requests of both faces, every actor and its supervisor.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::admin::Admin;
use crate::caller::{call, chat};

fn free_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

#[test]
fn columns_of_a_live_sample_mean_what_the_names_before_it_say() {
    let admin = Admin::start(&["--num-workers", "40", "--stagger-delay", "0", "--labels", "zone=a|b"]);
    admin.fault("w7 hang");
    let answer = call(&admin.scene.address(5), "a", &chat(&[7; 16], 6)).unwrap().finish();
    assert!(answer.unwrap().complete);
    let mut live = admin.live("workers=columns&every_ms=100");
    let (name, names) = live.next().unwrap();
    assert_eq!(name, "names");
    assert_eq!(names["workers"].as_array().unwrap().len(), 40);
    assert_eq!(names["workers"][3]["path"], "w3");
    assert_eq!(names["workers"][3]["labels"]["zone"], "b");
    assert_eq!(names["supervisor"]["budget"], 5);
    let (_, sample) = live.find(|(name, _)| name == "sample").unwrap();
    let columns = sample["columns"].as_object().unwrap();
    for (figure, list) in columns.iter().filter(|(figure, _)| *figure != "faults") {
        assert_eq!(list.as_array().unwrap().len(), 40, "{figure}");
    }
    let word = |worker: usize| &names["health"][usize::try_from(columns["health"][worker].as_u64().unwrap()).unwrap()];
    assert_eq!((word(5), word(7)), (&json!("ready"), &json!("hung")));
    assert_eq!(columns["tokens_total"][5], 6);
    assert_eq!(columns["faults"], json!({"7": [1]}));
    let bytes = Value::Object(columns.clone()).to_string().len();
    assert!(bytes < 40 * 80, "{bytes} bytes for 40 workers");
    let whole = admin.get("/v1/fleet").1;
    assert_eq!(whole["latency"]["ttft"]["count"], 1);
    assert_eq!(whole["latency"]["itl"]["count"], 1);
    assert_eq!(whole["workers_by_health"], json!({"hung": 1, "ready": 39}));
}

#[test]
fn labels_of_the_users_own_select_workers_by_turns() {
    let admin = Admin::start(&["--num-workers", "6", "--labels", "zone=a|b|c,rack=r1"]);
    let chosen = |select: &str| -> Vec<String> {
        let (status, rows) = admin.get(&format!("/v1/workers?select={select}"));
        assert_eq!(status, 200, "{rows}");
        let path = |row: &Value| row["path"].as_str().unwrap().to_owned();
        rows.as_array().unwrap().iter().map(path).collect()
    };
    assert_eq!(chosen("label:zone=b"), ["w1", "w4"]);
    assert_eq!(chosen("label:rack=r1").len(), 6);
    assert_eq!(
        chosen("label:engine=vllm").len(),
        6,
        "labels that every worker has stay"
    );
    admin.fault("hottest(1)@label:zone=c slow factor=2");
    assert_eq!(admin.get("/v1/faults").1[0]["workers"], json!([2]));
    assert_eq!(admin.get("/v1/actors/w4").1["labels"]["zone"], "b");
}

/// Sends a chat request to a worker's HTTP port and reads nothing.
pub(crate) fn post(admin: &Admin, worker: usize, id: &str) -> TcpStream {
    let address = admin.scene.worker(worker).http.unwrap();
    let body =
        json!({"model": "tiny", "max_tokens": 5, "ignore_eos": true, "messages": [{"role": "user", "content": "hi"}]});
    let body = body.to_string();
    let mut socket = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: worker\r\nx-request-id: {id}\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).unwrap();
    socket.write_all(body.as_bytes()).unwrap();
    socket
}

#[test]
fn why_knows_requests_of_the_http_port_by_their_id_and_by_that_of_their_answer() {
    let admin = Admin::start(&["--num-workers", "2", "--http-port", "0"]);
    admin.fault("w1 hang");
    let mut socket = post(&admin, 1, "one-of-mine");
    admin
        .scene
        .until("the request is there", |_| admin.get("/v1/why/one-of-mine").0 == 200);
    for id in ["one-of-mine", "chatcmpl-one-of-mine"] {
        let (status, why) = admin.get(&format!("/v1/why/{id}"));
        assert_eq!(
            (status, &why["worker"], &why["phase"]),
            (200, &json!("w1"), &json!("waiting")),
            "{why}"
        );
        let because = why["because"].to_string();
        assert!(
            because.contains("w1/r0 hangs") && because.contains("fault f1"),
            "{because}"
        );
        assert!(
            why["address"].as_str().unwrap().starts_with("http client 127.0.0.1"),
            "{why}"
        );
    }
    let (_, queue) = admin.get("/v1/requests?worker=w1");
    assert_eq!(queue["requests"][0]["request"], "chatcmpl-one-of-mine");
    assert_eq!(admin.get("/v1/requests?worker=w0").1["requests"], json!([]));
    assert_eq!(admin.get("/v1/requests?worker=x").0, 400);
    admin.delete("/v1/faults");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("chatcmpl-one-of-mine"), "{answer}");
    admin
        .scene
        .until("it is over", |_| admin.get("/v1/why/one-of-mine").0 == 404);
    assert_eq!(admin.get("/v1/fleet").1["requests_total"], 1);
    let shown = admin.scene.worker(1);
    assert_eq!((shown.accepted_total, shown.completed_total), (1, 1));
    admin.fault("w0 hang");
    let socket = post(&admin, 0, "given-up");
    admin
        .scene
        .until("it is taken", |_| admin.get("/v1/why/given-up").0 == 200);
    drop(socket);
    admin
        .scene
        .until("who left is counted", |scene| scene.worker(0).cancelled_total == 1);
    assert_eq!(
        admin.get("/v1/workers").1[0]["cancelled_total"],
        1,
        "and in the list, too"
    );
    admin.scene.until_nothing_is_left();
}

#[test]
fn every_kind_of_actor_says_something_of_itself() {
    let (events, replay) = (free_port(), free_port());
    let flags = ["--zmq-kv-events-ports", &events, "--zmq-replay-ports", &replay];
    let admin = Admin::start(&flags);
    let answer = call(&admin.scene.address(0), "a", &chat(&[7; 16], 4)).unwrap().finish();
    assert!(answer.unwrap().complete);
    let said = |path: &str| {
        let (status, shown) = admin.get(&format!("/v1/actors/{path}"));
        assert_eq!(
            (status, &shown["inside"]["alive"]),
            (200, &json!(true)),
            "{path}: {shown}"
        );
        assert_eq!(shown["supervisor"]["budget"], 5, "{path}");
        shown["inside"]["said"].clone()
    };
    assert_eq!(said("w0/r0")["activity"], "idle");
    assert!(said("w0/r0/kv")["last_event_id"].is_u64());
    assert!(said("w0/metrics")["ranks_with_news"].is_array());
    assert_eq!(said("w0/lease")["keeps_lease"], true);
    let native = said("w0/r0/native");
    assert!(
        native["next_sequence"].as_u64().unwrap() > 0 && native["replayable"] == true,
        "{native}"
    );
    let prefill = Admin::start(&["--disaggregation-mode", "prefill", "--bootstrap-ports", "0"]);
    let (_, shown) = prefill.get("/v1/actors/w0/rendezvous");
    assert_eq!(shown["inside"]["said"]["open_rooms"], 0, "{shown}");
}

#[test]
fn a_supervisor_says_what_is_left_of_its_budget_and_when_an_actor_is_back() {
    let admin = Admin::start(&[]);
    let (_, fresh) = admin.get("/v1/actors/w0");
    assert_eq!(
        (&fresh["supervisor"]["budget"], &fresh["supervisor"]["deaths"]),
        (&json!(5), &json!([]))
    );
    for deaths in 1..=2 {
        admin.fault("w0 panic actor=r0");
        admin.scene.until("the death is seen", |scene| {
            scene.worker(0).deaths.iter().any(|death| death.deaths_total == deaths)
        });
        admin.scene.until("it is replaced", |_| {
            admin.get("/v1/actors/w0/r0").1["inside"]["alive"] == true
        });
    }
    let (_, shown) = admin.get("/v1/actors/w0/r0");
    let death = &shown["supervisor"]["deaths"][0];
    assert_eq!((&death["path"], &death["deaths_total"]), (&json!("w0/r0"), &json!(2)));
    assert_eq!(
        (&death["deaths_in_window"], &death["budget_left"]),
        (&json!(2), &json!(3))
    );
    assert_eq!(
        (&death["backoff_ms"], &death["replaced_in_ms"]),
        (&json!(200.0), &json!(0.0))
    );
    assert_eq!(admin.get("/v1/actors/w0").1["supervisor"]["deaths"][0], *death);
}

#[test]
fn the_shape_of_a_cache_is_told_per_rank() {
    let admin = Admin::start(&["--data-parallel-size", "2"]);
    let mut request = chat(&[7; 16], 4);
    request["dp_rank"] = json!(1);
    let answer = call(&admin.scene.address(0), "a", &request).unwrap().finish();
    assert!(answer.unwrap().complete);
    let (status, shapes) = admin.get("/v1/blocks/w0");
    assert_eq!((status, shapes.as_array().unwrap().len()), (200, 2), "{shapes}");
    assert_eq!(
        (&shapes[0]["path"], &shapes[1]["path"]),
        (&json!("w0/r0"), &json!("w0/r1"))
    );
    let caches = admin.get("/v1/cache/w0").1;
    for (shape, cache) in shapes.as_array().unwrap().iter().zip(caches.as_array().unwrap()) {
        assert_eq!(shape["blocks"], cache.as_array().unwrap().len());
    }
    assert_eq!(admin.get("/v1/blocks/w0/r1").1[0], shapes[1]);
    assert_eq!(admin.get("/v1/blocks/w9").0, 404);
}
