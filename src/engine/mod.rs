//! Engines: pure state machines of one data-parallel rank.
//!
//! An engine takes `now` and an input and says what happens and when. It never waits, reads a clock, opens a socket or
//! draws an unseeded random number; the live rank actor and the replay clock drive the same code.

#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod answer;
mod calendar;
mod config;
#[cfg(test)]
mod cost;
mod forward;
mod group;
mod handoff;
mod kv;
mod reasoning;
mod seeded;
mod sequence;
pub mod sglang;
mod slab;
mod speculation;
mod tier_use;
mod timing;
mod totals;
mod vllm;

use std::sync::Arc;

use crate::types::{
    EngineRequest, FinishReason, HashSalt, KvEvent, Load, LowerTier, RequestId, SequenceHash, SimTime, StoredBlock,
    TierEvent, Token,
};

pub use answer::TokenSource;
pub use config::{
    CapacityPolicy, ConfigError, EngineConfig, EngineKind, Fidelity, PreemptionMode, RadixEviction, Semantics,
    SglangConfig, SglangPolicy, SharedTier, Speculation, TierBandwidth, TierConfig, TimingConfig, WorkerRole, Writes,
};
pub use forward::{Forward, Lengths};
pub use group::{Group, GroupPass};
pub(crate) use group::{Member, step_together};
pub use handoff::{Handoff, HandoffFact, HandoffRefused, KvTransfer};
pub use kv::backend::{EvictionBackend, G1Backend};
pub use kv::logical::{BlockIdentity, LogicalPool, Registered};
pub use kv::tiers::SharedMemory;
pub use reasoning::Reasoning;
pub use seeded::SeededTokens;
pub use tier_use::{DiskUse, HostUse, TransferUse};
pub use timing::{
    DecodeBatch, PassTiming, PrefillBatch, Profile, ProfileError, ProfilePoints, SharedTiming, TimingOfRanks,
};

/// The timing model that a configuration names.
pub fn timing_of(config: &TimingConfig) -> Arc<dyn PassTiming> {
    timing::build(config)
}

/// An engine for `config` with the timing model that it names.
///
/// # Errors
/// [`ConfigError`] names the value that no engine can work with.
pub fn build(config: &EngineConfig) -> Result<Box<dyn Engine>, ConfigError> {
    config.validate()?;
    build_with(config, timing::build(&config.timing))
}

/// Like [`build`] with a timing model from outside; `config.timing` is not used.
///
/// # Errors
/// As [`build`].
pub fn build_with(config: &EngineConfig, timing: Arc<dyn PassTiming>) -> Result<Box<dyn Engine>, ConfigError> {
    build_among(config, timing, &SharedMemory::new())
}

/// Like [`build`], of a rank that uses `memory` together with all others that are built with it, as far as the
/// configuration says so.
///
/// # Errors
/// As [`build`], and if the others use it on other terms.
pub fn build_in(config: &EngineConfig, memory: &SharedMemory) -> Result<Box<dyn Engine>, ConfigError> {
    config.validate()?;
    build_among(config, timing::build(&config.timing), memory)
}

/// Whether ranks with these configurations can share what they are configured to share.
///
/// # Errors
/// [`ConfigError::SharedOnOtherTerms`] says what they disagree on; and as [`build`].
pub fn check_sharing<'a>(configs: impl IntoIterator<Item = &'a EngineConfig>) -> Result<(), ConfigError> {
    let memory = SharedMemory::new();
    for config in configs {
        if config.tiers.is_some_and(|tiers| tiers.is_shared()) {
            build_in(config, &memory)?;
        }
    }
    Ok(())
}

fn build_among(
    config: &EngineConfig,
    timing: Arc<dyn PassTiming>,
    memory: &SharedMemory,
) -> Result<Box<dyn Engine>, ConfigError> {
    config.validate()?;
    match config.kind {
        EngineKind::Vllm | EngineKind::Trtllm => Ok(Box::new(vllm::Vllm::new(config, timing, memory)?)),
        EngineKind::Sglang => Ok(Box::new(sglang::Sglang::new(config, timing))),
    }
}

/// Scheduler, KV pool and timing of one rank.
pub trait Engine: Handoff + Send {
    /// Queues a request. It is seen by the next pass.
    ///
    /// # Errors
    /// [`Rejected`] when the request can never run; nothing is kept then.
    fn submit(&mut self, request: EngineRequest, now: SimTime) -> Result<(), Rejected>;

    /// Drops a request and frees its blocks at once, also in the middle of a pass; its outputs of the running pass are
    /// void. Returns whether it was known.
    fn cancel(&mut self, id: RequestId, now: SimTime) -> bool;

    /// Computes the next pass. `None`: nothing can run until the next `submit` or `cancel`. The caller delivers
    /// `outputs` and `kv_events` at `ends_at` and calls `step` again then, never earlier.
    fn step(&mut self, now: SimTime) -> Option<Pass> {
        let mut pass = Pass::default();
        self.step_into(now, &mut pass).then_some(pass)
    }

    /// Like [`Engine::step`], into a pass whose buffers are used again. `false`: nothing can run, and `pass` holds nothing
    /// but what waits.
    fn step_into(&mut self, now: SimTime, pass: &mut Pass) -> bool;

    /// Runs the next pass if it is quiet, that is, if every running request gets one token and nothing else changes
    /// (no admission, block, event or end), and returns its end; costs O(1) because nobody is told their token. `None`
    /// leaves everything as it was: use [`Engine::step`]. [`Engine::schedule`] is not kept up.
    fn step_quiet(&mut self, now: SimTime) -> Option<SimTime>;

    /// Load right now.
    fn load(&self) -> Load;

    /// Every block that the prefix cache would answer for, parents before children, with its parent. With the eviction
    /// backends `lru` and `multi_lru` a block may outlive its parent. Nothing on decode workers, whose cache changes are
    /// not published either.
    fn cached_blocks(&self) -> Vec<(Option<SequenceHash>, StoredBlock)>;

    /// Every block that can be read below the GPU: where, its parent, itself.
    fn lower_blocks(&self) -> Vec<(LowerTier, Option<SequenceHash>, StoredBlock)> {
        Vec::new()
    }

    /// When there will be something to tell, or somebody may run, although nothing could at the last step: to be stepped
    /// then. `None`: never.
    fn wakes_at(&self) -> Option<SimTime> {
        None
    }

    /// Whether somebody waits whom the next pass would try, or runs.
    fn is_ready(&self) -> bool {
        let load = self.load();
        load.running + load.waiting > 0
    }

    /// Blocks in use only because they are being copied to memory that others use: cached, and no request's.
    fn copied_blocks(&self) -> u32 {
        0
    }

    /// What its own disk has done; `None` without one, or if others use it, too.
    fn own_disk(&self) -> Option<DiskUse> {
        None
    }

    /// Whether something of its own is on its way between its memories, or is over without its having looked.
    fn is_moving(&self) -> bool {
        false
    }

    /// From now on nobody is told of changes below the GPU ([`Pass::tier_events`]), and nothing wakes for that.
    fn mute_lower(&mut self) {}

    /// Between passes, when [`Engine::wakes_at`] says so: ends the transfers below the GPU that are over by `now` and moves
    /// what has changed into `pass`, which holds nothing else afterwards. Nobody runs: use [`Engine::step`] for that.
    fn end_transfers(&mut self, now: SimTime, pass: &mut Pass) {
        let _ = now;
        pass.clear();
    }

    /// Tells an engine whose memory below the GPU is shared with others that its pass is over at `now`: only then does it
    /// see what they have done meanwhile, and they what it has computed. Moves what has happened there by then into `pass`,
    /// which is that pass. To be called at the end of every pass, before it is told; nothing happens without such memory.
    fn end_pass(&mut self, now: SimTime, pass: &mut Pass) {
        let _ = (now, pass);
    }

    /// Drops every unreferenced cached block; returns the events (empty when nothing was cached).
    fn clear_cache(&mut self) -> Vec<KvEvent>;

    /// Keeps this many blocks from all requests, unused ones first, then cached ones that nobody uses; the rest as they
    /// become free, when this is called again. 0 gives all back. Returns the events. [`Engine::load`] counts what is left;
    /// a request that does not fit into that waits. Only between passes.
    fn withhold(&mut self, blocks: u32) -> Vec<KvEvent>;

    /// Blocks that are kept from requests now.
    fn withheld(&self) -> u32;

    /// Tells a rank of a data-parallel group that the group takes step number `step`, counted from 0 since all its ranks
    /// last ran out of work. A rank that is never told counts its own passes.
    fn join_step(&mut self, step: u64) {
        let _ = step;
    }

    /// Tells a rank what the group did in the step that it joined. Returns whether the rank may have work in another step
    /// at the same instant although it had none in this one.
    fn leave_step(&mut self, outcome: GroupOutcome) -> bool {
        let _ = outcome;
        false
    }

    /// Tells a rank that the step which it joined ends at `end`, when the slowest rank is done: what it computed is written
    /// to the memory below the GPU from then on. Moves what has happened there by then into `pass`, which is the rank's
    /// own of this step, empty if it had no work. Returns whether there is anything to tell.
    fn end_step(&mut self, end: SimTime, pass: &mut Pass) -> bool {
        let _ = (end, pass);
        false
    }

    /// What it lists of its passes.
    fn listing(&self) -> &Listing;

    /// What it lists of its passes, to be changed.
    fn listing_mut(&mut self) -> &mut Listing;

    /// Chooses how many outputs a pass lists.
    fn set_output_detail(&mut self, detail: OutputDetail) {
        self.listing_mut().detail = detail;
    }

    /// Turns the record of what stored blocks contain ([`Pass::stored`]) on or off; off costs nothing and is the default.
    fn record_stored(&mut self, on: bool) {
        self.listing_mut().stored = on;
    }

    /// Turns the record of what happens to pages ([`Pass::page_changes`]) on or off, of an engine that has them. Off costs
    /// nothing and is the default.
    fn record_pages(&mut self, on: bool) {
        let _ = on;
    }

    /// Turns the record that [`Engine::schedule`] reads on or off. Off costs nothing and is the default.
    fn record_schedule(&mut self, on: bool) {
        self.listing_mut().schedule = on.then(Vec::new);
    }

    /// Who got how many tokens in the last pass, in scheduling order; empty unless recorded.
    fn schedule(&self) -> &[(RequestId, u32)] {
        self.listing().schedule.as_deref().unwrap_or_default()
    }
}

/// What an engine lists of its passes beside what it always does.
#[derive(Debug, Default)]
pub struct Listing {
    detail: OutputDetail,
    /// Tokens scheduled per request in the last pass, when asked for.
    schedule: Option<Vec<(RequestId, u32)>>,
    /// What stored blocks contain.
    stored: bool,
}

impl Listing {
    /// A pass begins.
    fn begin(&mut self) {
        if let Some(schedule) = &mut self.schedule {
            schedule.clear();
        }
    }
}

/// What the ranks of a group did in one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupOutcome {
    /// Some rank computed prompt tokens.
    pub prefilled: bool,
    /// Some rank computed anything.
    pub worked: bool,
}

/// Which outputs a pass lists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OutputDetail {
    /// Every token.
    #[default]
    EveryToken,
    /// The first and the last token of each request only: enough to measure, and a pass costs nothing per token.
    Milestones,
}

/// One forward pass: everything that is true at its end.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pass {
    /// When the pass ends; never before the `now` of its `step`.
    pub ends_at: SimTime,
    /// Tokens and rejections in the order in which clients see them.
    pub outputs: Vec<Output>,
    /// Admissions in this pass, in order.
    pub admissions: Vec<Admission>,
    /// Requests preempted in this pass, in order.
    pub preempted: Vec<RequestId>,
    /// Cache changes in order; empty with prefix caching off.
    pub kv_events: Vec<KvEvent>,
    /// Changes below the GPU that are true at the end of the pass, in order.
    pub tier_events: Vec<TierEvent>,
    /// What the prefix cache's changes left of the pool, in order; of decode workers too, whose events are not told.
    pub cache_changes: Vec<CacheChange>,
    /// What happened to the pages of an SGLang pool since the last pass, in order; empty unless [`Engine::record_pages`].
    pub page_changes: Vec<PageChange>,
    /// What the blocks of the `Stored` events contain, one per event in order; empty unless [`Engine::record_stored`].
    pub stored: Vec<StoredContent>,
    /// Load after the pass.
    pub load: Load,
    /// Work of the pass; boxed to keep passes small to move.
    pub forward: Box<Forward>,
}

impl Pass {
    /// Empties the pass and keeps its buffers.
    pub fn clear(&mut self) {
        self.outputs.clear();
        self.admissions.clear();
        self.preempted.clear();
        self.kv_events.clear();
        self.tier_events.clear();
        self.cache_changes.clear();
        self.page_changes.clear();
        self.stored.clear();
        *self.forward = Forward::default();
    }

    /// Books the events since the last call, which left the pool with so many blocks.
    pub(crate) fn note_cache_changes(&mut self, active_blocks: u32, inactive_blocks: u32) {
        for event in self.kv_events.iter().skip(self.cache_changes.len()) {
            let kind = match event {
                KvEvent::Stored { .. } => CacheChangeKind::Allocation,
                KvEvent::Removed { .. } | KvEvent::Cleared => CacheChangeKind::Eviction,
            };
            self.cache_changes.push(CacheChange {
                kind,
                active_blocks,
                inactive_blocks,
            });
        }
    }
}

/// One change of the prefix cache and the pool right after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheChange {
    /// What happened.
    pub kind: CacheChangeKind,
    /// Blocks in use then.
    pub active_blocks: u32,
    /// Cached blocks that nobody used then.
    pub inactive_blocks: u32,
}

/// What happened to the prefix cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheChangeKind {
    /// Blocks became visible ([`KvEvent::Stored`]).
    Allocation,
    /// Blocks left ([`KvEvent::Removed`], [`KvEvent::Cleared`]).
    Eviction,
}

/// One change of a pool of pages and the pool right after it, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageChange {
    /// What happened.
    pub kind: PageChangeKind,
    /// To so many.
    pub tokens: u64,
    /// Free then.
    pub available_tokens: u64,
    /// Cached and unused then.
    pub evictable_tokens: u64,
    /// Cached and in use then.
    pub protected_tokens: u64,
}

/// What happened to pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageChangeKind {
    /// A request took them.
    Allocation,
    /// A request gave them back.
    Free,
    /// They left the cache.
    Eviction,
    /// They were set aside for KV from elsewhere.
    ReserveDestination,
    /// That KV is there.
    ActivateDestination,
    /// They were set aside and given back without KV.
    ReleaseUnpublished,
}

/// Content of the blocks of one `Stored` event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredContent {
    /// Token ids, block after block.
    pub tokens: Vec<Token>,
    /// Salt of the sequence that computed them.
    pub salt: HashSalt,
}

/// A request entered the running batch for the first time, or again after a preemption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// Who.
    pub id: RequestId,
    /// Tokens taken from the prefix cache: of the prompt, and after a preemption of the answer so far too.
    pub cached_tokens: u32,
    /// Those of them that came from host memory; told of first admissions where there is such memory.
    pub from_host: Option<u32>,
    /// Whether this is a re-admission after a preemption.
    pub again: bool,
}

/// What one request gets at the end of a pass.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// One generated token.
    Token {
        /// Whose.
        id: RequestId,
        /// Its id.
        token: Token,
        /// Set on the last token; the request is gone from the engine then.
        finish: Option<FinishReason>,
    },
    /// The request ended without a (further) token: nothing was to be generated.
    Empty {
        /// Whose.
        id: RequestId,
        /// Why.
        finish: FinishReason,
    },
    /// The request was refused after it had been queued.
    Rejected {
        /// Whose.
        id: RequestId,
        /// Why.
        reason: Rejected,
    },
}

/// Why a request cannot run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// The prompt leaves no room for a token.
    #[error(
        "prompt of {prompt_tokens} tokens reaches max_model_len {max_model_len}; shorten it or raise --max-model-len"
    )]
    PromptTooLong {
        /// Prompt length.
        prompt_tokens: u32,
        /// Limit.
        max_model_len: u32,
    },
    /// The prompt does not fit in the whole pool.
    #[error(
        "request needs {needed_blocks} KV blocks but the rank has {total_blocks}; shorten it or raise --num-gpu-blocks-override"
    )]
    PoolTooSmall {
        /// Blocks for the known tokens.
        needed_blocks: u32,
        /// Usable blocks.
        total_blocks: u32,
    },
    /// Without chunked prefill the prompt has to fit in one pass.
    #[error(
        "prompt of {prompt_tokens} tokens exceeds max_num_batched_tokens {budget} and chunked prefill is off; \
         raise --max-num-batched-tokens or use --enable-chunked-prefill"
    )]
    PromptExceedsBudget {
        /// Prompt length.
        prompt_tokens: u32,
        /// Token budget of a pass.
        budget: u32,
    },
    /// SGLang: no pass takes as much of the prompt as has to be computed at once.
    #[error(
        "no pass takes {tokens} prompt tokens at once, the limit is {limit}; \
         raise --sglang-max-prefill-tokens and --sglang-chunked-prefill-size"
    )]
    PassTooSmall {
        /// Prompt and answer so far.
        tokens: u32,
        /// Prompt tokens of a pass at most.
        limit: u32,
    },
    /// The request outgrew what the pool can give to one request.
    #[error(
        "request of {tokens} tokens cannot go on in a KV pool of {pool_tokens} tokens; \
         shorten it or raise --num-gpu-blocks-override"
    )]
    OutOfMemory {
        /// Prompt and answer so far.
        tokens: u32,
        /// Tokens that the pool holds.
        pool_tokens: u64,
    },
    /// No tokens at all.
    #[error("prompt is empty; send at least one token")]
    EmptyPrompt,
    /// The id is in use.
    #[error("request id {0:?} is already active")]
    Duplicate(RequestId),
}
