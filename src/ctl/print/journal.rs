//! What has happened to a fleet, line by line.

use std::fmt::Write as _;

use serde_json::Value;

use super::{head, items, table, text, worker_list};

/// A part of the journal.
pub(in super::super) fn journal(page: &Value) -> String {
    let mut lines = vec![head(&["at s", "event", "what"])];
    lines.extend(items(&page["entries"]).map(|entry| cells(entry).to_vec()));
    let mut out = table(&lines);
    if let Some(earlier) = page["earlier"].as_u64().filter(|earlier| *earlier > 0) {
        // Writing into a String cannot fail.
        let _ = write!(out, "\n({earlier} earlier entries are not shown; --last shows more)");
    }
    if page["lost"] == true {
        out.push_str("\n(older entries are no longer kept)");
    }
    out
}

/// One entry, as it comes.
pub(in super::super) fn entry(entry: &Value) -> String {
    let [at, event, what] = cells(entry);
    format!("{at:>10}  {event:<8}  {what}")
}

/// The fleet's sums at a moment.
pub(in super::super) fn sample(fleet: &Value) -> String {
    let at = fleet["at_ms"].as_f64().unwrap_or(0.0) / 1e3;
    let ready = fleet["workers_by_health"]["ready"].as_u64().unwrap_or(0);
    let figure = |key: &str| text(&fleet[key]);
    format!(
        "{at:>10.3}  {:<8}  {ready} ready, {} running, {} waiting, {}/{} blocks, {} requests, {} failed, {} tokens",
        "sample",
        figure("running"),
        figure("waiting"),
        figure("active_blocks"),
        figure("total_blocks"),
        figure("requests_total"),
        figure("failed_total"),
        figure("tokens_total"),
    )
}

fn cells(entry: &Value) -> [String; 3] {
    let at = entry["at_ms"].as_f64().unwrap_or(0.0) / 1e3;
    let id = || format!("f{}", entry["id"]);
    let what = match entry["event"].as_str().unwrap_or_default() {
        "added" => format!("{}: {}", id(), line_of(&entry["fault"])),
        "removed" | "closed" => id(),
        "opened" => format!("{}: {}", id(), worker_list(&entry["workers"])),
        "healed" => worker_list(&entry["workers"]),
        "drawn" => format!("{} w{} draw {}: {}", id(), entry["worker"], entry["draw"], entry["hit"]),
        "done" => {
            let why = if entry["id"].is_null() {
                String::new()
            } else {
                format!(" by {}", id())
            };
            let error = entry["error"]
                .as_str()
                .map_or_else(String::new, |error| format!(": {error}"));
            format!("{} {}{why}{error}", text(&entry["act"]), text(&entry["path"]))
        }
        "gave_up" if entry["path"] == format!("w{}", entry["worker"]) => {
            format!(
                "{} stays dead: its budget of {} is spent",
                text(&entry["path"]),
                budget(entry)
            )
        }
        "gave_up" => format!(
            "w{} dies: the budget of {}, {}, is spent",
            entry["worker"],
            text(&entry["path"]),
            budget(entry)
        ),
        "state" => format!("w{} {}", entry["worker"], text(&entry["state"])),
        _ => entry.to_string(),
    };
    [format!("{at:.3}"), text(&entry["event"]), what]
}

fn budget(entry: &Value) -> String {
    format!("{} restarts in {} s", entry["budget"], entry["window_s"])
}

fn line_of(fault: &Value) -> String {
    let fault: Result<crate::faults::Fault, _> = serde_json::from_value(fault.clone());
    fault.map_or_else(|error| error.to_string(), |fault| fault.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::journal::{Entry, Event};

    #[test]
    fn there_are_words_for_everything_that_a_journal_says() {
        for event in Event::examples() {
            let entry = serde_json::to_value(Entry {
                seq: 1,
                at_ms: 2500.0,
                event,
            });
            let [at, event, what] = cells(&entry.unwrap());
            assert_eq!(at, "2.500");
            assert!(!what.is_empty() && !what.starts_with('{'), "{event}: {what}");
        }
    }
}
