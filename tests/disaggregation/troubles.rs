//! Faults of handoffs: what both sides see of each kind, and that nothing is left of it.

use std::time::{Duration, Instant};

use crate::caller::{Outcome, call, chat};
use crate::legs::{Handoff, INSTANT, Pair, end, error_of, prompt};

const ENDED: &str = "destination handoff ended before completion";
const TIMED_OUT: &str = "handoff took longer than --handoff-session-timeout-ms";

impl Pair {
    /// Replaces all faults by this one.
    fn disturb(&self, line: &str) {
        let fault = line.parse().unwrap();
        self.scene.cluster.change_faults(None, vec![fault]).unwrap();
    }
}

/// Both legs failed, with these words.
fn assert_failed((prefill, decode): (Outcome, Outcome), why: &str) {
    assert!(error_of(&prefill).contains(why), "{prefill:?}");
    let decode = error_of(&decode);
    assert!(decode.contains(ENDED), "{decode}");
}

#[test]
fn prompts_that_are_never_ready_end_with_their_time_out() {
    let pair = Pair::start(&format!("{INSTANT}\nhandoff_session_timeout_ms = 300"));
    pair.disturb("w0 never_ready");
    assert_failed(pair.serve(&prompt(1, 30), 5), TIMED_OUT);
    pair.scene.until_nothing_is_left();
    pair.scene.cluster.change_faults(None, Vec::new()).unwrap();
    let (prefill, decode) = pair.serve(&prompt(1, 30), 5);
    assert_eq!((prefill.error, decode.error), (None, None));
    let handoffs = pair.scene.worker(0).handoffs;
    assert_eq!((handoffs.failed_total, handoffs.completed_total), (1, 1));
    pair.scene.until_nothing_is_left();
}

#[test]
fn prompts_that_are_said_late_are_late() {
    for engine in ["vllm", "sglang"] {
        let pair = Pair::start(&format!("{INSTANT}\nengine_type = \"{engine}\""));
        pair.disturb("w0 rendezvous.late ms=200");
        let begin = Instant::now();
        let (prefill, decode) = pair.serve(&prompt(1, 30), 5);
        assert_eq!((prefill.error, decode.error), (None, None), "{engine}");
        assert_eq!(decode.tokens.len(), 5);
        assert!(begin.elapsed() >= Duration::from_millis(200), "{engine}");
        pair.scene.until_nothing_is_left();
    }
}

#[test]
fn a_prefill_worker_that_answers_for_another_room_is_not_believed_and_the_fault_is_counted() {
    for engine in ["vllm", "sglang"] {
        let pair = Pair::start(&format!("{INSTANT}\nengine_type = \"{engine}\""));
        pair.disturb("w0 wrong_room");
        let (prefill, decode) = pair.serve(&prompt(1, 30), 5);
        error_of(&prefill);
        error_of(&decode);
        // A frontend sends the prefill leg first, so that the decode worker enters a room where it is waited for.
        for topic in 2..5 {
            let handoff = Handoff::new();
            let prefill = pair.prefill(&handoff, &prompt(topic, 30));
            pair.until_rooms((1, 0));
            let decode = pair.decode(&handoff, &prompt(topic, 30), 5);
            error_of(&end(prefill));
            error_of(&end(decode));
            pair.scene.until_nothing_is_left();
        }
        let listed = pair.scene.cluster.wait_for(pair.scene.cluster.control().faults());
        assert_eq!((listed[0].asked, listed[0].happened), (4, 4), "{engine}");
    }
}

#[test]
fn a_handoff_that_is_broken_off_fails_on_both_sides() {
    for engine in ["vllm", "sglang"] {
        let pair = Pair::start(&format!("{INSTANT}\nengine_type = \"{engine}\""));
        pair.disturb("w0 abort");
        let (prefill, decode) = pair.serve(&prompt(1, 30), 5);
        assert!(
            error_of(&decode).contains("breaks the handoff off"),
            "{engine}: {decode:?}"
        );
        assert_failed((prefill, decode), "breaks the handoff off");
        pair.scene.until_nothing_is_left();
    }
}

#[test]
fn a_forgotten_handoff_keeps_its_blocks_until_its_client_leaves_or_time_is_up() {
    let pair = Pair::start(INSTANT);
    pair.disturb("w0 orphan");
    let (prefill, decode) = pair.begin(&prompt(1, 30), 5);
    assert!(error_of(&end(decode)).contains(ENDED));
    pair.until_rooms((1, 0));
    pair.scene
        .until("a room, a stream and eight blocks are leaked", |scene| {
            let leaked = scene.cluster.snapshot().in_use();
            (leaked.rooms, leaked.active_blocks, leaked.open_streams) == (1, 8, 1)
        });
    drop(prefill);
    pair.scene.until_nothing_is_left();

    let pair = Pair::start(&format!("{INSTANT}\nhandoff_session_timeout_ms = 300"));
    pair.disturb("w0 orphan");
    assert_failed(pair.serve(&prompt(1, 30), 5), TIMED_OUT);
    pair.scene.until_nothing_is_left();
}

#[test]
fn a_slow_link_holds_the_blocks_for_longer() {
    // 30 ms for 300 tokens without the fault, two minutes with it.
    let pair = Pair::start("kv_bytes_per_token = 1000000\nkv_transfer_bandwidth = 10.0");
    pair.disturb("w0 slow_link factor=4000");
    let (prefill, decode) = pair.begin(&prompt(1, 300), 5);
    pair.until_transferring();
    drop((decode, prefill));
    pair.scene.until_nothing_is_left();
    pair.disturb("w0 slow_link factor=2");
    let (prefill, decode) = pair.serve(&prompt(1, 30), 5);
    assert_eq!((prefill.error, decode.error), (None, None));
    pair.scene.until_nothing_is_left();
}

#[test]
fn a_link_that_is_lost_fails_both_sides_during_the_transfer() {
    // 30 ms for a prompt of 30 tokens.
    let pair = Pair::start("kv_bytes_per_token = 1000000\nkv_transfer_bandwidth = 1.0");
    pair.disturb("w0 lost_link");
    let (prefill, decode) = pair.serve(&prompt(1, 30), 5);
    assert!(error_of(&decode).contains("link was lost"), "{decode:?}");
    assert_failed((prefill, decode), "link was lost");
    pair.scene.until_nothing_is_left();
}

#[test]
fn dice_are_thrown_once_for_each_handoff() {
    let struck = || {
        let pair = Pair::start(INSTANT);
        pair.disturb("w0 abort p=0.5 seed=3");
        let failed: Vec<bool> = (0..16)
            .map(|topic| pair.serve(&prompt(topic, 8), 2).1.error.is_some())
            .collect();
        let listed = pair.scene.cluster.wait_for(pair.scene.cluster.control().faults());
        let hits = failed.iter().filter(|failed| **failed).count() as u64;
        assert_eq!((listed[0].asked, listed[0].happened), (16, hits));
        pair.scene.until_nothing_is_left();
        failed
    };
    let first = struck();
    assert!(first.contains(&true) && first.contains(&false), "{first:?}");
    assert_eq!(struck(), first);
}

#[test]
fn prompts_whose_kv_nobody_comes_for_have_the_same_faults() {
    // 90 ms for a prompt of 9 tokens.
    let keys = "kv_bytes_per_token = 10000000\nkv_transfer_bandwidth = 1.0\nhandoff_session_timeout_ms = 300";
    let pair = Pair::groups(keys, "num_workers = 1", "num_workers = 1");
    let ask = || {
        call(&pair.scene.address(0), "r", &chat(&prompt(1, 9), 1))
            .unwrap()
            .finish()
            .unwrap()
    };
    for (fault, why) in [
        ("never_ready", TIMED_OUT),
        ("orphan", TIMED_OUT),
        ("abort", "breaks the handoff off"),
        ("lost_link", "link was lost"),
    ] {
        pair.disturb(&format!("w0 {fault}"));
        let outcome = ask();
        assert!(error_of(&outcome).contains(why), "{fault}: {outcome:?}");
        pair.scene.until_nothing_is_left();
    }
    pair.disturb("w0 rendezvous.late ms=100");
    let begin = Instant::now();
    assert_eq!(ask().error, None);
    assert!(begin.elapsed() >= Duration::from_millis(190));
    pair.scene.until_nothing_is_left();
    let handoffs = pair.scene.worker(0).handoffs;
    assert_eq!((handoffs.failed_total, handoffs.completed_total), (4, 1));
}
