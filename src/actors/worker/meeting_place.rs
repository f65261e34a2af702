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
use crate::transport::rendezvous::wire::Order;

/// The rendezvous of one incarnation, if its worker has one.
#[derive(Default)]
pub(super) struct RendezvousSlot {
    pub(super) actor: Option<Addr<Rendezvous>>,
    pub(super) incarnation: u32,
    pub(super) restarts: Restarts,
}

/// Who is first in an engine's handoffs, and its name on the wire.
fn order(kind: EngineKind) -> (Order, &'static str) {
    match kind {
        EngineKind::Vllm => (Order::SourceFirst, "vllm"),
        EngineKind::Sglang => (Order::DestinationFirst, "sglang"),
        EngineKind::Trtllm => (Order::SourceFirst, "trtllm"),
    }
}

impl Worker {
    /// Most handoffs of a rank: as many as it may have running. Source: Dynamo 1.6.1.
    fn handoff_limit(&self) -> u32 {
        let engine = &self.plan.group.engine;
        engine.max_num_seqs.unwrap_or(engine.num_gpu_blocks)
    }

    pub(super) fn handoff_parts(&self) -> HandoffParts {
        let group = &self.plan.group;
        let (order, engine_type) = order(group.engine.kind);
        HandoffParts {
            role: group.role,
            local_prefill: group.engine.role == WorkerRole::Aggregated,
            order,
            engine_type,
            transfer: group.transfer,
            limit: self.handoff_limit(),
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
        let (order, engine_type) = order(group.engine.kind);
        self.rendezvous.incarnation += 1;
        let parts = RendezvousParts {
            clock: self.shared.clock,
            order,
            engine_type,
            transfer: group.transfer,
            session_timeout: group.handoff_timeout,
            max_rooms: self.handoff_limit(),
            ranks: group.data_parallel_size,
            gauge: Arc::clone(&self.entry.handoffs),
            port: server.address().port(),
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
