//! Measured durations, interpolated.

use super::{DecodeBatch, PassTiming, PrefillBatch};

/// Prefill durations over new prompt tokens, and decode durations over KV tokens and context length, each on a grid.
///
/// Between the points durations are interpolated linearly (bilinearly for decode); outside the grid the outermost segment
/// or cell is continued. Prefill times below 0 count as 0, decode times below 1 ms as 1 ms. Source: the performance NPZ
/// of Dynamo 1.4.2 and 1.6.1.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    prefill_isl: Vec<f64>,
    prefill_ttft_ms: Vec<f64>,
    decode_active_kv_tokens: Vec<f64>,
    decode_context_length: Vec<f64>,
    /// Row by row: one row per KV value, one column per context length.
    decode_itl_ms: Vec<f64>,
}

/// The points of a profile. Names are the arrays' names in the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProfilePoints {
    /// New prompt tokens of a pass, rising.
    pub prefill_isl: Vec<f64>,
    /// Their prefill time, ms; one per `prefill_isl`.
    pub prefill_ttft_ms: Vec<f64>,
    /// KV tokens read by a decode step, rising.
    pub decode_active_kv_tokens: Vec<f64>,
    /// Mean sequence length, rising.
    pub decode_context_length: Vec<f64>,
    /// Duration of a decode step, ms: `decode_itl[k * contexts + c]` for KV value `k` and context length `c`.
    pub decode_itl: Vec<f64>,
}

/// Points that are no grid. Each message names the array.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ProfileError {
    /// Too few points to draw a line through.
    #[error("{array} has {points} point(s); interpolation needs at least 2")]
    TooFewPoints {
        /// Which array.
        array: &'static str,
        /// Its length.
        points: usize,
    },
    /// An axis that does not rise.
    #[error("{array} must rise strictly, but entry {index} is {value} after {before}")]
    NotRising {
        /// Which array.
        array: &'static str,
        /// Position from 0.
        index: usize,
        /// Entry there.
        value: f64,
        /// Entry before.
        before: f64,
    },
    /// Not a number to compute with.
    #[error("{array} entry {index} is {value}; every entry must be a finite number")]
    NotFinite {
        /// Which array.
        array: &'static str,
        /// Position from 0, row by row.
        index: usize,
        /// Entry there.
        value: f64,
    },
    /// Tokens or a latency below 0.
    #[error("{array} entry {index} is {value}; it must be 0 or more")]
    Negative {
        /// Which array.
        array: &'static str,
        /// Position from 0, row by row.
        index: usize,
        /// Entry there.
        value: f64,
    },
    /// Values and axes that do not fit.
    #[error("{array} has {found} entries but its axes have {expected} points")]
    Shape {
        /// Which array.
        array: &'static str,
        /// Its entries.
        found: usize,
        /// What the axes ask for.
        expected: usize,
    },
}

impl Profile {
    /// Checks the points.
    ///
    /// # Errors
    /// [`ProfileError`]: an axis with fewer than two points or not strictly rising, an entry that is not finite or below 0, or an array that does not fit its axes.
    pub fn new(points: ProfilePoints) -> Result<Self, ProfileError> {
        let axes = [
            ("prefill_isl", &points.prefill_isl),
            ("decode_active_kv_tokens", &points.decode_active_kv_tokens),
            ("decode_context_length", &points.decode_context_length),
        ];
        for (array, axis) in axes {
            check_axis(array, axis)?;
            check_positive(array, axis)?;
        }
        let cells = points.decode_active_kv_tokens.len() * points.decode_context_length.len();
        let values = [
            ("prefill_ttft_ms", &points.prefill_ttft_ms, points.prefill_isl.len()),
            ("decode_itl", &points.decode_itl, cells),
        ];
        for (array, values, expected) in values {
            if values.len() != expected {
                return Err(ProfileError::Shape {
                    array,
                    found: values.len(),
                    expected,
                });
            }
            check_finite(array, values)?;
            check_positive(array, values)?;
        }
        Ok(Self {
            prefill_isl: points.prefill_isl,
            prefill_ttft_ms: points.prefill_ttft_ms,
            decode_active_kv_tokens: points.decode_active_kv_tokens,
            decode_context_length: points.decode_context_length,
            decode_itl_ms: points.decode_itl,
        })
    }

    /// The points that it was made from.
    pub fn points(&self) -> ProfilePoints {
        ProfilePoints {
            prefill_isl: self.prefill_isl.clone(),
            prefill_ttft_ms: self.prefill_ttft_ms.clone(),
            decode_active_kv_tokens: self.decode_active_kv_tokens.clone(),
            decode_context_length: self.decode_context_length.clone(),
            decode_itl: self.decode_itl_ms.clone(),
        }
    }

    fn decode_row(&self, row: usize) -> &[f64] {
        let columns = self.decode_context_length.len();
        &self.decode_itl_ms[row * columns..][..columns]
    }
}

impl PassTiming for Profile {
    fn prefill_ms(&self, batch: PrefillBatch) -> f64 {
        let tokens = f64::from(batch.requests) * f64::from(batch.mean_isl.saturating_sub(batch.mean_prefix));
        let at = Segment::around(&self.prefill_isl, tokens);
        at.between(&self.prefill_ttft_ms).max(0.0)
    }

    #[allow(clippy::cast_precision_loss)]
    fn decode_ms(&self, batch: DecodeBatch) -> f64 {
        let kv = Segment::around(&self.decode_active_kv_tokens, batch.kv_tokens as f64);
        let context = Segment::around(&self.decode_context_length, f64::from(batch.mean_context));
        let (low, high) = (self.decode_row(kv.index), self.decode_row(kv.index + 1));
        // What leads out of all numbers on both sides would be none between them.
        let at = |column: usize| kv.mix(low[column], high[column]).clamp(f64::MIN, f64::MAX);
        context.mix(at(context.index), at(context.index + 1)).max(1.0)
    }
}

/// A place on an axis: `way` behind point `index`, which is `span` before the next one. Outside the axis it is before its
/// first or behind its last two points.
struct Segment {
    index: usize,
    way: f64,
    span: f64,
}

impl Segment {
    /// `axis` has at least two points.
    fn around(axis: &[f64], x: f64) -> Self {
        let above = axis.partition_point(|&point| point <= x);
        let index = above.saturating_sub(1).min(axis.len() - 2);
        Self {
            index,
            way: x - axis[index],
            span: axis[index + 1] - axis[index],
        }
    }

    fn between(&self, values: &[f64]) -> f64 {
        self.mix(values[self.index], values[self.index + 1])
    }

    /// In this order of operations the last bit is the peer's, too.
    fn mix(&self, low: f64, high: f64) -> f64 {
        if self.way == 0.0 {
            // However steep the way to the next point.
            return low;
        }
        (high - low) / self.span * self.way + low
    }
}

fn check_axis(array: &'static str, axis: &[f64]) -> Result<(), ProfileError> {
    if axis.len() < 2 {
        return Err(ProfileError::TooFewPoints {
            array,
            points: axis.len(),
        });
    }
    check_finite(array, axis)?;
    match axis.windows(2).position(|pair| pair[0] >= pair[1]) {
        Some(index) => Err(ProfileError::NotRising {
            array,
            index: index + 1,
            value: axis[index + 1],
            before: axis[index],
        }),
        None => Ok(()),
    }
}

fn check_positive(array: &'static str, values: &[f64]) -> Result<(), ProfileError> {
    match values.iter().position(|&value| value < 0.0) {
        Some(index) => Err(ProfileError::Negative {
            array,
            index,
            value: values[index],
        }),
        None => Ok(()),
    }
}

fn check_finite(array: &'static str, values: &[f64]) -> Result<(), ProfileError> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(ProfileError::NotFinite {
            array,
            index,
            value: values[index],
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The grid of the recorded cases.
    fn points() -> ProfilePoints {
        ProfilePoints {
            prefill_isl: vec![100.0, 200.0, 400.0],
            prefill_ttft_ms: vec![10.0, 18.0, 50.0],
            decode_active_kv_tokens: vec![0.0, 100.0, 1000.0],
            decode_context_length: vec![1.0, 100.0, 200.0],
            decode_itl: vec![2.0, 3.0, 4.0, 3.0, 5.0, 8.0, 10.0, 12.0, 20.0],
        }
    }

    fn prefill(tokens: u32) -> f64 {
        let batch = PrefillBatch {
            requests: 1,
            mean_isl: tokens + 7,
            mean_prefix: 7,
        };
        Profile::new(points()).unwrap().prefill_ms(batch)
    }

    fn decode(kv_tokens: u64, mean_context: u32) -> f64 {
        let batch = DecodeBatch {
            requests: 1,
            kv_tokens,
            mean_context,
            capacity_tokens: 1024,
        };
        Profile::new(points()).unwrap().decode_ms(batch)
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 2e-6, "{found} instead of {expected}");
    }

    #[test]
    fn recorded_times_inside_the_grid_come_out() {
        // Dynamo 1.4.2: 150 prompt tokens in blocks of 16, so that a decode step reads 160 KV tokens.
        close(prefill(150) + decode(160, 150), 21.133_333);
        close(decode(160, 151), 7.166_667);
    }

    #[test]
    fn recorded_times_outside_the_grid_continue_the_edges() {
        close(prefill(50) + decode(64, 50), 9.451_717);
        close(prefill(800) + decode(800, 800), 172.666_667);
        close(decode(816, 801), 59.483_111);
        close(decode(816, 802), 291.702_667 - 172.666_667 - 59.483_111);
    }

    #[test]
    fn points_of_the_grid_are_hit_exactly() {
        assert_eq!((prefill(100), prefill(200), prefill(400)), (10.0, 18.0, 50.0));
        assert_eq!((decode(0, 1), decode(100, 100), decode(1000, 200)), (2.0, 5.0, 20.0));
    }

    #[test]
    fn extrapolated_times_have_floors() {
        let mut steep = points();
        steep.prefill_ttft_ms = vec![1.0, 30.0, 50.0];
        steep.decode_itl = vec![0.2; 9];
        let profile = Profile::new(steep).unwrap();
        let batch = PrefillBatch {
            requests: 1,
            mean_isl: 10,
            mean_prefix: 0,
        };
        close(profile.prefill_ms(batch), 0.0);
        let batch = DecodeBatch {
            requests: 1,
            kv_tokens: 10,
            mean_context: 10,
            capacity_tokens: 64,
        };
        close(profile.decode_ms(batch), 1.0);
    }

    #[test]
    fn the_steepest_grid_has_a_time_everywhere() {
        let mut steep = points();
        steep.decode_active_kv_tokens = vec![0.0, 1e-320, 2e-320];
        steep.decode_itl = vec![0.0, 1e308, 0.0, 1e308, 0.0, 1e308, 0.0, 1e308, 0.0];
        steep.prefill_isl = vec![0.0, 1e-320, 1e-300];
        steep.prefill_ttft_ms = vec![1.0, 1e308, 0.0];
        let profile = Profile::new(steep).unwrap();
        for (kv_tokens, mean_context) in [(0, 1), (0, 50), (1, 1), (1, 50), (1000, 300)] {
            let batch = DecodeBatch {
                requests: 1,
                kv_tokens,
                mean_context,
                capacity_tokens: 1024,
            };
            assert!(profile.decode_ms(batch) >= 1.0, "{kv_tokens} {mean_context}");
        }
        let batch = PrefillBatch {
            requests: 0,
            mean_isl: 0,
            mean_prefix: 0,
        };
        close(profile.prefill_ms(batch), 1.0);
    }

    #[test]
    fn what_is_no_grid_is_refused_by_name() {
        type Break = fn(&mut ProfilePoints);
        let cases: [(Break, &str); 10] = [
            (
                |p| p.prefill_isl[0] = -7.0,
                "prefill_isl entry 0 is -7; it must be 0 or more",
            ),
            (|p| p.prefill_isl.clear(), "prefill_isl has 0 point(s)"),
            (
                |p| p.decode_context_length.truncate(1),
                "decode_context_length has 1 point(s)",
            ),
            (
                |p| p.prefill_isl[2] = 200.0,
                "prefill_isl must rise strictly, but entry 2 is 200 after 200",
            ),
            (
                |p| p.decode_active_kv_tokens.reverse(),
                "decode_active_kv_tokens must rise strictly, but entry 1",
            ),
            (|p| p.prefill_isl[1] = f64::NAN, "prefill_isl entry 1 is NaN"),
            (
                |p| p.decode_itl[4] = -1.0,
                "decode_itl entry 4 is -1; it must be 0 or more",
            ),
            (|p| p.decode_itl[4] = f64::INFINITY, "decode_itl entry 4 is inf"),
            (
                |p| p.prefill_ttft_ms.truncate(2),
                "prefill_ttft_ms has 2 entries but its axes have 3 points",
            ),
            (
                |p| p.decode_itl.push(1.0),
                "decode_itl has 10 entries but its axes have 9 points",
            ),
        ];
        for (break_it, message) in cases {
            let mut broken = points();
            break_it(&mut broken);
            let error = Profile::new(broken).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
