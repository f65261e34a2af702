//! What the workers of a fleet share to be reached by and to speak through, opened when the first group needs it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use super::StartError;
use super::outlets::Outlets;
use crate::actors::plan::{PlannedEvents, PlannedRequests};
use crate::config::{self, Brokers, Config, Group, NatsConfig, NatsConnections, Ports};
use crate::transport::discovery::Discovery;
use crate::transport::discovery::record::{EventAddress, broker_prefix};
use crate::transport::event_plane::EventPlane;
use crate::transport::event_plane::durable;
use crate::transport::event_plane::zmq::{self, BrokerAddresses, ZmqBrokered};
use crate::transport::nats::{NatsConnector, NatsLink, NatsOutbox, OutboxLimits};
use crate::transport::request_plane::endpoint::EndpointTable;
use crate::transport::request_plane::nats::NatsServer;
use crate::transport::request_plane::plane::RequestPlane;
use crate::transport::request_plane::tcp::server::{Limits, TcpServer};

/// Messages of a whole fleet wait in one queue per broker.
const BROKER_LIMITS: fn() -> zmq::Limits = || zmq::Limits {
    queue_bytes: 64 << 20,
    queue_messages: 1_000_000,
    // A broker passes on the topics of all its routers.
    subscriptions: 8192,
    ..zmq::Limits::default()
};

/// Longest look for a broker in discovery; the limit for registrations may be shorter.
const BROKER_PATIENCE: Duration = Duration::from_secs(10);

const BROKER_LOOK: Duration = Duration::from_millis(200);

/// Planes of one fleet.
pub(super) struct Planes<'a> {
    config: &'a Config,
    pool: &'a Runtime,
    discovery: &'a Discovery,
    limits: Limits,
    listener: Option<(TcpServer, SocketAddr, RequestPlane)>,
    nats: Option<Nats>,
    brokered: BTreeMap<BrokerAddresses, Arc<ZmqBrokered>>,
}

struct Nats {
    connector: NatsConnector,
    connections: NatsConnections,
    /// The connection that was made to see whether the servers answer; all share it, or nobody uses it.
    link: NatsLink,
    server: Option<Arc<NatsServer>>,
    outbox: Option<NatsOutbox>,
    durable: Option<NatsOutbox>,
}

impl<'a> Planes<'a> {
    pub(super) fn new(config: &'a Config, pool: &'a Runtime, discovery: &'a Discovery, limits: Limits) -> Self {
        Self {
            config,
            pool,
            discovery,
            limits,
            listener: None,
            nats: None,
            brokered: BTreeMap::new(),
        }
    }

    /// How requests reach the workers of a group.
    pub(super) fn requests(&mut self, group: &Group) -> Result<PlannedRequests, StartError> {
        match group.request_plane {
            config::RequestPlane::Tcp => match self.config.ports {
                Ports::PerWorker => Ok(PlannedRequests::OwnTcp),
                Ports::Shared => self.shared_listener().map(PlannedRequests::Shared),
            },
            config::RequestPlane::Nats => {
                let pool = self.pool;
                let nats = self.nats()?;
                Ok(match nats.connections {
                    NatsConnections::PerWorker => PlannedRequests::OwnNats,
                    NatsConnections::Shared => {
                        let link = &nats.link;
                        let server = nats
                            .server
                            .get_or_insert_with(|| Arc::new(NatsServer::new(link.clone(), pool.handle())));
                        PlannedRequests::Shared(RequestPlane::Nats(Arc::clone(server)))
                    }
                })
            }
        }
    }

    /// How the events of a group's workers travel.
    pub(super) fn events(&mut self, group: &Group) -> Result<PlannedEvents, StartError> {
        match group.event_plane {
            config::EventPlane::Zmq => {
                let brokers = match &group.brokers {
                    Brokers::None => return Ok(PlannedEvents::OwnZmq),
                    Brokers::At { addresses, .. } => addresses.clone(),
                    Brokers::Discovered => self.discover_brokers(group.endpoint.namespace())?,
                };
                let pool = self.pool.handle();
                let connect = || ZmqBrokered::connect(&brokers, BROKER_LIMITS(), pool);
                let socket = self
                    .brokered
                    .entry(brokers.clone())
                    .or_insert_with(|| Arc::new(connect()));
                Ok(PlannedEvents::Shared(EventPlane::Brokered(Arc::clone(socket))))
            }
            config::EventPlane::Nats => {
                let pool = self.pool;
                let nats = self.nats()?;
                let link = &nats.link;
                if group.durable_kv_events {
                    pool.block_on(link.ensure_stream(&durable::stream_name(&group.endpoint)))?;
                }
                Ok(match nats.connections {
                    NatsConnections::PerWorker => PlannedEvents::OwnNats,
                    NatsConnections::Shared => {
                        let start = || NatsOutbox::start(link.clone(), OutboxLimits::FLEET, pool.handle());
                        let live = nats.outbox.get_or_insert_with(start).clone();
                        let start = || NatsOutbox::start_durable(link.clone(), OutboxLimits::FLEET, pool.handle());
                        PlannedEvents::Shared(if group.durable_kv_events {
                            let durable = nats.durable.get_or_insert_with(start).clone();
                            EventPlane::JetStream { live, durable }
                        } else {
                            EventPlane::Nats(live)
                        })
                    }
                })
            }
        }
    }

    /// The shared listener, if a group uses it, and where it is.
    pub(super) fn listener(&mut self) -> (Option<TcpServer>, Option<SocketAddr>) {
        match self.listener.take() {
            Some((server, address, _)) => (Some(server), Some(address)),
            None => (None, None),
        }
    }

    /// Where all events of the fleet go out.
    pub(super) fn outlets(&self) -> Outlets {
        Outlets {
            nats: self.nats.as_ref().map(|nats| Arc::clone(nats.connector.tally())),
            brokered: self.brokered.values().cloned().collect(),
        }
    }

    /// The paths of the shared listener, if a group uses it.
    pub(super) fn endpoints(&self) -> Option<EndpointTable> {
        match &self.listener {
            Some((_, _, RequestPlane::Tcp { endpoints, .. })) => Some(endpoints.clone()),
            Some((_, _, RequestPlane::Nats(_))) | None => None,
        }
    }

    /// What makes further NATS connections.
    pub(super) fn into_connector(self) -> Option<NatsConnector> {
        self.nats.map(|nats| nats.connector)
    }

    fn shared_listener(&mut self) -> Result<RequestPlane, StartError> {
        if let Some((_, _, plane)) = &self.listener {
            return Ok(plane.clone());
        }
        let _pool = self.pool.enter();
        let config = self.config;
        let endpoints = EndpointTable::default();
        let tls = config.tls.server.clone();
        let server = TcpServer::bind(config.tcp_host, config.tcp_port, endpoints.clone(), self.limits, tls)?;
        let address = SocketAddr::new(config.tcp_advertise, server.address().port());
        let plane = RequestPlane::Tcp { endpoints, address };
        self.listener = Some((server, address, plane.clone()));
        Ok(plane)
    }

    fn nats(&mut self) -> Result<&mut Nats, StartError> {
        if self.nats.is_none() {
            let NatsConfig { options, connections } = self
                .config
                .nats
                .clone()
                .ok_or_else(|| StartError::Settings("no NATS servers are known; set NATS_SERVER".to_owned()))?;
            let connector = NatsConnector::new(options);
            let link = self.pool.block_on(connector.connect())?;
            self.nats = Some(Nats {
                connector,
                connections,
                link,
                server: None,
                outbox: None,
                durable: None,
            });
        }
        Ok(self.nats.as_mut().expect("made above when it was missing"))
    }

    /// The brokers of a namespace, waited for a while: they may be starting at the same time.
    fn discover_brokers(&self, namespace: &str) -> Result<BrokerAddresses, StartError> {
        let begun = Instant::now();
        let patience = BROKER_PATIENCE.min(self.config.registration_limit);
        let mut told = false;
        loop {
            let records = self.pool.block_on(self.discovery.list(&broker_prefix(namespace)))?;
            let mut urls = Vec::new();
            for record in records {
                match EventAddress::decode(&record.value) {
                    Ok(EventAddress::ZmqBroker { xsub_endpoints, .. }) => urls.extend(xsub_endpoints),
                    Ok(EventAddress::Zmq { .. } | EventAddress::Nats { .. }) => {}
                    Err(error) => tracing::warn!(key = %record.key, %error, "not a broker's record"),
                }
            }
            if !urls.is_empty() {
                let brokers = BrokerAddresses::new(urls.iter().map(String::as_str));
                return brokers.map_err(|error| StartError::Settings(error.to_string()));
            }
            if !std::mem::replace(&mut told, true) {
                tracing::warn!(
                    namespace,
                    limit_s = patience.as_secs_f32(),
                    "no broker in discovery yet; waiting for one"
                );
            }
            if begun.elapsed() > patience {
                return Err(StartError::NoBroker {
                    namespace: namespace.to_owned(),
                    waited: patience,
                });
            }
            std::thread::sleep(BROKER_LOOK);
        }
    }
}
