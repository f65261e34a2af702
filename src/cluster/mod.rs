//! From a [`Config`] to a running fleet, and the handle to it.
//!
//! A cluster has its own threads: one for the actor system and the supervisor, a few arbiters for the workers, and a
//! small tokio pool for sockets and their timers; the number does not depend on the number of workers.

mod budget;
mod disaggregation;
mod door;
mod doubts;
mod offer;
mod outlets;
mod parts;
mod planes;
mod tiers;

use std::thread::JoinHandle;
use std::time::Duration;

use actix::prelude::*;
use tokio::runtime::Runtime;
use tokio::sync::watch;

pub use crate::actors::control::CacheContent;
use crate::actors::control::Control;
use crate::actors::death::Death;
use crate::actors::fleet::{CommandError, DrainWorker, Fleet, Kill, Launch, Restart, StopAll};
use crate::actors::path::{ActorPath, PathError};
use crate::actors::registry::FleetSnapshot;
use crate::actors::store_health::{Outage, StoreHealth};
use crate::admin::server::{AdminError, AdminServer};
use crate::admin::status::{StatusError, StatusServer};
use crate::config::Config;
use crate::faults::{Fault, FaultError, FaultId};
use crate::model::ModelError;
use crate::transport::discovery::DiscoveryError;
use crate::transport::nats::NatsError;
use crate::transport::request_plane::tcp::server::{BindError, TcpServer};
use crate::types::{Token, WorkerId};

pub use budget::{Budget, BudgetError};
pub use door::RankDoor;
pub use outlets::EventLosses;
use outlets::Outlets;

/// A fleet that cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model does not fit the settings.
    #[error("{0}")]
    Settings(String),
    /// Descriptors.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// The discovery store.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// The request listener.
    #[error(transparent)]
    Listener(#[from] BindError),
    /// The NATS servers.
    #[error(transparent)]
    Nats(#[from] NatsError),
    /// No broker in discovery.
    #[error(
        "discovery knows no event broker of namespace {namespace} (waited {} s); start one, name it with DYN_ZMQ_BROKER_URL, \
         or unset DYN_ZMQ_BROKER_ENABLED",
        waited.as_secs()
    )]
    NoBroker {
        /// Whose brokers were looked for.
        namespace: String,
        /// For how long.
        waited: Duration,
    },
    /// The status server.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// The admin server.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// Threads.
    #[error("cannot start threads: {0}")]
    Threads(#[from] std::io::Error),
    /// A worker.
    #[error("{0}")]
    Worker(String),
    /// It was stopped before it was ready.
    #[error("stopped before all workers were registered")]
    Interrupted,
}

impl StartError {
    /// Whether the input is at fault (exit code 2) rather than the surroundings (1).
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::Model(_) | Self::Settings(_) => true,
            Self::Budget(_)
            | Self::Discovery(_)
            | Self::Nats(_)
            | Self::NoBroker { .. }
            | Self::Listener(_)
            | Self::Status(_)
            | Self::Admin(_)
            | Self::Threads(_)
            | Self::Worker(_)
            | Self::Interrupted => false,
        }
    }
}

/// A command that could not be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// Not a path.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The command is for workers only.
    #[error("{0} is not a worker; name a whole worker, as in w3")]
    NotAWorker(ActorPath),
    /// The fleet says no.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// A running fleet. Dropping it stops everything at once.
pub struct Cluster {
    control: Control,
    launch: watch::Receiver<Launch>,
    facts: Facts,
    store_health: StoreHealth,
    outlets: Outlets,
    system: System,
    thread: Option<JoinHandle<()>>,
    /// The shared request listener; it ends with the cluster.
    _server: Option<TcpServer>,
    _status: Option<StatusServer>,
    _admin: Option<AdminServer>,
    pool: Option<Runtime>,
}

/// What the start-up screen says.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Address of the shared request listener, as advertised.
    pub requests: Option<std::net::SocketAddr>,
    /// Address of the status server.
    pub status: Option<std::net::SocketAddr>,
    /// KV blocks per rank of each group, in the order of the groups.
    pub kv_blocks: Vec<u32>,
    /// Address of the admin server.
    pub admin: Option<std::net::SocketAddr>,
    /// Threads of the fleet.
    pub threads: usize,
    /// Descriptors.
    pub budget: Budget,
    /// Where the model's files are.
    pub model_dir: std::path::PathBuf,
    /// `lo..hi`: ids of the model that are ordinary text.
    pub token_ids: (Token, Token),
    /// Ids that end an answer of the model.
    pub eos_token_ids: Vec<Token>,
}

impl Cluster {
    /// Starts the fleet and waits until every worker is registered.
    ///
    /// # Errors
    /// [`StartError`]; everything is taken down again then.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        let cluster = Self::launch(config)?;
        cluster.wait_ready()?;
        Ok(cluster)
    }

    /// Starts the fleet; workers come up while this returns.
    ///
    /// # Errors
    /// What can be known before the first worker: model, descriptors, discovery, request listener.
    pub fn launch(config: &Config) -> Result<Self, StartError> {
        parts::launch(config)
    }

    /// Waits until every worker is registered.
    ///
    /// # Errors
    /// The first worker that could not be built.
    pub fn wait_ready(&self) -> Result<(), StartError> {
        self.wait(|launch| match launch {
            Launch::Starting { .. } => None,
            Launch::Ready => Some(Ok(())),
            Launch::Failed(error) => Some(Err(StartError::Worker(error.clone()))),
            Launch::Over => Some(Err(StartError::Interrupted)),
        })
    }

    fn wait<T>(&self, mut done: impl FnMut(&Launch) -> Option<T>) -> T {
        let mut launch = self.launch.clone();
        self.handle().block_on(async {
            loop {
                if let Some(result) = done(&launch.borrow_and_update()) {
                    return result;
                }
                if launch.changed().await.is_err()
                    && let Some(result) = done(&Launch::Over)
                {
                    return result;
                }
            }
        })
    }

    /// Launch progress, for progress lines.
    pub fn progress(&self) -> watch::Receiver<Launch> {
        self.launch.clone()
    }

    /// What the start-up screen says.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Every figure of the fleet now; never waits for an actor.
    pub fn snapshot(&self) -> FleetSnapshot {
        self.control.registry.snapshot()
    }

    /// What is wrong with the discovery store, if anything is.
    pub fn store_trouble(&self) -> Option<Outage> {
        self.store_health.trouble()
    }

    /// Workers that left without discovery being told: their records stay until their leases run out.
    pub fn unsaid_goodbyes(&self) -> usize {
        self.store_health.unsaid_goodbyes()
    }

    /// Lets the events of a fleet that is over go out, within a bound, and says what was lost.
    pub fn settle_events(&self) -> EventLosses {
        let mut losses = self.handle().block_on(self.outlets.settle());
        let workers = self.snapshot().workers;
        losses.dropped += workers
            .iter()
            .map(|worker| worker.event_messages_dropped_total)
            .sum::<u64>();
        losses
    }

    /// Kills an actor: `w3`, `w3/r0`, `w3/kv`, `w3/metrics`, `w3/lease`. Returns when the order is delivered.
    ///
    /// # Errors
    /// [`ControlError`] names the path.
    pub fn kill(&self, path: &str, death: Death) -> Result<(), ControlError> {
        let path: ActorPath = path.parse()?;
        self.command(Kill { path, death })
    }

    /// Drops every cached block that no request uses, of a worker (`w3`) or a rank (`w3/r0`); how many there were.
    ///
    /// # Errors
    /// [`ControlError`] names the path.
    pub fn clear_cache(&self, path: &str) -> Result<u64, ControlError> {
        let cleared = self.handle().block_on(self.control.clear_cache(path.parse()?));
        cleared.map_err(ControlError::from)
    }

    /// True content of the prefix cache of each rank of a worker (`w3`) or of one rank (`w3/r0`): blocks with their
    /// parents, parents first.
    ///
    /// # Errors
    /// [`ControlError`] names the path.
    pub fn cached_blocks(&self, path: &str) -> Result<Vec<CacheContent>, ControlError> {
        let blocks = self.handle().block_on(self.control.cached_blocks(path.parse()?));
        blocks.map_err(ControlError::from)
    }

    /// Every command, as calls that can be made from any runtime.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Removes faults (`None`: all) and adds others, all of them or none. Returns the numbers of the new ones.
    ///
    /// # Errors
    /// The first fault that cannot be removed or added.
    pub fn change_faults(&self, remove: Option<Vec<FaultId>>, add: Vec<Fault>) -> Result<Vec<FaultId>, FaultError> {
        self.handle().block_on(self.control.change_faults(remove, add))
    }

    /// Waits for a call of [`Self::control`]. Not from within a runtime.
    pub fn wait_for<T>(&self, call: impl Future<Output = T>) -> T {
        self.handle().block_on(call)
    }

    /// Unlists a worker, lets it finish its streams and leave. Returns at once; the snapshot shows `draining`, then
    /// `left`.
    ///
    /// # Errors
    /// [`ControlError`] names the path.
    pub fn drain(&self, path: &str) -> Result<(), ControlError> {
        self.command(DrainWorker(worker(path)?))
    }

    /// Starts a dead or drained worker again, under a new instance id or its former one.
    ///
    /// # Errors
    /// [`ControlError`] names the path.
    pub fn restart(&self, path: &str, same_id: bool) -> Result<(), ControlError> {
        self.command(Restart {
            worker: worker(path)?,
            same_id,
        })
    }

    fn command<M, T>(&self, message: M) -> Result<T, ControlError>
    where
        M: Message<Result = Result<T, CommandError>> + Send + 'static,
        T: Send + 'static,
        Fleet: Handler<M>,
    {
        let answer = self.handle().block_on(self.control.fleet.send(message));
        answer.unwrap_or(Err(CommandError::Stopped)).map_err(ControlError::from)
    }

    fn handle(&self) -> &tokio::runtime::Handle {
        self.pool
            .as_ref()
            .expect("the pool lives as long as the cluster")
            .handle()
    }

    /// Asks every worker to drain; [`Self::wait_over`] waits for it.
    pub fn begin_stop(&self) {
        self.control.fleet.do_send(StopAll);
    }

    /// Waits until every worker has left, at most `limit`. Returns whether all have.
    pub fn wait_over(&self, limit: Duration) -> bool {
        let mut launch = self.launch.clone();
        self.handle().block_on(async {
            let over = launch.wait_for(|launch| matches!(launch, Launch::Over));
            matches!(tokio::time::timeout(limit, over).await, Ok(Ok(_)))
        })
    }

    /// Drains every worker, then stops; gives streams at most `limit`. Returns the last snapshot.
    pub fn stop_within(self, limit: Duration) -> FleetSnapshot {
        self.begin_stop();
        self.wait_over(limit);
        self.snapshot()
    }

    /// Drains and stops with a limit of 30 s.
    pub fn stop(self) -> FleetSnapshot {
        self.stop_within(Duration::from_secs(30))
    }
}

fn worker(path: &str) -> Result<WorkerId, ControlError> {
    let path: ActorPath = path.parse()?;
    if path.child.is_some() {
        return Err(ControlError::NotAWorker(path));
    }
    Ok(path.worker)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.system.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the actor system's thread panicked");
        }
        if let Some(pool) = self.pool.take() {
            pool.shutdown_timeout(Duration::from_secs(1));
        }
    }
}
