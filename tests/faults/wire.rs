//! Faults of requests and responses, seen on the sockets.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::admin::Admin;
use crate::caller::{call, chat};
use crate::raw::{Sent, is_called_home, post, read_to_end};

const FAST: [&str; 2] = ["--speedup-ratio", "0"];

/// Removes all faults and adds one.
fn only(admin: &Admin, line: &str) {
    let (status, answer) = admin.put("/v1/faults", &serde_json::json!([line]));
    assert_eq!(status, 200, "{answer}");
}

/// The bytes of one answer of ten tokens.
fn bytes(admin: &Admin) -> (Vec<u8>, bool, Duration) {
    let home = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let begin = Instant::now();
    let _sent = post(&admin.scene.address(0), &chat(&[1, 2, 3], 10), &home);
    let (said, reset) = read_to_end(&home);
    (said, reset, begin.elapsed())
}

fn count(said: &[u8], word: &str) -> usize {
    said.windows(word.len())
        .filter(|window| *window == word.as_bytes())
        .count()
}

#[test]
fn requests_disappear_are_reset_or_wait() {
    let admin = Admin::start(&FAST);
    let address = admin.scene.address(0);
    let home = || TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let short = Duration::from_millis(300);
    let request = chat(&[1, 2, 3], 2);
    only(&admin, "w0 request.black_hole");
    let at = home();
    let sent = post(&address, &request, &at);
    assert_eq!(sent.ack(short), None);
    assert!(!is_called_home(&at));
    only(&admin, "w0 ack_withheld");
    let at = home();
    let sent = post(&address, &request, &at);
    assert!(count(&read_to_end(&at).0, "complete_final\":true") == 1, "it is served");
    assert_eq!(sent.ack(short), None);
    only(&admin, "w0 no_call_home");
    let at = home();
    let sent = post(&address, &request, &at);
    assert_eq!(sent.ack(Duration::from_secs(20)).as_deref(), Some(""));
    assert!(!is_called_home(&at));
    only(&admin, "w0 request.reset_peer");
    assert!(post(&address, &request, &home()).is_reset());
    only(&admin, "w0 request.latency ms=300");
    let (_, _, took) = bytes(&admin);
    assert!(took >= Duration::from_millis(300));
    admin.delete("/v1/faults");
    let (said, reset, _) = bytes(&admin);
    assert!(!reset && count(&said, "complete_final\":true") == 1);
    admin.scene.until_nothing_is_left();
}

/// A request that disappears at w0, and one to w1 behind it on the same connection.
fn out_of_step(admin: &Admin, homes: &(TcpListener, TcpListener)) -> Sent {
    let (first, second) = (admin.scene.address(0), admin.scene.address(1));
    assert_eq!(first.split_once('/').unwrap().0, second.split_once('/').unwrap().0);
    let sent = post(&first, &chat(&[1, 2, 3], 2), &homes.0);
    sent.post(&second, &chat(&[1, 2, 3], 2), &homes.1);
    read_to_end(&homes.1);
    assert_eq!(
        sent.ack(Duration::from_millis(100)),
        None,
        "it would pass for the first one's"
    );
    sent
}

#[test]
fn a_connection_whose_acks_are_out_of_step_is_closed_when_its_fault_is_over() {
    let admin = Admin::start(&[&FAST[..], &["--num-workers", "2"]].concat());
    let home = || TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let homes = (home(), home());
    for line in ["w0 request.black_hole", "w0 ack_withheld"] {
        only(&admin, line);
        let removed = out_of_step(&admin, &homes);
        let unconcerned = admin.fault("w0 slow factor=1.5");
        assert_eq!(removed.ack(Duration::from_millis(100)), None);
        admin.delete(&format!("/v1/faults/f{unconcerned}"));
        only(&admin, "w1 slow factor=1.5");
        removed.until_closed();

        only(&admin, line);
        let healed = out_of_step(&admin, &homes);
        let (status, answer) = admin.post("/v1/commands", &serde_json::json!({"command": "heal", "select": "w0"}));
        assert_eq!(status, 200, "{answer}");
        healed.until_closed();

        only(&admin, &format!("{line} for=500ms"));
        out_of_step(&admin, &homes).until_closed();
    }
    // The end of the worker ends it too, although the fault stays for its next life.
    only(&admin, "w0 request.black_hole");
    let dead = out_of_step(&admin, &homes);
    admin.fault("w0 restart");
    dead.until_closed();
    let address = admin.scene.address(1);
    let sent = post(&address, &chat(&[1, 2, 3], 2), &home());
    assert_eq!(
        sent.ack(Duration::from_secs(20)).as_deref(),
        Some(""),
        "w1 was never struck"
    );
}

#[test]
fn a_port_of_its_own_confines_a_worker_that_acks_nothing() {
    let admin = Admin::start(&[&FAST[..], &["--num-workers", "2", "--ports", "per-worker"]].concat());
    only(&admin, "w0 request.black_hole");
    let home = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let lost = post(&admin.scene.address(0), &chat(&[1], 2), &home);
    let served = post(&admin.scene.address(1), &chat(&[1], 2), &home);
    assert_eq!(served.ack(Duration::from_secs(20)).as_deref(), Some(""));
    admin.scene.until("the other one is swallowed", |_| {
        admin.get("/v1/requests?worker=w0").1["requests"][0]["phase"] == "swallowed"
    });
    admin.delete("/v1/faults");
    lost.until_closed();
    served.post(&admin.scene.address(1), &chat(&[1], 2), &home);
    assert_eq!(
        served.ack(Duration::from_secs(20)).as_deref(),
        Some(""),
        "this one was in step"
    );
}

#[test]
fn frames_of_an_answer_are_missing_doubled_or_none() {
    let admin = Admin::start(&FAST);
    let (truth, _, _) = bytes(&admin);
    assert_eq!(
        (
            count(&truth, "{\"error\":null}"),
            count(&truth, "complete_final\":true")
        ),
        (1, 1)
    );
    only(&admin, "w0 no_prologue");
    assert_eq!(count(&bytes(&admin).0, "{\"error\":null}"), 0);
    only(&admin, "w0 duplicate_final");
    assert_eq!(count(&bytes(&admin).0, "complete_final\":true"), 2);
    only(&admin, "w0 missing_final");
    let (said, _, _) = bytes(&admin);
    assert_eq!(
        (count(&said, "complete_final\":true"), count(&said, "sentinel")),
        (0, 1)
    );
    only(&admin, "w0 malformed_frame after_tokens=3");
    let (said, _, _) = bytes(&admin);
    let at = said
        .windows(11)
        .position(|window| window == b"not a frame")
        .expect("garbage");
    assert_eq!(count(&said[..at], "token_ids"), 3);
    admin.scene.until_nothing_is_left();
}

#[test]
fn connections_are_slow_narrow_sliced_cut_and_reset() {
    let admin = Admin::start(&FAST);
    let (truth, _, _) = bytes(&admin);
    only(&admin, "w0 response.latency ms=250");
    let (said, reset, took) = bytes(&admin);
    assert_eq!((said.len(), reset), (truth.len(), false));
    assert!(took >= Duration::from_millis(250));
    only(&admin, "w0 bandwidth bytes_per_s=4000");
    let (said, _, took) = bytes(&admin);
    assert_eq!(said.len(), truth.len());
    #[allow(clippy::cast_precision_loss)]
    let at_least = said.len() as f64 / 4000.0 * 0.9;
    assert!(took.as_secs_f64() >= at_least, "{took:?} {at_least}");
    only(&admin, "w0 slicer bytes=10 delay_ms=1");
    let (said, _, took) = bytes(&admin);
    assert_eq!(said.len(), truth.len());
    assert!(took >= Duration::from_millis(said.len() as u64 / 10));
    only(&admin, "w0 limit_data bytes=300");
    let (said, reset, _) = bytes(&admin);
    assert_eq!((said.len(), reset), (300, false));
    only(&admin, "w0 response.reset_peer after_ms=0");
    assert!(bytes(&admin).1);
    only(&admin, "w0 slow_close ms=100");
    assert!(
        call(&admin.scene.address(0), "a", &chat(&[1], 3))
            .unwrap()
            .finish()
            .unwrap()
            .complete
    );
    admin.delete("/v1/faults");
    admin.scene.until_nothing_is_left();
}
