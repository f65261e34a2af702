//! What the supervisors do about deaths: their rule, and where each actor that has died stands with it now.

use serde_json::{Value, json};

use crate::actors::supervision::{RestartPolicy, Supervised};
use crate::types::SimTime;

/// How patient a fleet is with its actors.
pub(super) fn rule() -> Value {
    let policy = RestartPolicy::default();
    json!({
        "budget": policy.budget,
        "window_s": policy.window.as_secs_f64(),
        "first_backoff_ms": policy.first_backoff.as_secs_f64() * 1e3,
        "max_backoff_ms": policy.max_backoff.as_secs_f64() * 1e3,
    })
}

/// The rule, and the actors that have died, as they stand at `now`.
pub(super) fn stand(deaths: &[Supervised], now: SimTime) -> Value {
    let mut value = rule();
    value["deaths"] = deaths.iter().map(|death| stands(death, now)).collect();
    value
}

/// One actor that has died: besides its last death what is left of its budget, and when it is back.
pub(super) fn stands(death: &Supervised, now: SimTime) -> Value {
    let in_window = death.in_window(now);
    let mut value = json!(death);
    value["deaths_in_window"] = json!(in_window);
    value["budget_left"] = json!(death.budget.saturating_sub(in_window));
    value["replaced_in_ms"] = json!(death.replaced_in_ms(now));
    value
}
