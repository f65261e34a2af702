//! Clients that go away, in every phase: what they held is free again, on both sides.

use ghostfleet::actors::death::Death;
use ghostfleet::transport::rendezvous::wire::Message;

use crate::caller::Answer;
use crate::legs::{Handoff, INSTANT, Pair, SLOW, end, error_of, prompt};
use crate::peers::{Source, hear, held, runtime};

/// Ends an answer from the client's side.
fn leave(mut answer: Answer, how: &str) {
    if how != "close" {
        answer.say(how);
    }
    drop(answer);
}

#[test]
fn a_decode_client_that_leaves_before_the_prefill_comes_leaves_nothing() {
    for how in ["kill", "stop", "close"] {
        let pair = Pair::start(SLOW);
        let handoff = Handoff::new();
        let decode = pair.decode(&handoff, &prompt(1, 30), 5);
        pair.until_rooms((1, 1));
        leave(decode, how);
        pair.scene.until_nothing_is_left();
        // The prompt that comes late is not computed for nobody.
        let outcome = pair.prefill(&handoff, &prompt(1, 30)).finish().unwrap();
        assert!(error_of(&outcome).contains("already active or retired"), "{outcome:?}");
        pair.scene.until_nothing_is_left();
    }
}

#[test]
fn a_prefill_client_that_leaves_before_the_decode_comes_leaves_nothing() {
    for how in ["kill", "stop", "close"] {
        let pair = Pair::start(SLOW);
        let handoff = Handoff::new();
        let prefill = pair.prefill(&handoff, &prompt(1, 30));
        pair.until_rooms((1, 0));
        leave(prefill, how);
        pair.scene.until_nothing_is_left();
        let outcome = pair.decode(&handoff, &prompt(1, 30), 5).finish().unwrap();
        assert!(error_of(&outcome).contains("already active or retired"), "{outcome:?}");
        pair.scene.until_nothing_is_left();
    }
}

#[test]
fn a_decode_client_that_leaves_during_the_transfer_frees_both_sides() {
    for how in ["kill", "close"] {
        let pair = Pair::start(SLOW);
        let (prefill, decode) = pair.begin(&prompt(1, 30), 5);
        pair.until_both_hold(8..=8);
        leave(decode, how);
        let outcome = end(prefill);
        assert!(error_of(&outcome).contains("the client is gone"), "{outcome:?}");
        pair.scene.until_nothing_is_left();
    }
}

#[test]
fn a_prefill_client_that_leaves_during_the_transfer_frees_both_sides() {
    for how in ["kill", "close"] {
        let pair = Pair::start(SLOW);
        let handoff = Handoff::new();
        let decode = pair.decode(&handoff, &prompt(1, 30), 5);
        let prefill = pair.prefill(&handoff, &prompt(1, 30));
        pair.until_transferring();
        leave(prefill, how);
        let outcome = end(decode);
        let error = error_of(&outcome);
        assert!(error.contains("destination handoff ended before completion"), "{error}");
        pair.scene.until_nothing_is_left();
    }
}

#[test]
fn a_client_that_leaves_during_the_prefill_frees_both_sides() {
    // A prompt that is being computed for a minute.
    let timing = "speedup_ratio = 1.0\ntiming_model = {type = \"fixed\", prefill_ms = 60000.0, decode_ms = 1.0}";
    for decode_leaves in [true, false] {
        let pair = Pair::groups(
            INSTANT,
            &format!("num_workers = 1\nbootstrap_ports = \"0\"\n{timing}"),
            "num_workers = 1",
        );
        let (prefill, decode) = pair.begin(&prompt(1, 30), 5);
        pair.scene.until("a running prefill", |scene| {
            scene.worker(0).ranks[0].load.active_blocks > 0
        });
        let (gone, left) = if decode_leaves {
            (decode, prefill)
        } else {
            (prefill, decode)
        };
        leave(gone, "kill");
        error_of(&end(left));
        pair.scene.until_nothing_is_left();
    }
}

#[test]
fn a_client_that_leaves_while_decoding_is_like_any_other() {
    let pair = Pair::with_slow_decoding();
    let handoff = Handoff::new();
    let mut decode = pair.decode(&handoff, &prompt(1, 30), 10_000);
    let prefill = pair.prefill(&handoff, &prompt(1, 30));
    assert!(end(prefill).complete);
    decode.read_tokens(3);
    leave(decode, "kill");
    pair.scene.until_nothing_is_left();
    assert_eq!(
        pair.scene.worker(1).handoffs.completed_total,
        1,
        "the handoff itself went well"
    );
}

#[test]
fn a_prefill_worker_that_has_not_answered_yet_hears_at_once_that_nobody_comes() {
    let pair = Pair::start(INSTANT);
    let runtime = runtime();
    let source = Source::start(&runtime);
    for how in ["kill", "close"] {
        let handoff = Handoff::new();
        let answer = pair.decode_from(&source, &handoff, &prompt(1, 30));
        let mut link = source.keep_waiting().link;
        leave(answer, how);
        assert!(
            matches!(hear(&runtime, &mut link), Some(Message::Abort { .. })),
            "{how}"
        );
        assert_eq!(hear(&runtime, &mut link), None);
        pair.scene.until_nothing_is_left();
    }
}

#[test]
fn a_decode_worker_that_dies_before_it_is_answered_says_no_goodbye() {
    let pair = Pair::start(INSTANT);
    let runtime = runtime();
    let source = Source::start(&runtime);
    let handoff = Handoff::new();
    let mut answer = pair.decode_from(&source, &handoff, &prompt(1, 30));
    let mut link = source.keep_waiting().link;
    pair.scene.cluster.kill("w1", Death::Crash).unwrap();
    assert_eq!(hear(&runtime, &mut link), None);
    answer.assert_reset();
    pair.scene.until_nothing_is_left();
}

#[test]
fn a_prefill_worker_that_falls_silent_is_not_waited_for_for_ever() {
    let pair = Pair::start(&format!("{INSTANT}\nhandoff_session_timeout_ms = 200"));
    let runtime = runtime();
    let source = Source::start(&runtime);
    let handoff = Handoff::new();
    let answer = pair.decode_from(&source, &handoff, &prompt(1, 30));
    let link = source.receive().link;
    assert!(link.outbox.say(held(&handoff, None)));
    // It says that the prompt is there, and then nothing any more; its connection stays open.
    let error = error_of(&end(answer));
    assert!(
        error.contains("took longer than --handoff-session-timeout-ms"),
        "{error}"
    );
    pair.scene.until_nothing_is_left();
    drop(link);
}

#[test]
fn an_orphan_waits_for_as_long_as_the_setting_says() {
    let pair = Pair::start(&format!("{INSTANT}\nhandoff_pairing_timeout_ms = 100"));
    let lonely = pair.prefill(&Handoff::new(), &prompt(1, 30)).finish().unwrap();
    assert!(
        error_of(&lonely).contains("handoff participant rendezvous timed out"),
        "{lonely:?}"
    );
    pair.scene.until_nothing_is_left();
    let prefill = pair.scene.worker(0);
    assert_eq!(
        (prefill.failed_total, prefill.completed_total, prefill.cancelled_total),
        (1, 0, 0)
    );
    assert_eq!(
        (prefill.handoffs.failed_total, prefill.handoffs.completed_total),
        (1, 0)
    );
}

#[test]
fn whoever_waits_alone_waits_for_no_longer_than_a_handoff_may_take() {
    let pair = Pair::start(&format!("{INSTANT}\nhandoff_session_timeout_ms = 200"));
    let lonely = pair.prefill(&Handoff::new(), &prompt(1, 30)).finish().unwrap();
    assert!(
        error_of(&lonely).contains("handoff participant rendezvous timed out"),
        "{lonely:?}"
    );
    let lonely = pair.decode(&Handoff::new(), &prompt(1, 30), 5).finish().unwrap();
    assert!(
        error_of(&lonely).contains("handoff participant rendezvous timed out"),
        "{lonely:?}"
    );
    pair.scene.until_nothing_is_left();
}
