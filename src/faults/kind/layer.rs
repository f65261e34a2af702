//! Layers of the catalogue.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Part of a worker that a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// The worker as a process.
    Life,
    /// Scheduler and KV cache.
    Engine,
    /// What comes in.
    Request,
    /// What goes out to clients.
    Response,
    /// KV events and their recovery.
    Events,
    /// Lease and records.
    Discovery,
    /// Load figures.
    Metrics,
    /// Handoff between prefill and decode workers.
    Rendezvous,
}

impl Layer {
    /// Its name.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Life => "life",
            Self::Engine => "engine",
            Self::Request => "request",
            Self::Response => "response",
            Self::Events => "events",
            Self::Discovery => "discovery",
            Self::Metrics => "metrics",
            Self::Rendezvous => "rendezvous",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
