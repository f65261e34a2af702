//! The rendezvous of a handoff: a decode worker dials the prefill worker that computes its prompt, and both go through
//! the transfer step by step.
//!
//! | Module | What |
//! |---|---|
//! | [`wire`] | bytes: header, frames, messages |
//! | [`link`] | one connection as a pair of bounded channels |
//! | [`server`] | the prefill side: listener, opening of each connection |
//! | [`client`] | the decode side: dial and register |
//!
//! What is said when is decided elsewhere. Source: Dynamo 1.6.1 and 1.4.2, which speak the same protocol.

pub mod client;
pub mod link;
pub mod server;
pub mod wire;

use std::time::Duration;

use uuid::Uuid;

/// What a source says first to whom it cannot be paired with; more may follow. Source: Dynamo 1.6.1.
pub const MISMATCH: &str = "handoff participant identity or backend mismatch";

/// Names one handoff. The same in every frame of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    /// What both sides are paired by.
    pub handoff_id: Uuid,
    /// Room of the router's making.
    pub bootstrap_room: u64,
    /// The client's request.
    pub request_id: Uuid,
}

/// Where the two legs of a request meet, as the router tells both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meeting {
    /// Host of the prefill worker.
    pub host: String,
    /// Its rendezvous port.
    pub port: u16,
    /// Which handoff.
    pub identity: Identity,
}

/// Bounds of a rendezvous.
#[derive(Debug, Clone, Copy)]
pub struct RendezvousLimits {
    /// To connect, to say the header and to register, and to take a frame: each within this time.
    pub patience: Duration,
    /// How long a source may take to answer a registration: Dynamo's answer only when the prompt's side has come too.
    pub pairing: Duration,
    /// Most open connections of one listener; further ones are closed at once.
    pub max_connections: u32,
}

impl Default for RendezvousLimits {
    /// Times as in Dynamo 1.6.1.
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(30),
            pairing: Duration::from_secs(30),
            max_connections: 4096,
        }
    }
}
