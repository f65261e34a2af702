//! The scheduler of vLLM, step by step.

use std::collections::{BTreeMap, BTreeSet};

use ghostfleet::engine::{Engine, EngineConfig, Fidelity, Output, Pass, TimingConfig, build};
use ghostfleet::types::{EngineRequest, HashSalt, KvEvent, RequestId, SequenceHash, SimTime, StopRule};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Case {
    config: Config,
    requests: Vec<Request>,
    steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools)] // vLLM's options as they are
struct Config {
    block_size: u32,
    num_gpu_blocks: u32,
    max_num_seqs: u32,
    max_num_batched_tokens: u32,
    max_model_len: u32,
    #[serde(default = "yes")]
    enable_prefix_caching: bool,
    #[serde(default = "yes")]
    enable_chunked_prefill: bool,
    #[serde(default)]
    policy: Policy,
    #[serde(default)]
    long_prefill_token_threshold: u32,
    #[serde(default)]
    long_prefill_token_threshold_adaptive: bool,
    #[serde(default)]
    watermark: f64,
    #[serde(default = "yes")]
    scheduler_reserve_full_isl: bool,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Policy {
    #[default]
    Fcfs,
    Priority,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    id: String,
    arrive_step: u64,
    prompt: Vec<u32>,
    max_tokens: u32,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    abort_step: Option<u64>,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Step {
    #[serde(rename = "step")]
    number: u64,
    scheduled: BTreeMap<String, u32>,
    #[serde(default)]
    new: BTreeMap<String, u32>,
    #[serde(default)]
    resumed: BTreeMap<String, u32>,
    #[serde(default)]
    preempted: Vec<String>,
    #[serde(default)]
    finished: BTreeSet<String>,
    #[serde(default)]
    kv_events: Vec<Event>,
    running: u32,
    waiting: u32,
    free_blocks: u32,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(untagged, deny_unknown_fields)]
enum Event {
    Stored {
        stored: Vec<usize>,
        parent: Option<usize>,
        tokens: u32,
    },
    Removed {
        removed: Vec<usize>,
    },
}

/// Numbers block hashes in order of first sight.
#[derive(Default)]
struct Names(Vec<SequenceHash>);

impl Names {
    fn name(&mut self, hash: SequenceHash) -> usize {
        self.0.iter().position(|&seen| seen == hash).unwrap_or_else(|| {
            self.0.push(hash);
            self.0.len() - 1
        })
    }

    fn event(&mut self, event: &KvEvent, block_size: u32) -> Event {
        match event {
            KvEvent::Stored { parent, blocks } => {
                let parent = parent.map(|hash| self.name(hash));
                Event::Stored {
                    stored: blocks.iter().map(|block| self.name(block.block_hash)).collect(),
                    parent,
                    tokens: u32::try_from(blocks.len()).unwrap() * block_size,
                }
            }
            KvEvent::Removed { block_hashes } => Event::Removed {
                removed: block_hashes.iter().map(|&hash| self.name(hash)).collect(),
            },
            KvEvent::Cleared => panic!("nothing clears the cache"),
        }
    }
}

fn config(config: &Config) -> EngineConfig {
    EngineConfig {
        fidelity: Fidelity::Real,
        num_gpu_blocks: config.num_gpu_blocks,
        block_size: config.block_size,
        max_model_len: Some(config.max_model_len),
        max_num_seqs: Some(config.max_num_seqs),
        max_num_batched_tokens: Some(config.max_num_batched_tokens),
        enable_prefix_caching: config.enable_prefix_caching,
        enable_chunked_prefill: config.enable_chunked_prefill,
        priority_scheduling: config.policy == Policy::Priority,
        long_prefill_token_threshold: config.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive: config.long_prefill_token_threshold_adaptive,
        watermark: config.watermark,
        reserve_full_isl: config.scheduler_reserve_full_isl,
        timing: TimingConfig::Fixed {
            prefill_ms: 1.0,
            decode_ms: 1.0,
        },
        ..EngineConfig::default()
    }
}

fn engine_request(id: usize, request: &Request) -> EngineRequest {
    EngineRequest {
        id: RequestId(id as u64),
        key: id as u64,
        prompt: request.prompt.as_slice().into(),
        stop: StopRule {
            max_tokens: Some(request.max_tokens),
            ..StopRule::default()
        },
        planned: Some((0..request.max_tokens).map(|n| 101 + n).collect()),
        priority: request.priority,
        salt: HashSalt::default(),
        routing_key: None,
    }
}

/// What our engine did in one step, in the form of the recording.
fn observed(step: u64, engine: &dyn Engine, pass: &Pass, case: &Case, names: &mut Names) -> Step {
    let name = |id: RequestId| case.requests[usize::try_from(id.0).unwrap()].id.clone();
    let admitted = |again: bool| {
        let of_kind = pass.admissions.iter().filter(|admission| admission.again == again);
        of_kind
            .map(|admission| (name(admission.id), admission.cached_tokens))
            .collect()
    };
    let load = engine.load();
    Step {
        number: step,
        scheduled: engine
            .schedule()
            .iter()
            .map(|&(id, tokens)| (name(id), tokens))
            .collect(),
        new: admitted(false),
        resumed: admitted(true),
        preempted: pass.preempted.iter().copied().map(name).collect(),
        finished: pass
            .outputs
            .iter()
            .filter_map(|output| match *output {
                Output::Token { id, finish, .. } => finish.map(|_| name(id)),
                Output::Empty { id, .. } => Some(name(id)),
                Output::Rejected { .. } => None,
            })
            .collect(),
        kv_events: pass
            .kv_events
            .iter()
            .map(|event| names.event(event, case.config.block_size))
            .collect(),
        running: load.running,
        waiting: load.waiting,
        free_blocks: load.total_blocks - load.active_blocks,
    }
}

fn check(name: &str, case: &Case) {
    let mut engine = build(&config(&case.config)).unwrap();
    engine.record_schedule(true);
    let mut names = Names::default();
    let mut now = SimTime::ZERO;
    // Equal priorities and arrivals are served in the order of the ids' text.
    let mut arrivals: Vec<usize> = (0..case.requests.len()).collect();
    if case.config.policy == Policy::Priority {
        arrivals.sort_by(|&a, &b| case.requests[a].id.cmp(&case.requests[b].id));
    }
    for expected in &case.steps {
        for &at in arrivals
            .iter()
            .filter(|&&at| case.requests[at].arrive_step == expected.number)
        {
            engine.submit(engine_request(at, &case.requests[at]), now).unwrap();
        }
        for (at, request) in case.requests.iter().enumerate() {
            if request.abort_step == Some(expected.number) {
                engine.cancel(RequestId(at as u64), now);
            }
        }
        let pass = engine.step(now).unwrap_or_default();
        let step = observed(expected.number, engine.as_ref(), &pass, case, &mut names);
        assert_eq!(&step, expected, "{name}, step {}", expected.number);
        now = now.max(pass.ends_at).after_ms(1e-6);
    }
    let load = engine.load();
    let left = case.steps.last().map_or((0, 0), |step| (step.running, step.waiting));
    assert_eq!((load.running, load.waiting), left, "{name}");
}

#[test]
fn vllm_scheduler() {
    super::cases::run("vllm-scheduler", |name, case: Case| check(name, &case));
}
