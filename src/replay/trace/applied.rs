//! Applied-compute traces: one session of tool calls per line.
//!
//! Each turn's prompt is the one before with the answer and the tool's output behind it. Source: Dynamo 1.6.1 replay.

use std::io::BufRead;

use serde::Deserialize;

use super::super::sessions::{SessionTrace, TurnSpec};
use super::line::{Kind, Lines, TraceError};

const FIELDS: [(&str, Kind); 6] = [
    ("num_turns", Kind::Count),
    ("input_prompt_length", Kind::Count),
    ("assistant_response_length", Kind::Counts),
    ("tool_call_output_length", Kind::Counts),
    ("tool_call_latency", Kind::Numbers),
    ("final_assistant_response_length", Kind::Count),
];

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

/// Reads a whole trace whose hash ids stand for `block_tokens` tokens.
///
/// # Errors
/// [`TraceError`] names the line and the field.
pub fn read<R: BufRead>(
    mut lines: Lines<R>,
    block_tokens: u32,
    prefix: SharedPrefix,
) -> Result<SessionTrace, TraceError> {
    let mut trace = SessionTrace::new(block_tokens, false, "applied_compute_agentic_session_");
    let grouped = prefix.ratio > 0.0 && prefix.groups > 0;
    let mut fresh = 0_u64;
    let mut row_number = 0_u32;
    while lines.advance()? {
        let row: Row = lines.parse(&FIELDS)?;
        check(&lines, &row)?;
        let mut input_tokens = row.input_prompt_length;
        let mut hash_ids: Vec<u64> = Vec::new();
        if grouped {
            let blocks = input_tokens.div_ceil(block_tokens);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let shared = (f64::from(blocks) * prefix.ratio).round() as u64;
            let group = u64::from(row_number % prefix.groups);
            hash_ids.extend((0..shared).map(|at| OF_GROUPS | group << 32 | at));
        }
        row_number += 1;
        let mut session = None;
        for turn in 0..=row.num_turns as usize {
            lines.check_tokens("the prompt of a turn", input_tokens)?;
            let blocks = input_tokens.div_ceil(block_tokens) as usize;
            while hash_ids.len() < blocks {
                fresh += 1;
                hash_ids.push(fresh);
            }
            let output_tokens = row.assistant_response_length.get(turn).copied();
            let spec = TurnSpec {
                hash_ids: hash_ids.clone(),
                input_tokens,
                output_tokens: output_tokens.unwrap_or(row.final_assistant_response_length),
                delay_ms: turn
                    .checked_sub(1)
                    .and_then(|before| row.tool_call_latency.get(before))
                    .map_or(0.0, |latency| latency * 1000.0),
                ..TurnSpec::default()
            };
            lines.check_tokens("the answer of a turn", spec.output_tokens)?;
            let added = spec
                .output_tokens
                .saturating_add(row.tool_call_output_length.get(turn).copied().unwrap_or(0));
            match session {
                None => session = Some(trace.open(None, u64::from(row_number), spec)),
                Some(session) => trace.follow(session, spec),
            }
            input_tokens = input_tokens.saturating_add(added);
        }
    }
    if trace.is_empty() {
        return Err(lines.wrong_file("no requests in the trace"));
    }
    Ok(trace)
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
    let latencies = row.tool_call_latency.iter();
    match latencies
        .copied()
        .find(|latency| !latency.is_finite() || *latency < 0.0)
    {
        Some(latency) => Err(lines.wrong(format!("tool_call_latency holds {latency}, expected seconds from 0 on"))),
        None => Ok(()),
    }
}
