//! Where the events of a fleet go out, looked at when it ends: what nobody has taken by then is lost, and told.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::transport::event_plane::zmq::ZmqBrokered;
use crate::transport::nats::Tally;

/// Time that servers and brokers have to take what is queued when the fleet is over. A little more than outboxes of
/// workers that have left wait for theirs.
const SETTLE: Duration = Duration::from_millis(1500);

/// Every shared way out; what sockets of single workers drop is in the workers' snapshots.
pub(super) struct Outlets {
    pub(super) nats: Option<Arc<Tally>>,
    pub(super) brokered: Vec<Arc<ZmqBrokered>>,
}

/// Event messages that somebody has missed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct EventLosses {
    /// Dropped at a bound: the server or broker was away, or a reader too slow. Routers have asked, or will ask, the
    /// recovery endpoints for them.
    pub dropped: u64,
    /// Not taken by the NATS server, mostly for their size.
    pub refused: u64,
    /// Still queued when the fleet ended.
    pub undelivered: u64,
}

impl Outlets {
    /// Closes what is shared, gives it time, and counts.
    pub(super) async fn settle(&self) -> EventLosses {
        let mut losses = EventLosses::default();
        for socket in &self.brokered {
            socket.close();
        }
        let brokers = async {
            for socket in &self.brokered {
                socket.closed().await;
            }
        };
        let nats = async {
            if let Some(tally) = &self.nats {
                tally.settled(SETTLE).await;
            }
        };
        let _ = tokio::join!(tokio::time::timeout(SETTLE, brokers), nats);
        for socket in &self.brokered {
            let stats = socket.stats();
            losses.dropped += stats.dropped;
            losses.undelivered += stats.undelivered;
        }
        if let Some(tally) = &self.nats {
            losses.dropped += tally.dropped();
            losses.refused += tally.refusals();
            losses.undelivered += tally.undelivered();
        }
        losses
    }
}
