//! Faults of scheduler and cache.

use std::time::{Duration, Instant};

use crate::admin::Admin;
use crate::caller::{Said, call, chat};

const FAST: [&str; 2] = ["--timing-model", r#"{"type":"fixed","prefill_ms":1.0,"decode_ms":1.0}"#];

/// Time of an answer of `tokens` tokens.
fn time_of(admin: &Admin, tokens: u32) -> Duration {
    let address = admin.scene.address(0);
    let begin = Instant::now();
    let outcome = call(&address, "timed", &chat(&[1, 2, 3], tokens))
        .unwrap()
        .finish()
        .unwrap();
    assert_eq!(outcome.tokens.len(), tokens as usize);
    begin.elapsed()
}

#[test]
fn slow_workers_take_a_multiple_and_stalls_add_up() {
    let admin = Admin::start(&FAST);
    let slow = admin.fault("w0 slow factor=100");
    assert!(
        time_of(&admin, 4) >= Duration::from_millis(400),
        "four passes of 100 ms"
    );
    admin.delete(&format!("/v1/faults/f{slow}"));
    admin.fault("w0 stall ms=50");
    admin.fault("w0 jitter ms=0");
    assert!(time_of(&admin, 4) >= Duration::from_millis(200), "four passes of 51 ms");
    admin.delete("/v1/faults");
    let passes = |admin: &Admin| admin.scene.worker(0).ranks[0].passes_total;
    let before = passes(&admin);
    time_of(&admin, 4);
    assert!(passes(&admin) > before);
    admin.scene.until_nothing_is_left();
}

#[test]
fn a_worker_that_hangs_takes_requests_and_answers_when_it_is_healed() {
    let admin = Admin::start(&FAST);
    let id = admin.fault("w0 hang");
    let mut answer = call(&admin.scene.address(0), "hung", &chat(&[1, 2, 3], 5)).unwrap();
    assert!(
        matches!(answer.next().unwrap(), Said::Header(_)),
        "the call-home comes at once"
    );
    admin
        .scene
        .until("the request waits", |scene| scene.worker(0).ranks[0].load.waiting == 1);
    let (status, why) = admin.get("/v1/why/hung");
    assert_eq!(status, 200, "{why}");
    assert_eq!(why["phase"], "waiting");
    let because = why["because"].to_string();
    assert!(
        because.contains("w0/r0 hangs") && because.contains(&format!("fault f{id} is in force")),
        "{because}"
    );
    let tokens = admin.scene.worker(0).ranks[0].tokens_total;
    assert_eq!(tokens, 0);
    admin.delete(&format!("/v1/faults/f{id}"));
    assert_eq!(answer.finish().unwrap().tokens.len(), 5);
    admin
        .scene
        .until("it is forgotten", |_| admin.get("/v1/why/hung").0 == 404);
    admin.scene.until_nothing_is_left();
}

#[test]
fn a_worker_that_hangs_in_the_middle_keeps_the_stream_open_and_a_cancel_frees_it() {
    let admin = Admin::start(&["--timing-model", r#"{"type":"fixed","prefill_ms":1.0,"decode_ms":5.0}"#]);
    let mut answer = call(&admin.scene.address(0), "mid", &chat(&[1, 2, 3], 10_000)).unwrap();
    answer.read_tokens(3);
    admin.fault("w0 hang");
    let shown = |admin: &Admin| admin.get("/v1/actors/w0/r0").1["inside"]["said"]["hangs"] == true;
    admin.scene.until("the rank hangs", |_| shown(&admin));
    answer.say("kill");
    admin.scene.until_nothing_is_left();
}

#[test]
fn refused_and_rejected_requests_say_so() {
    let admin = Admin::start(&FAST);
    let address = admin.scene.address(0);
    let id = admin.fault("w0 refuse");
    let refusal = call(&address, "a", &chat(&[1], 1)).err().unwrap();
    assert!(refusal.contains("overloaded"), "{refusal}");
    admin.delete(&format!("/v1/faults/f{id}"));
    admin.fault(r#"w0 reject message="out\u0020of\u0020luck""#);
    let outcome = call(&address, "b", &chat(&[1], 1)).unwrap().finish().unwrap();
    let error = outcome.error.unwrap();
    assert!(error["message"].as_str().unwrap().contains("out of luck"), "{error}");
    admin.delete("/v1/faults");
    assert!(call(&address, "c", &chat(&[1], 1)).unwrap().finish().unwrap().complete);
    admin.scene.until_nothing_is_left();
}

#[test]
fn dice_decide_as_often_as_the_probability_says_and_the_same_again() {
    let draws = || {
        let admin = Admin::start(&FAST);
        let address = admin.scene.address(0);
        admin.fault("w0 refuse p=0.5 seed=11");
        (0..24)
            .map(|n| call(&address, &n.to_string(), &chat(&[1], 1)).is_err())
            .collect::<Vec<bool>>()
    };
    let first = draws();
    assert!(
        first.iter().any(|refused| *refused) && first.iter().any(|refused| !*refused),
        "{first:?}"
    );
    assert_eq!(first, draws());
}

#[test]
fn answers_break_off_fail_or_fall_silent_after_some_tokens() {
    let admin = Admin::start(&FAST);
    let address = admin.scene.address(0);
    let cut = admin.fault("w0 cut tokens=3");
    let mut answer = call(&address, "cut", &chat(&[1, 2], 50)).unwrap();
    assert_eq!(answer.read_tokens(3).len(), 3);
    answer.assert_reset();
    admin.delete(&format!("/v1/faults/f{cut}"));
    let error = admin.fault("w0 error_item after_tokens=2 message=bang");
    let outcome = call(&address, "error", &chat(&[1, 2], 50)).unwrap().finish().unwrap();
    assert_eq!(outcome.tokens.len(), 2);
    assert!(outcome.error.unwrap()["message"].as_str().unwrap().contains("bang"));
    admin.delete(&format!("/v1/faults/f{error}"));
    admin.fault("w0 response.black_hole after_tokens=4");
    let mut answer = call(&address, "silent", &chat(&[1, 2], 50)).unwrap();
    assert_eq!(answer.read_tokens(4).len(), 4);
    admin
        .scene
        .until("the engine is done", |scene| scene.worker(0).ranks[0].streams == 0);
    let open = admin.scene.worker(0).open_streams;
    assert_eq!(open, 1, "the connection stays");
    answer.say("kill");
    admin.scene.until_nothing_is_left();
}
