//! A trace driven through a group of ranks: arrivals at the ends of passes, or on time when idle.

use ghostfleet::config::EngineDocument;
use ghostfleet::engine::{Group, GroupPass, TokenSource, build};
use ghostfleet::types::{EngineRequest, HashSalt, RequestId, SimTime, StopRule};

use super::form::{Case, Row};

/// One pass and when it started.
pub(crate) struct Ran {
    pub(crate) starts_at: SimTime,
    pub(crate) pass: GroupPass,
}

/// Runs the trace of a case to its end.
pub(crate) fn run(case: &Case, args: &EngineDocument) -> Vec<Ran> {
    let mut config = args.engine.clone();
    config.token_source = TokenSource::Peer;
    config.data_parallel_size = args.data_parallel_size;
    let ranks = (0..args.data_parallel_size)
        .map(|rank| build(&config.of_rank(0, rank)).unwrap())
        .collect();
    let mut group = Group::new(ranks);
    let mut now = SimTime::ZERO;
    let mut arrivals = case.trace.iter().enumerate().peekable();
    let mut ran = Vec::new();
    loop {
        while let Some((at, row)) = arrivals.next_if(|(_, row)| arrival(row) <= now) {
            let rank = at % group.len();
            group
                .rank(rank)
                .unwrap()
                .submit(request(at, row, case.trace_block_size), now)
                .unwrap();
        }
        let mut pass = GroupPass::default();
        if group.step_into(now, &mut pass) {
            let starts_at = std::mem::replace(&mut now, pass.ends_at);
            ran.push(Ran { starts_at, pass });
        } else {
            let next = arrivals.peek().map(|(_, row)| arrival(row));
            let Some(next) = next.into_iter().chain(group.wakes_at()).min() else {
                return ran;
            };
            now = next;
        }
        assert!(ran.len() < 100_000, "no end");
    }
}

pub(crate) fn arrival(row: &Row) -> SimTime {
    SimTime::of_ms(row.timestamp)
}

pub(crate) fn request(at: usize, row: &Row, tokens_per_id: u32) -> EngineRequest {
    let uuid = at as u64 + 1;
    let tokens = row
        .hash_ids
        .iter()
        .flat_map(|&id| std::iter::repeat_n(id, tokens_per_id as usize));
    EngineRequest {
        id: RequestId(uuid),
        key: uuid,
        prompt: tokens.take(row.input_length).collect(),
        stop: StopRule {
            max_tokens: Some(row.output_length),
            ..StopRule::default()
        },
        planned: None,
        priority: 0,
        salt: HashSalt::default(),
        routing_key: None,
    }
}

/// Name of a request in the trace.
pub(crate) fn name(case: &Case, id: RequestId) -> String {
    case.trace[usize::try_from(id.0).unwrap() - 1].session_id.clone()
}
