//! A request plane as a worker sees it: a place to put endpoints, and the address that routers are told.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use tokio::sync::oneshot;

use super::endpoint::{Endpoint, EndpointTable};
use super::nats::NatsServer;
use crate::transport::discovery::EndpointName;
use crate::transport::discovery::record::RequestAddress;
use crate::types::InstanceId;

/// How requests reach endpoints. Clones share it.
#[derive(Clone)]
pub enum RequestPlane {
    /// Paths of a TCP listener.
    Tcp {
        /// Its paths.
        endpoints: EndpointTable,
        /// Its address, as advertised.
        address: SocketAddr,
    },
    /// Subjects of a NATS connection.
    Nats(Arc<NatsServer>),
}

/// Whether requests come through a plane at all, for those who must not keep it alive.
#[derive(Debug, Clone, Default)]
pub enum Reach {
    /// Nothing is known that could be away: whoever has the address gets through.
    #[default]
    Direct,
    /// By way of a NATS server.
    Nats(Weak<NatsServer>),
}

impl Reach {
    /// Whether anybody gets through now.
    pub fn is_there(&self) -> bool {
        match self {
            Self::Direct => true,
            Self::Nats(server) => server.upgrade().is_some_and(|server| server.is_there()),
        }
    }
}

/// An endpoint on its way to being reachable.
#[derive(Debug)]
pub struct Ready(Option<oneshot::Receiver<()>>);

impl Ready {
    /// When the other side says so.
    pub(super) fn when(confirmed: oneshot::Receiver<()>) -> Self {
        Self(Some(confirmed))
    }

    /// Whether there is nothing to wait for.
    pub fn is_now(&self) -> bool {
        self.0.is_none()
    }

    /// Waits until requests reach the endpoint. Also returns when it has been taken away again.
    pub async fn wait(self) {
        if let Some(confirmed) = self.0 {
            // An error: the endpoint is gone, and nobody has to wait for it.
            let _ = confirmed.await;
        }
    }
}

impl RequestPlane {
    /// Where routers send requests for an endpoint.
    pub fn address(&self, name: &EndpointName, instance: InstanceId) -> RequestAddress {
        match self {
            Self::Tcp { address, .. } => RequestAddress::Tcp(format!("{address}/{}", name.request_path(instance))),
            Self::Nats(_) => RequestAddress::Nats(name.request_subject(instance)),
        }
    }

    /// Whether requests come through.
    pub fn reach(&self) -> Reach {
        match self {
            Self::Tcp { .. } => Reach::Direct,
            Self::Nats(server) => Reach::Nats(Arc::downgrade(server)),
        }
    }

    /// Serves an endpoint, in place of one of the same name and instance.
    pub fn serve(&self, name: &EndpointName, instance: InstanceId, endpoint: Arc<dyn Endpoint>) -> Ready {
        match self {
            Self::Tcp { endpoints, .. } => {
                endpoints.insert(&name.request_path(instance), endpoint);
                Ready(None)
            }
            Self::Nats(server) => server.serve(name, instance, endpoint),
        }
    }

    /// Takes an endpoint back; later requests are refused.
    pub fn withdraw(&self, name: &EndpointName, instance: InstanceId) {
        match self {
            Self::Tcp { endpoints, .. } => endpoints.remove(&name.request_path(instance)),
            Self::Nats(server) => server.withdraw(name, instance),
        }
    }

    /// Ends an endpoint as far as the death of its process does: on a shared TCP listener later requests are refused,
    /// on NATS nobody answers.
    pub fn crash(&self, name: &EndpointName, instance: InstanceId) {
        match self {
            Self::Tcp { endpoints, .. } => endpoints.remove(&name.request_path(instance)),
            Self::Nats(server) => server.crash(name, instance),
        }
    }
}
