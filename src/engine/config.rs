//! What an engine is built from.

mod sglang;
mod tiers;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::answer::TokenSource;
use super::kv::backend::EvictionBackend;
use super::reasoning::Reasoning;
use super::timing::{Profile, SharedTiming};

pub use sglang::{RadixEviction, SglangConfig, SglangPolicy};
pub use tiers::{SharedTier, TierBandwidth, TierConfig, Writes};

/// Scheduler family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// vLLM.
    #[default]
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM.
    Trtllm,
}

impl EngineKind {
    /// Every kind, for tests that run over all engines.
    pub const ALL: [Self; 3] = [Self::Vllm, Self::Sglang, Self::Trtllm];

    /// Its name, as settings and the wire have it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Trtllm => "trtllm",
        }
    }

    /// Tokens per block unless configured.
    pub fn default_block_size(self) -> u32 {
        match self {
            Self::Vllm => 64,
            Self::Sglang => 1,
            Self::Trtllm => 32,
        }
    }
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

/// Release of the peer whose timing rules count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Semantics {
    /// Dynamo 1.6.1: the first token comes with the prefill, decode reads the lengths of the decoding requests.
    #[default]
    #[serde(rename = "1.6.1")]
    V1_6_1,
    /// Dynamo 1.4.2: prefill is followed by a decode step of everybody, which reads all active blocks and takes at least
    /// 1 ms; KV events are visible at the start of a pass.
    #[serde(rename = "1.4.2")]
    V1_4_2,
}

/// What a worker does in a disaggregated deployment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerRole {
    /// Everything.
    #[default]
    Aggregated,
    /// Prompts and one token; no decode time.
    Prefill,
    /// Answers; no prefill time, no KV events.
    Decode,
}

/// TensorRT-LLM `capacity_scheduler_policy`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CapacityPolicy {
    /// A request is admitted only if it can run to its longest end; nobody is ever preempted.
    #[default]
    GuaranteedNoEvict,
    /// As many requests as fit now; the one admitted last gives way when blocks run out.
    MaxUtilization,
}

/// Speculative decoding: each pass drafts some tokens and keeps those up to the first that is not accepted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Speculation {
    /// Drafted tokens per pass, 1 to 5.
    pub nextn: u32,
    /// Chance that draft `i` is accepted when all before it were; shorter lists continue with 0.
    pub accept_rates: Vec<f64>,
    /// Seed of the draws.
    pub seed: u64,
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
    /// Measured durations. Only ever made from points, never read as configuration.
    #[serde(skip)]
    Profile(Arc<Profile>),
    /// A model outside the engine. Never read as configuration either.
    #[serde(skip)]
    Shared(SharedTiming),
}

/// One rank's engine.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Scheduler family.
    pub kind: EngineKind,
    /// Reference where real engine and emulator differ.
    pub fidelity: Fidelity,
    /// Timing rules of the peer's release.
    pub semantics: Semantics,
    /// Part of the work that this rank does.
    pub role: WorkerRole,
    /// Ranks of the worker, which share its prefills out in time.
    pub data_parallel_size: u32,
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
    /// Pool and eviction order of vLLM's blocks.
    pub eviction_backend: EvictionBackend,
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
    /// vLLM `long_prefill_token_threshold_adaptive`: the threshold is at least the budget divided by the requests.
    pub long_prefill_token_threshold_adaptive: bool,
    /// Every duration is divided by this; 0: no modelled delay.
    pub speedup_ratio: f64,
    /// Decode durations are divided by this too; 0: no modelled decode delay.
    pub decode_speedup_ratio: f64,
    /// vLLM: in a data-parallel group prefills start in every n-th pass only while others decode; 1: in each.
    pub prefill_schedule_interval: u32,
    /// SGLang scheduling.
    pub sglang: SglangConfig,
    /// TensorRT-LLM admission.
    pub capacity_policy: CapacityPolicy,
    /// Speculative decoding; `None`: off.
    pub speculation: Option<Speculation>,
    /// Memory for KV below the GPU's; `None`: none.
    pub tiers: Option<TierConfig>,
    /// Durations.
    pub timing: TimingConfig,
    /// Time that every pass takes on top of `timing`, ms.
    pub step_overhead_ms: f64,
    /// Most extra time of a pass, ms; each pass draws its own from 0 up to this.
    pub step_jitter_ms: f64,
    /// Span of reasoning at the start of each answer; `None`: none.
    pub reasoning: Option<Reasoning>,
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
            semantics: Semantics::default(),
            role: WorkerRole::default(),
            data_parallel_size: 1,
            num_gpu_blocks: 16_384,
            block_size: 64,
            max_model_len: None,
            max_num_seqs: Some(256),
            max_num_batched_tokens: Some(8192),
            enable_prefix_caching: true,
            eviction_backend: EvictionBackend::default(),
            enable_chunked_prefill: true,
            preemption_mode: PreemptionMode::default(),
            priority_scheduling: false,
            watermark: 0.0,
            reserve_full_isl: true,
            long_prefill_token_threshold: 0,
            long_prefill_token_threshold_adaptive: false,
            speedup_ratio: 1.0,
            decode_speedup_ratio: 1.0,
            prefill_schedule_interval: 1,
            sglang: SglangConfig::default(),
            capacity_policy: CapacityPolicy::default(),
            speculation: None,
            tiers: None,
            timing: TimingConfig::default(),
            step_overhead_ms: 0.0,
            step_jitter_ms: 0.0,
            reasoning: None,
            seed: 0,
            token_ids: (1000, 2000),
            token_source: TokenSource::default(),
        }
    }
}

impl EngineConfig {
    /// Whether others hear of this rank's cache: decode workers keep theirs to themselves.
    pub fn publishes_kv_events(&self) -> bool {
        self.enable_prefix_caching && self.role != WorkerRole::Decode
    }

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
            ("data_parallel_size", Some(self.data_parallel_size)),
            ("block_size", Some(self.block_size)),
            ("max_model_len", self.max_model_len),
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
        ];
        if let Some((key, _)) = positive.iter().find(|(_, value)| *value == Some(0)) {
            return Err(ConfigError::Zero(key));
        }
        if !self.eviction_backend.accepts_block_size(self.block_size) {
            return Err(ConfigError::LogicalBlockSize(self.block_size));
        }
        for (key, value) in [
            ("speedup_ratio", self.speedup_ratio),
            ("decode_speedup_ratio", self.decode_speedup_ratio),
            ("step_overhead_ms", self.step_overhead_ms),
            ("step_jitter_ms", self.step_jitter_ms),
        ] {
            if !value.is_finite() || value < 0.0 {
                return Err(ConfigError::NotARatio { key, value });
            }
        }
        if !(0.0..1.0).contains(&self.watermark) {
            return Err(ConfigError::Watermark(self.watermark));
        }
        self.validate_kind()?;
        if let Some(reasoning) = self.reasoning
            && !(0.0..=1.0).contains(&reasoning.ratio)
        {
            return Err(ConfigError::ThinkingRatio(reasoning.ratio));
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

impl EngineConfig {
    /// The configuration of one rank of a worker: each rank draws from a stream of its own which drafts it accepts.
    #[must_use]
    pub fn of_rank(&self, worker: u64, rank: u32) -> Self {
        let mut config = self.clone();
        if let Some(speculation) = &mut config.speculation {
            let offset = worker
                .wrapping_mul(u64::from(self.data_parallel_size))
                .wrapping_add(u64::from(rank));
            speculation.seed = speculation.seed.wrapping_add(offset);
        }
        config
    }

    /// Among how many ranks SGLang's prefill chunk is divided: with data-parallel attention the reference emulator gives
    /// each rank its share.
    pub(crate) fn ranks_of_a_chunk(&self) -> u32 {
        match (self.fidelity, self.semantics) {
            (Fidelity::Mocker, Semantics::V1_6_1) => self.data_parallel_size,
            (Fidelity::Mocker, Semantics::V1_4_2) | (Fidelity::Real, _) => 1,
        }
    }

    fn validate_kind(&self) -> Result<(), ConfigError> {
        if let Some(speculation) = &self.speculation {
            if !(1..=5).contains(&speculation.nextn) {
                return Err(ConfigError::Nextn(speculation.nextn));
            }
            if let Some(&rate) = speculation
                .accept_rates
                .iter()
                .find(|rate| !(0.0..=1.0).contains(*rate))
            {
                return Err(ConfigError::AcceptRate(rate));
            }
            #[allow(clippy::float_cmp)]
            if self.decode_speedup_ratio != 1.0 {
                return Err(ConfigError::SpeculationWithSpeedup(self.decode_speedup_ratio));
            }
        }
        self.validate_tiers()?;
        if self.prefill_schedule_interval == 0 {
            return Err(ConfigError::Zero("prefill_schedule_interval"));
        }
        if self.kind != EngineKind::Sglang {
            return Ok(());
        }
        self.validate_sglang()
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
    /// A pool that this engine does not have.
    #[error("SGLang keeps its blocks in a radix tree and has no eviction_backend; leave it out")]
    PoolOfSglang,
    /// Not a size of logical blocks.
    #[error(
        "block_size must be a power of two in 1..=1024 for the eviction backends lineage, lineage_fifo, lru and \
         multi_lru, got {0}; change it or use --eviction-backend native"
    )]
    LogicalBlockSize(u32),
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
    /// Only vLLM offloads KV.
    #[error("host memory for KV (num_g2_blocks, num_host_blocks) needs engine_type vllm; leave it out for others")]
    TiersOfVllm,
    /// Blocks are found below the GPU by their place in the prefix cache.
    #[error("host memory for KV needs prefix caching; drop --no-enable-prefix-caching")]
    TiersWithoutCache,
    /// Blocks from below lack what drafts need.
    #[error("host memory for KV does not go with aic_nextn; leave one of them out")]
    TiersWithDrafts,
    /// Only the native pool knows which of its memory is still read.
    #[error("num_host_blocks needs the native KV pool; drop --eviction-backend, or use --num-g2-blocks")]
    WriteThroughOfNative,
    /// Only workers that do both parts of the work look for blocks below the host (Dynamo 1.6.1).
    #[error(
        "a disk below num_host_blocks (num_g3_blocks, g3_offload) is for aggregated workers; leave it out, or use \
         --num-g2-blocks"
    )]
    DiskOfAggregated,
    /// Shared memory with the rule of Dynamo 1.4.2.
    #[error("memory below the GPU is shared with num_host_blocks only; use that instead of num_g2_blocks")]
    SharedOfWriteThrough,
    /// Ranks do not mean the same shared memory.
    #[error(
        "the {what} that workers share (cluster_shared) has {own} for some of them and {theirs} for others; give them all \
         the same settings of it{hint}"
    )]
    SharedOnOtherTerms {
        /// The tier.
        what: &'static str,
        /// Those of whoever came first.
        theirs: String,
        /// Those of this rank.
        own: String,
        /// What else they have to agree on, if that is it.
        hint: &'static str,
    },
    /// Not a speed or a time.
    #[error("bandwidths between tiers and their latencies must be finite and non-negative")]
    TierBandwidth,
    /// Number of drafted tokens out of range.
    #[error("aic_nextn must be in 1..=5, got {0}")]
    Nextn(u32),
    /// Not a chance.
    #[error("aic_nextn_accept_rates must lie between 0 and 1, got {0}")]
    AcceptRate(f64),
    /// Two models of a faster decode at once.
    #[error("aic_nextn requires decode_speedup_ratio=1.0 because both make decode faster, got {0}")]
    SpeculationWithSpeedup(f64),
    /// No end of a conversation could be done without.
    #[error(
        "tlru needs a threshold above the next prompt's estimate, got {threshold} and {estimate} tokens; raise \
         --sglang-tlru-threshold"
    )]
    TlruWithoutTail {
        /// Tokens that the next prompt may compute.
        threshold: u32,
        /// Tokens that it brings.
        estimate: u32,
    },
    /// Nothing to be shorter by.
    #[error("shortest-prefill-first needs prefix caching; drop --no-enable-prefix-caching or use fcfs")]
    ShortestWithoutCache,
    /// A chunk would end inside a page.
    #[error("sglang.chunked_prefill_size must be divisible by block_size: {chunk} is no multiple of {page}")]
    UnevenChunk {
        /// Chunk size, tokens.
        chunk: u32,
        /// Page size, tokens.
        page: u32,
    },
    /// A chunk divided among ranks leaves nothing for each.
    #[error("sglang.chunked_prefill_size {chunk} is divided among {ranks} ranks; set it to {ranks} or more")]
    SharedChunk {
        /// Chunk size, tokens.
        chunk: u32,
        /// Data-parallel ranks.
        ranks: u32,
    },
    /// Not a share.
    #[error("reasoning.thinking_ratio must be between 0 and 1, got {0}")]
    ThinkingRatio(f64),
    /// Nothing to draw from.
    #[error("token_ids {0}..{1} is empty; the end must be above the start")]
    NoTokenIds(u32, u32),
}
