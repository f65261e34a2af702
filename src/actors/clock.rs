//! The only place where the OS clock is read: everything else is told `now`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::types::SimTime;

/// Wall time as the engines' clock: nanoseconds since the fleet started. Copies share the origin.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts at zero now.
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// Now.
    pub fn now(&self) -> SimTime {
        SimTime::ZERO + self.origin.elapsed()
    }

    /// Unix time in seconds, for an engine's own event stream.
    pub fn unix_seconds() -> f64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0.0, |span| span.as_secs_f64())
    }

    /// Unix time in milliseconds, for event envelopes.
    pub fn unix_ms() -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}
