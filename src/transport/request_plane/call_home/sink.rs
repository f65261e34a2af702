//! Buffer and socket of one answer.
//!
//! The rank's thread appends items and, once per pass, tries to write them at once: no task is woken and no byte is
//! copied twice as long as the reader keeps up. When the socket is full the rest stays here and the stream's task
//! takes over; a reader that falls too far behind is given up, and never holds anyone else up.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::AnswerLimits;
use super::content::Content;
use super::socket::ResponseSocket;
use crate::faults::kind::ResponseFault;
use crate::faults::table::Due;
use crate::transport::intake::{Failure, TokenSink};
use crate::transport::request_plane::Codec;
use crate::transport::request_plane::request::Asked;
use crate::transport::request_plane::response::{self, Extras, Usage};
use crate::types::{FinishReason, Token};

/// Where an answer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Tokens may come.
    Open,
    /// The last frame has been said; `flushed` when it is on the wire.
    Ended {
        /// Nothing is left in the buffer.
        flushed: bool,
    },
    /// The worker died: reset the connection.
    Broken,
    /// The reader is gone or too slow: reset the connection.
    GivenUp,
}

#[derive(Debug)]
struct Out {
    buffer: Vec<u8>,
    /// Bytes at the front of `buffer` that are on the wire already.
    written: usize,
    /// The socket has taken all of it but not sent all of it.
    inside: bool,
    phase: Phase,
    /// Bytes that the socket has taken.
    sent: u64,
    completion_tokens: u32,
    cached_tokens: u32,
    admitted: bool,
    /// Answers that have not ended.
    open_choices: u32,
    /// An error was said.
    failed: bool,
}

impl Out {
    /// Bytes that are not on the wire; what is inside the socket counts as one.
    fn pending_bytes(&self) -> usize {
        self.buffer.len() - self.written + usize::from(self.inside)
    }
}

/// One answer on its way.
#[derive(Debug)]
pub struct SocketSink {
    stream: Arc<ResponseSocket>,
    codec: Codec,
    prompt_tokens: u32,
    asked: Asked,
    /// Of a prefill worker: what its token carries for the decode leg.
    disaggregated_params: Option<Arc<serde_json::Value>>,
    max_pending_bytes: usize,
    /// What is wrong with its frames; mostly nothing.
    content: Option<Box<Content>>,
    out: Mutex<Out>,
    wake: Notify,
}

impl SocketSink {
    /// An answer on a freshly dialled socket; handshake and prologue are buffered.
    pub fn new(
        stream: Arc<ResponseSocket>,
        (subject, codec): (&str, Codec),
        prompt_tokens: u32,
        asked: Asked,
        disaggregated_params: Option<Arc<serde_json::Value>>,
        limits: &AnswerLimits,
        faults: Vec<Due<ResponseFault>>,
    ) -> Arc<Self> {
        let content = (!faults.is_empty()).then(|| Box::new(Content::of(faults)));
        let mut buffer = Vec::with_capacity(512);
        response::write_handshake(&mut buffer, subject);
        match content.as_ref().and_then(|content| content.no_prologue.as_ref()) {
            Some(fault) => fault.happened(),
            None => response::write_prologue(&mut buffer),
        }
        let out = Out {
            buffer,
            written: 0,
            inside: false,
            phase: Phase::Open,
            sent: 0,
            completion_tokens: 0,
            cached_tokens: 0,
            admitted: false,
            open_choices: asked.choices,
            failed: false,
        };
        let max_pending_bytes = limits.max_pending_bytes;
        Arc::new(Self {
            stream,
            codec,
            prompt_tokens,
            asked,
            disaggregated_params,
            max_pending_bytes,
            content,
            out: Mutex::new(out),
            wake: Notify::new(),
        })
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        // A panic while the lock was held leaves at worst a half-written frame, and the stream is broken off then.
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when the stream's task has something to do.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Where the answer stands.
    pub fn phase(&self) -> Phase {
        self.out().phase
    }

    /// Bytes that wait for the reader.
    pub fn pending_bytes(&self) -> usize {
        self.out().pending_bytes()
    }

    /// Bytes that the socket has taken so far.
    pub fn sent_bytes(&self) -> u64 {
        self.out().sent
    }

    /// Whether the engine has begun with it.
    pub fn is_admitted(&self) -> bool {
        self.out().admitted
    }

    /// Tokens said so far.
    pub fn tokens(&self) -> u32 {
        self.out().completion_tokens
    }

    /// Whether it ended with an error.
    pub(super) fn has_failed(&self) -> bool {
        self.out().failed
    }

    /// Gives the answer up: nothing is written any more.
    pub(super) fn give_up(&self) {
        self.set_phase(Phase::GivenUp);
    }

    fn set_phase(&self, phase: Phase) {
        let mut out = self.out();
        out.phase = phase;
        out.buffer = Vec::new();
        out.written = 0;
        out.inside = false;
    }

    /// Writes what the socket takes right now. Returns whether anything went out.
    ///
    /// # Errors
    /// The socket's, when the peer is gone.
    pub(super) fn drain(&self) -> io::Result<bool> {
        self.drain_locked(&mut self.out())
    }

    fn drain_locked(&self, out: &mut Out) -> io::Result<bool> {
        let mut progress = false;
        while out.written < out.buffer.len() {
            match self.stream.try_write(&out.buffer[out.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    out.written += bytes;
                    out.sent += bytes as u64;
                    progress = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(progress),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        match self.stream.try_flush() {
            Ok(()) => out.inside = false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                out.inside = true;
                return Ok(progress);
            }
            Err(error) => return Err(error),
        }
        out.buffer.clear();
        out.written = 0;
        if out.phase == (Phase::Ended { flushed: false }) {
            out.phase = Phase::Ended { flushed: true };
        }
        Ok(progress)
    }

    fn usage(&self, out: &Out) -> Usage {
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: out.completion_tokens,
            cached_tokens: out.cached_tokens,
        }
    }

    fn end(&self, out: &mut Out) {
        let finals = self.content.as_ref().map_or(1, |content| content.finals());
        for _ in 0..finals {
            response::write_final(&mut out.buffer, self.codec);
        }
        response::write_sentinel(&mut out.buffer);
        out.phase = Phase::Ended { flushed: false };
    }

    /// The way back of answer number `index`.
    pub(super) fn choice(self: &Arc<Self>, index: u32) -> Arc<dyn TokenSink> {
        let shared = Arc::clone(self);
        if self.asked.choices == 1 {
            shared
        } else {
            Arc::new(ChoiceSink { shared, index })
        }
    }

    fn item(&self, index: Option<u32>, token: Option<Token>, finish: Option<FinishReason>) {
        let mut out = self.out();
        if out.phase != Phase::Open {
            return;
        }
        if token.is_some()
            && let Some(content) = &self.content
        {
            content.before_token(out.completion_tokens, &mut out.buffer);
        }
        out.completion_tokens += u32::from(token.is_some());
        let usage = finish.map(|_| self.usage(&out));
        let extras = Extras {
            index,
            logprobs: self.asked.logprobs,
        };
        match (&self.disaggregated_params, token) {
            (Some(params), Some(token)) => {
                response::write_prefilled(&mut out.buffer, self.codec, token, params);
                if finish.is_some() {
                    response::write_item_with(&mut out.buffer, self.codec, None, finish, usage, extras);
                }
            }
            _ => response::write_item_with(&mut out.buffer, self.codec, token, finish, usage, extras),
        }
        if finish.is_some() {
            out.open_choices = out.open_choices.saturating_sub(1);
            if out.open_choices == 0 {
                self.end(&mut out);
            }
        }
    }
}

/// One of several answers that share a socket.
struct ChoiceSink {
    shared: Arc<SocketSink>,
    index: u32,
}

impl TokenSink for ChoiceSink {
    fn admitted(&self, cached_tokens: u32) {
        // The answers share the prompt: what the first one found in the cache is the request's.
        if self.index == 0 {
            self.shared.admitted(cached_tokens);
        }
    }

    fn token(&self, token: Token, finish: Option<FinishReason>) {
        self.shared.item(Some(self.index), Some(token), finish);
    }

    fn finished(&self, finish: FinishReason) {
        self.shared.item(Some(self.index), None, Some(finish));
    }

    fn failed(&self, failure: &Failure) {
        self.shared.failed(failure);
    }

    fn flush(&self) -> bool {
        self.shared.flush()
    }

    fn broken(&self) {
        self.shared.broken();
    }
}

impl TokenSink for SocketSink {
    fn admitted(&self, cached_tokens: u32) {
        let mut out = self.out();
        out.cached_tokens = cached_tokens;
        out.admitted = true;
    }

    fn token(&self, token: Token, finish: Option<FinishReason>) {
        self.item(None, Some(token), finish);
    }

    fn finished(&self, finish: FinishReason) {
        self.item(None, None, Some(finish));
    }

    fn failed(&self, failure: &Failure) {
        let mut out = self.out();
        if out.phase == Phase::Open {
            response::write_failure(&mut out.buffer, self.codec, failure);
            out.failed = true;
            self.end(&mut out);
        }
    }

    fn flush(&self) -> bool {
        let mut out = self.out();
        if matches!(out.phase, Phase::Broken | Phase::GivenUp) {
            return false;
        }
        if self.drain_locked(&mut out).is_err() {
            drop(out);
            self.give_up();
            self.wake.notify_one();
            return false;
        }
        let pending = out.pending_bytes();
        if pending > self.max_pending_bytes {
            drop(out);
            metrics::counter!("ghostfleet_streams_cancelled_total", "reason" => "slow_reader").increment(1);
            self.give_up();
            self.wake.notify_one();
            return false;
        }
        if pending > 0 || matches!(out.phase, Phase::Ended { .. }) {
            drop(out);
            self.wake.notify_one();
        }
        true
    }

    fn broken(&self) {
        if !matches!(self.phase(), Phase::Ended { flushed: true }) {
            self.set_phase(Phase::Broken);
        }
        self.wake.notify_one();
    }
}
