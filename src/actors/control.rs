//! `Control`: every command a fleet takes, as calls. Clones share the fleet; it may be used from any tokio runtime.

use std::sync::Arc;

use actix::prelude::*;
use futures::future::join_all;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;

use super::clock::Clock;
use super::death::Death;
use super::fault_desk::{
    self, ChangeFaults, Choose, Counters, FaultCounters, FaultDesk, FaultSums, Heal, ListFaults, restart_when_gone,
};
use super::fleet::{CommandError, DrainWorker, FindRanks, Fleet, Kill, Launch};
use super::inspect::Inspect;
use super::path::ActorPath;
use super::rank::{CachedBlocks, ClearCache, Rank};
use super::registry::{Registry, WorkerState};
use crate::faults::journal::Event;
use crate::faults::standing::Listed;
use crate::faults::tally::Sums;
use crate::faults::{Fault, FaultError, FaultId, Journal, Selector};
use crate::transport::discovery::{Discovery, Record};
use crate::types::{SequenceHash, SimTime, StoredBlock, WorkerId};

/// Blocks of one prefix cache with their parents, parents first.
pub type CacheContent = Vec<(Option<SequenceHash>, StoredBlock)>;

/// A record in the discovery store.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Seen {
    /// Its key.
    pub key: String,
    /// What it says; a text where it is no JSON.
    pub value: Value,
}

/// Handle to a running fleet.
#[derive(Clone)]
pub struct Control {
    pub(crate) fleet: Addr<Fleet>,
    pub(crate) desk: Addr<FaultDesk>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) clock: Clock,
    pub(crate) discovery: Discovery,
    pub(crate) launch: watch::Receiver<Launch>,
}

impl Control {
    /// Figures of every worker.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// What has happened.
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// Where the launch stands.
    pub fn launch(&self) -> Launch {
        self.launch.borrow().clone()
    }

    /// The fleet's clock.
    pub fn now(&self) -> SimTime {
        self.clock.now()
    }

    /// What is in the discovery store under `prefix`, whoever put it there: what routers see.
    ///
    /// # Errors
    /// Why the store could not be read.
    pub async fn records(&self, prefix: &str) -> Result<Vec<Seen>, String> {
        let records = self.discovery.list(prefix).await.map_err(|error| error.to_string())?;
        let seen = |Record { key, value }: Record| {
            let text = || Value::from(String::from_utf8_lossy(&value));
            let value = serde_json::from_slice(&value).unwrap_or_else(|_| text());
            Seen { key, value }
        };
        Ok(records.into_iter().map(seen).collect())
    }

    /// What one of a worker's children says of itself.
    ///
    /// # Errors
    /// [`CommandError`] names the path.
    pub async fn inspect(&self, path: ActorPath) -> Result<Value, CommandError> {
        self.command(Inspect(path)).await
    }

    async fn command<M, T>(&self, message: M) -> Result<T, CommandError>
    where
        M: Message<Result = Result<T, CommandError>> + Send + 'static,
        T: Send + 'static,
        Fleet: Handler<M>,
    {
        self.fleet.send(message).await.unwrap_or(Err(CommandError::Stopped))
    }

    fn note(&self, path: ActorPath, act: &'static str, outcome: &Result<(), CommandError>) {
        self.journal.note(Event::Done {
            id: None,
            path: path.to_string(),
            act,
            error: outcome.as_ref().err().map(ToString::to_string),
        });
    }

    /// Kills an actor. Returns when the order is delivered.
    ///
    /// # Errors
    /// [`CommandError`] names the path.
    pub async fn kill(&self, path: ActorPath, death: Death) -> Result<(), CommandError> {
        let outcome = self.command(Kill { path, death }).await;
        let act = match death {
            Death::Crash => "crash",
            Death::Panic => "panic",
        };
        self.note(path, act, &outcome);
        outcome
    }

    /// Unlists a worker, lets it finish its streams and leave. Returns at once.
    ///
    /// # Errors
    /// [`CommandError`] names the path.
    pub async fn drain(&self, worker: WorkerId) -> Result<(), CommandError> {
        let outcome = self.command(DrainWorker(worker)).await;
        self.note(ActorPath { worker, child: None }, "drain", &outcome);
        outcome
    }

    /// Starts a worker again under a new instance id or its former one; one that is alive is crashed first.
    ///
    /// # Errors
    /// [`CommandError`] names the path.
    pub async fn restart(&self, worker: WorkerId, same_id: bool) -> Result<(), CommandError> {
        let path = ActorPath { worker, child: None };
        let alive = !self.is_gone(worker);
        if alive {
            match self.kill(path, Death::Crash).await {
                Ok(()) | Err(CommandError::NotAlive(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let outcome = match restart_when_gone(&self.fleet, worker, same_id).await {
            // Somebody else was faster, a fault for instance.
            Err(CommandError::Alive(_)) => Ok(()),
            outcome => outcome,
        };
        self.note(path, "restart", &outcome);
        outcome
    }

    fn is_gone(&self, worker: WorkerId) -> bool {
        let entry = self.registry.get(worker);
        entry.is_some_and(|entry| matches!(entry.state(), WorkerState::Dead | WorkerState::Left))
    }

    /// Takes every fault off the workers and starts those again that are dead, gone, or about to be.
    ///
    /// # Errors
    /// The first restart that failed.
    pub async fn heal(&self, workers: Vec<WorkerId>, same_id: bool) -> Result<(), CommandError> {
        let healed = self.desk.send(Heal(workers.clone())).await;
        healed.map_err(|_| CommandError::Stopped)?;
        // One that is leaving may take a while; the others do not wait for it.
        let revived = workers.into_iter().map(|worker| self.revive(worker, same_id));
        join_all(revived).await.into_iter().collect()
    }

    async fn revive(&self, worker: WorkerId, same_id: bool) -> Result<(), CommandError> {
        let state = self.registry.get(worker).map(|entry| entry.state());
        if matches!(state, None | Some(WorkerState::Planned)) {
            // Its turn to be launched comes.
            return Ok(());
        }
        // One that was killed a moment ago still looks alive.
        let outcome = restart_when_gone(&self.fleet, worker, same_id).await;
        match outcome {
            Err(CommandError::Alive(_)) => return Ok(()),
            // Nobody is started any more, and this one has not to be: it drains, and without its faults it can.
            Err(CommandError::Stopped) if !self.is_gone(worker) => return Ok(()),
            _ => {}
        }
        self.note(ActorPath { worker, child: None }, "restart", &outcome);
        outcome
    }

    /// Whom a selector means now; `seed` is that of its dice.
    pub async fn choose(&self, select: Selector, seed: u64) -> Vec<WorkerId> {
        self.desk.send(Choose { select, seed }).await.unwrap_or_default()
    }

    /// Removes faults (`None`: all) and adds others, all of them or none. Returns the numbers of the new ones.
    ///
    /// # Errors
    /// The first fault that cannot be removed or added.
    pub async fn change_faults(
        &self,
        remove: Option<Vec<FaultId>>,
        add: Vec<Fault>,
    ) -> Result<Vec<FaultId>, FaultError> {
        let stopped = || FaultError::Line(CommandError::Stopped.to_string());
        self.desk
            .send(ChangeFaults { remove, add })
            .await
            .map_err(|_| stopped())?
    }

    /// Whether a fault could strike anything of this fleet.
    ///
    /// # Errors
    /// Why it never can.
    pub fn check_fault(&self, fault: &Fault) -> Result<(), FaultError> {
        fault_desk::check(fault, &self.registry)?;
        fault.check(&self.registry.candidates())
    }

    /// All faults, by number.
    pub async fn faults(&self) -> Vec<Listed> {
        self.desk.send(ListFaults).await.unwrap_or_default()
    }

    /// What is counted of each fault that is listed; goes on counting when the fault is listed no more.
    pub async fn fault_counters(&self) -> Counters {
        self.desk.send(FaultCounters).await.unwrap_or_default()
    }

    /// What has come of all faults since the fleet's start, those that are listed no more included.
    pub async fn fault_sums(&self) -> Sums {
        self.desk.send(FaultSums).await.unwrap_or_default()
    }

    /// Drops every cached block that no request uses, of a worker or a rank; how many there were.
    ///
    /// # Errors
    /// [`CommandError`] names the path.
    pub async fn clear_cache(&self, path: ActorPath) -> Result<u64, CommandError> {
        let blocks = self.ask_ranks(path, || ClearCache).await;
        self.note(path, "clear_cache", &blocks.as_ref().map(drop).map_err(Clone::clone));
        Ok(blocks?.into_iter().sum())
    }

    /// True content of the prefix cache of each rank of a worker, or of one rank.
    ///
    /// # Errors
    /// [`CommandError`] names the path.
    pub async fn cached_blocks(&self, path: ActorPath) -> Result<Vec<CacheContent>, CommandError> {
        self.ask_ranks(path, || CachedBlocks).await
    }

    async fn ask_ranks<M>(&self, path: ActorPath, message: impl Fn() -> M) -> Result<Vec<M::Result>, CommandError>
    where
        M: Message + Send + 'static,
        M::Result: Send,
        Rank: Handler<M>,
    {
        let mut answers = Vec::new();
        for rank in self.command(FindRanks { path }).await? {
            answers.push(rank.send(message()).await.map_err(|_| CommandError::NotAlive(path))?);
        }
        Ok(answers)
    }
}
