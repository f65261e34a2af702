//! A configuration turned into the numbers and choices that the scheduler asks for.

use crate::types::EngineRequest;

use super::super::Rejected;
use super::super::config::{EngineConfig, Fidelity, RadixEviction, Semantics, SglangPolicy, WorkerRole};

/// What SGLang multiplies its conservativeness by with data-parallel attention.
const SHARED_CONSERVATIVENESS: f64 = 0.3;

/// What decides between the variants of the scheduler.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    fidelity: Fidelity,
    semantics: Semantics,
    role: WorkerRole,
    /// Tokens per page.
    pub(super) page: u32,
    /// Pages of the pool.
    pub(super) pages: u32,
    pub(super) max_running: usize,
    /// Prompt tokens per prefill pass, soft.
    pub(super) prefill_tokens: i64,
    /// Prompt tokens per prefill pass, hard; `None`: prompts are not cut.
    pub(super) chunk_tokens: Option<i64>,
    /// Most output tokens that an admission sets aside per request.
    pub(super) clip: u32,
    pub(super) prefix_caching: bool,
    /// Changes of the cache are told.
    pub(super) publishes: bool,
    pub(super) policy: SglangPolicy,
    pub(super) eviction: RadixEviction,
    /// `tlru`: pages at the end of a conversation that may be computed again.
    pub(super) tail: u32,
    /// How much of the outputs still to come an admission sets aside at first.
    pub(super) conservativeness: f64,
    /// Drafted tokens per decode step.
    pub(super) drafts: u32,
    /// Passes without prefill after one with.
    pub(super) prefill_interval: u32,
    max_model_len: Option<u32>,
}

impl Rules {
    pub(super) fn new(config: &EngineConfig) -> Self {
        let sglang = &config.sglang;
        let real = config.fidelity == Fidelity::Real;
        // Dynamo 1.4.2 reuses prefixes in any case.
        let prefix_caching = config.enable_prefix_caching || (!real && config.semantics == Semantics::V1_4_2);
        // Without a prefix cache there is nothing to sort by.
        let by_cache = match sglang.schedule_policy {
            SglangPolicy::Lpm | SglangPolicy::DfsWeight | SglangPolicy::Hrrn | SglangPolicy::ShortestPrefillFirst => {
                true
            }
            SglangPolicy::Fcfs | SglangPolicy::Lof | SglangPolicy::Random | SglangPolicy::RoutingKey => false,
        };
        let policy = if by_cache && !prefix_caching {
            SglangPolicy::Fcfs
        } else {
            sglang.schedule_policy
        };
        let ranks = config.ranks_of_a_chunk();
        let share = if ranks > 1 { SHARED_CONSERVATIVENESS } else { 1.0 };
        Self {
            conservativeness: sglang.schedule_conservativeness * share,
            drafts: match config.role {
                WorkerRole::Prefill => 0,
                WorkerRole::Aggregated | WorkerRole::Decode => {
                    config.speculation.as_ref().map_or(0, |speculation| speculation.nextn)
                }
            },
            fidelity: config.fidelity,
            semantics: config.semantics,
            role: config.role,
            page: config.block_size,
            pages: config.num_gpu_blocks,
            max_running: config.max_num_seqs.map_or(usize::MAX, |seqs| seqs as usize),
            prefill_tokens: i64::from(sglang.max_prefill_tokens),
            chunk_tokens: sglang
                .chunked_prefill_size
                .filter(|_| config.enable_chunked_prefill)
                .map(|chunk| i64::from(chunk / ranks)),
            clip: sglang.clip_max_new_tokens,
            prefix_caching,
            publishes: prefix_caching && config.role != WorkerRole::Decode,
            policy,
            eviction: if real {
                sglang.radix_eviction_policy
            } else {
                RadixEviction::Lru
            },
            tail: sglang.tlru_threshold.saturating_sub(sglang.tlru_next_prompt_estimate) / config.block_size,
            prefill_interval: sglang.prefill_decode_interval,
            max_model_len: config.max_model_len,
        }
    }

    pub(super) fn is_real(&self) -> bool {
        self.fidelity == Fidelity::Real
    }

    /// Where the new-token ratio starts at most.
    pub(super) fn highest_ratio(&self) -> f64 {
        if self.is_real() { 1.0 } else { f64::INFINITY }
    }

    /// Each decode step drafts tokens and keeps some.
    pub(super) fn speculates(&self) -> bool {
        self.drafts > 0
    }

    /// Dynamo 1.4.2: a pass prefills and then decodes, with those whose prompt has just ended.
    pub(super) fn decodes_at_once(&self) -> bool {
        !self.is_real() && self.semantics == Semantics::V1_4_2
    }

    /// A rank in which nothing can run has empty passes as long as something waits; those of Dynamo 1.4.2 have none.
    pub(super) fn passes_idle(&self) -> bool {
        self.semantics == Semantics::V1_6_1
    }

    /// Tokens that one request may generate at most on this worker.
    pub(super) fn most_tokens(&self) -> u32 {
        match (self.role, self.semantics) {
            (WorkerRole::Prefill, Semantics::V1_6_1) => 1,
            // Whoever hands it a request says how many; replays of sessions want all of them.
            (WorkerRole::Prefill, Semantics::V1_4_2) | (WorkerRole::Aggregated | WorkerRole::Decode, _) => u32::MAX,
        }
    }

    /// Prompt tokens that a pass takes at most.
    pub(super) fn pass_tokens(&self) -> u32 {
        let most = self.chunk_tokens.unwrap_or(i64::MAX).min(self.prefill_tokens);
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    /// Pages for `tokens` tokens.
    pub(super) fn pages(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.page)
    }

    /// `tokens` rounded up to whole pages.
    pub(super) fn ceil(&self, tokens: u32) -> i64 {
        i64::from(self.pages(tokens)) * i64::from(self.page)
    }

    /// Tokens that the pool holds.
    pub(super) fn capacity_tokens(&self) -> u64 {
        u64::from(self.pages) * u64::from(self.page)
    }

    /// Known tokens of a decoding request without a place in the pool: SGLang's newest token has none before it is
    /// computed, the emulator's has one at once.
    pub(super) fn lag(&self) -> u32 {
        u32::from(self.is_real())
    }

    /// Whether a request that never ends by eos is admitted by simulating who frees what when, instead of by sums.
    pub(super) fn simulates(&self, ignore_eos: bool) -> bool {
        self.is_real() && ignore_eos && !self.prefix_caching
    }

    /// Most tokens that a new request can generate: SGLang what an empty pool admits, the emulator what the pool holds.
    /// `None`: not even none.
    fn most_new(&self, prompt: u32, ignore_eos: bool) -> Option<u32> {
        let capacity = i64::try_from(self.capacity_tokens()).unwrap_or(i64::MAX);
        let page = i64::from(self.page);
        let most = if self.simulates(ignore_eos) {
            capacity - self.ceil(prompt) - page - 2
        } else if self.is_real() {
            capacity - i64::from(prompt) - page - 1
        } else {
            let left = capacity - i64::from(prompt);
            // A first token that is the last takes no place, unless a decode step brings it.
            let decoded = self.decodes_at_once() || self.role == WorkerRole::Decode;
            if left == 0 && !decoded { 1 } else { left }
        };
        u32::try_from(most).ok()
    }

    /// How many tokens a request may generate at most.
    ///
    /// # Errors
    /// [`Rejected`] when it can never run. Long answers are cut to what the pool holds, for which the emulator would wait
    /// for ever.
    pub(super) fn max_new(&self, request: &EngineRequest) -> Result<u32, Rejected> {
        let prompt = request.prompt.len();
        if prompt == 0 {
            return Err(Rejected::EmptyPrompt);
        }
        let room = match self.max_model_len {
            Some(max_model_len) if prompt >= max_model_len => {
                return Err(Rejected::PromptTooLong {
                    prompt_tokens: prompt,
                    max_model_len,
                });
            }
            Some(max_model_len) => max_model_len - prompt,
            None => u32::MAX,
        };
        let room = room.min(self.most_tokens());
        let ignore_eos = request.stop.ignore_eos;
        let Some(most) = self.most_new(prompt, ignore_eos) else {
            return Err(self.too_large(prompt));
        };
        let planned = request.planned.as_ref().map(|planned| planned.len());
        let wanted = planned.map_or(request.stop.max_tokens, |length| u32::try_from(length).ok());
        let Some(wanted) = wanted else {
            return Ok(room.min(most));
        };
        let wanted = wanted.min(room);
        // SGLang sets no more aside than its clip, so that a longer answer may run out of memory.
        let reserved = if self.is_real() && !self.simulates(ignore_eos) {
            wanted.min(self.clip)
        } else {
            wanted
        };
        match (reserved <= most, most) {
            (true, _) => Ok(wanted),
            (false, 0) => Err(self.too_large(prompt)),
            (false, most) => Ok(most),
        }
    }

    fn too_large(&self, prompt: u32) -> Rejected {
        Rejected::PoolTooSmall {
            needed_blocks: self.pages(prompt) + 1,
            total_blocks: self.pages,
        }
    }
}
