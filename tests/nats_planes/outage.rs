//! What a fleet says and keeps while its NATS server is out of reach.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_nats::Subscriber;
use futures::StreamExt;
use ghostfleet::transport::event_plane::envelope;
use ghostfleet::transport::request_plane::Codec;
use serde_json::{Value, json};

use crate::cable::Cable;
use crate::scene::{PATIENCE, Scene, Server, call};

/// A fleet whose connections to the server can be pulled.
fn pluggable(arguments: &[&str], flags: &[&str]) -> (Scene, Cable) {
    let server = Server::start(arguments);
    let cable = Cable::to(server.port);
    let url = format!("nats://127.0.0.1:{}", cable.port);
    let always = [
        "--model-name",
        "tiny",
        "--speedup-ratio",
        "0",
        "--http-port",
        "0",
        "--system-port",
        "0",
    ];
    (Scene::between(server, &url, &[&always[..], flags].concat()), cable)
}

/// Status and body of a page of the status server.
fn page(scene: &Scene, path: &str) -> (u16, String) {
    let address = scene.cluster.facts().status.unwrap();
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let mut answer = agent.get(format!("http://{address}{path}")).call().unwrap();
    (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
}

/// Asks the first worker by HTTP, which no plane carries.
fn ask(scene: &Scene, prompt: &[u32]) {
    let address = scene.cluster.snapshot().workers[0].http.unwrap();
    let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 1, "ignore_eos": true});
    ureq::post(format!("http://{address}/v1/completions"))
        .send_json(body)
        .unwrap();
}

fn pull(scene: &Scene, cable: &Cable) {
    cable.pull();
    scene.until("the loss is told", |scene| page(scene, "/health").0 == 503);
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn probes_tell_that_no_request_gets_through_and_that_it_does_again() {
    for connections in ["shared", "per-worker"] {
        let (scene, cable) = pluggable(&[], &["--nats-connections", connections, "--num-workers", "2"]);
        assert_eq!(page(&scene, "/health").0, 200);
        pull(&scene, &cable);
        let (code, body) = page(&scene, "/health");
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((code, &body["status"]), (503, &json!("notready")));
        assert_eq!(body["workers"], json!({"w0": "unreachable", "w1": "unreachable"}));
        let reason = body["reason"].as_str().unwrap();
        assert!(reason.contains("w0 and 1 more: the NATS server"), "{reason}");
        let (code, body) = page(&scene, "/health/w1");
        assert!(code == 503 && body.contains("unreachable"), "{body}");
        assert_eq!(page(&scene, "/live").0, 200, "the process itself is well");
        cable.plug_in();
        scene.until("requests get through again", |scene| page(scene, "/health").0 == 200);
        let (_, body) = page(&scene, "/health");
        assert!(!body.contains("reason"), "{body}");
    }
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn what_still_waits_when_a_fleet_ends_is_counted() {
    let store = tempfile::TempDir::new().unwrap();
    let jetstream = ["-js", "-sd", store.path().to_str().unwrap()];
    for (arguments, flags) in [
        (&[][..], &["--nats-connections", "shared"][..]),
        (&[], &["--nats-connections", "per-worker"]),
        (&jetstream, &["--durable-kv-events"]),
        (&jetstream, &["--durable-kv-events", "--nats-connections", "per-worker"]),
    ] {
        let (scene, cable) = pluggable(arguments, flags);
        ask(&scene, &[1; 8]);
        // Its reports go on, so that one may be under way whenever the count is taken.
        scene.until("the server has everything", |scene| {
            let quiet = scene.cluster.settle_events();
            assert_eq!(quiet.dropped, 0, "{flags:?}");
            quiet.undelivered == 0
        });
        pull(&scene, &cable);
        ask(&scene, &[2; 8]);
        scene.cluster.begin_stop();
        assert!(scene.cluster.wait_over(PATIENCE), "{flags:?}");
        let losses = scene.cluster.settle_events();
        assert!(losses.dropped == 0 && losses.undelivered > 0, "{flags:?}: {losses:?}");
    }
}

/// Listens until a load report has come and a KV event; the event's id.
async fn hear_load_and_event(events: &mut Subscriber) -> u64 {
    let (mut load, mut newest) = (false, None);
    loop {
        if let (true, Some(newest)) = (load, newest) {
            return newest;
        }
        let message = tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap();
        let envelope = envelope::decode(&message.payload).unwrap();
        if envelope.topic == "kv-events" {
            let batch: Vec<Value> = Codec::Msgpack.decode(envelope.payload).unwrap();
            newest = batch.last().and_then(|event| event["event"]["event_id"].as_u64());
        } else {
            load = true;
        }
    }
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn routers_that_come_back_after_an_idle_fleet_are_told_of_the_present_again() {
    for connections in ["shared", "per-worker"] {
        let (scene, cable) = pluggable(&[], &["--nats-connections", connections]);
        ask(&scene, &[1; 9]);
        ask(&scene, &[2; 9]);
        pull(&scene, &cable);
        cable.plug_in();
        scene.until("the server is back", |scene| page(scene, "/health").0 == 200);
        // What waited has gone out by now, and nothing is new.
        let newest = scene.runtime.block_on(async {
            let subject = "namespace.dynamo.component.backend.endpoint.generate.>";
            let mut events = scene.client.subscribe(subject).await.unwrap();
            hear_load_and_event(&mut events).await
        });
        assert_eq!(newest, scene.cluster.snapshot().workers[0].ranks[0].kv_events_total);
    }
}

/// What has come of one worker's event streams.
#[derive(Default)]
struct Heard {
    /// Sequence numbers by publisher.
    publishers: BTreeMap<u64, Vec<u64>>,
    /// Bytes of KV events that came before the first gap.
    bytes: usize,
    /// Event ids, in the order in which they came.
    ids: Vec<u64>,
    blocks: BTreeSet<u64>,
}

impl Heard {
    /// Listens until nothing comes for a moment.
    async fn listen(&mut self, events: &mut Subscriber) {
        while let Ok(Some(message)) = tokio::time::timeout(Duration::from_millis(300), events.next()).await {
            let envelope = envelope::decode(&message.payload).unwrap();
            let sequences = self.publishers.entry(envelope.publisher_id.get()).or_default();
            sequences.push(envelope.sequence);
            if envelope.topic == "kv-events" {
                let batch: Value = Codec::Msgpack.decode(envelope.payload).unwrap();
                self.learn(batch.as_array().unwrap());
                if self.gap().is_none() {
                    self.bytes += message.payload.len();
                }
            }
        }
    }

    fn learn(&mut self, events: &[Value]) {
        for event in events {
            self.ids.push(event["event"]["event_id"].as_u64().unwrap());
            let stored = event["event"]["data"]["stored"]["blocks"].as_array();
            let hashes = stored
                .unwrap()
                .iter()
                .map(|block| block["block_hash"].as_u64().unwrap());
            self.blocks.extend(hashes);
        }
    }

    /// Messages that never came after the first one of their publisher: a load report may be older than the listener.
    fn missing(&self) -> u64 {
        let missing = |sequences: &Vec<u64>| {
            let (first, last) = (sequences.first().unwrap(), sequences.last().unwrap());
            last + 1 - first - sequences.len() as u64
        };
        self.publishers.values().map(missing).sum()
    }

    /// The first event that never came.
    fn gap(&self) -> Option<u64> {
        let pair = self.ids.windows(2).find(|pair| pair[0] + 1 != pair[1])?;
        Some(pair[0] + 1)
    }
}

/// The value of the drop counter.
fn dropped(scene: &Scene) -> u64 {
    let (_, page) = page(scene, "/metrics");
    let line = "ghostfleet_event_messages_dropped_total{plane=\"nats\"} ";
    let value = page.lines().find_map(|text| text.strip_prefix(line));
    value.expect("the counter is there from the start").parse().unwrap()
}

/// Bytes that may wait on a connection of a worker's own.
const BOUND: usize = 8 << 20;

/// Tokens of one prompt; its events have about a quarter of a MiB.
const PROMPT: u32 = 16_000;

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn a_full_buffer_drops_the_newest_events_counts_them_and_recovery_heals_the_gap() {
    let flags = [
        "--nats-connections",
        "per-worker",
        "--num-gpu-blocks-override",
        "400000",
    ];
    let (scene, cable) = pluggable(&[], &flags);
    assert_eq!(dropped(&scene), 0);
    let scope = "namespace.dynamo.component.backend.endpoint.generate";
    let mut events = scene.runtime.block_on(async {
        let events = scene.client.subscribe(format!("{scope}.>")).await.unwrap();
        scene.client.flush().await.unwrap();
        events
    });
    let prompt = |number: u32| (0..PROMPT).map(|token| (token + number) % 1900).collect::<Vec<u32>>();
    let mut heard = Heard::default();
    scene.runtime.block_on(heard.listen(&mut events));
    assert_eq!(heard.missing(), 0);
    pull(&scene, &cable);
    let (before, mut asked) = (heard.bytes, 0);
    while dropped(&scene) < 4 {
        assert!(asked < 200, "the bound is never reached");
        asked += 1;
        ask(&scene, &prompt(asked));
    }
    cable.plug_in();
    // What waited comes first, whole and in order; then a gap.
    while heard.gap().is_none() {
        scene.runtime.block_on(heard.listen(&mut events));
        if heard.gap().is_none() {
            asked += 1;
            assert!(asked < 250, "nothing comes after the outage");
            ask(&scene, &prompt(asked));
        }
    }
    scene.runtime.block_on(heard.listen(&mut events));
    let waited = heard.bytes - before;
    // One message more would have been too much; load figures have their share.
    let room = BOUND.checked_sub(waited).expect("no more waits than may");
    assert!(room < 400 << 10, "{waited} bytes waited");
    assert_eq!(heard.ids[0], 1, "the oldest events are kept");
    assert_eq!(heard.missing(), dropped(&scene));
    let cached: BTreeSet<u64> = scene
        .cluster
        .cached_blocks("w0")
        .unwrap()
        .into_iter()
        .flatten()
        .map(|(_, block)| block.block_hash.0)
        .collect();
    assert!(heard.blocks.len() < cached.len() && heard.blocks.is_subset(&cached));
    // As a router does: ask from the first event that is missing.
    let source = scene.endpoints("worker_kv_query_source").remove(0);
    let query = json!({
        "worker_id": source.instance.0, "dp_rank": 0, "start_event_id": heard.gap(), "end_event_id": null,
        "supports_tree_dump_failed": true, "kind": "recovery",
    });
    let subject = source.name.request_subject(source.instance);
    let answer = call(&scene.client, &subject, Codec::Msgpack, query);
    let items = scene.runtime.block_on(answer).unwrap();
    let recovered = items
        .iter()
        .flat_map(|item| [&item["data"]["Events"], &item["data"]["TreeDump"]])
        .find_map(|answer| answer["events"].as_array());
    heard.learn(recovered.expect("an answer with events"));
    assert_eq!(heard.blocks, cached, "nothing is missing any more");
}
