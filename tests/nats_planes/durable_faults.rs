//! Faults of KV events in `JetStream`: what is stored there, message by message, as a router of Dynamo 1.3 replays it.

use std::time::Duration;

use async_nats::Subscriber;
use bytes::Bytes;
use futures::StreamExt;
use ghostfleet::faults::{Fault, FaultId};
use ghostfleet::transport::request_plane::Codec;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::scene::{PATIENCE, Scene, Server, call, chat};

const STREAM: &str = "namespace-dynamo-component-backend-kv-events";

/// A fleet with a durable stream, and an ear at the stream's subject.
struct Bench {
    scene: Scene,
    ear: Subscriber,
    heard: u64,
    asked: u32,
    _store: TempDir,
}

impl Bench {
    fn start() -> Self {
        let store = TempDir::new().unwrap();
        let server = Server::start(&["-js", "-sd", store.path().to_str().unwrap()]);
        let url = server.url();
        let flags = ["--model-name", "tiny", "--speedup-ratio", "0", "--durable-kv-events"];
        let scene = Scene::between(server, &url, &flags);
        let ear = scene.runtime.block_on(async {
            let ear = scene.client.subscribe(format!("{STREAM}.kv-events")).await.unwrap();
            scene.client.flush().await.unwrap();
            ear
        });
        let mut bench = Self {
            scene,
            ear,
            heard: 0,
            asked: 0,
            _store: store,
        };
        // What it says at its start came before there was an ear.
        bench.scene.until("the stream begins", |_| bench.stored() > 0);
        while bench.soon().is_some() {}
        bench.heard = bench.stored();
        bench
    }

    /// Messages in the stream.
    fn stored(&self) -> u64 {
        self.scene.runtime.block_on(async {
            let asked = self
                .scene
                .client
                .request(format!("$JS.API.STREAM.INFO.{STREAM}"), "".into());
            let answer: Value = serde_json::from_slice(&asked.await.unwrap().payload).unwrap();
            answer["state"]["messages"].as_u64().unwrap_or_default()
        })
    }

    /// A prompt that was never sent, of two blocks.
    fn ask(&mut self) {
        self.asked += 1;
        let prompt: Vec<u32> = (self.asked * 20..self.asked * 20 + 8).collect();
        let subject = self.scene.subject(0);
        let answer = call(&self.scene.client, &subject, Codec::Msgpack, chat(&prompt, 1));
        self.scene.runtime.block_on(answer).unwrap();
    }

    fn hear(&mut self, patience: Duration) -> Option<Bytes> {
        let ear = &mut self.ear;
        let next = self
            .scene
            .runtime
            .block_on(async { tokio::time::timeout(patience, ear.next()).await });
        let message = next.ok().flatten()?;
        self.heard += 1;
        Some(message.payload)
    }

    fn soon(&mut self) -> Option<Bytes> {
        self.hear(Duration::from_millis(300))
    }

    fn next(&mut self) -> Value {
        let message = self.hear(PATIENCE).expect("a message");
        serde_json::from_slice(&message).unwrap()
    }

    fn add(&self, line: &str) -> Result<FaultId, String> {
        let added = self
            .scene
            .cluster
            .change_faults(Some(Vec::new()), vec![line.parse::<Fault>().unwrap()]);
        added.map(|ids| ids[0]).map_err(|error| error.to_string())
    }

    fn clear(&self) {
        self.scene.cluster.change_faults(None, Vec::new()).unwrap();
    }

    /// What one prompt says under a fault.
    fn under(&mut self, line: &str) -> Value {
        self.add(line).unwrap();
        self.ask();
        let heard = self.next();
        self.clear();
        while self.soon().is_some() {}
        heard
    }
}

fn id(event: &Value) -> u64 {
    event["event"]["event_id"].as_u64().unwrap()
}

fn blocks(event: &Value) -> Vec<u64> {
    let blocks = event["event"]["data"]["stored"]["blocks"].as_array().unwrap();
    blocks
        .iter()
        .map(|block| block["block_hash"].as_u64().unwrap())
        .collect()
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn events_in_a_durable_stream_get_lost_repeated_held_late_and_shuffled() {
    let mut bench = Bench::start();
    bench.ask();
    let first = id(&bench.next());
    bench.add("w0 events.drop").unwrap();
    bench.ask();
    assert_eq!(bench.soon(), None);
    bench.clear();
    bench.ask();
    assert_eq!(id(&bench.next()), first + 2, "what was lost leaves a gap");
    bench.add("w0 silent").unwrap();
    bench.ask();
    assert_eq!(bench.soon(), None);
    bench.clear();
    bench.ask();
    assert_eq!(
        id(&bench.next()),
        first + 3,
        "nobody can tell that there was something to say"
    );
    assert_eq!(id(&bench.under("w0 gap ids=5")), first + 9);
    bench.add("w0 events.duplicate copies=2").unwrap();
    bench.ask();
    let copies = [bench.next(), bench.next(), bench.next()];
    assert!(copies.iter().all(|copy| *copy == copies[0]), "{copies:?}");
    bench.clear();
    let last = id(&copies[0]);
    bench.add("w0 events.hold").unwrap();
    bench.ask();
    bench.ask();
    assert_eq!(bench.soon(), None);
    bench.clear();
    assert_eq!(
        [id(&bench.next()), id(&bench.next())],
        [last + 1, last + 2],
        "released in order"
    );
    bench.add("w0 events.reorder window=8").unwrap();
    for _ in 0..8 {
        bench.ask();
    }
    let ids: Vec<u64> = (0..8).map(|_| id(&bench.next())).collect();
    assert!(ids.windows(2).any(|pair| pair[0] > pair[1]), "{ids:?}");
    bench.clear();
    bench.add("w0 events.delay ms=500").unwrap();
    bench.ask();
    assert_eq!(bench.soon(), None);
    bench.next();
    bench.clear();
    bench.add("w0 storm per_s=200").unwrap();
    let mut last = id(&bench.next());
    for _ in 0..40 {
        let next = id(&bench.next());
        assert_eq!(next, last + 1, "true to form");
        last = next;
    }
    bench.clear();
    while bench.soon().is_some() {}
    // What was heard is what the stream has, for whoever comes later.
    assert_eq!(bench.stored(), bench.heard);
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn what_events_in_a_durable_stream_say_is_wrong() {
    let mut bench = Bench::start();
    bench.ask();
    let truth = bench.next();
    assert_eq!(blocks(&truth).len(), 2);
    let heard = bench.under("w0 wrong_rank rank=3");
    assert_eq!(
        (&heard["event"]["dp_rank"], &heard["storage_tier"]),
        (&json!(3), &json!("device"))
    );
    assert_eq!(id(&bench.under("w0 renumber first=0")), 0);
    assert_eq!(blocks(&bench.under("w0 wrong_block_size factor=3")).len(), 6);
    let twice = blocks(&bench.under("w0 duplicate_hash"));
    assert_eq!((twice.len(), twice[0]), (4, twice[1]));
    let wrong = blocks(&bench.under("w0 wrong_hash"))[0];
    let cached = bench.scene.cluster.cached_blocks("w0").unwrap();
    let knows = |hash: u64| cached.iter().flatten().any(|(_, block)| block.block_hash.0 == hash);
    assert!(!knows(wrong) && knows(blocks(&truth)[0]));
    let heard = bench.under("w0 wrong_parent");
    let parent = &heard["event"]["data"]["stored"]["parent_hash"];
    assert!(parent.as_u64().is_some_and(|parent| !knows(parent)), "{parent}");
    bench.add("w0 corrupt").unwrap();
    let mut spoiled = 0;
    for _ in 0..10 {
        bench.ask();
        let message = bench.hear(PATIENCE).expect("it is sent all the same");
        spoiled += u32::from(serde_json::from_slice::<Value>(&message).is_err());
    }
    assert!(spoiled > 0, "every message can still be read");
    bench.clear();
    // What such a stream does not have.
    for kind in [
        "stale_epoch",
        "recovery_missing",
        "recovery_hanging",
        "recovery_wrong",
        "duplicate_source",
    ] {
        let refused = bench.add(&format!("w0 {kind}")).unwrap_err();
        assert!(refused.contains("JetStream"), "{kind}: {refused}");
    }
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn a_silent_publisher_that_is_replaced_says_nothing_of_what_its_stream_starts_from() {
    let mut bench = Bench::start();
    bench.ask();
    bench.next();
    bench.add("w0 silent").unwrap();
    bench
        .scene
        .cluster
        .kill("w0/kv", ghostfleet::actors::death::Death::Crash)
        .unwrap();
    bench.scene.until("it is replaced", |scene| {
        scene.cluster.snapshot().workers[0]
            .deaths
            .iter()
            .any(|death| death.path == "w0/r0/kv")
    });
    bench.ask();
    assert_eq!(bench.soon(), None);
    bench.clear();
    bench.ask();
    assert!(blocks(&bench.next()).len() == 2, "it speaks again");
}
