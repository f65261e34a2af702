//! Time on the clock of engines, routers and replays.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Serialize, Serializer};

/// A point on the engine's clock: milliseconds since the clock's origin (fleet start live, zero in replay), never negative.
///
/// A binary fraction and not whole nanoseconds, because Dynamo's replay counts so: arrivals that are no whole nanoseconds
/// (Poisson gaps, time stamps divided by a speed-up, transfers) keep all their digits, and two sums are equal here exactly
/// when they are equal there. Every operation rounds alike everywhere, so a run repeats to the last bit. Up to 100 days
/// the steps are finer than 2 ps; at the 126 years that a trace may last they are half a microsecond.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimTime(
    /// Bits of the number of milliseconds: those of numbers that are not negative sort as the numbers do.
    u64,
);

impl SimTime {
    /// The clock's origin.
    pub const ZERO: Self = Self(0);
    /// Later than everything that happens.
    pub const MAX: Self = Self(f64::MAX.to_bits());

    /// An instant by its milliseconds; what is negative or no number is the origin.
    pub const fn of_ms(ms: f64) -> Self {
        if ms > 0.0 {
            let latest = if ms < f64::MAX { ms } else { f64::MAX };
            Self(latest.to_bits())
        } else {
            Self::ZERO
        }
    }

    /// An instant by its whole nanoseconds.
    #[allow(clippy::cast_precision_loss)]
    pub const fn of_nanos(nanos: u64) -> Self {
        Self::of_ms(nanos as f64 / 1e6)
    }

    /// An instant from [`Self::to_bits`].
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The instant as a number that sorts as instants do, 0 for the origin.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The instant in milliseconds.
    pub const fn as_ms(self) -> f64 {
        f64::from_bits(self.0)
    }

    /// The instant in nanoseconds, rounded.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn as_nanos(self) -> u64 {
        (self.as_ms() * 1e6).round() as u64
    }

    /// Time from `earlier` to `self`, rounded to nanoseconds; zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// [`Self::since`] as a number of nanoseconds.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn nanos_since(self, earlier: Self) -> u64 {
        (self.ms_since(earlier) * 1e6).round() as u64
    }

    /// Milliseconds from `earlier` to `self`, not rounded; 0 when `earlier` is later.
    pub fn ms_since(self, earlier: Self) -> f64 {
        (self.as_ms() - earlier.as_ms()).max(0.0)
    }

    /// The instant `ms` milliseconds later; nothing negative is added.
    #[must_use]
    pub fn after_ms(self, ms: f64) -> Self {
        Self::of_ms(self.as_ms() + ms.max(0.0))
    }
}

/// Nothing that is modelled takes longer, and no setting or fault may ask for more: 366 days.
pub const LONGEST_SPAN: Duration = Duration::from_secs(366 * 24 * 3600);

/// `seconds` in whole nanoseconds: none for what is negative or no number, and [`LONGEST_SPAN`] for all that is longer,
/// so that a number too large for a clock never counts as no time.
pub fn span_of_seconds(seconds: f64) -> Duration {
    if seconds > 0.0 {
        Duration::try_from_secs_f64(seconds).map_or(LONGEST_SPAN, |span| span.min(LONGEST_SPAN))
    } else {
        Duration::ZERO
    }
}

/// [`span_of_seconds`] of `ms` milliseconds.
pub fn span_of_ms(ms: f64) -> Duration {
    span_of_seconds(ms / 1000.0)
}

fn in_ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1000.0
}

impl Add<Duration> for SimTime {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        self.after_ms(in_ms(span))
    }
}

impl Sub<Duration> for SimTime {
    type Output = Self;
    fn sub(self, span: Duration) -> Self {
        Self::of_ms(self.as_ms() - in_ms(span))
    }
}

impl fmt::Debug for SimTime {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ms", self.as_ms())
    }
}

impl Serialize for SimTime {
    /// As milliseconds.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.as_ms())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_sort_as_their_milliseconds() {
        let ordered = [
            0.0,
            1e-300,
            1e-6,
            0.1 + 0.2,
            0.300_000_000_000_000_1,
            7.5,
            4e12,
            f64::MAX,
        ];
        let instants: Vec<SimTime> = ordered.map(SimTime::of_ms).to_vec();
        assert!(instants.is_sorted());
        assert_eq!((instants[0], instants[7]), (SimTime::ZERO, SimTime::MAX));
    }

    #[test]
    fn what_is_no_time_is_the_origin_or_the_end() {
        for ms in [-1.0, -0.0, f64::NAN, f64::NEG_INFINITY] {
            assert_eq!(SimTime::of_ms(ms), SimTime::ZERO);
        }
        assert_eq!(SimTime::of_ms(f64::INFINITY), SimTime::MAX);
        assert_eq!(SimTime::MAX + Duration::MAX, SimTime::MAX);
        assert_eq!(SimTime::ZERO - Duration::from_secs(1), SimTime::ZERO);
        assert_eq!(SimTime::ZERO.since(SimTime::of_ms(1.0)), Duration::ZERO);
        assert_eq!(SimTime::of_ms(5.0).after_ms(-7.0), SimTime::of_ms(5.0));
    }

    #[test]
    fn spans_that_no_clock_can_show_are_the_longest_and_never_none() {
        for ms in [3.2e10, 1e20, 1e30, 1e308, f64::INFINITY] {
            assert_eq!(span_of_ms(ms), LONGEST_SPAN, "{ms} ms");
        }
        for ms in [-1.0, -0.0, 0.0, f64::NAN, f64::NEG_INFINITY] {
            assert_eq!(span_of_ms(ms), Duration::ZERO, "{ms} ms");
        }
        assert_eq!(span_of_ms(18.023_974), Duration::from_nanos(18_023_974));
        assert_eq!(span_of_seconds(2.5), Duration::from_millis(2500));
    }

    #[test]
    fn spans_of_whole_nanoseconds_come_back_whole() {
        let mut now = SimTime::of_ms(12_345.678_9);
        for nanos in [1, 999, 5_756_480, 18_023_974, 3_600_000_000_001] {
            let later = now + Duration::from_nanos(nanos);
            assert_eq!(later.since(now), Duration::from_nanos(nanos));
            now = later;
        }
        assert_eq!(SimTime::of_nanos(5_756_480).as_nanos(), 5_756_480);
    }
}
