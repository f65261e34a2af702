//! Where a plane hands requests in and where it gets tokens back: the seam between sockets and actors.
//!
//! A plane (TCP request plane, HTTP face, ...) decodes bytes into a [`Submission`] and gives it to an [`Intake`]; the
//! rank that runs it answers through the submission's [`TokenSink`]. Neither side knows the other's types.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::xxh3_64;

use super::rendezvous::Meeting;
use crate::types::{DpRank, EngineRequest, FinishReason, RequestId, Token, Tokens};

/// One request on its way to a rank.
pub struct Submission {
    /// What to run.
    pub request: EngineRequest,
    /// Rank asked for by the client; `None`: the worker chooses.
    pub dp_rank: Option<DpRank>,
    /// Which part of a disaggregated request it is.
    pub leg: Leg,
    /// Where the answer goes.
    pub sink: Arc<dyn TokenSink>,
}

/// Part of a disaggregated request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leg {
    /// All of it, as far as the router says.
    Whole,
    /// The answer to a prompt whose KV has arrived.
    Prefilled,
    /// Either half; the other one is met at a rendezvous.
    Met(Box<Meeting>),
}

/// Takes requests for one worker. Cheap to call from any thread; never blocks.
pub trait Intake: Send + Sync {
    /// Whether the worker would look at a further request at all; asked once for each, before anything else, with the id
    /// that the caller gave it.
    ///
    /// # Errors
    /// [`Refusal`] when not.
    fn knock(&self, _client_id: &str) -> Result<(), Refusal> {
        Ok(())
    }

    /// Queues a submission. From then on its sink hears of it exactly once more in a final way (`finished`, `failed`
    /// or `broken`), unless it is cancelled first.
    ///
    /// # Errors
    /// [`Refusal`] when the worker does not take it; the sink was not called.
    fn submit(&self, submission: Submission) -> Result<(), Refusal>;

    /// One rank for requests that belong together: the one asked for, else the worker's choice.
    ///
    /// # Errors
    /// As [`Self::submit`].
    fn choose_rank(&self, asked: Option<DpRank>) -> Result<DpRank, Refusal> {
        Ok(asked.unwrap_or(DpRank(0)))
    }

    /// The recorded answer of that name, if the worker has recordings and this one is among them.
    fn recorded(&self, _name: &str) -> Option<Tokens> {
        None
    }

    /// The client is gone: frees the request wherever it is. Unknown ids are ignored; the sink is not called again.
    fn cancel(&self, id: RequestId);
}

/// The worker does not take a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Too many requests already.
    #[error("worker at capacity")]
    Overloaded,
    /// Draining, starting up or dead.
    #[error("worker is not taking requests")]
    Unavailable,
    /// The request can never be served as it is.
    #[error("{0}")]
    Invalid(String),
}

/// Why a request failed after it had been taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The request itself is at fault (the client sees a 400 where the plane can say so).
    InvalidRequest(String),
    /// The worker is shutting down; another one may take over.
    ShuttingDown,
    /// Anything else.
    Internal(String),
}

/// The way back of one answer. Called from the rank's thread: implementations never block and never wait.
pub trait TokenSink: Send + Sync {
    /// The engine has admitted the request; `cached_tokens` of its prompt came from the prefix cache.
    fn admitted(&self, cached_tokens: u32);

    /// One token, in order. `finish` is set on the last. Nothing has to reach the wire before `flush`.
    fn token(&self, token: Token, finish: Option<FinishReason>);

    /// The answer ended without a further token.
    fn finished(&self, finish: FinishReason);

    /// The request failed.
    fn failed(&self, failure: &Failure);

    /// Puts what has been said on the wire. Called once per pass. `false`: the reader is gone or too slow, and the
    /// request has to be cancelled.
    fn flush(&self) -> bool;

    /// The worker died: the stream breaks off as it would with a dead process (no final item, connection reset).
    fn broken(&self);
}

/// Seed of the generated tokens of answer number `choice` to one request: by the client's own seed where it gave one, else by
/// its id.
pub fn token_key(seed: Option<i64>, client_id: &str, choice: usize) -> u64 {
    let origin = match seed {
        Some(seed) => format!("seed {seed}").into(),
        None => std::borrow::Cow::Borrowed(client_id),
    };
    match choice {
        0 => xxh3_64(origin.as_bytes()),
        _ => xxh3_64(format!("{origin} choice {choice}").as_bytes()),
    }
}

/// A handle for a new request, unique in the process.
pub fn next_request_id() -> RequestId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    RequestId(NEXT.fetch_add(1, Ordering::Relaxed))
}
