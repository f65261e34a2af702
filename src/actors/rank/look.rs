//! What a rank says of itself.

use actix::prelude::*;
use serde_json::{Value, json};

use super::super::inspect::Look;
use super::{Activity, Rank};
use crate::types::RequestId;

/// Asks whether the rank has one of these requests; if so, what their handoffs wait for, in words.
#[derive(Message)]
#[rtype(result = "Option<Vec<String>>")]
pub(in super::super) struct Holds(pub(in super::super) Vec<RequestId>);

impl Handler<Holds> for Rank {
    type Result = MessageResult<Holds>;

    fn handle(&mut self, Holds(ids): Holds, _: &mut Self::Context) -> Self::Result {
        let held = ids.iter().any(|id| self.streams.contains_key(id));
        MessageResult(held.then(|| ids.iter().filter_map(|id| self.handoffs.waits_for(*id)).collect()))
    }
}

impl Handler<Look> for Rank {
    type Result = MessageResult<Look>;

    fn handle(&mut self, _: Look, _: &mut Self::Context) -> Self::Result {
        let now = self.clock.now();
        let activity: Value = match self.activity {
            Activity::Idle if !self.started => json!({"starts_in_ms": self.starts_at.since(now).as_secs_f64() * 1e3}),
            Activity::Idle => json!("idle"),
            Activity::Turn => json!("between passes"),
            Activity::Pass { ends_at, began, .. } => json!({"pass": {
                "began_ms": began.as_ms(),
                "ends_in_ms": ends_at.since(now).as_secs_f64() * 1e3,
                "overdue_ms": now.since(ends_at).as_secs_f64() * 1e3,
            }}),
        };
        MessageResult(json!({
            "activity": activity,
            "hangs": self.faults.hangs,
            "streams": self.streams.len(),
            "load": self.engine.load(),
            "publisher_missed_events": self.resync,
        }))
    }
}
