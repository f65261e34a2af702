//! `Fleet`: the supervisor of all workers.
//!
//! Started by the cluster on the system's own thread. Launches workers one after the other (staggered when asked),
//! spread over the arbiters; builds a fresh incarnation of a worker that died of a fault, with back-off and within a
//! budget; carries out kill, drain and restart. A worker that was crashed by request stays dead until `Restart`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::watch;

use super::death::{Death, Die};
use super::liveness::{Cause, Child, Died};
use super::path::ActorPath;
use super::plan::{Shared, WorkerPlan};
use super::rank::Rank;
use super::registry::{Registry, WorkerEntry, WorkerState};
use super::supervision::{Restarts, Supervised, Verdict};
use super::worker::{Drain, KillChild, RanksOf, StartError, Worker};
use crate::types::{InstanceId, WorkerId};

/// Where the launch stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launch {
    /// Under way.
    Starting {
        /// Workers that are registered.
        registered: u32,
    },
    /// All are registered.
    Ready,
    /// One could not be built; nothing more is launched.
    Failed(String),
    /// Every worker has left or is dead, as asked.
    Over,
}

/// Workers launched without a pause when the launch is staggered, and the pause after them (the peer's figures).
const BATCH: u32 = 32;
const BATCH_PAUSE: Duration = Duration::from_secs(2);

/// How often the launch looks whether discovery has failed for too long.
const STORE_LOOK: Duration = Duration::from_millis(250);

/// The supervisor.
pub struct Fleet {
    shared: Arc<Shared>,
    arbiters: Vec<ArbiterHandle>,
    stagger: Duration,
    registry: Arc<Registry>,
    launch: watch::Sender<Launch>,
    to_launch: VecDeque<WorkerId>,
    registered: u32,
    workers: BTreeMap<WorkerId, Slot>,
    stopping: bool,
}

struct Slot {
    plan: WorkerPlan,
    entry: Arc<WorkerEntry>,
    incarnation: u32,
    instance: InstanceId,
    actor: Option<Addr<Worker>>,
    restarts: Restarts,
    seen_registered: bool,
    /// This incarnation has been told to go: its place is free soon.
    going: bool,
    /// This incarnation has left in good order.
    left: bool,
}

/// What a worker tells.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) enum WorkerNews {
    /// Its records are visible.
    Registered(WorkerId),
    /// It has left in good order.
    Left(WorkerId),
}

/// A command that names something that is not there or not in a state for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// No such actor in the fleet.
    #[error("there is no actor {0} in this fleet")]
    NoSuchActor(ActorPath),
    /// The actor has died, and its worker replaces it after a while.
    #[error("{path} is down; its supervisor builds it again in {} ms", back_in.as_millis())]
    Down {
        /// Which one.
        path: ActorPath,
        /// Until then.
        back_in: Duration,
    },
    /// The worker is not alive.
    #[error("{0} is not alive; restart it first")]
    NotAlive(ActorPath),
    /// The worker is alive.
    #[error("{0} is alive; crash or drain it first")]
    Alive(ActorPath),
    /// The worker has been told to go and has not gone yet.
    #[error("{0} has not gone yet: it finishes its streams; try again later")]
    Going(ActorPath),
    /// Only a whole worker can do that.
    #[error("that is done to whole workers: name {} instead of {_0}", worker_path(_0.worker))]
    NeedsWorker(ActorPath),
    /// The actor has no KV cache.
    #[error("{0} has no KV cache; name a worker or a rank, as in w3 or w3/r0")]
    NoCache(ActorPath),
    /// A port of the worker is not free yet: its former listener is closed by a task of its own.
    #[error("cannot restart {path}: {reason}")]
    PortHeld {
        /// Which worker.
        path: ActorPath,
        /// Which port.
        reason: String,
    },
    /// The incarnation could not be built.
    #[error("cannot restart {path}: {reason}")]
    Start {
        /// Which worker.
        path: ActorPath,
        /// Why not.
        reason: String,
    },
    /// The fleet is gone, or about to go.
    #[error("the fleet is stopping or has stopped")]
    Stopped,
}

/// Kill an actor.
#[derive(Message)]
#[rtype(result = "Result<(), CommandError>")]
pub struct Kill {
    /// Which one.
    pub path: ActorPath,
    /// How.
    pub death: Death,
}

/// Asks for the ranks of a worker, or for one rank.
#[derive(Message)]
#[rtype(result = "Result<Vec<Addr<Rank>>, CommandError>")]
pub struct FindRanks {
    /// A worker or a rank.
    pub path: ActorPath,
}

/// Drain a worker: unlist it, let it finish its streams, let it leave.
#[derive(Message)]
#[rtype(result = "Result<(), CommandError>")]
pub struct DrainWorker(pub WorkerId);

/// Start a dead or drained worker again.
#[derive(Message)]
#[rtype(result = "Result<(), CommandError>")]
pub struct Restart {
    /// Which one.
    pub worker: WorkerId,
    /// Under its former instance id instead of a new one.
    pub same_id: bool,
}

/// Drain everything; [`Launch::Over`] follows when the last worker is gone.
#[derive(Message)]
#[rtype(result = "()")]
pub struct StopAll;

impl Fleet {
    /// A supervisor for `plans`; nothing is launched before it is started.
    pub fn new(
        shared: Arc<Shared>,
        arbiters: Vec<ArbiterHandle>,
        stagger: Duration,
        plans: Vec<WorkerPlan>,
        registry: Arc<Registry>,
        launch: watch::Sender<Launch>,
    ) -> Self {
        let to_launch = plans.iter().map(|plan| plan.id).collect();
        let workers = plans.into_iter().map(|plan| {
            let entry = WorkerEntry::new(&plan, Arc::clone(&shared.journal), registry.latency());
            let entry = registry.insert(entry);
            let slot = Slot {
                plan,
                entry,
                incarnation: 0,
                instance: InstanceId(0),
                actor: None,
                restarts: Restarts::default(),
                seen_registered: false,
                going: false,
                left: false,
            };
            (slot.plan.id, slot)
        });
        let workers = workers.collect();
        Self {
            shared,
            arbiters,
            stagger,
            registry,
            launch,
            to_launch,
            registered: 0,
            workers,
            stopping: false,
        }
    }

    /// Launches the next workers; comes back for the rest so that the thread stays responsive.
    fn launch_some(&mut self, launched: u32, ctx: &mut Context<Self>) {
        let many = if self.stagger.is_zero() { BATCH } else { 1 };
        let mut done = launched;
        for _ in 0..many {
            if self.stopping {
                return;
            }
            let Some(id) = self.to_launch.pop_front() else { return };
            if let Err(error) = self.build(id, None, ctx) {
                self.to_launch.clear();
                self.launch.send_replace(Launch::Failed(error.to_string()));
                return;
            }
            done += 1;
        }
        let mut wait = self.stagger;
        if !wait.is_zero() && done.is_multiple_of(BATCH) {
            wait += BATCH_PAUSE;
        }
        ctx.run_later(wait, move |fleet, ctx| fleet.launch_some(done, ctx));
    }

    /// Builds and starts a new incarnation; `None`: under a new instance id.
    fn build(&mut self, id: WorkerId, same: Option<InstanceId>, ctx: &mut Context<Self>) -> Result<(), StartError> {
        let Some(slot) = self.workers.get_mut(&id) else {
            return Ok(());
        };
        slot.incarnation += 1;
        slot.left = false;
        slot.going = false;
        slot.instance = same.unwrap_or_else(random_instance);
        let worker = {
            // Sockets and their tasks belong to the shared pool, not to this thread.
            let _pool = self.shared.pool.enter();
            Worker::build(
                slot.plan.clone(),
                Arc::clone(&self.shared),
                Arc::clone(&slot.entry),
                ctx.address(),
                slot.incarnation,
                slot.instance,
            )?
        };
        let arbiter = &self.arbiters[id.0 as usize % self.arbiters.len()];
        slot.actor = Some(Worker::start_in_arbiter(arbiter, move |_| worker));
        Ok(())
    }

    /// Gives the launch up when the store that workers have to be registered in fails for too long.
    fn look_at_store(&mut self, ctx: &mut Context<Self>) {
        if self.stopping || !matches!(*self.launch.borrow(), Launch::Starting { .. }) {
            return;
        }
        let limit = self.shared.registration_limit;
        if let Some(outage) = self.shared.store_health.trouble()
            && outage.since.elapsed() >= limit
        {
            self.to_launch.clear();
            self.launch.send_replace(Launch::Failed(format!(
                "only {} of {} workers could be registered; discovery has failed for {} s (--registration-timeout): {}",
                self.registered,
                self.workers.len(),
                limit.as_secs_f32(),
                outage.reason
            )));
            return;
        }
        ctx.run_later(STORE_LOOK, Self::look_at_store);
    }

    fn slot(&mut self, path: ActorPath) -> Result<&mut Slot, CommandError> {
        self.workers
            .get_mut(&path.worker)
            .ok_or(CommandError::NoSuchActor(path))
    }

    pub(super) fn alive(&mut self, path: ActorPath) -> Result<&Addr<Worker>, CommandError> {
        self.slot(path)?.actor.as_ref().ok_or(CommandError::NotAlive(path))
    }

    fn check_over(&mut self) {
        if self.stopping && self.workers.values().all(|slot| slot.actor.is_none()) {
            self.launch.send_replace(Launch::Over);
        }
    }
}

fn worker_path(worker: WorkerId) -> ActorPath {
    ActorPath { worker, child: None }
}

/// Instance ids are free to choose; below 2^53 JSON tools do not round them. Not seeded: two fleets with one seed may
/// share a store.
fn random_instance() -> InstanceId {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    InstanceId(((high ^ low.rotate_left(17)) & ((1 << 53) - 1)).max(1))
}

impl Actor for Fleet {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(64 * 1024);
        self.launch_some(0, ctx);
        self.look_at_store(ctx);
    }
}

impl Handler<WorkerNews> for Fleet {
    type Result = ();

    fn handle(&mut self, news: WorkerNews, _: &mut Self::Context) {
        match news {
            WorkerNews::Registered(id) => {
                let Some(slot) = self.workers.get_mut(&id) else { return };
                if std::mem::replace(&mut slot.seen_registered, true) {
                    return;
                }
                self.registered += 1;
                let (registered, all) = (self.registered, self.workers.len());
                self.launch.send_if_modified(|launch| {
                    if !matches!(launch, Launch::Starting { .. }) {
                        return false;
                    }
                    *launch = if registered as usize >= all {
                        Launch::Ready
                    } else {
                        Launch::Starting { registered }
                    };
                    true
                });
            }
            WorkerNews::Left(id) => {
                if let Some(slot) = self.workers.get_mut(&id) {
                    slot.left = true;
                }
                tracing::debug!(actor = %worker_path(id), "left");
            }
        }
    }
}

impl Handler<Died> for Fleet {
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
        let Child::Worker(id) = child else { return };
        let id = WorkerId(id);
        let now = self.shared.clock.now();
        let policy = self.shared.restarts;
        let Some(slot) = self.workers.get_mut(&id) else { return };
        if slot.incarnation != incarnation {
            return;
        }
        slot.actor = None;
        let path = worker_path(id).to_string();
        if cause == Cause::Stopped && !slot.left {
            slot.restarts.on_kill();
            let seen = Supervised::new((path.clone(), cause), &slot.restarts, &policy, now, None);
            slot.entry.note_death(seen);
        }
        // Only now: whoever sees the state may restart the worker at once.
        slot.entry.set_state(if slot.left {
            WorkerState::Left
        } else {
            WorkerState::Dead
        });
        if self.stopping {
            return self.check_over();
        }
        match cause {
            Cause::Stopped => tracing::info!(actor = %path, state = ?slot.entry.state(), "ended"),
            Cause::Panicked | Cause::Escalated => {
                let verdict = slot.restarts.on_death(&policy, now);
                let seen = Supervised::new((path, cause), &slot.restarts, &policy, now, verdict.backoff());
                slot.entry.note_death(seen);
                match verdict {
                    Verdict::RestartAfter(wait) => {
                        tracing::warn!(actor = %worker_path(id), ?cause, ?wait, "died; will be replaced");
                        ctx.run_later(wait, move |fleet, ctx| fleet.replace(id, ctx));
                    }
                    Verdict::GiveUp => {
                        tracing::error!(actor = %worker_path(id), ?cause, budget = policy.budget, "died too often; stays dead");
                        slot.entry.note_gave_up(worker_path(id).to_string(), &policy);
                    }
                }
            }
        }
    }
}

impl Fleet {
    fn replace(&mut self, id: WorkerId, ctx: &mut Context<Self>) {
        let Some(slot) = self.workers.get(&id) else { return };
        if self.stopping || slot.actor.is_some() {
            return;
        }
        slot.entry.count_restart();
        if let Err(error) = self.build(id, None, ctx) {
            tracing::error!(%error, "cannot replace a worker");
            let incarnation = self.workers.get(&id).map_or(0, |slot| slot.incarnation);
            ctx.notify(Died {
                child: Child::Worker(id.0),
                incarnation,
                cause: Cause::Escalated,
            });
        }
    }
}

impl Handler<Kill> for Fleet {
    type Result = ResponseFuture<Result<(), CommandError>>;

    fn handle(&mut self, Kill { path, death }: Kill, _: &mut Self::Context) -> Self::Result {
        let worker = match self.alive(path) {
            Ok(worker) => worker.clone(),
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        if path.child.is_none()
            && let Ok(slot) = self.slot(path)
        {
            slot.going = true;
        }
        Box::pin(async move {
            match path.child {
                None => worker.send(Die(death)).await.or(Ok(())),
                Some(child) => match worker.send(KillChild(child, death)).await {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(missing)) => Err(missing.error(path)),
                    Err(_) => Err(CommandError::NotAlive(path)),
                },
            }
        })
    }
}

impl Handler<FindRanks> for Fleet {
    type Result = ResponseFuture<Result<Vec<Addr<Rank>>, CommandError>>;

    fn handle(&mut self, FindRanks { path }: FindRanks, _: &mut Self::Context) -> Self::Result {
        let rank = match path.child {
            None => Ok(None),
            Some(Child::Rank(rank)) => Ok(Some(rank)),
            Some(
                Child::Worker(_) | Child::Kv(_) | Child::Native(_) | Child::Metrics | Child::Lease | Child::Rendezvous,
            ) => Err(CommandError::NoCache(path)),
        };
        let asked = rank.and_then(|rank| Ok((self.alive(path)?.clone(), rank)));
        Box::pin(async move {
            let (worker, rank) = asked?;
            match worker.send(RanksOf(rank)).await {
                Ok(Ok(ranks)) => Ok(ranks),
                Ok(Err(missing)) => Err(missing.error(path)),
                Err(_) => Err(CommandError::NotAlive(path)),
            }
        })
    }
}

impl Handler<DrainWorker> for Fleet {
    type Result = Result<(), CommandError>;

    fn handle(&mut self, DrainWorker(id): DrainWorker, _: &mut Self::Context) -> Self::Result {
        let path = worker_path(id);
        self.alive(path)?.do_send(Drain);
        self.slot(path)?.going = true;
        Ok(())
    }
}

impl Handler<Restart> for Fleet {
    type Result = Result<(), CommandError>;

    fn handle(&mut self, Restart { worker, same_id }: Restart, ctx: &mut Self::Context) -> Self::Result {
        let path = worker_path(worker);
        if self.stopping {
            // A restart that was waiting must not outlive the goodbye: nobody would drain what it builds.
            return Err(CommandError::Stopped);
        }
        let slot = self.slot(path)?;
        if slot.actor.is_some() {
            return Err(if slot.going {
                CommandError::Going(path)
            } else {
                CommandError::Alive(path)
            });
        }
        let entry = Arc::clone(&slot.entry);
        let same = same_id.then_some(slot.instance).filter(|id| id.0 != 0);
        match self.build(worker, same, ctx) {
            Ok(()) => {
                entry.count_restart();
                Ok(())
            }
            Err(error) => {
                let reason = error.to_string();
                Err(if error.is_port_held() {
                    CommandError::PortHeld { path, reason }
                } else {
                    CommandError::Start { path, reason }
                })
            }
        }
    }
}

impl Handler<StopAll> for Fleet {
    type Result = ();

    fn handle(&mut self, _: StopAll, _: &mut Self::Context) {
        self.stopping = true;
        self.to_launch.clear();
        for slot in self.workers.values() {
            if let Some(worker) = &slot.actor {
                worker.do_send(Drain);
            }
        }
        self.check_over();
        tracing::debug!(dead = self.registry.count(WorkerState::Dead), "stopping");
    }
}
