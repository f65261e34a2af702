//! Workers and actors that die, in every phase.

use ghostfleet::actors::death::Death;
use ghostfleet::actors::registry::WorkerState;

use crate::legs::{Handoff, Pair, SLOW, end, error_of, prompt};

const ENDED: &str = "destination handoff ended before completion";

#[test]
fn a_prefill_worker_that_dies_before_the_transfer_fails_the_request() {
    let pair = Pair::start(SLOW);
    let handoff = Handoff::new();
    let decode = pair.decode(&handoff, &prompt(1, 30), 5);
    pair.until_rooms((1, 1));
    pair.scene.cluster.kill("w0", Death::Crash).unwrap();
    assert!(error_of(&end(decode)).contains(ENDED));
    pair.scene.until_nothing_is_left();
    // It cannot even be dialled any more.
    let mut request = crate::caller::chat(&prompt(1, 30), 5);
    request["bootstrap_info"] = serde_json::json!({
        "bootstrap_host": "127.0.0.1", "bootstrap_port": 1, "bootstrap_room": 1, "handoff_id": handoff.id,
    });
    let outcome = crate::caller::call(&pair.scene.address(1), "again", &request)
        .unwrap()
        .finish()
        .unwrap();
    assert!(error_of(&outcome).contains("cannot join the prefill worker"));
    pair.scene.until_nothing_is_left();
}

#[test]
fn a_prefill_worker_that_dies_during_the_transfer_fails_the_request_and_frees_the_reservation() {
    let pair = Pair::start(SLOW);
    let (mut prefill, decode) = pair.begin(&prompt(1, 30), 5);
    pair.until_transferring();
    pair.scene.cluster.kill("w0", Death::Crash).unwrap();
    prefill.assert_reset();
    assert!(error_of(&end(decode)).contains(ENDED));
    pair.scene.until_nothing_is_left();
}

#[test]
fn a_prefill_worker_that_dies_after_the_transfer_is_not_missed() {
    let pair = Pair::with_slow_decoding();
    let (prefill, mut decode) = pair.begin(&prompt(1, 30), 50);
    assert!(end(prefill).complete);
    decode.read_tokens(1);
    pair.scene.cluster.kill("w0", Death::Crash).unwrap();
    let outcome = end(decode);
    assert_eq!((outcome.tokens.len(), outcome.error), (49, None));
    pair.scene.until_nothing_is_left();
}

#[test]
fn a_decode_worker_that_dies_during_the_transfer_frees_the_prompt() {
    let pair = Pair::start(SLOW);
    let (prefill, mut decode) = pair.begin(&prompt(1, 30), 5);
    pair.until_transferring();
    pair.scene.cluster.kill("w1", Death::Crash).unwrap();
    decode.assert_reset();
    assert!(error_of(&end(prefill)).contains(ENDED));
    pair.scene.until_nothing_is_left();
}

#[test]
fn a_rank_that_dies_takes_its_handoffs_with_it_and_its_worker_serves_on() {
    for (path, survivor) in [("w0/r0", "decode"), ("w1/r0", "prefill")] {
        let pair = Pair::start(SLOW);
        let handoff = Handoff::new();
        let decode = pair.decode(&handoff, &prompt(1, 30), 5);
        let prefill = pair.prefill(&handoff, &prompt(1, 30));
        pair.until_transferring();
        pair.scene.cluster.kill(path, Death::Panic).unwrap();
        let (left, mut broken) = if survivor == "decode" {
            (decode, prefill)
        } else {
            (prefill, decode)
        };
        broken.assert_reset();
        error_of(&end(left));
        pair.scene.until_nothing_is_left();
        let worker = usize::from(path.starts_with("w1"));
        pair.scene
            .until("a new rank", |scene| scene.worker(worker).restarts == 1);
        // Both legs reach living ranks again.
        let handoff = Handoff::new();
        let decode = pair.decode(&handoff, &prompt(2, 8), 5);
        let prefill = pair.prefill(&handoff, &prompt(2, 8));
        pair.until_transferring();
        drop((decode, prefill));
        pair.scene.until_nothing_is_left();
    }
}

#[test]
fn a_rendezvous_that_dies_fails_what_it_held_and_is_replaced_behind_the_same_port() {
    let pair = Pair::start(SLOW);
    let handoff = Handoff::new();
    let decode = pair.decode(&handoff, &prompt(1, 30), 5);
    let prefill = pair.prefill(&handoff, &prompt(1, 30));
    pair.until_transferring();
    let port = pair.meeting(0, &handoff)["bootstrap_port"].clone();
    pair.scene.cluster.kill("w0/rendezvous", Death::Panic).unwrap();
    assert!(error_of(&end(prefill)).contains("rendezvous is gone"));
    assert!(error_of(&end(decode)).contains(ENDED));
    pair.scene.until_nothing_is_left();
    pair.scene
        .until("a new rendezvous", |scene| scene.worker(0).restarts == 1);
    let handoff = Handoff::new();
    assert_eq!(pair.meeting(0, &handoff)["bootstrap_port"], port);
    let decode = pair.decode(&handoff, &prompt(1, 8), 5);
    let prefill = pair.prefill(&handoff, &prompt(1, 8));
    pair.until_transferring();
    drop((decode, prefill));
    pair.scene.until_nothing_is_left();
}

#[test]
fn a_drained_prefill_worker_finishes_its_handoffs_first() {
    // A tenth of a second for the transfer.
    let pair = Pair::start("kv_bytes_per_token = 10000000\nkv_transfer_bandwidth = 1.0");
    let (prefill, decode) = pair.begin(&prompt(1, 10), 5);
    pair.scene.until("both legs", |scene| {
        scene.worker(0).open_streams == 1 && scene.worker(1).open_streams == 1
    });
    pair.scene.cluster.drain("w0").unwrap();
    assert!(end(prefill).complete);
    assert_eq!(end(decode).tokens.len(), 5);
    pair.scene
        .until("w0 left", |scene| scene.worker(0).state == WorkerState::Left);
    pair.scene.until_nothing_is_left();
}
