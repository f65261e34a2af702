//! Requests move from prefill workers to decode workers.
//!
//! vLLM computes the prompt first and then asks the decode side for room; SGLang asks for room first. When the prompt is
//! computed and room is there, the KV travels; then the decode worker is told, then the prefill worker lets go. Orders are
//! carried out in turn, each behind all that were given before it. Those to a worker in the middle of a pass wait for its
//! end, except those that only ask for something, and line up again then. Source: Dynamo 1.6.1 and 1.4.2.

use std::cmp::Reverse;
use std::collections::VecDeque;

use crate::engine::{EngineConfig, EngineKind, HandoffFact, KvTransfer, Semantics};
use crate::types::RequestId;

use super::super::fleet::Command;
use super::super::flight::Flight;
use super::super::source::Source;
use super::{Due, Harness, Place};

/// Pool of the prefill side, where there is one.
pub(super) const PREFILL: u8 = 0;

/// Rules and orders of a disaggregated fleet.
// Each of the rules is one that a release or an engine has or has not.
#[allow(clippy::struct_excessive_bools)]
pub(super) struct Handoffs {
    transfer: KvTransfer,
    /// Only what the destination lacks travels.
    missing_only: bool,
    /// Room on the decode side comes first.
    pub(super) destination_first: bool,
    /// See [`super::PrefillSpec::whole_answers`].
    pub(super) whole_answers: bool,
    /// KV that arrives at one instant is taken in as it left (Dynamo 1.4.2), not in the order of its requests.
    arrives_as_it_left: bool,
    /// Orders to carry out at this instant.
    orders: VecDeque<Order>,
    /// Transfers so far.
    left: u64,
}

#[derive(Debug, Clone, Copy)]
enum Order {
    /// Routes a request to a pool.
    Route(u8, u64),
    /// The KV of a request is on its way; there is nothing to wait for.
    Arrived(u64),
    /// For a worker.
    Command(Place, Command),
    /// The prefill side's router forgets a request.
    Forget(u64),
}

impl Handoffs {
    pub(super) fn new(transfer: KvTransfer, missing_only: bool, serving: &EngineConfig, whole_answers: bool) -> Self {
        Self {
            transfer,
            missing_only,
            destination_first: serving.kind == EngineKind::Sglang,
            whole_answers,
            arrives_as_it_left: serving.semantics == Semantics::V1_4_2,
            orders: VecDeque::new(),
            left: 0,
        }
    }

    pub(super) fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    /// Has a request routed to a pool in its turn.
    pub(super) fn route(&mut self, pool: u8, id: u64) {
        self.orders.push_back(Order::Route(pool, id));
    }

    /// Has commands carried out that waited for a worker.
    pub(super) fn resume(&mut self, place: Place, commands: impl Iterator<Item = Command>) {
        let orders = commands.map(|command| Order::Command(place, command));
        self.orders.extend(orders);
    }
}

impl Harness {
    /// Takes in what an engine has to say about handoffs.
    pub(super) fn hear_facts(&mut self, place: Place, rank: u32) {
        let Some(handoffs) = &mut self.handoffs else { return };
        let now = self.now;
        let mut facts = std::mem::take(&mut self.facts);
        let worker = self.pools[place.pool as usize].worker(place.worker);
        worker.ranks[rank as usize].engine.take_handoff_facts(now, &mut facts);
        for fact in facts.drain(..) {
            let (HandoffFact::SourceHeld { id, .. } | HandoffFact::DestinationReserved { id, .. }) = fact;
            let Some(flight) = self.flights.get(id.0) else { continue };
            let ordinal = flight.ordinal;
            let Some(handoff) = flight.handoff.as_deref_mut() else {
                continue;
            };
            let came_first = match fact {
                HandoffFact::SourceHeld { prompt_tokens, .. } => {
                    handoff.source_held = Some(now);
                    handoff.held_tokens = Some(prompt_tokens);
                    !handoffs.destination_first
                }
                HandoffFact::DestinationReserved {
                    transferable_prompt_tokens,
                    ..
                } => {
                    handoff.destination_reserved = Some(now);
                    handoff.missing_tokens = Some(transferable_prompt_tokens);
                    handoffs.destination_first
                }
            };
            if came_first {
                let second = if self.first_pool == PREFILL {
                    self.serving_pool
                } else {
                    PREFILL
                };
                handoffs.route(second, id.0);
            }
            if let (Some(held), Some(missing)) = (handoff.held_tokens, handoff.missing_tokens) {
                let tokens = if handoffs.missing_only { missing } else { held };
                let delay_ms = handoffs.transfer.delay_ms(tokens);
                if delay_ms <= 0.0 {
                    // Nothing travels: this goes on before any worker starts a pass.
                    handoffs.orders.push_back(Order::Arrived(id.0));
                    continue;
                }
                handoffs.left += 1;
                let number = if handoffs.arrives_as_it_left {
                    handoffs.left
                } else {
                    ordinal
                };
                let arrives = now.after_ms(delay_ms);
                self.others.push(Reverse((arrives, Due::Transfer(number, id.0))));
            }
        }
        self.facts = facts;
    }

    /// The KV of a request has arrived.
    pub(super) fn transferred(&mut self, id: u64) {
        let serving = self.serving_pool;
        if let Some(flight) = self.flights.get(id)
            && let Some(target) = flight.route.target
            && let Some(handoffs) = &mut self.handoffs
        {
            let place = Place {
                pool: serving,
                worker: target.worker,
            };
            handoffs.orders.push_back(Order::Command(place, Command::Activate(id)));
        }
    }

    /// Carries out what can be carried out now.
    pub(super) fn carry_out(&mut self, source: &mut dyn Source) {
        while let Some(order) = self.handoffs.as_mut().and_then(|handoffs| handoffs.orders.pop_front()) {
            match order {
                Order::Route(pool, id) => self.route(pool, id, source),
                Order::Arrived(id) => self.transferred(id),
                Order::Forget(id) => {
                    self.pools[PREFILL as usize].router.free(id, self.now);
                    self.release(PREFILL, source);
                }
                Order::Command(place, command) => {
                    let worker = self.pools[place.pool as usize].worker(place.worker);
                    if worker.busy {
                        worker.commands.push_back(command);
                        // Its end must not be passed over.
                        worker.quiet = false;
                    } else {
                        match command {
                            Command::Activate(id) => self.activate(place, id),
                            Command::Release(id) => self.let_go(id, source),
                        }
                    }
                }
            }
        }
    }

    fn activate(&mut self, place: Place, id: u64) {
        let Some(flight) = self.flights.get(id) else { return };
        let (Some(target), Some(handoff)) = (flight.route.target, flight.handoff.as_deref_mut()) else {
            return;
        };
        let worker = self.pools[place.pool as usize].worker(place.worker);
        let engine = &mut worker.ranks[target.rank as usize].engine;
        if !engine.activate_destination(RequestId(id)) {
            return;
        }
        handoff.destination_activated = Some(self.now);
        let held_by = handoff.route.target;
        if let (Some(handoffs), Some(source)) = (&mut self.handoffs, held_by) {
            let place = Place {
                pool: PREFILL,
                worker: source.worker,
            };
            handoffs.orders.push_back(Order::Command(place, Command::Release(id)));
        }
        self.hear_facts(place, target.rank);
        self.list(place);
    }

    /// The prefill side lets a request go.
    fn let_go(&mut self, id: u64, source: &mut dyn Source) {
        let now = self.now;
        let Some(handoff) = self.flights.get(id).and_then(|flight| flight.handoff.as_deref_mut()) else {
            return;
        };
        let Some(held_by) = handoff.route.target else { return };
        let worker = self.pools[PREFILL as usize].worker(held_by.worker);
        if !worker.ranks[held_by.rank as usize].engine.release_source(RequestId(id)) {
            return;
        }
        worker.lose_one();
        handoff.source_released = Some(now);
        if let Some((terminal, ended)) = handoff.over
            && let Some(flight) = self.flights.remove(id)
        {
            self.collector.record(&flight, terminal, ended, source);
        }
        self.list(Place {
            pool: PREFILL,
            worker: held_by.worker,
        });
        if let Some(handoffs) = &mut self.handoffs {
            handoffs.orders.push_back(Order::Forget(id));
        }
    }

    /// Both sides forget a request that was refused somewhere.
    pub(super) fn abandon(&mut self, id: u64, flight: &Flight) {
        let Some(handoff) = &flight.handoff else { return };
        let now = self.now;
        if let Some(target) = flight.route.target {
            let worker = self.pools[self.serving_pool as usize].worker(target.worker);
            worker.ranks[target.rank as usize].engine.cancel(RequestId(id), now);
            self.list(Place {
                pool: self.serving_pool,
                worker: target.worker,
            });
        }
        if let Some(target) = handoff.route.target.filter(|_| handoff.source_released.is_none()) {
            let worker = self.pools[PREFILL as usize].worker(target.worker);
            worker.ranks[target.rank as usize].engine.cancel(RequestId(id), now);
            worker.lose_one();
            self.list(Place {
                pool: PREFILL,
                worker: target.worker,
            });
            // The router hears of it in its turn.
            if let Some(handoffs) = &mut self.handoffs {
                handoffs.orders.push_back(Order::Forget(id));
            }
        }
    }
}
