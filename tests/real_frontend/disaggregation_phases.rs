//! Deaths and cancellations behind real frontends, phase by phase of a request through both pools. What is during the
//! transfer is in [`crate::disaggregation`].

use std::thread::ScopedJoinHandle;

use ghostfleet::actors::death::Death;
use ghostfleet::actors::registry::{WorkerSnapshot, WorkerState};
use serde_json::Value;

use crate::ask::{COMPLETIONS, completion, prompt};
use crate::client::Stream;
use crate::disaggregation::{PREFILL, QUICK, RENDEZVOUS, Running, STATE_LIMIT, asking, running_with};
use crate::release::{Release, on_each_release};
use crate::stack::Stack;
use crate::wait::eventually;

/// Prompts that are being computed for as long as a test looks.
const LONG_PREFILL: &str = "bootstrap_ports = \"0,0\"\nspeedup_ratio = 1.0\n\
                            timing_model = {type = \"fixed\", prefill_ms = 60000.0, decode_ms = 1.0}";
/// Tokens that come slowly enough to be interrupted.
const SLOW_DECODE: &str = "speedup_ratio = 1.0\n\
                           timing_model = {type = \"fixed\", prefill_ms = 1.0, decode_ms = 10.0}";
/// Tokens of an answer.
const LENGTH: u32 = 100;

/// Frontends of 1.4.2 leave a prefill leg alone whose decode leg could not be brought to a dead worker: its room ends when
/// nobody has come for this long.
const SHORT_PAIRING: &str = "handoff_pairing_timeout_ms = 2000";

fn computing(release: Release) -> Running {
    let keys = format!("{QUICK}\n{SHORT_PAIRING}");
    running_with(Stack::on_etcd(), release, (&keys, LONG_PREFILL, ""), PREFILL)
}

fn decoding(release: Release) -> Running {
    let keys = format!("{QUICK}\n{SHORT_PAIRING}");
    running_with(Stack::on_etcd(), release, (&keys, RENDEZVOUS, SLOW_DECODE), PREFILL)
}

/// The pair of a request whose prompt is being computed.
fn computing_pair(running: &Running) -> (usize, usize) {
    find_pair(running, "a prompt is computed", |worker| {
        worker.ranks[0].load.active_blocks > 0
    })
}

/// The pair of a request, once its prefill worker is so and its decode worker has joined it.
fn find_pair(running: &Running, what: &str, is: impl Fn(&WorkerSnapshot) -> bool) -> (usize, usize) {
    eventually(STATE_LIMIT, what, || {
        let workers = running.fleet.snapshot().workers;
        let (prefill, decode) = workers.split_at(PREFILL);
        let prefill = prefill.iter().position(&is)?;
        let decode = decode.iter().position(|worker| worker.handoffs.rooms == 1)?;
        Some((prefill, PREFILL + decode))
    })
}

/// A stream that has begun, and the pair that serves it.
fn begun(running: &Running) -> (Stream, (usize, usize)) {
    let mut stream = running
        .client()
        .stream(COMPLETIONS, &completion(&prompt(1, 40), LENGTH));
    stream.read_texts(2);
    let workers = running.fleet.snapshot().workers;
    let prefill = workers.iter().position(|worker| worker.accepted_total == 1);
    let decode = workers
        .iter()
        .skip(PREFILL)
        .position(|worker| worker.accepted_total == 1);
    let pair = (
        prefill.expect("one computed it"),
        PREFILL + decode.expect("one decodes it"),
    );
    assert!(pair.0 < PREFILL, "{pair:?}");
    (stream, pair)
}

/// The request failed, and its client was told so: 1.6.1 says 503 when a worker has broken off, and 500 as 1.4.2 does when
/// one has answered with an error.
#[track_caller]
fn assert_failed(asked: ScopedJoinHandle<'_, (u16, Value)>) {
    let (status, body) = asked.join().expect("the client gets an answer");
    assert!([500, 503].contains(&status), "{status}: {body}");
}

/// Another request is served, as soon as the frontend knows who is left.
fn assert_serves(running: &Running) {
    eventually(STATE_LIMIT * 2, "others are served", || {
        let reply = running.client().post(COMPLETIONS, &completion(&prompt(2, 40), 3));
        (reply.status == 200).then_some(())
    });
    running.fleet.wait_idle();
}

/// Prefill workers hold nothing of a handoff, and have counted as failed what failed.
fn assert_counted(running: &Running, prefill: usize) {
    running.fleet.wait_idle();
    let worker = running.fleet.worker(prefill);
    assert_eq!(worker.handoffs.completed_total, 0, "{worker:?}");
    assert_eq!(worker.completed_total, 0, "{worker:?}");
}

/// A client leaves when `until` returns; then nothing is held anywhere.
fn leaves(running: &Running, until: impl FnOnce()) {
    running
        .client()
        .abandon(COMPLETIONS, &completion(&prompt(1, 40), 20), until);
    running.fleet.wait_idle();
    assert!(running.client().is_live());
}

on_each_release! {
    fn a_prefill_worker_that_dies_while_it_computes_is_an_error_for_the_client(release) {
        let running = computing(release);
        std::thread::scope(|scope| {
            let asked = asking(scope, &running);
            let (prefill, _) = computing_pair(&running);
            running.fleet.kill(&format!("w{prefill}"), Death::Crash);
            running.fleet.wait_state(prefill, WorkerState::Dead, STATE_LIMIT);
            assert_failed(asked);
            assert_counted(&running, prefill);
        });
    }

    fn a_prefill_worker_that_dies_after_the_transfer_is_not_missed(release) {
        let running = decoding(release);
        let (mut stream, (prefill, _)) = begun(&running);
        stream.read_texts(2);
        running.fleet.kill(&format!("w{prefill}"), Death::Crash);
        running.fleet.wait_state(prefill, WorkerState::Dead, STATE_LIMIT);
        let transcript = stream.finish();
        assert_eq!((transcript.error(), transcript.done), (None, true), "{transcript:?}");
        assert_eq!(transcript.usage()["completion_tokens"], LENGTH);
        assert_serves(&running);
    }

    fn a_decode_worker_that_dies_before_the_transfer_frees_the_prompt(release) {
        let running = computing(release);
        std::thread::scope(|scope| {
            let asked = asking(scope, &running);
            let (prefill, decode) = computing_pair(&running);
            running.fleet.kill(&format!("w{decode}"), Death::Crash);
            assert_failed(asked);
            assert_counted(&running, prefill);
        });
    }

    fn a_decode_worker_that_dies_while_decoding_is_an_error_in_the_stream(release) {
        let running = decoding(release);
        let (stream, (_, decode)) = begun(&running);
        running.fleet.kill(&format!("w{decode}"), Death::Crash);
        let transcript = stream.finish();
        assert!(transcript.error().is_some(), "{transcript:?}");
        assert_serves(&running);
    }

    fn a_client_that_leaves_while_the_decode_leg_waits_alone_leaves_nothing(release) {
        let running = computing(release);
        running.fleet.disturb(&["group:prefill request.latency ms=1500"]);
        leaves(&running, || {
            eventually(STATE_LIMIT, "the decode leg waits", || {
                let workers = running.fleet.snapshot().workers;
                workers[PREFILL..].iter().any(|worker| worker.handoffs.rooms == 1).then_some(())
            });
        });
    }

    fn a_client_that_leaves_while_the_prefill_leg_waits_alone_leaves_nothing(release) {
        let running = computing(release);
        running.fleet.disturb(&["group:decode request.latency ms=1500"]);
        leaves(&running, || {
            eventually(STATE_LIMIT, "the prefill leg waits", || {
                let workers = running.fleet.snapshot().workers;
                workers[..PREFILL].iter().any(|worker| worker.handoffs.rooms == 1).then_some(())
            });
        });
    }

    fn a_client_that_leaves_while_its_prompt_is_computed_leaves_nothing(release) {
        let running = computing(release);
        leaves(&running, || {
            computing_pair(&running);
        });
    }

    fn a_client_that_leaves_while_decoding_leaves_nothing(release) {
        let running = decoding(release);
        let (stream, (prefill, decode)) = begun(&running);
        drop(stream);
        running.fleet.wait_idle();
        let completed = |worker| running.fleet.worker(worker).handoffs.completed_total;
        assert_eq!((completed(prefill), completed(decode)), (1, 1), "the handoff itself went well");
    }
}
