//! Workers in virtual time: each a group of ranks whose passes begin and end together.

use std::collections::VecDeque;

use crate::engine::{
    self, DiskUse, Engine, EngineConfig, EngineKind, Fidelity, Member, OutputDetail, Pass, PreemptionMode,
    SharedMemory, step_together,
};
use crate::types::SimTime;

use super::planner::ForwardMetrics;
use super::timeline::Timeline;

/// What a rank does in the pass under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Nothing.
    Nothing,
    /// One token for everybody and nothing else.
    Quiet,
    /// What its `pass` says.
    Pass,
}

/// One rank.
pub(crate) struct Rank {
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) pass: Pass,
    pub(crate) doing: Doing,
    pub(crate) line: Timeline,
    /// Requests that wait for a token after a preemption.
    pub(crate) interrupted: usize,
    /// Latest pass since the last tick of a planner, where one watches.
    pub(crate) latest: Option<ForwardMetrics>,
    /// Since when the rank has been silent, as far as the planner was told.
    pub(crate) silent_since: SimTime,
}

/// One worker.
#[allow(clippy::struct_excessive_bools)]
pub(crate) struct Worker {
    pub(crate) ranks: Vec<Rank>,
    pub(crate) busy: bool,
    /// Stands in the list of workers that may start a pass.
    pub(crate) listed: bool,
    /// Only quiet ranks in the pass under way.
    pub(crate) quiet: bool,
    /// Every token is measured on its own.
    exact: bool,
    /// Every pass is looked at.
    watched: bool,
    /// What is on its way between its memories goes on to others when it arrives, whoever waits for it.
    passes_on: bool,
    /// Uses memory that other workers use, too.
    shares: bool,
    /// Steps since the worker last had no request, where it has several ranks.
    step: u64,
    /// Begin of the pass under way.
    pub(crate) started: SimTime,
    /// Requests that it was given and that have not left it.
    pub(crate) assigned: usize,
    /// Commands of handoffs that wait for the end of the pass.
    pub(crate) commands: VecDeque<Command>,
}

/// A command of a handoff that an engine takes between passes only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    /// The KV of this request has arrived.
    Activate(u64),
    /// The KV of this request is no longer needed.
    Release(u64),
}

/// Whether each request that has its first token gets one in every later pass until it ends or is preempted. Where that
/// cannot be known every token is looked at.
fn tokens_follow_passes(config: &EngineConfig) -> bool {
    let within_budget = match (config.max_num_batched_tokens, config.max_num_seqs) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(budget), Some(requests)) => requests <= budget,
    };
    let plain = match config.kind {
        EngineKind::Vllm => config.speculation.is_none(),
        // A prompt that is cached as a whole needs none of the budget to be admitted, and its next token may find none left.
        EngineKind::Trtllm => config.speculation.is_none() && !config.enable_prefix_caching,
        EngineKind::Sglang => false,
    };
    let chunks_may_starve = config.fidelity == Fidelity::Real && config.long_prefill_token_threshold > 0;
    plain && within_budget && !chunks_may_starve && config.preemption_mode == PreemptionMode::Lifo
}

impl Worker {
    /// Worker number `index` of a fleet whose workers share `memory` as far as they are configured to.
    pub(crate) fn new(
        config: &EngineConfig,
        index: u64,
        ranks: u32,
        memory: &SharedMemory,
        now: SimTime,
    ) -> Result<Self, engine::ConfigError> {
        let shares = config.tiers.is_some_and(|tiers| tiers.is_shared());
        // What the end of the slowest rank, or other workers, bring about is in no quiet pass.
        let exact = !tokens_follow_passes(config) || (ranks > 1 && config.tiers.is_some()) || shares;
        let config = EngineConfig {
            data_parallel_size: ranks,
            ..config.clone()
        };
        let rank = |rank| {
            let mut engine = engine::build_in(&config.of_rank(index, rank), memory)?;
            engine.set_output_detail(if exact {
                OutputDetail::EveryToken
            } else {
                OutputDetail::Milestones
            });
            Ok(Rank {
                engine,
                pass: Pass::default(),
                doing: Doing::Nothing,
                line: Timeline::default(),
                interrupted: 0,
                latest: None,
                silent_since: now,
            })
        };
        Ok(Self {
            ranks: (0..ranks).map(rank).collect::<Result<_, _>>()?,
            busy: false,
            listed: false,
            quiet: false,
            exact,
            watched: false,
            passes_on: config.tiers.is_some_and(|tiers| tiers.reaches_below_host()),
            shares,
            step: 0,
            started: now,
            assigned: 0,
            commands: VecDeque::new(),
        })
    }

    /// Has every pass looked at. Only before the first one.
    pub(crate) fn watch(&mut self) {
        self.watched = true;
    }

    /// Whether it has nothing to do and nothing to wait for.
    pub(crate) fn is_at_rest(&self) -> bool {
        !self.busy && !self.listed && self.assigned == 0 && !self.is_moving()
    }

    /// Nobody is told of its memory below the GPU.
    pub(crate) fn mute_lower(&mut self) {
        for rank in &mut self.ranks {
            rank.engine.mute_lower();
        }
    }

    /// Whether somebody waits whom the next pass would try.
    pub(crate) fn is_ready(&self) -> bool {
        self.ranks.iter().any(|rank| rank.engine.is_ready())
    }

    /// What disks of its own have done.
    pub(crate) fn disk(&self) -> Option<DiskUse> {
        let own = self.ranks.iter().filter_map(|rank| rank.engine.own_disk());
        own.reduce(|mut all, disk| {
            all.add(&disk);
            all
        })
    }

    /// Whether it uses memory that other workers use, too.
    pub(crate) fn shares(&self) -> bool {
        self.shares
    }

    pub(crate) fn is_exact(&self) -> bool {
        self.exact
    }

    /// A request that it was given has left it.
    pub(crate) fn lose_one(&mut self) {
        self.assigned -= 1;
        if self.assigned == 0 && !self.shares {
            self.step = 0;
        }
    }

    /// It has looked at memory that it shares: steps are counted anew when nothing of its own is under way any more.
    pub(crate) fn rest(&mut self) {
        if self.assigned == 0 && !self.is_moving() {
            self.step = 0;
        }
    }

    fn is_moving(&self) -> bool {
        self.ranks.iter().any(|rank| rank.engine.is_moving())
    }

    /// Starts the next pass; its end, or `None` without work.
    pub(crate) fn start(&mut self, now: SimTime) -> Option<SimTime> {
        self.started = now;
        let listed = self.exact || self.watched;
        let ends_at = match self.ranks.as_mut_slice() {
            // One rank counts its own steps.
            [rank] => Part { rank, listed }.step(now),
            ranks => {
                let mut parts: Vec<Part> = ranks.iter_mut().map(|rank| Part { rank, listed }).collect();
                let next = self.step + 1;
                let ends_at = step_together(&mut parts, &mut self.step, now);
                // A request may still come before it ends, and then the count goes on.
                if ends_at.is_some() && self.step == 0 {
                    self.step = next;
                }
                ends_at
            }
        };
        self.quiet = self.ranks.iter().all(|rank| rank.doing != Doing::Pass);
        self.busy = ends_at.is_some();
        ends_at
    }

    /// When a worker without a pass has to be looked at again because of transfers between its memories, as far as
    /// anybody waits for them or is told of them.
    pub(crate) fn wakes_at(&self, told: bool) -> Option<SimTime> {
        let told = told || self.passes_on || self.shares;
        let waiting = self.ranks.iter().filter(|_| told || self.assigned > 0);
        waiting.filter_map(|rank| rank.engine.wakes_at()).min()
    }
}

/// A rank with what it does in the pass that starts.
struct Part<'a> {
    rank: &'a mut Rank,
    /// The pass is looked at, quiet or not.
    listed: bool,
}

impl Member for Part<'_> {
    fn engine(&mut self) -> &mut dyn Engine {
        self.rank.engine.as_mut()
    }

    fn step(&mut self, now: SimTime) -> Option<SimTime> {
        let rank = &mut *self.rank;
        let may_be_quiet = !self.listed && rank.interrupted == 0;
        let quiet_end = may_be_quiet.then(|| rank.engine.step_quiet(now)).flatten();
        rank.doing = match quiet_end {
            Some(_) => Doing::Quiet,
            None if rank.engine.step_into(now, &mut rank.pass) => Doing::Pass,
            None => Doing::Nothing,
        };
        match rank.doing {
            Doing::Nothing => None,
            Doing::Quiet => quiet_end,
            Doing::Pass => Some(rank.pass.ends_at),
        }
    }

    fn prefills(&self) -> bool {
        self.rank.doing == Doing::Pass && self.rank.pass.forward.prefill_tokens > 0
    }

    fn end(&mut self, end: SimTime) -> bool {
        // Nothing that the end of others could bring about is left out by a quiet pass.
        let told = self.rank.doing != Doing::Quiet && self.rank.engine.end_step(end, &mut self.rank.pass);
        if told {
            self.rank.doing = Doing::Pass;
        }
        told
    }
}

impl Rank {
    /// A request with tokens was preempted: from now on every token is listed, until all such requests got one again.
    pub(crate) fn interrupt(&mut self) {
        self.interrupted += 1;
        self.engine.set_output_detail(OutputDetail::EveryToken);
    }

    /// Such a request got a token, or is gone.
    pub(crate) fn resume(&mut self) {
        self.interrupted -= 1;
        if self.interrupted == 0 {
            self.engine.set_output_detail(OutputDetail::Milestones);
        }
    }
}
