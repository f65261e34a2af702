//! The same scenario over every combination of discovery, request plane and event plane.

use std::time::Duration;

use ghostfleet::actors::death::Death;
use ghostfleet::actors::registry::WorkerState;

use crate::ask::{CHAT, COMPLETIONS, chat, completion, prompt};
use crate::client::Stream;
use crate::fleet::{Fleet, MODEL};
use crate::frontend::{Frontend, FrontendOptions, RouterMode};
use crate::nats::Nats;
use crate::plane_report::{Part, PlaneReport};
use crate::prefixes::{assert_no_event_refused, follow_up, plant_and_index, wait_known};
use crate::release::{Release, on_each_release};
use crate::stack::{Events, Requests, Stack, Store};
use crate::wait::eventually;

const LIST_LIMIT: Duration = Duration::from_secs(30);
const STATE_LIMIT: Duration = Duration::from_secs(20);

/// Long enough that it cannot end by itself while a test looks at it.
const ENDLESS: u32 = 20_000;

/// Tokens of a stream that is to survive something.
const LENGTH: u32 = 120;

on_each_release! {
    fn etcd_tcp_zmq(release) {
        interop(release, Store::Etcd, Requests::Tcp, Events::Zmq);
    }

    fn etcd_tcp_broker(release) {
        interop(release, Store::Etcd, Requests::Tcp, Events::Broker);
    }

    fn etcd_tcp_nats(release) {
        interop(release, Store::Etcd, Requests::Tcp, Events::Nats);
    }

    fn etcd_nats_zmq(release) {
        interop(release, Store::Etcd, Requests::Nats, Events::Zmq);
    }

    fn etcd_nats_broker(release) {
        interop(release, Store::Etcd, Requests::Nats, Events::Broker);
    }

    fn etcd_nats_nats(release) {
        interop(release, Store::Etcd, Requests::Nats, Events::Nats);
    }

    fn file_tcp_zmq(release) {
        interop(release, Store::Files, Requests::Tcp, Events::Zmq);
    }

    fn file_tcp_broker(release) {
        interop(release, Store::Files, Requests::Tcp, Events::Broker);
    }

    fn file_tcp_nats(release) {
        interop(release, Store::Files, Requests::Tcp, Events::Nats);
    }

    fn file_nats_zmq(release) {
        interop(release, Store::Files, Requests::Nats, Events::Zmq);
    }

    fn file_nats_broker(release) {
        interop(release, Store::Files, Requests::Nats, Events::Broker);
    }

    fn file_nats_nats(release) {
        interop(release, Store::Files, Requests::Nats, Events::Nats);
    }

    fn a_nats_server_that_comes_back_finds_everything_as_it_was(release) {
        let mut stack = Stack::on(Store::Etcd, Requests::Nats, Events::Nats);
        let fleet = Fleet::start(&stack, "--num-workers 2 --block-size 16");
        let frontend = serving(&stack, release, 2);
        let client = frontend.client();
        plant_and_index(&fleet, client, 1);
        let mut running = open(&frontend, 5, LENGTH);
        running.read_texts(1);
        let nats = stack.nats.as_mut().expect("this stack has a NATS server");
        nats.kill();
        // The answer has its own way.
        let transcript = running.finish();
        assert_eq!(transcript.error(), None);
        nats.restart();
        eventually(LIST_LIMIT, "requests are served again", || {
            (client.post(COMPLETIONS, &completion(&prompt(7, 40), 2)).status == 200).then_some(())
        });
        let owner = plant_and_index(&fleet, client, 2);
        assert_eq!(follow_up(&fleet, client, 2, 0), owner);
    }

    fn a_broker_that_comes_back_passes_events_on(release) {
        let mut stack = Stack::on(Store::Etcd, Requests::Tcp, Events::Broker);
        let fleet = Fleet::start(&stack, "--num-workers 2 --block-size 16 --speedup-ratio 0");
        let frontend = serving(&stack, release, 2);
        let client = frontend.client();
        plant_and_index(&fleet, client, 1);
        let broker = stack.broker.as_mut().expect("this stack has a broker");
        broker.kill();
        // Nobody hears of what is cached now, until the broker is back.
        let owner = crate::prefixes::plant(&fleet, client, 2);
        broker.restart();
        // What fell between the broker's end and its subscriptions is gone, as on any PUB socket; the next event of the
        // rank shows the gap and the recovery endpoint heals it.
        let next = crate::prefixes::plant(&fleet, client, 3);
        wait_known(&fleet, client, &[(2, owner), (3, next)]);
        let owner = plant_and_index(&fleet, client, 4);
        assert_eq!(follow_up(&fleet, client, 4, 0), owner);
    }

    fn a_broker_is_found_in_discovery(release) {
        let stack = Stack::on(Store::Files, Requests::Tcp, Events::DiscoveredBroker);
        let fleet = Fleet::start(&stack, "--num-workers 2 --block-size 16 --speedup-ratio 0");
        let frontend = serving(&stack, release, 2);
        let owner = plant_and_index(&fleet, frontend.client(), 1);
        assert_eq!(follow_up(&fleet, frontend.client(), 1, 0), owner);
    }

    fn a_frontend_per_plane_sees_exactly_its_group(release) {
        let stack = Stack::on_etcd();
        let nats = Nats::start(stack.scratch());
        let namespaces = [stack.namespace().to_owned(), format!("{}-nats", stack.namespace())];
        let file = stack.scratch().join("mixed.toml");
        let text = format!(
            "block_size = 16\nspeedup_ratio = 0\n\
             [[group]]\nname = \"tcp\"\nnum_workers = 2\nendpoint = \"dyn://{}.backend.generate\"\n\
             [[group]]\nname = \"nats\"\nnum_workers = 3\nendpoint = \"dyn://{}.backend.generate\"\n\
             request_plane = \"nats\"\nevent_plane = \"nats\"\nrequest_codec = \"json\"\n",
            namespaces[0], namespaces[1]
        );
        std::fs::write(&file, text).expect("the scratch directory is writable");
        let url = nats.url();
        let fleet = Fleet::start_with(&stack, &format!("--config {}", file.display()), &[("NATS_SERVER", &url)]);
        let options = FrontendOptions { release, router_mode: RouterMode::Kv, migration_limit: 0 };
        let plain = stack.environment();
        let mut on_nats = plain.clone();
        on_nats.extend([("DYN_REQUEST_PLANE", "nats"), ("DYN_EVENT_PLANE", "nats")].map(|(n, v)| (n, v.to_owned())));
        on_nats.push(("NATS_SERVER", url.clone()));
        let groups = [(plain, 0..2), (on_nats, 2..5)];
        for ((environment, workers), namespace) in groups.into_iter().zip(&namespaces) {
            let frontend = Frontend::start(stack.scratch(), &environment, namespace, &options);
            let client = frontend.client();
            client.wait_serving(MODEL, LIST_LIMIT);
            let owner = plant_and_index(&fleet, client, 1);
            assert!(workers.contains(&owner), "worker {owner} of {namespace}");
            assert_eq!(follow_up(&fleet, client, 1, 0), owner);
            let before = fleet.requests();
            for topic in 10..20 {
                let reply = client.post(COMPLETIONS, &completion(&prompt(topic, 40), 2));
                assert_eq!(reply.status, 200, "{reply:?}");
            }
            let taken = fleet.requests();
            let own: u64 = workers.map(|index| taken[index] - before[index]).sum();
            assert_eq!(own, 10, "all requests stay in {namespace}");
        }
    }

    fn each_worker_may_have_a_nats_connection_of_its_own(release) {
        let stack = Stack::on(Store::Etcd, Requests::Nats, Events::Nats);
        let fleet = Fleet::start(&stack, "--num-workers 3 --block-size 16 --nats-connections per-worker");
        let frontend = serving(&stack, release, 3);
        scenario(&stack, &fleet, &frontend, release, &PlaneReport::unwritten());
    }
}

/// List, stream, KV routing, cancel, crash, late frontend, drain, goodbye.
fn interop(release: Release, store: Store, requests: Requests, events: Events) {
    let report = PlaneReport::begin(release, store, requests, events);
    let stack = Stack::on(store, requests, events);
    let fleet = Fleet::start(&stack, "--num-workers 3 --block-size 16");
    let frontend = serving(&stack, release, 3);
    scenario(&stack, &fleet, &frontend, release, &report);
    fleet.stop();
    frontend.client().wait_unlisted(MODEL, LIST_LIMIT);
    report.shown(Part::List);
}

fn scenario(stack: &Stack, fleet: &Fleet, frontend: &Frontend, release: Release, report: &PlaneReport) {
    let client = frontend.client();
    let transcript = client.stream(CHAT, &chat("Hello.", 8)).finish();
    assert_eq!(transcript.usage()["completion_tokens"], 8);
    report.shown(Part::Stream);

    let owner = plant_and_index(fleet, client, 1);
    for extra in 0..4 {
        assert_eq!(follow_up(fleet, client, 1, extra), owner, "request {extra}");
    }
    assert_no_event_refused(client);
    report.shown(Part::KvRouting);

    drop(open(frontend, 3, ENDLESS));
    fleet.wait_idle();
    report.shown(Part::Cancel);

    // In KV mode 1.4.2 refuses to move a request that it has booked once ("already exists"), on every plane.
    let plain = attach(stack, release, RouterMode::RoundRobin, 3);
    let stream = open(&plain, 4, LENGTH);
    let victim = fleet.busy_worker();
    fleet.kill(&format!("w{victim}"), Death::Crash);
    let transcript = stream.finish();
    drop(plain);
    assert_eq!(transcript.error(), None);
    assert_eq!(transcript.usage()["completion_tokens"], LENGTH);
    assert_eq!(fleet.worker(victim).state, WorkerState::Dead);
    // Its records go when nobody renews them any more.
    client.wait_instances("generate", 2, LIST_LIMIT);
    report.shown(Part::Crash);

    let owner = plant_and_index(fleet, client, 2);
    let late = serving(stack, release, 2);
    wait_known(fleet, late.client(), &[(2, owner)]);
    assert_eq!(follow_up(fleet, late.client(), 2, 0), owner);
    drop(late);
    report.shown(Part::LateFrontend);

    let streams: Vec<_> = (10..14).map(|topic| open(frontend, topic, LENGTH)).collect();
    let leaving = (0..3).find(|index| *index != victim).expect("two are left");
    let id = fleet.worker(leaving).instance_id;
    fleet.drain(&format!("w{leaving}"));
    eventually(LIST_LIMIT, "the drained worker is unlisted", || {
        (!client.instances("generate").contains(&id)).then_some(())
    });
    let reply = client.post(COMPLETIONS, &completion(&prompt(20, 40), 2));
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_ne!(reply.served().instance_id, id);
    for stream in streams {
        let transcript = stream.finish();
        assert_eq!(transcript.error(), None);
        assert_eq!(transcript.usage()["completion_tokens"], LENGTH);
    }
    fleet.wait_state(leaving, WorkerState::Left, STATE_LIMIT);
    report.shown(Part::Drain);
}

/// A KV frontend on the planes of the stack that knows all workers.
fn serving(stack: &Stack, release: Release, workers: usize) -> Frontend {
    attach(stack, release, RouterMode::Kv, workers)
}

fn attach(stack: &Stack, release: Release, router_mode: RouterMode, workers: usize) -> Frontend {
    let frontend = stack.frontend_with(&FrontendOptions {
        release,
        router_mode,
        migration_limit: 3,
    });
    frontend.client().wait_serving(MODEL, LIST_LIMIT);
    frontend.client().wait_instances("generate", workers, LIST_LIMIT);
    frontend
}

/// A stream that has begun.
#[track_caller]
fn open(frontend: &Frontend, topic: u32, max_tokens: u32) -> Stream {
    frontend
        .client()
        .stream_begun(&completion(&prompt(topic, 70), max_tokens))
}
