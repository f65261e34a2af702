//! Faults at a worker's door: requests that are refused, and answers that do not go their way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::faults::WorkerFaults;
use crate::faults::kind::{AdmissionFault, AnswerFault, DoorFault};
use crate::faults::table::Due;
use crate::transport::intake::{Failure, Refusal, Submission, TokenSink};
use crate::types::{FinishReason, Token};

/// Whether the door stays shut.
#[inline]
pub(super) fn knock(faults: &WorkerFaults) -> Result<(), Refusal> {
    match faults.ask::<DoorFault>().pop() {
        None => Ok(()),
        Some(DoorFault::Refuse {}) => Err(Refusal::Overloaded),
    }
}

/// What comes in, as the rank gets it; `None`: it has failed already.
#[inline]
pub(super) fn admit(faults: &WorkerFaults, mut submission: Submission) -> Option<Submission> {
    if let Some(AdmissionFault::Reject { message, invalid }) = faults.ask::<AdmissionFault>().pop() {
        submission.sink.failed(&if invalid {
            Failure::InvalidRequest(message)
        } else {
            Failure::Internal(message)
        });
        submission.sink.flush();
        return None;
    }
    for fault in faults.draw::<AnswerFault>() {
        let (left, then) = match &*fault {
            AnswerFault::Cut { tokens } => (*tokens, Then::Break),
            AnswerFault::ErrorItem { after_tokens, message } => (*after_tokens, Then::Fail(message.clone())),
            AnswerFault::BlackHole { after_tokens } => (*after_tokens, Then::Silence),
        };
        submission.sink = Arc::new(Spoiled {
            inner: submission.sink,
            left: AtomicU32::new(left),
            then,
            fault,
            over: AtomicBool::new(false),
        });
    }
    Some(submission)
}

/// What comes after the tokens that still go out.
enum Then {
    Break,
    Fail(String),
    Silence,
}

/// A sink that does not hear the answer to its end.
struct Spoiled {
    inner: Arc<dyn TokenSink>,
    left: AtomicU32,
    then: Then,
    fault: Due<AnswerFault>,
    over: AtomicBool,
}

impl Spoiled {
    /// Whether something may still be said; brings the end when not.
    fn may_speak(&self) -> bool {
        if self.left.load(Relaxed) > 0 {
            return true;
        }
        if !self.over.swap(true, Relaxed) {
            self.fault.happened();
            match &self.then {
                Then::Break => {
                    // What was said before is on the wire before the connection goes.
                    self.inner.flush();
                    self.inner.broken();
                }
                Then::Fail(message) => self.inner.failed(&Failure::Internal(message.clone())),
                Then::Silence => {}
            }
        }
        false
    }
}

impl TokenSink for Spoiled {
    fn admitted(&self, cached_tokens: u32) {
        self.inner.admitted(cached_tokens);
    }

    fn token(&self, token: Token, finish: Option<FinishReason>) {
        if self.may_speak() {
            // Called from the rank's thread alone.
            self.left.fetch_sub(1, Relaxed);
            self.inner.token(token, finish);
        }
    }

    fn finished(&self, finish: FinishReason) {
        if self.may_speak() {
            self.inner.finished(finish);
        }
    }

    fn failed(&self, failure: &Failure) {
        if self.may_speak() {
            self.inner.failed(failure);
        }
    }

    fn flush(&self) -> bool {
        let alive = self.inner.flush();
        // An answer that is over takes no more tokens; one that fell silent looks alive.
        alive && (!self.over.load(Relaxed) || matches!(self.then, Then::Silence))
    }

    fn broken(&self) {
        if !self.over.load(Relaxed) || matches!(self.then, Then::Silence) {
            self.inner.broken();
        }
    }
}
