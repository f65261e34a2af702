//! Bodies of the answers: whole ones, and streams of server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::answer::{self, Envelope};
use super::error::ApiError;
use super::faults::Garbage;
use super::generation::{Generation, Interrupted};
use super::plan::{Plan, StreamPlan};

/// Body of any answer of the face.
pub(super) enum FaceBody {
    /// Known as a whole.
    Whole(Option<Bytes>),
    /// Server-sent events.
    Events(Box<EventStream>),
}

impl FaceBody {
    pub(super) fn empty() -> Self {
        Self::Whole(None)
    }

    pub(super) fn text(text: String) -> Self {
        Self::Whole(Some(text.into()))
    }
}

impl Body for FaceBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Events(stream) => stream
                .poll_events(cx)
                .map(|events| events.map(|events| Ok(Frame::data(events)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

/// A streamed answer.
pub(super) struct EventStream {
    /// `None` once everything has been said.
    generation: Option<Generation>,
    plan: Plan,
    told: StreamPlan,
    envelope: Envelope,
    opened: bool,
    /// Tokens told, of all choices.
    tokens: usize,
    garbage: Option<Garbage>,
    /// Resets the connection.
    reset: CancellationToken,
}

impl EventStream {
    pub(super) fn new(
        generation: Generation,
        plan: Plan,
        told: StreamPlan,
        envelope: Envelope,
        garbage: Option<Garbage>,
        reset: CancellationToken,
    ) -> Self {
        Self {
            generation: Some(generation),
            plan,
            told,
            envelope,
            opened: false,
            tokens: 0,
            garbage,
            reset,
        }
    }

    /// All events that one pass brought, in one piece.
    fn poll_events(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            let Some(generation) = &mut self.generation else {
                return Poll::Ready(None);
            };
            let mut out = Vec::new();
            match ready!(generation.poll_deltas(cx)) {
                Ok(deltas) if deltas.is_empty() => continue,
                Ok(deltas) => {
                    let counts = generation.usage();
                    let with_counts = |mut chunk: Value| {
                        if self.told.continuous_usage {
                            chunk["usage"] = answer::usage(counts);
                        }
                        chunk
                    };
                    if !self.opened {
                        self.opened = true;
                        for choice in 0..generation.choices() {
                            let (prompt, echo) = &self.plan.prompts[choice / self.plan.n];
                            if let Some(chunk) = self.envelope.opening(choice, echo, prompt) {
                                put(&mut out, &with_counts(chunk));
                            }
                        }
                    }
                    for delta in &deltas {
                        if delta.token.is_some() {
                            if let Some(garbage) = &self.garbage {
                                garbage.before_token(self.tokens, &mut out);
                            }
                            self.tokens += 1;
                        }
                        put(&mut out, &with_counts(self.envelope.delta(delta)));
                    }
                    if generation.is_done() {
                        if self.told.usage {
                            let mut chunk = self.envelope.chunk(&[]);
                            chunk["usage"] = answer::usage(counts);
                            put(&mut out, &chunk);
                        }
                        self.finish(&mut out);
                    }
                }
                Err(Interrupted::Failed(failure)) => {
                    put(&mut out, &ApiError::from(failure).body());
                    self.finish(&mut out);
                }
                Err(Interrupted::Broken) => {
                    // The connection's task takes it from here; the stream must not look finished before that.
                    self.reset.cancel();
                    return Poll::Pending;
                }
            }
            return Poll::Ready(Some(out.into()));
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"data: [DONE]\n\n");
        self.generation = None;
    }
}

fn put(out: &mut Vec<u8>, event: &Value) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(event.to_string().as_bytes());
    out.extend_from_slice(b"\n\n");
}
