//! Requests to a rank from inside the process, without a wire.

use actix::Addr;
use actix::dev::SendError;

use super::kv_listener::{KvListener, ListenKv};
use super::rank::{Cancel, Rank, Submit};
use crate::transport::intake::{Intake, Refusal, Submission};
use crate::types::RequestId;

/// Way in to one rank; it closes when the rank ends. A rank that a submission asks for is not looked at.
#[derive(Debug, Clone)]
pub struct RankDoor(Addr<Rank>);

impl RankDoor {
    /// The door of this rank.
    pub fn new(rank: Addr<Rank>) -> Self {
        Self(rank)
    }

    /// From now on `listener` hears of every change of the rank's cache that its stream announces.
    pub fn listen(&self, listener: KvListener) {
        self.0.do_send(ListenKv(listener));
    }
}

impl Intake for RankDoor {
    fn submit(&self, submission: Submission) -> Result<(), Refusal> {
        self.0.try_send(Submit(submission)).map_err(|error| match error {
            SendError::Full(_) => Refusal::Overloaded,
            SendError::Closed(_) => Refusal::Unavailable,
        })
    }

    fn cancel(&self, id: RequestId) {
        // Past the mailbox's bound: a cancellation frees what the bound protects.
        self.0.do_send(Cancel(id));
    }
}
