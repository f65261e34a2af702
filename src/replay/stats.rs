//! Means and percentiles of a report.

use super::sketch::Sketch;

/// What a report says about one quantity; all 0 without samples.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Summary {
    /// Arithmetic mean.
    pub mean: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// 50th percentile.
    pub median: f64,
    /// 75th percentile.
    pub p75: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Population standard deviation.
    pub std: f64,
}

/// Rank of a percentile among `count` ordered values: rounded, halves away from zero.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]
pub(crate) fn rank(count: u64, percent: f64) -> u64 {
    (count.saturating_sub(1) as f64 * percent / 100.0).round() as u64
}

impl Summary {
    /// Of exact samples, which get sorted.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn of(samples: &mut [f64]) -> Self {
        if samples.is_empty() {
            return Self::default();
        }
        samples.sort_unstable_by(f64::total_cmp);
        let count = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / count;
        let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        let at = |percent| samples[usize::try_from(rank(samples.len() as u64, percent)).unwrap_or(0)];
        Self {
            mean,
            min: samples[0],
            max: samples[samples.len() - 1],
            median: at(50.0),
            p75: at(75.0),
            p90: at(90.0),
            p95: at(95.0),
            p99: at(99.0),
            std: (squares / count).sqrt(),
        }
    }

    /// Of a sketch.
    pub(crate) fn of_sketch(sketch: &Sketch) -> Self {
        if sketch.count() == 0 {
            return Self::default();
        }
        let at = |percent| sketch.at_rank(rank(sketch.count(), percent));
        Self {
            mean: sketch.mean(),
            min: sketch.least(),
            max: sketch.most(),
            median: at(50.0),
            p75: at(75.0),
            p90: at(90.0),
            p95: at(95.0),
            p99: at(99.0),
            std: sketch.deviation(),
        }
    }

    /// The numbers with the names that report keys begin with.
    pub(crate) fn named(&self) -> [(&'static str, f64); 9] {
        [
            ("mean", self.mean),
            ("min", self.min),
            ("max", self.max),
            ("median", self.median),
            ("p75", self.p75),
            ("p90", self.p90),
            ("p95", self.p95),
            ("p99", self.p99),
            ("std", self.std),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_take_the_sample_at_the_rounded_rank() {
        let mut samples = [4.0, 1.0, 3.0, 2.0];
        let summary = Summary::of(&mut samples);
        assert_eq!(
            (summary.median.to_bits(), summary.p75.to_bits()),
            (3.0_f64.to_bits(), 3.0_f64.to_bits())
        );
        assert!((summary.mean - 2.5).abs() < 1e-12 && (summary.std - 1.25_f64.sqrt()).abs() < 1e-12);
        assert_eq!(Summary::of(&mut []), Summary::default());
    }
}
