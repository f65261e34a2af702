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
    admin.fault("w0 jitter ms=0.01");
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
    admin.fault(r#"w0 reject message="out of luck""#);
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

#[test]
fn lost_blocks_are_missed_and_come_back() {
    for engine in ["vllm", "sglang", "trtllm"] {
        // Blocks of four tokens; the real vLLM keeps one of its 41 for itself.
        let blocks = if engine == "vllm" { "41" } else { "40" };
        let admin = Admin::start(
            &[
                &FAST[..],
                &["--engine-type", engine, "--num-gpu-blocks-override", blocks],
            ]
            .concat(),
        );
        let address = admin.scene.address(0);
        let load = |admin: &Admin| admin.scene.worker(0).ranks[0].load;
        let prompt = |topic: u32, len: u32| (0..len).map(|at| topic * 1000 + at).collect::<Vec<u32>>();
        let ask = |topic, len| call(&address, &format!("{topic}"), &chat(&prompt(topic, len), 2)).unwrap();
        assert!(ask(1, 100).finish().unwrap().complete);
        assert_eq!(load(&admin).total_blocks, 40, "{engine}");
        let cached = |admin: &Admin| admin.get("/v1/cache/w0").1[0].as_array().unwrap().len();
        assert!(cached(&admin) >= 24, "{engine}");
        let fault = admin.fault("w0 lose_capacity share=0.5");
        admin
            .scene
            .until("half of the blocks", |_| load(&admin).total_blocks == 20);
        assert!(
            cached(&admin) <= 20,
            "{engine}: what does not fit any more is not cached"
        );
        // 30 blocks do not fit until the others are back.
        let mut big = ask(2, 120);
        admin.scene.until("it waits", |_| load(&admin).waiting == 1);
        admin.delete(&format!("/v1/faults/f{fault}"));
        assert!(big.finish().unwrap().complete, "{engine}");
        drop(big);
        admin.scene.until("all blocks", |_| load(&admin).total_blocks == 40);
        admin.fault("w0 lose_capacity blocks=7");
        admin
            .scene
            .until("some blocks less", |_| load(&admin).total_blocks == 33);
        admin.delete("/v1/faults");
        admin.scene.until_nothing_is_left();
    }
}

#[test]
fn blocks_in_use_are_lost_when_they_are_free_and_a_new_rank_has_less_from_its_start() {
    let slow = [
        "--timing-model",
        r#"{"type":"fixed","prefill_ms":1.0,"decode_ms":300.0}"#,
    ];
    let admin = Admin::start(&[&slow[..], &["--num-gpu-blocks-override", "41"]].concat());
    let address = admin.scene.address(0);
    let load = |admin: &Admin| admin.scene.worker(0).ranks[0].load;
    // 26 blocks for the prompt and the two tokens that follow the first.
    let mut long = call(&address, "long", &chat(&[7; 101], 3)).unwrap();
    long.read_tokens(1);
    admin.fault("w0 lose_capacity share=0.9");
    admin
        .scene
        .until("what nobody uses is lost", |_| load(&admin).total_blocks < 40);
    assert!(load(&admin).total_blocks > 4, "what is in use is not");
    assert!(long.finish().unwrap().complete);
    drop(long);
    admin
        .scene
        .until("all of it is lost", |_| load(&admin).total_blocks == 4);
    admin.fault("w0 panic actor=r0");
    admin.scene.until("a new rank", |scene| {
        scene.worker(0).restarts == 1 && load(&admin).total_blocks == 4
    });
    admin.scene.until_nothing_is_left();
}

#[test]
fn a_loss_is_a_share_or_a_number() {
    let admin = Admin::start(&[]);
    for line in ["w0 lose_capacity", "w0 lose_capacity share=0.1 blocks=3"] {
        let (status, answer) = admin.post("/v1/faults", &line.into());
        assert_eq!(status, 400, "{answer}");
        assert!(
            answer.to_string().contains("either share (0 to 1) or blocks"),
            "{answer}"
        );
    }
    let (status, answer) = admin.post("/v1/faults", &"w0 lose_capacity share=1.5".into());
    assert_eq!(
        (status, answer.to_string().contains("at most 1")),
        (400, true),
        "{answer}"
    );
}
