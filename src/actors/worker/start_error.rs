//! Why a worker cannot be built.

use std::io;
use std::net::SocketAddr;

use super::super::path::ActorPath;
use crate::transport::http::FaceError;
use crate::transport::rendezvous;
use crate::transport::request_plane::tcp::server::BindError;

/// An address that is not ours is another mistake than a port that is taken.
fn native_way_out(error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::AddrNotAvailable {
        "choose an address of this machine with --zmq-kv-events-host (and --event-host for replays in connect mode)"
    } else {
        "choose other ports with --zmq-kv-events-ports and --zmq-replay-ports"
    }
}

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
    #[error("{path}: cannot listen on {address}: {source}; {}", native_way_out(source))]
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
    /// No rendezvous port.
    #[error("{path}: {source}")]
    Rendezvous {
        /// Which worker.
        path: ActorPath,
        /// Why not.
        source: rendezvous::server::BindError,
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

impl StartError {
    /// Whether somebody else listens where the worker has to.
    pub fn is_port_held(&self) -> bool {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<io::Error>() {
                return error.kind() == io::ErrorKind::AddrInUse;
            }
            cause = error.source();
        }
        false
    }
}
