//! A worker's place in discovery: what it lists, when, and under which lease.

use std::sync::Arc;

use actix::prelude::*;

use super::super::fleet::WorkerNews;
use super::super::liveness::{Child, Liveness};
use super::super::records::{Records, StreamAt};
use super::super::registrar::{LeaseNews, Registrar, Replace};
use super::super::registry::WorkerState;
use super::Worker;
use super::children::RankSlot;
use crate::transport::discovery::Record;
use crate::transport::event_plane::forward_pass::Detail;
use crate::transport::request_plane::plane::Ready;

impl Worker {
    pub(super) fn records(&self) -> Records<'_> {
        Records {
            plan: &self.plan,
            instance: self.instance,
            requests: &self.sockets.requests,
            card: self.card.as_deref().unwrap_or(&self.plan.group.card),
        }
    }

    pub(super) fn publishes_events(&self) -> bool {
        self.plan.group.engine.publishes_kv_events()
    }

    pub(super) fn kv_records(&self, slot: &RankSlot) -> Vec<Record> {
        if self.plan.group.durable_kv_events {
            // Routers that read JetStream know where, and there is nobody to ask.
            return Vec::new();
        }
        let stream = StreamAt {
            publisher: slot.publisher_id,
            address: self
                .sockets
                .event_address(slot.rank.0 as usize, &self.plan, &self.shared),
        };
        self.records().kv_stream(slot.rank, &stream)
    }

    pub(super) fn metrics_records(&self) -> Vec<Record> {
        let at = |publisher| StreamAt {
            publisher,
            address: self.sockets.event_address(0, &self.plan, &self.shared),
        };
        let mut records = self.records().metrics_stream(&at(self.reporter.publisher_id));
        if self.plan.group.forward_passes != Detail::Off {
            records.extend(self.records().forward_stream(&at(self.reporter.forward_id)));
        }
        records
    }

    /// Everything that is to be visible: event streams first, then instance and card, so that a router that sees the
    /// worker can hear it too.
    pub(super) fn all_records(&self) -> Vec<Record> {
        let mut records = Vec::new();
        if self.publishes_events() {
            records.extend(self.ranks.iter().flat_map(|slot| self.kv_records(slot)));
        }
        records.extend(self.metrics_records());
        records.extend(self.records().serving());
        records
    }

    /// Goes on once requests reach every endpoint that is being served: what is in discovery has to be callable.
    pub(super) fn when_reachable(
        &mut self,
        ctx: &mut Context<Self>,
        then: impl FnOnce(&mut Self, &mut Context<Self>) + 'static,
    ) {
        let waits: Vec<Ready> = self.unreachable.drain(..).filter(|ready| !ready.is_now()).collect();
        if waits.is_empty() {
            return then(self, ctx);
        }
        let reachable = futures::future::join_all(waits.into_iter().map(Ready::wait));
        ctx.spawn(reachable.into_actor(self).map(move |_, worker, ctx| {
            if !worker.leaving {
                then(worker, ctx);
            }
        }));
    }

    pub(super) fn start_registrar(&mut self, ctx: &mut Context<Self>) {
        self.lease_incarnation += 1;
        let registrar = Registrar::new(
            &self.shared.pool,
            self.shared.discovery.clone(),
            &self.shared.store_health,
            self.all_records(),
            ctx.address().recipient(),
            Arc::clone(&self.entry.faults),
            Liveness::new(ctx.address().recipient(), Child::Lease, self.lease_incarnation),
        );
        self.registrar = Some(registrar.start());
    }

    pub(super) fn replace_records(&self, old: &[Record], new: Vec<Record>) {
        if let Some(registrar) = &self.registrar {
            let old_keys = old.iter().map(|record| record.key.clone()).collect();
            registrar.do_send(Replace { old_keys, new });
        }
    }
}

impl Handler<LeaseNews> for Worker {
    type Result = ();

    fn handle(&mut self, news: LeaseNews, ctx: &mut Self::Context) {
        match news {
            LeaseNews::Registered => {
                if self.entry.state() == WorkerState::Starting {
                    self.entry.set_state(WorkerState::Ready);
                }
                self.entry.set_listed(true);
                self.fleet.do_send(WorkerNews::Registered(self.plan.id));
            }
            LeaseNews::Lapsed => self.entry.set_listed(false),
            LeaseNews::Left => self.left(ctx),
        }
    }
}
