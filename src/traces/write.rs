//! Workloads as trace files.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Map, Value, json};

use crate::replay::{Graph, Source, Turn};
use crate::types::{SimTime, Token};

use super::playback::play;

/// Mooncake rows: time stamps of first turns, delays of later ones.
#[allow(clippy::cast_precision_loss)]
pub(super) fn sessions(source: &mut dyn Source, block_tokens: u32, out: &mut dyn Write) -> io::Result<()> {
    // When the last turn of each session was due, which is when it ended: requests are served in no time.
    let mut before: BTreeMap<u32, SimTime> = BTreeMap::new();
    let mut ids = Ids::default();
    play(source, |source, turn: &Turn, prompt: &[Token]| {
        let mut row = Map::new();
        row.insert("session_id".into(), source.session_name(turn.tag).into());
        match before.insert(turn.session, turn.arrival) {
            None => row.insert("timestamp".into(), ms(turn.arrival.as_ms())),
            // Whole nanoseconds: a difference of sums is not quite the wait that was added.
            Some(before) => row.insert("delay".into(), ms(turn.arrival.nanos_since(before) as f64 / 1e6)),
        };
        row.insert("input_length".into(), turn.input_tokens.into());
        row.insert("output_length".into(), turn.output_tokens.into());
        let hash_ids = prompt.chunks(block_tokens.max(1) as usize).map(|block| ids.of(block));
        row.insert("hash_ids".into(), hash_ids.collect::<Vec<_>>().into());
        if let Some(planned) = &turn.planned {
            row.insert(
                "output_token_ids".into(),
                planned.iter().copied().collect::<Vec<_>>().into(),
            );
        }
        for (key, value) in [
            ("priority", i64::from(turn.priority)),
            ("strict_priority", i64::from(turn.strict_priority)),
        ] {
            if value != 0 {
                row.insert(key.into(), value.into());
            }
        }
        if let Some(class) = &turn.policy_class {
            row.insert("policy_class".into(), class.to_string().into());
        }
        line(out, &Value::Object(row))
    })
}

/// Ids of blocks by how they begin and end; a block of one id repeats it.
#[derive(Default)]
struct Ids {
    numbers: BTreeMap<(Token, Option<Token>), u64>,
}

impl Ids {
    fn of(&mut self, block: &[Token]) -> u64 {
        let first = block.first().copied().unwrap_or(0);
        let second = block.get(1).copied().filter(|&second| second != first);
        let fresh = self.numbers.len() as u64;
        *self.numbers.entry((first, second)).or_insert(fresh)
    }
}

/// Milliseconds; whole ones without a fraction.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn ms(time: f64) -> Value {
    if time.fract() == 0.0 {
        (time as u64).into()
    } else {
        time.into()
    }
}

/// Agentic Mooncake, version 2.
pub(super) fn graph(graph: &Graph, out: &mut dyn Write) -> io::Result<()> {
    let origin = &graph.origin;
    let header = json!({
        "schema": "dynamo.agentic_mooncake",
        "version": 2,
        "block_size": graph.block_tokens,
        "hash_id_scope": "local",
        "source": {"format": origin.format, "digest": origin.digest},
    });
    line(out, &header)?;
    for request in &graph.requests {
        let ids = graph.ids.get(&request.hash_ids)?;
        let play = if request.play_id.is_empty() {
            "play"
        } else {
            &request.play_id
        };
        let mut row = json!({
            "request_id": request.request_id,
            "play_id": play,
            "session_id": request.session_id,
            "model": request.model,
            "input_length": request.input_tokens,
            "output_length": request.output_tokens,
            "hash_ids": &ids[..request.input_tokens.div_ceil(graph.block_tokens) as usize],
            "not_before_ms": request.not_before_ms,
            "dependencies": request.dependencies,
        });
        if let Some(ordinal) = request.source_play_ordinal {
            row["source_play_ordinal"] = ordinal.into();
        }
        if let Some(took) = request.recorded_api_time_ms {
            row["recorded_api_time_ms"] = took.into();
        }
        if let Some(planned) = &request.planned {
            row["output_token_ids"] = json!(&planned[..]);
        }
        if request.priority != 0 {
            row["priority"] = request.priority.into();
        }
        if request.strict_priority != 0 {
            row["strict_priority"] = request.strict_priority.into();
        }
        if let Some(class) = &request.policy_class {
            row["policy_class"] = class.to_string().into();
        }
        line(out, &row)?;
    }
    Ok(())
}

fn line(out: &mut dyn Write, row: &Value) -> io::Result<()> {
    serde_json::to_writer(&mut *out, row)?;
    out.write_all(b"\n")
}
