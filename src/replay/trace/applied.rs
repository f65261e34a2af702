//! Applied-compute traces: one session of tool calls per line.
//!
//! Each turn's prompt is the one before with the answer and the tool's output behind it. Source: Dynamo 1.6.1 replay.

use std::io::BufRead;

use serde::Deserialize;

use crate::plain_words::number;

use super::super::sessions::{SessionTrace, TurnSpec};
use super::line::{Lines, MAX_MS, TraceError};
use super::place::{LineNumbers, Offsets, Rewind};
use super::turn_file::{FoundTurn, TurnFile};

/// What sessions are called, before their number.
const LABEL: &str = "applied_compute_agentic_session_";

/// Ids of groups have this bit, fresh ones do not.
const OF_GROUPS: u64 = 1 << 63;

#[derive(Deserialize)]
struct Row {
    num_turns: u32,
    input_prompt_length: u32,
    assistant_response_length: Vec<u32>,
    tool_call_output_length: Vec<u32>,
    tool_call_latency: Vec<f64>,
    final_assistant_response_length: u32,
}

/// What first prompts have in common.
#[derive(Debug, Clone, Copy, Default)]
pub struct SharedPrefix {
    /// Share of a first prompt's blocks.
    pub ratio: f64,
    /// Groups, dealt out by line; 0: nothing is shared.
    pub groups: u32,
}

/// One session: what its turns are made of.
struct Session {
    row: Row,
    block_tokens: u32,
    /// Leading blocks of every prompt that the group has, and the group.
    shared: u64,
    group: u64,
    /// Ids up to this one were given out before.
    fresh: u64,
    /// Prompt tokens of each turn.
    inputs: Vec<u32>,
}

impl Session {
    /// The session in the line that was read last, the `number`th of the file, counted from 0.
    fn read<R: BufRead>(
        lines: &Lines<R>,
        (block_tokens, prefix): (u32, SharedPrefix),
        (number, fresh): (u64, u64),
    ) -> Result<Self, TraceError> {
        let row: Row = lines.parse(&[])?;
        check(lines, &row)?;
        let mut input_tokens = row.input_prompt_length;
        let grouped = prefix.ratio > 0.0 && prefix.groups > 0;
        let blocks = f64::from(input_tokens.div_ceil(block_tokens));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let shared = if grouped {
            (blocks * prefix.ratio).round() as u64
        } else {
            0
        };
        let mut session = Self {
            block_tokens,
            shared,
            group: number.checked_rem(u64::from(prefix.groups)).unwrap_or(0),
            fresh,
            inputs: Vec::with_capacity(row.num_turns as usize + 1),
            row,
        };
        for turn in 0..=session.row.num_turns as usize {
            lines.check_tokens("the prompt of a turn", input_tokens)?;
            lines.check_tokens("the answer of a turn", session.output_tokens(turn))?;
            session.inputs.push(input_tokens);
            let tool = session.row.tool_call_output_length.get(turn).copied().unwrap_or(0);
            input_tokens = input_tokens
                .saturating_add(session.output_tokens(turn))
                .saturating_add(tool);
        }
        Ok(session)
    }

    fn output_tokens(&self, turn: usize) -> u32 {
        let answer = self.row.assistant_response_length.get(turn).copied();
        answer.unwrap_or(self.row.final_assistant_response_length)
    }

    /// Ids of its own in the first so many blocks.
    fn own(&self, blocks: u32) -> u64 {
        u64::from(blocks).saturating_sub(self.shared)
    }

    /// The last id that it gives out.
    fn last(&self) -> u64 {
        let tokens = self.inputs.last().copied().unwrap_or(0);
        self.fresh + self.own(tokens.div_ceil(self.block_tokens))
    }

    fn turn(&self, turn: usize) -> TurnSpec {
        let input_tokens = self.inputs[turn];
        let own = self.own(input_tokens.div_ceil(self.block_tokens));
        let shared = (0..self.shared).map(|at| OF_GROUPS | self.group << 32 | at);
        let latency = turn
            .checked_sub(1)
            .and_then(|before| self.row.tool_call_latency.get(before));
        TurnSpec {
            hash_ids: shared.chain(self.fresh + 1..=self.fresh + own).collect(),
            input_tokens,
            output_tokens: self.output_tokens(turn),
            delay_ms: latency.map_or(0.0, |latency| latency * 1000.0),
            ..TurnSpec::default()
        }
    }
}

/// Reads a whole trace whose hash ids stand for `block_tokens` tokens.
///
/// # Errors
/// [`TraceError`] names the line and the field.
pub fn read<R: BufRead>(
    mut lines: Lines<R>,
    block_tokens: u32,
    prefix: SharedPrefix,
) -> Result<SessionTrace, TraceError> {
    let mut trace = SessionTrace::new(block_tokens, false, LABEL);
    let (mut fresh, mut number) = (0, 0);
    while lines.advance()? {
        let session = Session::read(&lines, (block_tokens, prefix), (number, fresh))?;
        number += 1;
        let opened = trace.open(None, number, session.turn(0));
        for turn in 1..session.inputs.len() {
            trace.follow(opened, session.turn(turn));
        }
        fresh = session.last();
    }
    if trace.is_empty() {
        return Err(lines.wrong_file("no requests in the trace"));
    }
    Ok(trace)
}

/// A trace that is played from its file. Memory: some twenty bytes per session.
#[derive(Debug)]
pub struct AppliedFile<R> {
    lines: Lines<R>,
    form: (u32, SharedPrefix),
    offsets: Offsets,
    numbers: LineNumbers,
    /// Of each session: number of its first turn, and the last id before it.
    sessions: Vec<(u32, u64)>,
    turns: u32,
    /// Session that starts next.
    start: u32,
}

impl<R: Rewind> AppliedFile<R> {
    /// Checks every line of a file and keeps where it is.
    ///
    /// # Errors
    /// [`TraceError`] names the line and the field.
    pub fn new(lines: Lines<R>, block_tokens: u32, prefix: SharedPrefix) -> Result<Self, TraceError> {
        let mut file = Self {
            lines,
            form: (block_tokens, prefix),
            offsets: Offsets::default(),
            numbers: LineNumbers::default(),
            sessions: Vec::new(),
            turns: 0,
            start: 0,
        };
        let mut fresh = 0;
        while file.lines.advance()? {
            let number = file.offsets.len();
            let session = Session::read(&file.lines, file.form, (u64::from(number), fresh))?;
            let turns = u32::try_from(session.inputs.len()).ok();
            let turns = turns.and_then(|turns| file.turns.checked_add(turns));
            let turns = turns.ok_or_else(|| file.lines.wrong("more turns than can be counted"))?;
            file.offsets.push(file.lines.begin());
            file.numbers.push(number, file.lines.number());
            file.sessions.push((file.turns, fresh));
            file.turns = turns;
            fresh = session.last();
        }
        if file.sessions.is_empty() {
            return Err(file.lines.wrong_file("no requests in the trace"));
        }
        Ok(file)
    }

    /// Number of the session that has a turn.
    fn session_of(&self, turn: u32) -> usize {
        self.sessions.partition_point(|&(first, _)| first <= turn) - 1
    }
}

impl<R: Rewind> TurnFile for AppliedFile<R> {
    fn total(&self) -> u64 {
        u64::from(self.turns)
    }

    fn block_tokens(&self) -> u32 {
        self.form.0
    }

    fn is_delta(&self) -> bool {
        false
    }

    fn label(&self) -> &'static str {
        LABEL
    }

    fn earliest_ms(&self) -> f64 {
        0.0
    }

    fn next_start(&mut self) -> Option<u32> {
        let &(first, _) = self.sessions.get(self.start as usize)?;
        self.start += 1;
        Some(first)
    }

    fn is_of_requests(&self) -> bool {
        false
    }

    fn following(&self, turn: u32) -> Option<u32> {
        let behind = self.sessions.get(self.session_of(turn) + 1);
        let end = behind.map_or(self.turns, |&(first, _)| first);
        Some(turn + 1).filter(|&next| next < end)
    }

    fn fetch(&mut self, turn: u32, _last_seen: Option<f64>) -> Result<FoundTurn, TraceError> {
        let at = self.session_of(turn);
        let (first, fresh) = self.sessions[at];
        let row = u32::try_from(at).unwrap_or(u32::MAX);
        self.lines.read_again(self.offsets.get(row), self.numbers.get(row))?;
        let session = Session::read(&self.lines, self.form, (u64::from(row), fresh))?;
        let place = (turn - first) as usize;
        if place >= session.inputs.len() {
            return Err(self.lines.changed());
        }
        let turn = session.turn(place);
        Ok(FoundTurn {
            session: None,
            number: u64::from(row) + 1,
            timestamp: None,
            delay_ms: turn.delay_ms,
            last_seen: None,
            turn,
        })
    }
}

fn check<R: BufRead>(lines: &Lines<R>, row: &Row) -> Result<(), TraceError> {
    let lengths = [
        ("assistant_response_length", row.assistant_response_length.len()),
        ("tool_call_output_length", row.tool_call_output_length.len()),
        ("tool_call_latency", row.tool_call_latency.len()),
    ];
    for (field, length) in lengths {
        if length != row.num_turns as usize {
            let turns = row.num_turns;
            return Err(lines.wrong(format!("{field} has {length} entries, expected num_turns, {turns}")));
        }
    }
    if row.input_prompt_length == 0 {
        return Err(lines.wrong("input_prompt_length is 0, expected at least 1"));
    }
    let longest = MAX_MS / 1e3;
    let latencies = row.tool_call_latency.iter();
    match latencies.copied().find(|latency| !(0.0..=longest).contains(latency)) {
        Some(latency) => Err(lines.wrong(format!(
            "tool_call_latency holds {}, expected seconds from 0 to {longest:e}",
            number(latency)
        ))),
        None => Ok(()),
    }
}
