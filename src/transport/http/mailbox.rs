//! The way from the rank's thread to the task of one HTTP request.
//!
//! All choices of a request share one mailbox. The rank never waits: it appends, and wakes the reader once per pass. What
//! a reader does not take piles up to a limit; then the request is given up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;

use super::open::Progress;
use crate::transport::intake::{Failure, TokenSink};
use crate::types::{FinishReason, Token};

/// What a rank said of one choice.
#[derive(Debug)]
pub(super) enum Event {
    /// Admitted with so many prompt tokens from the cache.
    Admitted(u32),
    Token(Token, Option<FinishReason>),
    Finished(FinishReason),
    Failed(Failure),
    /// The worker died, or the reader was too slow.
    Broken,
}

/// Events of all choices of one request, in order.
#[derive(Debug)]
pub(super) struct Mailbox {
    inner: Mutex<Inner>,
    reader: AtomicWaker,
    max_pending: usize,
}

#[derive(Debug, Default)]
struct Inner {
    events: Vec<(usize, Event)>,
    /// Nobody takes events any more.
    closed: bool,
    /// A choice has been admitted.
    admitted: bool,
    /// Choices that have ended.
    ended: usize,
    /// Tokens of all choices.
    tokens: u32,
}

impl Mailbox {
    /// At most `max_pending` events wait for the reader.
    pub(super) fn new(max_pending: usize) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::default(),
            reader: AtomicWaker::new(),
            max_pending,
        })
    }

    /// The sink of one choice.
    pub(super) fn sink(self: &Arc<Self>, choice: usize) -> Arc<dyn TokenSink> {
        Arc::new(ChoiceSink {
            mailbox: Arc::clone(self),
            choice,
        })
    }

    /// Moves what is there to `out`, which must be empty; pending when nothing is.
    pub(super) fn poll_take(&self, cx: &mut Context<'_>, out: &mut Vec<(usize, Event)>) -> Poll<()> {
        self.reader.register(cx.waker());
        let mut inner = self.lock();
        if inner.events.is_empty() {
            return Poll::Pending;
        }
        std::mem::swap(&mut inner.events, out);
        Poll::Ready(())
    }

    /// The reader is gone.
    pub(super) fn close(&self) {
        let mut inner = self.lock();
        inner.events = Vec::new();
        inner.closed = true;
    }

    /// How far a request of so many choices is.
    pub(super) fn progress(&self, choices: usize) -> Progress {
        let inner = self.lock();
        Progress {
            admitted: inner.admitted,
            ended: inner.closed || inner.ended >= choices,
            tokens: inner.tokens,
            pending: inner.events.len(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing in here panics while the lock is held.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, choice: usize, event: Event) {
        let mut inner = self.lock();
        if inner.closed {
            return;
        }
        if inner.events.len() >= self.max_pending {
            metrics::counter!("ghostfleet_streams_cancelled_total", "reason" => "slow_reader").increment(1);
            inner.events = vec![(choice, Event::Broken)];
            inner.closed = true;
            drop(inner);
            self.reader.wake();
        } else {
            inner.note(&event);
            inner.events.push((choice, event));
        }
    }
}

impl Inner {
    fn note(&mut self, event: &Event) {
        let (tokens, ended) = match event {
            Event::Admitted(_) => (0, false),
            Event::Token(_, finish) => (1, finish.is_some()),
            Event::Finished(_) | Event::Failed(_) | Event::Broken => (0, true),
        };
        self.admitted |= matches!(event, Event::Admitted(_) | Event::Token(..));
        self.tokens = self.tokens.saturating_add(tokens);
        self.ended += usize::from(ended);
    }
}

struct ChoiceSink {
    mailbox: Arc<Mailbox>,
    choice: usize,
}

impl TokenSink for ChoiceSink {
    fn admitted(&self, cached_tokens: u32) {
        self.mailbox.put(self.choice, Event::Admitted(cached_tokens));
    }

    fn token(&self, token: Token, finish: Option<FinishReason>) {
        self.mailbox.put(self.choice, Event::Token(token, finish));
    }

    fn finished(&self, finish: FinishReason) {
        self.mailbox.put(self.choice, Event::Finished(finish));
    }

    fn failed(&self, failure: &Failure) {
        self.mailbox.put(self.choice, Event::Failed(failure.clone()));
        self.mailbox.reader.wake();
    }

    fn flush(&self) -> bool {
        self.mailbox.reader.wake();
        !self.mailbox.lock().closed
    }

    fn broken(&self) {
        self.mailbox.put(self.choice, Event::Broken);
        self.mailbox.reader.wake();
    }
}

#[cfg(test)]
mod tests {
    use futures::task::noop_waker_ref;

    use super::*;

    fn take(mailbox: &Mailbox) -> Vec<(usize, Event)> {
        let mut out = Vec::new();
        let _ = mailbox.poll_take(&mut Context::from_waker(noop_waker_ref()), &mut out);
        out
    }

    #[test]
    fn events_arrive_in_order_with_their_choice() {
        let mailbox = Mailbox::new(10);
        let (first, second) = (mailbox.sink(0), mailbox.sink(1));
        first.token(7, None);
        second.token(8, Some(FinishReason::Length));
        assert!(first.flush() && second.flush());
        let taken = take(&mailbox);
        assert!(matches!(
            taken[..],
            [
                (0, Event::Token(7, None)),
                (1, Event::Token(8, Some(FinishReason::Length)))
            ]
        ));
        assert!(take(&mailbox).is_empty());
    }

    #[test]
    fn a_full_mailbox_gives_the_request_up() {
        let mailbox = Mailbox::new(2);
        let sink = mailbox.sink(0);
        sink.token(1, None);
        sink.token(2, None);
        assert!(sink.flush());
        sink.token(3, None);
        assert!(!sink.flush());
        assert!(matches!(take(&mailbox)[..], [(0, Event::Broken)]));
        sink.token(4, None);
        assert!(take(&mailbox).is_empty());
    }

    #[test]
    fn a_closed_mailbox_tells_the_rank() {
        let mailbox = Mailbox::new(2);
        let sink = mailbox.sink(0);
        sink.token(1, None);
        mailbox.close();
        assert!(!sink.flush());
        assert!(take(&mailbox).is_empty());
    }
}
