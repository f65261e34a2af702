//! Dynamo's own planner as a policy of a replay: it reads that planner's configuration and decides what it would decide.
//!
//! A tick takes in the latest pass of every rank. When it is time for a decision by load and no earlier one is still under
//! way, it asks for one worker more or less on each side, within the floors and the GPU budget: by thresholds, or for the
//! target `sla` by what was learned of the engines' speed. That target can scale for the traffic that is foreseen, too.
//!
//! Source: planner of Dynamo 1.4.2 (`core`, `offline/replay_adapter.py`, `plugins/orchestrator`), which its replay has in
//! the loop.

mod averages;
mod budget;
mod capacity;
mod check;
mod config;
mod document;
mod forecast;
mod observed;
mod regression;
mod samples;
mod service;
mod speed;
mod thresholds;
mod traffic;

pub use config::{PlannerConfig, Spelling};

use super::planner::{Decision, Planner, PlannerError, Snapshot};
use config::{Sides, Target, ThresholdTarget, Throughput};
use observed::Passes;
use service::Service;
use thresholds::Role;

/// What a planner knows of the engines of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// GPUs of a worker.
    pub gpus: u32,
    /// Token budget of a pass; `None`: no limit.
    pub max_num_batched_tokens: Option<u32>,
    /// Most running requests; `None`: no limit.
    pub max_num_seqs: Option<u32>,
    /// Longest sequence, tokens; `None`: no limit.
    pub context_length: Option<u32>,
    /// KV tokens of all ranks of a worker.
    pub max_kv_tokens: u64,
    /// Drafted tokens per pass.
    pub nextn: u32,
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

/// How it decides.
#[derive(Debug, Clone)]
enum Judge {
    Thresholds(ThresholdTarget),
    Service(Box<Service>),
}

/// Times of what is done now and then, s.
#[derive(Debug, Clone, Copy, Default)]
struct Last {
    learned: f64,
    by_load: f64,
    by_throughput: f64,
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
    last: Last,
    judge: Judge,
    /// Whether load scales.
    by_load: bool,
    throughput: Option<Throughput>,
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
        let prefill = prefill.map(|engine| gpus(config.gpus.prefill, engine));
        let serving = gpus(config.gpus.serving, serving);
        let (judge, by_load, throughput) = match config.target {
            Target::Thresholds(target) => (Judge::Thresholds(target), true, None),
            Target::Service(target) => {
                let service = Service::new(target, prefill, serving);
                (Judge::Service(Box::new(service)), target.by_load, target.throughput)
            }
        };
        Self {
            next_s: config.scale_interval_s,
            last: Last::default(),
            judge,
            by_load,
            throughput,
            prefill,
            serving,
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
        let passes = Sides {
            prefill: self.passes.prefill.all(),
            serving: self.passes.serving.all(),
        };
        let target = match &self.judge {
            Judge::Thresholds(target) => *target,
            Judge::Service(service) => {
                let passes = Sides {
                    prefill: &passes.prefill[..],
                    serving: &passes.serving[..],
                };
                let wanted = service.by_load(passes, ready, least)?;
                return Some(self.fitted(Sides {
                    prefill: wanted.prefill.max(service.floor.prefill),
                    serving: wanted.serving.max(service.floor.serving),
                }));
            }
        };
        let Some(prefill) = self.prefill else {
            let (role, engine) = (Role::Aggregated, self.serving);
            let serving = thresholds::wanted(target, role, engine, &passes.serving, ready.serving, least.serving)?;
            return Some(self.fitted(Sides { prefill: 0, serving }));
        };
        let of_prefill = thresholds::wanted(
            target,
            Role::Prefill,
            prefill,
            &passes.prefill,
            ready.prefill,
            least.prefill,
        );
        let of_serving = thresholds::wanted(
            target,
            Role::Decode,
            self.serving,
            &passes.serving,
            ready.serving,
            least.serving,
        );
        Some(self.fitted(Sides {
            prefill: of_prefill.unwrap_or(ready.prefill),
            serving: of_serving.unwrap_or(ready.serving),
        }))
    }

    /// Workers that the traffic to come asks for, unless that is only a floor for those that load asks for; `None`: as they
    /// are.
    fn by_throughput(&mut self, counts: Sides<Counts>) -> Option<Sides<u32>> {
        let Judge::Service(service) = &mut self.judge else {
            return None;
        };
        let ready = Sides {
            prefill: counts.prefill.ready,
            serving: counts.serving.ready,
        };
        let wanted = service.by_throughput(ready, self.config.least)?;
        if self.by_load {
            service.floor = wanted;
            return None;
        }
        Some(self.fitted(wanted))
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
        if let Judge::Service(service) = &mut self.judge {
            service.note(&snapshot.traffic);
            // A little too early is in time: sums of short steps are not exact.
            if now_s - self.last.learned >= self.config.load_interval_s - 1e-9 {
                self.last.learned = now_s;
                service.learn(&self.passes.prefill.all(), &self.passes.serving.all());
            }
        }
        let mut wanted = None;
        if let Some(throughput) = self.throughput
            && now_s - self.last.by_throughput >= throughput.interval_s
        {
            self.last.by_throughput = now_s;
            wanted = self.by_throughput(counts);
        }
        if self.by_load && now_s - self.last.by_load >= self.config.load_interval_s {
            self.last.by_load = now_s;
            if let Judge::Service(service) = &mut self.judge {
                service.refresh();
            }
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
