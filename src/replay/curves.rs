//! Curves of a report: what happened over time, and how latencies are distributed.

use serde_json::{Value, json};

use super::collector::Collector;
use super::series::Series;
use super::sketch::Sketch;
use super::stats::rank;

/// Steps of a distribution.
const STEPS: u32 = 200;

/// Curves as JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct Curves {
    /// Means and rates per bucket of virtual time.
    pub time_series: Value,
    /// By latency: the values at 0, 0.5, 1, ... 100 percent.
    pub latency_cdf: Value,
}

impl Curves {
    /// Of what was collected; sorts the samples.
    pub(crate) fn new(series: &Series, collected: &mut Collector) -> Self {
        let Collector {
            ttft_ms,
            tpot_ms,
            e2e_ms,
            itl_ms,
            ..
        } = collected;
        Self {
            time_series: series.to_json(),
            latency_cdf: json!({
                "ttft_ms": of_samples(ttft_ms),
                "tpot_ms": of_samples(tpot_ms),
                "e2e_latency_ms": of_samples(e2e_ms),
                "itl_ms": of_sketch(itl_ms),
            }),
        }
    }
}

fn percents() -> impl Iterator<Item = f64> {
    (0..=STEPS).map(|step| f64::from(step) * 100.0 / f64::from(STEPS))
}

fn of_samples(samples: &mut [f64]) -> Vec<f64> {
    samples.sort_unstable_by(f64::total_cmp);
    if samples.is_empty() {
        return Vec::new();
    }
    let at = |percent| samples[usize::try_from(rank(samples.len() as u64, percent)).unwrap_or(0)];
    percents().map(at).collect()
}

fn of_sketch(sketch: &Sketch) -> Vec<f64> {
    if sketch.count() == 0 {
        return Vec::new();
    }
    percents().map(|percent| sketch.at_percent(percent)).collect()
}
