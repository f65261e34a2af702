//! How long requests take, for whoever watches a fleet: three observations per request, none per token.
//!
//! The engines' own histograms are per rank and have the buckets that a real server has, which is too coarse and too many
//! for a live view. These are one for the whole fleet, fine enough for percentiles, and written with relaxed adds.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::Serialize;

use crate::engine::WorkerRole;

/// Buckets of a power of two; a percentile is off by a sixteenth of its value at most.
const STEPS: u64 = 8;
const STEP_BITS: u32 = STEPS.trailing_zeros();

/// Longest span that is told apart: 2^36 us, about 19 hours.
const MAX_BITS: u32 = 36;
const BUCKETS: usize = ((MAX_BITS - STEP_BITS + 1) as usize) << STEP_BITS;

/// Times of the requests of a fleet, seen from its workers.
#[derive(Debug, Default)]
pub struct RequestLatency {
    first_token: Spans,
    per_token: Spans,
    whole: Spans,
}

/// What was counted up to some moment, or between two.
#[derive(Debug, Clone, Default)]
pub struct LatencyCounts {
    first_token: SpanCounts,
    per_token: SpanCounts,
    whole: SpanCounts,
}

/// Figures of one kind of span, ms; all 0 when there was none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct SpanFigures {
    /// Spans.
    pub count: u64,
    /// Mean.
    pub mean_ms: f64,
    /// Half are shorter.
    pub p50_ms: f64,
    /// One in a hundred is longer.
    pub p99_ms: f64,
}

/// Figures of all three kinds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct LatencyFigures {
    /// From a request's arrival at its worker to its first token. Not of decode workers, whose prompts wait elsewhere.
    pub ttft: SpanFigures,
    /// Mean gap between the tokens of a request; requests of one token have none.
    pub itl: SpanFigures,
    /// From arrival to the last token.
    pub e2e: SpanFigures,
}

impl RequestLatency {
    /// A request's first token, so long after it arrived.
    pub(super) fn first_token(&self, role: WorkerRole, span: Duration) {
        match role {
            WorkerRole::Aggregated | WorkerRole::Prefill => self.first_token.observe(span),
            WorkerRole::Decode => {}
        }
    }

    /// A request's last token: so long after it arrived, and the mean gap between its tokens, if it had any.
    pub(super) fn finished(&self, whole: Duration, per_token: Option<Duration>) {
        self.whole.observe(whole);
        if let Some(gap) = per_token {
            self.per_token.observe(gap);
        }
    }

    /// Everything so far.
    pub fn counts(&self) -> LatencyCounts {
        LatencyCounts {
            first_token: self.first_token.read(),
            per_token: self.per_token.read(),
            whole: self.whole.read(),
        }
    }
}

impl LatencyCounts {
    /// What came after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            first_token: self.first_token.since(&earlier.first_token),
            per_token: self.per_token.since(&earlier.per_token),
            whole: self.whole.since(&earlier.whole),
        }
    }

    /// As figures.
    pub fn figures(&self) -> LatencyFigures {
        LatencyFigures {
            ttft: self.first_token.figures(),
            itl: self.per_token.figures(),
            e2e: self.whole.figures(),
        }
    }
}

#[derive(Debug)]
struct Spans {
    buckets: Box<[AtomicU64]>,
    total_us: AtomicU64,
}

impl Default for Spans {
    fn default() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            total_us: AtomicU64::new(0),
        }
    }
}

/// Bucket of a span in us.
fn bucket_of(us: u64) -> usize {
    let us = us.min((1 << MAX_BITS) - 1);
    let bits = us.checked_ilog2().unwrap_or(0);
    let index = if bits < STEP_BITS {
        us
    } else {
        let shift = bits - STEP_BITS;
        u64::from(shift + 1) * STEPS + ((us >> shift) - STEPS)
    };
    // Below BUCKETS, for spans are bounded above.
    usize::try_from(index).unwrap_or(BUCKETS - 1)
}

/// Shortest span of a bucket, us.
fn lower_bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    match bucket / STEPS {
        0 => bucket,
        octave => (STEPS + bucket % STEPS) << (octave - 1),
    }
}

impl Spans {
    fn observe(&self, span: Duration) {
        let us = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(us)].fetch_add(1, Relaxed);
        self.total_us.fetch_add(us.min(1 << MAX_BITS), Relaxed);
    }

    fn read(&self) -> SpanCounts {
        SpanCounts {
            buckets: self.buckets.iter().map(|count| count.load(Relaxed)).collect(),
            total_us: self.total_us.load(Relaxed),
        }
    }
}

#[derive(Debug, Clone, Default)]
struct SpanCounts {
    buckets: Vec<u64>,
    total_us: u64,
}

impl SpanCounts {
    fn since(&self, earlier: &Self) -> Self {
        let before = earlier.buckets.iter().copied().chain(std::iter::repeat(0));
        Self {
            buckets: self
                .buckets
                .iter()
                .zip(before)
                .map(|(now, before)| now - before)
                .collect(),
            total_us: self.total_us - earlier.total_us,
        }
    }

    #[allow(clippy::cast_precision_loss)]
    fn figures(&self) -> SpanFigures {
        let count: u64 = self.buckets.iter().sum();
        if count == 0 {
            return SpanFigures::default();
        }
        SpanFigures {
            count,
            mean_ms: self.total_us as f64 / count as f64 / 1e3,
            p50_ms: self.percentile(count, 50),
            p99_ms: self.percentile(count, 99),
        }
    }

    /// Middle of the bucket that holds it, ms.
    #[allow(clippy::cast_precision_loss)]
    fn percentile(&self, count: u64, percent: u64) -> f64 {
        let mut below = 0;
        let bucket = self.buckets.iter().position(|in_bucket| {
            below += in_bucket;
            below * 100 >= count * percent
        });
        let bucket = bucket.unwrap_or(BUCKETS - 1);
        (lower_bound(bucket) + lower_bound(bucket + 1)) as f64 / 2e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_on_one_another_and_hold_what_is_theirs() {
        for bucket in 0..BUCKETS {
            let (lower, upper) = (lower_bound(bucket), lower_bound(bucket + 1));
            assert!(lower < upper, "{bucket}");
            assert_eq!((bucket_of(lower), bucket_of(upper - 1)), (bucket, bucket));
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_near_the_truth_and_of_the_interval_alone() {
        let latency = RequestLatency::default();
        for ms in 1..=1000 {
            latency.first_token(WorkerRole::Aggregated, Duration::from_millis(ms));
            latency.first_token(WorkerRole::Decode, Duration::from_secs(100));
        }
        let before = latency.counts();
        let all = before.figures().ttft;
        assert_eq!(all.count, 1000);
        assert!((all.mean_ms - 500.5).abs() < 1e-9);
        assert!((all.p50_ms - 500.0).abs() < 500.0 / 16.0, "{all:?}");
        assert!((all.p99_ms - 990.0).abs() < 990.0 / 16.0, "{all:?}");
        latency.finished(Duration::from_millis(80), Some(Duration::from_millis(8)));
        latency.finished(Duration::from_millis(8), None);
        let later = latency.counts().since(&before).figures();
        assert_eq!(
            (later.ttft, later.itl.count, later.e2e.count),
            (SpanFigures::default(), 1, 2)
        );
        assert!((later.itl.p50_ms - 8.0).abs() < 0.5);
    }
}
