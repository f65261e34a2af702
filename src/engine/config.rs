//! What an engine is built from.

use serde::{Deserialize, Serialize};

use super::answer::TokenSource;

/// Scheduler family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// vLLM.
    #[default]
    Vllm,
}

impl EngineKind {
    /// Every kind, for tests that run over all engines.
    pub const ALL: [Self; 1] = [Self::Vllm];
}

/// Whose decisions to reproduce where the real engine and the peer's emulator differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fidelity {
    /// The real engine (vLLM 0.32.0).
    #[default]
    Real,
    /// The peer's emulator (Dynamo 1.6.1 engine core).
    Mocker,
}

/// Which unlocked leaf of SGLang's radix cache leaves first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RadixEviction {
    /// Least recently used.
    #[default]
    Lru,
    /// Most recently used.
    Mru,
    /// Least often used.
    Lfu,
    /// Used once before used again, least recently used within.
    Slru,
    /// Created first.
    Fifo,
    /// Created last.
    Filo,
    /// Lowest priority, least recently used within.
    Priority,
}

/// Which running request gives way when blocks run out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PreemptionMode {
    /// The one admitted last.
    #[default]
    Lifo,
    /// The one admitted first.
    Fifo,
}

/// How long passes take.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum TimingConfig {
    /// The peer's built-in polynomials.
    #[default]
    Polynomial,
    /// Constant durations.
    Fixed {
        /// Per pass with prefill work, ms.
        prefill_ms: f64,
        /// Per pass with decode work, ms.
        decode_ms: f64,
    },
}

/// One rank's engine.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Scheduler family.
    pub kind: EngineKind,
    /// Reference where real engine and emulator differ.
    pub fidelity: Fidelity,
    /// KV blocks per rank; with [`Fidelity::Real`] vLLM keeps one of them as its null block.
    pub num_gpu_blocks: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Longest sequence, prompt and answer; `None`: no limit.
    pub max_model_len: Option<u32>,
    /// Most running requests; `None`: no limit.
    pub max_num_seqs: Option<u32>,
    /// Token budget of a pass; `None`: no limit.
    pub max_num_batched_tokens: Option<u32>,
    /// Prefix cache on.
    pub enable_prefix_caching: bool,
    /// A prompt may be computed over several passes.
    pub enable_chunked_prefill: bool,
    /// Victim order.
    pub preemption_mode: PreemptionMode,
    /// vLLM `--scheduling-policy priority` instead of `fcfs`.
    pub priority_scheduling: bool,
    /// vLLM `watermark`: share of the blocks kept free when a waiting request is admitted.
    pub watermark: f64,
    /// vLLM `scheduler_reserve_full_isl`: a waiting request is admitted only when all its known tokens fit, not only
    /// the first chunk.
    pub reserve_full_isl: bool,
    /// vLLM `long_prefill_token_threshold`; 0: off.
    pub long_prefill_token_threshold: u32,
    /// Every duration is divided by this; 0: no modelled delay.
    pub speedup_ratio: f64,
    /// Decode durations are divided by this too; 0: no modelled decode delay.
    pub decode_speedup_ratio: f64,
    /// Durations.
    pub timing: TimingConfig,
    /// Seed of the generated tokens.
    pub seed: u64,
    /// Generated ids are drawn from `token_ids.0 .. token_ids.1`.
    pub token_ids: (u32, u32),
    /// How they are drawn.
    pub token_source: TokenSource,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            kind: EngineKind::default(),
            fidelity: Fidelity::default(),
            num_gpu_blocks: 16_384,
            block_size: 64,
            max_model_len: None,
            max_num_seqs: Some(256),
            max_num_batched_tokens: Some(8192),
            enable_prefix_caching: true,
            enable_chunked_prefill: true,
            preemption_mode: PreemptionMode::default(),
            priority_scheduling: false,
            watermark: 0.0,
            reserve_full_isl: true,
            long_prefill_token_threshold: 0,
            speedup_ratio: 1.0,
            decode_speedup_ratio: 1.0,
            timing: TimingConfig::default(),
            seed: 0,
            token_ids: (1000, 2000),
            token_source: TokenSource::default(),
        }
    }
}

impl EngineConfig {
    /// Checks what no engine can work with.
    ///
    /// # Errors
    /// [`ConfigError`] names the value and what to do about it.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let least_blocks = match self.fidelity {
            Fidelity::Real => 2,
            Fidelity::Mocker => 1,
        };
        if self.num_gpu_blocks < least_blocks {
            return Err(ConfigError::TooFewBlocks {
                given: self.num_gpu_blocks,
                least: least_blocks,
            });
        }
        let positive = [
            ("block_size", Some(self.block_size)),
            ("max_model_len", self.max_model_len),
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
        ];
        if let Some((key, _)) = positive.iter().find(|(_, value)| *value == Some(0)) {
            return Err(ConfigError::Zero(key));
        }
        for (key, value) in [
            ("speedup_ratio", self.speedup_ratio),
            ("decode_speedup_ratio", self.decode_speedup_ratio),
        ] {
            if !value.is_finite() || value < 0.0 {
                return Err(ConfigError::NotARatio { key, value });
            }
        }
        if !(0.0..1.0).contains(&self.watermark) {
            return Err(ConfigError::Watermark(self.watermark));
        }
        if self.token_ids.0 >= self.token_ids.1 {
            return Err(ConfigError::NoTokenIds(self.token_ids.0, self.token_ids.1));
        }
        if let TimingConfig::Fixed { prefill_ms, decode_ms } = self.timing {
            for (key, value) in [("prefill_ms", prefill_ms), ("decode_ms", decode_ms)] {
                if !value.is_finite() || value < 0.0 {
                    return Err(ConfigError::NotARatio { key, value });
                }
            }
        }
        Ok(())
    }
}

/// A value that no engine can work with.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// The pool is too small to hold anything.
    #[error("num_gpu_blocks is {given} but must be at least {least}")]
    TooFewBlocks {
        /// Configured.
        given: u32,
        /// Smallest possible.
        least: u32,
    },
    /// A size or limit of nothing.
    #[error("{0} must be positive")]
    Zero(&'static str),
    /// Not a number that durations can be made with.
    #[error("{key} must be finite and non-negative, got {value}")]
    NotARatio {
        /// Configuration key.
        key: &'static str,
        /// Configured.
        value: f64,
    },
    /// Not a share.
    #[error("watermark must be at least 0 and below 1, got {0}")]
    Watermark(f64),
    /// Nothing to draw from.
    #[error("token_ids {0}..{1} is empty; the end must be above the start")]
    NoTokenIds(u32, u32),
}
