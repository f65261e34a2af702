//! What a planner says, held against what it can mean.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::plain_words::{number, plain};
use crate::replay::{Decision, Planner, PlannerError, Snapshot};

use super::sizes::check_pool;

/// An object by the names of its keys; a list would pass by position.
///
/// # Errors
/// What is wrong, and where in it.
pub(super) fn object<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    if !value.is_object() {
        return Err("expected a JSON object".into());
    }
    serde_path_to_error::deserialize(value)
        .map_err(|error| plain(&error.path().to_string(), &error.inner().to_string()))
}

/// What a fleet has that decisions are about.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sides {
    /// It has prefill workers.
    pub(super) disaggregated: bool,
    /// Ranks of a worker that answers.
    pub(super) dp_size: u32,
}

/// A planner whose decisions the fleet can follow.
pub(super) struct Checked {
    pub(super) planner: Box<dyn Planner>,
    pub(super) sides: Sides,
}

impl Planner for Checked {
    fn initial_tick_ms(&mut self) -> Result<Option<f64>, PlannerError> {
        self.planner.initial_tick_ms()
    }

    fn on_tick(&mut self, snapshot: &Snapshot) -> Result<Decision, PlannerError> {
        let decision = self.planner.on_tick(snapshot)?;
        match check(&decision, snapshot.now_ms, self.sides) {
            Ok(()) => Ok(decision),
            Err(what) => Err(PlannerError::Failed(what)),
        }
    }
}

/// Whether a decision at `now_ms` can be followed.
fn check(decision: &Decision, now_ms: f64, sides: Sides) -> Result<(), String> {
    if let Some(target) = decision.target_prefill.filter(|_| !sides.disaggregated) {
        return Err(format!(
            "target_prefill is {target}, but the fleet is aggregated; leave it out, target_decode is for its workers"
        ));
    }
    check_pool("target_prefill", decision.target_prefill.unwrap_or(0), 1)?;
    check_pool("target_decode", decision.target_decode.unwrap_or(0), sides.dp_size)?;
    match decision.next_tick_ms.filter(|next| *next <= now_ms) {
        Some(next) => Err(format!(
            "next_tick_ms is {}, expected later than the tick itself, {} ms; leave it out after the last one",
            number(next),
            number(now_ms)
        )),
        None => Ok(()),
    }
}

/// Whether every entry of a script is reached and can be followed.
///
/// # Errors
/// What is wrong, and in which entry.
pub(super) fn check_script(script: &Value, sides: Sides) -> Result<(), String> {
    let mut now_ms = script["initial_tick_ms"].as_f64();
    for (at, tick) in script["ticks"].as_array().into_iter().flatten().enumerate() {
        let entry = |what: String| format!("ticks[{at}]: {what}");
        let Some(now) = now_ms else {
            let before = at.saturating_sub(1);
            return Err(entry(format!(
                "it is never reached, as ticks[{before}] has no next_tick_ms"
            )));
        };
        let decision: Decision = object(tick.clone()).map_err(entry)?;
        check(&decision, now, sides).map_err(entry)?;
        now_ms = decision.next_tick_ms;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_script_whose_entries_are_not_reached_or_cannot_be_followed_is_refused() {
        for (ticks, expected) in [
            (json!([[1, 2]]), "ticks[0]: expected a JSON object"),
            (
                json!([{"target_decode": 2}, {"target_decode": 3}]),
                "ticks[1]: it is never reached, as ticks[0] has no next_tick_ms",
            ),
            (
                json!([{"next_tick_ms": 9}, {"next_tick_ms": 9.0}]),
                "ticks[1]: next_tick_ms is 9, expected later than the tick itself, 9 ms",
            ),
            (
                json!([{"target_prefill": 0}]),
                "ticks[0]: target_prefill is 0, but the fleet is aggregated",
            ),
            (
                json!([{"target_decode": -1}]),
                "ticks[0]: target_decode is -1, expected a whole number from 0 to 4294967295",
            ),
            (
                json!([{"target_decode": 4_294_967_295u32}]),
                "ticks[0]: target_decode is 4294967295, expected at most 65536",
            ),
            (
                json!([{"target_decode": 40_000}]),
                "ticks[0]: target_decode 40000 with dp_size 8 makes 320000 ranks, expected at most 262144",
            ),
        ] {
            let script = json!({"initial_tick_ms": 5, "ticks": ticks});
            let sides = Sides {
                disaggregated: false,
                dp_size: 8,
            };
            let error = check_script(&script, sides).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let script =
            json!({"initial_tick_ms": 5, "ticks": [{"target_prefill": 2, "next_tick_ms": 6}, {"target_decode": 1}]});
        let sides = Sides {
            disaggregated: true,
            dp_size: 1,
        };
        assert_eq!(check_script(&script, sides), Ok(()));
    }
}
