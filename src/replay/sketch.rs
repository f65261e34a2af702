//! Quantiles of many values in little memory, with a bounded relative error.

use std::collections::BTreeMap;

/// Relative accuracy of a quantile.
const ACCURACY: f64 = 0.001;
/// Smaller values count as zero.
const SMALLEST: f64 = 1e-9;

/// A `DDSketch` over non-negative values, with exact count, extremes, mean and deviation.
///
/// Source: the report of Dynamo 1.6.1 keeps token gaps in such a sketch; quantiles come out as its do.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sketch {
    bins: BTreeMap<i32, u64>,
    zeros: u64,
    count: u64,
    least: f64,
    most: f64,
    mean: f64,
    squares: f64,
    /// Bin of the last value: neighbours are often equal.
    last: Option<(u64, i32)>,
}

fn gamma() -> f64 {
    (1.0 + ACCURACY) / (1.0 - ACCURACY)
}

impl Sketch {
    /// Adds `value` as often as `weight` says.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    pub(crate) fn add(&mut self, value: f64, weight: u64) {
        if weight == 0 {
            return;
        }
        if value < SMALLEST {
            self.zeros += weight;
        } else {
            let bin = match self.last {
                Some((bits, bin)) if bits == value.to_bits() => bin,
                _ => (value.ln() / gamma().ln()).ceil() as i32,
            };
            self.last = Some((value.to_bits(), bin));
            *self.bins.entry(bin).or_default() += weight;
        }
        self.least = if self.count == 0 { value } else { self.least.min(value) };
        self.most = if self.count == 0 { value } else { self.most.max(value) };
        self.count += weight;
        let ahead = value - self.mean;
        self.mean += ahead * (weight as f64 / self.count as f64);
        self.squares += weight as f64 * ahead * (value - self.mean);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn mean(&self) -> f64 {
        self.mean
    }

    pub(crate) fn least(&self) -> f64 {
        self.least
    }

    pub(crate) fn most(&self) -> f64 {
        self.most
    }

    /// Population standard deviation.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn deviation(&self) -> f64 {
        (self.squares.max(0.0) / self.count.max(1) as f64).sqrt()
    }

    /// The value at a percentile, by the rule of the report's others.
    pub(crate) fn at_percent(&self, percent: f64) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        self.at_rank(super::stats::rank(self.count, percent))
    }

    /// The value at `rank` (from 0) in ascending order, within the accuracy; the last one exactly.
    pub(crate) fn at_rank(&self, rank: u64) -> f64 {
        if rank + 1 >= self.count {
            return self.most;
        }
        if rank < self.zeros {
            return 0.0;
        }
        let mut passed = self.zeros;
        for (&bin, &weight) in &self.bins {
            passed += weight;
            if passed > rank {
                return gamma().powi(bin) * (2.0 / (1.0 + gamma()));
            }
        }
        self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_the_recorded_ones() {
        let mut sketch = Sketch::default();
        sketch.add(5.0, 50);
        assert!((sketch.at_rank(25) - 4.997_811_098_765_266).abs() < 1e-9);
        let mut sketch = Sketch::default();
        sketch.add(200.0, 50);
        assert!((sketch.at_rank(3) - 200.136_826_739_777_26).abs() < 1e-9);
        assert!((sketch.at_rank(49) - 200.0).abs() < 1e-12);
    }

    #[test]
    fn weights_count_as_repetitions() {
        let (mut heavy, mut single) = (Sketch::default(), Sketch::default());
        for (value, weight) in [(1.5, 3), (0.0, 2), (9.25, 4), (1.5, 1)] {
            heavy.add(value, weight);
            (0..weight).for_each(|_| single.add(value, 1));
        }
        assert_eq!(heavy.count(), 10);
        assert!((heavy.mean() - 4.3).abs() < 1e-12 && (heavy.mean() - single.mean()).abs() < 1e-12);
        assert!((heavy.deviation() - single.deviation()).abs() < 1e-12);
        assert_eq!(heavy.least().to_bits(), 0.0_f64.to_bits());
        assert!((0..10).all(|rank| heavy.at_rank(rank).to_bits() == single.at_rank(rank).to_bits()));
    }
}
