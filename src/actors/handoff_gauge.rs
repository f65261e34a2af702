//! Figures of one worker's handoffs that anyone may read at any time. What is open is counted by guards, so that no way
//! to end leaves a count behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// Live figures.
#[derive(Debug, Default)]
pub struct HandoffGauge {
    rooms: AtomicU32,
    transfers: AtomicU32,
    completed: AtomicU64,
    failed: AtomicU64,
}

/// Handoffs of one worker in a snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct HandoffSnapshot {
    /// Handoffs that are not over: at a prefill worker rooms of its rendezvous with one side or both in them, and
    /// transfers without a rendezvous; at a decode worker those that it has joined.
    pub rooms: u32,
    /// Those among them whose KV is travelling; counted by prefill workers.
    pub transfers: u32,
    /// Ended well since the worker's first start.
    pub completed_total: u64,
    /// Ended otherwise.
    pub failed_total: u64,
}

impl HandoffGauge {
    /// Counts a room until the guard goes.
    pub(super) fn open(self: &Arc<Self>) -> OpenRoom {
        self.rooms.fetch_add(1, Relaxed);
        OpenRoom {
            gauge: Arc::clone(self),
            well: false,
        }
    }

    /// Counts a transfer until the guard goes.
    pub(super) fn transfer(self: &Arc<Self>) -> OpenTransfer {
        self.transfers.fetch_add(1, Relaxed);
        OpenTransfer(Arc::clone(self))
    }

    /// The figures now.
    pub fn snapshot(&self) -> HandoffSnapshot {
        HandoffSnapshot {
            rooms: self.rooms.load(Relaxed),
            transfers: self.transfers.load(Relaxed),
            completed_total: self.completed.load(Relaxed),
            failed_total: self.failed.load(Relaxed),
        }
    }
}

/// A handoff that is not over. It has failed unless it is said to have ended well.
#[derive(Debug)]
pub(super) struct OpenRoom {
    gauge: Arc<HandoffGauge>,
    well: bool,
}

impl OpenRoom {
    /// It ended well.
    pub(super) fn completed(mut self) {
        self.well = true;
    }
}

impl Drop for OpenRoom {
    fn drop(&mut self) {
        let ended = if self.well {
            &self.gauge.completed
        } else {
            &self.gauge.failed
        };
        ended.fetch_add(1, Relaxed);
        self.gauge.rooms.fetch_sub(1, Relaxed);
    }
}

/// KV on its way.
#[derive(Debug)]
pub(super) struct OpenTransfer(Arc<HandoffGauge>);

impl Drop for OpenTransfer {
    fn drop(&mut self) {
        self.0.transfers.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_count_what_is_open_and_how_it_ended() {
        let gauge = Arc::new(HandoffGauge::default());
        let (one, other, transfer) = (gauge.open(), gauge.open(), gauge.transfer());
        let now = gauge.snapshot();
        assert_eq!((now.rooms, now.transfers), (2, 1));
        one.completed();
        drop((other, transfer));
        let now = gauge.snapshot();
        assert_eq!((now.rooms, now.transfers), (0, 0));
        assert_eq!((now.completed_total, now.failed_total), (1, 1));
    }
}
