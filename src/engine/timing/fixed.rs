//! Constant durations.

use super::{DecodeBatch, PassTiming, PrefillBatch};

/// The same time for every pass with prefill, and for every pass with decode work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fixed {
    pub(crate) prefill_ms: f64,
    pub(crate) decode_ms: f64,
}

impl PassTiming for Fixed {
    fn prefill_ms(&self, _: PrefillBatch) -> f64 {
        self.prefill_ms
    }

    fn decode_ms(&self, _: DecodeBatch) -> f64 {
        self.decode_ms
    }
}
