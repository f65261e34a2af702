//! Figures of one rank that anyone may read at any time: written by the rank's actor after each pass with relaxed
//! stores, so that a snapshot never waits for a busy or hung actor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::Serialize;

use crate::transport::event_plane::former::Former;
use crate::types::{Load, SimTime};

/// Upper bounds of the lateness buckets, microseconds; the last bucket is open.
const LATENESS_BOUNDS_US: [u64; 11] = [100, 250, 500, 1000, 1500, 2000, 3000, 5000, 10_000, 50_000, 250_000];
const LATENESS_BUCKETS: usize = LATENESS_BOUNDS_US.len() + 1;

/// Live figures of one rank.
#[derive(Debug, Default)]
pub struct RankGauge {
    running: AtomicU32,
    waiting: AtomicU32,
    active_blocks: AtomicU32,
    inactive_blocks: AtomicU32,
    total_blocks: AtomicU32,
    preemptions: AtomicU64,
    streams: AtomicU32,
    requests: AtomicU64,
    tokens: AtomicU64,
    passes: AtomicU64,
    late_passes: [AtomicU64; LATENESS_BUCKETS],
    lateness_total_us: AtomicU64,
    lateness_max_us: AtomicU64,
    slipped_us: AtomicU64,
    kv_events: AtomicU64,
    lost_event_batches: AtomicU64,
    /// Requests put into the rank's mailbox; those that it has taken are `requests`.
    posted: AtomicU64,
    /// When the first one was put into an empty mailbox, ns.
    posted_at: AtomicU64,
    /// When the rank last took a request or ended a pass, ns.
    turn_at: AtomicU64,
    /// When the running pass ends, ns; 0: none is waited for.
    due_at: AtomicU64,
    /// When the rank has loaded and runs its first pass, ns.
    starts_at: AtomicU64,
    /// Blocks that it has had.
    former: Arc<Former>,
}

/// A rank that is this late with a pass, or with the requests in its mailbox, is overdue.
const HUNG_AFTER: Duration = Duration::from_secs(2);

/// How late passes ended against their model, over all passes with a modelled duration.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Lateness {
    /// Passes measured.
    pub passes: u64,
    /// Mean, ms.
    pub mean_ms: f64,
    /// Upper bound of the bucket that holds the 99th percentile, ms.
    pub p99_ms: f64,
    /// Largest, ms.
    pub max_ms: f64,
    /// Modelled time that could not be kept: passes that were started later than they should have been, ms in total.
    pub slipped_ms: f64,
    #[serde(skip)]
    buckets: [u64; LATENESS_BUCKETS],
}

#[allow(clippy::cast_precision_loss)]
fn ms(us: u64) -> f64 {
    us as f64 / 1e3
}

impl Lateness {
    /// Both together.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        let passes = self.passes + other.passes;
        let mut buckets = self.buckets;
        for (sum, more) in buckets.iter_mut().zip(other.buckets) {
            *sum += more;
        }
        let max_ms = self.max_ms.max(other.max_ms);
        #[allow(clippy::cast_precision_loss)]
        let mean = |a: &Self| a.mean_ms * a.passes as f64;
        #[allow(clippy::cast_precision_loss)]
        let mean_ms = if passes == 0 {
            0.0
        } else {
            (mean(self) + mean(other)) / passes as f64
        };
        let p99_ms = percentile(&buckets, passes, max_ms);
        Self {
            passes,
            mean_ms,
            p99_ms,
            max_ms,
            slipped_ms: self.slipped_ms + other.slipped_ms,
            buckets,
        }
    }
}

fn percentile(buckets: &[u64; LATENESS_BUCKETS], passes: u64, max_ms: f64) -> f64 {
    let mut below = 0;
    for (count, bound) in buckets.iter().zip(LATENESS_BOUNDS_US) {
        below += count;
        if below * 100 >= passes * 99 {
            return ms(bound).min(max_ms);
        }
    }
    max_ms
}

/// One rank in a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RankSnapshot {
    /// Actor path.
    pub path: String,
    /// Queue and block figures after the last change.
    pub load: Load,
    /// Requests that the rank's actor still has to answer.
    pub streams: u32,
    /// Requests taken since the worker's first start.
    pub requests_total: u64,
    /// Tokens handed out.
    pub tokens_total: u64,
    /// Passes run.
    pub passes_total: u64,
    /// KV events published.
    pub kv_events_total: u64,
    /// Lateness of those with a modelled duration.
    pub lateness: Lateness,
}

impl RankGauge {
    /// Where the rank's blocks go when it has them no more.
    pub(super) fn former(&self) -> Arc<Former> {
        Arc::clone(&self.former)
    }

    pub(super) fn set_load(&self, load: &Load, streams: usize) {
        self.running.store(load.running, Relaxed);
        self.waiting.store(load.waiting, Relaxed);
        self.active_blocks.store(load.active_blocks, Relaxed);
        self.inactive_blocks.store(load.inactive_blocks, Relaxed);
        self.total_blocks.store(load.total_blocks, Relaxed);
        self.preemptions.store(load.preemptions, Relaxed);
        self.streams.store(u32::try_from(streams).unwrap_or(u32::MAX), Relaxed);
    }

    /// Requests in the engine, a waiting one counted as `waiting_weight` running ones.
    pub(super) fn pressure(&self, waiting_weight: u64) -> u64 {
        u64::from(self.running.load(Relaxed)) + waiting_weight * u64::from(self.waiting.load(Relaxed))
    }

    /// The rank takes a request.
    pub(super) fn count_request(&self, now: SimTime) {
        self.requests.fetch_add(1, Relaxed);
        self.turn_at.store(now.to_bits(), Relaxed);
    }

    /// A request is in the rank's mailbox.
    pub(super) fn count_posted(&self, now: SimTime) {
        if self.posted.fetch_add(1, Relaxed) <= self.requests.load(Relaxed) {
            self.posted_at.store(now.to_bits(), Relaxed);
        }
    }

    /// A new rank: what its predecessor had in its mailbox is lost, and no pass runs.
    pub(super) fn begin(&self) {
        self.posted.store(self.requests.load(Relaxed), Relaxed);
        self.due_at.store(0, Relaxed);
    }

    /// No pass runs before that.
    pub(super) fn set_starts_at(&self, starts_at: SimTime) {
        self.starts_at.store(starts_at.to_bits(), Relaxed);
    }

    /// Whether the rank still loads: requests wait, and nothing is overdue.
    pub fn loads(&self, now: SimTime) -> bool {
        now < SimTime::from_bits(self.starts_at.load(Relaxed))
    }

    /// A pass runs until then.
    pub(super) fn set_due(&self, ends_at: SimTime) {
        self.due_at.store(ends_at.to_bits(), Relaxed);
    }

    /// Whether the rank's actor does not do what it should have done long ago.
    pub fn is_overdue(&self, now: SimTime) -> bool {
        let overdue = |since: u64| now > SimTime::from_bits(since) + HUNG_AFTER;
        let due_at = self.due_at.load(Relaxed);
        let turn_at = self.posted_at.load(Relaxed).max(self.turn_at.load(Relaxed));
        let has_mail = self.posted.load(Relaxed) > self.requests.load(Relaxed);
        (due_at > 0 && overdue(due_at)) || (has_mail && overdue(turn_at))
    }

    /// A pass's KV events did not reach the publisher.
    pub(super) fn count_lost_event_batch(&self) {
        self.lost_event_batches.fetch_add(1, Relaxed);
    }

    /// Passes whose KV events did not reach the publisher.
    pub fn lost_event_batches(&self) -> u64 {
        self.lost_event_batches.load(Relaxed)
    }

    pub(super) fn count_kv_events(&self, events: u64) {
        self.kv_events.fetch_add(events, Relaxed);
    }

    /// Requests taken so far.
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// A pass is over at `now`.
    pub(super) fn count_pass(&self, tokens: u64, now: SimTime) {
        self.due_at.store(0, Relaxed);
        self.turn_at.store(now.to_bits(), Relaxed);
        self.passes.fetch_add(1, Relaxed);
        self.tokens.fetch_add(tokens, Relaxed);
    }

    pub(super) fn count_lateness(&self, late: Duration) {
        let us = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
        let bucket = LATENESS_BOUNDS_US.partition_point(|bound| *bound < us);
        self.late_passes[bucket].fetch_add(1, Relaxed);
        self.lateness_total_us.fetch_add(us, Relaxed);
        self.lateness_max_us.fetch_max(us, Relaxed);
    }

    pub(super) fn count_slip(&self, slip: Duration) {
        self.slipped_us
            .fetch_add(u64::try_from(slip.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Tokens handed out so far.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens.load(Relaxed)
    }

    /// Queue and block figures after the last change.
    pub fn load(&self) -> Load {
        Load {
            running: self.running.load(Relaxed),
            waiting: self.waiting.load(Relaxed),
            active_blocks: self.active_blocks.load(Relaxed),
            inactive_blocks: self.inactive_blocks.load(Relaxed),
            total_blocks: self.total_blocks.load(Relaxed),
            preemptions: self.preemptions.load(Relaxed),
        }
    }

    /// Lateness of its passes.
    pub fn lateness(&self) -> Lateness {
        let mut buckets = [0; LATENESS_BUCKETS];
        for (copy, bucket) in buckets.iter_mut().zip(&self.late_passes) {
            *copy = bucket.load(Relaxed);
        }
        let measured: u64 = buckets.iter().sum();
        let max_ms = ms(self.lateness_max_us.load(Relaxed));
        #[allow(clippy::cast_precision_loss)]
        let mean_ms = if measured == 0 {
            0.0
        } else {
            ms(self.lateness_total_us.load(Relaxed)) / measured as f64
        };
        Lateness {
            passes: measured,
            mean_ms,
            p99_ms: percentile(&buckets, measured, max_ms),
            max_ms,
            slipped_ms: ms(self.slipped_us.load(Relaxed)),
            buckets,
        }
    }

    /// The figures now.
    pub fn snapshot(&self, path: String) -> RankSnapshot {
        RankSnapshot {
            path,
            load: self.load(),
            streams: self.streams.load(Relaxed),
            requests_total: self.requests.load(Relaxed),
            tokens_total: self.tokens.load(Relaxed),
            passes_total: self.passes.load(Relaxed),
            kv_events_total: self.kv_events.load(Relaxed),
            lateness: self.lateness(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> SimTime {
        SimTime::of_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_rank_loads_until_its_first_pass_may_run() {
        let gauge = RankGauge::default();
        assert!(!gauge.loads(at(0)));
        gauge.set_starts_at(at(5000));
        assert!(gauge.loads(at(4999)) && !gauge.loads(at(5000)));
        gauge.set_starts_at(at(0));
        assert!(!gauge.loads(at(4999)), "its replacement does not load");
    }

    #[test]
    fn a_rank_is_overdue_when_its_pass_is_long_over() {
        let gauge = RankGauge::default();
        gauge.set_due(at(10_000));
        assert!(!gauge.is_overdue(at(11_900)), "late, as on a busy machine");
        assert!(gauge.is_overdue(at(12_100)));
        gauge.count_pass(1, at(12_200));
        assert!(!gauge.is_overdue(at(90_000)), "idle");
    }

    #[test]
    fn a_rank_is_overdue_when_it_takes_no_request_and_not_when_it_is_slow() {
        let gauge = RankGauge::default();
        gauge.count_posted(at(1000));
        assert!(!gauge.is_overdue(at(2900)));
        assert!(gauge.is_overdue(at(3100)));
        gauge.count_request(at(3200));
        assert!(!gauge.is_overdue(at(9000)), "nothing is in its mailbox");
        for second in 0..10 {
            gauge.count_posted(at(10_000 + 1000 * second));
            gauge.count_posted(at(10_001 + 1000 * second));
            gauge.count_request(at(10_002 + 1000 * second));
        }
        assert!(!gauge.is_overdue(at(20_000)), "its mailbox fills, but it works");
        assert!(gauge.is_overdue(at(22_000)));
        gauge.begin();
        assert!(!gauge.is_overdue(at(22_000)), "a new rank has an empty mailbox");
        gauge.count_posted(at(22_000));
        assert!(gauge.is_overdue(at(25_000)));
    }
}
