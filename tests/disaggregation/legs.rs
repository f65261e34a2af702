//! A fleet of both roles, and the two legs of a request.

use std::ops::RangeBounds;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

use crate::caller::{Answer, Outcome, call, chat};
use crate::peers::Source;
use crate::scene::Scene;

/// A fleet of prefill workers, which come first, and decode workers.
pub(crate) struct Pair {
    pub(crate) scene: Scene,
    _config: TempDir,
}

/// Ids of one handoff.
#[derive(Debug, Clone)]
pub(crate) struct Handoff {
    /// The client's request.
    pub(crate) request: Uuid,
    pub(crate) id: Uuid,
    pub(crate) room: u64,
}

impl Handoff {
    pub(crate) fn new() -> Self {
        Self {
            request: Uuid::new_v4(),
            id: Uuid::new_v4(),
            room: Uuid::new_v4().as_u64_pair().0,
        }
    }
}

/// Transfers that do not end while a test looks at them: a second for each token.
pub(crate) const SLOW: &str = "kv_bytes_per_token = 1000000000\nkv_transfer_bandwidth = 1.0";

/// Transfers without a delay.
pub(crate) const INSTANT: &str = "kv_transfer_bandwidth = 0.0";

impl Pair {
    /// One prefill worker with a rendezvous and one decode worker; passes and transfers take no time unless `keys` says so.
    pub(crate) fn start(keys: &str) -> Self {
        Self::groups(keys, "num_workers = 1\nbootstrap_ports = \"0\"", "num_workers = 1")
    }

    /// One worker on each side; KV travels at once, and tokens come slowly enough to be interrupted.
    pub(crate) fn with_slow_decoding() -> Self {
        let timing = "speedup_ratio = 1.0\ntiming_model = {type = \"fixed\", prefill_ms = 1.0, decode_ms = 5.0}";
        Self::groups(
            INSTANT,
            "num_workers = 1\nbootstrap_ports = \"0\"",
            &format!("num_workers = 1\n{timing}"),
        )
    }

    /// With further keys for each role.
    pub(crate) fn groups(keys: &str, prefill: &str, decode: &str) -> Self {
        let config = TempDir::new().unwrap();
        let text = format!(
            "speedup_ratio = 0.0\n{keys}\n[[group]]\nname = \"prefill\"\ndisaggregation_mode = \"prefill\"\n{prefill}\n\
             [[group]]\nname = \"decode\"\ndisaggregation_mode = \"decode\"\n{decode}\n"
        );
        let path: PathBuf = config.path().join("disagg.toml");
        std::fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        Self {
            scene: Scene::start(&["--config", &path]),
            _config: config,
        }
    }

    /// `bootstrap_info` of a handoff with this worker.
    pub(crate) fn meeting(&self, worker: usize, handoff: &Handoff) -> Value {
        let instance = self.scene.worker(worker).instance_id;
        let cards = self.scene.records("v1/mdc");
        let card = cards.iter().find(|card| card["instance_id"] == instance).unwrap();
        let endpoint = &card["card_json"]["runtime_config"]["disaggregated_endpoint"];
        json!({
            "bootstrap_host": endpoint["bootstrap_host"],
            "bootstrap_port": endpoint["bootstrap_port"],
            "bootstrap_room": handoff.room,
            "handoff_id": handoff.id,
        })
    }

    /// Starts the prefill leg of a request at w0.
    pub(crate) fn prefill(&self, handoff: &Handoff, prompt: &[u32]) -> Answer {
        self.prefill_at(0, handoff, prompt)
    }

    /// Starts the prefill leg of a request at this worker.
    pub(crate) fn prefill_at(&self, worker: usize, handoff: &Handoff, prompt: &[u32]) -> Answer {
        self.leg((worker, worker), handoff, &chat(prompt, 1))
    }

    /// Starts the decode leg of a request at the worker after the prefill workers, w1.
    pub(crate) fn decode(&self, handoff: &Handoff, prompt: &[u32], max_tokens: u32) -> Answer {
        self.decode_at(0, 1, handoff, prompt, max_tokens)
    }

    /// Starts the decode leg of a request whose prompt one worker computes at another.
    pub(crate) fn decode_at(
        &self,
        prefill: usize,
        worker: usize,
        handoff: &Handoff,
        prompt: &[u32],
        max_tokens: u32,
    ) -> Answer {
        self.leg((prefill, worker), handoff, &chat(prompt, max_tokens))
    }

    /// Starts the decode leg of a request for three tokens at w1, whose prompt is computed by a prefill worker that the
    /// test plays.
    pub(crate) fn decode_from(&self, source: &Source, handoff: &Handoff, prompt: &[u32]) -> Answer {
        self.send(1, source.meeting(handoff), handoff, &chat(prompt, 3))
    }

    fn leg(&self, (prefill, worker): (usize, usize), handoff: &Handoff, request: &Value) -> Answer {
        self.send(worker, self.meeting(prefill, handoff), handoff, request)
    }

    fn send(&self, worker: usize, meeting: Value, handoff: &Handoff, request: &Value) -> Answer {
        let mut request = request.clone();
        request["bootstrap_info"] = meeting;
        call(&self.scene.address(worker), &handoff.request.to_string(), &request).unwrap()
    }

    /// Both legs of a request, the decode leg first.
    pub(crate) fn begin(&self, prompt: &[u32], max_tokens: u32) -> (Answer, Answer) {
        let handoff = Handoff::new();
        let decode = self.decode(&handoff, prompt, max_tokens);
        (self.prefill(&handoff, prompt), decode)
    }

    /// A whole request.
    pub(crate) fn serve(&self, prompt: &[u32], max_tokens: u32) -> (Outcome, Outcome) {
        let (prefill, decode) = self.begin(prompt, max_tokens);
        (end(prefill), end(decode))
    }

    /// Waits until KV is on its way from w0.
    pub(crate) fn until_transferring(&self) {
        self.scene
            .until("a transfer", |scene| scene.worker(0).handoffs.transfers == 1);
    }

    /// Waits until KV is on its way from w0, which keeps its blocks, to w1, which has set some aside.
    pub(crate) fn until_both_hold(&self, blocks: impl RangeBounds<u32>) {
        self.until_transferring();
        self.scene.until("blocks kept here and set aside there", |scene| {
            let held = |worker| scene.worker(worker).ranks[0].load.active_blocks;
            blocks.contains(&held(0)) && blocks.contains(&held(1))
        });
    }

    /// Waits until w0 has so many rooms and w1 has joined so many.
    pub(crate) fn until_rooms(&self, rooms: (u32, u32)) {
        self.scene.until("the rooms", |scene| {
            (scene.worker(0).handoffs.rooms, scene.worker(1).handoffs.rooms) == rooms
        });
    }
}

/// Reads an answer to its end and closes it.
pub(crate) fn end(mut answer: Answer) -> Outcome {
    answer.finish().unwrap()
}

/// A prompt of `len` tokens that no other topic shares.
pub(crate) fn prompt(topic: u32, len: u32) -> Vec<u32> {
    (0..len).map(|at| 300 + topic * 40 + at % 37).collect()
}

/// What the error of a failed answer says.
#[track_caller]
pub(crate) fn error_of(outcome: &Outcome) -> String {
    let error = outcome.error.as_ref().expect("the answer failed");
    assert!(outcome.complete, "a failed answer ends as well");
    error["message"].as_str().unwrap().to_owned()
}
