//! `Worker`: the unit of death. Owns its sockets, its children and its place in discovery.
//!
//! Started by the fleet on one of its threads. Builds a [`Rank`] and a [`KvPublisher`](super::kv_publisher::KvPublisher)
//! per data-parallel rank, one [`MetricsReporter`](super::metrics_reporter::MetricsReporter) and one [`Registrar`]; replaces a child that dies, within a budget, and dies itself when the
//! budget is used up. However it ends, dropping it ends everything it owns the way a process's end would: sockets are
//! reset, streams break off, the lease is left to run out. Only [`Drain`] says goodbye.

mod children;
mod deaths;
mod departure;
mod inspect;
mod listing;
mod meeting_place;
mod start_error;

use std::sync::Arc;

use actix::prelude::*;
use serde_json::value::RawValue;

use self::children::{RankSlot, ReporterSlot};
pub(super) use self::deaths::{KillChild, NoChild};
pub(super) use self::departure::Drain;
use self::meeting_place::RendezvousSlot;
pub use self::start_error::StartError;
use super::death::Die;
use super::fleet::Fleet;
use super::gate::Gate;
use super::liveness::{Child, Liveness};
use super::path::ActorPath;
use super::plan::{Shared, WorkerPlan};
use super::rank::{Rank, slower_start};
use super::registrar::Registrar;
use super::registry::{WorkerEntry, WorkerState};
use super::sockets::Sockets;
use super::supervision::Restarts;
use crate::engine::WorkerRole;
use crate::transport::intake::Intake;
use crate::transport::request_plane::call_home::generate::GenerateEndpoint;
use crate::transport::request_plane::plane::Ready;
use crate::types::{DpRank, InstanceId};

/// One incarnation of one worker.
pub struct Worker {
    plan: WorkerPlan,
    shared: Arc<Shared>,
    entry: Arc<WorkerEntry>,
    fleet: Addr<Fleet>,
    instance: InstanceId,
    incarnation: u32,
    gate: Arc<Gate>,
    sockets: Sockets,
    /// Endpoints that requests may not reach yet.
    unreachable: Vec<Ready>,
    ranks: Vec<RankSlot>,
    reporter: ReporterSlot,
    rendezvous: RendezvousSlot,
    /// The card, where it differs from the group's.
    card: Option<Box<RawValue>>,
    registrar: Option<Addr<Registrar>>,
    lease_restarts: Restarts,
    lease_incarnation: u32,
    /// Draining: nothing is restarted any more.
    leaving: bool,
    said_goodbye: bool,
    /// The goodbye is through: this end is no crash.
    left: bool,
    liveness: Liveness,
}

/// Asks for one rank or for all.
#[derive(Message)]
#[rtype(result = "Result<Vec<Addr<Rank>>, NoChild>")]
pub(super) struct RanksOf(pub(super) Option<u32>);

impl Worker {
    /// Opens the sockets of a new incarnation. Has to be called where the shared pool is the current runtime.
    ///
    /// # Errors
    /// [`StartError`] names the actor and the address.
    pub(super) fn build(
        plan: WorkerPlan,
        shared: Arc<Shared>,
        entry: Arc<WorkerEntry>,
        fleet: Addr<Fleet>,
        incarnation: u32,
        instance: InstanceId,
    ) -> Result<Self, StartError> {
        let gate = Gate::new(
            &plan.group,
            shared.clock,
            entry.gauges.clone(),
            Arc::clone(entry.faults.table()),
        );
        let gate = Arc::new(gate);
        let sockets = Sockets::open(&plan, &shared, &gate, &entry)?;
        entry.set_reach(sockets.requests.reach());
        let card = sockets.rendezvous.as_ref().map(|(_, server)| {
            let port = server.address().port();
            Self::own_card(&plan.group.card, shared.tcp_advertise, port).map_err(|error| StartError::Engine {
                path: ActorPath {
                    worker: plan.id,
                    child: None,
                },
                reason: format!("the model card is no JSON object: {error}"),
            })
        });
        let card = card.transpose()?;
        let ranks = (0..plan.group.data_parallel_size)
            .map(|rank| RankSlot::new(DpRank(rank)))
            .collect();
        let liveness = Liveness::new(fleet.clone().recipient(), Child::Worker(plan.id.0), incarnation);
        Ok(Self {
            plan,
            shared,
            entry,
            fleet,
            instance,
            incarnation,
            gate,
            sockets,
            unreachable: Vec::new(),
            ranks,
            reporter: ReporterSlot::new(),
            rendezvous: RendezvousSlot::default(),
            card,
            registrar: None,
            lease_restarts: Restarts::default(),
            lease_incarnation: 0,
            leaving: false,
            said_goodbye: false,
            left: false,
            liveness,
        })
    }

    fn path(&self, child: Option<Child>) -> ActorPath {
        ActorPath {
            worker: self.plan.id,
            child,
        }
    }
}

impl Actor for Worker {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(1024);
        self.entry.set_incarnation(self.incarnation, self.instance.0);
        self.entry.set_state(WorkerState::Starting);
        let starts_at = self.shared.clock.now() + self.plan.group.startup_time + slower_start(&self.entry.faults);
        self.start_reporter(ctx);
        self.start_rendezvous(ctx);
        for index in 0..self.ranks.len() {
            if self.publishes_events() {
                self.start_publisher(index, &[], ctx);
            }
            self.start_native(index, ctx);
            if let Err(error) = self.start_rank(index, starts_at, ctx) {
                tracing::error!(%error, "cannot start");
                return self.give_up(ctx);
            }
        }
        let mut generate = GenerateEndpoint::new(
            Arc::clone(&self.gate) as Arc<dyn Intake>,
            Arc::clone(&self.entry.streams),
            self.shared.max_open_requests,
            self.shared.dialer.clone(),
        )
        .disturbed_by(
            Arc::clone(self.entry.faults.table()),
            Arc::clone(self.entry.faults.mending()),
        );
        if self.plan.group.role == WorkerRole::Prefill {
            generate = generate.of_prefill(serde_json::json!({"prefill_worker": self.plan.id.to_string()}));
        }
        let name = &self.plan.group.endpoint;
        let ready = self.sockets.requests.serve(name, self.instance, Arc::new(generate));
        self.unreachable.push(ready);
        self.when_reachable(ctx, Self::start_registrar);
    }
}

impl Handler<Die> for Worker {
    type Result = ();

    fn handle(&mut self, Die(death): Die, ctx: &mut Self::Context) {
        death.happen(ctx);
    }
}

impl Handler<RanksOf> for Worker {
    type Result = Result<Vec<Addr<Rank>>, NoChild>;

    fn handle(&mut self, RanksOf(rank): RanksOf, _: &mut Self::Context) -> Self::Result {
        let chosen = |slot: &&RankSlot| rank.is_none_or(|rank| slot.rank.0 == rank);
        let actor = |slot: &RankSlot| slot.actor.clone().ok_or_else(|| self.without(Child::Rank(slot.rank.0)));
        let ranks: Vec<_> = self.ranks.iter().filter(chosen).map(actor).collect::<Result<_, _>>()?;
        if ranks.is_empty() {
            return Err(NoChild::Unknown);
        }
        Ok(ranks)
    }
}
