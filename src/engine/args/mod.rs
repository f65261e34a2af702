//! Engine arguments as JSON, in the two dialects of the peer: flat (Dynamo 1.4.2) and nested (1.6.1).
//!
//! Keys and messages follow the peer's; unknown keys, trailing text and values that no engine can work with are errors
//! that name the key.

mod flat;
mod nested;
#[cfg(test)]
mod tests;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Error as _};

use super::config::{ConfigError, EngineConfig, EngineKind, WorkerRole};

/// Everything that an engine-arguments document says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineArgs {
    /// One rank.
    pub engine: EngineConfig,
    /// Whether `num_gpu_blocks` was given; without it a capacity estimate may choose.
    pub num_gpu_blocks_given: bool,
    /// Data-parallel ranks.
    pub dp_size: u32,
    /// Where durations come from when not from `engine.timing`.
    pub timing: TimingSource,
    /// Seconds from registration to readiness.
    pub startup_time_s: Option<f64>,
    /// Local indexer answers recovery queries.
    pub enable_local_indexer: bool,
    /// Port of the prefill side's rendezvous.
    pub bootstrap_port: Option<u16>,
    /// First port of native KV events.
    pub zmq_kv_events_port: Option<u16>,
    /// First port of their replay.
    pub zmq_replay_port: Option<u16>,
    /// Longest handoff, ms.
    pub handoff_session_timeout_ms: u64,
    /// KV transfer between prefill and decode workers.
    pub transfer: TransferArgs,
    /// Host and disk tiers.
    pub offload: OffloadArgs,
    /// Reasoning span of each answer.
    pub reasoning: Option<Reasoning>,
    /// Recorded answers to give back.
    pub response_replay_trace_path: Option<String>,
    /// Queue policy of the replay router.
    pub router_queue_policy: Option<String>,
    /// Share of the memory for weights and cache (vLLM), static share (SGLang) or share of the free memory (TensorRT-LLM).
    pub memory_fraction: MemoryFraction,
}

/// A model of the hardware outside the engine.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum TimingSource {
    /// `engine.timing`.
    #[default]
    Engine,
    /// A measured profile: an NPZ file or a directory of the profiler.
    Profile(String),
    /// The AIC performance model, by its own arguments.
    Aic(serde_json::Map<String, serde_json::Value>),
}

/// KV transfer between workers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TransferArgs {
    /// Bytes per token.
    pub bytes_per_token: Option<u64>,
    /// GB/s (1e9 bytes); `None` or 0: no delay.
    pub bandwidth_gb_s: Option<f64>,
    /// Which tokens travel.
    pub timing: TransferTiming,
}

/// Tokens that a KV transfer is charged for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransferTiming {
    /// The whole prompt.
    #[default]
    FullPrompt,
    /// What the destination does not have, in whole blocks.
    DestinationMissing,
}

/// Host and disk tiers below the GPU cache, all off by default.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct OffloadArgs {
    /// Blocks of host memory.
    pub num_g2_blocks: Option<u32>,
    /// Blocks of disk.
    pub num_g3_blocks: Option<u32>,
    /// Object storage behind them.
    pub enable_g4_storage: bool,
    /// Blocks per offload batch.
    pub batch_size: Option<u32>,
    /// GB/s per direction.
    pub bandwidths: Bandwidths,
}

/// GB/s between tiers; `None`: the default of the link, 0: instant.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Bandwidths {
    pub g1_to_g2: Option<f64>,
    pub g2_to_g1: Option<f64>,
    pub g2_to_g3: Option<f64>,
    pub g3_to_g2: Option<f64>,
    pub g2_to_g4: Option<f64>,
    pub g4_to_g2: Option<f64>,
}

/// A reasoning span at the start of each answer.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reasoning {
    /// First token of the span.
    pub start_thinking_token_id: u32,
    /// Last token of the span.
    pub end_thinking_token_id: u32,
    /// Share of the answer, 0 to 1.
    pub thinking_ratio: f64,
}

/// Memory shares for the capacity estimate, 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MemoryFraction {
    /// vLLM `gpu_memory_utilization`.
    pub gpu_memory_utilization: Option<f64>,
    /// SGLang `mem_fraction_static`.
    pub mem_fraction_static: Option<f64>,
    /// TensorRT-LLM `free_gpu_memory_fraction`.
    pub free_gpu_memory_fraction: Option<f64>,
}

/// Why a document of engine arguments is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ArgsError {
    /// Not JSON, or not of the form that the key needs.
    #[error("{0}")]
    Form(String),
    /// Values that do not go together or are out of range.
    #[error("{0}")]
    Value(String),
    /// What no engine can work with.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl EngineArgs {
    /// Reads either dialect: a document with `engine` or `dynamo` at the top is nested, any other flat.
    ///
    /// # Errors
    /// [`ArgsError`] names the key.
    pub fn parse(json: &str) -> Result<Self, ArgsError> {
        let document: serde_json::Value = read(json)?;
        if document.get("engine").is_some() || document.get("dynamo").is_some() {
            Self::parse_nested(json)
        } else {
            Self::parse_flat(json)
        }
    }

    /// Reads the flat dialect of Dynamo 1.4.2.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_flat(json: &str) -> Result<Self, ArgsError> {
        read::<flat::Document>(json)?.resolve()
    }

    /// Reads the nested dialect of Dynamo 1.6.1.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_nested(json: &str) -> Result<Self, ArgsError> {
        read::<nested::Document>(json)?.resolve()
    }
}

/// A whole JSON text as `T`, with the path of the key at fault.
fn read<T: DeserializeOwned>(json: &str) -> Result<T, ArgsError> {
    let mut text = serde_json::Deserializer::from_str(json);
    let value = serde_path_to_error::deserialize(&mut text).map_err(|error| ArgsError::Form(error.to_string()))?;
    text.end().map_err(|error| ArgsError::Form(error.to_string()))?;
    Ok(value)
}

/// A key that may be left out but not be null.
fn not_null<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    match Option::<T>::deserialize(from)? {
        Some(value) => Ok(Some(value)),
        None => Err(D::Error::custom("must not be null")),
    }
}

/// Most running requests when the key is left out; its null is no limit.
fn max_num_seqs() -> Option<u32> {
    EngineConfig::default().max_num_seqs
}

/// Token budget when the key is left out; its null is no limit.
fn max_num_batched_tokens() -> Option<u32> {
    EngineConfig::default().max_num_batched_tokens
}

/// Longest handoff unless configured, ms.
const HANDOFF_TIMEOUT_MS: u64 = 300_000;

fn role(worker_type: Option<WorkerRole>) -> WorkerRole {
    worker_type.unwrap_or_default()
}

/// A comma-separated list of chances.
fn accept_rates(list: &str) -> Result<Vec<f64>, ArgsError> {
    let rate = |part: &str| part.trim().parse::<f64>().map_err(|_| part.trim().to_owned());
    list.split(',').map(rate).collect::<Result<_, _>>().map_err(|part| {
        ArgsError::Value(format!(
            "aic_nextn_accept_rates must be a comma-separated list of numbers, got {part:?}"
        ))
    })
}

impl EngineArgs {
    fn validate(&self) -> Result<(), ArgsError> {
        if self.engine.kind != EngineKind::Sglang && self.engine.block_size == 1 {
            return Err(ArgsError::Value("vLLM/TRT-LLM block_size must be at least two".into()));
        }
        self.engine.validate()?;
        let positive = [
            ("dp_size", u64::from(self.dp_size)),
            ("handoff_session_timeout_ms", self.handoff_session_timeout_ms),
        ];
        if let Some((key, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(ConfigError::Zero(key).into());
        }
        let links = &self.offload.bandwidths;
        let non_negative = [
            ("startup_time", self.startup_time_s),
            ("kv_transfer_bandwidth", self.transfer.bandwidth_gb_s),
            ("bandwidth_g1_to_g2_gbps", links.g1_to_g2),
            ("bandwidth_g2_to_g1_gbps", links.g2_to_g1),
            ("bandwidth_g2_to_g3_gbps", links.g2_to_g3),
            ("bandwidth_g3_to_g2_gbps", links.g3_to_g2),
            ("bandwidth_g2_to_g4_gbps", links.g2_to_g4),
            ("bandwidth_g4_to_g2_gbps", links.g4_to_g2),
        ];
        for (key, value) in non_negative {
            if let Some(value) = value.filter(|value| !value.is_finite() || *value < 0.0) {
                return Err(ConfigError::NotARatio { key, value }.into());
            }
        }
        let memory = &self.memory_fraction;
        let shares = [
            ("gpu_memory_utilization", memory.gpu_memory_utilization),
            ("mem_fraction_static", memory.mem_fraction_static),
            ("free_gpu_memory_fraction", memory.free_gpu_memory_fraction),
            (
                "reasoning.thinking_ratio",
                self.reasoning.map(|reasoning| reasoning.thinking_ratio),
            ),
        ];
        for (key, share) in shares {
            if let Some(share) = share.filter(|share| !(0.0..=1.0).contains(share)) {
                return Err(ArgsError::Value(format!("{key} must be between 0 and 1, got {share}")));
            }
        }
        Ok(())
    }
}
