//! What stands behind an endpoint path, and the table from paths to endpoints.

use std::sync::Arc;

use bytes::Bytes;
use dashmap::DashMap;

use super::control::Control;
use super::tcp::frame::Ack;

/// One call, acked or refused on the spot.
#[derive(Debug)]
pub struct Call {
    /// Who calls, in which codec, where to dial back.
    pub control: Control,
    /// Encoded request.
    pub body: Bytes,
}

/// A callable endpoint. `accept` is called from a connection task: it decides, hands the work on and returns at once.
pub trait Endpoint: Send + Sync {
    /// Takes or refuses a call. After [`Ack::Accepted`] the endpoint dials back by itself.
    fn accept(self: Arc<Self>, call: Call) -> Ack;
}

type Paths = DashMap<Box<[u8]>, Arc<dyn Endpoint>>;

/// Paths of one listener. Read for every request, written when a worker comes or goes.
#[derive(Default, Clone)]
pub struct EndpointTable {
    paths: Arc<Paths>,
}

impl EndpointTable {
    /// Adds or replaces a path.
    pub fn insert(&self, path: &str, endpoint: Arc<dyn Endpoint>) {
        self.paths.insert(path.as_bytes().into(), endpoint);
    }

    /// Removes a path; later requests for it are refused.
    pub fn remove(&self, path: &str) {
        self.paths.remove(path.as_bytes());
    }

    /// The endpoint behind `path`.
    pub fn get(&self, path: &[u8]) -> Option<Arc<dyn Endpoint>> {
        self.paths.get(path).map(|entry| Arc::clone(&entry))
    }
}
