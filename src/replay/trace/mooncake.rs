//! Mooncake JSONL: one request per line, turns of a session by its id.
//!
//! | Field (alias) | Meaning |
//! |---|---|
//! | `hash_ids` | ids of the prompt's blocks |
//! | `input_length` (`input_tokens`) | prompt tokens, cut to what the ids cover; missing: all of it |
//! | `output_length` (`output_tokens`) | tokens to generate |
//! | `timestamp` (`created_time`) | ms; arrival of a first turn, source of a missing delay later |
//! | `delay` (`delay_ms`) | ms after the end of the turn before |
//! | `session_id` | turns of one session; without it each row is a session of its own |
//! | `output_token_ids` | exact answer |
//! | `priority`, `strict_priority` | router queue |
//!
//! Source: Dynamo 1.6.1 replay of Mooncake traces.

use std::io::BufRead;

use hashbrown::HashMap;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustc_hash::FxBuildHasher;
use serde::Deserialize;

use crate::types::Tokens;

use super::super::sessions::{SessionTrace, TurnSpec};
use super::line::{Kind, Lines, TraceError};

/// Seed of answers that a trace does not give, so that continuations are the same in every run.
const ANSWER_SEED: u64 = 0xD37A_0A7E_5EED;

const FIELDS: [(&str, Kind); 13] = [
    ("session_id", Kind::Text),
    ("input_length", Kind::Count),
    ("input_tokens", Kind::Count),
    ("output_length", Kind::Count),
    ("output_tokens", Kind::Count),
    ("output_token_ids", Kind::Ids),
    ("hash_ids", Kind::Ids),
    ("timestamp", Kind::Number),
    ("created_time", Kind::Number),
    ("delay", Kind::Number),
    ("delay_ms", Kind::Number),
    ("priority", Kind::Signed),
    ("strict_priority", Kind::Count),
];

#[derive(Deserialize)]
struct Row {
    session_id: Option<String>,
    #[serde(alias = "input_tokens")]
    input_length: Option<u32>,
    #[serde(alias = "output_tokens")]
    output_length: Option<u32>,
    output_token_ids: Option<Vec<u32>>,
    hash_ids: Option<Vec<u64>>,
    #[serde(alias = "created_time")]
    timestamp: Option<f64>,
    #[serde(alias = "delay_ms")]
    delay: Option<f64>,
    priority: Option<i32>,
    strict_priority: Option<u32>,
}

/// How to read a trace.
#[derive(Debug, Clone, Copy)]
pub struct MooncakeOptions {
    /// Tokens per hash id.
    pub block_tokens: u32,
    /// Rows after the first of a session hold only what is new.
    pub delta: bool,
    /// First turns need a time stamp.
    pub timed: bool,
}

/// Reads a whole trace.
///
/// # Errors
/// [`TraceError`] names the line and the field.
pub fn read<R: BufRead>(mut lines: Lines<R>, options: MooncakeOptions) -> Result<SessionTrace, TraceError> {
    let mut trace = SessionTrace::new(options.block_tokens, options.delta, "request_");
    let mut sessions: HashMap<Box<str>, Open, FxBuildHasher> = HashMap::default();
    let mut answers = StdRng::seed_from_u64(ANSWER_SEED);
    while lines.advance()? {
        let row: Row = lines.parse(&FIELDS)?;
        let mut turn = turn(&lines, &row, options, &mut answers)?;
        let known = row.session_id.as_deref().and_then(|name| sessions.get_mut(name));
        if let Some(open) = known {
            turn.delay_ms = open.delay(&lines, &row)?;
            trace.follow(open.number, turn);
            continue;
        }
        let name = row.session_id.as_deref();
        if row.delay.is_some_and(|delay| delay != 0.0) {
            let session = name.map_or_else(|| format!("request_{}", lines.number()), str::to_owned);
            return Err(lines.wrong(format!(
                "delay is set on the first turn of session {session}; expected none or 0"
            )));
        }
        turn.start_ms = row.timestamp;
        let number = trace.open(name, lines.number(), turn);
        if let Some(name) = row.session_id {
            let open = Open {
                number,
                last_seen: row.timestamp,
            };
            sessions.insert(name.into(), open);
        }
    }
    if trace.is_empty() {
        return Err(lines.wrong_file("no requests in the trace"));
    }
    if let Some(session) = trace.untimed().filter(|_| options.timed) {
        return Err(lines.wrong_file(format!(
            "the first turn of session {session} has no timestamp; add one or replay with a concurrency limit"
        )));
    }
    Ok(trace)
}

/// A session whose first turn was read.
struct Open {
    number: u32,
    last_seen: Option<f64>,
}

impl Open {
    /// Wait before a later turn, ms.
    fn delay<R: BufRead>(&mut self, lines: &Lines<R>, row: &Row) -> Result<f64, TraceError> {
        let implied = row.timestamp.zip(self.last_seen).map(|(now, before)| now - before);
        self.last_seen = row.timestamp.or(self.last_seen);
        let delay = row.delay.or(implied).unwrap_or(0.0);
        if delay.is_finite() && delay >= 0.0 {
            return Ok(delay);
        }
        Err(lines.wrong(format!(
            "delay of {delay} ms after the turn before; expected a finite number from 0 on"
        )))
    }
}

/// Everything but the time of a turn.
fn turn<R: BufRead>(
    lines: &Lines<R>,
    row: &Row,
    options: MooncakeOptions,
    answers: &mut StdRng,
) -> Result<TurnSpec, TraceError> {
    let hash_ids = row.hash_ids.clone();
    let hash_ids = hash_ids.ok_or_else(|| lines.wrong("hash_ids is missing"))?;
    let output_tokens = row.output_length;
    let output_tokens = output_tokens.ok_or_else(|| lines.wrong("output_length is missing"))?;
    let covered = u32::try_from(hash_ids.len())
        .unwrap_or(u32::MAX)
        .saturating_mul(options.block_tokens);
    let input_tokens = row.input_length.unwrap_or(covered).min(covered);
    if input_tokens == 0 {
        return Err(lines.wrong("the prompt is empty; expected input_length above 0 and at least one of hash_ids"));
    }
    if let Some(timestamp) = row.timestamp.filter(|timestamp| !timestamp.is_finite()) {
        return Err(lines.wrong(format!("timestamp is {timestamp}, expected a finite number")));
    }
    let authored: Option<Tokens> = row.output_token_ids.as_deref().map(Into::into);
    if let Some(ids) = authored.as_ref().filter(|ids| ids.len() != output_tokens as usize) {
        let found = ids.len();
        return Err(lines.wrong(format!(
            "output_token_ids has {found} entries, expected output_length, {output_tokens}"
        )));
    }
    // Only continuations that quote the answer need to know it beforehand.
    let planned = match authored {
        None if options.delta => Some((0..output_tokens).map(|_| answers.random()).collect()),
        authored => authored,
    };
    Ok(TurnSpec {
        hash_ids,
        input_tokens,
        output_tokens,
        planned,
        start_ms: None,
        delay_ms: 0.0,
        priority: row.priority.unwrap_or(0),
        strict_priority: row.strict_priority.unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str, timed: bool) -> String {
        let options = MooncakeOptions {
            block_tokens: 512,
            delta: false,
            timed,
        };
        read(Lines::new("t", text.as_bytes()), options).unwrap_err().to_string()
    }

    #[test]
    fn every_refusal_names_line_and_field() {
        let ok = r#"{"session_id":"a","timestamp":10,"input_length":5,"output_length":1,"hash_ids":[1]}"#;
        for (rows, expected) in [
            (
                r#"{"timestamp":0,"input_length":5,"output_length":1}"#,
                "line 1: hash_ids is missing",
            ),
            (
                r#"{"timestamp":0,"input_length":5,"hash_ids":[1]}"#,
                "line 1: output_length is missing",
            ),
            (
                r#"{"timestamp":0,"output_length":3,"hash_ids":[]}"#,
                "line 1: the prompt is empty",
            ),
            (
                r#"{"timestamp":0,"output_length":3,"output_token_ids":[1],"hash_ids":[1]}"#,
                "line 1: output_token_ids has 1 entries",
            ),
            (
                r#"{"timestamp":0,"delay":5,"output_length":1,"hash_ids":[1]}"#,
                "line 1: delay is set on the first turn of session request_1",
            ),
            (&format!("{ok}\n{}", ok.replace("10", "5")), "line 2: delay of -5 ms"),
            (
                r#"{"output_length":1,"hash_ids":[1]}"#,
                "session request_1 has no timestamp",
            ),
            ("\n \n", "no requests in the trace"),
            (
                r#"{"timestamp":"x","output_length":1,"hash_ids":[1]}"#,
                "line 1: timestamp is \"x\", expected a number",
            ),
        ] {
            let found = error(rows, true);
            assert!(found.contains(expected), "{found}");
        }
    }
}
