//! Memory that a replay takes, as far as it grows with the number of requests.
//!
//! Sizes are on the safe side of what was measured: 1.4 KB for a request in flight and its prompt, which the engine and a KV
//! router hold as tokens and hashes; 32 bytes for the latencies of one that ended, and 1.3 KB for its record, both in lists
//! that double as they grow.

use super::collector::Collector;
use super::flight::Flights;
use super::harness::ReplayError;

/// A request in flight, without its prompt, and each token of that.
const IN_FLIGHT: u64 = 1536;
const PROMPT_TOKEN: u64 = 6;
/// Latencies of a request that ended.
const ENDED: u64 = 64;
/// Its record.
const RECORD: u64 = 2048;

/// Bytes of a request in flight with a prompt of so many tokens.
pub(crate) fn of_request(input_tokens: u32) -> u64 {
    IN_FLIGHT + PROMPT_TOKEN * u64::from(input_tokens)
}

/// Bytes that stay of so many requests that ended, with or without their records.
pub(crate) fn of_ended(requests: u64, records: bool) -> u64 {
    requests.saturating_mul(ENDED + if records { RECORD } else { 0 })
}

/// Bytes that requests may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryLimit(pub(crate) u64);

impl Default for MemoryLimit {
    fn default() -> Self {
        Self(u64::MAX)
    }
}

impl MemoryLimit {
    /// Whether there is room for another request.
    ///
    /// # Errors
    /// [`ReplayError::Memory`].
    pub(crate) fn check(self, flights: &Flights, collector: &Collector) -> Result<(), ReplayError> {
        let ended = collector.completed + collector.rejected;
        let bytes = flights.bytes() + of_ended(ended, collector.keeps_records());
        if bytes <= self.0 {
            return Ok(());
        }
        Err(ReplayError::Memory {
            in_flight: flights.len(),
            ended,
            mebibytes: self.0 >> 20,
        })
    }
}
