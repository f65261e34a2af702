//! How many messages of a storm are due. Pure: whoever blows it counts the beats.

use std::time::Duration;

/// A storm blows in gusts, so that its rate does not depend on a timer's grain.
pub(super) const EVERY: Duration = Duration::from_millis(20);

/// Messages of one gust at most.
const MOST: u64 = 2000;

/// One storm.
#[derive(Debug)]
pub(super) struct Gust {
    per_gust: f64,
    owed: f64,
}

impl Gust {
    /// A storm of so many messages per second.
    pub(super) fn new(per_s: f64) -> Self {
        Self {
            per_gust: per_s * EVERY.as_secs_f64(),
            owed: 0.0,
        }
    }

    /// Messages of the next gust, [`EVERY`] after the one before it.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // at least 0; what is beyond a u64 is beyond the bound
    pub(super) fn due(&mut self) -> u64 {
        self.owed += self.per_gust;
        let due = (self.owed as u64).min(MOST);
        // What is beyond the bound is not made up for.
        self.owed = self.owed.fract();
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gusts_come_to_the_rate_whatever_it_is_and_are_bounded() {
        for (per_s, in_ten_seconds) in [(0.0, 0), (3.0, 30), (70.0, 700), (50_000.0, 500_000)] {
            let mut gust = Gust::new(per_s);
            let blown: u64 = (0..500).map(|_| gust.due()).sum();
            assert!(blown.abs_diff(in_ten_seconds) <= 1, "{per_s}: {blown}");
        }
        let mut gust = Gust::new(1e9);
        assert_eq!((gust.due(), gust.due()), (MOST, MOST));
    }
}
