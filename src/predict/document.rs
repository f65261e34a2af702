//! The YAML form of a prediction. Keys and defaults are those of Dynamo 1.6.1's `aisimulate predict`; unknown keys are
//! errors. What says its `type` is an enum here, whose name [`super::read`] takes out of the mapping.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use super::planner::{LoadPredictor, Planner, PlannerPolicy, PlannerTarget};

/// A whole document.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// What comes.
    #[serde(default)]
    pub traffic: Traffic,
    /// Who serves it.
    pub engine: Engine,
    /// Who decides where it goes.
    pub router: Option<Router>,
    /// Who scales.
    pub planner: Option<Planner>,
    /// What is good service.
    pub evaluation: Option<Evaluation>,
}

/// What comes.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Traffic {
    /// Requests.
    pub source: Source,
    /// Pace.
    pub load: Load,
    /// End.
    pub stop: Stop,
}

/// Requests.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Source {
    /// Requests with nothing in common.
    Synthetic {
        /// Prompt tokens.
        #[serde(default = "input_tokens")]
        input_tokens: u32,
        /// Tokens to generate.
        #[serde(default = "output_tokens")]
        output_tokens: u32,
    },
    /// Sessions of several turns.
    SyntheticSession {
        /// Prompt tokens of each turn.
        #[serde(default = "input_tokens")]
        new_input_tokens_per_turn: u32,
        /// Tokens to generate in each turn.
        #[serde(default = "output_tokens")]
        output_tokens_per_turn: u32,
        /// The rest.
        #[serde(default)]
        session: Session,
    },
    /// A recorded workload.
    Trace {
        /// Files.
        paths: Vec<PathBuf>,
        /// Form.
        #[serde(default)]
        format: Format,
        /// Tokens per hash id.
        block_size: Option<u32>,
        /// What nested times of Weka traces count from.
        nested_timestamp_basis: Option<NestedBasis>,
    },
}

impl Default for Source {
    fn default() -> Self {
        Self::Synthetic {
            input_tokens: input_tokens(),
            output_tokens: output_tokens(),
        }
    }
}

fn input_tokens() -> u32 {
    1024
}

fn output_tokens() -> u32 {
    128
}

/// Turns of a session.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Session {
    /// Turns, at least 2.
    pub turns: u32,
    /// Share of each prompt that a group has in common.
    pub shared_prefix_ratio: f64,
    /// Such groups.
    pub prefix_groups: u32,
    /// Wait between turns, ms.
    pub inter_turn_delay_ms: f64,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            turns: 4,
            shared_prefix_ratio: 0.0,
            prefix_groups: 0,
            inter_turn_delay_ms: 0.0,
        }
    }
}

/// Form of a trace.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum Format {
    #[default]
    #[serde(rename = "mooncake")]
    Mooncake,
    #[serde(rename = "mooncake-delta")]
    MooncakeDelta,
    #[serde(rename = "agentic_mooncake")]
    AgenticMooncake,
    #[serde(rename = "applied_compute_agentic")]
    AppliedComputeAgentic,
    #[serde(rename = "dynamo")]
    Dynamo,
    #[serde(rename = "weka")]
    Weka,
}

/// What nested times of Weka traces count from.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NestedBasis {
    Auto,
    Absolute,
    Relative,
}

/// Pace.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Load {
    /// So many at a time.
    Concurrency {
        /// Requests, or sessions.
        #[serde(default = "ten")]
        concurrency: usize,
    },
    /// Exponential gaps.
    Poisson {
        /// Mean rate.
        requests_per_second: Option<f64>,
        /// Mean rate of sessions.
        sessions_per_second: Option<f64>,
        /// Of the gaps.
        #[serde(default = "forty_two")]
        seed: u64,
    },
    /// Even gaps.
    ConstantRate {
        /// Rate.
        requests_per_second: Option<f64>,
        /// Rate of sessions.
        sessions_per_second: Option<f64>,
    },
    /// As recorded.
    TraceTimestamps {
        /// Divides times and waits.
        #[serde(default = "one")]
        speedup: f64,
        /// Lanes that plays of agentic traces are dealt to.
        agentic_lanes: Option<usize>,
    },
    /// As many at a time as fill this share of the KV cache; for recommendations.
    KvCapacityFraction {
        /// Share, above 0.
        fraction: f64,
    },
}

impl Default for Load {
    fn default() -> Self {
        Self::Concurrency { concurrency: ten() }
    }
}

fn ten() -> usize {
    10
}

fn forty_two() -> u64 {
    42
}

fn one() -> f64 {
    1.0
}

/// End. Without any count: 100 requests or sessions.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Stop {
    /// Requests.
    pub requests: Option<u32>,
    /// Sessions.
    pub sessions: Option<u32>,
    /// Requests per unit of concurrency or rate.
    pub requests_per_load_unit: Option<f64>,
    /// Sessions per unit of concurrency or rate.
    pub sessions_per_load_unit: Option<f64>,
    /// Virtual time, s; traces only.
    pub max_virtual_time_seconds: Option<f64>,
}

/// Who serves.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    /// One pool or two.
    #[serde(default)]
    pub mode: Mode,
    /// Directory or name of a model; a label where there are no measurements of GPUs.
    pub model: String,
    /// GPU system, as `h200_sxm`; a label likewise.
    pub hardware: String,
    /// Whose scheduler.
    #[serde(default)]
    pub backend: Backend,
    /// Version of the measurements; a label likewise.
    pub backend_version: Option<String>,
    /// Longest sequence, tokens.
    #[serde(default)]
    pub context_length: ContextLength,
    /// Pools.
    #[serde(default)]
    pub workers: Workers,
    /// From prefill to decode workers.
    pub kv_transfer: Option<KvTransfer>,
}

/// One pool or two.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    #[default]
    Aggregated,
    Disaggregated,
}

/// Whose scheduler.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    #[default]
    Vllm,
    Sglang,
    Trtllm,
}

/// Longest sequence: `max` or tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(from = "ContextLengthForm")]
pub enum ContextLength {
    /// No bound.
    #[default]
    Max,
    /// Tokens.
    Tokens(u32),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "`max` or a number of tokens")]
enum ContextLengthForm {
    Word(MaxWord),
    Tokens(u32),
}

#[derive(Deserialize)]
enum MaxWord {
    #[serde(rename = "max")]
    Max,
}

impl From<ContextLengthForm> for ContextLength {
    fn from(form: ContextLengthForm) -> Self {
        match form {
            ContextLengthForm::Word(MaxWord::Max) => Self::Max,
            ContextLengthForm::Tokens(tokens) => Self::Tokens(tokens),
        }
    }
}

/// Pools of workers.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workers {
    pub aggregated: Option<Worker>,
    pub prefill: Option<Worker>,
    pub decode: Option<Worker>,
}

/// One pool.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Worker {
    pub parallelism: Parallelism,
    pub scheduler: Scheduler,
    pub kv_cache: KvCache,
    pub timing: Timing,
    /// From a scaling decision to the first request, s.
    pub startup_seconds: f64,
}

/// Copies of a model and how many GPUs each takes.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Parallelism {
    pub replicas: u32,
    pub tensor: u32,
    pub pipeline: u32,
    pub attention_data: u32,
    pub moe_tensor: u32,
    pub moe_expert: u32,
}

impl Default for Parallelism {
    fn default() -> Self {
        Self {
            replicas: 1,
            tensor: 1,
            pipeline: 1,
            attention_data: 1,
            moe_tensor: 1,
            moe_expert: 1,
        }
    }
}

/// Limits of a batch.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scheduler {
    /// 8192 unless given.
    pub max_batched_tokens: Option<u32>,
    /// 256 unless given; 1 for prefill workers.
    pub max_sequences: Option<u32>,
}

/// KV cache of a worker.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KvCache {
    /// Tokens per block: 64 for vLLM, 1 for SGLang, 32 for TensorRT-LLM.
    pub block_size: Option<u32>,
    /// Whether prompts share blocks.
    pub prefix_caching: bool,
    /// For transfers.
    pub bytes_per_token: Bytes,
    /// Blocks.
    pub capacity: Capacity,
}

impl Default for KvCache {
    fn default() -> Self {
        Self {
            block_size: None,
            prefix_caching: true,
            bytes_per_token: Bytes::default(),
            capacity: Capacity::default(),
        }
    }
}

/// `auto` or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(from = "BytesForm")]
pub struct Bytes(pub Option<u64>);

#[derive(Deserialize)]
#[serde(untagged, expecting = "`auto` or a number of bytes")]
enum BytesForm {
    Word(AutoWord),
    Bytes(u64),
}

#[derive(Deserialize)]
enum AutoWord {
    #[serde(rename = "auto")]
    Auto,
}

impl From<BytesForm> for Bytes {
    fn from(form: BytesForm) -> Self {
        match form {
            BytesForm::Word(AutoWord::Auto) => Self(None),
            BytesForm::Bytes(bytes) => Self(Some(bytes)),
        }
    }
}

/// Blocks of a KV cache.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Capacity {
    /// The engine's default number.
    Default {
        /// Of the GPU; changes nothing where there are no measurements of it.
        memory_fraction: Option<f64>,
    },
    /// A given number.
    Fixed {
        /// Blocks.
        blocks: u32,
    },
}

impl Default for Capacity {
    fn default() -> Self {
        Self::Default { memory_fraction: None }
    }
}

/// How long passes take.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Timing {
    /// Those of measured GPUs, or the built-in polynomials where there are no measurements.
    Default {},
    /// The built-in polynomials.
    Polynomial {},
    /// Always the same.
    Fixed {
        /// A pass with prompts, ms.
        prefill_ms: f64,
        /// A pass with answers, ms.
        decode_ms: f64,
    },
}

impl Default for Timing {
    fn default() -> Self {
        Self::Default {}
    }
}

/// From prefill to decode workers.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KvTransfer {
    /// Bytes per token.
    pub bytes_per_token: Bytes,
    /// GB/s; none: no delay.
    pub bandwidth_gb_per_second: Option<f64>,
    /// What travels.
    pub timing_mode: TransferMode,
}

/// What travels.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TransferMode {
    #[default]
    DestinationMissing,
    FullPrompt,
}

/// Who decides where requests go.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Router {
    /// How.
    pub policy: RouterPolicy,
    /// Of prefill times.
    #[serde(default)]
    pub prefill_load_model: PrefillLoadModel,
    /// Weight of cached blocks.
    pub overlap_score_credit: Option<f64>,
    /// Weight of prefill work.
    pub prefill_load_scale: Option<f64>,
    /// Of the choice; 0: always the cheapest.
    pub temperature: Option<f64>,
}

/// How requests are routed.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouterPolicy {
    RoundRobin,
    KvRouter,
}

/// Model of prefill times inside the router.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum PrefillLoadModel {
    None {},
    Ais {},
    Aic {},
}

impl Default for PrefillLoadModel {
    fn default() -> Self {
        Self::None {}
    }
}

/// What is measured.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Evaluation {
    /// Bounds of good service.
    pub sla: Option<SlaBounds>,
}

/// Bounds of good service: first token and gaps, or the whole request.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SlaBounds {
    pub ttft_ms: Option<f64>,
    pub itl_ms: Option<f64>,
    pub e2e_ms: Option<f64>,
}
