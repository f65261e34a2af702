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
pub(crate) fn eventually<T>(limit: Duration, what: &str, look: impl FnMut() -> Option<T>) -> T {
    match within(limit, look) {
        Some(found) => found,
        None => panic!("waited {limit:?} in vain until {what}"),
    }
}

/// Looks until `look` finds something; `None` when `limit` is over.
pub(crate) fn within<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if started.elapsed() > limit {
            return None;
        }
        thread::sleep(PERIOD);
    }
}
