//! Listens to one request's answer and stamps every token.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crossbeam_channel::Sender;

use crate::replay::Answer;
use crate::router::Target;
use crate::transport::intake::{Failure, TokenSink};
use crate::types::{FinishReason, KvEvent, SimTime, TierEvent, Token};

/// What the driver has to know at once.
#[derive(Debug)]
pub(super) enum Heard {
    /// A request has its first token, which is not its last.
    FirstToken(u64),
    /// A prefill worker is done with a request.
    PromptOver(u64, Answer),
    /// A request ended.
    Over(u64, Answer),
    /// A rank announced changes of its cache.
    Cache(Target, Vec<KvEvent>, Vec<TierEvent>),
    /// A worker died.
    Broken,
}

/// See the module's text. Called from the rank's thread: it takes a lock that nobody else wants.
pub(super) struct LiveSink {
    id: u64,
    /// Of the half that computes the prompt.
    prompt: bool,
    epoch: Instant,
    answer: Mutex<Answer>,
    sender: Sender<Heard>,
}

impl LiveSink {
    pub(super) fn new(id: u64, prompt: bool, epoch: Instant, sender: Sender<Heard>) -> Self {
        Self {
            id,
            prompt,
            epoch,
            answer: Mutex::default(),
            sender,
        }
    }

    fn now(&self) -> SimTime {
        SimTime::ZERO + self.epoch.elapsed()
    }

    fn say(&self, heard: Heard) {
        // A driver that stopped listening has its report already.
        let _ = self.sender.send(heard);
    }

    fn over(&self, completed: bool) {
        let mut answer = std::mem::take(&mut *self.answer.lock().unwrap_or_else(PoisonError::into_inner));
        answer.completed = completed;
        self.say(if self.prompt {
            Heard::PromptOver(self.id, answer)
        } else {
            Heard::Over(self.id, answer)
        });
    }
}

impl TokenSink for LiveSink {
    fn admitted(&self, cached_tokens: u32) {
        let now = self.now();
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        answer.admitted.get_or_insert((now, cached_tokens));
    }

    fn token(&self, _token: Token, finish: Option<FinishReason>) {
        let now = self.now();
        let first = {
            let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
            answer.tokens.push(now);
            answer.tokens.len() == 1
        };
        match finish {
            Some(_) => self.over(true),
            None if first && !self.prompt => self.say(Heard::FirstToken(self.id)),
            None => {}
        }
    }

    fn finished(&self, _finish: FinishReason) {
        self.over(true);
    }

    fn failed(&self, _failure: &Failure) {
        self.over(false);
    }

    fn flush(&self) -> bool {
        true
    }

    fn broken(&self) {
        self.say(Heard::Broken);
    }
}
