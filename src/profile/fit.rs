//! From a profiler's samples to a grid: a line for prefill, a plane for decode, evaluated at evenly spaced points.
//!
//! Prefill: `ttft = a + b * isl`. Decode: `itl = a + b * batch + c * kv` over the samples' KV tokens and batch sizes, which
//! are their usage times the capacity and KV tokens over context length, both rounded half to even. Ordinary least
//! squares, the solution of least norm where more than one fits. Source: the profile converter of Dynamo 1.4.2.

use crate::engine::ProfilePoints;

/// Points per axis.
const RESOLUTION: usize = 100;

/// Shortest predicted time, ms.
const FLOOR_MS: f64 = 1e-3;

/// A time per request of the batch that falls faster than this, in ms, is taken for noise and counts as 0.
const FALLING_MS: f64 = -1e-3;

/// Measured prefill times.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct PrefillSamples {
    /// Prompt lengths, tokens.
    pub(super) isl: Vec<f64>,
    /// Times to the first token, ms.
    pub(super) ttft_ms: Vec<f64>,
}

/// Measured decode times.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct DecodeSamples {
    /// Share of the KV capacity in use, 0 to 1.
    pub(super) kv_usage: Vec<f64>,
    /// Tokens per sequence.
    pub(super) context_length: Vec<f64>,
    /// Times between two tokens, ms.
    pub(super) itl_ms: Vec<f64>,
    /// KV capacity, tokens.
    pub(super) max_kv_tokens: f64,
}

/// Samples that no grid can be made of.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FitError {
    /// Samples whose columns have different lengths.
    #[error("{0} and {1} have different lengths ({2} and {3})")]
    Lengths(&'static str, &'static str, usize, usize),
    /// Not a number to compute with.
    #[error(
        "{array} entry {index} is {value}; every entry must be a finite number, and context lengths must be positive"
    )]
    BadSample {
        /// Which array.
        array: &'static str,
        /// Position from 0.
        index: usize,
        /// Entry there.
        value: f64,
    },
    /// Not a share.
    #[error("x_kv_usage entry {index} is {value}; it is a share of max_kv_tokens from 0 to 1, not per cent")]
    NotAShare {
        /// Position from 0.
        index: usize,
        /// Entry there.
        value: f64,
    },
    /// An axis without extent.
    #[error("{0}; measure at two different ones at least")]
    NoExtent(&'static str),
    /// Times that fall where they must rise.
    #[error("{what} gets faster with more {of} by {slope_ms} ms each; such a profile is not usable, measure again")]
    Falling {
        /// Which part.
        what: &'static str,
        /// Along what.
        of: &'static str,
        /// Fitted slope.
        slope_ms: f64,
    },
}

/// Fits both sides and evaluates them.
pub(super) fn grid(prefill: &PrefillSamples, decode: &DecodeSamples) -> Result<ProfilePoints, FitError> {
    let line = fit_prefill(prefill)?;
    let plane = fit_decode(decode)?;
    let decode_active_kv_tokens = spaced(0.0, plane.max_kv);
    let decode_context_length = spaced(1.0, plane.max_context);
    let decode_itl = decode_active_kv_tokens
        .iter()
        .flat_map(|&kv| decode_context_length.iter().map(move |&context| (kv, context)))
        .map(|(kv, context)| plane.itl_ms(kv, context))
        .collect();
    let prefill_isl = spaced(line.shortest, line.longest);
    Ok(ProfilePoints {
        prefill_ttft_ms: prefill_isl.iter().map(|&isl| line.ttft_ms(isl)).collect(),
        prefill_isl,
        decode_active_kv_tokens,
        decode_context_length,
        decode_itl,
    })
}

struct Line {
    base_ms: f64,
    per_token_ms: f64,
    shortest: f64,
    longest: f64,
}

impl Line {
    fn ttft_ms(&self, isl: f64) -> f64 {
        (self.base_ms + self.per_token_ms * isl).max(FLOOR_MS)
    }
}

fn fit_prefill(samples: &PrefillSamples) -> Result<Line, FitError> {
    same_length("prefill_isl", &samples.isl, "prefill_ttft", &samples.ttft_ms)?;
    finite("prefill_isl", &samples.isl)?;
    finite("prefill_ttft", &samples.ttft_ms)?;
    let (shortest, longest) = extent(&samples.isl);
    if samples.isl.is_empty() || shortest >= longest {
        return Err(FitError::NoExtent(
            "prefill_isl has fewer than two different prompt lengths",
        ));
    }
    let (isl, mean_isl) = centred(&samples.isl);
    let (ttft, mean_ttft) = centred(&samples.ttft_ms);
    let per_token_ms = dot(&isl, &ttft) / dot(&isl, &isl);
    if per_token_ms < 0.0 {
        return Err(FitError::Falling {
            what: "prefill",
            of: "prompt tokens",
            slope_ms: per_token_ms,
        });
    }
    Ok(Line {
        base_ms: mean_ttft - per_token_ms * mean_isl,
        per_token_ms,
        shortest,
        longest,
    })
}

struct Plane {
    base_ms: f64,
    per_request_ms: f64,
    per_kv_token_ms: f64,
    max_kv: f64,
    max_context: f64,
}

impl Plane {
    fn itl_ms(&self, kv: f64, context: f64) -> f64 {
        let batch = (kv / context).max(1.0);
        (self.base_ms + self.per_request_ms * batch + self.per_kv_token_ms * kv).max(FLOOR_MS)
    }
}

fn fit_decode(samples: &DecodeSamples) -> Result<Plane, FitError> {
    same_length(
        "x_kv_usage",
        &samples.kv_usage,
        "y_context_length",
        &samples.context_length,
    )?;
    same_length("x_kv_usage", &samples.kv_usage, "z_itl", &samples.itl_ms)?;
    finite("x_kv_usage", &samples.kv_usage)?;
    if let Some(index) = samples.kv_usage.iter().position(|usage| !(0.0..=1.0).contains(usage)) {
        let value = samples.kv_usage[index];
        return Err(FitError::NotAShare { index, value });
    }
    finite("y_context_length", &samples.context_length)?;
    finite("z_itl", &samples.itl_ms)?;
    finite("max_kv_tokens", &[samples.max_kv_tokens])?;
    if let Some(index) = samples.context_length.iter().position(|&context| context <= 0.0) {
        return Err(FitError::BadSample {
            array: "y_context_length",
            index,
            value: samples.context_length[index],
        });
    }
    let kv: Vec<f64> = samples
        .kv_usage
        .iter()
        .map(|usage| (usage * samples.max_kv_tokens).round_ties_even())
        .collect();
    let batch: Vec<f64> = kv
        .iter()
        .zip(&samples.context_length)
        .map(|(kv, context)| (kv / context).round_ties_even().max(1.0))
        .collect();
    let max_kv = extent(&kv).1;
    let max_context = extent(&kv.iter().zip(&batch).map(|(kv, batch)| kv / batch).collect::<Vec<_>>()).1;
    if kv.is_empty() || max_kv <= 0.0 {
        return Err(FitError::NoExtent(
            "x_kv_usage times max_kv_tokens gives no KV tokens at all",
        ));
    }
    if max_context <= 1.0 {
        return Err(FitError::NoExtent("no sample has sequences of more than one token"));
    }
    let (centred_itl, mean_itl) = centred(&samples.itl_ms);
    let (centred_batch, mean_batch) = centred(&batch);
    let (centred_kv, mean_kv) = centred(&kv);
    let (per_request_ms, per_kv_token_ms) = slopes(&centred_batch, &centred_kv, &centred_itl);
    if per_kv_token_ms < 0.0 {
        return Err(FitError::Falling {
            what: "decode",
            of: "KV tokens",
            slope_ms: per_kv_token_ms,
        });
    }
    Ok(Plane {
        // The base belongs to the fitted slopes, also where one of them is then taken for noise.
        base_ms: mean_itl - per_request_ms * mean_batch - per_kv_token_ms * mean_kv,
        per_request_ms: if per_request_ms < FALLING_MS {
            0.0
        } else {
            per_request_ms
        },
        per_kv_token_ms,
        max_kv,
        max_context,
    })
}

/// Least squares of `y` over two columns, all centred. The columns are turned in their plane until they are orthogonal,
/// which gives their singular values; a direction without extent gets no slope, so that the norm is the least.
fn slopes(first: &[f64], second: &[f64], y: &[f64]) -> (f64, f64) {
    let (mut first, mut second) = (first.to_vec(), second.to_vec());
    let (mut cos, mut sin) = (1.0, 0.0);
    // The second turn removes what rounding left of the first.
    for _ in 0..2 {
        let overlap = dot(&first, &second);
        if overlap == 0.0 {
            break;
        }
        let zeta = (dot(&second, &second) - dot(&first, &first)) / (2.0 * overlap);
        let tan = zeta.signum() / (zeta.abs() + zeta.hypot(1.0));
        let (turn_cos, turn_sin) = (1.0 / tan.hypot(1.0), tan / tan.hypot(1.0));
        for (one, other) in first.iter_mut().zip(&mut second) {
            (*one, *other) = (turn_cos * *one - turn_sin * *other, turn_sin * *one + turn_cos * *other);
        }
        (cos, sin) = (cos * turn_cos - sin * turn_sin, sin * turn_cos + cos * turn_sin);
    }
    let sizes = [&first, &second].map(|column| dot(column, column).sqrt());
    #[allow(clippy::cast_precision_loss)]
    let least = sizes[0].max(sizes[1]) * f64::EPSILON * y.len().max(2) as f64;
    let along = |column: &[f64], size: f64| {
        if size > least {
            dot(column, y) / (size * size)
        } else {
            0.0
        }
    };
    let turned = (along(&first, sizes[0]), along(&second, sizes[1]));
    (cos * turned.0 + sin * turned.1, cos * turned.1 - sin * turned.0)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Differences from the mean, and the mean.
#[allow(clippy::cast_precision_loss)]
fn centred(values: &[f64]) -> (Vec<f64>, f64) {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (values.iter().map(|value| value - mean).collect(), mean)
}

fn extent(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (least, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}

/// Evenly spaced points, both ends included.
#[allow(clippy::cast_precision_loss)]
fn spaced(from: f64, to: f64) -> Vec<f64> {
    let step = (to - from) / (RESOLUTION - 1) as f64;
    let inner = (0..RESOLUTION - 1).map(|point| from + point as f64 * step);
    inner.chain([to]).collect()
}

fn same_length(first: &'static str, a: &[f64], second: &'static str, b: &[f64]) -> Result<(), FitError> {
    if a.len() == b.len() {
        Ok(())
    } else {
        Err(FitError::Lengths(first, second, a.len(), b.len()))
    }
}

fn finite(array: &'static str, values: &[f64]) -> Result<(), FitError> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(FitError::BadSample {
            array,
            index,
            value: values[index],
        }),
        None => Ok(()),
    }
}
