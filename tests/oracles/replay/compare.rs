//! What differs between a recording and our report.

use std::path::Path;

use ghostfleet::replay::{Report, RequestRecord};
use ghostfleet::replay_run::RunError;
use serde_json::{Map, Value, json};

use super::form::{Recorded, Records};

/// Times, ms.
const TIME_TOLERANCE: f64 = 1e-9;
/// Everything else, relative.
const TOLERANCE: f64 = 1e-9;
/// Percentiles of token gaps, relative: both programs keep them in a sketch.
const SKETCH_TOLERANCE: f64 = 0.002;
/// Widening of a recorded spread.
const SPREAD: f64 = 0.05;
/// Seeds that a result that varies is averaged over.
const SEEDS: usize = 8;

pub(crate) fn differences(
    expected: &Map<String, Value>,
    recorded: &Recorded,
    report: &Report,
    flags: &[String],
    replay: &dyn Fn(&[String]) -> Result<Report, RunError>,
) -> Vec<String> {
    if let Some(spread) = &recorded.spread_over_20_runs {
        return outside(spread, flags, replay);
    }
    let ours = report.to_json(1.0);
    let mut found = Vec::new();
    for (key, value) in expected {
        if let Some(difference) = field(key, value, ours.get(key)) {
            found.push(difference);
        }
    }
    if let Some(records) = recorded.records.as_ref().filter(|records| !records.columns.is_empty()) {
        // Equal workers are told apart by draws alone.
        let labels_vary = recorded.is_kv_routed();
        found.extend(rows(
            records,
            report.records.as_deref().unwrap_or_default(),
            labels_vary,
        ));
    }
    found.truncate(12);
    found
}

fn field(key: &str, expected: &Value, ours: Option<&Value>) -> Option<String> {
    let Some(ours) = ours else {
        return Some(format!("{key} is missing"));
    };
    let (Some(wanted), Some(found)) = (expected.as_f64(), ours.as_f64()) else {
        let mut found = Vec::new();
        below(key, expected, ours, &mut found);
        return found.into_iter().next();
    };
    let sketched = key.ends_with("itl_ms") || key.ends_with("per_user");
    let rank = ["median", "p75", "p90", "p95", "p99"]
        .iter()
        .any(|prefix| key.starts_with(prefix));
    let tolerance = if sketched && rank { SKETCH_TOLERANCE } else { TOLERANCE };
    let same = (wanted - found).abs() <= tolerance * wanted.abs().max(1.0);
    (!same).then(|| format!("{key} is {ours} instead of {expected}"))
}

/// What the peer's own planner did.
pub(crate) fn scaling(recorded: &Value, report: &Report) -> Vec<String> {
    let ours = json!(report.scaling.clone().unwrap_or_default());
    let events: Vec<Value> = ours["events"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|event| {
            let seconds = event["at_ms"].as_f64().unwrap_or(f64::NAN) / 1e3;
            json!({"at_s": seconds, "component": event["pool"], "from": event["from"], "to": event["to"]})
        })
        .collect();
    let mut found = Vec::new();
    let ours = json!({"ticks": ours["ticks"], "events": events});
    below("scaling", recorded, &ours, &mut found);
    found
}

/// What a planner was told, as far as it was recorded.
pub(crate) fn ticks(recorded: &[Value], log: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(log).unwrap();
    let ours: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    if ours.len() != recorded.len() {
        return vec![format!("{} ticks instead of {}", ours.len(), recorded.len())];
    }
    let mut found = Vec::new();
    for (at, (expected, ours)) in recorded.iter().zip(&ours).enumerate() {
        below(&format!("tick {at}"), expected, &ours["snapshot"], &mut found);
    }
    found
}

/// Everything in `expected` that is not so in `ours`.
fn below(path: &str, expected: &Value, ours: &Value, found: &mut Vec<String>) {
    match (expected, ours) {
        (Value::Object(expected), Value::Object(ours)) => {
            for (key, value) in expected {
                below(
                    &format!("{path}.{key}"),
                    value,
                    ours.get(key).unwrap_or(&Value::Null),
                    found,
                );
            }
        }
        (Value::Array(expected), Value::Array(ours)) if expected.len() == ours.len() => {
            for (at, (expected, ours)) in expected.iter().zip(ours).enumerate() {
                below(&format!("{path}.{at}"), expected, ours, found);
            }
        }
        _ => {
            let same = match (expected.as_f64(), ours.as_f64()) {
                (Some(expected), Some(ours)) => (expected - ours).abs() <= TOLERANCE * expected.abs().max(1.0),
                _ => expected == ours,
            };
            if !same {
                found.push(format!("{path} is {ours} instead of {expected}"));
            }
        }
    }
}

/// Record columns by our names.
fn column(record: &Map<String, Value>, name: &str) -> Option<Value> {
    for (prefix, pool) in [("prefill_route_", "prefill"), ("decode_route_", "decode")] {
        if let Some(rest) = name.strip_prefix(prefix).filter(|rest| *rest != "overlap_tokens") {
            let routes = record["routing_history"].as_array()?;
            let route = routes.iter().find(|route| route["pool"] == pool)?;
            let key = match rest {
                "worker" => "logical_worker_id",
                "selected_overlap_blocks" => rest,
                "best_overlap_blocks" => "best_available_overlap_blocks",
                rest => rest,
            };
            return route.get(key).cloned();
        }
    }
    let key = match name {
        "route_worker" => "logical_worker_id",
        "route_dp_rank" => "dp_rank",
        "route_selected_overlap_blocks" => "selected_overlap_blocks",
        "route_best_overlap_blocks" => "best_available_overlap_blocks",
        name => name,
    };
    record.get(key).cloned()
}

fn rows(expected: &Records, ours: &[RequestRecord], labels_vary: bool) -> Vec<String> {
    if expected.rows.len() != ours.len() {
        return vec![format!("{} records instead of {}", ours.len(), expected.rows.len())];
    }
    let is_label =
        |name: &str| name.ends_with("worker_idx") || name.ends_with("route_worker") || name.ends_with("dp_rank");
    let compared = |name: &&String| !(labels_vary && is_label(name));
    let names: Vec<&String> = expected.columns.iter().filter(compared).collect();
    let position = |name: &str| expected.columns.iter().position(|column| column == name);
    let mut theirs: Vec<Vec<Value>> = expected
        .rows
        .iter()
        .map(|row| names.iter().map(|name| row[position(name).unwrap()].clone()).collect())
        .collect();
    let mut mine: Vec<Vec<Value>> = ours
        .iter()
        .map(|record| {
            let Value::Object(record) = serde_json::to_value(record).unwrap() else {
                panic!("a record is an object")
            };
            let cell = |name: &&String| column(&record, name).unwrap_or(Value::Null);
            names.iter().map(cell).collect()
        })
        .collect();
    // Requests that arrive together stand in any order.
    let arrival = names.iter().position(|name| *name == "arrival_time_ms").unwrap();
    for rows in [&mut theirs, &mut mine] {
        rows.sort_by(|a, b| {
            order(&a[arrival])
                .total_cmp(&order(&b[arrival]))
                .then_with(|| key(a).cmp(&key(b)))
        });
    }
    let mut found = Vec::new();
    for (at, (theirs, mine)) in theirs.iter().zip(&mine).enumerate() {
        for (name, (theirs, mine)) in names.iter().zip(theirs.iter().zip(mine)) {
            if !same_cell(theirs, mine) {
                found.push(format!("record {at}: {name} is {mine} instead of {theirs}"));
            }
        }
    }
    found
}

/// Arrival in steps of a tenth of a microsecond.
fn order(arrival: &Value) -> f64 {
    (arrival.as_f64().unwrap_or(0.0) * 1e4).round()
}

/// The rest of a row with times rounded.
fn key(row: &[Value]) -> String {
    let cell = |value: &Value| match value.as_f64() {
        Some(number) => format!("{number:020.3}"),
        None => value.to_string(),
    };
    row.iter().map(cell).collect::<Vec<_>>().join(" ")
}

fn same_cell(theirs: &Value, mine: &Value) -> bool {
    if let (Some(theirs), Some(mine)) = (theirs.as_f64(), mine.as_f64()) {
        return (theirs - mine).abs() <= TIME_TOLERANCE;
    }
    let mut found = Vec::new();
    below("", theirs, mine, &mut found);
    found.is_empty()
}

/// Our mean over seeds against what the peer's runs spread over.
fn outside(
    spread: &Map<String, Value>,
    flags: &[String],
    replay: &dyn Fn(&[String]) -> Result<Report, RunError>,
) -> Vec<String> {
    let reports: Vec<Value> = (0..SEEDS)
        .map(|seed| {
            let seeded = [flags, &["--seed".to_owned(), seed.to_string()]].concat();
            replay(&seeded).unwrap().to_json(1.0)
        })
        .collect();
    let mut found = Vec::new();
    for (key, bounds) in spread {
        let bound = |name: &str, at: usize| {
            let value = bounds.get(name).or_else(|| bounds.get(at));
            value
                .and_then(Value::as_f64)
                .unwrap_or_else(|| panic!("spread of {key}: {bounds}"))
        };
        let (least, most) = (bound("min", 0), bound("max", 1));
        let values = reports.iter().map(|report| report[key].as_f64().unwrap_or(f64::NAN));
        #[allow(clippy::cast_precision_loss)]
        let mean = values.sum::<f64>() / SEEDS as f64;
        let room = SPREAD * most.abs().max(least.abs());
        if !(least - room..=most + room).contains(&mean) {
            found.push(format!("{key} is {mean} on average, outside {least} to {most}"));
        }
    }
    found
}
