//! `KvPublisher`: one rank's KV event stream.
//!
//! Started by the worker beside its rank, on the same thread. Owns one incarnation of the stream: publisher id, event
//! ids from 1, the ring of recent events and the block tree, from which it answers recovery queries. Publishing and
//! recording are one step, so that an answer never knows less than what was sent. A replacement is a new stream: it
//! starts from the rank's true blocks under a new publisher id.

mod faults;

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use bytes::Bytes;
use serde_json::json;

use self::faults::News;
use super::clock::Clock;
use super::comebacks::{self, TellAgain};
use super::fault_post::FaultPost;
use super::gauge::RankGauge;
use super::inspect::Look;
use super::kv_listener::{KvListener, ListenKv};
use super::kv_spoiler::Spoiler;
use super::liveness::Liveness;
use super::recovery::RecoveryCounts;
use crate::faults::kind::EventFault;
use crate::transport::event_plane::EventPublisher;
use crate::transport::event_plane::journal::Journal;
use crate::transport::event_plane::recovery;
use crate::transport::request_plane::Codec;
use crate::types::{KvEvent, SequenceHash, StoredBlock, TierEvent};

/// Passes whose events may wait; past that the rank keeps the truth and sends it whole later.
const MAILBOX: usize = 256;

/// How often a durable stream that has lost events looks whether there is room to say everything anew.
const RESTATE_CHECK: Duration = Duration::from_secs(1);

/// One rank's KV event stream.
pub struct KvPublisher {
    journal: Journal,
    stream: EventPublisher,
    counts: Arc<RecoveryCounts>,
    gauge: Arc<RankGauge>,
    post: Arc<FaultPost>,
    spoiler: Spoiler,
    /// The stream under another id, while one is wanted.
    stale: Option<EventPublisher>,
    storm: Option<SpawnHandle>,
    stormed: u64,
    listeners: Vec<KvListener>,
    _liveness: Liveness,
}

/// What became of the rank's cache.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) enum Publish {
    /// Changes of one pass, in order: of the GPU's cache, then below it.
    Events(Vec<KvEvent>, Vec<TierEvent>),
    /// The whole cache, parents first, and what lies below it: events before it were lost on the way to the publisher.
    Replace(Vec<(Option<SequenceHash>, StoredBlock)>, Vec<TierEvent>),
}

/// A recovery query of a router, still encoded. The answer is one encoded response frame, in pieces.
#[derive(Message)]
#[rtype(result = "Vec<Bytes>")]
pub(super) struct Recover {
    pub(super) codec: Codec,
    pub(super) body: Bytes,
}

impl KvPublisher {
    pub(super) fn new(
        journal: Journal,
        stream: EventPublisher,
        counts: Arc<RecoveryCounts>,
        gauge: Arc<RankGauge>,
        post: Arc<FaultPost>,
        liveness: Liveness,
    ) -> Self {
        Self {
            journal,
            stream,
            counts,
            gauge,
            post,
            spoiler: Spoiler::default(),
            stale: None,
            storm: None,
            stormed: 0,
            listeners: Vec::new(),
            _liveness: liveness,
        }
    }

    fn publish(&mut self, events: Vec<KvEvent>, ctx: &mut Context<Self>) {
        for listener in &self.listeners {
            listener(&events, &[]);
        }
        if self.is_disturbed() {
            return self.publish_disturbed(News::Cache(events), ctx);
        }
        let before = self.journal.last_event_id();
        let payloads = self.journal.record(events);
        self.send(&payloads);
        self.gauge.count_kv_events(self.journal.last_event_id() - before);
        if self.stream.is_to_restate() {
            self.restate(ctx);
        }
    }

    fn is_disturbed(&self) -> bool {
        !self.post.table().is_quiet::<EventFault>() || !self.spoiler.is_empty()
    }

    /// Says everything anew, which faults disturb like everything else.
    fn restate(&mut self, ctx: &mut Context<Self>) {
        if self.is_disturbed() {
            return self.publish_disturbed(News::Everything, ctx);
        }
        let before = self.journal.last_event_id();
        let payloads = self.journal.restate();
        self.send(&payloads);
        self.gauge.count_kv_events(self.journal.last_event_id() - before);
    }

    fn send(&mut self, payloads: &[Bytes]) {
        for payload in payloads {
            self.stream.publish(payload, Clock::unix_ms());
        }
    }
}

impl KvPublisher {
    fn publish_lower(&mut self, events: &[TierEvent], ctx: &mut Context<Self>) {
        if events.is_empty() {
            return;
        }
        for listener in &self.listeners {
            listener(&[], events);
        }
        if self.is_disturbed() {
            return self.publish_disturbed(News::Lower(events), ctx);
        }
        for payload in self.journal.record_lower(events) {
            self.stream.publish(&payload, Clock::unix_ms());
        }
    }
}

impl Actor for KvPublisher {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        self.post.attach(ctx.address().recipient());
        self.storm(ctx);
        comebacks::follow(self.stream.comebacks(), ctx);
        if self.stream.is_durable() {
            // Nobody will ask what this stream starts from, and what the one before it said still stands.
            self.restate(ctx);
            ctx.run_interval(RESTATE_CHECK, |publisher, ctx| {
                if publisher.stream.is_to_restate() {
                    publisher.restate(ctx);
                }
            });
        }
    }
}

impl TellAgain for KvPublisher {
    fn tell_again(&mut self, _: &mut Context<Self>) {
        // What faults make of events is theirs.
        if !self.is_disturbed()
            && let Some(payload) = self.journal.newest()
        {
            self.send(&[payload]);
        }
    }
}

impl Handler<Publish> for KvPublisher {
    type Result = ();

    fn handle(&mut self, message: Publish, ctx: &mut Self::Context) {
        match message {
            Publish::Events(events, lower) => {
                self.publish(events, ctx);
                self.publish_lower(&lower, ctx);
            }
            Publish::Replace(blocks, lower) => {
                let mut events = vec![KvEvent::Cleared];
                events.extend(blocks.into_iter().map(|(parent, block)| KvEvent::Stored {
                    parent,
                    blocks: vec![block],
                }));
                self.publish(events, ctx);
                self.publish_lower(&self.journal.lower_withdrawals(), ctx);
                self.publish_lower(&lower, ctx);
            }
        }
    }
}

impl Handler<ListenKv> for KvPublisher {
    type Result = ();

    fn handle(&mut self, ListenKv(listener): ListenKv, _: &mut Self::Context) {
        self.listeners.push(listener);
    }
}

impl Handler<Recover> for KvPublisher {
    type Result = MessageResult<Recover>;

    fn handle(&mut self, Recover { codec, body }: Recover, _: &mut Self::Context) -> Self::Result {
        let built = self.journal.dumps_built();
        let response = recovery::answer(&mut self.journal, codec, &body);
        self.counts.count_dumps(self.journal.dumps_built() - built);
        MessageResult(response.frame(codec))
    }
}

impl Handler<Look> for KvPublisher {
    type Result = MessageResult<Look>;

    fn handle(&mut self, _: Look, _: &mut Self::Context) -> Self::Result {
        MessageResult(json!({
            "publisher_id": self.stream.id().get(),
            "last_event_id": self.journal.last_event_id(),
            "announced_blocks": self.journal.announced_blocks(),
            "held_messages": self.spoiler.held(),
        }))
    }
}
