//! Memory that a replay takes, as far as it grows with the number of requests.
//!
//! A request in flight was measured at 1.0 KB and 4 bytes for each token of its prompt, which the engine holds, and 5.8 behind a
//! KV router, which holds its hashes; what is counted lies between the two, and the quarter of memory that is no part of the
//! limit covers the rest. Sizes of what stays are on the safe side: 32 bytes were measured for the latencies of a request that
//! ended, and 1.3 KB for its record, both in lists that double as they grow.

use super::collector::Collector;
use super::flight::Flights;
use super::harness::ReplayError;

/// A request in flight, without its prompt, and each token of that.
const IN_FLIGHT: u64 = 1024;
const PROMPT_TOKEN: u64 = 5;
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

#[cfg(test)]
mod tests {
    use super::super::stream::tests::harness;
    use super::super::{Arrivals, Control, Report, SyntheticSpec};
    use super::*;

    fn load(arrivals: Arrivals) -> SyntheticSpec {
        SyntheticSpec {
            input_tokens: 64,
            output_tokens: 2,
            count: 1000,
            arrivals,
            turns: 1,
            shared_prefix_ratio: 0.0,
            prefix_groups: 0,
            inter_turn_delay_ms: 0.0,
            speedup: 1.0,
            block_size: 4,
        }
    }

    fn played(arrivals: Arrivals, bytes: u64) -> Result<Report, ReplayError> {
        let mut source = load(arrivals).source().unwrap();
        let harness = harness().with_memory_limit(bytes);
        harness.run(source.as_mut(), |_| Control::Continue)
    }

    #[test]
    fn a_replay_gives_up_where_more_requests_wait_than_memory_holds() {
        let mebibyte = 1 << 20;
        for rush in [Arrivals::Interval(0.0), Arrivals::Poisson { rate: 1e9, seed: 1 }] {
            let Err(ReplayError::Memory {
                in_flight,
                ended,
                mebibytes,
            }) = played(rush, mebibyte)
            else {
                panic!("{rush:?} goes on");
            };
            let taken = in_flight as u64 * of_request(64) + of_ended(ended, true);
            assert!(
                taken > mebibyte && taken < mebibyte + 2 * of_request(64),
                "{rush:?}: {taken}"
            );
            assert_eq!(mebibytes, 1);
            assert_eq!(played(rush, 64 * mebibyte).unwrap().completed_requests, 1000);
        }
    }

    #[test]
    fn what_stays_of_requests_that_ended_counts() {
        let few = Arrivals::Concurrency(2);
        let records = of_ended(1000, true);
        assert!(matches!(played(few, records / 2), Err(ReplayError::Memory { .. })));
        assert!(played(few, records + 4 * of_request(64)).is_ok());
    }

    #[test]
    fn what_load_takes_at_least_is_known_before_it_is_played() {
        let all = 1000 * of_request(64) + of_ended(1000, false);
        assert_eq!(load(Arrivals::Interval(0.0)).least_memory(false), all);
        assert_eq!(load(Arrivals::Concurrency(usize::MAX)).least_memory(false), all);
        let one = of_request(64) + of_ended(1000, true);
        assert_eq!(load(Arrivals::Poisson { rate: 1.0, seed: 1 }).least_memory(true), one);
        let most = SyntheticSpec {
            input_tokens: u32::MAX,
            count: u32::MAX,
            turns: u32::MAX,
            shared_prefix_ratio: 0.5,
            ..load(Arrivals::Interval(0.0))
        };
        assert!(most.least_memory(true) > 1 << 60);
    }
}
