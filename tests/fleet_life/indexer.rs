//! A real reader of the engines' own event stream: Dynamo's standalone indexer has to know exactly what each rank has.

use ghostfleet::actors::death::Death;
use ghostfleet::block_hash::hash_blocks;
use ghostfleet::types::HashSalt;
use serde_json::json;

use crate::cable::Cable;
use crate::caller::{call, chat};
use crate::native::free_ports;
use crate::scene::{PATIENCE, Scene};
use crate::standalone::Indexer;

const BLOCK_SIZE: usize = 4;
const MODEL: &str = "tiny";

/// Tokens of the longest prefix that an indexer credits to instance 1, rank 0.
fn credit(indexer: &Indexer, tokens: &[u32]) -> Option<u64> {
    let answer = indexer.post("query", &json!({"model_name": MODEL, "token_ids": tokens}))?;
    Some(answer["scores"]["1"]["0"].as_u64().unwrap_or(0))
}

struct Bench {
    scene: Scene,
    indexer: Indexer,
    /// Every sequence that was computed: prompt and answer.
    sequences: Vec<Vec<u32>>,
}

impl Bench {
    fn ask(&mut self, prompt: &[u32], tokens: u32) {
        let id = self.sequences.len().to_string();
        let mut answer = call(&self.scene.address(0), &id, &chat(prompt, tokens)).unwrap();
        let generated = answer.finish().unwrap().tokens;
        let generated = generated.into_iter().map(|token| u32::try_from(token).unwrap());
        self.sequences.push(prompt.iter().copied().chain(generated).collect());
    }

    /// Tokens of the longest prefix that the rank really has.
    fn truth(&self, tokens: &[u32]) -> u64 {
        let cached = self.scene.cluster.cached_blocks("w0/r0").unwrap();
        let cached: Vec<_> = cached
            .into_iter()
            .flatten()
            .map(|(_, block)| block.block_hash)
            .collect();
        let blocks = hash_blocks(tokens, BLOCK_SIZE, &HashSalt::default(), false);
        let known = blocks
            .iter()
            .take_while(|block| cached.contains(&block.block_hash))
            .count();
        (known * BLOCK_SIZE) as u64
    }

    /// The indexer credits each sequence with exactly what the rank has of it.
    fn assert_known(&self, what: &str) {
        self.scene.until(what, |_| {
            self.sequences
                .iter()
                .all(|tokens| credit(&self.indexer, tokens) == Some(self.truth(tokens)))
        });
    }

    /// Asks for further prompts until a message gets through: readers notice a gap by what comes behind it.
    fn ask_until_known(&mut self, first: u32) {
        let begin = std::time::Instant::now();
        for number in first.. {
            self.ask(&prompt(number), 10);
            let known = |tokens: &Vec<u32>| credit(&self.indexer, tokens) == Some(self.truth(tokens));
            if self.sequences.iter().all(known) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "the gap is never filled");
        }
    }

    fn total(&self) -> u64 {
        self.sequences.iter().map(|tokens| self.truth(tokens)).sum()
    }
}

/// A prompt of its own for each number.
fn prompt(number: u32) -> Vec<u32> {
    (number * 100..number * 100 + 30).collect()
}

fn check(flags: &[&str]) {
    let (events, replay) = (free_ports(), free_ports());
    let (events_text, replay_text) = (events.to_string(), replay.to_string());
    let own = [
        "--speedup-ratio",
        "0",
        "--num-gpu-blocks-override",
        "41",
        "--zmq-kv-events-ports",
        &events_text,
        "--zmq-replay-ports",
        &replay_text,
    ];
    let cable = Cable::to(events);
    let indexer = Indexer::start();
    let scene = Scene::start(&[&own[..], flags].concat());
    let registration = json!({
        "instance_id": 1, "model_name": MODEL, "block_size": BLOCK_SIZE,
        "endpoint": format!("tcp://127.0.0.1:{}", cable.port),
        "replay_endpoint": format!("tcp://127.0.0.1:{replay}"),
    });
    scene.until("the indexer takes the registration", |_| {
        indexer.post("register", &registration).is_some()
    });
    scene.until("it connects", |_| cable.carries());
    let mut bench = Bench {
        scene,
        indexer,
        sequences: Vec::new(),
    };

    // Stored, with generated blocks; whatever came before its subscription it replays.
    for number in 1..4 {
        bench.ask(&prompt(number), 10);
    }
    let shared: Vec<u32> = prompt(1).into_iter().take(16).chain(900..910).collect();
    bench.ask(&shared, 5);
    // A subscription counts from when the publisher has read it: what came before is asked for when more comes.
    bench.ask_until_known(50);
    assert!(bench.total() >= 100, "{}", bench.total());

    // Evicted.
    for number in 4..9 {
        bench.ask(&prompt(number), 10);
    }
    bench.assert_known("evicted blocks are forgotten");
    assert_eq!(bench.truth(&prompt(2)), 0, "the pool is too small for all");

    // Cleared.
    assert!(bench.scene.cluster.clear_cache("w0").unwrap() > 0);
    bench.assert_known("nothing is left of a cleared cache");
    assert_eq!(bench.total(), 0);

    // A gap: what was told meanwhile is replayed.
    bench.ask(&prompt(1), 10);
    bench.assert_known("it fills again");
    cable.pull();
    bench.ask(&prompt(2), 10);
    bench.ask(&prompt(3), 10);
    cable.plug_in();
    bench.scene.until("the cable carries again", |_| cable.carries());
    bench.ask_until_known(20);

    // The stream starts anew while the cache stays.
    let restarts = bench.scene.worker(0).restarts;
    bench.scene.cluster.kill("w0/r0/native", Death::Crash).unwrap();
    bench
        .scene
        .until("the stream is replaced", |scene| scene.worker(0).restarts > restarts);
    bench.ask(&prompt(40), 10);
    bench.assert_known("a new stream of the same cache is believed");
    assert!(bench.total() > 100);

    // The worker starts anew with an empty cache and its numbers at 0. The indexer does not take that for a restart, nor
    // would it with a real engine: the worker has to be registered again.
    bench.scene.cluster.kill("w0", Death::Crash).unwrap();
    bench
        .scene
        .until("it starts again", |scene| scene.cluster.restart("w0", false).is_ok());
    let instance = json!({"instance_id": 1, "model_name": MODEL});
    assert!(bench.indexer.post("unregister", &instance).is_some());
    assert!(bench.indexer.post("register", &registration).is_some());
    bench.ask_until_known(41);
}

#[test]
#[ignore = "needs Dynamo's standalone indexer: scripts/test"]
fn dynamos_indexer_knows_exactly_what_a_rank_has() {
    check(&[]);
}

#[test]
#[ignore = "needs Dynamo's standalone indexer: scripts/test"]
fn dynamos_indexer_reads_positional_events_too() {
    check(&["--zmq-kv-events-format", "array", "--zmq-replay-frames", "4"]);
}

#[test]
#[ignore = "needs Dynamo's standalone indexer: scripts/test"]
fn dynamos_indexer_knows_what_an_sglang_rank_has() {
    check(&["--engine-type", "sglang"]);
}
