//! The requests of one worker's HTTP face that are under way, for whoever asks why one takes so long.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::mailbox::Mailbox;
use crate::transport::held::HeldRequests;
use crate::types::RequestId;

/// Who asks for an answer.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    /// Id of the request, the client's own or one that was made up.
    pub(super) id: String,
    /// Id of the answer.
    pub(super) answer: String,
    /// Where the client is.
    pub(super) address: Option<SocketAddr>,
}

impl Caller {
    /// Where the client is, in words.
    pub(super) fn whereabouts(&self) -> String {
        match self.address {
            Some(address) => format!("http client {address}"),
            None => "an HTTP client".to_owned(),
        }
    }
}

/// One request under way.
#[derive(Debug)]
pub struct OpenRequest {
    caller: Caller,
    /// Handles in this process, one per choice.
    choices: Vec<RequestId>,
    accepted: Instant,
    mailbox: Arc<Mailbox>,
}

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The engine has admitted one of its choices.
    pub admitted: bool,
    /// Every choice has ended, one way or another.
    pub ended: bool,
    /// Tokens generated, of all choices.
    pub tokens: u32,
    /// Events that wait for the client to read them, a token each.
    pub pending: usize,
}

impl OpenRequest {
    /// Id of its answer, as the client sees it.
    pub fn answer_id(&self) -> &str {
        &self.caller.answer
    }

    /// Where the client is, in words.
    pub fn whereabouts(&self) -> String {
        self.caller.whereabouts()
    }

    /// Handles in this process, one per choice.
    pub fn choices(&self) -> &[RequestId] {
        &self.choices
    }

    /// Since it was accepted.
    pub fn age(&self) -> Duration {
        self.accepted.elapsed()
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.mailbox.progress(self.choices.len())
    }
}

/// The requests of one worker that are under way.
#[derive(Debug, Default)]
pub struct OpenRequests {
    open: Mutex<FxHashMap<u64, Arc<OpenRequest>>>,
    accepted: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
    held: Arc<HeldRequests>,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Its whole answer was generated.
    Completed,
    /// The worker refused it or could not go on.
    Failed,
    /// The client left.
    Cancelled,
}

/// Held as long as a request is under way.
pub(super) struct Seat {
    open: Arc<OpenRequests>,
    number: u64,
    /// As it will be counted.
    pub(super) outcome: Outcome,
}

impl OpenRequests {
    pub(super) fn begin(self: &Arc<Self>, caller: Caller, choices: Vec<RequestId>, mailbox: &Arc<Mailbox>) -> Seat {
        let number = self.accepted.fetch_add(1, Ordering::Relaxed);
        let request = OpenRequest {
            caller,
            choices,
            accepted: Instant::now(),
            mailbox: Arc::clone(mailbox),
        };
        self.lock().insert(number, Arc::new(request));
        Seat {
            open: Arc::clone(self),
            number,
            outcome: Outcome::Cancelled,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FxHashMap<u64, Arc<OpenRequest>>> {
        // Nothing in here panics while the lock is held.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub fn active(&self) -> u32 {
        u32::try_from(self.lock().len()).unwrap_or(u32::MAX)
    }

    /// Those that a fault keeps from being looked at; none of the others.
    pub fn held(&self) -> &Arc<HeldRequests> {
        &self.held
    }

    /// How many there have been.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Those whose whole answer was generated.
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    /// Those that the worker refused or could not go on with.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Those whose client left.
    pub fn cancelled(&self) -> u64 {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// All of them, oldest first.
    pub fn list(&self) -> Vec<Arc<OpenRequest>> {
        let mut numbered: Vec<_> = {
            let open = self.lock();
            open.iter()
                .map(|(number, request)| (*number, Arc::clone(request)))
                .collect()
        };
        numbered.sort_by_key(|(number, _)| *number);
        numbered.into_iter().map(|(_, request)| request).collect()
    }

    /// Those with this id, of the request or of its answer; clients may use one again.
    pub fn find(&self, id: &str) -> Vec<Arc<OpenRequest>> {
        let is_it = |request: &&Arc<OpenRequest>| request.caller.id == id || request.caller.answer == id;
        self.lock().values().filter(is_it).cloned().collect()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let ended = match self.outcome {
            Outcome::Completed => &self.open.completed,
            Outcome::Failed => &self.open.failed,
            Outcome::Cancelled => &self.open.cancelled,
        };
        ended.fetch_add(1, Ordering::Relaxed);
        let mut open = self.open.lock();
        open.remove(&self.number);
        // A burst must not keep its memory for ever.
        if open.is_empty() && open.capacity() > 1024 {
            open.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::FinishReason;

    #[test]
    fn a_request_is_found_by_its_id_and_by_that_of_its_answer_until_it_is_over() {
        let open = Arc::new(OpenRequests::default());
        let mailbox = Mailbox::new(10);
        let caller = Caller {
            id: "mine".to_owned(),
            answer: "cmpl-mine".to_owned(),
            address: None,
        };
        let seat = open.begin(caller, vec![RequestId(4), RequestId(5)], &mailbox);
        for id in ["mine", "cmpl-mine"] {
            assert_eq!(open.find(id)[0].choices(), [RequestId(4), RequestId(5)], "{id}");
        }
        assert!(open.find("cmpl").is_empty());
        let request = &open.list()[0];
        let progress = |admitted, ended, tokens, pending| Progress {
            admitted,
            ended,
            tokens,
            pending,
        };
        assert_eq!(request.progress(), progress(false, false, 0, 0));
        let (first, second) = (mailbox.sink(0), mailbox.sink(1));
        first.admitted(3);
        first.token(1, Some(FinishReason::Length));
        assert_eq!(request.progress(), progress(true, false, 1, 2));
        second.token(1, None);
        second.finished(FinishReason::Length);
        assert_eq!(request.progress(), progress(true, true, 2, 4));
        assert_eq!((open.active(), open.accepted()), (1, 1));
        drop(seat);
        assert!(open.find("mine").is_empty());
        assert_eq!((open.active(), open.accepted()), (0, 1));
    }
}
