//! A worker in one line: what lists, terminal views and dashboards show of a thousand of them.

use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};

use super::registry::{Registry, WorkerEntry};
use crate::faults::FaultId;
use crate::types::SimTime;

/// One worker in one line. Counters run since the worker's first start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerRow {
    /// Actor path.
    pub path: String,
    /// Group label.
    pub group: String,
    /// Where it is in its life.
    pub state: String,
    /// The same, but `hung` or `unlisted` where a worker that should serve does not.
    pub health: String,
    /// How often it has been built.
    pub incarnation: u32,
    /// Its id in discovery.
    pub instance_id: u64,
    /// Answers under way.
    pub open_streams: u32,
    /// Requests in running batches.
    pub running: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// KV blocks in use by requests.
    pub active_blocks: u64,
    /// KV blocks that are cached and unused.
    pub cached_blocks: u64,
    /// KV blocks that it has.
    pub total_blocks: u64,
    /// Calls accepted.
    pub requests_total: u64,
    /// Answers that were cut short.
    pub cancelled_total: u64,
    /// Tokens handed out.
    pub tokens_total: u64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens_total: u64,
    /// Those of them that came from the prefix cache.
    pub cached_tokens_total: u64,
    /// Preemptions.
    pub preemptions_total: u64,
    /// Restarts of the worker or one of its children.
    pub restarts: u64,
    /// Numbers of the faults that are in force for it.
    pub faults: Vec<FaultId>,
}

impl WorkerEntry {
    /// It in one line; `now` by the fleet's clock.
    pub fn row(&self, now: SimTime) -> WorkerRow {
        let mut row = WorkerRow {
            path: self.id().to_string(),
            group: self.group().to_owned(),
            state: self.state().word().to_owned(),
            health: self.health(now).word().to_owned(),
            incarnation: self.incarnation(),
            instance_id: self.instance_id(),
            open_streams: self.open_streams(),
            requests_total: self.streams.accepted.load(Relaxed) + self.http_requests.accepted(),
            cancelled_total: self.streams.cancelled.load(Relaxed),
            restarts: self.restarts(),
            faults: self.faults.table().ids(),
            ..WorkerRow::default()
        };
        for (gauge, metrics) in self.gauges.iter().zip(&self.metrics) {
            let load = gauge.load();
            row.running += load.running;
            row.waiting += load.waiting;
            row.active_blocks += u64::from(load.active_blocks);
            row.cached_blocks += u64::from(load.inactive_blocks);
            row.total_blocks += u64::from(load.total_blocks);
            row.preemptions_total += load.preemptions;
            row.tokens_total += gauge.tokens();
            row.prompt_tokens_total += metrics.prompt_tokens.get();
            row.cached_tokens_total += metrics.cached_tokens.get();
        }
        row
    }
}

impl Registry {
    /// Every worker in one line, by position; `now` by the fleet's clock.
    pub fn rows(&self, now: SimTime) -> Vec<WorkerRow> {
        self.entries().iter().map(|entry| entry.row(now)).collect()
    }
}
