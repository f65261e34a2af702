//! Mooncake JSONL: one request per line, turns of a session by its id.
//!
//! | Field (alias) | Meaning |
//! |---|---|
//! | `hash_ids` | ids of the prompt's blocks |
//! | `input_length` (`input_tokens`) | prompt tokens, at most what the ids cover (1.4.2: cut to it); missing: all of it |
//! | `output_length` (`output_tokens`) | tokens to generate |
//! | `timestamp` (`created_time`) | ms; arrival of a first turn, source of a missing delay later |
//! | `delay` (`delay_ms`) | ms after the end of the turn before |
//! | `session_id` | turns of one session; without it each row is a session of its own |
//! | `output_token_ids` | exact answer |
//! | `priority`, `strict_priority`, `policy_class` | router queue |
//!
//! Blank lines and other fields do not count; a `request_id` does not either, but has to be text. Source: Dynamo 1.6.1 replay
//! of Mooncake traces.

use std::hash::BuildHasher;
use std::io::BufRead;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustc_hash::FxBuildHasher;
use serde::Deserialize;

use crate::engine::Semantics;
use crate::plain_words::number;
use crate::types::Tokens;

use super::super::sessions::{SessionTrace, TurnSpec};
use super::line::{Lines, MAX_MS, TraceError};
use super::unread::Text;

/// Seed of answers that a trace does not give, together with the line, so that continuations are the same in every run.
const ANSWER_SEED: u64 = 0xD37A_0A7E_5EED;

/// Fields that have two names.
pub(super) const ALIASES: [(&str, &str); 4] = [
    ("input_length", "input_tokens"),
    ("output_length", "output_tokens"),
    ("timestamp", "created_time"),
    ("delay", "delay_ms"),
];

#[derive(Deserialize)]
struct Row {
    #[serde(rename = "request_id")]
    _request_id: Option<Text>,
    session_id: Option<Box<str>>,
    #[serde(alias = "input_tokens")]
    input_length: Option<u64>,
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
    policy_class: Option<Arc<str>>,
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
    /// Release by whose rules rows are read.
    pub rules: Semantics,
}

/// One checked row.
#[derive(Debug)]
pub(crate) struct MooncakeRow {
    /// Session, where the row names one.
    pub(crate) session: Option<Box<str>>,
    /// Line in the file, from 1.
    pub(crate) line: u64,
    pub(crate) timestamp: Option<f64>,
    delay: Option<f64>,
    /// Everything but times.
    pub(crate) turn: TurnSpec,
}

/// The rows of a trace, one at a time.
#[derive(Debug)]
pub struct MooncakeRows<R> {
    pub(super) lines: Lines<R>,
    pub(super) options: MooncakeOptions,
}

impl<R: BufRead> MooncakeRows<R> {
    /// Rows of `lines`.
    pub fn new(lines: Lines<R>, options: MooncakeOptions) -> Self {
        Self { lines, options }
    }

    /// Tokens per hash id.
    pub(crate) fn block_tokens(&self) -> u32 {
        self.options.block_tokens
    }

    /// The next row; `None` at the end.
    pub(crate) fn advance(&mut self) -> Result<Option<MooncakeRow>, TraceError> {
        if !self.lines.advance()? {
            return Ok(None);
        }
        self.row().map(Some)
    }

    /// The row in the line that was read last.
    pub(super) fn row(&self) -> Result<MooncakeRow, TraceError> {
        let row: Row = self.lines.parse(&ALIASES)?;
        let turn = turn(&self.lines, &row, self.options)?;
        Ok(MooncakeRow {
            session: row.session_id,
            line: self.lines.number(),
            timestamp: row.timestamp,
            delay: row.delay,
            turn,
        })
    }

    /// Checks the times of a session's first turn.
    pub(super) fn check_first(&self, row: &MooncakeRow) -> Result<(), TraceError> {
        let session = || match &row.session {
            Some(name) => name.to_string(),
            None => format!("request_{}", row.line),
        };
        if let Some(delay) = row.delay.filter(|delay| *delay != 0.0) {
            let session = session();
            return Err(self.lines.wrong(format!(
                "delay is {} on the first turn of session {session}, expected none or 0",
                number(delay)
            )));
        }
        if let Some(timestamp) = row
            .timestamp
            .filter(|timestamp| !self.options.timed && *timestamp < 0.0)
        {
            // Nothing shifts it there.
            return Err(self.lines.wrong(format!(
                "timestamp is {}, expected ms from 0 on in a closed loop",
                number(timestamp)
            )));
        }
        if self.options.timed && row.timestamp.is_none() {
            let session = session();
            return Err(self.lines.wrong(format!(
                "timestamp is missing on the first turn of session {session}, expected ms; or replay with a concurrency limit"
            )));
        }
        Ok(())
    }

    /// A row of the trace as it was scanned is gone or different.
    pub(crate) fn changed(&self) -> TraceError {
        self.lines.changed()
    }
}

/// What one look at a whole trace tells.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MooncakeScan {
    /// Rows.
    pub rows: u64,
    /// Earliest time stamp, ms.
    pub earliest_ms: f64,
    /// Rows are in the order of their time stamps.
    pub sorted: bool,
    /// No two rows belong to one session.
    pub single_turns: bool,
}

impl MooncakeScan {
    /// Checks every row and keeps none. Memory: 8 bytes for each named session.
    ///
    /// # Errors
    /// [`TraceError`] names the line and the field.
    pub fn of<R: BufRead>(mut rows: MooncakeRows<R>) -> Result<Self, TraceError> {
        let mut scan = Self {
            rows: 0,
            earliest_ms: 0.0,
            sorted: true,
            single_turns: true,
        };
        // Two names of one hash count as one session, which costs memory later but changes no result.
        let mut sessions: HashSet<u64, FxBuildHasher> = HashSet::default();
        let mut before = f64::NEG_INFINITY;
        while let Some(row) = rows.advance()? {
            let known = row.session.as_deref().map(|name| FxBuildHasher.hash_one(name));
            if known.is_some_and(|name| !sessions.insert(name)) {
                scan.single_turns = false;
                // Whoever keeps all rows checks them too.
                return Ok(scan);
            }
            rows.check_first(&row)?;
            let time = row.timestamp.unwrap_or(0.0);
            scan.earliest_ms = if scan.rows == 0 {
                time
            } else {
                scan.earliest_ms.min(time)
            };
            scan.sorted &= time >= before;
            before = time;
            scan.rows += 1;
        }
        if scan.rows == 0 {
            return Err(rows.lines.wrong_file("no requests in the trace"));
        }
        Ok(scan)
    }
}

/// Reads a whole trace.
///
/// # Errors
/// [`TraceError`] names the line and the field.
pub fn read<R: BufRead>(mut rows: MooncakeRows<R>) -> Result<SessionTrace, TraceError> {
    let mut trace = SessionTrace::new(rows.options.block_tokens, rows.options.delta, "request_").of_requests();
    let mut sessions: HashMap<Box<str>, Open, FxBuildHasher> = HashMap::default();
    while let Some(mut row) = rows.advance()? {
        let known = row.session.as_deref().and_then(|name| sessions.get_mut(name));
        if let Some(open) = known {
            row.turn.delay_ms = row.delay_after(&mut open.last_seen, &rows.lines)?;
            trace.follow(open.number, row.turn);
            continue;
        }
        rows.check_first(&row)?;
        row.turn.start_ms = row.timestamp;
        let number = trace.open(row.session.as_deref(), row.line, row.turn);
        if let Some(name) = row.session {
            let open = Open {
                number,
                last_seen: row.timestamp,
            };
            sessions.insert(name, open);
        }
    }
    if trace.is_empty() {
        return Err(rows.lines.wrong_file("no requests in the trace"));
    }
    Ok(trace)
}

/// A session whose first turn was read.
struct Open {
    number: u32,
    last_seen: Option<f64>,
}

impl MooncakeRow {
    /// Wait before a later turn, ms; `last_seen` is the last time stamp of its session so far.
    pub(super) fn delay_after<R: BufRead>(
        &self,
        last_seen: &mut Option<f64>,
        lines: &Lines<R>,
    ) -> Result<f64, TraceError> {
        if self.delay.is_none() && self.timestamp.is_some() && last_seen.is_none() {
            return Err(lines.wrong(
                "timestamp stands where no turn of the session before has one; expected delay, or a timestamp there too",
            ));
        }
        let implied = self.timestamp.zip(*last_seen).map(|(now, before)| now - before);
        *last_seen = self.timestamp.or(*last_seen);
        let field = if self.delay.is_some() { "delay" } else { "timestamp" };
        let delay = self.delay.or(implied).unwrap_or(0.0);
        if (0.0..=MAX_MS).contains(&delay) {
            return Ok(delay);
        }
        Err(lines.wrong(format!(
            "{field} makes a delay of {} ms after the turn before, expected ms from 0 to {MAX_MS:e}",
            number(delay)
        )))
    }
}

/// Everything but the time of a turn.
fn turn<R: BufRead>(lines: &Lines<R>, row: &Row, options: MooncakeOptions) -> Result<TurnSpec, TraceError> {
    let hash_ids = row.hash_ids.clone();
    let hash_ids = hash_ids.ok_or_else(|| lines.wrong("hash_ids is missing, expected an array of ids"))?;
    let output_tokens = row.output_length;
    let output_tokens =
        output_tokens.ok_or_else(|| lines.wrong("output_length is missing, expected the tokens to generate"))?;
    let covered = u32::try_from(hash_ids.len())
        .unwrap_or(u32::MAX)
        .saturating_mul(options.block_tokens);
    let wanted = row.input_length.unwrap_or(u64::from(covered));
    if wanted > u64::from(covered) && options.rules == Semantics::V1_6_1 {
        let (ids, size) = (hash_ids.len(), options.block_tokens);
        return Err(lines.wrong(format!(
            "input_length is {wanted}, expected at most {covered}, which {ids} hash_ids of {size} tokens cover; with --semantics \
             1.4.2 prompts are cut to it"
        )));
    }
    let input_tokens = u32::try_from(wanted).unwrap_or(u32::MAX).min(covered);
    if input_tokens == 0 {
        return Err(lines.wrong("the prompt is empty; expected input_length above 0 and at least one of hash_ids"));
    }
    lines.check_tokens("input_length", input_tokens)?;
    lines.check_tokens("output_length", output_tokens)?;
    lines.check_time("timestamp", row.timestamp.unwrap_or(0.0))?;
    let authored: Option<Tokens> = row.output_token_ids.as_deref().map(Into::into);
    if let Some(ids) = authored.as_ref().filter(|ids| ids.len() != output_tokens as usize) {
        let found = ids.len();
        return Err(lines.wrong(format!(
            "output_token_ids has {found} entries, expected output_length, {output_tokens}"
        )));
    }
    // Only continuations that quote the answer need to know it beforehand.
    let planned = match authored {
        None if options.delta => {
            let mut answer = StdRng::seed_from_u64(ANSWER_SEED ^ lines.number());
            Some((0..output_tokens).map(|_| answer.random()).collect())
        }
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
        policy_class: row.policy_class.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str, timed: bool) -> MooncakeRows<&[u8]> {
        let options = MooncakeOptions {
            block_tokens: 512,
            delta: false,
            timed,
            rules: Semantics::V1_6_1,
        };
        MooncakeRows::new(Lines::new("t", text.as_bytes()), options)
    }

    #[test]
    fn prompts_longer_than_their_ids_are_cut_by_the_rules_of_1_4_2_only() {
        let row = r#"{"timestamp":0,"input_length":5000000000,"output_length":1,"hash_ids":[1,2]}"#;
        let read = |rules| {
            let options = MooncakeOptions {
                rules,
                ..rows("", true).options
            };
            let row = MooncakeRows::new(Lines::new("t", row.as_bytes()), options).advance();
            row.map(|row| row.unwrap().turn.input_tokens)
                .map_err(|error| error.to_string())
        };
        assert_eq!(read(Semantics::V1_4_2), Ok(1024));
        assert!(
            read(Semantics::V1_6_1)
                .unwrap_err()
                .contains("input_length is 5000000000, expected at most 1024")
        );
    }

    #[test]
    fn a_closed_loop_takes_no_time_stamps_below_0_and_a_time_stamp_needs_one_before_it() {
        let read = |text: &str| read(rows(text, false)).err().map(|error| error.to_string());
        let first = r#"{"session_id":"a","output_length":1,"hash_ids":[1]}"#;
        let later = r#"{"session_id":"a","timestamp":5,"output_length":1,"hash_ids":[1]}"#;
        let error = read(&format!("{first}\n{later}")).unwrap();
        assert!(
            error.starts_with("t, line 2: timestamp stands where no turn"),
            "{error}"
        );
        assert_eq!(read(&format!("{later}\n{first}\n{later}")), None);
        let error = read(&later.replace('5', "-5")).unwrap();
        assert!(
            error.starts_with("t, line 1: timestamp is -5, expected ms from 0 on in a closed loop"),
            "{error}"
        );
    }

    #[test]
    fn every_refusal_names_line_and_field() {
        let ok = r#"{"session_id":"a","timestamp":10,"input_length":5,"output_length":1,"hash_ids":[1]}"#;
        for (text, expected) in [
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
                r#"{"timestamp":0,"output_length":1,"output_token_ids":[4294967296],"hash_ids":[1]}"#,
                "line 1: output_token_ids[0] is 4294967296, expected a whole number from 0 to 4294967295",
            ),
            (
                r#"{"timestamp":0,"delay":5,"output_length":1,"hash_ids":[1]}"#,
                "line 1: delay is 5 on the first turn of session request_1",
            ),
            (
                &format!("{ok}\n{}", ok.replace("10", "5")),
                "line 2: timestamp makes a delay of -5 ms",
            ),
            (
                r#"{"output_length":1,"hash_ids":[1]}"#,
                "line 1: timestamp is missing on the first turn of session request_1",
            ),
            (
                r#"{"timestamp":0,"output_length":4294967295,"hash_ids":[1]}"#,
                "line 1: output_length is 4294967295, expected at most 67108864 tokens",
            ),
            ("\n \n", "no requests in the trace"),
            (
                r#"{"timestamp":1e308,"output_length":1,"hash_ids":[1]}"#,
                "line 1: timestamp is 1e308, expected ms from -4e12 to 4e12",
            ),
            (
                r#"{"timestamp":-1e300,"output_length":1,"hash_ids":[1]}"#,
                "timestamp is -1e300, expected ms from -4e12 to 4e12",
            ),
            (
                &format!("{ok}\n{}", ok.replace(r#""timestamp":10"#, r#""delay":5e12"#)),
                "line 2: delay makes a delay of 5000000000000 ms after the turn before, expected ms from 0 to 4e12",
            ),
            (
                r#"{"timestamp":"x","output_length":1,"hash_ids":[1]}"#,
                "line 1: timestamp is \"x\", expected a number",
            ),
            (
                r#"{"timestamp":0,"created_time":0,"output_length":1,"hash_ids":[1]}"#,
                "line 1: timestamp and created_time are two names of one field",
            ),
            (
                r#"{"timestamp":0,"request_id":3,"output_length":1,"hash_ids":[1]}"#,
                "line 1: request_id is 3, expected a string",
            ),
            (
                r#"{"timestamp":0,"input_length":513,"output_length":1,"hash_ids":[1]}"#,
                "line 1: input_length is 513, expected at most 512, which 1 hash_ids of 512 tokens cover",
            ),
            (
                r#"{"timestamp":0,"policy_class":3,"output_length":1,"hash_ids":[1]}"#,
                "line 1: policy_class is 3, expected a string",
            ),
        ] {
            let found = read(rows(text, true)).unwrap_err().to_string();
            assert!(found.contains(expected), "{found}");
        }
    }

    #[test]
    fn a_scan_says_whether_rows_can_be_played_one_by_one() {
        let row = |session: &str, at: u32, id: u64| {
            format!(r#"{{"session_id":"{session}","timestamp":{at},"output_length":1,"hash_ids":[{id}]}}"#)
        };
        let scan = |text: &str| MooncakeScan::of(rows(text, true)).unwrap();
        let found = scan(&[row("a", 7, 1), row("b", 9, 2)].join("\n"));
        assert_eq!((found.rows, found.earliest_ms.to_bits()), (2, 7.0_f64.to_bits()));
        assert!(found.sorted && found.single_turns);
        let found = scan(&[row("a", 9, 1), row("b", 7, 1 << 40)].join("\n"));
        assert!(!found.sorted && found.single_turns);
        assert!(!scan(&[row("a", 7, 1), row("a", 9, 1)].join("\n")).single_turns);
    }
}
