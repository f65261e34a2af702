//! The virtual clock: settle everything at one instant, jump to the next.
//!
//! At one instant, repeated until nothing changes: transfers of idle workers between their memories; passes that end (prefill
//! pool first, by worker), their cache changes and outputs in order, requests that the router lets go; what these passes did
//! to memory that idle workers share; workers that become ready; KV that has arrived, orders to
//! workers; arrivals; then idle workers start passes, lowest number first; drained workers leave; last, a policy that
//! scales is asked. Source: Dynamo 1.6.1 offline replay.

mod dispatch;
mod handoff;
mod passes;
mod pool;
pub(super) mod routing;
mod sharing;
mod spec;
mod ticks;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::engine::{DiskUse, EngineKind, HandoffFact, Semantics, SharedMemory};
use crate::types::{SimTime, Token};

use super::collector::Collector;
use super::fleet::Doing;
use super::flight::Flights;
use super::memory::MemoryLimit;
use super::planner::Planner;
use super::report::{FleetUse, Report, Sla};
use super::source::Source;
use handoff::{Handoffs, PREFILL};
use pool::Pool;
use routing::Side;
use sharing::Sharing;
use spec::CLOCK_END;
use ticks::{FirstTokens, Scaling};

pub use spec::{Control, FleetSpec, PoolSpec, PrefillSpec, Progress, ReplayError, RouterSpec};

/// Events between two looks at the observer.
const EVENTS_PER_LOOK: u32 = 4096;

/// A worker of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    pool: u8,
    worker: u32,
}

/// What is due besides passes; sorts by what comes first at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// A worker takes requests from now on.
    Ready(Place),
    /// The KV of a request arrives: order of departure, request.
    Transfer(u64, u64),
}

/// A fleet in virtual time.
pub struct Harness {
    now: SimTime,
    /// Pass ends: when, which worker.
    passes: BinaryHeap<Reverse<(SimTime, Place)>>,
    others: BinaryHeap<Reverse<(SimTime, Due)>>,
    /// When a transfer between the memories of a worker without a pass is over.
    wakes: BinaryHeap<Reverse<(SimTime, Place)>>,
    /// The prefill side first, if there is one.
    pools: Vec<Pool>,
    /// Pool that a request is sent to first.
    first_pool: u8,
    /// Pool that answers.
    serving_pool: u8,
    handoffs: Option<Handoffs>,
    scaling: Option<Scaling>,
    /// Idle workers that may have work.
    ready: Vec<Place>,
    /// Workers that take requests since the last look.
    changed: Vec<Place>,
    /// Requests for a pool without active workers.
    parked: Vec<(u8, u64)>,
    flights: Flights,
    collector: Collector,
    events_at_start: bool,
    looks_between_passes: bool,
    sharing: Sharing,
    /// Counts what has happened.
    turns: u64,
    /// What disks of workers did that are gone.
    disk_of_gone: Option<DiskUse>,
    /// Arrivals come before orders of handoffs, not behind them (Dynamo 1.4.2).
    arrivals_first: bool,
    sla: Sla,
    max_sim_time: Option<SimTime>,
    memory: MemoryLimit,
    prompt: Vec<Token>,
    facts: Vec<HandoffFact>,
    ended: u64,
    /// Why the replay cannot go on.
    fault: Option<ReplayError>,
}

impl Harness {
    /// An idle fleet at time 0.
    ///
    /// # Errors
    /// [`ReplayError`] when no worker can be built or the router has nothing to choose from.
    pub fn new(fleet: FleetSpec, router: &RouterSpec) -> Result<Self, ReplayError> {
        let specs = [Some(&fleet.serving), fleet.prefill.as_ref().map(|side| &side.pool)];
        if specs
            .iter()
            .flatten()
            .any(|pool| pool.workers == 0 || pool.dp_size == 0)
        {
            return Err(ReplayError::NoWorkers);
        }
        let shared = SharedMemory::new();
        let arrivals_first = fleet.serving.engine.semantics == Semantics::V1_4_2;
        let (pools, handoffs) = match fleet.prefill {
            None => (vec![Pool::new(fleet.serving, router, Side::Aggregated, &shared)?], None),
            Some(prefill) => {
                let whole_answers = prefill.whole_answers;
                let handoffs = Handoffs::new(
                    prefill.transfer,
                    prefill.missing_only,
                    &fleet.serving.engine,
                    whole_answers,
                );
                let pools = vec![
                    Pool::new(prefill.pool, router, Side::Prefill, &shared)?,
                    Pool::new(fleet.serving, router, Side::Decode, &shared)?,
                ];
                (pools, Some(handoffs))
            }
        };
        let serving_pool = u8::from(handoffs.is_some());
        let destination_first = handoffs.as_ref().is_some_and(|handoffs| handoffs.destination_first);
        Ok(Self {
            now: SimTime::ZERO,
            passes: BinaryHeap::new(),
            others: BinaryHeap::new(),
            wakes: BinaryHeap::new(),
            first_pool: if destination_first { serving_pool } else { PREFILL },
            serving_pool,
            handoffs,
            scaling: None,
            ready: Vec::new(),
            changed: Vec::new(),
            parked: Vec::new(),
            flights: Flights::default(),
            collector: Collector::default(),
            events_at_start: fleet.events_at_start,
            looks_between_passes: fleet.looks_between_passes,
            sharing: Sharing::new(shared, &pools),
            turns: 0,
            disk_of_gone: None,
            arrivals_first,
            sla: Sla::default(),
            max_sim_time: None,
            memory: MemoryLimit::default(),
            prompt: Vec::new(),
            facts: Vec::new(),
            ended: 0,
            fault: None,
            pools,
        })
    }

    /// Counts requests within these bounds.
    #[must_use]
    pub fn with_sla(mut self, sla: Sla) -> Self {
        self.sla = sla;
        self.collector.set_sla(sla);
        self
    }

    /// Keeps a record of every request.
    #[must_use]
    pub fn with_records(mut self) -> Self {
        let serving = &self.pools[self.serving_pool as usize].spec;
        let decode_first = self.handoffs.is_some() && self.first_pool == self.serving_pool;
        self.collector
            .keep_records(serving.dp_size, serving.engine.block_size, decode_first);
        self
    }

    /// Keeps curves over time and latency distributions.
    #[must_use]
    pub fn with_curves(mut self) -> Self {
        self.collector.keep_series();
        self
    }

    /// Ends before the first event after `limit`; passes under way then do not count.
    #[must_use]
    pub fn with_max_sim_time(mut self, limit: SimTime) -> Self {
        self.max_sim_time = Some(limit);
        self
    }

    /// Gives up before requests take more than so many bytes.
    #[must_use]
    pub fn with_memory_limit(mut self, bytes: u64) -> Self {
        self.memory = MemoryLimit(bytes);
        self
    }

    /// Lets a policy scale the fleet.
    ///
    /// # Errors
    /// [`ReplayError::Planner`] when it does not answer.
    pub fn with_planner(mut self, planner: Box<dyn Planner>) -> Result<Self, ReplayError> {
        let engine = &self.pools[self.serving_pool as usize].spec.engine;
        let computed_before = self.handoffs.is_some() || engine.kind == EngineKind::Sglang;
        let first_tokens = match engine.semantics {
            Semantics::V1_6_1 => FirstTokens::NoStep,
            Semantics::V1_4_2 if computed_before => FirstTokens::OneOfThem,
            Semantics::V1_4_2 => FirstTokens::AnotherStep,
        };
        self.scaling = Some(Scaling::new(planner, first_tokens)?);
        self.pools.iter_mut().for_each(Pool::watch);
        Ok(self)
    }

    /// Plays a workload to its end. `observe` is asked every few thousand events.
    ///
    /// # Errors
    /// [`ReplayError`] when requests wait for something that cannot happen, or a router or policy gives up.
    pub fn run(
        mut self,
        source: &mut dyn Source,
        mut observe: impl FnMut(Progress) -> Control,
    ) -> Result<Report, ReplayError> {
        let mut partial = false;
        let mut events = 0;
        loop {
            self.settle(source);
            if let Some(fault) = self.fault.take() {
                return Err(fault);
            }
            if self.scaling.as_ref().is_some_and(|scaling| scaling.interrupted) {
                partial = true;
                break;
            }
            let waiting = self.flights.len();
            if waiting == 0 && source.is_drained() {
                self.come_to_rest();
                break;
            }
            let Some(next) = self.next_instant(source) else {
                return Err(if waiting > 0 {
                    ReplayError::DeadEnd(waiting)
                } else {
                    ReplayError::NeverDue
                });
            };
            if self.max_sim_time.is_some_and(|limit| next > limit) {
                if self.looks_between_passes && waiting == 0 {
                    // The only worker of Dynamo 1.4.2 has gone on to the next arrival before it looks at the clock.
                    self.now = next;
                }
                break;
            }
            if next > CLOCK_END {
                return Err(ReplayError::ClockEnd);
            }
            self.now = next;
            self.run_quietly(source);
            events += 1;
            if events == EVENTS_PER_LOOK {
                events = 0;
                let progress = Progress {
                    ended: self.ended,
                    total: source.total(),
                    now: self.now,
                };
                if observe(progress) == Control::Stop {
                    partial = true;
                    break;
                }
            }
        }
        let ended_at = self.now;
        self.cut_off(source);
        Ok(self.report(ended_at, source, partial))
    }

    /// A fleet with host memory is at rest when what is on its way there has arrived.
    fn come_to_rest(&mut self) {
        self.rest_shared();
        let idle_since = self.now;
        for pool in &mut self.pools {
            for (_, worker) in pool.workers() {
                for rank in &mut worker.ranks {
                    let mut last = idle_since;
                    while let Some(at) = rank.engine.wakes_at().filter(|at| *at > last) {
                        last = at;
                        rank.engine.step_into(at, &mut rank.pass);
                    }
                    self.now = self.now.max(last);
                }
            }
        }
    }

    fn report(mut self, ended_at: SimTime, source: &dyn Source, partial: bool) -> Report {
        let mut used = FleetUse {
            shared_host: self.sharing.memory.host(),
            disk: self.disk(),
            ..FleetUse::default()
        };
        for (at, pool) in self.pools.iter_mut().enumerate() {
            // The loop of 1.4.2 for a single worker knows no other time than that of the last completion.
            let seconds = if self.looks_between_passes {
                f64::from(pool.spec.workers) * self.collector.last_completion.as_ms() / 1e3
            } else {
                pool.worker_seconds(ended_at)
            };
            let share = (seconds, pool.spec.gpus_per_worker);
            if at == self.serving_pool as usize {
                used.decode = share;
            } else {
                used.prefill = share;
            }
            for (_, worker) in pool.workers() {
                for rank in &mut worker.ranks {
                    rank.line.finish(|gap, requests| self.collector.gap(gap, requests));
                }
            }
        }
        if self.looks_between_passes {
            self.collector.tell_less();
        }
        let scaling = self.scaling.map(|scaling| scaling.log);
        Report::new(self.collector, self.sla, used, source.trajectories(), scaling, partial)
    }

    /// Whether a pool is the prefill side of a disaggregated fleet.
    fn is_prefill_side(&self, pool: u8) -> bool {
        pool != self.serving_pool
    }

    fn fail(&mut self, error: ReplayError) {
        self.fault.get_or_insert(error);
    }

    /// When anything but a pass ends or happens, as far as that is known.
    fn next_outside(&self, source: &dyn Source) -> Option<SimTime> {
        let other = self.others.peek().map(|Reverse((at, _))| *at);
        let wake = self.wakes.peek().map(|Reverse((at, _))| *at);
        let tick = self.scaling.as_ref().and_then(|scaling| scaling.next);
        [source.next_at(), other, wake, self.next_look(), tick]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether what is due has to wait for the end of the pass of the only worker.
    fn looks_away(&self) -> bool {
        self.looks_between_passes && !self.passes.is_empty()
    }

    fn next_instant(&self, source: &dyn Source) -> Option<SimTime> {
        let pass = self.passes.peek().map(|Reverse((at, _))| *at);
        if self.looks_away() {
            return pass;
        }
        [pass, self.next_outside(source)].into_iter().flatten().min()
    }

    /// While the next thing to happen is the end of a quiet pass and nothing else at that instant, only that worker goes
    /// on: nobody can notice.
    fn run_quietly(&mut self, source: &dyn Source) {
        let outside = self.next_outside(source).unwrap_or(SimTime::MAX);
        let limit = self.max_sim_time.unwrap_or(SimTime::MAX);
        while let Some(Reverse((at, place))) = self.passes.pop() {
            let alone = self.passes.peek().is_none_or(|Reverse((other, _))| *other > at);
            let worker = self.pools[place.pool as usize].worker(place.worker);
            if !alone || !worker.quiet || at >= outside || at > limit {
                self.passes.push(Reverse((at, place)));
                return;
            }
            self.now = at;
            for rank in worker.ranks.iter_mut().filter(|rank| rank.doing == Doing::Quiet) {
                rank.line.push(at, |gap, requests| self.collector.gap(gap, requests));
            }
            self.start(place);
        }
    }

    /// Everything that happens at this instant.
    fn settle(&mut self, source: &mut dyn Source) {
        loop {
            while let Some(&Reverse((at, place))) = self.wakes.peek()
                && at <= self.now
            {
                self.wakes.pop();
                self.wake(place);
            }
            let turns = self.turns;
            self.look_at_shared();
            let passes = self.passes.len();
            while let Some(&Reverse((at, place))) = self.passes.peek()
                && at <= self.now
            {
                self.passes.pop();
                self.finish_pass(place, source);
            }
            if self.passes.len() < passes {
                self.look_at_shared();
            }
            while let Some(&Reverse((at, due))) = self.others.peek()
                && at <= self.now
            {
                self.others.pop();
                match due {
                    Due::Ready(place) => {
                        if self.pools[place.pool as usize].ready(place.worker, self.now) {
                            self.changed.push(place);
                        }
                    }
                    Due::Transfer(_, id) => self.transferred(id),
                }
            }
            self.welcome(source);
            let ended = self.ended;
            let arrived = self.flights.len();
            if self.arrivals_first {
                self.take_arrivals(source);
                self.carry_out(source);
            } else {
                self.carry_out(source);
                self.take_arrivals(source);
            }
            self.turns += u64::from(self.flights.len() != arrived);
            if self.sharing.any {
                self.start_sharers(source);
            } else {
                self.start_ready(source);
            }
            let (now, collector) = (self.now, &mut self.collector);
            for pool in &mut self.pools {
                let disk = &mut self.disk_of_gone;
                pool.sweep(now, |mut worker| {
                    if let Some(gone) = worker.disk() {
                        disk.get_or_insert_default().add(&gone.gone());
                    }
                    for rank in &mut worker.ranks {
                        rank.line.finish(|gap, requests| collector.gap(gap, requests));
                    }
                });
            }
            if self.fault.is_some() {
                return;
            }
            let pass_due = self.passes.peek().is_some_and(|Reverse((at, _))| *at <= now);
            let other_due = self.others.peek().is_some_and(|Reverse((at, _))| *at <= now)
                || self.wakes.peek().is_some_and(|Reverse((at, _))| *at <= now)
                || self.next_look().is_some_and(|at| at <= now);
            let arrival_due = !self.looks_away() && source.next_at().is_some_and(|at| at <= now);
            // A closed loop goes on when a request ends, also in a pass that takes no time.
            let place_free = self.ended > ended && !self.looks_away();
            let stuck = self.turns != turns && !self.sharing.stuck.is_empty();
            let ordered = self.handoffs.as_ref().is_some_and(Handoffs::has_orders);
            if pass_due || other_due || arrival_due || place_free || ordered || stuck || !self.ready.is_empty() {
                continue;
            }
            let over = self.flights.len() == 0 && source.is_drained();
            let tick_due = self
                .scaling
                .as_ref()
                .and_then(|scaling| scaling.next)
                .is_some_and(|at| at <= now);
            if over || !tick_due {
                return;
            }
            self.tick();
        }
    }

    fn take_arrivals(&mut self, source: &mut dyn Source) {
        while !self.looks_away()
            && let Some(turn) = source.take(self.now)
        {
            self.arrive(turn, source);
            if let Err(error) = self.memory.check(&self.flights, &self.collector) {
                self.fail(error);
                return;
            }
        }
    }

    /// Workers that take requests since the last look may get what waited for them.
    fn welcome(&mut self, source: &mut dyn Source) {
        while let Some(place) = self.changed.pop() {
            self.release(place.pool, source);
            let Some(handoffs) = &mut self.handoffs else { continue };
            self.parked.retain(|&(pool, id)| {
                if pool == place.pool {
                    handoffs.route(pool, id);
                }
                pool != place.pool
            });
        }
    }

    /// Idle workers start passes, the lowest number first. What a pass that takes no time has to say is heard before any
    /// other worker starts, and its worker goes on.
    fn start_ready(&mut self, source: &mut dyn Source) {
        let mut ready = std::mem::take(&mut self.ready);
        let lowest_last = |ready: &mut Vec<Place>| ready.sort_unstable_by(|a, b| b.cmp(a));
        lowest_last(&mut ready);
        while let Some(place) = ready.pop() {
            self.pools[place.pool as usize].worker(place.worker).listed = false;
            self.start(place);
            let at_once = self.passes.peek() == Some(&Reverse((self.now, place))) && !self.looks_between_passes;
            if at_once {
                self.passes.pop();
                self.finish_pass(place, source);
                ready.append(&mut self.ready);
                lowest_last(&mut ready);
            }
        }
        ready.append(&mut self.ready);
        self.ready = ready;
    }

    /// What is under way when the clock stops: the answer that is complete counts also where its prefill worker still holds
    /// it. A pass does not, but for the only worker of Dynamo 1.4.2, which looks at the clock between passes only, when it
    /// has taken in who came meanwhile.
    fn cut_off(&mut self, source: &mut dyn Source) {
        if self.looks_between_passes {
            while let Some(Reverse((at, place))) = self.passes.pop() {
                self.now = at;
                self.finish_pass(place, source);
            }
            if source.has_times() {
                self.take_arrivals(source);
            }
        }
        for (_, flight) in self.flights.take_all() {
            let over = flight.handoff.as_ref().and_then(|handoff| handoff.over);
            if let Some((terminal, at)) = over {
                self.collector.record(&flight, terminal, at, source);
            }
        }
    }

    /// A worker may have something to do.
    fn list(&mut self, place: Place) {
        let worker = self.pools[place.pool as usize].worker(place.worker);
        if !worker.busy && !worker.listed {
            worker.listed = true;
            self.ready.push(place);
        }
    }
}
