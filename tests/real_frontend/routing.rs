//! Which worker gets a request: everybody in turn, or the one that has the prefix.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use crate::ask::{COMPLETIONS, completion, prompt};
use crate::fleet::{Fleet, MODEL};
use crate::frontend::RouterMode;
use crate::prefixes::{assert_no_event_refused, follow_up, plant, plant_and_index, wait_hearing, wait_known};
use crate::release::on_each_release;
use crate::stack::Stack;

const LIST_LIMIT: Duration = Duration::from_secs(30);

on_each_release! {
    fn round_robin_reaches_every_worker_and_every_rank(release) {
        const WORKERS: usize = 32;
        const ROUNDS: u64 = 8;
        const CLIENTS: u64 = 8;
        let stack = Stack::on_etcd();
        let fleet = Fleet::start(
            &stack,
            &format!("--num-workers {WORKERS} --data-parallel-size 2 --stagger-delay 0 --speedup-ratio 0"),
        );
        let frontend = stack.frontend(release, RouterMode::RoundRobin);
        frontend.client().wait_serving(MODEL, LIST_LIMIT);
        frontend.client().wait_instances("generate", WORKERS, LIST_LIMIT);
        let total = WORKERS as u64 * ROUNDS;
        let client = frontend.client();
        thread::scope(|scope| {
            for number in 0..CLIENTS {
                scope.spawn(move || {
                    for request in (number..total).step_by(usize::try_from(CLIENTS).expect("a small number")) {
                        let topic = u32::try_from(request).expect("a small number");
                        let reply = client.post(COMPLETIONS, &completion(&prompt(topic, 40), 4));
                        assert_eq!(reply.status, 200, "{reply:?}");
                        assert_eq!(reply.body["usage"]["completion_tokens"], 4, "{reply:?}");
                    }
                });
            }
        });
        assert_eq!(fleet.requests(), [ROUNDS; WORKERS]);
        for worker in fleet.snapshot().workers {
            for rank in worker.ranks {
                assert!(rank.requests_total > 0, "{} got nothing", rank.path);
            }
        }
    }

    fn a_repeated_prefix_goes_to_the_worker_that_has_it(release) {
        let stack = Stack::on_etcd();
        let fleet = Fleet::start(&stack, "--num-workers 6 --block-size 16 --speedup-ratio 0");
        let frontend = stack.frontend(release, RouterMode::Kv);
        let client = frontend.client();
        client.wait_serving(MODEL, LIST_LIMIT);
        client.wait_instances("generate", 6, LIST_LIMIT);
        wait_hearing(client, 6);
        for topic in 0..4 {
            let owner = plant_and_index(&fleet, client, topic);
            let mut expected = fleet.requests();
            expected[owner] += 6;
            for extra in 0..6 {
                assert_eq!(follow_up(&fleet, client, topic, extra), owner, "topic {topic}, request {extra}");
            }
            assert_eq!(fleet.requests(), expected);
        }
        assert_no_event_refused(client);
    }

    fn distinct_prefixes_are_spread_over_the_workers(release) {
        const WORKERS: usize = 4;
        let stack = Stack::on_etcd();
        let fleet = Fleet::start(&stack, &format!("--num-workers {WORKERS} --block-size 16"));
        let frontend = stack.frontend(release, RouterMode::Kv);
        frontend.client().wait_serving(MODEL, LIST_LIMIT);
        frontend.client().wait_instances("generate", WORKERS, LIST_LIMIT);
        // Streams that stay open, so that each choice sees the load of the ones before.
        let mut streams = Vec::new();
        for topic in 0..3 * u32::try_from(WORKERS).expect("a small number") {
            let mut stream = frontend.client().stream(COMPLETIONS, &completion(&prompt(topic, 320), 4000));
            stream.read_texts(1);
            streams.push(stream);
        }
        assert_eq!(fleet.requests(), [3; WORKERS]);
        drop(streams);
        fleet.wait_idle();
    }

    fn a_frontend_that_comes_late_knows_what_is_cached(release) {
        let stack = Stack::on_etcd();
        let fleet = Fleet::start(&stack, "--num-workers 6 --data-parallel-size 2 --block-size 16 --speedup-ratio 0");
        let first = stack.frontend(release, RouterMode::RoundRobin);
        first.client().wait_serving(MODEL, LIST_LIMIT);
        first.client().wait_instances("generate", 6, LIST_LIMIT);
        // A router that knows nothing of caches leaves each topic with one worker.
        let owners: Vec<_> = (0..6).map(|topic| plant(&fleet, first.client(), topic)).collect();
        assert_eq!(owners.iter().collect::<BTreeSet<_>>().len(), 6, "round robin used every worker: {owners:?}");
        drop(first);
        let late = stack.frontend(release, RouterMode::Kv);
        late.client().wait_serving(MODEL, LIST_LIMIT);
        late.client().wait_instances("generate", 6, LIST_LIMIT);
        wait_hearing(late.client(), 12);
        let owners: Vec<_> = (0..).zip(owners).collect();
        wait_known(&fleet, late.client(), &owners);
        for (topic, owner) in owners {
            assert_eq!(follow_up(&fleet, late.client(), topic, 0), owner, "topic {topic}");
        }
        assert_no_event_refused(late.client());
    }
}
