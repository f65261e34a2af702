//! SGLang's scheduler, step by step.

use ghostfleet::engine::sglang::{Candidate, Remaining, Sglang, State, Verdict, retraction_order, retraction_ratio};
use ghostfleet::engine::{
    Engine, EngineConfig, EngineKind, Fidelity, Output, Pass, RadixEviction, SglangConfig, SglangPolicy,
};
use ghostfleet::types::{EngineRequest, HashSalt, RequestId, SimTime, StopRule};
use serde::Deserialize;

use super::sglang_keys::{Event, Key, Names};

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Case {
    Run {
        config: Config,
        requests: Vec<Request>,
        steps: Vec<Step>,
    },
    /// Only the queue's order before each attempt to admit.
    Orders {
        config: Config,
        requests: Vec<Request>,
        orders: Vec<Vec<String>>,
    },
    RetractionOrder {
        rows: Vec<Row>,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    page_size: u32,
    kv_tokens: u32,
    schedule_policy: SglangPolicy,
    chunked_prefill_size: Option<u32>,
    max_prefill_tokens: u32,
    max_running: u32,
    #[serde(default)]
    clip_max_new_tokens: Option<u32>,
    #[serde(default)]
    schedule_conservativeness: Option<f64>,
    #[serde(default)]
    radix_eviction_policy: RadixEviction,
    #[serde(default)]
    tlru_threshold: u32,
    #[serde(default)]
    tlru_next_prompt_estimate: u32,
    #[serde(default)]
    disable_radix_cache: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    id: String,
    arrive_step: u64,
    prompt: Key,
    max_new_tokens: u32,
    #[serde(default)]
    ignore_eos: bool,
    #[serde(default)]
    routing_key: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    #[serde(rename = "step")]
    number: u64,
    #[serde(default, rename = "arrive")]
    _arrive: Vec<String>,
    #[serde(default)]
    order: Option<Vec<String>>,
    #[serde(default)]
    budget: Option<Budget>,
    #[serde(default)]
    adder: Vec<Tried>,
    kind: Kind,
    #[serde(default)]
    decoded: usize,
    #[serde(default)]
    finished: Vec<String>,
    #[serde(default)]
    retracted: Vec<String>,
    #[serde(default)]
    aborted: Vec<String>,
    running: Vec<String>,
    waiting: Vec<String>,
    available: u64,
    evictable: u64,
    protected: u64,
    ratio: f64,
    #[serde(default)]
    events: Vec<Event>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Prefill,
    Decode,
    Idle,
}

/// Tokens in total, of the prefill limit and of the chunk.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Budget(f64, i64, Option<i64>);

impl PartialEq<Remaining> for Budget {
    fn eq(&self, ours: &Remaining) -> bool {
        (self.0 - ours.total_tokens).abs() < 2e-6 && (self.1, self.2) == (ours.input_tokens, ours.chunk_tokens)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tried {
    id: String,
    prefix: u32,
    #[serde(default)]
    continued: bool,
    #[serde(default)]
    result: Option<Said>,
    #[serde(default)]
    refused: bool,
    #[serde(default)]
    extend: Option<u32>,
    #[serde(default)]
    chunked: bool,
    #[serde(default)]
    budget: Option<Budget>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Said {
    Continue,
    NoToken,
    Other,
}

#[derive(Debug, Deserialize)]
struct Row {
    /// Prompt, output and most output tokens.
    running: Vec<(u32, u32, u32)>,
    retract_order: Vec<usize>,
    ratio_if_first_retracted: f64,
}

fn engine(config: &Config) -> Sglang {
    assert!(config.kv_tokens.is_multiple_of(config.page_size));
    let defaults = SglangConfig::default();
    Sglang::from_config(&EngineConfig {
        kind: EngineKind::Sglang,
        fidelity: Fidelity::Real,
        num_gpu_blocks: config.kv_tokens / config.page_size,
        block_size: config.page_size,
        max_num_seqs: Some(config.max_running),
        enable_prefix_caching: !config.disable_radix_cache,
        sglang: SglangConfig {
            schedule_policy: config.schedule_policy,
            max_prefill_tokens: config.max_prefill_tokens,
            chunked_prefill_size: config.chunked_prefill_size,
            clip_max_new_tokens: config.clip_max_new_tokens.unwrap_or(defaults.clip_max_new_tokens),
            schedule_conservativeness: config
                .schedule_conservativeness
                .unwrap_or(defaults.schedule_conservativeness),
            radix_eviction_policy: config.radix_eviction_policy,
            tlru_threshold: config.tlru_threshold,
            tlru_next_prompt_estimate: config.tlru_next_prompt_estimate,
            ..defaults
        },
        ..EngineConfig::default()
    })
    .unwrap()
}

fn engine_request(number: usize, request: &Request) -> EngineRequest {
    let first = 5_000_000 + 1000 * u32::try_from(number).unwrap();
    EngineRequest {
        id: RequestId(number as u64),
        key: number as u64,
        prompt: request.prompt.tokens().into(),
        stop: StopRule {
            max_tokens: Some(request.max_new_tokens),
            ignore_eos: request.ignore_eos,
            ..StopRule::default()
        },
        planned: Some((0..request.max_new_tokens).map(|k| first + k).collect()),
        priority: 0,
        salt: HashSalt::default(),
        routing_key: request.routing_key.as_deref().map(Into::into),
    }
}

/// Passes of a run in which the orders are to come up, the idle ones included.
const MOST_PASSES: u64 = 1000;

fn check_orders(name: &str, config: &Config, requests: &[Request], orders: &[Vec<String>]) {
    let mut engine = engine(config);
    engine.record_schedule(true);
    let mut ours: Vec<Vec<String>> = Vec::new();
    let mut now = SimTime::ZERO;
    for number in 0..MOST_PASSES {
        for (at, request) in requests.iter().enumerate() {
            if request.arrive_step == number {
                engine.submit(engine_request(at, request), now).unwrap();
            }
        }
        let mut pass = Pass::default();
        engine.step_into(now, &mut pass);
        now = pass.ends_at;
        let attempt = engine.attempt().map(|attempt| attempt.order.iter());
        let named = |id: &RequestId| requests[usize::try_from(id.0).unwrap()].id.clone();
        ours.extend(attempt.map(|order| order.map(named).collect()));
    }
    assert_eq!(ours, orders, "{name}");
}

/// One run in progress.
struct Replay<'a> {
    requests: &'a [Request],
    engine: Sglang,
    names: Names,
    now: SimTime,
}

impl Replay<'_> {
    fn named(&self, ids: impl IntoIterator<Item = RequestId>) -> Vec<String> {
        ids.into_iter()
            .map(|id| self.requests[usize::try_from(id.0).unwrap()].id.clone())
            .collect()
    }

    fn step(&mut self, place: &str, expected: &Step) {
        for (number, request) in self.requests.iter().enumerate() {
            if request.arrive_step == expected.number {
                self.engine.submit(engine_request(number, request), self.now).unwrap();
            }
        }
        let before = self.engine.state().running;
        let mut pass = Pass::default();
        let worked = self.engine.step_into(self.now, &mut pass);
        self.now = pass.ends_at;
        self.check_attempt(place, expected);
        self.check_pass(place, expected, worked, &pass, before);
        let State {
            waiting,
            available_tokens,
            evictable_tokens,
            protected_tokens,
            new_token_ratio,
            ..
        } = self.engine.state();
        assert_eq!(self.named(waiting), expected.waiting, "{place}: waiting");
        assert_eq!(
            (available_tokens, evictable_tokens, protected_tokens),
            (expected.available, expected.evictable, expected.protected),
            "{place}: available, evictable, protected"
        );
        assert!(
            (new_token_ratio - expected.ratio).abs() < 2e-9,
            "{place}: ratio {new_token_ratio}"
        );
    }

    fn check_pass(&mut self, place: &str, expected: &Step, worked: bool, pass: &Pass, before: Vec<RequestId>) {
        let (mut finished, mut aborted) = (Vec::new(), Vec::new());
        for output in &pass.outputs {
            match *output {
                Output::Token { id, finish, .. } => finished.extend(finish.map(|_| id)),
                Output::Empty { id, .. } => finished.push(id),
                Output::Rejected { id, .. } => aborted.push(id),
            }
        }
        if expected.kind != Kind::Decode {
            assert_eq!(self.named(before), expected.running, "{place}: running");
        }
        assert_eq!(self.named(finished), expected.finished, "{place}: finished");
        assert_eq!(self.named(aborted), expected.aborted, "{place}: aborted");
        assert_eq!(
            self.named(pass.preempted.iter().copied()),
            expected.retracted,
            "{place}: retracted"
        );
        let scheduled = self.engine.schedule().to_vec();
        let admitted: Vec<(String, u32)> = expected
            .adder
            .iter()
            .filter_map(|tried| Some((tried.id.clone(), tried.extend?)))
            .collect();
        match expected.kind {
            Kind::Prefill => {
                let ours: Vec<(String, u32)> = scheduled
                    .iter()
                    .map(|&(id, tokens)| (self.named([id]).remove(0), tokens))
                    .collect();
                assert_eq!(ours, admitted, "{place}: batch");
            }
            Kind::Decode => {
                assert!(admitted.is_empty());
                let ours = self.named(scheduled.iter().map(|&(id, _)| id));
                assert_eq!(
                    (&ours, ours.len()),
                    (&expected.running, expected.decoded),
                    "{place}: batch"
                );
            }
            Kind::Idle => assert!(scheduled.is_empty(), "{place}: idle"),
        }
        assert_eq!(worked, expected.kind != Kind::Idle, "{place}: idle");
        let events: Vec<Event> = pass.kv_events.iter().map(|event| self.names.event(event)).collect();
        assert_eq!(events, expected.events, "{place}: events");
    }

    fn check_attempt(&self, place: &str, expected: &Step) {
        let attempt = self.engine.attempt();
        assert_eq!(
            attempt.is_some(),
            expected.budget.is_some(),
            "{place}: attempt {attempt:?}"
        );
        let Some(attempt) = attempt else { return };
        if let Some(order) = &expected.order {
            assert_eq!(&self.named(attempt.order.iter().copied()), order, "{place}: order");
        }
        assert_eq!(expected.budget.unwrap(), attempt.budget, "{place}: budget");
        assert_eq!(
            self.named(attempt.candidates.iter().map(|candidate| candidate.id)),
            expected.adder.iter().map(|tried| tried.id.clone()).collect::<Vec<_>>(),
            "{place}: candidates {:?}",
            attempt.candidates
        );
        for (ours, tried) in attempt.candidates.iter().zip(&expected.adder) {
            check_candidate(&format!("{place}: {}", tried.id), ours, tried);
        }
    }
}

fn check_candidate(place: &str, ours: &Candidate, tried: &Tried) {
    assert_eq!(
        (ours.prefix, ours.continued),
        (tried.prefix, tried.continued),
        "{place}: prefix"
    );
    let said = match ours.verdict {
        Verdict::Continue => Said::Continue,
        Verdict::NoToken => Said::NoToken,
        Verdict::Other => Said::Other,
    };
    assert!(
        tried.result.is_none_or(|result| result == said),
        "{place}: {said:?}, not {:?}",
        tried.result
    );
    assert_eq!(ours.admitted.is_none(), tried.refused, "{place}: refused");
    if let Some(admitted) = &ours.admitted {
        assert_eq!(
            (Some(admitted.extend), admitted.chunked),
            (tried.extend, tried.chunked),
            "{place}: part"
        );
        assert_eq!(tried.budget.unwrap(), admitted.budget, "{place}: budget");
    }
}

fn check_row(place: &str, row: &Row) {
    let running: Vec<(u32, u32)> = row
        .running
        .iter()
        .map(|&(prompt, output, _)| (prompt, output))
        .collect();
    let order = retraction_order(&running);
    assert_eq!(order, row.retract_order, "{place}");
    let survivors = order[1..].iter().map(|&index| row.running[index]);
    let ratio = retraction_ratio(survivors.map(|(_, output, most)| (output, most)));
    assert!((ratio - row.ratio_if_first_retracted).abs() < 1e-9, "{place}: {ratio}");
}

#[test]
fn sglang_admission() {
    super::cases::run("sglang-admission", |name, case: Case| match case {
        Case::Run {
            config,
            requests,
            steps,
        } => {
            let mut engine = engine(&config);
            engine.record_schedule(true);
            let mut replay = Replay {
                requests: &requests,
                engine,
                names: Names::default(),
                now: SimTime::ZERO,
            };
            for step in &steps {
                replay.step(&format!("{name}, step {}", step.number), step);
            }
        }
        Case::Orders {
            config,
            requests,
            orders,
        } => check_orders(name, &config, &requests, &orders),
        Case::RetractionOrder { rows } => {
            for (number, row) in rows.iter().enumerate() {
                check_row(&format!("{name}, row {number}"), row);
            }
        }
    });
}
