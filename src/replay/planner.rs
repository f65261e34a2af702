//! Policies that scale a fleet while it is replayed.
//!
//! A policy is asked at times that it chooses itself. It sees the workers, the traffic since it was last asked and the
//! latest forward pass of each rank, and says how many workers it wants. Names and meanings of all figures: Dynamo 1.6.1
//! replay.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::types::SimTime;

/// A policy that cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlannerError {
    /// What went wrong.
    #[error("planner: {0}")]
    Failed(String),
    /// The user wants the run to end, and it did not answer before that.
    #[error("planner: interrupted before its answer")]
    Interrupted,
}

/// A policy.
pub trait Planner {
    /// When to ask first, ms; `None` or a number that is not finite: never.
    ///
    /// # Errors
    /// [`PlannerError`] ends the replay.
    fn initial_tick_ms(&mut self) -> Result<Option<f64>, PlannerError>;

    /// What to do now.
    ///
    /// # Errors
    /// As [`Self::initial_tick_ms`].
    fn on_tick(&mut self, snapshot: &Snapshot) -> Result<Decision, PlannerError>;
}

/// What a policy wants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Decision {
    /// Prefill workers, those that start included; `None`: as before.
    pub target_prefill: Option<u32>,
    /// Decode or aggregated workers; `None`: as before.
    pub target_decode: Option<u32>,
    /// When to ask again, ms, later than now; anything else: never.
    pub next_tick_ms: Option<f64>,
}

/// The fleet at one tick. Times in ms of the virtual clock.
#[allow(missing_docs)]
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Snapshot {
    pub tick_ordinal: u64,
    pub now_ms: f64,
    pub active_prefill_count: usize,
    pub active_prefill_ids: Vec<u32>,
    pub starting_prefill_count: usize,
    pub starting_prefill_ids: Vec<u32>,
    pub draining_prefill_count: usize,
    pub draining_prefill_ids: Vec<u32>,
    /// Active and starting.
    pub non_draining_prefill_count: usize,
    pub total_prefill_count: usize,
    pub active_decode_count: usize,
    pub active_decode_ids: Vec<u32>,
    pub starting_decode_count: usize,
    pub starting_decode_ids: Vec<u32>,
    pub draining_decode_count: usize,
    pub draining_decode_ids: Vec<u32>,
    /// Active and starting.
    pub non_draining_decode_count: usize,
    pub total_decode_count: usize,
    pub prefill_fpm_snapshots: Vec<ForwardMetrics>,
    /// Of aggregated workers too.
    pub decode_fpm_snapshots: Vec<ForwardMetrics>,
    pub traffic: Traffic,
}

/// Requests since the last tick.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Traffic {
    pub duration_s: f64,
    /// Requests that arrived.
    pub num_req: u64,
    /// Means over `shape_count` requests that completed.
    pub avg_isl: f64,
    pub avg_osl: f64,
    pub avg_ttft_ms: f64,
    /// Mean over requests of the mean gap between their tokens.
    pub avg_itl_ms: f64,
    pub shape_count: u64,
    pub ttft_count: u64,
    pub itl_count: u64,
    /// Share of prompt blocks that was cached where requests were sent.
    pub avg_kv_hit_rate: f64,
    pub hit_rate_count: u64,
    /// Tokens per decode step of a request; `None` without any.
    pub avg_accept_length: Option<f64>,
    pub accept_length_forward_count: u64,
}

/// Latest forward pass of one rank.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ForwardMetrics {
    pub worker_id: u32,
    pub dp_rank: u32,
    /// Seconds.
    pub wall_time: f64,
    pub num_prefill_requests: u32,
    pub sum_prefill_tokens: u64,
    pub var_prefill_length: f64,
    pub sum_prefill_kv_tokens: u64,
    pub num_decode_requests: u32,
    pub sum_decode_kv_tokens: u64,
    pub var_decode_kv_tokens: f64,
    pub num_queued_prefill: u32,
    pub sum_queued_prefill_tokens: u64,
    pub var_queued_prefill_length: f64,
    pub num_queued_decode: u32,
    pub sum_queued_decode_kv_tokens: u64,
    pub var_queued_decode_kv_tokens: f64,
}

/// Sums since the last tick.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Window {
    pub(crate) began: SimTime,
    pub(crate) arrivals: u64,
    completed: u64,
    input_tokens: u64,
    output_tokens: u64,
    ttft_ms: (f64, u64),
    itl_ms: (f64, u64),
    hit_rate: (f64, u64),
    pub(crate) decode_tokens: u64,
    pub(crate) decode_forwards: u64,
}

#[allow(clippy::cast_precision_loss)]
fn mean((sum, count): (f64, u64)) -> f64 {
    if count == 0 { 0.0 } else { sum / count as f64 }
}

impl Window {
    /// A request completed.
    pub(crate) fn completed(
        &mut self,
        input_tokens: u32,
        output_tokens: u32,
        ttft_ms: Option<f64>,
        itl_ms: Option<f64>,
    ) {
        self.completed += 1;
        self.input_tokens += u64::from(input_tokens);
        self.output_tokens += u64::from(output_tokens);
        for (sum, sample) in [
            (&mut self.ttft_ms, ttft_ms.filter(|ttft| *ttft > 0.0)),
            (&mut self.itl_ms, itl_ms),
        ] {
            if let Some(sample) = sample {
                sum.0 += sample;
                sum.1 += 1;
            }
        }
    }

    /// A request was sent where `overlap` of its `blocks` blocks were cached.
    pub(crate) fn placed(&mut self, overlap: u32, blocks: u32) {
        self.hit_rate.0 += f64::from(overlap) / f64::from(blocks.max(1));
        self.hit_rate.1 += 1;
    }

    /// The sums as a report, which starts the next window.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn close(&mut self, now: SimTime) -> Traffic {
        let closed = std::mem::replace(
            self,
            Self {
                began: now,
                ..Self::default()
            },
        );
        let forwards = closed.decode_forwards;
        Traffic {
            duration_s: now.since(closed.began).as_secs_f64(),
            num_req: closed.arrivals,
            avg_isl: mean((closed.input_tokens as f64, closed.completed)),
            avg_osl: mean((closed.output_tokens as f64, closed.completed)),
            avg_ttft_ms: mean(closed.ttft_ms),
            avg_itl_ms: mean(closed.itl_ms),
            shape_count: closed.completed,
            ttft_count: closed.ttft_ms.1,
            itl_count: closed.itl_ms.1,
            avg_kv_hit_rate: mean(closed.hit_rate),
            hit_rate_count: closed.hit_rate.1,
            avg_accept_length: (forwards > 0).then(|| closed.decode_tokens as f64 / forwards as f64),
            accept_length_forward_count: forwards,
        }
    }
}

/// A policy that follows a script.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// When it starts, ms.
    initial_tick_ms: f64,
    /// What it wants at each tick.
    ticks: VecDeque<Decision>,
}

impl Planner for Script {
    fn initial_tick_ms(&mut self) -> Result<Option<f64>, PlannerError> {
        Ok(Some(self.initial_tick_ms))
    }

    fn on_tick(&mut self, _snapshot: &Snapshot) -> Result<Decision, PlannerError> {
        Ok(self.ticks.pop_front().unwrap_or_default())
    }
}

/// A change of the number of workers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ScalingEvent {
    /// When, ms.
    pub at_ms: f64,
    /// `agg`, `prefill` or `decode`.
    pub pool: &'static str,
    /// Active and starting workers before.
    pub from: u32,
    /// And after.
    pub to: u32,
}

impl ScalingEvent {
    /// `scale_up` or `scale_down`.
    pub fn way(&self) -> &'static str {
        if self.to > self.from { "scale_up" } else { "scale_down" }
    }
}

/// What a policy did.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ScalingLog {
    /// How often it was asked.
    pub ticks: u64,
    /// What it changed.
    pub events: Vec<ScalingEvent>,
}

impl ScalingLog {
    /// With the key names of the peer; times in s.
    pub fn to_json(&self) -> Value {
        let events = self.events.iter().map(|event| {
            json!({
                "at_s": event.at_ms / 1e3,
                "component": event.pool,
                "from_count": event.from,
                "to_count": event.to,
                "reason": event.way(),
            })
        });
        json!({"total_ticks": self.ticks, "scaling_events": events.collect::<Vec<_>>()})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_reports_means_over_completed_requests_and_starts_again() {
        let mut window = Window {
            arrivals: 3,
            ..Window::default()
        };
        window.completed(100, 10, Some(20.0), Some(2.0));
        window.completed(300, 1, Some(0.0), None);
        window.placed(1, 4);
        let traffic = window.close(SimTime::of_nanos(500_000_000));
        assert_eq!((traffic.num_req, traffic.shape_count, traffic.ttft_count), (3, 2, 1));
        let means = (
            traffic.avg_isl,
            traffic.avg_osl,
            traffic.avg_ttft_ms,
            traffic.avg_itl_ms,
        );
        assert_eq!(means, (200.0, 5.5, 20.0, 2.0));
        assert_eq!((traffic.duration_s, traffic.avg_kv_hit_rate), (0.5, 0.25));
        assert_eq!(traffic.avg_accept_length, None);
        assert_eq!(window.close(SimTime::of_nanos(500_000_000)), Traffic::default());
    }

    #[test]
    fn a_script_gives_its_decisions_in_order_and_then_none() {
        let text = r#"{"initial_tick_ms": 5, "ticks": [{"target_decode": 3, "next_tick_ms": 9}]}"#;
        let mut script: Script = serde_json::from_str(text).unwrap();
        let snapshot = Snapshot::default();
        assert_eq!(script.initial_tick_ms(), Ok(Some(5.0)));
        assert_eq!(script.on_tick(&snapshot).unwrap().target_decode, Some(3));
        assert_eq!(script.on_tick(&snapshot), Ok(Decision::default()));
        assert!(serde_json::from_str::<Script>(r#"{"initial_tick_ms": 5, "tick": []}"#).is_err());
    }
}
