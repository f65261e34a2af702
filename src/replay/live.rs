//! The same workload, router and report for workers that live in real time.
//!
//! Somebody else runs the requests and says what became of them; times are those of one clock that began at 0.

use crate::router::Target;
use crate::types::{EngineRequest, KvEvent, SimTime, Token};

use super::collector::Collector;
use super::flight::{AdmissionLog, Flights};
use super::harness::routing::{PoolRouter, Route, Routed, Side};
use super::harness::{PoolSpec, ReplayError, RouterSpec};
use super::record::Terminal;
use super::report::{FleetUse, Report, Sla};
use super::source::Source;

/// A request that a worker is to run.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Handle for [`LiveRun::first_token`] and [`LiveRun::ended`].
    pub id: u64,
    /// Where it goes.
    pub target: Target,
    /// What it is.
    pub request: EngineRequest,
}

/// What became of a request.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// When it entered the running batch, and prompt tokens that came from the cache; `None`: never.
    pub admitted: Option<(SimTime, u32)>,
    /// When each token came.
    pub tokens: Vec<SimTime>,
    /// Whether it ended with its last token.
    pub completed: bool,
}

/// See the module's text.
pub struct LiveRun {
    router: PoolRouter,
    /// Numbers of the workers.
    workers: Vec<u32>,
    spec: PoolSpec,
    flights: Flights,
    collector: Collector,
    sla: Sla,
    prompt: Vec<Token>,
    ended: u64,
}

impl LiveRun {
    /// A run on workers that are all ready.
    ///
    /// # Errors
    /// [`ReplayError`] without workers.
    pub fn new(spec: PoolSpec, router: &RouterSpec) -> Result<Self, ReplayError> {
        if spec.workers == 0 || spec.dp_size == 0 {
            return Err(ReplayError::NoWorkers);
        }
        let mut router = PoolRouter::new(router, &spec, Side::Aggregated);
        for worker in 0..spec.workers {
            router.add(worker, spec.dp_size);
        }
        Ok(Self {
            router,
            workers: (0..spec.workers).collect(),
            spec,
            flights: Flights::default(),
            collector: Collector::default(),
            sla: Sla::default(),
            prompt: Vec::new(),
            ended: 0,
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
        self.collector
            .keep_records(self.spec.dp_size, self.spec.engine.block_size);
        self
    }

    /// Keeps curves over time and latency distributions.
    #[must_use]
    pub fn with_curves(mut self) -> Self {
        self.collector.keep_series();
        self
    }

    /// How many workers there are.
    pub fn workers(&self) -> u32 {
        self.spec.workers
    }

    /// Requests that run or wait.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Requests that ended.
    pub fn ended_count(&self) -> u64 {
        self.ended
    }

    /// Whether the router looks at the workers' caches.
    pub fn follows_caches(&self) -> bool {
        self.router.reads_prompts()
    }

    /// Takes over changes of a rank's cache.
    pub fn cache_changed(&mut self, target: Target, events: &mut Vec<KvEvent>, now: SimTime) {
        self.router.apply(target, events, now);
    }

    /// Everything of the workload that is due, routed, to the end of `out`.
    ///
    /// # Errors
    /// [`ReplayError`] when the router turns a request away.
    pub fn take_due(
        &mut self,
        source: &mut dyn Source,
        now: SimTime,
        out: &mut Vec<Outgoing>,
    ) -> Result<(), ReplayError> {
        while let Some(turn) = source.take(now) {
            self.collector.arrived += 1;
            let (tag, arrival) = (turn.tag, turn.arrival);
            let id = self.flights.add(turn, arrival);
            if self.router.reads_prompts() {
                self.prompt.clear();
                source.write_prompt(tag, &mut self.prompt);
            }
            let Some(flight) = self.flights.get(id) else { continue };
            flight.route.asked = now;
            let places = (self.workers.as_slice(), self.spec.dp_size);
            match self.router.arrive(id, &flight.turn, &self.prompt, places, now)? {
                Routed::Now(route) => self.send(route, source, now, out),
                Routed::Queued => flight.route.queued = true,
                Routed::Nobody => return Err(ReplayError::NoActiveWorker(now)),
            }
        }
        Ok(())
    }

    fn send(&mut self, route: Route, source: &mut dyn Source, now: SimTime, out: &mut Vec<Outgoing>) {
        let Some(flight) = self.flights.get(route.id) else {
            return;
        };
        flight.dispatched = Some(now);
        flight.route.decided(route.target, route.overlap, route.replica, now);
        out.push(Outgoing {
            id: route.id,
            target: route.target,
            request: flight.request(route.id, source),
        });
    }

    fn release(&mut self, source: &mut dyn Source, now: SimTime, out: &mut Vec<Outgoing>) {
        while let Some(route) = self.router.release(now) {
            self.send(route, source, now, out);
        }
    }

    /// A request has its first token and goes on; requests that waited for that go to the end of `out`.
    pub fn first_token(&mut self, id: u64, source: &mut dyn Source, now: SimTime, out: &mut Vec<Outgoing>) {
        self.router.prefill_completed(id, now);
        self.release(source, now, out);
    }

    /// A request ended at `at`, which was heard `now`; requests that waited for that go to the end of `out`.
    pub fn ended(
        &mut self,
        id: u64,
        answer: &Answer,
        (at, now): (SimTime, SimTime),
        source: &mut dyn Source,
        out: &mut Vec<Outgoing>,
    ) {
        let Some(mut flight) = self.flights.remove(id) else {
            return;
        };
        self.ended += 1;
        if let Some((admitted, cached_tokens)) = answer.admitted {
            flight.first_admit = Some(admitted);
            flight.admissions = 1;
            (flight.reused, flight.first_reused) = (cached_tokens, cached_tokens);
            flight.admitted.push(AdmissionLog {
                at: admitted,
                prefill: false,
                reused: cached_tokens,
                again: false,
            });
            // What the cache did not have was computed.
            self.collector.prefilled += u64::from(flight.turn.input_tokens.saturating_sub(cached_tokens));
        }
        flight.first_token = answer.tokens.first().copied();
        flight.second_token = answer.tokens.get(1).copied();
        flight.last_token = answer.tokens.last().copied().unwrap_or_default();
        flight.tokens = u32::try_from(answer.tokens.len()).unwrap_or(u32::MAX);
        flight.gaps = answer.tokens.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        let terminal = if answer.completed {
            self.collector.completed(&flight, at);
            Terminal::Completed
        } else {
            Terminal::Rejected
        };
        self.collector.record(id, &flight, terminal, at, source);
        source.ended(flight.turn.tag, now, terminal);
        self.router.free(id, now);
        self.release(source, now, out);
    }

    /// The report of a run that ended at `ended_at`.
    pub fn report(self, ended_at: SimTime, source: &dyn Source, partial: bool) -> Report {
        let used = FleetUse {
            decode: (
                f64::from(self.spec.workers) * ended_at.as_ms() / 1e3,
                self.spec.gpus_per_worker,
            ),
            ..FleetUse::default()
        };
        Report::new(self.collector, self.sla, used, source.trajectories(), None, partial)
    }
}
