//! A prefill worker's rendezvous: how it starts, and who is told of it.

use std::sync::Arc;

use actix::prelude::*;
use serde_json::value::RawValue;

use super::super::liveness::{Child, Liveness};
use super::super::rank::{ConnectRendezvous, HandoffParts};
use super::super::rendezvous::{Rendezvous, RendezvousParts};
use super::super::supervision::Restarts;
use super::Worker;
use crate::engine::{EngineKind, WorkerRole};
use crate::model::card;
use crate::transport::rendezvous::RendezvousLimits;
use crate::transport::rendezvous::wire::Order;

/// The rendezvous of one incarnation, if its worker has one.
#[derive(Default)]
pub(super) struct RendezvousSlot {
    pub(super) actor: Option<Addr<Rendezvous>>,
    pub(super) incarnation: u32,
    pub(super) restarts: Restarts,
}

/// Who is first in an engine's handoffs; `None`: it hands nothing over at a rendezvous, as Dynamo's own does not.
fn order(kind: EngineKind) -> Option<Order> {
    match kind {
        EngineKind::Vllm => Some(Order::SourceFirst),
        EngineKind::Sglang => Some(Order::DestinationFirst),
        EngineKind::Trtllm => None,
    }
}

impl Worker {
    /// Most handoffs of a rank: as many as it may have running. Source: Dynamo 1.6.1.
    fn handoff_limit(&self) -> u32 {
        let engine = &self.plan.group.engine;
        engine.max_num_seqs.unwrap_or(engine.num_gpu_blocks)
    }

    pub(super) fn handoff_parts(&self, rank: Child) -> HandoffParts {
        let group = &self.plan.group;
        HandoffParts {
            path: self.path(Some(rank)),
            role: group.role,
            semantics: group.engine.semantics,
            local_prefill: group.engine.role == WorkerRole::Aggregated,
            order: order(group.engine.kind),
            engine_type: group.engine.kind.word(),
            transfer: group.transfer,
            limit: self.handoff_limit(),
            session_timeout: group.handoff_timeout,
            limits: RendezvousLimits {
                pairing: group.pairing_timeout,
                ..RendezvousLimits::default()
            },
            pool: self.shared.pool.clone(),
            gauge: Arc::clone(&self.entry.handoffs),
        }
    }

    /// A rendezvous behind the worker's door, if it has one.
    pub(super) fn start_rendezvous(&mut self, ctx: &mut Context<Self>) {
        let Some((door, server)) = &self.sockets.rendezvous else {
            return;
        };
        let group = &self.plan.group;
        // Refused with the settings.
        let Some(order) = order(group.engine.kind) else { return };
        self.rendezvous.incarnation += 1;
        let parts = RendezvousParts {
            path: self.path(Some(Child::Rendezvous)),
            clock: self.shared.clock,
            order,
            engine_type: group.engine.kind.word(),
            transfer: group.transfer,
            pairing_timeout: group.pairing_timeout,
            session_timeout: group.handoff_timeout,
            max_rooms: self.handoff_limit(),
            ranks: group.data_parallel_size,
            gauge: Arc::clone(&self.entry.handoffs),
            port: server.address().port(),
            faults: Arc::clone(self.entry.faults.table()),
        };
        let parent = ctx.address().recipient();
        let liveness = Liveness::new(parent, Child::Rendezvous, self.rendezvous.incarnation);
        let rendezvous = Rendezvous::new(parts, liveness).start();
        door.set(Some(rendezvous.clone()));
        for rank in self.ranks.iter().filter_map(|slot| slot.actor.as_ref()) {
            rank.do_send(ConnectRendezvous(rendezvous.clone()));
        }
        self.rendezvous.actor = Some(rendezvous);
    }

    pub(super) fn lose_rendezvous(&mut self) {
        self.rendezvous.actor = None;
        if let Some((door, _)) = &self.sockets.rendezvous {
            door.set(None);
        }
    }

    /// The group's card, with this worker's rendezvous in it.
    ///
    /// # Errors
    /// The group's card is none.
    pub(super) fn own_card(
        card: &RawValue,
        host: std::net::IpAddr,
        port: u16,
    ) -> Result<Box<RawValue>, serde_json::Error> {
        RawValue::from_string(card::with_rendezvous(card.get(), &host.to_string(), port)?)
    }
}
