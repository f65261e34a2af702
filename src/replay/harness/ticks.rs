//! A policy is asked, and its answer followed.

use std::cmp::Reverse;
use std::time::Duration;

use crate::engine::Forward;
use crate::router::Target;
use crate::types::SimTime;

use super::super::collector::Sample;
use super::super::planner::{
    Decision, ForwardMetrics, Planner, PlannerError, ScalingEvent, ScalingLog, Snapshot, Window,
};
use super::handoff::PREFILL;
use super::pool::Pool;
use super::{Due, Harness, Place, ReplayError};

/// How long a rank is silent before it counts as idle.
const SILENCE: Duration = Duration::from_secs(1);

/// A policy and what it is told.
pub(super) struct Scaling {
    planner: Box<dyn Planner>,
    /// When it is asked next.
    pub(super) next: Option<SimTime>,
    pub(super) window: Window,
    pub(super) log: ScalingLog,
    /// The user wants the run to end.
    pub(super) interrupted: bool,
    first_tokens: FirstTokens,
}

/// What the first token of an answer is, beside the decode steps that a pass lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FirstTokens {
    /// No decode step.
    NoStep,
    /// A step that the pass does not list: it completes a prompt (Dynamo 1.4.2).
    AnotherStep,
    /// One of the steps that it lists (Dynamo 1.4.2, where the prompt was computed by a pass before).
    OneOfThem,
}

impl Scaling {
    pub(super) fn new(mut planner: Box<dyn Planner>, first_tokens: FirstTokens) -> Result<Self, PlannerError> {
        let (first, interrupted) = match planner.initial_tick_ms() {
            Ok(first) => (first, false),
            Err(PlannerError::Interrupted) => (None, true),
            Err(error @ PlannerError::Failed(_)) => return Err(error),
        };
        Ok(Self {
            interrupted,
            next: first.and_then(|first| instant(first, None)),
            planner,
            window: Window::default(),
            log: ScalingLog::default(),
            first_tokens,
        })
    }

    /// Counts the requests that decoded in a pass. Without drafts each got one token; otherwise tokens are counted as
    /// they come.
    pub(super) fn count_decode(&mut self, forward: &Forward, drafts: bool) {
        let forwards = u64::from(forward.decode.requests);
        self.window.decode_forwards += forwards;
        if !drafts {
            self.window.decode_tokens += forwards;
        }
    }

    /// Counts a token of a request.
    pub(super) fn count_token(&mut self, first: bool, drafts: bool) {
        match (first, self.first_tokens) {
            (true, FirstTokens::AnotherStep) => {
                self.window.decode_forwards += 1;
                self.window.decode_tokens += 1;
            }
            (true, FirstTokens::NoStep) => {}
            (true, FirstTokens::OneOfThem) | (false, _) => self.window.decode_tokens += u64::from(drafts),
        }
    }
}

impl Window {
    /// A request completed.
    pub(super) fn note(&mut self, sample: Sample) {
        self.completed(
            sample.input_tokens,
            sample.output_tokens,
            sample.ttft_ms,
            sample.tpot_ms,
        );
    }
}

/// A time on the clock, if it is one and later than `after`.
fn instant(ms: f64, after: Option<SimTime>) -> Option<SimTime> {
    if !ms.is_finite() {
        return None;
    }
    let at = SimTime::of_ms(ms);
    after.is_none_or(|after| at > after).then_some(at)
}

impl ForwardMetrics {
    /// Of a pass.
    pub(super) fn of(target: Target, wall: Duration, forward: &Forward) -> Self {
        Self {
            worker_id: target.worker,
            dp_rank: target.rank,
            wall_time: wall.as_secs_f64(),
            num_prefill_requests: forward.prefill.requests,
            sum_prefill_tokens: forward.prefill_tokens,
            var_prefill_length: forward.prefill.variance(),
            sum_prefill_kv_tokens: forward.prefill_kv_tokens,
            num_decode_requests: forward.decode.requests,
            sum_decode_kv_tokens: forward.decode.tokens,
            var_decode_kv_tokens: forward.decode.variance(),
            num_queued_prefill: forward.queued_prefill.requests,
            sum_queued_prefill_tokens: forward.queued_prefill.tokens,
            var_queued_prefill_length: forward.queued_prefill.variance(),
            num_queued_decode: forward.queued_decode.requests,
            sum_queued_decode_kv_tokens: forward.queued_decode.tokens,
            var_queued_decode_kv_tokens: forward.queued_decode.variance(),
        }
    }
}

/// Latest passes of a pool's active ranks since the last tick; of ranks that are silent for long, an empty one.
fn forward_metrics(pool: &mut Pool, now: SimTime) -> Vec<ForwardMetrics> {
    let active = pool.active().to_vec();
    let mut found = Vec::new();
    for (number, worker) in pool.workers() {
        for (rank_number, rank) in (0..).zip(&mut worker.ranks) {
            let latest = rank.latest.take();
            if active.binary_search(&number).is_err() {
                continue;
            }
            let silent = now.since(rank.silent_since);
            if silent < SILENCE {
                found.extend(latest);
                continue;
            }
            // Silence is told in the place of a pass that was before it.
            rank.silent_since = rank.silent_since + Duration::from_secs(silent.as_secs());
            found.push(ForwardMetrics {
                worker_id: number,
                dp_rank: rank_number,
                ..ForwardMetrics::default()
            });
        }
    }
    found
}

impl Harness {
    /// Asks the policy if it is time, and follows it.
    pub(super) fn tick(&mut self) {
        let now = self.now;
        let Some(mut scaling) = self.scaling.take() else { return };
        if scaling.next.is_some_and(|next| next <= now) {
            let snapshot = self.snapshot(&mut scaling);
            scaling.log.ticks += 1;
            match scaling.planner.on_tick(&snapshot) {
                Ok(decision) => {
                    scaling.next = decision.next_tick_ms.and_then(|next| instant(next, Some(now)));
                    self.follow(decision, &mut scaling.log);
                }
                Err(PlannerError::Interrupted) => {
                    scaling.interrupted = true;
                    scaling.next = None;
                }
                Err(error @ PlannerError::Failed(_)) => self.fail(error.into()),
            }
        }
        self.scaling = Some(scaling);
    }

    fn snapshot(&mut self, scaling: &mut Scaling) -> Snapshot {
        let now = self.now;
        let mut snapshot = Snapshot {
            tick_ordinal: scaling.log.ticks,
            now_ms: now.as_ms(),
            traffic: scaling.window.close(now),
            ..Snapshot::default()
        };
        let ids = |ids: &[u32]| {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids
        };
        if self.handoffs.is_some() {
            let pool = &mut self.pools[PREFILL as usize];
            snapshot.active_prefill_ids = ids(pool.active());
            snapshot.starting_prefill_ids = ids(pool.starting());
            snapshot.draining_prefill_ids = ids(pool.draining());
            snapshot.active_prefill_count = pool.active().len();
            snapshot.starting_prefill_count = pool.starting().len();
            snapshot.draining_prefill_count = pool.draining().len();
            snapshot.non_draining_prefill_count = pool.active().len() + pool.starting().len();
            snapshot.total_prefill_count = snapshot.non_draining_prefill_count + pool.draining().len();
            snapshot.prefill_fpm_snapshots = forward_metrics(pool, now);
        }
        let pool = &mut self.pools[self.serving_pool as usize];
        snapshot.active_decode_ids = ids(pool.active());
        snapshot.starting_decode_ids = ids(pool.starting());
        snapshot.draining_decode_ids = ids(pool.draining());
        snapshot.active_decode_count = pool.active().len();
        snapshot.starting_decode_count = pool.starting().len();
        snapshot.draining_decode_count = pool.draining().len();
        snapshot.non_draining_decode_count = pool.active().len() + pool.starting().len();
        snapshot.total_decode_count = snapshot.non_draining_decode_count + pool.draining().len();
        snapshot.decode_fpm_snapshots = forward_metrics(pool, now);
        snapshot
    }

    fn follow(&mut self, decision: Decision, log: &mut ScalingLog) {
        if self.handoffs.is_some() {
            self.scale(PREFILL, decision.target_prefill, "prefill", log);
            self.scale(self.serving_pool, decision.target_decode, "decode", log);
        } else {
            self.scale(self.serving_pool, decision.target_decode, "agg", log);
        }
    }

    /// Brings a pool to so many active and starting workers.
    fn scale(&mut self, number: u8, target: Option<u32>, name: &'static str, log: &mut ScalingLog) {
        let now = self.now;
        let pool = &mut self.pools[number as usize];
        let before = pool.wanted();
        let Some(target) = target.filter(|&target| target != before) else {
            return;
        };
        log.events.push(ScalingEvent {
            at_ms: now.as_ms(),
            pool: name,
            from: before,
            to: target,
        });
        for _ in before..target {
            match pool.add(now) {
                Ok((worker, true)) => self.changed.push(Place { pool: number, worker }),
                Ok((worker, false)) => {
                    let at = now + pool.spec.startup;
                    self.others
                        .push(Reverse((at, Due::Ready(Place { pool: number, worker }))));
                }
                Err(error) => {
                    self.fault = Some(ReplayError::Engine(error));
                    return;
                }
            }
        }
        for _ in target..before {
            pool.take_one(now);
        }
    }
}
