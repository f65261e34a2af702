//! `MetricsReporter`: tells routers the load of a worker's ranks (`kv_metrics`) and, when asked to, planners what its
//! forward passes do (`forward-pass-metrics`).
//!
//! Started by the worker. Sends a rank's figures when they have changed, at most once per millisecond and rank, and
//! nothing while nothing changes, unless routers may have missed it ([`super::comebacks`]). A new one starts with the present figures, so that a stale value never outlives it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde_json::json;

use super::clock::Clock;
use super::comebacks::{self, TellAgain};
use super::fault_post::{FaultPost, FaultsChanged};
use super::inspect::Look;
use super::liveness::Liveness;
use super::metrics_faults::{self, Spin, Told as When};
use super::told_loads::ToldLoads;
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
    /// What is true of each rank.
    known: BTreeMap<DpRank, Load>,
    told: Arc<ToldLoads>,
    post: Arc<FaultPost>,
    lie: Option<SpawnHandle>,
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
        told: Arc<ToldLoads>,
        post: Arc<FaultPost>,
        liveness: Liveness,
    ) -> Self {
        told.forget();
        Self {
            worker,
            stream,
            forward,
            pending: BTreeMap::new(),
            armed: false,
            known: BTreeMap::new(),
            told,
            post,
            lie: None,
            _liveness: liveness,
        }
    }

    fn report(&mut self, ctx: &mut Context<Self>) {
        self.armed = false;
        let loads = std::mem::take(&mut self.pending);
        if loads.is_empty() {
            return;
        }
        let spin = Spin::ask(self.post.table());
        match spin.told() {
            When::Now => self.tell(&loads, &spin),
            When::Never => {}
            When::Later(late) => {
                ctx.run_later(late, move |reporter, _| reporter.tell(&loads, &spin));
            }
        }
    }

    /// Tells what faults make of the present figures, and begins or ends a lie that goes on by itself.
    fn tell_anew(&mut self, ctx: &mut Context<Self>) {
        if let Some(lie) = self.lie.take() {
            ctx.cancel_future(lie);
        }
        if let Some(lie) = metrics_faults::standing_lie(self.post.table()) {
            self.lie = Some(ctx.run_interval(lie.step(), |reporter, ctx| {
                reporter.pending.clone_from(&reporter.known);
                reporter.report(ctx);
            }));
        }
        self.pending.clone_from(&self.known);
        self.report(ctx);
    }

    fn tell(&mut self, loads: &BTreeMap<DpRank, Load>, spin: &Spin) {
        let mut payload = Vec::with_capacity(128);
        for (&rank, load) in loads {
            payload.clear();
            let used = spin.used_blocks(load.active_blocks, Clock::unix_ms());
            let active_blocks = u32::try_from(used).unwrap_or(u32::MAX);
            self.told.set(rank, Load { active_blocks, ..*load });
            let figures = KvMetrics {
                kv_used_blocks: Some(used),
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
        self.post.attach(ctx.address().recipient());
        self.tell_anew(ctx);
        comebacks::follow(self.stream.comebacks(), ctx);
        if self.forward.is_some() {
            ctx.run_interval(HEARTBEAT, |reporter, _| {
                if let Some(forward) = &mut reporter.forward {
                    forward.beat(reporter.worker);
                }
            });
        }
    }
}

impl TellAgain for MetricsReporter {
    fn tell_again(&mut self, ctx: &mut Context<Self>) {
        self.pending.clone_from(&self.known);
        self.report(ctx);
    }
}

impl Handler<LoadChanged> for MetricsReporter {
    type Result = ();

    fn handle(&mut self, LoadChanged { rank, load }: LoadChanged, ctx: &mut Self::Context) {
        self.pending.insert(rank, load);
        self.known.insert(rank, load);
        if !self.armed {
            self.armed = true;
            ctx.run_later(DEBOUNCE, Self::report);
        }
    }
}

impl Handler<FaultsChanged> for MetricsReporter {
    type Result = ();

    fn handle(&mut self, _: FaultsChanged, ctx: &mut Self::Context) {
        self.tell_anew(ctx);
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
