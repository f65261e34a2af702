//! When to try again to connect: pauses that double up to a bound, within a limit or for ever.

use std::time::Duration;

use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Time of the attempt that is made when the limit is reached.
const LAST_ATTEMPT: Duration = Duration::from_millis(500);

/// Pause before attempt `attempt`, the first one after the failure being 1.
pub(super) fn pause_before(attempt: usize) -> Duration {
    let doublings = u32::try_from(attempt.saturating_sub(1)).unwrap_or(u32::MAX).min(8);
    (FIRST_PAUSE * 2u32.pow(doublings)).min(MAX_PAUSE)
}

/// Attempts within a limit. The last one is made when the limit is reached: a server that came up just before it is met.
#[derive(Debug)]
pub(super) struct Attempts {
    deadline: Instant,
    failed: usize,
}

impl Attempts {
    pub(super) fn within(limit: Duration, now: Instant) -> Self {
        Self {
            deadline: now + limit,
            failed: 0,
        }
    }

    /// When an attempt that begins now has to be over.
    pub(super) fn due(&self, now: Instant) -> Instant {
        self.deadline.max(now + LAST_ATTEMPT)
    }

    /// An attempt has failed: how long to pause before the next one; `None`: the limit is reached.
    pub(super) fn pause(&mut self, now: Instant) -> Option<Duration> {
        let left = self.deadline.saturating_duration_since(now);
        self.failed += 1;
        (!left.is_zero()).then(|| pause_before(self.failed).min(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds at which attempts begin that fail at once.
    fn begun(limit: u64) -> Vec<u128> {
        let start = Instant::now();
        let mut attempts = Attempts::within(Duration::from_millis(limit), start);
        let mut now = start;
        let mut begun = vec![0];
        while let Some(pause) = attempts.pause(now) {
            now += pause;
            begun.push((now - start).as_millis());
        }
        begun
    }

    #[test]
    fn the_last_attempt_is_made_when_the_limit_is_reached() {
        assert_eq!(begun(3000), [0, 100, 300, 700, 1500, 3000]);
        assert_eq!(begun(5000), [0, 100, 300, 700, 1500, 3100, 5000]);
        assert_eq!(begun(8000), [0, 100, 300, 700, 1500, 3100, 5100, 7100, 8000]);
        assert_eq!(begun(0), [0]);
    }

    #[test]
    fn an_attempt_has_the_time_that_is_left_and_the_last_one_a_little() {
        let start = Instant::now();
        let limit = Duration::from_secs(3);
        let attempts = Attempts::within(limit, start);
        assert_eq!(attempts.due(start), start + limit);
        assert_eq!(attempts.due(start + limit), start + limit + LAST_ATTEMPT);
    }
}
