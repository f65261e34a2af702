//! What the tests of cost share: requests, and passes run to their end.

use crate::types::{EngineRequest, HashSalt, RequestId, SimTime, StopRule};

use super::Engine;

/// A request that generates `max_tokens` tokens; prompts of one `family` start alike, those of others do not.
pub(super) fn request(id: u64, family: u32, prompt_len: u32, max_tokens: u32) -> EngineRequest {
    EngineRequest {
        id: RequestId(id),
        key: id,
        prompt: (0..prompt_len).map(|at| at + 100_000 * family).collect(),
        stop: StopRule {
            max_tokens: Some(max_tokens),
            ignore_eos: true,
            ..StopRule::default()
        },
        planned: None,
        priority: 0,
        salt: HashSalt::default(),
        routing_key: None,
    }
}

/// Runs from `now` until there is nothing to do; returns when that is, and the requests preempted on the way.
pub(super) fn run(engine: &mut impl Engine, mut now: SimTime) -> (SimTime, usize) {
    let mut preempted = 0;
    while let Some(pass) = engine.step(now) {
        now = pass.ends_at;
        preempted += pass.preempted.len();
    }
    (now, preempted)
}

/// Runs from the start until there is nothing to do; returns how many passes were quiet and how many were not.
pub(super) fn quiet_and_loud(engine: &mut impl Engine) -> (u32, u32) {
    let mut now = SimTime::ZERO;
    let (mut quiet, mut loud) = (0, 0);
    loop {
        if let Some(end) = engine.step_quiet(now) {
            now = end;
            quiet += 1;
        } else if let Some(pass) = engine.step(now) {
            now = pass.ends_at;
            loud += 1;
        } else {
            return (quiet, loud);
        }
    }
}
