//! How long a pass takes as a function of its load, fitted to observations.
//!
//! Two loads: the plane with slopes from 0 on that is nearest in squares, and none where no duration rises with any load. One load (prompts alone): two straight pieces,
//! weighted so that short passes count as much as long ones, from six observations on; before, or where no such pieces rise,
//! a straight line. Source: `aiconfigurator` core 0.11.0, which Dynamo 1.4.2's planner asks.

use super::samples::Sample;

/// Fewest observations of two pieces.
const LEAST_OF_PIECES: usize = 6;
/// Below this duration all passes weigh the same, ms.
const WEIGHT_FLOOR_MS: f64 = 25.0;
/// Places for the bend between the shortest and the longest load, evenly on a logarithmic scale.
const LOGARITHMIC_BENDS: i32 = 8;
/// A slope so little below 0 is 0.
const NOISE: f64 = 1e-6;
/// A pivot this small, of loads in units of their own, is rounding.
const VANISHING: f64 = 1e-10;
/// Shortest pass, ms.
const SHORTEST_MS: f64 = 1e-6;

/// A fitted function: `base + slopes * x`, and `more` per unit of the first load above `bend`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Fit {
    base: f64,
    slopes: [f64; 2],
    bend: f64,
    more: f64,
}

impl Fit {
    /// Milliseconds of a pass.
    pub(super) fn ms(&self, x: [f64; 2]) -> f64 {
        self.raw(x).max(SHORTEST_MS)
    }

    fn raw(&self, x: [f64; 2]) -> f64 {
        self.base + self.slopes[0] * x[0] + self.slopes[1] * x[1] + self.more * (x[0] - self.bend).max(0.0)
    }

    /// The best function of one or two loads; `None` with fewer than `least` observations.
    pub(super) fn of(samples: &[Sample], loads: usize, least: usize) -> Option<Self> {
        let pieces = loads == 1 && samples.len() >= least.max(LEAST_OF_PIECES);
        pieces
            .then(|| two_pieces(samples))
            .flatten()
            .or_else(|| (samples.len() >= least).then(|| plane(samples, loads)).flatten())
    }
}

/// The plane that is nearest in squares among those whose slopes are 0 or free and not below 0, and not all 0: without any
/// slope a model would say that load does not matter.
fn plane(samples: &[Sample], loads: usize) -> Option<Fit> {
    let mut best: Option<(f64, Fit)> = None;
    for free in 1..1u8 << loads {
        let axes: Vec<usize> = (0..loads).filter(|axis| free & (1 << axis) != 0).collect();
        let row = |sample: &Sample| {
            let mut row = vec![1.0];
            row.extend(axes.iter().map(|&axis| sample.x[axis]));
            row
        };
        let Some(solution) = least_squares(samples, row, |_| 1.0) else {
            continue;
        };
        if solution[1..].iter().any(|slope| *slope < 0.0) {
            continue;
        }
        let mut slopes = [0.0; 2];
        for (axis, slope) in axes.iter().zip(&solution[1..]) {
            slopes[*axis] = *slope;
        }
        let fit = Fit {
            base: solution[0],
            slopes,
            bend: 0.0,
            more: 0.0,
        };
        let error: f64 = samples
            .iter()
            .map(|sample| (fit.raw(sample.x) - sample.ms).powi(2))
            .sum();
        if error.is_finite() && best.is_none_or(|(least, _)| error < least) {
            best = Some((error, fit));
        }
    }
    best.map(|(_, fit)| fit)
}

fn weight(sample: &Sample) -> f64 {
    1.0 / sample.ms.max(WEIGHT_FLOOR_MS)
}

fn two_pieces(samples: &[Sample]) -> Option<Fit> {
    let mut best: Option<(f64, Fit)> = None;
    for bend in bends(samples) {
        let row = |sample: &Sample| vec![1.0, sample.x[0], (sample.x[0] - bend).max(0.0)];
        let Some(solution) = least_squares(samples, row, weight) else {
            continue;
        };
        let fit = Fit {
            base: solution[0],
            slopes: [solution[1], 0.0],
            bend,
            more: solution[2],
        };
        let rises = fit.base >= -NOISE && fit.slopes[0] >= -NOISE && fit.slopes[0] + fit.more >= -NOISE;
        if !rises {
            continue;
        }
        let errors = samples
            .iter()
            .map(|sample| ((fit.raw(sample.x) - sample.ms) * weight(sample)).powi(2));
        let error: f64 = errors.sum();
        if best.is_none_or(|(least, _)| error < least) {
            best = Some((error, fit));
        }
    }
    best.map(|(_, fit)| fit)
}

/// Where two pieces may meet: at quantiles of the loads, and evenly between their logarithms.
fn bends(samples: &[Sample]) -> Vec<f64> {
    let mut loads: Vec<f64> = samples.iter().map(|sample| sample.x[0]).collect();
    loads.sort_by(f64::total_cmp);
    loads.dedup_by(|left, right| (*left - *right).abs() <= f64::EPSILON);
    let (Some(&low), Some(&high)) = (loads.first(), loads.last()) else {
        return Vec::new();
    };
    if loads.len() < 3 {
        return Vec::new();
    }
    let mut bends: Vec<f64> = (1..=4).map(|fifth| loads[fifth * (loads.len() - 1) / 5]).collect();
    if low > 0.0 {
        let (from, to) = (low.ln(), high.ln());
        let step = (to - from) / f64::from(LOGARITHMIC_BENDS + 1);
        bends.extend((1..=LOGARITHMIC_BENDS).map(|at| (from + f64::from(at) * step).exp()));
    }
    bends.retain(|bend| *bend > low && *bend < high);
    bends.sort_by(f64::total_cmp);
    bends.dedup_by(|left, right| (*left - *right).abs() <= left.abs().max(right.abs()).max(1.0) * 1e-9);
    bends
}

/// Coefficients of the rows that come nearest to the durations in weighted squares; finite, or none.
fn least_squares(
    samples: &[Sample],
    row: impl Fn(&Sample) -> Vec<f64>,
    weight: impl Fn(&Sample) -> f64,
) -> Option<Vec<f64>> {
    let size = samples.first().map(&row)?.len();
    let mut left = vec![vec![0.0; size]; size];
    let mut right = vec![0.0; size];
    for sample in samples {
        let (row, square) = (row(sample), weight(sample).powi(2));
        for i in 0..size {
            right[i] += row[i] * sample.ms * square;
            for j in 0..size {
                left[i][j] += row[i] * row[j] * square;
            }
        }
    }
    // Loads of any size are told apart alike: each counts in units of its own spread.
    let units: Vec<f64> = (0..size).map(|at| left[at][at].sqrt().max(f64::MIN_POSITIVE)).collect();
    for i in 0..size {
        right[i] /= units[i];
        for j in 0..size {
            left[i][j] /= units[i] * units[j];
        }
    }
    let mut solution = solve(left, right)?;
    for (value, unit) in solution.iter_mut().zip(&units) {
        *value /= unit;
    }
    solution.iter().all(|value| value.is_finite()).then_some(solution)
}

/// Gauss and Jordan with the largest pivot; `None` where a pivot vanishes: a load never changes, or two go hand in hand.
fn solve(mut left: Vec<Vec<f64>>, mut right: Vec<f64>) -> Option<Vec<f64>> {
    let size = right.len();
    for column in 0..size {
        let largest = |a: &usize, b: &usize| left[*a][column].abs().total_cmp(&left[*b][column].abs());
        let pivot = (column..size).max_by(largest)?;
        if left[pivot][column].abs() < VANISHING {
            return None;
        }
        left.swap(column, pivot);
        right.swap(column, pivot);
        let divisor = left[column][column];
        for value in &mut left[column][column..] {
            *value /= divisor;
        }
        right[column] /= divisor;
        for row in (0..size).filter(|row| *row != column) {
            let factor = left[row][column];
            let pivots = left[column].clone();
            for (value, pivot) in left[row][column..].iter_mut().zip(&pivots[column..]) {
                *value -= factor * pivot;
            }
            right[row] -= factor * right[column];
        }
    }
    Some(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(of: &[(f64, f64, f64)]) -> Vec<Sample> {
        of.iter().map(|&(a, b, ms)| Sample { x: [a, b], ms }).collect()
    }

    fn near(found: f64, expected: f64) {
        assert!(
            (found - expected).abs() < 1e-6 * expected,
            "{found} instead of {expected}"
        );
    }

    // Expected values: estimates of the model in Dynamo 1.4.2 for the same observations.
    #[test]
    fn a_slope_below_zero_is_left_out_of_the_fit() {
        let seen = samples(&[
            (1.0, 1000.0, 12.0),
            (2.0, 3000.0, 16.0),
            (4.0, 4000.0, 15.0),
            (8.0, 12000.0, 30.0),
            (3.0, 9000.0, 31.0),
            (10.0, 11000.0, 24.0),
        ]);
        near(Fit::of(&seen, 2, 5).unwrap().ms([5.0, 7000.0]), 21.870_253);
        let seen = samples(&[
            (1.0, 9000.0, 12.0),
            (2.0, 8000.0, 16.0),
            (4.0, 7000.0, 18.0),
            (8.0, 3000.0, 30.0),
            (3.0, 9000.0, 13.0),
            (10.0, 2000.0, 34.0),
        ]);
        near(Fit::of(&seen, 2, 5).unwrap().ms([5.0, 7000.0]), 21.347_368);
    }

    #[test]
    fn prompts_alone_are_a_line_first_and_two_pieces_from_six_observations_on() {
        let seen = samples(&[
            (100.0, 0.0, 18.0),
            (300.0, 0.0, 19.0),
            (500.0, 0.0, 22.0),
            (1000.0, 0.0, 33.0),
            (2000.0, 0.0, 55.0),
            (4000.0, 0.0, 100.0),
            (8000.0, 0.0, 200.0),
        ]);
        assert_eq!(Fit::of(&seen[..4], 1, 5), None);
        for (count, at_700, at_3000) in [
            (5, 27.776_43, 74.454_073),
            (6, 26.606_457, 77.206_656),
            (7, 26.196_764, 78.955_965),
        ] {
            let fit = Fit::of(&seen[..count], 1, 5).unwrap();
            near(fit.ms([700.0, 0.0]), at_700);
            near(fit.ms([3000.0, 0.0]), at_3000);
        }
    }

    #[test]
    fn loads_that_tell_nothing_are_left_out_and_alone_they_are_no_model() {
        let same = samples(&[(3.0, 300.0, 10.0); 7]);
        assert_eq!(Fit::of(&same, 2, 5), None);
        assert_eq!(Fit::of(&same, 1, 5), None);
        let falling: Vec<_> = (0..5u8)
            .map(|at| (3.0, 300.0 + 100.0 * f64::from(at), 10.0 - f64::from(at)))
            .collect();
        assert_eq!(Fit::of(&samples(&falling), 2, 5), None);
        let one = samples(&[
            (3.0, 300.0, 10.0),
            (3.0, 400.0, 11.0),
            (3.0, 500.0, 13.0),
            (3.0, 600.0, 14.0),
            (3.0, 700.0, 15.0),
        ]);
        near(Fit::of(&one, 2, 5).unwrap().ms([6.0, 900.0]), 17.8);
        let mut alike = samples(&[(3.0, 300.0, 10.0); 4]);
        alike.extend(samples(&[(4.0, 400.0, 12.0), (5.0, 500.0, 14.0)]));
        near(Fit::of(&alike, 2, 5).unwrap().ms([6.0, 900.0]), 16.0);
    }
}
