//! `--durable-kv-events` and the last frontend that reads `JetStream`.

use std::time::Duration;

use ghostfleet::actors::death::Death;
use serde_json::Value;

use crate::ask::{COMPLETIONS, completion, prompt};
use crate::fleet::{Fleet, MODEL};
use crate::frontend::{Frontend, FrontendOptions, RouterMode};
use crate::nats::Nats;
use crate::prefixes::{follow_up, plant, wait_known};
use crate::release::Release;
use crate::stack::Stack;
use crate::wait::eventually;

const LIMIT: Duration = Duration::from_secs(30);
const FLAGS: &str = "--num-workers 2 --block-size 16 --event-plane nats --durable-kv-events";

struct Scene {
    stack: Stack,
    nats: Nats,
    fleet: Fleet,
    runtime: tokio::runtime::Runtime,
}

impl Scene {
    fn start(flags: &str) -> Self {
        let stack = Stack::on_files();
        let nats = Nats::start_with_jetstream(stack.scratch());
        let url = nats.url();
        let fleet = Fleet::start_with(&stack, &format!("{FLAGS} {flags}"), &[("NATS_SERVER", &url)]);
        Self {
            stack,
            nats,
            fleet,
            runtime: tokio::runtime::Runtime::new().expect("a runtime"),
        }
    }

    /// A frontend that takes a snapshot when the stream holds more than `threshold` messages.
    fn frontend(&self, threshold: u32) -> Frontend {
        self.frontend_with(
            RouterMode::Kv,
            &[("DYN_ROUTER_SNAPSHOT_THRESHOLD", &threshold.to_string())],
        )
    }

    fn frontend_with(&self, router_mode: RouterMode, variables: &[(&'static str, &str)]) -> Frontend {
        let mut environment = self.stack.environment();
        environment.extend([
            ("NATS_SERVER", self.nats.url()),
            ("DYN_EVENT_PLANE", "nats".to_owned()),
            ("DYN_ROUTER_DURABLE_KV_EVENTS", "true".to_owned()),
        ]);
        environment.extend(variables.iter().map(|(name, value)| (*name, (*value).to_owned())));
        let options = FrontendOptions {
            release: Release::V1_3_1,
            router_mode,
            migration_limit: 0,
        };
        let namespace = self.stack.namespace();
        let frontend = Frontend::start(self.stack.scratch(), &environment, namespace, &options);
        frontend.client().wait_serving(MODEL, LIMIT);
        frontend.client().wait_instances("generate", 2, LIMIT);
        frontend
    }

    /// What `JetStream` says of a stream of this namespace.
    fn stream(&self, prefix: &str, suffix: &str) -> Value {
        let name = format!(
            "{prefix}namespace-{}-component-backend-{suffix}",
            self.stack.namespace()
        );
        self.runtime.block_on(async {
            let client = async_nats::connect(self.nats.url()).await.expect("NATS is there");
            let asked = client.request(format!("$JS.API.STREAM.INFO.{name}"), "".into()).await;
            let answer = asked.expect("JetStream answers");
            serde_json::from_slice(&answer.payload).expect("JSON")
        })
    }

    fn events(&self) -> u64 {
        let state = self.stream("", "kv-events");
        state["state"]["messages"].as_u64().unwrap_or_default()
    }
}

#[test]
#[ignore = "needs nats-server and the Dynamo frontends: scripts/test"]
fn a_late_frontend_learns_the_caches_from_the_stream_and_from_snapshots() {
    let scene = Scene::start("--speedup-ratio 0");
    let fleet = &scene.fleet;
    let first = scene.frontend(4);
    let owner = plant(fleet, first.client(), 1);
    wait_known(fleet, first.client(), &[(1, owner)]);
    assert_eq!(follow_up(fleet, first.client(), 1, 0), owner);

    let late = scene.frontend(1_000_000);
    wait_known(fleet, late.client(), &[(1, owner)]);
    drop(late);

    let owners: Vec<_> = (2..8)
        .map(|topic| (topic, plant(fleet, first.client(), topic)))
        .collect();
    wait_known(fleet, first.client(), &owners);
    eventually(LIMIT, "a snapshot is taken and the stream purged", || {
        let bucket = scene.stream("OBJ_", "radix-bucket");
        let stored = bucket["state"]["messages"].as_u64().unwrap_or_default();
        (stored > 0 && scene.events() <= 4).then_some(())
    });
    let later = scene.frontend(1_000_000);
    wait_known(fleet, later.client(), &owners);
    assert_eq!(follow_up(fleet, later.client(), 3, 0), owners[1].1);
}

#[test]
#[ignore = "needs nats-server and the Dynamo frontends: scripts/test"]
fn a_publisher_that_dies_and_a_server_that_goes_away_lose_no_event() {
    for connections in ["shared", "per-worker"] {
        let mut scene = Scene::start(&format!("--speedup-ratio 0 --nats-connections {connections}"));
        let first = scene.frontend(1_000_000);
        let mut owners = vec![(1, plant(&scene.fleet, first.client(), 1))];
        wait_known(&scene.fleet, first.client(), &owners);
        scene.fleet.kill(&format!("w{}/kv", owners[0].1), Death::Crash);
        owners.push((2, plant(&scene.fleet, first.client(), 2)));
        wait_known(&scene.fleet, first.client(), &owners);

        scene.nats.kill();
        // Requests come by TCP: what is cached now waits for the server.
        owners.push((3, plant(&scene.fleet, first.client(), 3)));
        scene.nats.restart();
        let late = scene.frontend(1_000_000);
        wait_known(&scene.fleet, late.client(), &owners);
        for (topic, owner) in owners {
            assert_eq!(follow_up(&scene.fleet, late.client(), topic, 0), owner);
        }
    }
}

#[test]
#[ignore = "needs nats-server and the Dynamo frontends: scripts/test"]
fn a_frontend_outlives_faults_of_the_events_in_its_stream() {
    let scene = Scene::start("--speedup-ratio 0");
    let frontend = scene.frontend(1_000_000);
    let client = frontend.client();
    let mut owners = vec![(1, plant(&scene.fleet, client, 1))];
    wait_known(&scene.fleet, client, &owners);
    // Messages that nobody can read, and messages that say nothing true: requests are served all the same.
    let mut topic = 2;
    for fault in [
        "* corrupt",
        "* wrong_hash",
        "* wrong_parent",
        "* renumber first=0",
        "* events.drop",
    ] {
        scene.fleet.disturb(&[fault]);
        plant(&scene.fleet, client, topic);
        topic += 1;
    }
    // What is told in good order, twice, late, or after a gap is known.
    for fault in ["* events.duplicate copies=2", "* events.delay ms=300", "* gap ids=5"] {
        scene.fleet.disturb(&[fault]);
        owners.push((topic, plant(&scene.fleet, client, topic)));
        wait_known(&scene.fleet, client, &owners);
        topic += 1;
    }
    // Held until the fault ends.
    scene.fleet.disturb(&["* events.hold"]);
    owners.push((topic, plant(&scene.fleet, client, topic)));
    let before = scene.events();
    scene.fleet.disturb(&[]);
    wait_known(&scene.fleet, client, &owners);
    assert!(scene.events() > before);
    // A late one replays all of it, what cannot be read included.
    let late = scene.frontend(1_000_000);
    wait_known(&scene.fleet, late.client(), &owners);
}

#[test]
#[ignore = "needs nats-server and the Dynamo frontends: scripts/test"]
fn busy_workers_are_known_from_the_load_figures_that_this_release_reads() {
    // 63 blocks to use each: a prompt of 40 is over half.
    let scene = Scene::start("--num-gpu-blocks-override 64");
    // Turn by turn: a KV router would go by what it has sent itself.
    let threshold = [("DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD", "0.5")];
    let frontend = scene.frontend_with(RouterMode::RoundRobin, &threshold);
    let client = frontend.client();
    let short = |topic| client.post(COMPLETIONS, &completion(&prompt(topic, 20), 2)).status;
    assert_eq!(short(10), 200);
    let open: Vec<_> = (1..3)
        .map(|topic| {
            let mut stream = client.stream(COMPLETIONS, &completion(&prompt(topic, 640), 300));
            stream.read_texts(1);
            stream
        })
        .collect();
    eventually(LIMIT, "everybody is busy", || {
        let status = short(20);
        assert!([200, 503, 529].contains(&status), "{status}");
        (status != 200).then_some(())
    });
    drop(open);
    scene.fleet.wait_idle();
    eventually(LIMIT, "requests are taken again", || (short(30) == 200).then_some(()));
}
