//! Changes of a fleet as they happen, one line each.

use serde_json::{Value, json};

use super::client::Client;
use super::events::Events;
use super::{CtlError, print, say};
use crate::cli::ctl::LiveArgs;

/// Follows until the reader goes, so many events have come, or the fleet ends.
pub(super) fn follow(client: &Client, args: &LiveArgs, as_json: bool) -> Result<(), CtlError> {
    let mut query = vec![
        ("every_ms", args.every_ms.to_string()),
        ("draws", args.draws.to_string()),
    ];
    query.extend(args.after.map(|after| ("after", after.to_string())));
    query.extend(args.workers.map(|each| ("workers", each.word().to_owned())));
    let not_a_fleet = |error: String| client.not_a_fleet(error);
    let mut events = Events::new(client.stream("/v1/live", &query)?);
    let mut left = args.events;
    while left != Some(0) {
        let event = events.next().map_err(|error| client.broken(error))?;
        let (name, data) = event.ok_or_else(|| CtlError::Partly("the fleet has ended the stream".to_owned()))?;
        let data: Value = serde_json::from_str(&data).map_err(|error| not_a_fleet(error.to_string()))?;
        say(
            &if as_json || data.get("columns").is_some() || data.get("workers").is_some() {
                json!({"event": name, "data": data}).to_string()
            } else {
                line(&name, &data)
            },
        )?;
        left = left.map(|left| left - 1);
    }
    Ok(())
}

fn line(name: &str, data: &Value) -> String {
    match name {
        "entry" => print::entry(data),
        "sample" => print::sample(data),
        "lost" => format!("entries after {} are lost: this reader is too slow", data["after"]),
        other => format!("{other}: {data}"),
    }
}
