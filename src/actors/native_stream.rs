//! `NativeStream`: one rank's own event stream, as a vLLM engine publishes it.
//!
//! Started by the worker beside its rank when native ports are asked for. Numbers the batches and fills the ring that the
//! replay socket serves. Sockets, ring and numbers belong to the worker: a new incarnation goes on where the old one was,
//! with a clear and the rank's true cache, because readers take numbers that start again for repetitions. Only a new
//! incarnation of the worker starts at 0, as a new engine process does.

mod faults;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use actix::prelude::*;
use bytes::Bytes;
use serde_json::json;

use self::faults::NativeFaults;
use super::clock::Clock;
use super::fault_post::FaultPost;
use super::inspect::Look;
use super::liveness::Liveness;
use crate::transport::event_plane::native::replay::ReplayRing;
use crate::transport::event_plane::native::{BatchEncoder, NativeEvent};
use crate::transport::event_plane::zmq::ZmqPublisher;

/// Passes whose events may wait; past that the rank tells the whole cache later.
const MAILBOX: usize = 256;

/// Events of one batch when a whole cache is told.
const REPLACE_EVENTS: usize = 256;

/// What a stream is made of.
pub(super) struct NativeParts {
    pub(super) encoder: BatchEncoder,
    pub(super) topic: Bytes,
    pub(super) socket: Arc<ZmqPublisher>,
    /// `None`: no replay socket.
    pub(super) ring: Option<Arc<ReplayRing>>,
    /// Address of that socket.
    pub(super) replay_address: Option<SocketAddr>,
    /// Number of the next batch.
    pub(super) next_sequence: Arc<AtomicU64>,
    pub(super) faults: Arc<FaultPost>,
}

/// One rank's own event stream.
pub(super) struct NativeStream {
    parts: NativeParts,
    faults: NativeFaults,
    _liveness: Liveness,
}

/// What became of the rank's cache.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) enum PublishNative {
    /// Changes of one pass, in order.
    Events(Vec<NativeEvent>),
    /// The whole cache, parents first: what was told before does not hold any more.
    Replace(Vec<NativeEvent>),
}

impl NativeStream {
    pub(super) fn new(parts: NativeParts, liveness: Liveness) -> Self {
        Self {
            parts,
            faults: NativeFaults::default(),
            _liveness: liveness,
        }
    }

    fn publish(&mut self, events: &[NativeEvent], ctx: &mut Context<Self>) {
        if self.is_disturbed() {
            return self.publish_disturbed(events, ctx);
        }
        let sequence = self.next_sequence();
        if !self.is_wanted() {
            return;
        }
        let batch = self.parts.encoder.batch(Clock::unix_seconds(), events);
        self.keep(sequence, &batch);
        self.send(sequence, batch);
    }

    fn next_sequence(&self) -> u64 {
        self.parts.next_sequence.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether anybody hears of a batch, now or when it is replayed.
    fn is_wanted(&self) -> bool {
        self.parts.ring.is_some() || self.parts.socket.has_subscribers(&self.parts.topic)
    }

    fn keep(&self, sequence: u64, batch: &Bytes) {
        if let Some(ring) = &self.parts.ring {
            ring.push(sequence, batch.clone());
        }
    }

    fn send(&self, sequence: u64, batch: Bytes) {
        let sequence = Bytes::copy_from_slice(&sequence.to_be_bytes());
        self.parts.socket.send(&[self.parts.topic.clone(), sequence, batch]);
    }
}

impl Actor for NativeStream {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        self.parts.faults.attach(ctx.address().recipient());
        self.storm(ctx);
    }
}

impl Handler<PublishNative> for NativeStream {
    type Result = ();

    fn handle(&mut self, message: PublishNative, ctx: &mut Self::Context) {
        match message {
            PublishNative::Events(events) => self.publish(&events, ctx),
            PublishNative::Replace(events) => {
                // Before the first batch there is nothing to take back; some engines begin with a clear all the same.
                let began = self.parts.next_sequence.load(Ordering::Relaxed) > 0;
                if began || self.parts.encoder.encoding.begins_with_clear() {
                    self.publish(&[NativeEvent::Cleared], ctx);
                }
                for part in events.chunks(REPLACE_EVENTS) {
                    self.publish(part, ctx);
                }
            }
        }
    }
}

impl Handler<Look> for NativeStream {
    type Result = MessageResult<Look>;

    fn handle(&mut self, _: Look, _: &mut Self::Context) -> Self::Result {
        let NativeParts {
            topic,
            socket,
            ring,
            next_sequence,
            ..
        } = &self.parts;
        MessageResult(json!({
            "address": format!("tcp://{}", socket.local_addr()),
            "next_sequence": next_sequence.load(Ordering::Relaxed),
            "topic": String::from_utf8_lossy(topic),
            "has_subscribers": socket.has_subscribers(topic),
            "replayable": ring.is_some(),
            "replay_address": self.parts.replay_address.map(|address| format!("tcp://{address}")),
            "held_messages": self.faults.held(),
        }))
    }
}
