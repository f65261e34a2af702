//! The peer's built-in curves.

use super::{DecodeBatch, PassTiming, PrefillBatch};

/// Quadratics in the new tokens of a pass and in the KV utilisation. Source: Dynamo 1.6.1 engine core.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Polynomial;

impl PassTiming for Polynomial {
    // Squares first: the last bit decides which way half a nanosecond is rounded.
    fn prefill_ms(&self, batch: PrefillBatch) -> f64 {
        let tokens = f64::from(batch.requests) * f64::from(batch.mean_isl - batch.mean_prefix);
        4.209_989e-7 * tokens.powi(2) + 1.518_344e-2 * tokens + 16.501_42
    }

    #[allow(clippy::cast_precision_loss)]
    fn decode_ms(&self, batch: DecodeBatch) -> f64 {
        let usage = if batch.capacity_tokens == 0 {
            1.0
        } else {
            (batch.kv_tokens as f64 / batch.capacity_tokens as f64).min(1.0)
        };
        (-25.74 * usage.powi(2) + 54.01 * usage + 5.74).max(1.0)
    }
}
