//! Form of the recordings.

use std::collections::BTreeMap;

use ghostfleet::engine::{Profile, ProfilePoints};
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Deserialize)]
pub(crate) struct Case {
    /// Of a handoff: what both sides are built from.
    #[serde(default)]
    pub(crate) engine_config: Option<Value>,
    #[serde(default)]
    pub(crate) prefill_engine_args: Option<Value>,
    #[serde(default)]
    pub(crate) decode_engine_args: Option<Value>,
    #[serde(default)]
    pub(crate) engine_args: Option<Value>,
    #[serde(default)]
    pub(crate) trace_block_size: u32,
    #[serde(default)]
    pub(crate) trace: Vec<Row>,
    /// Of handoffs of several requests.
    #[serde(default)]
    pub(crate) requests: Vec<HandedOver>,
    /// Arrays of the profile that the arguments name.
    #[serde(default)]
    pub(crate) files: BTreeMap<String, Arrays>,
    pub(crate) expected: Expected,
}

/// A performance NPZ.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Arrays {
    pub(crate) prefill_isl: Vec<f64>,
    pub(crate) prefill_ttft_ms: Vec<f64>,
    pub(crate) decode_active_kv_tokens: Vec<f64>,
    pub(crate) decode_context_length: Vec<f64>,
    pub(crate) decode_itl: Vec<Vec<f64>>,
}

impl Arrays {
    pub(crate) fn profile(&self) -> Profile {
        Profile::new(ProfilePoints {
            prefill_isl: self.prefill_isl.clone(),
            prefill_ttft_ms: self.prefill_ttft_ms.clone(),
            decode_active_kv_tokens: self.decode_active_kv_tokens.clone(),
            decode_context_length: self.decode_context_length.clone(),
            decode_itl: self.decode_itl.concat(),
        })
        .unwrap()
    }
}

/// One request of the trace.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Row {
    pub(crate) session_id: String,
    pub(crate) timestamp: f64,
    pub(crate) input_length: usize,
    pub(crate) output_length: u32,
    pub(crate) hash_ids: Vec<u32>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Expected {
    pub(crate) engine_core_1_6_1: Option<Core>,
    pub(crate) dynamo_1_4_2: Option<Replay>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Core {
    #[serde(default)]
    pub(crate) engine_config: Option<Value>,
    #[serde(default)]
    pub(crate) dp_size: usize,
    #[serde(default)]
    pub(crate) steps: Vec<Step>,
    /// Both sides of a handoff.
    #[serde(default)]
    pub(crate) prefill: Vec<HandoffStep>,
    #[serde(default)]
    pub(crate) decode: Vec<HandoffStep>,
}

/// A request that is handed over.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HandedOver {
    pub(crate) uuid: u64,
    pub(crate) input_length: usize,
    pub(crate) output_length: u32,
    pub(crate) hash_ids: Vec<u32>,
}

/// A command to one side of a handoff, or a pass of it, and what followed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HandoffStep {
    pub(crate) command: Option<String>,
    /// Whom it is about where there are several.
    pub(crate) request: Option<u64>,
    pub(crate) result: Option<String>,
    pub(crate) at_ms: Option<f64>,
    pub(crate) pass: Option<(f64, f64)>,
    pub(crate) active_blocks: u32,
    pub(crate) inactive_blocks: Option<u32>,
    pub(crate) running: Option<u32>,
    pub(crate) waiting: Option<u32>,
    #[serde(default)]
    pub(crate) admitted_reused: Vec<u32>,
    /// Events of transfers that ended while nothing ran before the pass.
    #[serde(default)]
    pub(crate) before: Vec<Event>,
    pub(crate) kv: Vec<Event>,
    pub(crate) lifecycle: Vec<Value>,
    #[serde(default)]
    pub(crate) tokens: Vec<(u32, bool)>,
    /// Where there are several: request and reused tokens; who gave way; request, token, end and refusal.
    #[serde(default)]
    pub(crate) admitted: Vec<(u64, u32)>,
    #[serde(default)]
    pub(crate) preempted: Vec<u64>,
    #[serde(default)]
    pub(crate) outputs: Vec<(u64, Option<u32>, bool, bool)>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Step {
    pub(crate) start_ms: f64,
    pub(crate) end_ms: f64,
    pub(crate) start: Vec<Start>,
    pub(crate) end: Vec<End>,
    /// Events of transfers that ended while nothing ran before the pass.
    #[serde(default)]
    pub(crate) before: Vec<Event>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Start {
    pub(crate) rank: usize,
    pub(crate) rank_end_ms: f64,
    pub(crate) admitted: Vec<(String, u32)>,
    pub(crate) preempted: Vec<String>,
    #[serde(rename = "kv_at_start")]
    pub(crate) kv_first: Vec<Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct End {
    pub(crate) rank: usize,
    pub(crate) tokens: Vec<Token>,
    pub(crate) kv: Vec<Event>,
    pub(crate) metrics: Metrics,
    pub(crate) fpm: Fpm,
}

/// Request, token, what it means (`more`, `done`, `rejected`), reused tokens with the first one.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Token(
    pub(crate) String,
    pub(crate) Option<u32>,
    pub(crate) String,
    pub(crate) Option<u32>,
);

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Event {
    pub(crate) id: u64,
    pub(crate) rank: usize,
    #[serde(default)]
    pub(crate) parent: Option<String>,
    #[serde(default)]
    pub(crate) stored: Option<Vec<(String, String)>>,
    #[serde(default)]
    pub(crate) removed: Option<Vec<String>>,
    /// Where, if not in the GPU.
    #[serde(default)]
    pub(crate) tier: Option<String>,
    #[serde(default, rename = "start_position")]
    #[allow(dead_code)]
    pub(crate) position: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Metrics {
    pub(crate) active_blocks: u32,
    pub(crate) inactive_blocks: u32,
    pub(crate) preemptions: u64,
    pub(crate) running: u32,
    pub(crate) total_blocks: u32,
    pub(crate) waiting: u32,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fpm {
    pub(crate) duration_ms: f64,
    pub(crate) num_prefill: u32,
    pub(crate) prefill_tokens: u64,
    pub(crate) prefill_kv: u64,
    pub(crate) num_decode: u32,
    pub(crate) decode_kv: u64,
    pub(crate) queued_prefill: u32,
    pub(crate) queued_decode: u32,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Replay {
    pub(crate) requests: Vec<Outcome>,
}

/// What became of one request.
#[derive(Debug, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) first_admit_ms: Option<f64>,
    pub(crate) first_token_ms: Option<f64>,
    pub(crate) last_token_ms: Option<f64>,
    pub(crate) output_length: u32,
    #[serde(default)]
    pub(crate) reused_input_tokens: u32,
    pub(crate) terminal_status: String,
    pub(crate) source_held_ms: Option<f64>,
    pub(crate) destination_reserved_ms: Option<f64>,
    pub(crate) destination_activated_ms: Option<f64>,
}
