//! Things that go wrong again and again, said now and then.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Shortest time between two lines about the same thing.
const EVERY: Duration = Duration::from_secs(10);

/// One kind of failure: counts every one, and says when it is time for a line.
#[derive(Debug, Default)]
pub struct Repeated(Mutex<Said>);

#[derive(Debug, Default)]
struct Said {
    last: Option<Instant>,
    /// Since then, that one included.
    times: u64,
}

impl Repeated {
    /// It happened again. How often since the last line, if it is time for another one.
    pub fn say(&self) -> Option<u64> {
        self.say_at(Instant::now())
    }

    fn say_at(&self, now: Instant) -> Option<u64> {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.times += 1;
        if said.last.is_some_and(|last| now.duration_since(last) < EVERY) {
            return None;
        }
        said.last = Some(now);
        Some(std::mem::take(&mut said.times))
    }

    /// It is over: the next time is said at once.
    pub fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Said::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_said_and_then_one_line_counts_many() {
        let (failure, begin) = (Repeated::default(), Instant::now());
        assert_eq!(failure.say_at(begin), Some(1));
        for _ in 0..100 {
            assert_eq!(failure.say_at(begin + EVERY / 2), None);
        }
        assert_eq!(failure.say_at(begin + EVERY), Some(101));
        failure.forget();
        assert_eq!(failure.say_at(begin + EVERY), Some(1));
    }
}
