//! What workers are built from: plans that outlive their incarnations, and what all of them share.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::runtime::Handle;

use super::clock::Clock;
use super::common_memory::CommonMemory;
use super::recovery::RecoveryLimits;
use super::rendezvous::TransferModel;
use super::store_health::StoreHealth;
use super::supervision::RestartPolicy;
use crate::engine::{EngineConfig, WorkerRole};
use crate::faults::Journal;
use crate::transport::discovery::{Discovery, EndpointName};
use crate::transport::event_plane::EventPlane;
use crate::transport::event_plane::forward_pass::Detail;
use crate::transport::event_plane::native::Encoding;
use crate::transport::http::FaceModel;
use crate::transport::nats::NatsConnector;
use crate::transport::recorded::RecordedAnswers;
use crate::transport::request_plane::Codec;
use crate::transport::request_plane::call_home::{AnswerLimits, Dialer};
use crate::transport::request_plane::plane::RequestPlane;
use crate::transport::request_plane::tcp::server::Limits;
use crate::transport::tls::{ServerTls, TcpTls};
use crate::types::WorkerId;

/// Workers that are alike.
pub struct GroupPlan {
    /// Label.
    pub name: String,
    /// Endpoint they serve.
    pub endpoint: EndpointName,
    /// Name of the model in metrics.
    pub model_name: Arc<str>,
    /// Longest sequence in tokens.
    pub max_model_len: u32,
    /// How much is told of forward passes.
    pub forward_passes: Detail,
    /// Ranks per worker.
    pub data_parallel_size: u32,
    /// From registration to the first pass.
    pub startup_time: Duration,
    /// Part of the work that they do.
    pub role: WorkerRole,
    /// One rank's engine; that of decode workers may be able to do more than its worker's part.
    pub engine: EngineConfig,
    /// How long KV travels.
    pub transfer: TransferModel,
    /// Longest wait of one side of a handoff for the other.
    pub pairing_timeout: Duration,
    /// Longest handoff, modelled transfer not included.
    pub handoff_timeout: Duration,
    /// Log every change of a KV cache.
    pub kv_cache_trace: bool,
    /// Model card, written once.
    pub card: Box<RawValue>,
    /// LoRA adapters that are served beside the model.
    pub adapters: Vec<Adapter>,
    /// Answers that requests may ask for by name.
    pub recorded: Option<Arc<RecordedAnswers>>,
    /// Tokenizer and model facts of the HTTP faces; `None`: no worker has one.
    pub face: Option<Arc<FaceModel>>,
    /// How requests reach them.
    pub requests: PlannedRequests,
    /// How their events travel.
    pub events: PlannedEvents,
    /// KV events go to `JetStream`, for routers of Dynamo 1.3.
    pub durable_kv_events: bool,
    /// Encoding that they ask routers to use.
    pub codec: Codec,
}

impl GroupPlan {
    /// What selectors may ask for besides the name.
    pub(super) fn labels(&self) -> Vec<(String, String)> {
        let engine = self.engine.kind.word();
        let role = match self.engine.role {
            WorkerRole::Aggregated => "agg",
            WorkerRole::Prefill => "prefill",
            WorkerRole::Decode => "decode",
        };
        [
            ("engine", engine),
            ("role", role),
            ("namespace", self.endpoint.namespace()),
            ("component", self.endpoint.component()),
            ("endpoint", self.endpoint.endpoint()),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .to_vec()
    }
}

/// A LoRA adapter: a model of its own for clients, and tokens of its own for the cache.
pub struct Adapter {
    /// Name that clients use.
    pub name: Arc<str>,
    /// The name as a part of a key.
    pub slug: String,
    /// Its card, written once.
    pub card: Box<RawValue>,
}

/// How requests reach a worker.
#[derive(Clone)]
pub enum PlannedRequests {
    /// By what all workers share.
    Shared(RequestPlane),
    /// By a TCP listener of its own ([`WorkerPlan::tcp`]).
    OwnTcp,
    /// By a NATS connection of its own.
    OwnNats,
}

/// How a worker's events travel.
#[derive(Clone)]
pub enum PlannedEvents {
    /// By what all workers share.
    Shared(EventPlane),
    /// By PUB sockets of its own, one per rank; the first also carries its load figures.
    OwnZmq,
    /// By a NATS connection of its own, the same one that brings its requests.
    OwnNats,
}

/// One worker, whatever its incarnation.
#[derive(Clone)]
pub struct WorkerPlan {
    /// Position in the fleet.
    pub id: WorkerId,
    /// Its group.
    pub group: Arc<GroupPlan>,
    /// Labels of the user's own.
    pub labels: Vec<(String, String)>,
    /// Own request listener (`ports = "per-worker"`): its address, port 0: any.
    pub tcp: Option<SocketAddr>,
    /// HTTP face.
    pub http: Option<SocketAddr>,
    /// Rendezvous of a prefill worker: its address, port 0: any.
    pub rendezvous: Option<SocketAddr>,
    /// Native event streams of its ranks.
    pub native: Option<NativePlan>,
}

/// Native event streams of one worker: rank `r` uses the ports below plus `r`.
#[derive(Debug, Clone)]
pub struct NativePlan {
    /// Where the PUB sockets listen, or whom they connect to.
    pub events: SocketAddr,
    /// Connect instead of listening.
    pub connect: bool,
    /// Where the replay sockets listen.
    pub replay: Option<SocketAddr>,
    /// Whether replayed messages have a topic frame.
    pub replay_topic: bool,
    /// Form of the events.
    pub encoding: Encoding,
    /// First frame of messages; `{rank}` stands for the rank's number.
    pub topic: String,
}

impl NativePlan {
    /// `base`, moved up by the rank's number; any free port stays any free port.
    pub(super) fn port_of(base: SocketAddr, rank: u32) -> SocketAddr {
        if base.port() == 0 {
            return base;
        }
        let port = u32::from(base.port()).saturating_add(rank);
        SocketAddr::new(base.ip(), u16::try_from(port).unwrap_or(u16::MAX))
    }

    /// First frame of a rank's messages.
    pub(super) fn topic_of(&self, rank: u32) -> Bytes {
        Bytes::from(self.topic.replace("{rank}", &rank.to_string()))
    }
}

/// Shared by all workers of a process.
pub struct Shared {
    /// Threads for sockets and timers of sockets.
    pub pool: Handle,
    /// Engines' clock.
    pub clock: Clock,
    /// Where workers announce themselves.
    pub discovery: Discovery,
    /// Whether it answers.
    pub store_health: StoreHealth,
    /// How long it may fail before the first registration of all workers; then the launch is given up.
    pub registration_limit: Duration,
    /// Makes the NATS connections of workers that have their own; `None`: no group uses NATS.
    pub nats: Option<NatsConnector>,
    /// Host that request listeners advertise.
    pub tcp_advertise: IpAddr,
    /// Bounds of request listeners.
    pub tcp_limits: Limits,
    /// Host that event publishers bind.
    pub event_host: IpAddr,
    /// Host that they advertise.
    pub event_advertise: IpAddr,
    /// TLS of request listeners.
    pub server_tls: Option<ServerTls>,
    /// Opens response sockets.
    pub dialer: Dialer,
    /// Most open requests per worker.
    pub max_open_requests: u32,
    /// Bounds of recovery answers.
    pub(super) recovery_limits: RecoveryLimits,
    /// Memory below the GPU that ranks share.
    pub(super) common_memory: CommonMemory,
    /// What happens to the fleet's faults and workers.
    pub journal: Arc<Journal>,
    /// How often a dead actor is replaced.
    pub restarts: RestartPolicy,
}

impl Shared {
    /// The same with a limit for registrations; there is none unless it is said.
    #[must_use]
    pub fn registered_within(self, registration_limit: Duration) -> Self {
        Self {
            registration_limit,
            ..self
        }
    }

    /// The parts that need no decision are made here.
    pub fn new(
        pool: Handle,
        discovery: Discovery,
        nats: Option<NatsConnector>,
        (tcp_advertise, tcp_limits): (IpAddr, Limits),
        (event_host, event_advertise): (IpAddr, IpAddr),
        tls: TcpTls,
        max_open_requests: u32,
    ) -> Self {
        let clock = Clock::start();
        let dialer = Dialer {
            limits: AnswerLimits::default(),
            tls: tls.client,
        };
        Self {
            pool,
            clock,
            journal: Arc::new(Journal::new(move || clock.now())),
            discovery,
            store_health: StoreHealth::default(),
            registration_limit: Duration::MAX,
            nats,
            tcp_advertise,
            tcp_limits,
            event_host,
            event_advertise,
            server_tls: tls.server,
            recovery_limits: RecoveryLimits::new(dialer.clone()),
            common_memory: CommonMemory::new(),
            dialer,
            max_open_requests,
            restarts: RestartPolicy::default(),
        }
    }
}
