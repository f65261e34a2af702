//! Requests that faults keep from being served: who waits for what.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::admin::Admin;
use crate::caller::chat;
use crate::raw;
use crate::views::post;

fn because(why: &Value) -> String {
    why["because"].to_string()
}

/// Open streams, by the list of workers and by the sum of the fleet.
fn open(admin: &Admin, worker: usize) -> (u64, u64) {
    let count = |value: &Value| value["open_streams"].as_u64().unwrap();
    (
        count(&admin.get("/v1/workers").1[worker]),
        count(&admin.get("/v1/fleet").1),
    )
}

#[test]
fn requests_of_the_http_port_that_a_fault_holds_are_open_and_say_by_which() {
    let admin = Admin::start(&["--num-workers", "2", "--http-port", "0", "--speedup-ratio", "0"]);
    for (fault, phase, words) in [
        (
            "w1 request.black_hole",
            "swallowed",
            "has swallowed it: http client 127.0.0.1",
        ),
        (
            "w1 request.latency ms=600000",
            "delayed",
            "delays it: it is looked at in 59",
        ),
    ] {
        let id = admin.fault(fault);
        let client = post(&admin, 1, "mine");
        admin.scene.until("it is known", |_| admin.get("/v1/why/mine").0 == 200);
        for name in ["mine", "chatcmpl-mine"] {
            let (_, why) = admin.get(&format!("/v1/why/{name}"));
            assert_eq!((&why["worker"], &why["phase"]), (&json!("w1"), &json!(phase)), "{why}");
            let because = because(&why);
            assert!(because.contains(&format!("fault f{id} {words}")), "{because}");
            assert!(
                because.contains(&format!("fault f{id} is in force: {fault}")),
                "{because}"
            );
        }
        let (_, listed) = admin.get("/v1/requests?worker=w1");
        assert_eq!(listed["requests"][0]["request"], "chatcmpl-mine", "{listed}");
        assert_eq!(open(&admin, 1), (1, 1), "{fault}: a client waits");
        assert_eq!(admin.get("/v1/requests?worker=w0").1["requests"], json!([]));
        drop(client);
        admin
            .scene
            .until("who left is forgotten", |_| admin.get("/v1/why/mine").0 == 404);
        assert_eq!(open(&admin, 1), (0, 0), "{fault}");
        admin.delete("/v1/faults");
    }
    let (_, none) = admin.get("/v1/why/mine");
    assert!(none.to_string().contains("and no fault holds it"), "{none}");
    admin.scene.until_nothing_is_left();
}

#[test]
fn calls_that_a_fault_delays_are_listed_before_they_are_looked_at() {
    let admin = Admin::start(&[]);
    let home = TcpListener::bind("127.0.0.1:0").unwrap();
    let id = admin.fault("w0 request.latency ms=3000");
    let _sent = raw::post(&admin.scene.address(0), &chat(&[1; 4], 2), &home);
    admin.scene.until("it is known", |_| admin.get("/v1/why/raw").0 == 200);
    let (_, why) = admin.get("/v1/why/raw");
    assert_eq!(why["phase"], "delayed", "{why}");
    assert_eq!(why["address"], home.local_addr().unwrap().to_string());
    assert!(because(&why).contains(&format!("fault f{id} delays it")), "{why}");
    assert_eq!(admin.get("/v1/requests").1["requests"].as_array().unwrap().len(), 1);
    assert_eq!(open(&admin, 0), (1, 1));
    // Then it is served like any other.
    drop(home.accept().unwrap());
    admin.scene.until_nothing_is_left();
    assert_eq!(admin.get("/v1/why/raw").0, 404);
}

#[test]
fn calls_that_a_fault_swallows_are_listed_while_it_stands_and_are_nobodys_leak() {
    let admin = Admin::start(&[]);
    let home = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = admin.scene.source(0, 0).unwrap();
    let target = &source["metadata"]["recovery_target"]["transport"]["tcp"];
    let query = json!({"worker_id": admin.scene.worker(0).instance_id, "dp_rank": 0, "start_event_id": null});
    let recovery = (target.as_str().unwrap().to_owned(), query);
    let call = (admin.scene.address(0), chat(&[1; 4], 2));
    for (fault, (address, request), words) in [
        ("w0 request.black_hole", &call, "hears nothing"),
        ("w0 no_call_home", &call, "it was acked, and nobody dials"),
        ("w0 recovery_hanging", &recovery, "it was acked, and nobody dials"),
    ] {
        let id = admin.fault(fault);
        let sent = raw::post(address, request, &home);
        admin.scene.until("it is known", |_| admin.get("/v1/why/raw").0 == 200);
        let (_, why) = admin.get("/v1/why/raw");
        assert_eq!(
            (&why["worker"], &why["phase"]),
            (&json!("w0"), &json!("swallowed")),
            "{why}"
        );
        assert!(
            because(&why).contains(&format!("fault f{id} has swallowed it")),
            "{why}"
        );
        assert!(because(&why).contains(words), "{why}");
        assert_eq!(admin.get("/v1/requests").1["requests"][0]["request"], "raw", "{fault}");
        // Whether its caller still waits nobody can know.
        drop(sent);
        assert_eq!(open(&admin, 0), (0, 0), "{fault}");
        admin.delete("/v1/faults");
        assert_eq!(admin.get("/v1/why/raw").0, 404, "{fault}");
        assert_eq!(admin.get("/v1/requests").1["requests"], json!([]), "{fault}");
    }
    // Nor does one outlive the worker.
    admin.fault("w0 request.black_hole");
    let _sent = raw::post(&call.0, &call.1, &home);
    admin.scene.until("it is known", |_| admin.get("/v1/why/raw").0 == 200);
    admin.fault("w0 crash");
    admin
        .scene
        .until("it is gone with it", |_| admin.get("/v1/why/raw").0 == 404);
}

#[test]
fn a_call_behind_one_that_was_swallowed_says_that_it_has_no_ack() {
    let admin = Admin::start(&["--num-workers", "2"]);
    let home = TcpListener::bind("127.0.0.1:0").unwrap();
    admin.fault("w0 request.black_hole");
    admin.fault("w1 hang");
    let sent = raw::post(&admin.scene.address(0), &chat(&[1; 4], 2), &home);
    admin.scene.until("it is known", |_| admin.get("/v1/why/raw").0 == 200);
    sent.post(&admin.scene.address(1), &chat(&[2; 4], 2), &home);
    let _answer = home.accept().unwrap();
    let others = |admin: &Admin| admin.get("/v1/why/raw").1["others"].as_array().map_or(0, Vec::len);
    admin.scene.until("both are known", |_| others(&admin) == 1);
    let (_, why) = admin.get("/v1/why/raw");
    assert_eq!(why["worker"], "w1", "first of all the one that is served: {why}");
    assert!(because(&why).contains("has no ack"), "{why}");
    assert_eq!(why["others"][0]["phase"], "swallowed", "{why}");
    assert!(!because(&why["others"][0]).contains("has no ack"), "{why}");
}
