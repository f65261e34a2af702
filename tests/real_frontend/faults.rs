//! Who notices what when something dies: a client, a worker, one of its actors, a frontend.

use std::time::Duration;

use ghostfleet::actors::death::Death;
use ghostfleet::actors::registry::WorkerState;

use crate::ask::{COMPLETIONS, completion, prompt};
use crate::client::Stream;
use crate::fleet::{Fleet, MODEL};
use crate::frontend::{Frontend, FrontendOptions, RouterMode};
use crate::prefixes::{follow_up, plant_and_index, wait_activated, wait_hearing, wait_known};
use crate::release::{Release, on_each_release};
use crate::stack::Stack;
use crate::wait::eventually;

const LIST_LIMIT: Duration = Duration::from_secs(30);
const STATE_LIMIT: Duration = Duration::from_secs(20);

/// Long enough that it cannot end by itself while a test looks at it.
const ENDLESS: u32 = 20_000;

/// Tokens of a stream that is to survive something.
const LENGTH: u32 = 120;

on_each_release! {
    fn a_client_that_leaves_frees_its_sequence_and_blocks(release) {
        let (_stack, fleet, frontend) = running(release, 1, 0);
        let mut stream = open(&frontend, 1, ENDLESS);
        let in_use = fleet.snapshot().in_use();
        assert_eq!((in_use.open_streams, in_use.sequences), (1, 1));
        assert!(in_use.active_blocks > 0);
        stream.read_texts(3);
        drop(stream);
        fleet.wait_idle();
        assert_eq!(fleet.worker(0).cancelled_total, 1);
        // The prompt's blocks stay cached, nothing else does.
        let cached = fleet.worker(0).ranks[0].load.inactive_blocks;
        assert!(cached >= 4, "{cached} blocks cached of a prompt of 4 whole blocks and more");
    }

    fn a_crash_moves_the_stream_to_another_worker(release) {
        let (_stack, fleet, frontend) = running(release, 3, 3);
        let mut stream = open(&frontend, 1, LENGTH);
        let mut seen = stream.read_texts(5);
        let victim = fleet.busy_worker();
        fleet.kill(&format!("w{victim}"), Death::Crash);
        let mut transcript = stream.finish();
        seen.append(&mut transcript.events);
        transcript.events = seen;
        assert_eq!(transcript.error(), None);
        assert!(transcript.done);
        assert_eq!(transcript.finish_reason(), "length");
        assert_eq!(transcript.usage()["completion_tokens"], LENGTH);
        // One more text was read when the stream was opened.
        assert_eq!(transcript.events.iter().filter(|event| event.has_text()).count() + 1, LENGTH as usize);
        assert_eq!(fleet.worker(victim).state, WorkerState::Dead);
        let others: u64 = fleet.requests().iter().enumerate().filter(|(i, _)| *i != victim).map(|(_, n)| n).sum();
        assert_eq!(others, 1, "exactly one other worker took over");
    }

    fn without_migration_a_crash_is_an_error_for_the_client(release) {
        let (_stack, fleet, frontend) = running(release, 2, 0);
        let stream = open(&frontend, 1, ENDLESS);
        fleet.kill(&format!("w{}", fleet.busy_worker()), Death::Crash);
        let transcript = stream.finish();
        assert!(transcript.error().is_some(), "{transcript:?}");
    }

    fn a_worker_comes_back_under_a_new_id(release) {
        let (_stack, fleet, frontend) = running_with(release, 2, 3, &[("ETCD_LEASE_TTL", "3")]);
        let before = fleet.worker(0);
        fleet.kill("w0", Death::Crash);
        fleet.wait_state(0, WorkerState::Dead, STATE_LIMIT);
        fleet.restart("w0");
        fleet.wait_state(0, WorkerState::Ready, STATE_LIMIT);
        let after = fleet.worker(0);
        assert_eq!(after.incarnation, before.incarnation + 1);
        assert_ne!(after.instance_id, before.instance_id);
        // The old id goes when its lease has run out; the new one serves.
        eventually(LIST_LIMIT, "the frontend knows the new id and has forgotten the old one", || {
            let ids = frontend.client().instances("generate");
            (ids.contains(&after.instance_id) && !ids.contains(&before.instance_id)).then_some(())
        });
        eventually(LIST_LIMIT, "the restarted worker serves", || {
            let reply = frontend.client().post(COMPLETIONS, &completion(&prompt(9, 40), 2));
            assert_eq!(reply.status, 200, "{reply:?}");
            (reply.served().instance_id == after.instance_id).then_some(())
        });
    }

    fn a_panic_in_a_rank_costs_its_streams_and_nothing_else(release) {
        let (_stack, fleet, frontend) = running(release, 2, 3);
        let stream = open(&frontend, 1, LENGTH);
        let victim = fleet.busy_worker();
        fleet.kill(&format!("w{victim}/r0"), Death::Panic);
        let transcript = stream.finish();
        assert_eq!(transcript.error(), None);
        assert_eq!(transcript.usage()["completion_tokens"], LENGTH);
        assert_eq!(fleet.worker(victim).state, WorkerState::Ready);
        assert_eq!(fleet.worker(victim).incarnation, 1, "the worker itself lives on");
        let before = fleet.requests()[victim];
        eventually(STATE_LIMIT, "the replaced rank serves again", || {
            let reply = frontend.client().post(COMPLETIONS, &completion(&prompt(9, 40), 2));
            assert_eq!(reply.status, 200, "{reply:?}");
            (fleet.requests()[victim] > before).then_some(())
        });
    }

    fn a_drained_worker_loses_nothing(release) {
        let (_stack, fleet, frontend) = running(release, 2, 0);
        let streams: Vec<_> = (0..4).map(|topic| open(&frontend, topic, LENGTH)).collect();
        assert_eq!(fleet.requests(), [2, 2]);
        let leaving = fleet.worker(0).instance_id;
        fleet.drain("w0");
        eventually(LIST_LIMIT, "the drained worker is unlisted", || {
            (!frontend.client().instances("generate").contains(&leaving)).then_some(())
        });
        for topic in 10..14 {
            let reply = frontend.client().post(COMPLETIONS, &completion(&prompt(topic, 40), 2));
            assert_eq!(reply.status, 200, "{reply:?}");
            assert_ne!(reply.served().instance_id, leaving);
        }
        for stream in streams {
            let transcript = stream.finish();
            assert_eq!(transcript.error(), None);
            assert_eq!(transcript.usage()["completion_tokens"], LENGTH);
        }
        fleet.wait_state(0, WorkerState::Left, STATE_LIMIT);
        assert_eq!(fleet.worker(0).completed_total, 2);
        assert_eq!(fleet.worker(0).cancelled_total, 0);
    }

    fn a_crashed_worker_is_unlisted_when_its_lease_has_run_out(release) {
        let (_stack, fleet, frontend) = running_with(release, 1, 0, &[("ETCD_LEASE_TTL", "4")]);
        let gone = fleet.worker(0).instance_id;
        fleet.kill("w0", Death::Crash);
        fleet.wait_state(0, WorkerState::Dead, STATE_LIMIT);
        // A dead process says nothing, so its record outlives it.
        assert_eq!(frontend.client().instances("generate"), [gone]);
        frontend.client().wait_instances("generate", 0, LIST_LIMIT);
        frontend.client().wait_unlisted(MODEL, LIST_LIMIT);
    }

    fn a_frontend_that_dies_leaves_nothing_behind(release) {
        let (stack, fleet, mut frontend) = running(release, 2, 0);
        let streams: Vec<_> = (0..6).map(|topic| open(&frontend, topic, ENDLESS)).collect();
        assert_eq!(fleet.snapshot().in_use().open_streams, 6);
        frontend.kill();
        fleet.wait_idle();
        drop(streams);
        let next = stack.frontend(release, RouterMode::RoundRobin);
        next.client().wait_serving(MODEL, LIST_LIMIT);
        let reply = next.client().post(COMPLETIONS, &completion(&prompt(9, 40), 2));
        assert_eq!(reply.status, 200, "{reply:?}");
    }

    fn requests_for_a_dead_port_move_on(release) {
        let stack = Stack::on_etcd();
        let fleet = Fleet::start(&stack, "--num-workers 2 --block-size 16 --ports per-worker");
        let options = FrontendOptions { release, router_mode: RouterMode::RoundRobin, migration_limit: 3 };
        let frontend = stack.frontend_with(&options);
        frontend.client().wait_serving(MODEL, LIST_LIMIT);
        frontend.client().wait_instances("generate", 2, LIST_LIMIT);
        // Both have served before: 1.4.2 fails, and does not move, a request for a port that it never reached.
        for topic in 0..4 {
            let reply = frontend.client().post(COMPLETIONS, &completion(&prompt(topic, 40), 2));
            assert_eq!(reply.status, 200, "{reply:?}");
        }
        assert_eq!(fleet.requests(), [2, 2]);
        fleet.kill("w0", Death::Crash);
        fleet.wait_state(0, WorkerState::Dead, STATE_LIMIT);
        // Its record is still there, so the frontend goes on choosing it until it finds the port closed.
        assert!(frontend.client().instances("generate").contains(&fleet.worker(0).instance_id));
        for topic in 10..16 {
            let reply = frontend.client().post(COMPLETIONS, &completion(&prompt(topic, 40), 2));
            assert_eq!(reply.status, 200, "{reply:?}");
        }
        assert_eq!(fleet.requests(), [2, 8]);
    }

    fn acks_that_are_withheld_cost_all_workers_of_a_port_until_the_fault_ends(release) {
        let stack = Stack::on_etcd().with_variables(&[("DYN_TCP_REQUEST_TIMEOUT", "1")]);
        let fleet = Fleet::start(&stack, "--num-workers 2 --block-size 16");
        let options = FrontendOptions { release, router_mode: RouterMode::RoundRobin, migration_limit: 0 };
        let frontend = stack.frontend_with(&options);
        frontend.client().wait_serving(MODEL, LIST_LIMIT);
        frontend.client().wait_instances("generate", 2, LIST_LIMIT);
        let serves = |topic| frontend.client().post(COMPLETIONS, &completion(&prompt(topic, 40), 2)).status == 200;
        assert!((0..4).all(serves));
        fleet.disturb(&["w0 request.black_hole"]);
        assert!((10..12).any(|topic| !serves(topic)), "one of two is for w0");
        assert!(!(20..22).any(serves), "acks have no names, and one is missing on the connection that all share");
        fleet.disturb(&[]);
        let before = fleet.requests();
        eventually(LIST_LIMIT, "both serve again", || {
            serves(30);
            let requests = fleet.requests();
            (requests[0] > before[0] && requests[1] > before[1]).then_some(())
        });
        assert!((40..44).all(serves));
        fleet.wait_idle();
    }

    fn a_new_publisher_goes_on_where_the_old_one_ended(release) {
        let stack = Stack::on_etcd();
        let fleet = Fleet::start(&stack, "--num-workers 4 --block-size 16 --speedup-ratio 0");
        let frontend = stack.frontend(release, RouterMode::Kv);
        let client = frontend.client();
        client.wait_serving(MODEL, LIST_LIMIT);
        client.wait_instances("generate", 4, LIST_LIMIT);
        wait_hearing(client, 4);
        let owner = plant_and_index(&fleet, client, 1);
        fleet.kill(&format!("w{owner}/kv"), Death::Panic);
        eventually(STATE_LIMIT, "the publisher has been replaced", || {
            (fleet.worker(owner).restarts == 1).then_some(())
        });
        wait_activated(client, 5);
        wait_hearing(client, 4);
        wait_known(&fleet, client, &[(1, owner)]);
        // What the old one published is not forgotten, and what the new one publishes arrives.
        for extra in 0..4 {
            assert_eq!(follow_up(&fleet, client, 1, extra), owner, "request {extra}");
        }
        for topic in 2..8 {
            let owner = plant_and_index(&fleet, client, topic);
            assert_eq!(follow_up(&fleet, client, topic, 0), owner, "topic {topic}");
        }
    }
}

fn running(release: Release, workers: usize, migration_limit: u32) -> (Stack, Fleet, Frontend) {
    running_with(release, workers, migration_limit, &[])
}

/// A fleet in real time behind a round-robin frontend that knows all of it.
fn running_with(
    release: Release,
    workers: usize,
    migration_limit: u32,
    variables: &[(&str, &str)],
) -> (Stack, Fleet, Frontend) {
    let stack = Stack::on_etcd();
    let fleet = Fleet::start_with(&stack, &format!("--num-workers {workers} --block-size 16"), variables);
    let frontend = stack.frontend_with(&FrontendOptions {
        release,
        router_mode: RouterMode::RoundRobin,
        migration_limit,
    });
    frontend.client().wait_serving(MODEL, LIST_LIMIT);
    frontend.client().wait_instances("generate", workers, LIST_LIMIT);
    (stack, fleet, frontend)
}

/// A stream that has begun.
#[track_caller]
fn open(frontend: &Frontend, topic: u32, max_tokens: u32) -> Stream {
    frontend
        .client()
        .stream_begun(&completion(&prompt(topic, 70), max_tokens))
}
