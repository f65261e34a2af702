//! The passes of an engine that runs a script.

use ghostfleet::engine::{Engine, EngineConfig, Output, OutputDetail, Pass, build};
use ghostfleet::types::{RequestId, SimTime};

use crate::load::{Op, Script};

/// More passes than any script of ours needs; an engine that runs longer starves somebody.
pub(crate) const PASSES: usize = 5_000;

/// Passes of `script` with the outputs that `detail` lists.
pub(crate) fn passes(
    config: &EngineConfig,
    script: &Script,
    detail: OutputDetail,
    quiet: bool,
) -> Vec<(SimTime, Pass)> {
    let mut engine = build(config).unwrap();
    engine.set_output_detail(detail);
    let mut now = SimTime::ZERO;
    let mut seen = Vec::new();
    let mut step = |engine: &mut dyn Engine, now: &mut SimTime| {
        if quiet && let Some(end) = engine.step_quiet(*now) {
            assert!(end >= *now);
            *now = end;
            return true;
        }
        let Some(pass) = engine.step(*now) else {
            let at = engine.wakes_at();
            *now = (*now).max(at.unwrap_or_default());
            return at.is_some();
        };
        *now = pass.ends_at;
        seen.push((*now, pass));
        true
    };
    for (number, op) in script.ops.iter().enumerate() {
        match op {
            Op::Submit(shape) => drop(engine.submit(shape.request(number as u64), now)),
            Op::Steps(count) => {
                for _ in 0..*count {
                    step(engine.as_mut(), &mut now);
                }
            }
            Op::Cancel(at) => drop(engine.cancel(RequestId(*at as u64), now)),
            Op::ClearCache => drop(engine.clear_cache()),
            Op::Withhold(percent) => {
                let whole = engine.load().total_blocks + engine.withheld();
                drop(engine.withhold(whole * percent / 100));
            }
        }
    }
    engine.withhold(0);
    let mut left = PASSES;
    while step(engine.as_mut(), &mut now) {
        left -= 1;
        assert!(left > 0, "starved: {:?}", engine.load());
    }
    seen
}

/// First and last tokens only.
pub(crate) fn milestones(passes: Vec<(SimTime, Pass)>) -> Vec<(SimTime, Pass)> {
    let mut started = std::collections::BTreeSet::new();
    let keep = |(now, mut pass): (SimTime, Pass)| {
        pass.outputs.retain(|output| match *output {
            Output::Token { id, finish, .. } => started.insert(id) || finish.is_some(),
            Output::Empty { .. } | Output::Rejected { .. } => true,
        });
        (now, pass)
    };
    passes.into_iter().map(keep).collect()
}

/// Passes in which somebody hears something or the cache changes.
pub(crate) fn eventful(mut passes: Vec<(SimTime, Pass)>) -> Vec<(SimTime, Pass)> {
    passes.retain(|(_, pass)| {
        !(pass.outputs.is_empty()
            && pass.admissions.is_empty()
            && pass.preempted.is_empty()
            && pass.kv_events.is_empty()
            && pass.tier_events.is_empty())
    });
    passes
}
