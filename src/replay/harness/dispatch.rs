//! Requests arrive, are routed and handed to workers, and leave.

use crate::engine::{HandoffRefused, Semantics};
use crate::router::Target;

use super::super::flight::{Flight, Handoff, RouteLog};
use super::super::record::Terminal;
use super::super::source::{Source, Turn};
use super::handoff::PREFILL;
use super::routing::{Route, Routed};
use super::{Harness, Place, ReplayError};

impl Harness {
    /// A request comes in.
    pub(super) fn arrive(&mut self, turn: Turn, source: &mut dyn Source) {
        self.collector.arrived += 1;
        if let Some(scaling) = &mut self.scaling {
            scaling.window.arrivals += 1;
        }
        let arrival = turn.arrival;
        let id = self.flights.add(turn, arrival, self.now);
        if let Some(handoffs) = &mut self.handoffs
            && let Some(flight) = self.flights.get(id)
        {
            flight.handoff = Some(Box::default());
            handoffs.route(self.first_pool, id);
        } else {
            self.route(self.first_pool, id, source);
        }
    }

    /// Asks a pool's router about a request and follows its answer.
    pub(super) fn route(&mut self, pool: u8, id: u64, source: &mut dyn Source) {
        let now = self.now;
        let prefill_side = self.is_prefill_side(pool);
        let Some(flight) = self.flights.get(id) else { return };
        let tag = flight.turn.tag;
        *route_log(flight, prefill_side) = RouteLog {
            asked: now,
            ..RouteLog::default()
        };
        let serving = &mut self.pools[pool as usize];
        if serving.router.reads_prompts() {
            self.prompt.clear();
            source.write_prompt(tag, &mut self.prompt);
        }
        match serving.ask(id, &flight.turn, &self.prompt, now) {
            Ok(Routed::Now(route)) => self.dispatch(pool, route, source),
            Ok(Routed::Queued) => route_log(flight, prefill_side).queued = true,
            Ok(Routed::Nobody) if self.handoffs.is_some() => self.parked.push((pool, id)),
            Ok(Routed::Nobody) => self.fail(ReplayError::NoActiveWorker(now)),
            Err(error) => self.fail(error.into()),
        }
    }

    /// Hands a request to the worker that its router chose.
    fn dispatch(&mut self, pool: u8, route: Route, source: &mut dyn Source) {
        let now = self.now;
        let Route { id, target, .. } = route;
        let prefill_side = self.is_prefill_side(pool);
        let Some(flight) = self.flights.get(id) else { return };
        if flight.dispatched.is_none() {
            flight.dispatched = Some(now);
        }
        route_log(flight, prefill_side).decided(target, route.overlap, route.replica, now);
        if let Some(scaling) = &mut self.scaling
            && let Some((overlap, _)) = route.overlap
            && pool == PREFILL
        {
            let block_size = self.pools[pool as usize].spec.engine.block_size.max(1);
            scaling
                .window
                .placed(overlap, flight.turn.input_tokens.div_ceil(block_size));
        }
        self.pools[pool as usize].worker(target.worker).assigned += 1;
        self.submit(pool, id, target, source);
    }

    /// Hands a request to the engine of its rank.
    fn submit(&mut self, pool: u8, id: u64, target: Target, source: &mut dyn Source) {
        let now = self.now;
        let prefill_side = self.is_prefill_side(pool);
        let Some(flight) = self.flights.get(id) else { return };
        let mut request = flight.request(id, source);
        let handoffs = self.handoffs.is_some();
        let whole_answers = self.handoffs.as_ref().is_some_and(|handoffs| handoffs.whole_answers);
        let worker = self.pools[pool as usize].worker(target.worker);
        let busy = worker.busy;
        let engine = &mut worker.ranks[target.rank as usize].engine;
        let taken = if !handoffs {
            engine.submit(request, now).map_err(HandoffRefused::from)
        } else if prefill_side {
            if !whole_answers {
                request.stop.max_tokens = Some(1);
                request.planned = None;
            }
            engine.submit_source(request, now)
        } else {
            engine.reserve_destination(request, now)
        };
        let place = Place {
            pool,
            worker: target.worker,
        };
        match taken {
            Ok(()) => {
                if handoffs && busy {
                    // What the engine has to say about it is heard at the end of the pass, which must not be passed over.
                    worker.quiet = false;
                }
                self.list(place);
                if handoffs && !busy {
                    self.hear_facts(place, target.rank);
                }
            }
            Err(HandoffRefused::Unsupported(what)) => self.fail(ReplayError::NoHandoff(what)),
            Err(HandoffRefused::PromptTooLarge | HandoffRefused::Rejected(_)) if handoffs && !prefill_side => {
                self.end(id, Terminal::Failed, source);
            }
            Err(HandoffRefused::PromptTooLarge | HandoffRefused::Rejected(_)) => {
                // The worker never had it.
                worker.lose_one();
                if let Some(flight) = self.flights.get(id) {
                    route_log(flight, prefill_side).target = None;
                }
                self.end(id, Terminal::Rejected, source);
            }
        }
    }

    /// Dispatches what a pool's router lets go.
    pub(super) fn release(&mut self, pool: u8, source: &mut dyn Source) {
        while let Some(route) = self.pools[pool as usize].router.release(self.now) {
            self.dispatch(pool, route, source);
        }
    }

    /// What the workload hears of an end: by the rules of 1.4.2 a session goes on whatever became of its turns.
    fn heard_as(&self, terminal: Terminal) -> Terminal {
        let rules = self.pools[self.serving_pool as usize].spec.engine.semantics;
        match terminal {
            Terminal::Failed if rules == Semantics::V1_4_2 => Terminal::Rejected,
            Terminal::Completed | Terminal::Rejected | Terminal::Failed => terminal,
        }
    }

    /// A request leaves.
    pub(super) fn end(&mut self, id: u64, terminal: Terminal, source: &mut dyn Source) {
        let now = self.now;
        let Some(flight) = self.flights.get(id) else { return };
        self.ended += 1;
        let serving = self.serving_pool;
        if let Some(target) = flight.route.target {
            let worker = self.pools[serving as usize].worker(target.worker);
            settle_tokens(flight, worker, target, terminal);
            worker.lose_one();
        }
        let tag = flight.turn.tag;
        if terminal == Terminal::Completed {
            if flight.tokens < flight.turn.output_tokens {
                source.cut_short(tag, flight.tokens);
            }
            let sample = self.collector.completed(flight, now);
            if let Some(scaling) = &mut self.scaling
                && let Some(sample) = sample
            {
                scaling.window.note(sample);
            }
        }
        // A source that still holds KV keeps the request's record open.
        if flight.handoff.as_ref().is_some_and(|handoff| handoff.holds_source()) && terminal == Terminal::Completed {
            if let Some(handoff) = &mut flight.handoff {
                handoff.over = Some((terminal, now));
            }
        } else if let Some(flight) = self.flights.remove(id) {
            if terminal != Terminal::Completed {
                self.abandon(id, &flight);
            }
            self.collector.record(&flight, terminal, now, source);
        }
        source.ended(tag, now, self.heard_as(terminal));
        self.pools[serving as usize].router.free(id, now);
        self.release(serving, source);
    }
}

/// Counts the gaps between the tokens of a request that leaves.
fn settle_tokens(flight: &Flight, worker: &mut super::super::fleet::Worker, target: Target, terminal: Terminal) {
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

/// The log of a request's way to the prefill side, or to the worker that answers.
pub(super) fn route_log(flight: &mut Flight, prefill_side: bool) -> &mut RouteLog {
    match &mut flight.handoff {
        Some(handoff) if prefill_side => &mut handoff.route,
        _ => &mut flight.route,
    }
}

impl Handoff {
    /// Whether a prefill worker has the request.
    pub(super) fn holds_source(&self) -> bool {
        self.route.target.is_some() && self.source_released.is_none()
    }
}
