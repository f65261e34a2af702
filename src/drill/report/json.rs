//! The verdict as JSON.

use serde_json::{Value, json};

use super::Report;
use super::series::{Series, summaries};
use crate::faults::journal::Event;

/// Failed requests that a document lists.
const LISTED_FAILURES: usize = 200;

/// One drill: verdict, checks with their evidence, moments, loads, figures over time, the fleet's journal without dice.
pub fn document(report: &Report) -> Value {
    let record = &report.record;
    let failures = record.requests.iter().filter(|request| request.failure.is_some());
    let news = record
        .journal
        .iter()
        .filter(|entry| !matches!(entry.event, Event::Drawn { .. }));
    json!({
        "name": report.name,
        "description": report.description,
        "verdict": report.verdict,
        "error": report.problem(),
        "seed": record.seed,
        "took_s": report.took.as_secs_f64(),
        "duration_s": record.duration,
        "warmup_s": record.warmup,
        "frontend": record.has_frontend,
        "workers": record.workers.len(),
        "checks": report.judgements,
        "moments": record.moments,
        "loads": summaries(record),
        "programs": record.programs,
        "held_after": record.held,
        "settled_after_s": record.settled_after,
        "series": Series::of(record),
        "fleet": record.samples,
        "drift": record.drift,
        "failures": failures.take(LISTED_FAILURES).collect::<Vec<_>>(),
        "journal": news.collect::<Vec<_>>(),
        "frontend_log": record.router_log,
        "notes": record.notes,
    })
}

/// One drill as itself, several as a list.
pub fn documents(reports: &[Report]) -> Value {
    match reports {
        [one] => document(one),
        many => many.iter().map(document).collect(),
    }
}
