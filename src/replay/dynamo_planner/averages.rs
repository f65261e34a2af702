//! Means over a window.

use std::collections::VecDeque;

/// Mean of the latest values, from the first one that is not 0 on.
#[derive(Debug, Clone)]
pub(super) struct MovingAverage {
    values: VecDeque<f64>,
    most: usize,
}

impl MovingAverage {
    /// Over at most `most` values.
    pub(super) fn new(most: usize) -> Self {
        Self {
            values: VecDeque::new(),
            most: most.max(1),
        }
    }

    pub(super) fn add(&mut self, value: f64) {
        if value <= 0.0 && self.values.is_empty() {
            return;
        }
        if self.values.len() == self.most {
            self.values.pop_front();
        }
        self.values.push_back(value.max(0.0));
    }

    /// 0 without values.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn value(&self) -> f64 {
        if self.values.is_empty() {
            return 0.0;
        }
        self.values.iter().sum::<f64>() / self.values.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_count_after_the_first_other_value_only_and_old_values_leave() {
        let mut average = MovingAverage::new(3);
        average.add(0.0);
        assert!(average.value() == 0.0);
        for value in [4.0, 0.0] {
            average.add(value);
        }
        assert!((average.value() - 2.0).abs() < 1e-12);
        for value in [8.0, 1.0] {
            average.add(value);
        }
        assert!((average.value() - 3.0).abs() < 1e-12);
    }
}
