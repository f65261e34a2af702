//! A worker in one line: what lists, terminal views and dashboards show of a thousand of them; and a thousand lines as
//! columns, which views that look again and again take.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};

use super::registry::{Registry, WorkerEntry, WorkerHealth};
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
    /// Handoffs that are not over.
    #[serde(default)]
    pub rooms: u32,
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
    /// Answers that ended with an error.
    pub failed_total: u64,
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
            rooms: self.handoffs.snapshot().rooms,
            requests_total: self.streams.accepted.load(Relaxed) + self.http_requests.accepted(),
            failed_total: self.streams.failed.load(Relaxed) + self.http_requests.failed(),
            cancelled_total: self.streams.cancelled.load(Relaxed) + self.http_requests.cancelled(),
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

/// Figures of all workers, by position.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Columns {
    /// Position in [`WorkerHealth::WORDS`].
    pub health: Vec<u8>,
    /// How often it has been built.
    pub incarnation: Vec<u32>,
    /// Answers under way.
    pub open_streams: Vec<u32>,
    /// Requests in running batches.
    pub running: Vec<u32>,
    /// Requests that wait.
    pub waiting: Vec<u32>,
    /// KV blocks in use by requests.
    pub active_blocks: Vec<u64>,
    /// KV blocks that are cached and unused.
    pub cached_blocks: Vec<u64>,
    /// KV blocks.
    pub total_blocks: Vec<u64>,
    /// Tokens handed out.
    pub tokens_total: Vec<u64>,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens_total: Vec<u64>,
    /// Those of them that came from the prefix cache.
    pub cached_tokens_total: Vec<u64>,
    /// Faults in force, for those that have any.
    pub faults: BTreeMap<usize, Vec<FaultId>>,
}

impl Columns {
    /// Those of rows.
    pub fn of(rows: &[WorkerRow]) -> Self {
        let mut columns = Self::default();
        for (position, row) in rows.iter().enumerate() {
            let health = WorkerHealth::WORDS.iter().position(|word| *word == row.health);
            columns
                .health
                .push(health.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX));
            columns.incarnation.push(row.incarnation);
            columns.open_streams.push(row.open_streams);
            columns.running.push(row.running);
            columns.waiting.push(row.waiting);
            columns.active_blocks.push(row.active_blocks);
            columns.cached_blocks.push(row.cached_blocks);
            columns.total_blocks.push(row.total_blocks);
            columns.tokens_total.push(row.tokens_total);
            columns.prompt_tokens_total.push(row.prompt_tokens_total);
            columns.cached_tokens_total.push(row.cached_tokens_total);
            if !row.faults.is_empty() {
                columns.faults.insert(position, row.faults.clone());
            }
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(position: u32) -> WorkerRow {
        WorkerRow {
            path: format!("w{position}"),
            health: if position == 3 { "hung" } else { "ready" }.to_owned(),
            running: 200,
            active_blocks: 16_000,
            cached_blocks: 16_000,
            total_blocks: 16_384,
            tokens_total: 123_456_789,
            prompt_tokens_total: 1_234_567_890,
            cached_tokens_total: 1_234_567_890,
            faults: if position == 5 { vec![FaultId(9)] } else { Vec::new() },
            ..WorkerRow::default()
        }
    }

    #[test]
    fn a_sample_of_two_thousand_busy_workers_has_a_few_bytes_for_each() {
        let rows: Vec<WorkerRow> = (0..2000).map(row).collect();
        let columns = Columns::of(&rows);
        assert_eq!(WorkerHealth::WORDS[usize::from(columns.health[3])], "hung");
        assert_eq!(columns.faults, [(5, vec![FaultId(9)])].into());
        let bytes = serde_json::to_vec(&columns).unwrap().len();
        assert!(bytes < 2000 * 80, "{bytes}");
        assert!(
            serde_json::to_vec(&rows).unwrap().len() > 4 * bytes,
            "as rows they have many"
        );
    }
}
