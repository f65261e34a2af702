//! Looking into a worker's children.

use actix::prelude::*;
use serde_json::Value;

use super::super::inspect::{LookInto, look};
use super::super::liveness::Child;
use super::Worker;
use super::children::RankSlot;

impl Handler<LookInto> for Worker {
    type Result = ResponseFuture<Value>;

    fn handle(&mut self, LookInto(child): LookInto, _: &mut Self::Context) -> Self::Result {
        let slot = |rank: u32| -> Option<&RankSlot> { self.ranks.get(rank as usize) };
        match child {
            Child::Rank(rank) => look(slot(rank).and_then(|slot| slot.actor.as_ref())),
            Child::Kv(rank) => look(slot(rank).and_then(|slot| slot.publisher.as_ref())),
            Child::Native(rank) => look(slot(rank).and_then(|slot| slot.native.as_ref())),
            Child::Metrics => look(self.reporter.actor.as_ref()),
            Child::Lease => look(self.registrar.as_ref()),
            Child::Rendezvous => look(self.rendezvous.actor.as_ref()),
            Child::Worker(_) => Box::pin(std::future::ready(Value::Null)),
        }
    }
}
