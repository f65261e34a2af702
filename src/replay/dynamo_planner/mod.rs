//! Dynamo's own planner as a policy of a replay: it reads that planner's configuration and decides what it would decide.
//!
//! A tick takes in the latest pass of every rank. When it is time for a decision and no earlier one is still under way, it
//! asks for one worker more or less on each side, within the floors and the GPU budget.
//!
//! Source: planner of Dynamo 1.4.2 (`core`, `offline/replay_adapter.py`, `plugins/orchestrator`), which its replay has in
//! the loop.

mod budget;
mod config;
mod document;
mod observed;
mod thresholds;

pub use config::{PlannerConfig, Spelling};

use super::planner::{Decision, Planner, PlannerError, Snapshot};
use config::Sides;
use observed::Passes;
use thresholds::Role;

/// What a planner knows of the engines of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// GPUs of a worker.
    pub gpus: u32,
    /// Longest sequence, tokens; `None`: no limit.
    pub context_length: Option<u32>,
    /// KV tokens of all ranks of a worker.
    pub max_kv_tokens: u64,
}

/// Workers of one side at a tick.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    /// Those that take requests.
    ready: u32,
    /// With those that start.
    current: u32,
    /// What was decided earlier is not done yet.
    moving: bool,
}

impl Counts {
    fn new(active: usize, with_starting: usize, asked: Option<u32>) -> Self {
        let count = |workers: usize| u32::try_from(workers).unwrap_or(u32::MAX);
        let (ready, current) = (count(active), count(with_starting));
        let expected = asked.unwrap_or(current);
        Self {
            ready,
            current,
            moving: expected != current || expected != ready,
        }
    }
}

/// Dynamo's planner.
#[derive(Debug, Clone)]
pub struct DynamoPlanner {
    config: PlannerConfig,
    /// None in aggregated fleets.
    prefill: Option<Capabilities>,
    serving: Capabilities,
    /// The next tick, s.
    next_s: f64,
    /// The last load decision, s.
    load_s: f64,
    passes: Sides<Passes>,
    /// What was asked for and is not there yet.
    asked: Sides<Option<u32>>,
}

impl DynamoPlanner {
    /// A planner for a fleet; `prefill` is for disaggregated ones.
    pub fn new(config: PlannerConfig, prefill: Option<Capabilities>, serving: Capabilities) -> Self {
        let gpus = |given: Option<u32>, engine: Capabilities| Capabilities {
            gpus: given.unwrap_or(engine.gpus),
            ..engine
        };
        Self {
            next_s: config.scale_interval_s,
            load_s: 0.0,
            prefill: prefill.map(|engine| gpus(config.gpus.prefill, engine)),
            serving: gpus(config.gpus.serving, serving),
            config,
            passes: Sides::default(),
            asked: Sides::default(),
        }
    }

    /// Workers that the latest passes ask for; `None`: as they are.
    fn by_load(&self, counts: Sides<Counts>) -> Option<Sides<u32>> {
        if counts.prefill.moving || counts.serving.moving {
            return None;
        }
        let ready = Sides {
            prefill: counts.prefill.ready,
            serving: counts.serving.ready,
        };
        // A side without any pass stays; one that was only seen in part stops both.
        let seen = |passes: &Passes, ready| passes.is_empty() || passes.cover(ready);
        if self.passes.prefill.is_empty() && self.passes.serving.is_empty()
            || !seen(&self.passes.prefill, ready.prefill)
            || !seen(&self.passes.serving, ready.serving)
        {
            return None;
        }
        let least = self.config.least;
        let side = |role, engine, passes: &Passes, ready, least| {
            thresholds::wanted(self.config.target, role, engine, &passes.all(), ready, least)
        };
        let Some(prefill) = self.prefill else {
            let serving = side(
                Role::Aggregated,
                self.serving,
                &self.passes.serving,
                ready.serving,
                least.serving,
            )?;
            return Some(self.fitted(Sides { prefill: 0, serving }));
        };
        let of_prefill = side(
            Role::Prefill,
            prefill,
            &self.passes.prefill,
            ready.prefill,
            least.prefill,
        );
        let of_serving = side(
            Role::Decode,
            self.serving,
            &self.passes.serving,
            ready.serving,
            least.serving,
        );
        Some(self.fitted(Sides {
            prefill: of_prefill.unwrap_or(ready.prefill),
            serving: of_serving.unwrap_or(ready.serving),
        }))
    }

    /// Workers within the floors and the GPU budget.
    fn fitted(&self, wanted: Sides<u32>) -> Sides<u32> {
        let (least, budget) = (self.config.least, self.config.budget);
        let serving = wanted.serving.max(least.serving);
        let Some(prefill) = self.prefill else {
            return Sides {
                prefill: 0,
                serving: budget.single(serving, self.serving.gpus, least.serving),
            };
        };
        let wanted = Sides {
            prefill: wanted.prefill.max(least.prefill),
            serving,
        };
        let gpus = Sides {
            prefill: prefill.gpus,
            serving: self.serving.gpus,
        };
        budget.pair(wanted, gpus, least)
    }

    /// Notes what has come about of what was asked for, and asks for what is new.
    fn ask(&mut self, counts: Sides<Counts>, wanted: Option<Sides<u32>>) -> Decision {
        for (asked, counts) in [
            (&mut self.asked.prefill, counts.prefill),
            (&mut self.asked.serving, counts.serving),
        ] {
            *asked = asked.filter(|&asked| asked != counts.current);
        }
        let mut decision = Decision::default();
        let Some(wanted) = wanted else { return decision };
        // What starts already is not what decisions are about, but it is what they change.
        let new = |wanted: u32, counts: Counts| (wanted != counts.current).then_some(wanted);
        if self.prefill.is_some() {
            decision.target_prefill = new(wanted.prefill, counts.prefill);
        }
        decision.target_decode = new(wanted.serving, counts.serving);
        self.asked.prefill = decision.target_prefill.or(self.asked.prefill);
        self.asked.serving = decision.target_decode.or(self.asked.serving);
        decision
    }
}

impl Planner for DynamoPlanner {
    fn initial_tick_ms(&mut self) -> Result<Option<f64>, PlannerError> {
        Ok(Some(self.next_s * 1e3))
    }

    fn on_tick(&mut self, snapshot: &Snapshot) -> Result<Decision, PlannerError> {
        let now_s = self.next_s;
        let Sides { prefill, serving } = &mut self.passes;
        prefill.update(&snapshot.prefill_fpm_snapshots, &snapshot.active_prefill_ids);
        serving.update(&snapshot.decode_fpm_snapshots, &snapshot.active_decode_ids);
        let counts = Sides {
            prefill: Counts::new(
                snapshot.active_prefill_count,
                snapshot.non_draining_prefill_count,
                self.asked.prefill,
            ),
            serving: Counts::new(
                snapshot.active_decode_count,
                snapshot.non_draining_decode_count,
                self.asked.serving,
            ),
        };
        let mut wanted = None;
        if now_s - self.load_s >= self.config.load_interval_s {
            self.load_s = now_s;
            wanted = self.by_load(counts);
        }
        // Only what differs from the workers that are ready is a decision.
        let changes = |wanted: &Sides<u32>| {
            self.prefill.is_some() && wanted.prefill != counts.prefill.ready || wanted.serving != counts.serving.ready
        };
        let wanted = wanted.filter(changes).map(|wanted| self.fitted(wanted)).filter(changes);
        let decision = self.ask(counts, wanted);
        self.next_s = now_s + self.config.scale_interval_s;
        Ok(Decision {
            next_tick_ms: Some(self.next_s * 1e3),
            ..decision
        })
    }
}
