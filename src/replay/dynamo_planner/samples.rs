//! Observations that a model of speed is fitted to: a bounded number, spread over the whole range of loads.
//!
//! The range of each axis that was ever seen is cut into equal parts. Past the bound, the oldest observation of the part
//! that has most of them leaves: a load that lasts does not drive out what was learned at others. Source: `aiconfigurator`
//! core 0.11.0, which Dynamo 1.4.2's planner asks; where several parts are equally full it takes any, here it is the first.

use std::collections::BTreeMap;

/// One observation: up to two loads (an unused one is 0) and what a pass took, ms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    pub(super) x: [f64; 2],
    pub(super) ms: f64,
}

/// Observations, the oldest first.
#[derive(Debug, Clone)]
pub(super) struct Samples {
    kept: Vec<Sample>,
    low: [f64; 2],
    high: [f64; 2],
    /// Parts of an axis.
    parts: f64,
    most: usize,
}

impl Samples {
    /// At most `most` of them, with so many parts per axis.
    pub(super) fn new(most: usize, parts: u32) -> Self {
        Self {
            kept: Vec::new(),
            low: [f64::INFINITY; 2],
            high: [f64::NEG_INFINITY; 2],
            parts: f64::from(parts.max(1)),
            most,
        }
    }

    pub(super) fn all(&self) -> &[Sample] {
        &self.kept
    }

    pub(super) fn add(&mut self, sample: Sample) {
        for axis in 0..2 {
            self.low[axis] = self.low[axis].min(sample.x[axis]);
            self.high[axis] = self.high[axis].max(sample.x[axis]);
        }
        self.kept.push(sample);
        if self.kept.len() > self.most {
            self.retire();
        }
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn part(&self, sample: &Sample) -> [u32; 2] {
        [0, 1].map(|axis| {
            let width = self.high[axis] - self.low[axis];
            if width <= 0.0 {
                return 0;
            }
            let at = (sample.x[axis] - self.low[axis]) / width * self.parts;
            (at.min(self.parts - 1.0).max(0.0)) as u32
        })
    }

    fn retire(&mut self) {
        // Oldest index and number of each part.
        let mut parts: BTreeMap<[u32; 2], (usize, usize)> = BTreeMap::new();
        for (at, sample) in self.kept.iter().enumerate() {
            parts.entry(self.part(sample)).or_insert((at, 0)).1 += 1;
        }
        let fullest = parts.values().map(|(_, count)| *count).max();
        let oldest = parts.values().find(|(_, count)| Some(*count) == fullest);
        if let Some(&(oldest, _)) = oldest {
            self.kept.remove(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_lasts_does_not_drive_out_the_others() {
        let mut samples = Samples::new(4, 2);
        for (x, ms) in [(0.0, 1.0), (10.0, 2.0), (9.0, 3.0), (8.0, 4.0), (9.5, 5.0), (9.0, 6.0)] {
            samples.add(Sample { x: [x, 0.0], ms });
        }
        let kept: Vec<f64> = samples.all().iter().map(|sample| sample.ms).collect();
        assert_eq!(kept, [1.0, 4.0, 5.0, 6.0]);
    }
}
