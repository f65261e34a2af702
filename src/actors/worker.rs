//! `Worker`: the unit of death. Owns its sockets, its children and its place in discovery.
//!
//! Started by the fleet on one of its threads. Builds a [`Rank`] and a [`KvPublisher`] per data-parallel rank, one
//! [`MetricsReporter`] and one [`Registrar`]; replaces a child that dies, within a budget, and dies itself when the
//! budget is used up. However it ends, dropping it ends everything it owns the way a process's end would: sockets are
//! reset, streams break off, the lease is left to run out. Only [`Drain`] says goodbye.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;

use super::death::{Death, Die};
use super::fleet::{Fleet, WorkerNews};
use super::gate::Gate;
use super::kv_publisher::{KvPublisher, Publish};
use super::kv_trace::KvTrace;
use super::liveness::{Cause, Child, Died, Liveness};
use super::metrics_reporter::{ForwardPasses, MetricsReporter};
use super::native_stream::{NativeParts, NativeStream};
use super::path::ActorPath;
use super::plan::{Shared, WorkerPlan};
use super::rank::{CachedBlocks, Connect, ConnectNative, Rank, RankParts};
use super::records::{Records, StreamAt};
use super::recovery::RecoveryEndpoint;
use super::registrar::{LeaseNews, Leave, Registrar, Replace, Withdraw};
use super::registry::{WorkerEntry, WorkerState};
use super::sockets::Sockets;
use super::supervision::{Restarts, Verdict};
use crate::engine;
use crate::transport::discovery::{EndpointName, Record};
use crate::transport::event_plane::forward_pass::Detail;
use crate::transport::event_plane::journal::Journal;
use crate::transport::event_plane::native::BatchEncoder;
use crate::transport::event_plane::topic::Topic;
use crate::transport::event_plane::{EventPublisher, PublisherId};
use crate::transport::http::FaceError;
use crate::transport::intake::Intake;
use crate::transport::request_plane::call_home::generate::GenerateEndpoint;
use crate::transport::request_plane::plane::Ready;
use crate::transport::request_plane::tcp::server::BindError;
use crate::types::{DpRank, InstanceId, SequenceHash, SimTime, StoredBlock};

/// A worker that cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No event socket.
    #[error(
        "{path}: cannot open an event socket on {host}: {source}; choose an address of this machine with --event-host or DYN_EVENT_PLANE_HOST"
    )]
    EventSocket {
        /// Which rank.
        path: ActorPath,
        /// Wanted address.
        host: std::net::IpAddr,
        /// Why not.
        source: io::Error,
    },
    /// No native event or replay socket.
    #[error(
        "{path}: cannot listen on {address}: {source}; choose other ports with --zmq-kv-events-ports and --zmq-replay-ports"
    )]
    NativeSocket {
        /// Which stream.
        path: ActorPath,
        /// Wanted address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// No request listener.
    #[error("{path}: {source}")]
    Listener {
        /// Which worker.
        path: ActorPath,
        /// Why not.
        source: BindError,
    },
    /// No HTTP port.
    #[error("{path}: {source}")]
    Http {
        /// Which worker.
        path: ActorPath,
        /// Why not.
        source: FaceError,
    },
    /// A NATS connection of its own is planned, but there are no servers.
    #[error("{path}: no NATS servers are known; set NATS_SERVER")]
    NoNats {
        /// Which worker.
        path: ActorPath,
    },
    /// No engine.
    #[error("{path}: {reason}")]
    Engine {
        /// Which rank.
        path: ActorPath,
        /// Why not.
        reason: String,
    },
}

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

/// A rank and its publishers: restarted one by one.
struct RankSlot {
    rank: DpRank,
    actor: Option<Addr<Rank>>,
    rank_incarnation: u32,
    rank_restarts: Restarts,
    publisher: Option<Addr<KvPublisher>>,
    publisher_id: PublisherId,
    publisher_incarnation: u32,
    publisher_restarts: Restarts,
    native: Option<Addr<NativeStream>>,
    native_incarnation: u32,
    native_restarts: Restarts,
}

struct ReporterSlot {
    actor: Option<Addr<MetricsReporter>>,
    publisher_id: PublisherId,
    /// Of the forward passes.
    forward_id: PublisherId,
    incarnation: u32,
    restarts: Restarts,
}

/// Unlist the worker, finish its streams, then leave.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Drain;

/// A command for one of the worker's children.
#[derive(Message)]
#[rtype(result = "Result<(), NoSuchChild>")]
pub(super) struct KillChild(pub(super) Child, pub(super) Death);

/// Asks for one rank or for all.
#[derive(Message)]
#[rtype(result = "Result<Vec<Addr<Rank>>, NoSuchChild>")]
pub(super) struct RanksOf(pub(super) Option<u32>);

/// The child is not there (any more).
#[derive(Debug)]
pub(super) struct NoSuchChild;

/// A drained worker stays reachable for this long after its records are gone: requests that were on their way are
/// served too.
const LATE_REQUESTS: Duration = Duration::from_millis(500);

/// How often a draining worker looks whether it is done.
const DRAIN_CHECK: Duration = Duration::from_millis(20);

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
        let gate = Arc::new(Gate::default());
        let sockets = Sockets::open(&plan, &shared, &gate, &entry)?;
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
            reporter: ReporterSlot {
                actor: None,
                publisher_id: PublisherId::random(),
                forward_id: PublisherId::random(),
                incarnation: 0,
                restarts: Restarts::default(),
            },
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

    fn records(&self) -> Records<'_> {
        Records {
            plan: &self.plan,
            instance: self.instance,
            requests: &self.sockets.requests,
        }
    }

    fn publishes_events(&self) -> bool {
        self.plan.group.engine.enable_prefix_caching
    }

    fn kv_records(&self, slot: &RankSlot) -> Vec<Record> {
        let stream = StreamAt {
            publisher: slot.publisher_id,
            address: self
                .sockets
                .event_address(slot.rank.0 as usize, &self.plan, &self.shared),
        };
        self.records().kv_stream(slot.rank, &stream)
    }

    fn metrics_records(&self) -> Vec<Record> {
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
    fn all_records(&self) -> Vec<Record> {
        let mut records = Vec::new();
        if self.publishes_events() {
            records.extend(self.ranks.iter().flat_map(|slot| self.kv_records(slot)));
        }
        records.extend(self.metrics_records());
        records.extend(self.records().serving());
        records
    }

    fn start_rank(&mut self, index: usize, starts_at: SimTime, ctx: &mut Context<Self>) -> Result<(), StartError> {
        let child = Child::Rank(self.ranks[index].rank.0);
        // The same seed on every rank: a request that migrates goes on with the same tokens.
        let failed = |reason: String| StartError::Engine {
            path: self.path(Some(child)),
            reason,
        };
        let mut engine = engine::build(&self.plan.group.engine).map_err(|error| failed(error.to_string()))?;
        let native = !self.sockets.native.is_empty();
        if native && !engine.record_stored(true) {
            return Err(failed(
                "this engine cannot tell the tokens of its blocks; drop --zmq-kv-events-ports".to_owned(),
            ));
        }
        let slot = &mut self.ranks[index];
        slot.rank_incarnation += 1;
        let actor = Rank::new(RankParts {
            rank: slot.rank,
            engine,
            clock: self.shared.clock,
            starts_at,
            gauge: Arc::clone(&self.entry.gauges[index]),
            trace: self.plan.group.kv_cache_trace.then(|| KvTrace {
                rank: slot.rank,
                block_size: self.plan.group.engine.block_size,
            }),
            metrics: Arc::clone(&self.entry.metrics[index]),
            native,
            forward_passes: self.plan.group.forward_passes,
            liveness: Liveness::new(ctx.address().recipient(), child, slot.rank_incarnation),
        })
        .start();
        if let Some(stream) = &slot.native {
            actor.do_send(ConnectNative(stream.clone()));
        }
        actor.do_send(Connect {
            publisher: slot.publisher.clone(),
            reporter: self.reporter.actor.clone(),
        });
        slot.actor = Some(actor.clone());
        self.gate.set_rank(slot.rank.0, Some(actor));
        Ok(())
    }

    /// A publisher that starts from what the rank has in its cache.
    fn start_publisher(
        &mut self,
        index: usize,
        blocks: &[(Option<SequenceHash>, StoredBlock)],
        ctx: &mut Context<Self>,
    ) {
        let child = Child::Kv(self.ranks[index].rank.0);
        let plane = self.sockets.events(index);
        let scope = &self.plan.group.endpoint;
        let slot = &mut self.ranks[index];
        slot.publisher_incarnation += 1;
        slot.publisher_id = PublisherId::random();
        let publisher = KvPublisher::new(
            Journal::seeded(self.instance, slot.rank, blocks),
            EventPublisher::new(plane, scope, Topic::KvEvents, slot.publisher_id),
            Arc::clone(&self.entry.recovery),
            Liveness::new(ctx.address().recipient(), child, slot.publisher_incarnation),
        )
        .start();
        slot.publisher = Some(publisher.clone());
        if let Some(rank) = &slot.actor {
            rank.do_send(Connect {
                publisher: Some(publisher.clone()),
                reporter: None,
            });
        }
        let name = self.records().query_name(self.ranks[index].publisher_id);
        let endpoint = RecoveryEndpoint {
            publisher,
            limits: self.shared.recovery_limits.clone(),
            counts: Arc::clone(&self.entry.recovery),
        };
        let ready = self.sockets.requests.serve(&name, self.instance, Arc::new(endpoint));
        self.unreachable.push(ready);
    }

    /// A native stream that the rank tells its cache.
    fn start_native(&mut self, index: usize, ctx: &mut Context<Self>) {
        let (Some(plan), Some(sockets)) = (&self.plan.native, self.sockets.native.get(index)) else {
            return;
        };
        let slot = &mut self.ranks[index];
        slot.native_incarnation += 1;
        let parts = NativeParts {
            encoder: BatchEncoder {
                encoding: plan.encoding,
                block_size: self.plan.group.engine.block_size,
                rank: slot.rank,
            },
            topic: plan.topic_of(slot.rank.0),
            socket: Arc::clone(&sockets.events),
            ring: sockets.replay.as_ref().map(|(_, ring)| Arc::clone(ring)),
            next_sequence: Arc::clone(&sockets.next_sequence),
        };
        let child = Child::Native(slot.rank.0);
        let liveness = Liveness::new(ctx.address().recipient(), child, slot.native_incarnation);
        let stream = NativeStream::new(parts, liveness).start();
        if let Some(rank) = &slot.actor {
            rank.do_send(ConnectNative(stream.clone()));
        }
        slot.native = Some(stream);
    }

    fn start_reporter(&mut self, ctx: &mut Context<Self>) {
        let plane = self.sockets.events(0);
        self.reporter.incarnation += 1;
        self.reporter.publisher_id = PublisherId::random();
        self.reporter.forward_id = PublisherId::random();
        let liveness = Liveness::new(ctx.address().recipient(), Child::Metrics, self.reporter.incarnation);
        let group = &self.plan.group;
        let scope = &group.endpoint;
        let forward = (group.forward_passes != Detail::Off).then(|| {
            let stream = EventPublisher::new(plane.clone(), scope, Topic::ForwardPasses, self.reporter.forward_id);
            ForwardPasses::new(stream, group.data_parallel_size)
        });
        let stream = EventPublisher::new(plane, scope, Topic::KvMetrics, self.reporter.publisher_id);
        let reporter = MetricsReporter::new(self.instance, stream, forward, liveness).start();
        self.reporter.actor = Some(reporter.clone());
        for rank in self.ranks.iter().filter_map(|slot| slot.actor.as_ref()) {
            rank.do_send(Connect {
                publisher: None,
                reporter: Some(reporter.clone()),
            });
        }
    }

    /// Goes on once requests reach every endpoint that is being served: what is in discovery has to be callable.
    fn when_reachable(&mut self, ctx: &mut Context<Self>, then: impl FnOnce(&mut Self, &mut Context<Self>) + 'static) {
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

    fn start_registrar(&mut self, ctx: &mut Context<Self>) {
        self.lease_incarnation += 1;
        let registrar = Registrar::new(
            &self.shared.pool,
            self.shared.discovery.clone(),
            self.shared.store_health.clone(),
            self.all_records(),
            ctx.address().recipient(),
            Liveness::new(ctx.address().recipient(), Child::Lease, self.lease_incarnation),
        );
        self.registrar = Some(registrar.start());
    }

    fn replace_records(&self, old: &[Record], new: Vec<Record>) {
        if let Some(registrar) = &self.registrar {
            let old_keys = old.iter().map(|record| record.key.clone()).collect();
            registrar.do_send(Replace { old_keys, new });
        }
    }

    fn restart(&mut self, child: Child, ctx: &mut Context<Self>) {
        if self.leaving {
            return;
        }
        self.entry.count_restart();
        tracing::info!(actor = %self.path(Some(child)), "restarting");
        match child {
            Child::Rank(rank) => {
                let index = rank as usize;
                if let Err(error) = self.start_rank(index, self.shared.clock.now(), ctx) {
                    tracing::error!(%error, "cannot restart");
                    return self.give_up(ctx);
                }
                // The new rank's cache is empty, and the router has to hear of it.
                if let Some(publisher) = &self.ranks[index].publisher {
                    publisher.do_send(Publish::Replace(Vec::new()));
                }
            }
            Child::Kv(rank) => self.restart_publisher(rank as usize, ctx),
            Child::Native(rank) => self.start_native(rank as usize, ctx),
            Child::Metrics => {
                let old = self.metrics_records();
                self.start_reporter(ctx);
                self.replace_records(&old, self.metrics_records());
            }
            Child::Lease => self.start_registrar(ctx),
            Child::Worker(_) => {}
        }
    }

    /// Asks the rank for its true blocks first; a rank that is dead itself has none.
    fn restart_publisher(&mut self, index: usize, ctx: &mut Context<Self>) {
        let old = self.kv_records(&self.ranks[index]);
        let old_name = self.records().query_name(self.ranks[index].publisher_id);
        self.sockets.requests.withdraw(&old_name, self.instance);
        let rank = self.ranks[index].actor.clone();
        let blocks = async move {
            match rank {
                Some(rank) => rank.send(CachedBlocks).await.unwrap_or_default(),
                None => Vec::new(),
            }
        };
        ctx.spawn(blocks.into_actor(self).map(move |blocks, worker, ctx| {
            worker.start_publisher(index, &blocks, ctx);
            worker.when_reachable(ctx, move |worker, _| {
                let new = worker.kv_records(&worker.ranks[index]);
                worker.replace_records(&old, new);
            });
        }));
    }

    /// A child is beyond its budget: the worker is not worth keeping. The fleet decides what comes after.
    fn give_up(&mut self, ctx: &mut Context<Self>) {
        self.liveness.set_cause(Cause::Escalated);
        ctx.terminate();
    }

    fn leave(&mut self, ctx: &mut Context<Self>) {
        let name = &self.plan.group.endpoint;
        self.sockets.requests.withdraw(name, self.instance);
        match &self.registrar {
            Some(registrar) => registrar.do_send(Leave),
            None => self.left(ctx),
        }
    }

    fn left(&mut self, ctx: &mut Context<Self>) {
        self.left = true;
        self.sockets.close_events();
        self.fleet.do_send(WorkerNews::Left(self.plan.id));
        ctx.terminate();
    }

    fn is_idle(&self) -> bool {
        self.entry.open_streams() == 0
    }
}

impl RankSlot {
    fn new(rank: DpRank) -> Self {
        Self {
            rank,
            actor: None,
            rank_incarnation: 0,
            rank_restarts: Restarts::default(),
            publisher: None,
            publisher_id: PublisherId::random(),
            publisher_incarnation: 0,
            publisher_restarts: Restarts::default(),
            native: None,
            native_incarnation: 0,
            native_restarts: Restarts::default(),
        }
    }
}

impl Actor for Worker {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(1024);
        self.entry.set_incarnation(self.incarnation, self.instance.0);
        self.entry.set_state(WorkerState::Starting);
        let starts_at = self.shared.clock.now() + self.plan.group.startup_time;
        self.start_reporter(ctx);
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
        let generate = GenerateEndpoint::new(
            Arc::clone(&self.gate) as Arc<dyn Intake>,
            Arc::clone(&self.entry.streams),
            self.shared.max_open_requests,
            self.shared.answer_limits,
        );
        let name = &self.plan.group.endpoint;
        let ready = self.sockets.requests.serve(name, self.instance, Arc::new(generate));
        self.unreachable.push(ready);
        self.when_reachable(ctx, Self::start_registrar);
    }
}

impl Drop for Worker {
    /// What the end of a process does: doors shut, sockets reset, nothing said.
    fn drop(&mut self) {
        self.gate.close();
        let end = |name: &EndpointName| {
            if self.left {
                self.sockets.requests.withdraw(name, self.instance);
            } else {
                self.sockets.requests.crash(name, self.instance);
            }
        };
        end(&self.plan.group.endpoint);
        for slot in &self.ranks {
            end(&self.records().query_name(slot.publisher_id));
            if let Some(rank) = &slot.actor {
                rank.do_send(Die(Death::Crash));
            }
            if let Some(publisher) = &slot.publisher {
                publisher.do_send(Die(Death::Crash));
            }
            if let Some(native) = &slot.native {
                native.do_send(Die(Death::Crash));
            }
        }
        if let Some(reporter) = &self.reporter.actor {
            reporter.do_send(Die(Death::Crash));
        }
        if let Some(registrar) = &self.registrar {
            registrar.do_send(Die(Death::Crash));
        }
        if !self.left {
            self.sockets.crash();
        }
    }
}

impl Handler<Died> for Worker {
    type Result = ();

    fn handle(
        &mut self,
        Died {
            child,
            incarnation,
            cause,
        }: Died,
        ctx: &mut Self::Context,
    ) {
        let now = self.shared.clock.now();
        let policy = self.shared.restarts;
        let path = self.path(Some(child));
        let (current, restarts) = match child {
            Child::Rank(rank) => {
                let slot = &mut self.ranks[rank as usize];
                if incarnation == slot.rank_incarnation {
                    slot.actor = None;
                    self.gate.set_rank(rank, None);
                }
                (slot.rank_incarnation, &mut slot.rank_restarts)
            }
            Child::Kv(rank) => {
                let slot = &mut self.ranks[rank as usize];
                if incarnation == slot.publisher_incarnation {
                    slot.publisher = None;
                }
                (slot.publisher_incarnation, &mut slot.publisher_restarts)
            }
            Child::Native(rank) => {
                let slot = &mut self.ranks[rank as usize];
                if incarnation == slot.native_incarnation {
                    slot.native = None;
                }
                (slot.native_incarnation, &mut slot.native_restarts)
            }
            Child::Metrics => (self.reporter.incarnation, &mut self.reporter.restarts),
            Child::Lease => {
                if incarnation == self.lease_incarnation {
                    self.registrar = None;
                    if self.said_goodbye {
                        // Nobody is left to close the lease: it runs out by itself.
                        return self.left(ctx);
                    }
                }
                (self.lease_incarnation, &mut self.lease_restarts)
            }
            Child::Worker(_) => return,
        };
        if incarnation != current || self.leaving {
            return;
        }
        match restarts.on_death(&policy, now) {
            Verdict::RestartAfter(wait) => {
                tracing::warn!(actor = %path, ?cause, ?wait, "died; will be replaced");
                ctx.run_later(wait, move |worker, ctx| worker.restart(child, ctx));
            }
            Verdict::GiveUp => {
                tracing::error!(actor = %path, ?cause, budget = policy.budget, "died too often; giving the worker up");
                self.give_up(ctx);
            }
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
                self.fleet.do_send(WorkerNews::Registered(self.plan.id));
            }
            LeaseNews::Left => self.left(ctx),
        }
    }
}

impl Handler<Drain> for Worker {
    type Result = ();

    fn handle(&mut self, _: Drain, ctx: &mut Self::Context) {
        if self.leaving {
            return;
        }
        self.leaving = true;
        self.entry.set_state(WorkerState::Draining);
        if let Some(registrar) = &self.registrar {
            registrar.do_send(Withdraw(
                self.records().serving().into_iter().map(|record| record.key).collect(),
            ));
        }
        ctx.run_later(LATE_REQUESTS, |worker, ctx| {
            if let Some(face) = &worker.sockets.face {
                face.shutdown().stop_accepting.cancel();
            }
            ctx.run_interval(DRAIN_CHECK, |worker, ctx| {
                if worker.is_idle() && !worker.said_goodbye {
                    worker.said_goodbye = true;
                    worker.leave(ctx);
                }
            });
        });
    }
}

impl Handler<Die> for Worker {
    type Result = ();

    fn handle(&mut self, Die(death): Die, ctx: &mut Self::Context) {
        death.happen(ctx);
    }
}

impl Handler<KillChild> for Worker {
    type Result = Result<(), NoSuchChild>;

    fn handle(&mut self, KillChild(child, death): KillChild, _: &mut Self::Context) -> Self::Result {
        let slot = |rank: u32| self.ranks.get(rank as usize);
        let sent = match child {
            Child::Rank(rank) => slot(rank)
                .and_then(|slot| slot.actor.as_ref())
                .map(|a| a.do_send(Die(death))),
            Child::Kv(rank) => slot(rank)
                .and_then(|slot| slot.publisher.as_ref())
                .map(|a| a.do_send(Die(death))),
            Child::Native(rank) => slot(rank)
                .and_then(|slot| slot.native.as_ref())
                .map(|a| a.do_send(Die(death))),
            Child::Metrics => self.reporter.actor.as_ref().map(|a| a.do_send(Die(death))),
            Child::Lease => self.registrar.as_ref().map(|a| a.do_send(Die(death))),
            Child::Worker(_) => None,
        };
        sent.ok_or(NoSuchChild)
    }
}

impl Handler<RanksOf> for Worker {
    type Result = Result<Vec<Addr<Rank>>, NoSuchChild>;

    fn handle(&mut self, RanksOf(rank): RanksOf, _: &mut Self::Context) -> Self::Result {
        let chosen = |slot: &&RankSlot| rank.is_none_or(|rank| slot.rank.0 == rank);
        let ranks: Option<Vec<_>> = self
            .ranks
            .iter()
            .filter(chosen)
            .map(|slot| slot.actor.clone())
            .collect();
        ranks.filter(|ranks| !ranks.is_empty()).ok_or(NoSuchChild)
    }
}
