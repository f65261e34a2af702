//! Dynamo's standalone indexer: how far it is from the truth, when all is well and when events get lost.

use serde_json::{Value, json};

use crate::admin::Admin;
use crate::caller::{call, chat};
use crate::command::ctl;
use crate::ports::free_ports;
use crate::standalone::Indexer;

/// Blocks that one prompt of [`Bench::ask`] fills.
const BLOCKS: u64 = 3;

struct Bench {
    admin: Admin,
    indexer: Indexer,
    asked: u32,
}

impl Bench {
    /// Two workers whose streams an indexer reads: the first under a number of its own, the second under its instance id.
    fn start(replay: bool) -> Self {
        let events = [free_ports(), free_ports()];
        let replays = [free_ports(), free_ports()];
        let list = |ports: [u16; 2]| format!("{},{}", ports[0], ports[1]);
        let (event_ports, replay_ports) = (list(events), list(replays));
        let admin = Admin::start(&[
            "--num-workers",
            "2",
            "--speedup-ratio",
            "0",
            "--num-gpu-blocks-override",
            "41",
            "--zmq-kv-events-ports",
            &event_ports,
            "--zmq-replay-ports",
            &replay_ports,
        ]);
        let indexer = Indexer::start();
        for (worker, instance) in [(0, 1), (1, admin.scene.worker(1).instance_id)] {
            let mut registration = json!({
                "instance_id": instance, "model_name": "tiny", "block_size": 4,
                "endpoint": format!("tcp://127.0.0.1:{}", events[worker]),
            });
            if replay {
                registration["replay_endpoint"] = format!("tcp://127.0.0.1:{}", replays[worker]).into();
            }
            admin.scene.until("the indexer takes the registration", |_| {
                indexer.post("register", &registration).is_some()
            });
        }
        let mut bench = Self {
            admin,
            indexer,
            asked: 0,
        };
        bench.until_both_are_heard();
        bench
    }

    /// A prompt that was never sent, of [`BLOCKS`] full blocks with its answer.
    fn ask(&mut self, worker: usize) {
        self.asked += 1;
        let prompt: Vec<u32> = (self.asked * 100..self.asked * 100 + 11).collect();
        let mut answer = call(&self.admin.scene.address(worker), "a", &chat(&prompt, 2)).unwrap();
        assert!(answer.finish().unwrap().complete);
    }

    /// Subscriptions take their time, and without replay what came before them is lost.
    fn until_both_are_heard(&mut self) {
        for worker in 0..2 {
            while self.drift(&["--within", "0.3"]).1["drift"]["ranks"]
                .as_array()
                .unwrap()
                .iter()
                .all(|rank| rank["path"] != format!("w{worker}/r0") || rank["known_blocks"] == 0)
            {
                self.ask(worker);
            }
        }
        // What was lost on the way here.
        self.admin.fault("* clear_cache");
        self.settle();
    }

    fn drift(&self, args: &[&str]) -> (i32, Value, String) {
        let url = format!("http://127.0.0.1:{}", self.indexer.port);
        ctl(&self.admin, &[&["drift", "--indexer", &url], args].concat())
    }

    /// The indexer knows exactly what is there, soon.
    fn settle(&self) -> Value {
        let (code, drift, error) = self.drift(&["--within", "30"]);
        assert_eq!(code, 0, "{drift:#} {error}");
        drift["drift"].clone()
    }

    /// What a rank's drift comes to, once it is what it should be.
    fn until_it_is(&self, path: &str, missing: u64, phantom: u64) {
        self.admin.scene.until("the drift is as large as what was lost", |_| {
            let (code, found, _) = self.drift(&[]);
            let ranks = found["drift"]["ranks"].as_array().unwrap();
            let rank = ranks.iter().find(|rank| rank["path"] == path).unwrap();
            let others = |figure: &str| found["drift"][figure].as_u64().unwrap() - rank[figure].as_u64().unwrap();
            assert_eq!(
                (others("missing"), others("phantom")),
                (0, 0),
                "only {path} is wrong: {found:#}"
            );
            rank["missing"] == missing && rank["phantom"] == phantom && code == 3
        });
    }

    fn without(&self, id: u64) {
        self.admin.delete(&format!("/v1/faults/f{id}"));
    }
}

#[test]
#[ignore = "needs Dynamo's standalone indexer: scripts/test"]
fn drift_is_zero_while_all_is_well_and_as_large_as_what_was_lost() {
    let mut bench = Bench::start(false);
    // Stored, evicted (the pool is smaller than this), cleared.
    for _ in 0..6 {
        bench.ask(0);
        bench.ask(1);
    }
    assert_eq!(bench.settle()["true_blocks"], 12 * BLOCKS);
    for _ in 0..20 {
        bench.ask(0);
    }
    let healthy = bench.settle();
    assert!(
        healthy["true_blocks"].as_u64() < Some(26 * BLOCKS),
        "some were evicted: {healthy}"
    );
    bench.admin.fault("w0 clear_cache");
    let cleared = bench.settle();
    assert_eq!(cleared["true_blocks"], 6 * BLOCKS);

    // A publisher that never says a word.
    let id = bench.admin.fault("w1 silent");
    for _ in 0..2 {
        bench.ask(1);
    }
    bench.until_it_is("w1/r0", 2 * BLOCKS, 0);
    bench.without(id);
    bench.ask(1);
    bench.until_it_is("w1/r0", 2 * BLOCKS, 0);
    bench.admin.fault("w1 clear_cache");
    bench.settle();

    // Messages that are lost, with nobody to ask for them.
    bench.ask(0);
    bench.settle();
    let id = bench.admin.fault("w0 events.drop");
    for _ in 0..3 {
        bench.ask(0);
    }
    bench.until_it_is("w0/r0", 3 * BLOCKS, 0);
    bench.without(id);

    // A cache that is cleared without a word: what was known is phantom now.
    bench.admin.fault("w0 clear_cache event=without");
    bench.until_it_is("w0/r0", 0, BLOCKS);
}

#[test]
#[ignore = "needs Dynamo's standalone indexer: scripts/test"]
fn what_was_lost_is_replayed_and_the_drift_goes_away() {
    let mut bench = Bench::start(true);
    bench.ask(0);
    bench.settle();
    let id = bench.admin.fault("w0 events.drop");
    for _ in 0..3 {
        bench.ask(0);
    }
    bench.until_it_is("w0/r0", 3 * BLOCKS, 0);
    bench.without(id);
    // The next message shows the gap.
    bench.ask(0);
    let healed = bench.settle();
    assert_eq!(healed["true_blocks"], 5 * BLOCKS);
}

#[test]
#[ignore = "needs Dynamo's standalone indexer: scripts/test"]
fn blocks_of_a_worker_that_is_dead_are_phantoms() {
    let mut bench = Bench::start(false);
    bench.ask(0);
    bench.settle();
    bench
        .admin
        .post("/v1/commands", &json!({"command": "crash", "path": "w0"}));
    bench.admin.scene.until("its blocks are nobody's", |_| {
        let (code, found, _) = bench.drift(&[]);
        let ranks = found["drift"]["ranks"].as_array().unwrap();
        code == 3
            && ranks
                .iter()
                .any(|rank| rank["exists"] == false && rank["phantom"] == BLOCKS)
    });
}
