//! What a rank measures of its requests, in the terms of the engines' own metrics.
//!
//! Written by the rank's actor alone, read by anyone at any time: plain relaxed loads and stores. A token costs two of
//! them, and a rank that never had a request costs a few KiB.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::latency::RequestLatency;
use crate::engine::{EngineKind, WorkerRole};
use crate::types::{EngineRequest, FinishReason, SimTime};

/// Bucket bounds in seconds.
struct Bounds {
    first_token: &'static [f64],
    inter_token: &'static [f64],
    request: &'static [f64],
}

impl Bounds {
    /// Source: vLLM 0.32.0; Dynamo 1.6.1 has the same for TensorRT-LLM.
    const VLLM: Self = Self {
        first_token: &[
            0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
            80.0, 160.0, 640.0, 2560.0,
        ],
        inter_token: &[
            0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
        ],
        request: &[
            0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
            960.0, 1920.0, 7680.0,
        ],
    };

    /// Source: SGLang 0.5.23, as Dynamo 1.6.1 has it.
    const SGLANG: Self = Self {
        first_token: &[
            0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0,
        ],
        inter_token: &[
            0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6,
            0.8, 1.0, 2.0, 4.0, 6.0, 8.0,
        ],
        request: &[
            0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0, 600.0,
            1200.0, 1800.0, 2400.0,
        ],
    };

    fn of(kind: EngineKind) -> Self {
        match kind {
            EngineKind::Vllm | EngineKind::Trtllm => Self::VLLM,
            EngineKind::Sglang => Self::SGLANG,
        }
    }
}

const PREEMPTIONS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];
const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

/// Bounds 1, 2, 5, 10, ... up to `most` tokens.
fn token_bounds(most: u32) -> Vec<f64> {
    let decades = std::iter::successors(Some(1_u64), |decade| Some(decade * 10));
    let bounds = decades.flat_map(|decade| [1, 2, 5].map(|step| step * decade));
    bounds
        .take_while(|bound| *bound <= u64::from(most))
        .filter_map(|bound| u32::try_from(bound).ok())
        .map(f64::from)
        .collect()
}

/// A histogram with one writer.
#[derive(Debug)]
pub(super) struct Histogram {
    bounds: Box<[f64]>,
    /// Per bucket, not cumulative; the last one is open.
    counts: Box<[AtomicU64]>,
    /// Bits of an `f64`.
    sum: AtomicU64,
}

impl Histogram {
    fn new(bounds: &[f64]) -> Self {
        Self {
            bounds: bounds.into(),
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    fn observe(&self, value: f64) {
        let bucket = &self.counts[self.bounds.partition_point(|bound| *bound < value)];
        bucket.store(bucket.load(Relaxed) + 1, Relaxed);
        let sum = f64::from_bits(self.sum.load(Relaxed)) + value;
        self.sum.store(sum.to_bits(), Relaxed);
    }

    fn observe_span(&self, span: Duration) {
        self.observe(span.as_secs_f64());
    }

    /// Upper bound and number of observations up to it, for each bound; then their number and sum.
    pub(super) fn read(&self) -> (Vec<(f64, u64)>, u64, f64) {
        let mut below = 0;
        let mut count = |bucket: &AtomicU64| {
            below += bucket.load(Relaxed);
            below
        };
        let buckets = self
            .bounds
            .iter()
            .zip(&self.counts)
            .map(|(bound, bucket)| (*bound, count(bucket)));
        let buckets: Vec<_> = buckets.collect();
        let all = self.counts.last().map_or(0, &mut count);
        (buckets, all, f64::from_bits(self.sum.load(Relaxed)))
    }
}

/// A counter with one writer.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    fn add(&self, more: u64) {
        self.0.store(self.0.load(Relaxed) + more, Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Measurements of one rank since its worker's first start.
#[derive(Debug)]
pub struct EngineMetrics {
    pub(super) prompt_tokens: Counter,
    pub(super) cached_tokens: Counter,
    pub(super) stopped: Counter,
    pub(super) ran_out: Counter,
    pub(super) aborted: Counter,
    pub(super) failed: Counter,
    pub(super) first_token: Histogram,
    pub(super) inter_token: Histogram,
    pub(super) time_per_output_token: Histogram,
    pub(super) e2e: Histogram,
    pub(super) queued: Histogram,
    pub(super) inference: Histogram,
    pub(super) prefill: Histogram,
    pub(super) decode: Histogram,
    pub(super) prompt_lengths: Histogram,
    pub(super) answer_lengths: Histogram,
    pub(super) max_answer_lengths: Histogram,
    pub(super) max_tokens: Histogram,
    pub(super) choices: Histogram,
    pub(super) computed: Histogram,
    pub(super) preemptions: Histogram,
    /// What its role is, and who keeps the fleet's times.
    watched: Option<(WorkerRole, Arc<RequestLatency>)>,
}

impl EngineMetrics {
    /// Nothing measured yet; buckets are those of the engine, and `max_model_len` in tokens bounds the token histograms.
    pub(super) fn new(kind: EngineKind, max_model_len: u32) -> Self {
        let bounds = Bounds::of(kind);
        let tokens = token_bounds(max_model_len);
        let (seconds, tokens) = (|| Histogram::new(bounds.request), || Histogram::new(&tokens));
        Self {
            prompt_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            stopped: Counter::default(),
            ran_out: Counter::default(),
            aborted: Counter::default(),
            failed: Counter::default(),
            first_token: Histogram::new(bounds.first_token),
            inter_token: Histogram::new(bounds.inter_token),
            time_per_output_token: Histogram::new(bounds.inter_token),
            e2e: seconds(),
            queued: seconds(),
            inference: seconds(),
            prefill: seconds(),
            decode: seconds(),
            prompt_lengths: tokens(),
            answer_lengths: tokens(),
            max_answer_lengths: tokens(),
            max_tokens: tokens(),
            choices: Histogram::new(CHOICES),
            computed: tokens(),
            preemptions: Histogram::new(PREEMPTIONS),
            watched: None,
        }
    }

    /// Times go into the fleet's, too.
    pub(super) fn watched_by(mut self, role: WorkerRole, fleet: &Arc<RequestLatency>) -> Self {
        self.watched = Some((role, Arc::clone(fleet)));
        self
    }

    /// A client went away before its answer was complete.
    pub(super) fn count_aborted(&self) {
        self.aborted.add(1);
    }

    /// A request was refused or failed.
    pub(super) fn count_failed(&self) {
        self.failed.add(1);
    }
}

/// How one request gets on.
#[derive(Debug)]
pub(super) struct Timeline {
    arrived: SimTime,
    admitted: SimTime,
    first_token: SimTime,
    last_token: SimTime,
    prompt_tokens: u32,
    cached_tokens: u32,
    generated: u32,
    max_tokens: Option<u32>,
    preemptions: u32,
}

impl Timeline {
    pub(super) fn new(request: &EngineRequest, now: SimTime) -> Self {
        Self {
            arrived: now,
            admitted: now,
            first_token: now,
            last_token: now,
            prompt_tokens: request.prompt.len(),
            cached_tokens: 0,
            generated: 0,
            max_tokens: request.stop.max_tokens,
            preemptions: 0,
        }
    }

    /// Scheduled for the first time, in a pass that began at `at`.
    pub(super) fn admitted(&mut self, cached_tokens: u32, at: SimTime, metrics: &EngineMetrics) {
        self.admitted = at.max(self.arrived);
        self.cached_tokens = cached_tokens.min(self.prompt_tokens);
        metrics.prompt_tokens.add(u64::from(self.prompt_tokens));
        metrics.cached_tokens.add(u64::from(self.cached_tokens));
    }

    pub(super) fn preempted(&mut self) {
        self.preemptions += 1;
    }

    pub(super) fn token(&mut self, now: SimTime, metrics: &EngineMetrics) {
        if self.generated == 0 {
            self.first_token = now;
            let span = now.since(self.arrived);
            metrics.first_token.observe_span(span);
            if let Some((role, fleet)) = &metrics.watched {
                fleet.first_token(*role, span);
            }
        } else {
            metrics.inter_token.observe_span(now.since(self.last_token));
        }
        self.generated += 1;
        self.last_token = now;
    }

    pub(super) fn finished(&self, reason: FinishReason, now: SimTime, metrics: &EngineMetrics) {
        match reason {
            FinishReason::Eos | FinishReason::Stop => metrics.stopped.add(1),
            FinishReason::Length => metrics.ran_out.add(1),
        }
        let first = self.first_token.max(self.admitted);
        metrics.e2e.observe_span(now.since(self.arrived));
        metrics.queued.observe_span(self.admitted.since(self.arrived));
        metrics.inference.observe_span(now.since(self.admitted));
        metrics.prefill.observe_span(first.since(self.admitted));
        metrics.decode.observe_span(now.since(first));
        let steps = self.generated.saturating_sub(1);
        let per_token = if steps == 0 {
            0.0
        } else {
            now.since(first).as_secs_f64() / f64::from(steps)
        };
        metrics.time_per_output_token.observe(per_token);
        if let Some((_, fleet)) = &metrics.watched {
            let gap = (steps > 0).then(|| Duration::from_secs_f64(per_token));
            fleet.finished(now.since(self.arrived), gap);
        }
        metrics.prompt_lengths.observe(f64::from(self.prompt_tokens));
        metrics.answer_lengths.observe(f64::from(self.generated));
        metrics.max_answer_lengths.observe(f64::from(self.generated));
        if let Some(max) = self.max_tokens {
            metrics.max_tokens.observe(f64::from(max));
        }
        metrics.choices.observe(1.0);
        let computed = self.prompt_tokens - self.cached_tokens;
        metrics.computed.observe(f64::from(computed));
        metrics.preemptions.observe(f64::from(self.preemptions));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_include_their_bound() {
        let histogram = Histogram::new(CHOICES);
        for value in [1.0, 1.5, 2.0, 30.0] {
            histogram.observe(value);
        }
        let (buckets, count, sum) = histogram.read();
        assert_eq!(buckets, [(1.0, 1), (2.0, 3), (5.0, 3), (10.0, 3), (20.0, 3)]);
        assert_eq!(count, 4);
        assert!((sum - 34.5).abs() < 1e-12);
    }

    #[test]
    fn token_bounds_end_at_the_context_length() {
        assert_eq!(
            token_bounds(512),
            [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0]
        );
        assert_eq!(token_bounds(u32::MAX).last(), Some(&2e9));
        assert!(token_bounds(0).is_empty());
    }
}
