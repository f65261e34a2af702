//! A configuration turned into the numbers and choices that the scheduler asks for.

use crate::types::EngineRequest;

use super::super::Rejected;
use super::super::config::{CapacityPolicy, EngineConfig, EngineKind, Fidelity, PreemptionMode, Semantics, WorkerRole};

/// What decides between the variants of the scheduler.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone)]
pub(super) struct Rules {
    /// Decisions of vLLM itself rather than of the reference emulator.
    pub(super) real: bool,
    pub(super) semantics: Semantics,
    pub(super) role: WorkerRole,
    pub(super) block_size: u32,
    /// vLLM keeps one block of its pool as the null block.
    pub(super) usable_blocks: u32,
    /// KV tokens of the whole pool, for utilisation.
    pub(super) capacity_tokens: u64,
    pub(super) max_num_seqs: usize,
    /// Token budget of a pass.
    pub(super) budget: u64,
    /// Longest sequence; a longer one could not be held (or, without chunked prefill, not be computed again).
    pub(super) max_len: u32,
    pub(super) prefix_caching: bool,
    pub(super) chunked_prefill: bool,
    pub(super) victim: Victim,
    pub(super) by_priority: bool,
    /// An admitted request has blocks for its longest end set aside and never gives way.
    pub(super) to_completion: bool,
    /// Even a prompt that is cached as a whole leaves its last token to compute.
    pub(super) keeps_last_token: bool,
    /// Each pass drafts tokens and keeps some, but for a prefill worker, whose one token is drawn in the same way.
    pub(super) speculates: bool,
    /// Drafted tokens per pass.
    pub(super) drafts: u32,
    /// Blocks that an admission leaves free while something runs.
    pub(super) watermark_blocks: u32,
    /// A waiting request is admitted only if all its known tokens fit.
    pub(super) reserve_full_isl: bool,
    /// Most prompt tokens of one request per pass while others are in the system; 0: no limit.
    pub(super) long_prefill_tokens: u32,
    /// That limit is never below an equal share of the budget.
    pub(super) long_prefill_adapts: bool,
    max_model_len: Option<u32>,
}

/// Who gives way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Victim {
    Newest,
    Oldest,
    /// The largest (priority, arrival).
    LeastUrgent,
}

impl Rules {
    pub(super) fn new(config: &EngineConfig) -> Self {
        let vllm = config.kind == EngineKind::Vllm;
        let real = vllm && config.fidelity == Fidelity::Real;
        let to_completion = !vllm && config.capacity_policy == CapacityPolicy::GuaranteedNoEvict;
        let usable_blocks = config.num_gpu_blocks - u32::from(real);
        let by_priority = real && config.priority_scheduling;
        let budget = config.max_num_batched_tokens.map_or(u64::from(u32::MAX), u64::from);
        // The last token needs no block of its own, except where the longest end is set aside.
        let held = u64::from(usable_blocks) * u64::from(config.block_size) + u64::from(!to_completion);
        let max_len = config.max_model_len.map_or(u64::from(u32::MAX), u64::from).min(held);
        let max_len = if real && !config.enable_chunked_prefill {
            max_len.min(budget + 1)
        } else {
            max_len
        };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let watermark_blocks = (config.watermark * f64::from(config.num_gpu_blocks)) as u32;
        Self {
            real,
            semantics: config.semantics,
            role: config.role,
            block_size: config.block_size,
            usable_blocks,
            capacity_tokens: u64::from(config.num_gpu_blocks) * u64::from(config.block_size),
            max_num_seqs: config.max_num_seqs.map_or(usize::MAX, |seqs| seqs as usize),
            budget,
            max_len: u32::try_from(max_len).unwrap_or(u32::MAX),
            prefix_caching: config.enable_prefix_caching,
            chunked_prefill: config.enable_chunked_prefill,
            victim: match config.preemption_mode {
                _ if by_priority => Victim::LeastUrgent,
                PreemptionMode::Lifo => Victim::Newest,
                PreemptionMode::Fifo => Victim::Oldest,
            },
            by_priority,
            to_completion,
            speculates: config.speculation.is_some(),
            drafts: match (&config.speculation, config.role) {
                (Some(speculation), WorkerRole::Aggregated | WorkerRole::Decode) => speculation.nextn,
                (Some(_), WorkerRole::Prefill) | (None, _) => 0,
            },
            keeps_last_token: vllm,
            watermark_blocks: if real { watermark_blocks } else { 0 },
            reserve_full_isl: !real || config.reserve_full_isl,
            long_prefill_tokens: if real { config.long_prefill_token_threshold } else { 0 },
            long_prefill_adapts: config.long_prefill_token_threshold_adaptive,
            max_model_len: config.max_model_len,
        }
    }

    /// Tokens that one request may generate at most on this worker.
    pub(super) fn most_tokens(&self) -> u32 {
        match (self.role, self.semantics) {
            (WorkerRole::Prefill, Semantics::V1_6_1) => 1,
            // Whoever hands it a request says how many; replays of sessions want all of them.
            (WorkerRole::Prefill, Semantics::V1_4_2) | (WorkerRole::Aggregated | WorkerRole::Decode, _) => u32::MAX,
        }
    }

    /// Blocks for `tokens` tokens.
    pub(super) fn blocks(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_size)
    }

    /// Checks at submission: what can never run. The reference emulator refuses long prompts when it comes to admit them.
    pub(super) fn accepts(&self, request: &EngineRequest) -> Result<(), Rejected> {
        let prompt_tokens = request.prompt.len();
        if prompt_tokens == 0 {
            return Err(Rejected::EmptyPrompt);
        }
        if !self.real {
            return Ok(());
        }
        if !self.chunked_prefill && u64::from(prompt_tokens) > self.budget {
            return Err(self.over_budget(prompt_tokens));
        }
        self.fits(prompt_tokens)
    }

    /// A prompt that no pass can compute in one piece.
    pub(super) fn over_budget(&self, prompt_tokens: u32) -> Rejected {
        Rejected::PromptExceedsBudget {
            prompt_tokens,
            budget: u32::try_from(self.budget).unwrap_or(u32::MAX),
        }
    }

    /// Whether a prompt can be held at all.
    pub(super) fn fits(&self, prompt_tokens: u32) -> Result<(), Rejected> {
        if let Some(max_model_len) = self.max_model_len
            && prompt_tokens >= max_model_len
        {
            return Err(Rejected::PromptTooLong {
                prompt_tokens,
                max_model_len,
            });
        }
        let needed_blocks = self.blocks(prompt_tokens.saturating_add(u32::from(self.to_completion)));
        if needed_blocks > self.usable_blocks {
            return Err(Rejected::PoolTooSmall {
                needed_blocks,
                total_blocks: self.usable_blocks,
            });
        }
        Ok(())
    }
}
