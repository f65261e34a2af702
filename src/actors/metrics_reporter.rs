//! `MetricsReporter`: tells routers the load of a worker's ranks (`kv_metrics`) and, when asked to, planners what its
//! forward passes do (`forward-pass-metrics`).
//!
//! Started by the worker. Sends a rank's figures when they have changed, at most once per millisecond and rank, and
//! nothing while nothing changes. A new one starts with the present figures, so that a stale value never outlives it.

use std::collections::BTreeMap;
use std::time::Duration;

use actix::prelude::*;
use serde_json::json;

use super::clock::Clock;
use super::inspect::Look;
use super::liveness::Liveness;
use crate::transport::event_plane::EventPublisher;
use crate::transport::event_plane::forward_pass::{self, ForwardPass};
use crate::transport::event_plane::kv_metrics::{self, KvMetrics};
use crate::types::{DpRank, InstanceId, Load};

/// Changes within this span are told once.
const DEBOUNCE: Duration = Duration::from_millis(1);

/// An idle rank says so this often.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Load publisher of one worker.
pub struct MetricsReporter {
    worker: InstanceId,
    stream: EventPublisher,
    forward: Option<ForwardPasses>,
    pending: BTreeMap<DpRank, Load>,
    armed: bool,
    _liveness: Liveness,
}

/// A rank's load has changed.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct LoadChanged {
    pub(super) rank: DpRank,
    pub(super) load: Load,
}

/// A rank has run a pass.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct PassRan {
    pub(super) rank: DpRank,
    pub(super) pass: ForwardPass,
}

/// Stream of forward passes.
pub(super) struct ForwardPasses {
    stream: EventPublisher,
    ranks: Vec<Told>,
}

/// What has been told of one rank.
#[derive(Clone, Copy, Default)]
struct Told {
    messages: u64,
    /// Since the last heartbeat.
    spoke: bool,
}

impl ForwardPasses {
    pub(super) fn new(stream: EventPublisher, ranks: u32) -> Self {
        Self {
            stream,
            ranks: vec![Told::default(); ranks as usize],
        }
    }

    fn tell(&mut self, worker: InstanceId, rank: DpRank, pass: &ForwardPass) {
        let Some(told) = self.ranks.get_mut(rank.0 as usize) else {
            return;
        };
        told.messages += 1;
        told.spoke = true;
        let mut payload = Vec::new();
        // Without a reader only the numbers are used up.
        if self.stream.has_subscribers() {
            payload.reserve(448);
            forward_pass::encode(&mut payload, worker, rank, told.messages, pass);
        }
        self.stream.publish(&payload, Clock::unix_ms());
    }

    fn beat(&mut self, worker: InstanceId) {
        for rank in (0..).map(DpRank).take(self.ranks.len()) {
            if !self.ranks[rank.0 as usize].spoke {
                self.tell(worker, rank, &ForwardPass::default());
            }
            self.ranks[rank.0 as usize].spoke = false;
        }
    }
}

impl MetricsReporter {
    pub(super) fn new(
        worker: InstanceId,
        stream: EventPublisher,
        forward: Option<ForwardPasses>,
        liveness: Liveness,
    ) -> Self {
        Self {
            worker,
            stream,
            forward,
            pending: BTreeMap::new(),
            armed: false,
            _liveness: liveness,
        }
    }

    fn report(&mut self) {
        self.armed = false;
        let mut payload = Vec::with_capacity(128);
        for (rank, load) in std::mem::take(&mut self.pending) {
            payload.clear();
            let figures = KvMetrics {
                kv_used_blocks: Some(load.active_blocks.into()),
                ..KvMetrics::default()
            };
            kv_metrics::encode(&mut payload, self.worker, rank, &figures);
            self.stream.publish(&payload, Clock::unix_ms());
        }
    }
}

impl Actor for MetricsReporter {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(1024);
        if self.forward.is_some() {
            ctx.run_interval(HEARTBEAT, |reporter, _| {
                if let Some(forward) = &mut reporter.forward {
                    forward.beat(reporter.worker);
                }
            });
        }
    }
}

impl Handler<LoadChanged> for MetricsReporter {
    type Result = ();

    fn handle(&mut self, LoadChanged { rank, load }: LoadChanged, ctx: &mut Self::Context) {
        self.pending.insert(rank, load);
        if !self.armed {
            self.armed = true;
            ctx.run_later(DEBOUNCE, |reporter, _| reporter.report());
        }
    }
}

impl Handler<PassRan> for MetricsReporter {
    type Result = ();

    fn handle(&mut self, PassRan { rank, pass }: PassRan, _: &mut Self::Context) {
        if let Some(forward) = &mut self.forward {
            forward.tell(self.worker, rank, &pass);
        }
    }
}

impl Handler<Look> for MetricsReporter {
    type Result = MessageResult<Look>;

    fn handle(&mut self, _: Look, _: &mut Self::Context) -> Self::Result {
        let pending: Vec<u32> = self.pending.keys().map(|rank| rank.0).collect();
        MessageResult(json!({"ranks_with_news": pending}))
    }
}
