//! What a worker is reached by and what it speaks through: its own, or its share of what the fleet has.

use std::net::SocketAddr;
use std::sync::Arc;

use super::gate::Gate;
use super::liveness::Child;
use super::native_sockets::NativeSockets;
use super::path::ActorPath;
use super::plan::{PlannedEvents, PlannedRequests, Shared, WorkerPlan};
use super::registry::WorkerEntry;
use super::rendezvous::Door;
use super::strays;
use super::worker::StartError;
use crate::transport::discovery::record::EventAddress;
use crate::transport::event_plane::EventPlane;
use crate::transport::event_plane::zmq::ZmqPublisher;
use crate::transport::http::{Face, FaceConfig, FaceLimits, MetricsPage};
use crate::transport::intake::Intake;
use crate::transport::nats::{NatsLink, NatsOutbox, OutboxLimits};
use crate::transport::rendezvous::RendezvousLimits;
use crate::transport::rendezvous::server::{Host, RendezvousServer};
use crate::transport::request_plane::endpoint::EndpointTable;
use crate::transport::request_plane::nats::NatsServer;
use crate::transport::request_plane::plane::RequestPlane;
use crate::transport::request_plane::tcp::server::TcpServer;

/// Sockets of one incarnation of a worker. Only what is its own ends with it.
pub(super) struct Sockets {
    /// Where its endpoints are.
    pub(super) requests: RequestPlane,
    /// HTTP face.
    pub(super) face: Option<Face>,
    /// Native event stream of each rank; empty when nobody asked for them.
    pub(super) native: Vec<NativeSockets>,
    /// By rank; the first also carries the worker's load figures.
    events: Vec<EventPlane>,
    events_are_own: bool,
    /// Where decode workers come to, and the door behind it.
    pub(super) rendezvous: Option<(Arc<Door>, RendezvousServer)>,
    /// Own request listener.
    listener: Option<TcpServer>,
}

impl Sockets {
    /// Opens what is the worker's own.
    pub(super) fn open(
        plan: &WorkerPlan,
        shared: &Shared,
        gate: &Arc<Gate>,
        entry: &Arc<WorkerEntry>,
    ) -> Result<Self, StartError> {
        let path = ActorPath {
            worker: plan.id,
            child: None,
        };
        let mut own_link = None;
        let mut link = || -> Result<NatsLink, StartError> {
            let connector = shared.nats.as_ref().ok_or(StartError::NoNats { path })?;
            Ok(own_link.get_or_insert_with(|| connector.open(&shared.pool)).clone())
        };
        let ranks = plan.group.data_parallel_size;
        let (events, events_are_own) = match &plan.group.events {
            PlannedEvents::Shared(plane) => ((0..ranks).map(|_| plane.clone()).collect(), false),
            PlannedEvents::OwnZmq => {
                let sockets = (0..ranks).map(|rank| open_publisher(plan, rank, shared));
                (sockets.collect::<Result<Vec<_>, _>>()?, true)
            }
            PlannedEvents::OwnNats => {
                let live = NatsOutbox::start(link()?, OutboxLimits::WORKER, &shared.pool);
                let plane = if plan.group.durable_kv_events {
                    let durable = NatsOutbox::start_durable(link()?, OutboxLimits::WORKER, &shared.pool);
                    EventPlane::JetStream { live, durable }
                } else {
                    EventPlane::Nats(live)
                };
                ((0..ranks).map(|_| plane.clone()).collect(), true)
            }
        };
        let (requests, listener) = match &plan.group.requests {
            PlannedRequests::Shared(plane) => (plane.clone(), None),
            PlannedRequests::OwnNats => {
                let server = NatsServer::new(link()?, &shared.pool);
                (RequestPlane::Nats(Arc::new(server)), None)
            }
            PlannedRequests::OwnTcp => {
                let own = plan.tcp.unwrap_or_else(|| SocketAddr::new(shared.tcp_advertise, 0));
                let endpoints = EndpointTable::default();
                strays::note(&endpoints, std::iter::once(&*plan.group), Arc::clone(&shared.journal));
                let tls = shared.server_tls.clone();
                let server = TcpServer::bind(own.ip(), own.port(), endpoints.clone(), shared.tcp_limits, tls)
                    .map_err(|source| StartError::Listener { path, source })?;
                let address = SocketAddr::new(shared.tcp_advertise, server.address().port());
                (RequestPlane::Tcp { endpoints, address }, Some(server))
            }
        };
        let face = match (plan.http, &plan.group.face) {
            (Some(address), Some(model)) => {
                let config = FaceConfig {
                    worker: plan.id.to_string(),
                    intake: Arc::clone(gate) as Arc<dyn Intake>,
                    model: Arc::clone(model),
                    limits: FaceLimits::default(),
                    open: Arc::clone(&entry.http_requests),
                    metrics: metrics_of(entry),
                    faults: Some(Arc::clone(entry.faults.table())),
                };
                let face = Face::bind(address, config).map_err(|source| StartError::Http { path, source })?;
                entry.set_http(face.address());
                Some(face)
            }
            _ => None,
        };
        let native = match &plan.native {
            Some(native) => (0..ranks)
                .map(|rank| NativeSockets::open(plan.id, native, rank, shared))
                .collect::<Result<Vec<_>, _>>()?,
            None => Vec::new(),
        };
        let native_drops = native.iter().map(|sockets| sockets.events.drops());
        let own_drops = events.iter().filter_map(|plane| match plane {
            EventPlane::Zmq(socket) => Some(socket.drops()),
            EventPlane::Brokered(_) | EventPlane::Nats(_) | EventPlane::JetStream { .. } => None,
        });
        entry.set_event_drops(own_drops.chain(native_drops).collect());
        let rendezvous = match plan.rendezvous {
            Some(at) => {
                let door = Arc::new(Door::default());
                let host = Arc::clone(&door) as Arc<dyn Host>;
                let server = RendezvousServer::bind(at, host, RendezvousLimits::default(), &shared.pool)
                    .map_err(|source| StartError::Rendezvous { path, source })?;
                Some((door, server))
            }
            None => None,
        };
        Ok(Self {
            requests,
            face,
            native,
            events,
            events_are_own,
            rendezvous,
            listener,
        })
    }

    /// Where a rank's events go; rank 0 also carries the load figures.
    pub(super) fn events(&self, rank: usize) -> EventPlane {
        self.events[rank].clone()
    }

    /// Where routers get a rank's events.
    pub(super) fn event_address(&self, rank: usize, plan: &WorkerPlan, shared: &Shared) -> Option<EventAddress> {
        self.events[rank].address(&plan.group.endpoint, shared.event_advertise)
    }

    /// Ends the worker's own event sockets in good order.
    pub(super) fn close_events(&self) {
        if self.events_are_own {
            for plane in &self.events {
                plane.close();
            }
        }
        for sockets in &self.native {
            sockets.close();
        }
    }

    /// Ends what is the worker's own as the death of its process does.
    pub(super) fn crash(&self) {
        if let Some(server) = &self.listener {
            server.shutdown().reset.cancel();
        }
        if let Some((_, server)) = &self.rendezvous {
            server.crash();
        }
        if let Some(face) = &self.face {
            face.shutdown().reset.cancel();
        }
        if self.events_are_own {
            for plane in &self.events {
                plane.crash();
            }
        }
        for sockets in &self.native {
            sockets.crash();
        }
    }
}

/// The page that the HTTP face shows.
fn metrics_of(entry: &Arc<WorkerEntry>) -> MetricsPage {
    let entry = Arc::clone(entry);
    Arc::new(move || entry.engine_page())
}

fn open_publisher(plan: &WorkerPlan, rank: u32, shared: &Shared) -> Result<EventPlane, StartError> {
    let socket = ZmqPublisher::bind(shared.event_host, &shared.pool);
    socket
        .map(|socket| EventPlane::Zmq(Arc::new(socket)))
        .map_err(|source| StartError::EventSocket {
            path: ActorPath {
                worker: plan.id,
                child: Some(Child::Kv(rank)),
            },
            host: shared.event_host,
            source,
        })
}
