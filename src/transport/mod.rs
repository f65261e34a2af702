//! Bytes and sockets: request planes, event planes, discovery. Knows nothing of engines or actors.

mod date;
pub mod discovery;
pub mod event_plane;
pub mod held;
mod host_port;
pub mod http;
pub mod intake;
pub mod logprob;
pub mod nats;
pub mod recorded;
pub mod rendezvous;
pub mod repeated;
pub mod request_plane;
pub mod tls;
pub mod toxic;
