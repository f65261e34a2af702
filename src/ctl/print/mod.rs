//! Answers of the admin API for people.

mod journal;

use std::fmt::Write as _;

use serde_json::Value;

pub(super) use self::journal::{entry, journal, sample};

use crate::truth::Drift;
use crate::truth::choice::Choices;
use crate::truth::credit::Scope;
use crate::truth::leaks::{Leak, Leaks};
use crate::types::SequenceHash;

/// Columns that line up; the first row is the head.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn head(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// `w1 w2 w5`, at most a few of them.
fn worker_list(value: &Value) -> String {
    let ids: Vec<String> = items(value).take(9).map(|id| format!("w{id}")).collect();
    match items(value).count() {
        0 => "-".to_owned(),
        many if many > ids.len() => format!("{} and {} more", ids.join(" "), many - ids.len()),
        _ => ids.join(" "),
    }
}

pub(super) fn workers(rows: &Value) -> String {
    let names = [
        "worker", "group", "state", "instance", "streams", "running", "waiting", "rooms", "blocks", "cached", "tokens",
        "restarts", "faults",
    ];
    let line = |row: &Value| {
        let faults: Vec<String> = items(&row["faults"]).map(|id| format!("f{id}")).collect();
        vec![
            text(&row["path"]),
            text(&row["group"]),
            text(&row["state"]),
            format!("{:x}", row["instance_id"].as_u64().unwrap_or(0)),
            text(&row["open_streams"]),
            text(&row["running"]),
            text(&row["waiting"]),
            text(&row["rooms"]),
            format!("{}/{}", row["active_blocks"], row["total_blocks"]),
            text(&row["cached_blocks"]),
            text(&row["tokens_total"]),
            text(&row["restarts"]),
            faults.join(" "),
        ]
    };
    let mut lines = vec![head(&names)];
    lines.extend(items(rows).map(line));
    table(&lines)
}

/// Anything, as an indented outline; lists of objects one below the other.
pub(super) fn outline(value: &Value) -> String {
    let mut out = String::new();
    put_outline(&mut out, value, 0);
    out.trim_end().to_owned()
}

fn put_outline(out: &mut String, value: &Value, depth: usize) {
    let pad = "  ".repeat(depth);
    // Writing into a String cannot fail.
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                match value {
                    Value::Object(inner) if !inner.is_empty() => {
                        let _ = writeln!(out, "{pad}{key}:");
                        put_outline(out, value, depth + 1);
                    }
                    Value::Array(list) if list.iter().any(Value::is_object) => {
                        let _ = writeln!(out, "{pad}{key}:");
                        put_outline(out, value, depth + 1);
                    }
                    Value::Array(list) => {
                        let words: Vec<String> = list.iter().map(text).collect();
                        let _ = writeln!(
                            out,
                            "{pad}{key}: {}",
                            if words.is_empty() {
                                "none".to_owned()
                            } else {
                                words.join(" ")
                            }
                        );
                    }
                    Value::Object(_) => {
                        let _ = writeln!(out, "{pad}{key}: none");
                    }
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                        let _ = writeln!(out, "{pad}{key}: {}", figure(key, value));
                    }
                }
            }
        }
        Value::Array(list) => {
            for item in list {
                let mut inner = String::new();
                put_outline(&mut inner, item, depth + 1);
                let _ = writeln!(out, "{pad}- {}", inner.trim_start().trim_end());
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            let _ = writeln!(out, "{pad}{}", text(value));
        }
    }
}

/// Instances in hexadecimal, as everywhere else; times without a tail of digits.
fn figure(key: &str, value: &Value) -> String {
    match (value.as_u64(), value.as_f64()) {
        (Some(id), _) if key == "instance_id" => format!("{id:x}"),
        (None, Some(number)) => format!("{number:.3}"),
        _ => text(value),
    }
}

/// The blocks of each rank, parents first.
pub(super) fn cache(ranks: &Value) -> String {
    let mut lines = vec![head(&["rank", "block", "tokens", "parent"])];
    for (rank, blocks) in items(ranks).enumerate() {
        lines.extend(items(blocks).map(|block| {
            let hash = |key: &str| {
                block[key]
                    .as_u64()
                    .map_or_else(|| "-".to_owned(), |hash| format!("{hash:016x}"))
            };
            vec![
                format!("r{rank}"),
                hash("block_hash"),
                hash("tokens_hash"),
                hash("parent"),
            ]
        }));
    }
    table(&lines)
}

pub(super) fn faults(listed: &Value) -> String {
    let mut lines = vec![head(&["id", "phase", "happened", "workers", "fault"])];
    lines.extend(items(listed).map(|fault| {
        vec![
            format!("f{}", fault["id"]),
            text(&fault["phase"]),
            text(&fault["happened"]),
            worker_list(&fault["workers"]),
            text(&fault["line"]),
        ]
    }));
    if lines.len() == 1 {
        "no faults".to_owned()
    } else {
        table(&lines)
    }
}

/// Faults that are over and listed no more, if there are any.
pub(super) fn forgotten_faults(sums: &Value) -> Option<String> {
    let forgotten = sums["forgotten"].as_u64().filter(|forgotten| *forgotten > 0)?;
    Some(format!(
        "({forgotten} older ones are over and listed no more; all faults since the start have happened {} times)",
        sums["happened"]
    ))
}

/// The blocks that each rank has announced and has no more, oldest first.
pub(super) fn former(ranks: &Value) -> String {
    let blocks: Vec<Value> = items(ranks).map(|rank| rank["blocks"].clone()).collect();
    let mut out = cache(&blocks.into());
    for (rank, dropped) in items(ranks)
        .map(|rank| rank["dropped"].as_u64().unwrap_or(0))
        .enumerate()
    {
        if dropped > 0 {
            // Writing into a String cannot fail.
            let _ = write!(out, "\n(r{rank}: {dropped} older ones are no longer kept)");
        }
    }
    out
}

/// The catalogue; parameters that can be left out in brackets.
pub(super) fn kinds(kinds: &Value) -> String {
    let mut lines = vec![head(&["kind", "parameters", "what it does"])];
    let param = |param: &Value| {
        let name = text(&param["name"]);
        if param["required"] == true {
            name
        } else {
            format!("[{name}]")
        }
    };
    lines.extend(items(kinds).map(|kind| {
        let params: Vec<String> = items(&kind["params"]).map(param).collect();
        vec![
            format!("{}.{}", text(&kind["layer"]), text(&kind["kind"])),
            params.join(" "),
            text(&kind["about"]).trim().to_owned(),
        ]
    }));
    table(&lines)
}

/// Kinds with all that their parameters may be.
pub(super) fn kinds_in_full(kinds: &Value) -> String {
    let mut lines = vec![head(&["kind", "parameter", "what it may be", "what it says"])];
    for kind in items(kinds) {
        let name = format!("{}.{}", text(&kind["layer"]), text(&kind["kind"]));
        lines.push(vec![
            name,
            String::new(),
            String::new(),
            text(&kind["about"]).trim().to_owned(),
        ]);
        lines.extend(items(&kind["params"]).map(|param| {
            let says = text(&param["description"]);
            vec![String::new(), text(&param["name"]), allowed(param), says]
        }));
    }
    table(&lines)
}

/// What a parameter's schema allows, in words.
fn allowed(param: &Value) -> String {
    let mut words = match param["type"].as_str() {
        Some("boolean") => vec!["true or false".to_owned()],
        Some("string") => vec!["a text".to_owned()],
        Some("integer") => vec!["a whole number".to_owned()],
        Some(_) => vec!["a number".to_owned()],
        None => vec![items(&param["enum"]).map(text).collect::<Vec<_>>().join(" | ")],
    };
    let bound = |lead: &str, key: &str| param[key].as_f64().map(|bound| format!("{lead} {bound}"));
    words.extend(bound("from", "minimum"));
    words.extend(bound("above", "exclusiveMinimum"));
    // What the type holds is no bound worth telling.
    words.extend(bound("to", "maximum").filter(|_| param["maximum"].as_f64().is_some_and(|most| most < 4e9)));
    words.extend(param["x-unit"].as_str().map(|unit| format!("({unit})")));
    if param["required"] == true {
        words.push("needed".to_owned());
    }
    words.join(" ")
}

pub(super) fn drift(drift: &Drift) -> String {
    let mut lines = vec![head(&[
        "rank",
        "true",
        "known",
        "missing",
        "phantom",
        "in flight",
        "samples",
    ])];
    let wrong = drift.ranks.iter().filter(|rank| rank.missing + rank.phantom > 0);
    lines.extend(wrong.map(|rank| {
        let samples = |sign: char, hashes: &[SequenceHash]| -> Vec<String> {
            hashes
                .iter()
                .take(2)
                .map(|hash| format!("{sign}{:016x}", hash.0))
                .collect()
        };
        let mut shown = samples('-', &rank.missing_samples);
        shown.extend(samples('+', &rank.phantom_samples));
        vec![
            format!("{}{}", rank.path, if rank.exists { "" } else { " (gone)" }),
            rank.true_blocks.to_string(),
            rank.known_blocks.to_string(),
            rank.missing.to_string(),
            rank.phantom.to_string(),
            rank.in_flight.to_string(),
            shown.join(" "),
        ]
    }));
    let sum = format!(
        "{} ranks, {} true blocks, {} known: {} missing, {} phantom, {} in flight; drift {:.6}",
        drift.ranks.len(),
        drift.true_blocks,
        drift.known_blocks,
        drift.missing,
        drift.phantom,
        drift.in_flight,
        drift.share
    );
    if lines.len() == 1 {
        sum
    } else {
        format!("{}\n{sum}", table(&lines))
    }
}

/// What an index that answers questions was asked for.
pub(super) fn scope(scope: &Scope) -> String {
    let Scope {
        prompts,
        there_are,
        forgotten_blocks,
    } = scope;
    let forgotten = match forgotten_blocks {
        0 => String::new(),
        _ => format!("; {forgotten_blocks} blocks are gone for too long to ask for"),
    };
    format!("asked for {prompts} of {there_are} prompts that ranks have or had{forgotten}")
}

pub(super) fn choices(choices: &Choices) -> String {
    let mut lines = vec![head(&["probe", "wrong", "chosen", "holder", "true", "reported"])];
    lines.extend(choices.samples.iter().map(|wrong| {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        vec![
            wrong.request.clone(),
            format!("{:?}", wrong.slip).to_lowercase(),
            or_none(&wrong.chosen),
            or_none(&wrong.holder),
            wrong.true_blocks.to_string(),
            wrong
                .reported
                .map_or_else(|| "-".to_owned(), |blocks| blocks.to_string()),
        ]
    }));
    let sum = format!(
        "{} probes, {} of a prompt that one rank has: {} wrong choices, {} blocks missing, {} phantom; drift {:.6}",
        choices.probes, choices.with_holder, choices.wrong, choices.missing, choices.phantom, choices.share
    );
    if lines.len() == 1 {
        sum
    } else {
        format!("{}\n{sum}", table(&lines))
    }
}

pub(super) fn leaks(leaks: &Leaks) -> String {
    if leaks.total == 0 {
        return "nothing is held".to_owned();
    }
    let mut lines = vec![head(&["holder", "what", "count"])];
    let line = |leak: &Leak| vec![leak.holder.clone(), leak.what.to_owned(), leak.count.to_string()];
    lines.extend(leaks.leaks.iter().map(line));
    table(&lines)
}

pub(super) fn why(answer: &Value) -> String {
    let mut lines = vec![format!(
        "{} on {}: {}",
        text(&answer["request"]),
        text(&answer["worker"]),
        text(&answer["phase"])
    )];
    lines.extend(items(&answer["because"]).map(|reason| format!("  {}", text(reason))));
    lines.join("\n")
}

pub(super) fn requests(answer: &Value) -> String {
    let mut lines = vec![head(&["request", "worker", "age s", "tokens", "phase"])];
    lines.extend(items(&answer["requests"]).map(|request| {
        vec![
            text(&request["request"]),
            text(&request["worker"]),
            format!("{:.1}", request["age_ms"].as_f64().unwrap_or(0.0) / 1e3),
            text(&request["tokens"]),
            text(&request["phase"]),
        ]
    }));
    let mut out = table(&lines);
    if let Some(more) = answer["not_listed"].as_u64().filter(|more| *more > 0) {
        // Writing into a String cannot fail.
        let _ = write!(out, "\n({more} more)");
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_outline_says_everything_once() {
        let value = json!({
            "path": "w1",
            "instance_id": 255,
            "faults": [],
            "supervisor": {"budget": 5, "deaths": [{"path": "w1/r0", "backoff_ms": 100.00001}, {"path": "w1/kv"}]},
        });
        let expected = "faults: none\ninstance_id: ff\npath: w1\nsupervisor:\n  budget: 5\n  deaths:\n    - \
                        backoff_ms: 100.000\n      path: w1/r0\n    - path: w1/kv";
        assert_eq!(outline(&value), expected);
    }
}
