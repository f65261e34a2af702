//! Faults of requests and responses, seen on the sockets.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::admin::Admin;
use crate::caller::{call, chat};
use crate::raw::{is_called_home, post, read_to_end};

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
