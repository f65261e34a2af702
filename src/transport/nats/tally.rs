//! What becomes of the messages of all outboxes of a fleet, in one place that outlives them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

/// How often [`Tally::settled`] looks.
const LOOK: Duration = Duration::from_millis(10);

/// Counts of all outboxes whose connections one connector has made.
#[derive(Debug, Default)]
pub struct Tally {
    /// Queued or on their way; nobody has said yet that they are with the server.
    waiting: AtomicU64,
    /// Dropped at a bound.
    dropped: AtomicU64,
    /// Refused by the server.
    refused: AtomicU64,
    /// Queued when their outbox ended, and not taken in time.
    lost: AtomicU64,
}

impl Tally {
    pub(super) fn queued(&self) {
        self.waiting.fetch_add(1, Relaxed);
    }

    pub(super) fn delivered(&self, count: u64) {
        self.waiting.fetch_sub(count, Relaxed);
    }

    /// At a bound, before it was queued.
    pub(super) fn dropped_at_bound(&self) {
        self.dropped.fetch_add(1, Relaxed);
    }

    /// By the server, after it was queued.
    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
        self.waiting.fetch_sub(1, Relaxed);
    }

    /// The end of an outbox that was to say goodbye (`lost`), or of one that died as its process would.
    pub(super) fn ended_with(&self, count: u64, lost: bool) {
        if lost {
            self.lost.fetch_add(count, Relaxed);
        }
        self.waiting.fetch_sub(count, Relaxed);
    }

    /// Messages dropped at a bound.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Messages that the server would not take, mostly for their size.
    pub fn refusals(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Messages that were never taken, and those that still wait.
    pub fn undelivered(&self) -> u64 {
        self.lost.load(Relaxed) + self.waiting.load(Relaxed)
    }

    /// Waits until nothing is under way any more, at most `limit`.
    pub async fn settled(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while self.waiting.load(Relaxed) > 0 && Instant::now() < deadline {
            tokio::time::sleep(LOOK).await;
        }
    }
}
