//! The recovery endpoint of a rank's KV stream: a router asks here for what it missed.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use tokio::sync::Semaphore;

use super::kv_publisher::{KvPublisher, Recover};
use crate::transport::request_plane::call_home::{self, AnswerLimits};
use crate::transport::request_plane::endpoint::{Call, Endpoint};
use crate::transport::request_plane::tcp::frame::Ack;
use crate::transport::request_plane::two_part;

/// Queries that may be under way in the whole process; a starting router asks all ranks at once.
pub(super) const MAX_QUERIES: usize = 4096;

/// Answers that may be on the wire at once, so that a dump storm does not take every descriptor.
pub(super) const MAX_ANSWERS: usize = 64;

/// Time for the publisher to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bounds shared by all recovery endpoints of the process.
#[derive(Debug, Clone)]
pub(super) struct RecoveryLimits {
    queries: Arc<Semaphore>,
    answers: Arc<Semaphore>,
}

impl Default for RecoveryLimits {
    fn default() -> Self {
        Self {
            queries: Arc::new(Semaphore::new(MAX_QUERIES)),
            answers: Arc::new(Semaphore::new(MAX_ANSWERS)),
        }
    }
}

/// One rank's recovery endpoint.
pub(super) struct RecoveryEndpoint {
    pub(super) publisher: Addr<KvPublisher>,
    pub(super) limits: RecoveryLimits,
}

impl RecoveryEndpoint {
    async fn answer(&self, Call { control, body }: Call) {
        let Ok(_turn) = self.limits.answers.acquire().await else {
            return;
        };
        let query = self.publisher.send(Recover {
            codec: control.codec,
            body,
        });
        // A publisher that died or hangs: the router sees a broken stream and asks again.
        let Ok(Ok(item)) = tokio::time::timeout(PATIENCE, query).await else {
            return;
        };
        let mut frame = Vec::with_capacity(item.len() + two_part::PREFIX_BYTES);
        two_part::write(&mut frame, b"", &item);
        if let Err(error) = call_home::answer_once(&control, &frame, &AnswerLimits::default()).await {
            tracing::debug!(address = %control.address, %error, "recovery answer was not taken");
        }
    }
}

impl Endpoint for RecoveryEndpoint {
    fn accept(self: Arc<Self>, call: Call) -> Ack {
        let Ok(permit) = Arc::clone(&self.limits.queries).try_acquire_owned() else {
            return Ack::Overloaded("too many recovery queries".to_owned());
        };
        tokio::spawn(async move {
            self.answer(call).await;
            drop(permit);
        });
        Ack::Accepted
    }
}
