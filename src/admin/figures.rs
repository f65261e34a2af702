//! Figures of a fleet: sums, and its workers as rows or as columns.
//!
//! Columns are for views that look again and again: names are told once ([`names`]), a sample has one list of numbers per
//! figure, by position in the fleet.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::supervisor;
use crate::actors::control::Control;
use crate::actors::fleet::Launch;
use crate::actors::latency::{LatencyCounts, LatencyFigures};
use crate::actors::registry::WorkerHealth;
use crate::actors::row::WorkerRow;
use crate::faults::FaultId;
use crate::types::SimTime;

/// How much is told of each worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Each {
    /// Nothing.
    #[serde(alias = "false")]
    No,
    /// A row with names.
    #[serde(alias = "true")]
    Rows,
    /// Numbers, by position.
    Columns,
}

/// What does not change while a fleet runs: what columns mean.
#[derive(Debug, Serialize)]
struct Names {
    workers: Vec<Name>,
    /// What `health` of the columns counts through.
    health: [&'static str; WorkerHealth::WORDS.len()],
    supervisor: Value,
}

#[derive(Debug, Serialize)]
struct Name {
    path: String,
    group: String,
    labels: BTreeMap<String, String>,
    ranks: usize,
}

/// Figures of all workers, by position.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Columns {
    /// Position in the list of words that the names tell.
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
    fn of(rows: &[WorkerRow]) -> Self {
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

/// What the columns of later samples mean.
pub(super) fn names(control: &Control) -> Value {
    let entries = control.registry().entries();
    let workers = entries.iter().map(|entry| Name {
        path: entry.id().to_string(),
        group: entry.group().to_owned(),
        labels: entry.labels().iter().cloned().collect(),
        ranks: entry.ranks(),
    });
    json!(Names {
        workers: workers.collect(),
        health: WorkerHealth::WORDS,
        supervisor: supervisor::rule(),
    })
}

/// Sums over the fleet, and its workers as wanted. `latency`: what is told of the requests' times.
pub(super) fn fleet(control: &Control, each: Each, latency: LatencyFigures) -> Value {
    let now: SimTime = control.now();
    let rows = control.registry().rows(now);
    let mut figures = sums(&rows);
    figures["at_ms"] = json!(now.as_ms());
    figures["launch"] = match control.launch() {
        Launch::Starting { registered } => json!({"starting": registered}),
        Launch::Ready => json!("ready"),
        Launch::Failed(error) => json!({"failed": error}),
        Launch::Over => json!("over"),
    };
    figures["latency"] = json!(latency);
    figures["lateness"] = json!(control.registry().lateness());
    figures["journal_last"] = json!(control.journal().last());
    match each {
        Each::No => {}
        Each::Rows => figures["workers"] = json!(rows),
        Each::Columns => figures["columns"] = json!(Columns::of(&rows)),
    }
    figures
}

/// Times of all requests so far.
pub(super) fn latency(control: &Control) -> LatencyCounts {
    control.registry().latency().counts()
}

fn sums(rows: &[WorkerRow]) -> Value {
    let count = |word: fn(&WorkerRow) -> &String| {
        let mut counts = Map::new();
        for row in rows {
            let count = counts.entry(word(row).clone()).or_insert_with(|| 0.into());
            *count = (count.as_u64().unwrap_or(0) + 1).into();
        }
        counts
    };
    let sum = |figure: fn(&WorkerRow) -> u64| rows.iter().map(figure).sum::<u64>();
    json!({
        "workers_by_state": count(|row| &row.state),
        "workers_by_health": count(|row| &row.health),
        "open_streams": sum(|row| row.open_streams.into()),
        "running": sum(|row| row.running.into()),
        "waiting": sum(|row| row.waiting.into()),
        "active_blocks": sum(|row| row.active_blocks),
        "cached_blocks": sum(|row| row.cached_blocks),
        "total_blocks": sum(|row| row.total_blocks),
        "requests_total": sum(|row| row.requests_total),
        "cancelled_total": sum(|row| row.cancelled_total),
        "tokens_total": sum(|row| row.tokens_total),
        "prompt_tokens_total": sum(|row| row.prompt_tokens_total),
        "cached_tokens_total": sum(|row| row.cached_tokens_total),
        "preemptions_total": sum(|row| row.preemptions_total),
        "restarts": sum(|row| row.restarts),
    })
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
