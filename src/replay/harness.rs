//! The virtual clock: settle everything at one instant, jump to the next.
//!
//! At one instant, repeated until nothing changes: passes that end (by worker), their cache changes and outputs in order,
//! requests that the router lets go; then arrivals; then idle workers start passes, lowest number first. Source: Dynamo
//! 1.6.1 offline replay.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use crate::block_hash::{BlockHasher, chain, salted_seed};
use crate::engine::{self, EngineConfig, Output};
use crate::router::{self, KvRouter, Placement, RoundRobin, RouterConfig, Routing, Target};
use crate::types::{EngineRequest, HashSalt, KvEvent, RequestId, SequenceHash, SimTime, StopRule, Token};

use super::collector::Collector;
use super::fleet::{Doing, Worker};
use super::flight::{Flight, Flights};
use super::record::Terminal;
use super::report::{FleetSize, Report, Sla};
use super::source::{Source, Turn};

/// Events between two looks at the observer.
const EVENTS_PER_LOOK: u32 = 4096;

/// The workers.
#[derive(Debug, Clone)]
pub struct FleetSpec {
    /// Each rank.
    pub engine: EngineConfig,
    /// Workers, at least 1.
    pub workers: u32,
    /// Data-parallel ranks of each.
    pub dp_size: u32,
    /// For GPU hours.
    pub gpus_per_worker: u32,
    /// Cache changes reach the router when a pass begins, not when it ends (Dynamo 1.4.2 with vLLM).
    pub events_at_start: bool,
}

/// The router.
#[derive(Debug, Clone)]
pub enum RouterSpec {
    /// One after the other.
    RoundRobin,
    /// By cached prefix and load.
    Kv {
        /// Weights and queue.
        config: Box<RouterConfig>,
        /// Decides ties.
        seed: u64,
        /// How long a cache change takes to reach the router.
        event_lag: Duration,
    },
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Requests that ended.
    pub ended: u64,
    /// Requests in all.
    pub total: u64,
    /// Virtual time.
    pub now: SimTime,
}

/// What the observer wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Go on.
    Continue,
    /// End here with a partial report.
    Stop,
}

/// Why a replay cannot run or go on.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// No engine can be built.
    #[error(transparent)]
    Engine(#[from] engine::ConfigError),
    /// Nobody to serve.
    #[error("a replay needs at least 1 worker")]
    NoWorkers,
    /// A KV router with one place has nothing to decide.
    #[error(
        "router mode kv_router needs more than one worker or data-parallel rank to choose from; use round_robin or add workers"
    )]
    OneTarget,
    /// Something waits for what cannot come.
    #[error("replay cannot go on: {0} requests are in flight and no event is due")]
    DeadEnd(usize),
}

enum Router {
    RoundRobin(RoundRobin),
    Kv(Box<Kv>),
}

struct Kv {
    router: KvRouter,
    lag: Duration,
    /// Cache changes on their way: due, from, what.
    pending: VecDeque<(SimTime, Target, KvEvent)>,
    block_size: usize,
    hasher: BlockHasher,
}

impl Kv {
    /// Takes over the cache changes that are due.
    fn catch_up(&mut self, now: SimTime) {
        while self.pending.front().is_some_and(|(due, ..)| *due <= now)
            && let Some((_, target, event)) = self.pending.pop_front()
        {
            self.router.apply(target, &event);
        }
    }

    fn hashes(&mut self, prompt: &[Token]) -> Box<[SequenceHash]> {
        let mut parent = None;
        let block = |tokens: &[Token]| {
            let hash = chain(parent, self.hasher.local(tokens));
            parent = Some(hash);
            hash
        };
        prompt.chunks_exact(self.block_size).map(block).collect()
    }
}

/// A fleet in virtual time.
pub struct Harness {
    now: SimTime,
    /// Pass ends: when, which worker.
    events: BinaryHeap<Reverse<(SimTime, u32)>>,
    workers: Vec<Worker>,
    numbers: Vec<u32>,
    /// Idle workers that may have work.
    ready: Vec<u32>,
    router: Router,
    flights: Flights,
    collector: Collector,
    events_at_start: bool,
    dp_size: u32,
    gpus_per_worker: u32,
    sla: Sla,
    max_sim_time: Option<SimTime>,
    prompt: Vec<Token>,
    ended: u64,
}

impl Harness {
    /// An idle fleet at time 0.
    ///
    /// # Errors
    /// [`ReplayError`] when no worker can be built or the router has nothing to choose from.
    pub fn new(fleet: &FleetSpec, router: RouterSpec) -> Result<Self, ReplayError> {
        if fleet.workers == 0 || fleet.dp_size == 0 {
            return Err(ReplayError::NoWorkers);
        }
        let workers = (0_u64..).take(fleet.workers as usize);
        let workers = workers.map(|index| Worker::new(&fleet.engine, index, fleet.dp_size));
        let workers = workers.collect::<Result<Vec<_>, _>>()?;
        let router = match router {
            RouterSpec::RoundRobin => Router::RoundRobin(RoundRobin::default()),
            RouterSpec::Kv { .. } if fleet.workers * fleet.dp_size == 1 => return Err(ReplayError::OneTarget),
            RouterSpec::Kv {
                config,
                seed,
                event_lag,
            } => {
                let engine = &fleet.engine;
                let mut router = KvRouter::new(*config, engine.block_size, engine.max_num_batched_tokens, seed);
                for worker in 0..fleet.workers {
                    (0..fleet.dp_size).for_each(|rank| router.add(Target { worker, rank }));
                }
                Router::Kv(Box::new(Kv {
                    router,
                    lag: event_lag,
                    pending: VecDeque::new(),
                    block_size: engine.block_size as usize,
                    hasher: BlockHasher::with_seed(salted_seed(&HashSalt::default())),
                }))
            }
        };
        Ok(Self {
            now: SimTime::ZERO,
            events: BinaryHeap::new(),
            numbers: (0..fleet.workers).collect(),
            ready: Vec::new(),
            router,
            flights: Flights::default(),
            collector: Collector::default(),
            events_at_start: fleet.events_at_start,
            dp_size: fleet.dp_size,
            gpus_per_worker: fleet.gpus_per_worker,
            sla: Sla::default(),
            max_sim_time: None,
            prompt: Vec::new(),
            ended: 0,
            workers,
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
        self.collector.keep_records(self.dp_size);
        self
    }

    /// Keeps curves over time and latency distributions.
    #[must_use]
    pub fn with_curves(mut self) -> Self {
        self.collector.keep_series();
        self
    }

    /// Ends before the first event after `limit`; passes under way then still count.
    #[must_use]
    pub fn with_max_sim_time(mut self, limit: Duration) -> Self {
        self.max_sim_time = Some(SimTime::ZERO + limit);
        self
    }

    /// Plays a workload to its end. `observe` is asked every few thousand events.
    ///
    /// # Errors
    /// [`ReplayError::DeadEnd`] when requests wait for something that cannot happen.
    pub fn run(
        mut self,
        source: &mut dyn Source,
        mut observe: impl FnMut(Progress) -> Control,
    ) -> Result<Report, ReplayError> {
        let mut partial = false;
        let mut events = 0;
        loop {
            self.settle(source);
            let Some(next) = self.next_instant(source) else {
                if self.flights.len() > 0 {
                    return Err(ReplayError::DeadEnd(self.flights.len()));
                }
                break;
            };
            if self.max_sim_time.is_some_and(|limit| next > limit) {
                break;
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
        self.finish_passes(source);
        let Self {
            mut collector, workers, ..
        } = self;
        let size = FleetSize {
            workers: u32::try_from(workers.len()).unwrap_or(u32::MAX),
            gpus_per_worker: self.gpus_per_worker,
            ended_at,
        };
        for mut rank in workers.into_iter().flat_map(|worker| worker.ranks) {
            rank.line.finish(|gap, requests| collector.gap(gap, requests));
        }
        Ok(Report::new(collector, self.sla, size, source.trajectories(), partial))
    }

    fn next_instant(&self, source: &dyn Source) -> Option<SimTime> {
        let pass = self.events.peek().map(|Reverse((at, _))| *at);
        match (pass, source.next_at()) {
            (Some(pass), Some(arrival)) => Some(pass.min(arrival)),
            (pass, arrival) => pass.or(arrival),
        }
    }

    /// While the next thing to happen is the end of a quiet pass and nothing else at that instant, only that worker goes
    /// on: nobody can notice.
    fn run_quietly(&mut self, source: &dyn Source) {
        let arrival = source.next_at();
        let limit = self.max_sim_time;
        while let Some(Reverse((at, number))) = self.events.pop() {
            let alone = self.events.peek().is_none_or(|Reverse((other, _))| *other > at);
            let worker = &mut self.workers[number as usize];
            let unseen = alone && worker.quiet && arrival.is_none_or(|arrival| arrival > at);
            if !unseen || limit.is_some_and(|limit| at > limit) {
                self.events.push(Reverse((at, number)));
                return;
            }
            self.now = at;
            for rank in worker.ranks.iter_mut().filter(|rank| rank.doing == Doing::Quiet) {
                rank.line.push(at, |gap, requests| self.collector.gap(gap, requests));
            }
            self.start(number);
        }
    }

    /// Everything that happens at this instant.
    fn settle(&mut self, source: &mut dyn Source) {
        loop {
            while let Some(&Reverse((at, number))) = self.events.peek()
                && at <= self.now
            {
                self.events.pop();
                self.finish_pass(number, source);
            }
            while let Some(turn) = source.take(self.now) {
                self.arrive(turn, source);
            }
            let mut ready = std::mem::take(&mut self.ready);
            ready.sort_unstable();
            for &number in &ready {
                self.workers[number as usize].listed = false;
                self.start(number);
            }
            ready.clear();
            self.ready = ready;
            let again = self.next_instant(source).is_some_and(|next| next <= self.now);
            if !again {
                return;
            }
        }
    }

    /// A worker may have something to do.
    fn list(&mut self, number: u32) {
        let worker = &mut self.workers[number as usize];
        if !worker.busy && !worker.listed {
            worker.listed = true;
            self.ready.push(number);
        }
    }

    fn arrive(&mut self, turn: Turn, source: &mut dyn Source) {
        self.collector.arrived += 1;
        let (tag, arrival) = (turn.tag, turn.arrival);
        let routed = match &mut self.router {
            Router::RoundRobin(cursor) => {
                let target = cursor.pick(&self.numbers, self.dp_size);
                let id = self.flights.add(turn, arrival);
                target.map(|target| (id, target, None))
            }
            Router::Kv(kv) => {
                kv.catch_up(self.now);
                self.prompt.clear();
                source.write_prompt(tag, &mut self.prompt);
                let blocks = kv.hashes(&self.prompt);
                let (isl, strict_priority, priority) = (turn.input_tokens, turn.strict_priority, turn.priority);
                let id = self.flights.add(turn, arrival);
                let request = router::Arrival {
                    id,
                    isl: u64::from(isl),
                    blocks,
                    strict_priority,
                    priority,
                    prefill_ms: None,
                };
                match kv.router.arrive(request, self.now) {
                    Some(Routing::Now(placement)) => Some((id, placement.target, Some(placement))),
                    Some(Routing::Queued) | None => {
                        if let Some(flight) = self.flights.get(id) {
                            flight.queued = true;
                        }
                        None
                    }
                }
            }
        };
        if let Some((id, target, placement)) = routed {
            self.dispatch(id, target, placement, source);
        }
    }

    fn dispatch(&mut self, id: u64, target: Target, placement: Option<Placement>, source: &mut dyn Source) {
        let Some(flight) = self.flights.get(id) else { return };
        flight.dispatched = Some(self.now);
        flight.target = Some(target);
        flight.overlap = placement.map(|placement| (placement.overlap_blocks, placement.best_overlap_blocks));
        let tag = flight.turn.tag;
        let request = EngineRequest {
            id: RequestId(id),
            key: u64::from(tag) + 1,
            prompt: source.prompt(tag),
            stop: StopRule {
                max_tokens: Some(flight.turn.output_tokens),
                ignore_eos: true,
                ..StopRule::default()
            },
            planned: flight.turn.planned.clone(),
            priority: 0,
            salt: HashSalt::default(),
        };
        source.dispatched(tag, self.now);
        match self.workers[target.worker as usize].submit(target.rank, request, self.now) {
            Ok(()) => self.list(target.worker),
            Err(_) => self.end(id, Terminal::Rejected, source),
        }
    }

    fn start(&mut self, number: u32) {
        let now = self.now;
        let worker = &mut self.workers[number as usize];
        let Some(ends_at) = worker.start(now) else { return };
        self.events.push(Reverse((ends_at, number)));
        if worker.quiet {
            return;
        }
        for (rank_number, rank) in (0..).zip(&mut worker.ranks) {
            if rank.doing != Doing::Pass {
                continue;
            }
            let mut pass = std::mem::take(&mut rank.pass);
            self.collector.prefilled += pass.forward.prefill_tokens;
            for &RequestId(id) in &pass.preempted {
                let Some(flight) = self.flights.get(id) else { continue };
                let Some(first) = flight.stretch.take() else { continue };
                let last = rank.line.last();
                close_stretch(flight, first, last, &rank.line);
                flight.stretches.push((first, last));
                rank.interrupt();
            }
            for admission in &pass.admissions {
                let Some(flight) = self.flights.get(admission.id.0) else {
                    continue;
                };
                if flight.admissions == 0 {
                    flight.first_admit = Some(now);
                    flight.first_reused = admission.cached_tokens;
                }
                flight.admissions += 1;
                flight.reused = flight.reused.max(admission.cached_tokens);
            }
            if self.events_at_start {
                let target = Target {
                    worker: number,
                    rank: rank_number,
                };
                self.router.apply(target, &mut pass.kv_events, now);
            }
            rank.pass = pass;
        }
    }

    fn finish_pass(&mut self, number: u32, source: &mut dyn Source) {
        let now = self.now;
        self.workers[number as usize].busy = false;
        for rank_number in 0..self.dp_size {
            let rank = &mut self.workers[number as usize].ranks[rank_number as usize];
            let doing = std::mem::replace(&mut rank.doing, Doing::Nothing);
            if doing == Doing::Nothing {
                continue;
            }
            rank.line.push(now, |gap, requests| self.collector.gap(gap, requests));
            if doing == Doing::Quiet {
                continue;
            }
            let target = Target {
                worker: number,
                rank: rank_number,
            };
            let mut pass = std::mem::take(&mut rank.pass);
            self.router.apply(target, &mut pass.kv_events, now);
            for output in &pass.outputs {
                self.deliver(target, output, source);
            }
            self.workers[number as usize].ranks[rank_number as usize].pass = pass;
        }
        self.list(number);
    }

    /// One output: a token that matters, or an end.
    fn deliver(&mut self, target: Target, output: &Output, source: &mut dyn Source) {
        let now = self.now;
        match *output {
            Output::Token {
                id: RequestId(id),
                finish,
                ..
            } => {
                let worker = &mut self.workers[target.worker as usize];
                let exact = worker.is_exact();
                let rank = &mut worker.ranks[target.rank as usize];
                let Some(flight) = self.flights.get(id) else { return };
                let first = flight.tokens == 0;
                if exact || first || flight.is_interrupted() {
                    if first {
                        flight.first_token = Some(now);
                    } else {
                        flight.gaps.push(now.0 - flight.last_token.0);
                        flight.second_token = flight.second_token.or(Some(now));
                    }
                    if !exact {
                        if !first {
                            rank.resume();
                        }
                        flight.stretch = Some(rank.line.open());
                    }
                    flight.tokens += 1;
                    flight.last_token = now;
                } else if finish.is_some()
                    && let Some(begin) = flight.stretch
                {
                    close_stretch(flight, begin, rank.line.last(), &rank.line);
                }
                if finish.is_some() {
                    self.end(id, Terminal::Completed, source);
                } else if first {
                    self.prefill_completed(id, source);
                }
            }
            Output::Empty { id, .. } => self.end(id.0, Terminal::Completed, source),
            Output::Rejected { id, .. } => self.end(id.0, Terminal::Rejected, source),
        }
    }

    fn prefill_completed(&mut self, id: u64, source: &mut dyn Source) {
        if let Router::Kv(kv) = &mut self.router {
            kv.catch_up(self.now);
            kv.router.prefill_completed(id, self.now);
            self.release(source);
        }
    }

    /// Dispatches what the router lets go.
    fn release(&mut self, source: &mut dyn Source) {
        while let Router::Kv(kv) = &mut self.router
            && let Some(placement) = kv.router.release(self.now)
        {
            self.dispatch(placement.id, placement.target, Some(placement), source);
        }
    }

    /// A request leaves.
    fn end(&mut self, id: u64, terminal: Terminal, source: &mut dyn Source) {
        let Some(flight) = self.flights.remove(id) else { return };
        self.ended += 1;
        let now = self.now;
        if let Some(target) = flight.target {
            let worker = &mut self.workers[target.worker as usize];
            let listed_anyway = worker.is_exact();
            let rank = &mut worker.ranks[target.rank as usize];
            if flight.is_interrupted() && !listed_anyway {
                rank.resume();
            }
            let line = &mut rank.line;
            let last = line.last();
            let stretches = flight.stretches.iter().copied();
            for (first, last) in stretches.chain(flight.stretch.map(|first| (first, last))) {
                if terminal == Terminal::Completed {
                    line.count(first, last);
                }
                line.close(first);
            }
        }
        if terminal == Terminal::Completed {
            self.collector.completed(&flight, now);
        }
        self.collector.record(id, &flight, terminal, now, source);
        source.ended(flight.turn.tag, now, terminal == Terminal::Completed);
        if let Router::Kv(kv) = &mut self.router {
            kv.catch_up(now);
            kv.router.free(id, now);
            self.release(source);
        }
    }

    /// The passes under way when the clock stops still bring their tokens.
    fn finish_passes(&mut self, source: &mut dyn Source) {
        while let Some(Reverse((at, number))) = self.events.pop() {
            self.now = at;
            self.finish_pass(number, source);
        }
    }
}

/// Books the tokens of a stretch that began with the token at the end of pass `first` and ends with that of pass `last`.
fn close_stretch(flight: &mut Flight, first: u64, last: u64, line: &super::timeline::Timeline) {
    if last <= first {
        return;
    }
    if flight.tokens == 1 {
        flight.second_token = line.end(first + 1);
    }
    flight.tokens += u32::try_from(last - first).unwrap_or(u32::MAX);
    flight.last_token = line.end(last).unwrap_or(flight.last_token);
}

impl Router {
    /// Tells a KV router about cache changes of a rank, at once or after the lag.
    fn apply(&mut self, target: Target, events: &mut Vec<KvEvent>, now: SimTime) {
        let Self::Kv(kv) = self else {
            events.clear();
            return;
        };
        if kv.lag.is_zero() {
            for event in events.drain(..) {
                kv.router.apply(target, &event);
            }
        } else {
            kv.pending
                .extend(events.drain(..).map(|event| (now + kv.lag, target, event)));
        }
    }
}
