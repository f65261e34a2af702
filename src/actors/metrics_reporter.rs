//! `MetricsReporter`: tells routers the load of a worker's ranks (`kv_metrics`).
//!
//! Started by the worker. Sends a rank's figures when they have changed, at most once per millisecond and rank, and
//! nothing while nothing changes. A new one starts with the present figures, so that a stale value never outlives it.

use std::collections::BTreeMap;
use std::time::Duration;

use actix::prelude::*;

use super::clock::Clock;
use super::liveness::Liveness;
use crate::transport::event_plane::EventPublisher;
use crate::transport::event_plane::kv_metrics::{self, KvMetrics};
use crate::types::{DpRank, InstanceId, Load};

/// Changes within this span are told once.
const DEBOUNCE: Duration = Duration::from_millis(1);

/// Load publisher of one worker.
pub struct MetricsReporter {
    worker: InstanceId,
    stream: EventPublisher,
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

impl MetricsReporter {
    pub(super) fn new(worker: InstanceId, stream: EventPublisher, liveness: Liveness) -> Self {
        Self {
            worker,
            stream,
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
