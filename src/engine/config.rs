//! What an engine is built from.

use serde::{Deserialize, Serialize};

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
            long_prefill_token_threshold: 0,
            speedup_ratio: 1.0,
            decode_speedup_ratio: 1.0,
            timing: TimingConfig::default(),
            seed: 0,
            token_ids: (1000, 2000),
        }
    }
}
