//! Waiting for something that will happen, with a limit and a name for it.

use std::thread;
use std::time::{Duration, Instant};

/// How often to look.
const PERIOD: Duration = Duration::from_millis(20);

/// Looks until `look` finds something and returns that.
///
/// # Panics
/// When `limit` is over; the message says what was waited for.
#[track_caller]
pub(crate) fn eventually<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < limit, "waited {limit:?} in vain until {what}");
        thread::sleep(PERIOD);
    }
}
