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
use crate::actors::row::{Columns, WorkerRow};
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
        "failed_total": sum(|row| row.failed_total),
        "cancelled_total": sum(|row| row.cancelled_total),
        "tokens_total": sum(|row| row.tokens_total),
        "prompt_tokens_total": sum(|row| row.prompt_tokens_total),
        "cached_tokens_total": sum(|row| row.cached_tokens_total),
        "preemptions_total": sum(|row| row.preemptions_total),
        "restarts": sum(|row| row.restarts),
    })
}
