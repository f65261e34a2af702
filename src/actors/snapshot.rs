//! The fleet at one instant, as data: workers, their ranks, and what requests hold.

use std::net::SocketAddr;

use serde::Serialize;

use super::gauge::{Lateness, RankSnapshot};
use super::handoff_gauge::HandoffSnapshot;
use super::health::WorkerState;
use super::supervision::Supervised;

/// One worker in a snapshot.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkerSnapshot {
    /// Actor path.
    pub path: String,
    /// Group label.
    pub group: String,
    /// Where it is in its life.
    pub state: WorkerState,
    /// How often it has been built.
    pub incarnation: u32,
    /// Its id in discovery.
    pub instance_id: u64,
    /// Restarts of the worker or one of its children.
    pub restarts: u64,
    /// Whether it has ever been in discovery.
    pub registered: bool,
    /// Where its HTTP face listens, if it has one.
    pub http: Option<SocketAddr>,
    /// Answers under way: response sockets and HTTP requests, those included that a fault holds back.
    pub open_streams: u32,
    /// Calls accepted; this and the next three count HTTP requests, too.
    pub accepted_total: u64,
    /// Streams that ended as they should.
    pub completed_total: u64,
    /// Streams that ended with an error that the client was told, such as those of failed handoffs.
    pub failed_total: u64,
    /// Streams ended by the client, or broken off.
    pub cancelled_total: u64,
    /// Recovery queries of routers.
    pub recovery: RecoverySnapshot,
    /// Event messages that its own sockets have dropped, each for a reader that was too slow.
    pub event_messages_dropped_total: u64,
    /// Its handoffs.
    pub handoffs: HandoffSnapshot,
    /// The last death of each of its actors that has died, and what followed.
    pub deaths: Vec<Supervised>,
    /// Its ranks.
    pub ranks: Vec<RankSnapshot>,
}

/// Recovery queries of one worker in a snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RecoverySnapshot {
    /// Answers that were written to their end.
    pub answered_total: u64,
    /// Answers whose reader was gone, or stood still for too long.
    pub given_up_total: u64,
    /// Times that a whole cache was encoded; routers that ask between two changes share one.
    pub dumps_built_total: u64,
}

/// The whole fleet in a snapshot.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FleetSnapshot {
    /// Workers by position.
    pub workers: Vec<WorkerSnapshot>,
}

impl FleetSnapshot {
    /// Open streams, sequences in engines, referenced blocks and handoffs of the whole fleet: all zero when nothing leaks.
    pub fn in_use(&self) -> InUse {
        let ranks = || self.workers.iter().flat_map(|worker| &worker.ranks);
        InUse {
            open_streams: self.workers.iter().map(|worker| u64::from(worker.open_streams)).sum(),
            sequences: ranks()
                .map(|rank| u64::from(rank.load.running) + u64::from(rank.load.waiting))
                .sum(),
            active_blocks: ranks().map(|rank| u64::from(rank.load.active_blocks)).sum(),
            rooms: self.workers.iter().map(|worker| u64::from(worker.handoffs.rooms)).sum(),
        }
    }

    /// Lateness of all passes of the fleet.
    pub fn lateness(&self) -> Lateness {
        self.workers
            .iter()
            .flat_map(|worker| &worker.ranks)
            .fold(Lateness::default(), |sum, rank| sum.merged(&rank.lateness))
    }
}

/// What requests hold at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct InUse {
    /// Response sockets.
    pub open_streams: u64,
    /// Requests in engines.
    pub sequences: u64,
    /// Referenced KV blocks.
    pub active_blocks: u64,
    /// Handoffs that are not over, on either side.
    pub rooms: u64,
}
