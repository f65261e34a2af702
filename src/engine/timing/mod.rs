//! How long a pass takes: a model gives milliseconds, [`PassClock`] turns them into whole nanoseconds at a speed.
//!
//! Source: Dynamo 1.6.1 engine core. A duration is rounded to nanoseconds, then divided by the speed-up and rounded
//! again; a pass is the sum of its prefill and its decode part.

mod fixed;
mod polynomial;
mod profile;
mod shared;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use fixed::Fixed;
pub(crate) use polynomial::Polynomial;
pub use profile::{Profile, ProfileError, ProfilePoints};
pub use shared::{SharedTiming, TimingOfRanks};

use super::config::{EngineConfig, EngineKind, Semantics, TimingConfig, WorkerRole};
use crate::types::{SimTime, span_of_seconds};

/// Prefill work of one pass, as means over its requests (integer division, as the reference does).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefillBatch {
    /// Requests that compute prompt tokens.
    pub requests: u32,
    /// Prompt tokens per request up to the end of this pass, earlier chunks and cached ones included.
    pub mean_isl: u32,
    /// Of these, tokens that were there before.
    pub mean_prefix: u32,
}

/// Decode work of one pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeBatch {
    /// Requests that decode.
    pub requests: u32,
    /// KV tokens that they read.
    pub kv_tokens: u64,
    /// Mean sequence length.
    pub mean_context: u32,
    /// KV tokens that fit in the rank.
    pub capacity_tokens: u64,
}

/// A model of the hardware.
pub trait PassTiming: fmt::Debug + Send + Sync {
    /// Duration of the prefill part in ms, for at least one new token.
    fn prefill_ms(&self, batch: PrefillBatch) -> f64;

    /// Duration of the decode part in ms, for at least one request.
    fn decode_ms(&self, batch: DecodeBatch) -> f64;
}

/// A timing model at a speed. A ratio of 0 means no modelled delay.
#[derive(Debug, Clone)]
pub(crate) struct PassClock {
    model: Arc<dyn PassTiming>,
    prefill_ratio: f64,
    decode_ratio: f64,
    decode_floor_ms: f64,
    role: WorkerRole,
    /// Decode steps take time.
    decodes: bool,
    overhead_ms: f64,
    jitter_ms: f64,
    seed: u64,
}

impl PassClock {
    pub(crate) fn new(config: &EngineConfig, model: Arc<dyn PassTiming>) -> Self {
        Self {
            model,
            prefill_ratio: config.speedup_ratio,
            decode_ratio: product(config.speedup_ratio, config.decode_speedup_ratio),
            decode_floor_ms: match config.semantics {
                Semantics::V1_6_1 => 0.0,
                Semantics::V1_4_2 => 1.0,
            },
            role: config.role,
            // Prefill workers of SGLang decode like any other before Dynamo 1.6.1.
            decodes: config.role != WorkerRole::Prefill
                || (config.kind, config.semantics) == (EngineKind::Sglang, Semantics::V1_4_2),
            overhead_ms: config.step_overhead_ms,
            jitter_ms: config.step_jitter_ms,
            seed: config.seed,
        }
    }

    /// When a pass that starts at `now` ends, if its work is done at `worked`.
    pub(crate) fn end(&self, now: SimTime, worked: SimTime) -> SimTime {
        worked + self.overhead(now)
    }

    /// What the pass that starts at `now` takes besides its work. The draw depends on the seed and the start alone, so
    /// that it is the same for a quiet pass and for one that is looked at.
    fn overhead(&self, now: SimTime) -> Duration {
        if self.prefill_ratio == 0.0 || (self.overhead_ms == 0.0 && self.jitter_ms == 0.0) {
            return Duration::ZERO;
        }
        let jitter_ms = if self.jitter_ms == 0.0 {
            0.0
        } else {
            self.jitter_ms * unit(self.seed, now)
        };
        scaled(self.overhead_ms + jitter_ms, self.prefill_ratio)
    }

    /// Time for the prompt tokens of a pass: `isl` and `prefix` are sums over `requests`.
    pub(crate) fn prefill(&self, requests: u32, isl: u64, prefix: u64) -> Duration {
        if requests == 0 || self.prefill_ratio == 0.0 || self.role == WorkerRole::Decode {
            return Duration::ZERO;
        }
        let mean = |sum: u64| u32::try_from(sum / u64::from(requests)).unwrap_or(u32::MAX);
        let (mean_isl, mean_prefix) = (mean(isl), mean(prefix));
        if mean_isl <= mean_prefix {
            return Duration::ZERO;
        }
        let batch = PrefillBatch {
            requests,
            mean_isl,
            mean_prefix,
        };
        scaled(self.model.prefill_ms(batch), self.prefill_ratio)
    }

    /// Time for one decode step of `requests` sequences with `total_len` tokens, which read `kv_tokens`.
    pub(crate) fn decode(&self, requests: u32, total_len: u64, kv_tokens: u64, capacity_tokens: u64) -> Duration {
        if requests == 0 || self.decode_ratio == 0.0 || !self.decodes {
            return Duration::ZERO;
        }
        let batch = DecodeBatch {
            requests,
            kv_tokens,
            mean_context: u32::try_from(total_len / u64::from(requests)).unwrap_or(u32::MAX),
            capacity_tokens,
        };
        scaled(self.model.decode_ms(batch).max(self.decode_floor_ms), self.decode_ratio)
    }
}

/// The model that a configuration names.
pub(crate) fn build(config: &TimingConfig) -> Arc<dyn PassTiming> {
    match config {
        TimingConfig::Polynomial => Arc::new(Polynomial),
        &TimingConfig::Fixed { prefill_ms, decode_ms } => Arc::new(Fixed { prefill_ms, decode_ms }),
        TimingConfig::Profile(profile) => Arc::clone(profile) as Arc<dyn PassTiming>,
        TimingConfig::Shared(shared) => shared.of_rank(),
    }
}

/// A number from 0 up to 1 that `seed` and `now` choose.
#[allow(clippy::cast_precision_loss)]
fn unit(seed: u64, now: SimTime) -> f64 {
    let drawn = xxhash_rust::xxh3::xxh3_64_with_seed(&now.as_nanos().to_le_bytes(), seed);
    // The 53 bits that a double holds exactly.
    (drawn >> 11) as f64 / (1u64 << 53) as f64
}

/// Two ratios as one; only a ratio of 0 makes it 0, not two tiny ones.
fn product(speedup: f64, decode: f64) -> f64 {
    let both = speedup * decode;
    if both == 0.0 && speedup > 0.0 && decode > 0.0 {
        f64::MIN_POSITIVE
    } else {
        both
    }
}

/// Whole nanoseconds of `ms`, divided by `ratio`, rounded again. What is no positive time counts as none.
fn scaled(ms: f64, ratio: f64) -> Duration {
    let seconds = ms / 1000.0;
    // Too many nanoseconds for a clock are not rounded: the ratio may make few of them.
    let rounded = Duration::try_from_secs_f64(seconds).map_or(seconds, |span| span.as_secs_f64());
    #[allow(clippy::float_cmp)]
    if ratio == 1.0 {
        return span_of_seconds(seconds);
    }
    span_of_seconds(rounded / ratio)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::LONGEST_SPAN;

    fn clock(speedup_ratio: f64, decode_speedup_ratio: f64) -> PassClock {
        let config = EngineConfig {
            speedup_ratio,
            decode_speedup_ratio,
            ..EngineConfig::default()
        };
        PassClock::new(&config, build(&TimingConfig::Polynomial))
    }

    #[test]
    fn prefill_means_are_integers_before_the_formula() {
        // Recorded: lengths 17, 33, 50 and 101 count as 4 x 50 tokens.
        let sum = 17 + 33 + 50 + 101;
        assert_eq!(clock(1.0, 1.0).prefill(4, sum, 0), Duration::from_nanos(19_554_948));
    }

    #[test]
    fn recorded_single_request_times_come_out() {
        let clock = clock(1.0, 1.0);
        assert_eq!(clock.prefill(1, 100, 0), Duration::from_nanos(18_023_974));
        let decode: Duration = (101..104).map(|len| clock.decode(1, len, len, 1024)).sum();
        assert_eq!(clock.prefill(1, 100, 0) + decode, Duration::from_nanos(50_617_452));
    }

    #[test]
    fn ratios_divide_and_zero_means_no_delay() {
        assert_eq!(clock(10.0, 1.0).prefill(1, 100, 0), Duration::from_nanos(1_802_397));
        assert_eq!(clock(0.0, 1.0).prefill(1, 100, 0), Duration::ZERO);
        assert_eq!(clock(0.0, 1.0).decode(1, 100, 100, 1024), Duration::ZERO);
        assert_eq!(clock(1.0, 0.0).decode(1, 100, 100, 1024), Duration::ZERO);
        assert_eq!(clock(1.0, 0.0).prefill(1, 100, 0), Duration::from_nanos(18_023_974));
        let plain = clock(1.0, 1.0).decode(2, 200, 200, 1024);
        assert_eq!(
            clock(1.0, 4.0).decode(2, 200, 200, 1024),
            (plain + Duration::from_nanos(2)) / 4
        );
    }

    #[test]
    fn nothing_new_takes_no_time() {
        assert_eq!(clock(1.0, 1.0).prefill(0, 0, 0), Duration::ZERO);
        assert_eq!(clock(1.0, 1.0).prefill(2, 100, 100), Duration::ZERO);
        assert_eq!(clock(1.0, 1.0).decode(0, 0, 0, 1024), Duration::ZERO);
    }

    #[test]
    fn every_pass_takes_the_overhead_and_a_share_of_the_jitter() {
        let config = EngineConfig {
            step_overhead_ms: 2.0,
            step_jitter_ms: 4.0,
            speedup_ratio: 2.0,
            ..EngineConfig::default()
        };
        let clock = PassClock::new(&config, build(&config.timing));
        let extra = |start: u64| {
            let (start, worked) = (SimTime::of_nanos(start), SimTime::of_nanos(start + 7_000_000));
            clock.end(start, worked).nanos_since(worked)
        };
        let drawn: Vec<u64> = (0..1000).map(|pass| extra(pass * 12_345_678)).collect();
        assert!(drawn.iter().all(|extra| (1_000_000..=3_000_000).contains(extra)));
        let mean = drawn.iter().sum::<u64>() / 1000;
        assert!((1_900_000..2_100_000).contains(&mean), "{mean}");
        assert_eq!(extra(5), extra(5));
        let other = PassClock::new(
            &EngineConfig {
                seed: 1,
                ..config.clone()
            },
            build(&config.timing),
        );
        assert_ne!(
            other.end(SimTime::of_nanos(5), SimTime::of_nanos(5)),
            clock.end(SimTime::of_nanos(5), SimTime::of_nanos(5))
        );
        let still = EngineConfig {
            speedup_ratio: 0.0,
            ..config
        };
        assert_eq!(
            PassClock::new(&still, build(&still.timing)).end(SimTime::of_nanos(5), SimTime::of_nanos(5)),
            SimTime::of_nanos(5)
        );
    }

    #[test]
    fn times_that_are_none_count_as_none_and_endless_ones_as_the_longest() {
        assert_eq!(scaled(f64::NAN, 1.0), Duration::ZERO);
        assert_eq!(scaled(-3.0, 1.0), Duration::ZERO);
        for (ms, ratio) in [
            (f64::INFINITY, 2.0),
            (1e30, 1.0),
            (1e308, 1.0),
            (5.0, 1e-300),
            (5.0, 1e-320),
        ] {
            assert_eq!(scaled(ms, ratio), LONGEST_SPAN, "{ms} ms at x{ratio}");
        }
        assert_eq!(scaled(1e308, 1e308), Duration::from_millis(1));
    }

    #[test]
    fn a_speed_that_is_almost_none_is_slow_and_not_instant() {
        for (speedup, decode) in [(1e-200, 1e-200), (1e-320, 1.0), (1.0, 1e-300)] {
            assert_eq!(clock(speedup, decode).decode(1, 100, 100, 1024), LONGEST_SPAN);
        }
        assert_eq!(clock(1e-300, 1.0).prefill(1, 100, 0), LONGEST_SPAN);
        let config = EngineConfig {
            step_overhead_ms: 1e308,
            step_jitter_ms: 1e308,
            ..EngineConfig::default()
        };
        let clock = PassClock::new(&config, build(&config.timing));
        let now = SimTime::of_ms(5.0);
        assert_eq!(clock.end(now, now).since(now), LONGEST_SPAN);
    }
}
