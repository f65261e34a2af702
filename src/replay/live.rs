//! The same workload, routers and report for workers that live in real time.
//!
//! Somebody else runs the requests and says what became of them; times are those of one clock that began at 0. In a
//! disaggregated fleet a request is routed to both sides at once: its halves meet at the prefill worker.

use crate::router::Target;
use crate::types::{EngineRequest, KvEvent, SimTime, TierEvent, Token};

use super::collector::Collector;
use super::flight::{AdmissionLog, Flights, Handoff};
use super::harness::routing::{PoolRouter, Route, Routed, Side};
use super::harness::{FleetSpec, PoolSpec, ReplayError, RouterSpec};
use super::memory::MemoryLimit;
use super::record::Terminal;
use super::report::{FleetUse, Report, Sla};
use super::source::Source;

/// What a worker does for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// The prompt.
    Prompt,
    /// The answer to a prompt that this prefill worker computes.
    Answer(Target),
}

/// A request, or half of one, that a worker is to run.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Handle for [`LiveRun::first_token`], [`LiveRun::prompt_over`] and [`LiveRun::ended`].
    pub id: u64,
    /// Which half.
    pub part: Part,
    /// Where it goes, on the side of that half.
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

/// One side of a fleet.
struct LivePool {
    router: PoolRouter,
    /// Numbers of the workers.
    workers: Vec<u32>,
    spec: PoolSpec,
}

impl LivePool {
    fn new(spec: PoolSpec, router: &RouterSpec, side: Side) -> Result<Self, ReplayError> {
        if spec.workers == 0 || spec.dp_size == 0 {
            return Err(ReplayError::NoWorkers);
        }
        let mut router = PoolRouter::new(router, &spec, side);
        for worker in 0..spec.workers {
            router.add(worker, spec.dp_size);
        }
        Ok(Self {
            router,
            workers: (0..spec.workers).collect(),
            spec,
        })
    }

    fn worker_seconds(&self, ended_at: SimTime) -> f64 {
        f64::from(self.spec.workers) * ended_at.as_ms() / 1e3
    }
}

/// See the module's text.
pub struct LiveRun {
    prefill: Option<LivePool>,
    serving: LivePool,
    flights: Flights,
    collector: Collector,
    sla: Sla,
    memory: MemoryLimit,
    prompt: Vec<Token>,
    ended: u64,
}

impl LiveRun {
    /// A run on workers that are all ready.
    ///
    /// # Errors
    /// [`ReplayError`] without workers.
    pub fn new(fleet: FleetSpec, router: &RouterSpec) -> Result<Self, ReplayError> {
        let side = if fleet.prefill.is_some() {
            Side::Decode
        } else {
            Side::Aggregated
        };
        let prefill = fleet
            .prefill
            .map(|prefill| LivePool::new(prefill.pool, router, Side::Prefill));
        Ok(Self {
            prefill: prefill.transpose()?,
            serving: LivePool::new(fleet.serving, router, side)?,
            flights: Flights::default(),
            collector: Collector::default(),
            sla: Sla::default(),
            memory: MemoryLimit::default(),
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

    /// Gives up before requests take more than so many bytes.
    #[must_use]
    pub fn with_memory_limit(mut self, bytes: u64) -> Self {
        self.memory = MemoryLimit(bytes);
        self
    }

    /// Keeps a record of every request.
    #[must_use]
    pub fn with_records(mut self) -> Self {
        let spec = &self.serving.spec;
        self.collector.keep_records(spec.dp_size, spec.engine.block_size, false);
        self
    }

    /// Keeps curves over time and latency distributions.
    #[must_use]
    pub fn with_curves(mut self) -> Self {
        self.collector.keep_series();
        self
    }

    /// Requests that run or wait.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Requests that ended.
    pub fn ended_count(&self) -> u64 {
        self.ended
    }

    /// Whether the router of the workers that get prompts looks at their caches.
    pub fn follows_caches(&self) -> bool {
        self.first().router.reads_prompts()
    }

    /// The pool that a request reaches first.
    fn first(&self) -> &LivePool {
        self.prefill.as_ref().unwrap_or(&self.serving)
    }

    /// Takes over changes of a rank's cache and of what it holds below its GPU, on the side of the workers that get prompts.
    pub fn cache_changed(
        &mut self,
        target: Target,
        (events, lower): (&mut Vec<KvEvent>, &mut Vec<TierEvent>),
        now: SimTime,
    ) {
        let pool = self.prefill.as_mut().unwrap_or(&mut self.serving);
        pool.router.apply(target, events, now);
        pool.router.apply_lower(target, lower, now);
    }

    /// Everything of the workload that is due, routed, to the end of `out`.
    ///
    /// # Errors
    /// [`ReplayError`] when a router turns a request away, or there are more than memory holds.
    pub fn take_due(
        &mut self,
        source: &mut dyn Source,
        now: SimTime,
        out: &mut Vec<Outgoing>,
    ) -> Result<(), ReplayError> {
        while let Some(turn) = source.take(now) {
            self.collector.arrived += 1;
            let arrival = turn.arrival;
            let id = self.flights.add(turn, arrival, now);
            if self.prefill.is_some()
                && let Some(flight) = self.flights.get(id)
            {
                flight.handoff = Some(Box::default());
            }
            self.ask(id, self.prefill.is_some(), source, now, out)?;
            self.memory.check(&self.flights, &self.collector)?;
        }
        Ok(())
    }

    /// Asks the router of one side about a request and follows its answer.
    fn ask(
        &mut self,
        id: u64,
        prefill: bool,
        source: &mut dyn Source,
        now: SimTime,
        out: &mut Vec<Outgoing>,
    ) -> Result<(), ReplayError> {
        let Some(flight) = self.flights.get(id) else {
            return Ok(());
        };
        let pool = match &mut self.prefill {
            Some(pool) if prefill => pool,
            _ => &mut self.serving,
        };
        if pool.router.reads_prompts() {
            self.prompt.clear();
            source.write_prompt(flight.turn.tag, &mut self.prompt);
        }
        let places = (pool.workers.as_slice(), pool.spec.dp_size);
        let routed = pool.router.arrive(id, &flight.turn, &self.prompt, places, now)?;
        let log = match &mut flight.handoff {
            Some(handoff) if prefill => &mut handoff.route,
            _ => &mut flight.route,
        };
        log.asked = now;
        match routed {
            Routed::Now(route) => self.send(route, prefill, source, now, out),
            Routed::Queued => {
                log.queued = true;
                Ok(())
            }
            Routed::Nobody => Err(ReplayError::NoActiveWorker(now)),
        }
    }

    fn send(
        &mut self,
        route: Route,
        prefill: bool,
        source: &mut dyn Source,
        now: SimTime,
        out: &mut Vec<Outgoing>,
    ) -> Result<(), ReplayError> {
        let Some(flight) = self.flights.get(route.id) else {
            return Ok(());
        };
        flight.dispatched.get_or_insert(now);
        let part = match &mut flight.handoff {
            None => Part::Whole,
            Some(handoff) if prefill => {
                handoff.route.decided(route.target, route.overlap, route.replica, now);
                Part::Prompt
            }
            Some(handoff) => match handoff.route.target {
                Some(source) => Part::Answer(source),
                // Its first half came to nothing meanwhile.
                None => return Ok(()),
            },
        };
        if !prefill {
            flight.route.decided(route.target, route.overlap, route.replica, now);
        }
        out.push(Outgoing {
            id: route.id,
            part,
            target: route.target,
            request: flight.request(route.id, source),
        });
        if prefill {
            return self.ask(route.id, false, source, now, out);
        }
        Ok(())
    }

    fn release(
        &mut self,
        prefill: bool,
        source: &mut dyn Source,
        now: SimTime,
        out: &mut Vec<Outgoing>,
    ) -> Result<(), ReplayError> {
        loop {
            let pool = match &mut self.prefill {
                Some(pool) if prefill => pool,
                _ => &mut self.serving,
            };
            let Some(route) = pool.router.release(now) else {
                return Ok(());
            };
            self.send(route, prefill, source, now, out)?;
        }
    }

    /// A request has its first token and goes on; requests that waited for that go to the end of `out`.
    ///
    /// # Errors
    /// As [`Self::take_due`].
    pub fn first_token(
        &mut self,
        id: u64,
        source: &mut dyn Source,
        now: SimTime,
        out: &mut Vec<Outgoing>,
    ) -> Result<(), ReplayError> {
        self.serving.router.prefill_completed(id, now);
        self.release(false, source, now, out)
    }

    /// The prefill side is done with a prompt; requests that waited for that go to the end of `out`. Whether the request
    /// goes on: one whose prompt failed has to be called off on the other side and then ended.
    ///
    /// # Errors
    /// As [`Self::take_due`].
    pub fn prompt_over(
        &mut self,
        id: u64,
        answer: &Answer,
        now: SimTime,
        source: &mut dyn Source,
        out: &mut Vec<Outgoing>,
    ) -> Result<bool, ReplayError> {
        let Some(prefill) = &mut self.prefill else {
            return Ok(true);
        };
        prefill.router.prefill_completed(id, now);
        prefill.router.free(id, now);
        let flight = self.flights.get(id);
        if let Some(flight) = flight
            && let Some(handoff) = &mut flight.handoff
        {
            handoff.source_held = answer.completed.then_some(now);
            if let Some((admitted, cached_tokens)) = answer.admitted {
                handoff.prefill_admit = Some(admitted);
                flight.first_admit = Some(admitted);
                flight.admissions += 1;
                (flight.reused, flight.first_reused) = (cached_tokens, cached_tokens);
                flight.admitted.push(AdmissionLog {
                    at: admitted,
                    prefill: true,
                    reused: cached_tokens,
                    from_host: None,
                    again: false,
                });
                let computed = flight.turn.input_tokens.saturating_sub(cached_tokens);
                self.collector.prefilled += u64::from(computed);
            }
        }
        self.release(true, source, now, out)?;
        Ok(answer.completed)
    }

    /// A request ended at `at`, which was heard `now`; requests that waited for that go to the end of `out`.
    ///
    /// # Errors
    /// As [`Self::take_due`].
    pub fn ended(
        &mut self,
        id: u64,
        answer: &Answer,
        (at, now): (SimTime, SimTime),
        source: &mut dyn Source,
        out: &mut Vec<Outgoing>,
    ) -> Result<(), ReplayError> {
        let Some(mut flight) = self.flights.remove(id) else {
            return Ok(());
        };
        self.ended += 1;
        if let Some((admitted, cached_tokens)) = answer.admitted {
            flight.first_admit.get_or_insert(admitted);
            flight.admissions += 1;
            if let Some(handoff) = &mut flight.handoff {
                handoff.decode_admit = Some(admitted);
                handoff.destination_activated = Some(admitted);
                handoff.decode_reused = Some(cached_tokens);
            } else {
                (flight.reused, flight.first_reused) = (cached_tokens, cached_tokens);
                // What the cache did not have was computed.
                let computed = flight.turn.input_tokens.saturating_sub(cached_tokens);
                self.collector.prefilled += u64::from(computed);
            }
            flight.admitted.push(AdmissionLog {
                at: admitted,
                prefill: false,
                reused: cached_tokens,
                from_host: None,
                again: false,
            });
        }
        flight.first_token = answer.tokens.first().copied();
        flight.second_token = answer.tokens.get(1).copied();
        flight.last_token = answer.tokens.last().copied().unwrap_or_default();
        flight.tokens = u32::try_from(answer.tokens.len()).unwrap_or(u32::MAX);
        flight.gaps = answer
            .tokens
            .windows(2)
            .map(|pair| pair[1].nanos_since(pair[0]))
            .collect();
        let terminal = if answer.completed {
            if flight.tokens < flight.turn.output_tokens {
                source.cut_short(flight.turn.tag, flight.tokens);
            }
            self.collector.completed(&flight, at);
            Terminal::Completed
        } else {
            Terminal::Rejected
        };
        self.collector.record(&flight, terminal, at, source);
        source.ended(flight.turn.tag, now, terminal);
        self.serving.router.free(id, now);
        self.release(false, source, now, out)?;
        // Where its prompt was not heard of, it is over all the same.
        if flight.handoff.as_deref().is_some_and(Handoff::is_unheard)
            && let Some(prefill) = &mut self.prefill
        {
            prefill.router.free(id, now);
            self.release(true, source, now, out)?;
        }
        Ok(())
    }

    /// The report of a run that ended at `ended_at`.
    pub fn report(self, ended_at: SimTime, source: &dyn Source, partial: bool) -> Report {
        let share = |pool: &LivePool| (pool.worker_seconds(ended_at), pool.spec.gpus_per_worker);
        let used = FleetUse {
            decode: share(&self.serving),
            prefill: self.prefill.as_ref().map(share).unwrap_or_default(),
            ..FleetUse::default()
        };
        Report::new(self.collector, self.sla, used, source.trajectories(), None, partial)
    }
}
