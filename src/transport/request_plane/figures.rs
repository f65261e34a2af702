//! What Dynamo's runtime counts of each endpoint of a worker.
//!
//! Source: metrics of a Dynamo 1.6.1 worker process (`dynamo_component_*`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

/// Upper bounds of the duration buckets, seconds; above the last is one more.
pub const DURATION_BOUNDS: [f64; 17] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0,
];

/// What went wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallError {
    /// The request cannot be read.
    Deserialization,
    /// What says who calls cannot be read.
    InvalidMessage,
    /// The response socket could not be opened.
    ResponseStream,
    /// The engine does not take the request.
    Generate,
    /// The reader did not take the answer.
    PublishResponse,
}

impl CallError {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Deserialization,
        Self::InvalidMessage,
        Self::ResponseStream,
        Self::Generate,
        Self::PublishResponse,
    ];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deserialization => "deserialization",
            Self::InvalidMessage => "invalid_message",
            Self::ResponseStream => "response_stream",
            Self::Generate => "generate",
            Self::PublishResponse => "publish_response",
        }
    }
}

/// Figures of one endpoint since its start.
#[derive(Debug, Default)]
pub struct EndpointFigures {
    requests: AtomicU64,
    ended: AtomicU64,
    request_bytes: AtomicU64,
    response_bytes: AtomicU64,
    cancelled: AtomicU64,
    errors: [AtomicU64; CallError::ALL.len()],
    durations: [AtomicU64; DURATION_BOUNDS.len() + 1],
    duration_us: AtomicU64,
}

/// A call under way. Dropping it ends it.
#[derive(Debug)]
pub struct CallInFlight {
    figures: Arc<EndpointFigures>,
    began: Instant,
}

impl EndpointFigures {
    /// A call with a request of this size is taken.
    pub fn begin(self: &Arc<Self>, request_bytes: usize) -> CallInFlight {
        self.requests.fetch_add(1, Relaxed);
        self.request_bytes.fetch_add(request_bytes as u64, Relaxed);
        CallInFlight {
            figures: Arc::clone(self),
            began: Instant::now(),
        }
    }

    /// Bytes of an answer that are on the wire.
    pub fn count_sent(&self, bytes: u64) {
        self.response_bytes.fetch_add(bytes, Relaxed);
    }

    /// The caller does not want the rest of an answer.
    pub fn count_cancelled(&self) {
        self.cancelled.fetch_add(1, Relaxed);
    }

    /// A call went wrong.
    pub fn count_error(&self, error: CallError) {
        self.errors[error as usize].fetch_add(1, Relaxed);
    }

    fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = DURATION_BOUNDS.iter().position(|bound| seconds <= *bound);
        self.durations[bucket.unwrap_or(DURATION_BOUNDS.len())].fetch_add(1, Relaxed);
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.duration_us.fetch_add(us, Relaxed);
        self.ended.fetch_add(1, Relaxed);
    }

    /// Calls taken.
    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// Calls under way.
    pub fn in_flight(&self) -> u64 {
        let ended = self.ended.load(Relaxed);
        self.requests.load(Relaxed).saturating_sub(ended)
    }

    /// Bytes of requests.
    pub fn request_bytes(&self) -> u64 {
        self.request_bytes.load(Relaxed)
    }

    /// Bytes of answers that are over.
    pub fn response_bytes(&self) -> u64 {
        self.response_bytes.load(Relaxed)
    }

    /// Answers that their callers cut short.
    pub fn cancelled(&self) -> u64 {
        self.cancelled.load(Relaxed)
    }

    /// Calls that went wrong this way.
    pub fn errors(&self, error: CallError) -> u64 {
        self.errors[error as usize].load(Relaxed)
    }

    /// Durations: how many calls took at most as long as each bound, how many there were, and their sum in seconds.
    pub fn durations(&self) -> ([u64; DURATION_BOUNDS.len()], u64, f64) {
        let mut sum = 0;
        let up_to = std::array::from_fn(|index| {
            sum += self.durations[index].load(Relaxed);
            sum
        });
        let all = sum + self.durations[DURATION_BOUNDS.len()].load(Relaxed);
        let seconds = Duration::from_micros(self.duration_us.load(Relaxed)).as_secs_f64();
        (up_to, all, seconds)
    }
}

impl Drop for CallInFlight {
    fn drop(&mut self) {
        self.figures.observe(self.began.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_in_flight_until_they_end_and_fall_into_buckets() {
        let figures = Arc::<EndpointFigures>::default();
        let (one, other) = (figures.begin(10), figures.begin(5));
        assert_eq!(
            (figures.requests(), figures.in_flight(), figures.request_bytes()),
            (2, 2, 15)
        );
        drop(one);
        assert_eq!((figures.in_flight(), figures.durations().1), (1, 1));
        drop(other);
        figures.observe(Duration::from_millis(5));
        figures.observe(Duration::from_secs(700));
        let (up_to, all, seconds) = figures.durations();
        assert_eq!((up_to[16], all), (3, 4));
        assert!(up_to[0] >= 1 && seconds > 700.0, "{up_to:?} {seconds}");
        for error in CallError::ALL {
            figures.count_error(error);
            assert_eq!(figures.errors(error), 1, "{}", error.name());
        }
    }
}
