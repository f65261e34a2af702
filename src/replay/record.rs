//! One line per request.

use serde::Serialize;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Terminal {
    /// With all its tokens.
    Completed,
    /// Too large for any worker.
    Rejected,
    /// Computed, or to be computed, by a prefill worker, but the decode worker that was to answer can never hold it. By the
    /// rules of 1.6.1 its session ends with it.
    Failed,
}

/// What became of a request. Times in ms of the virtual clock; keys as in Dynamo's replay.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RequestRecord {
    /// Not told, as the next one, where Dynamo plays single requests: the simplest synthetic load, and traces that come at
    /// their own times and have no session with two turns; nor with the rules of 1.4.2 where there is one worker.
    pub session_id: Option<String>,
    /// Not told of requests in a graph either.
    pub turn_index: Option<u32>,
    /// Place in a graph, with the rules of 1.6.1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agentic: Option<AgenticIdentity>,
    pub uuid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub play_id: Option<String>,
    pub arrival_time_ms: f64,
    pub dispatched_at_ms: Option<f64>,
    pub first_admit_ms: Option<f64>,
    pub terminal_time_ms: f64,
    pub first_token_ms: Option<f64>,
    pub last_token_ms: Option<f64>,
    pub ttft_ms: Option<f64>,
    pub ttst_ms: Option<f64>,
    pub e2e_latency_ms: Option<f64>,
    /// Mean gap between tokens.
    pub itl_ms: Option<f64>,
    pub input_length: u32,
    pub requested_output_length: u32,
    pub output_length: u32,
    pub reused_input_tokens: u32,
    /// At the first admission: from the GPU's own cache; told, as the next one, where there is host memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_admission_g1_reused_input_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_admission_host_reused_input_tokens: Option<u32>,
    pub prefill_worker_idx: Option<u32>,
    /// Not told with the rules of 1.4.2 where there is one worker.
    pub decode_worker_idx: Option<u32>,
    pub logical_worker_id: Option<u32>,
    pub dp_rank: Option<u32>,
    pub prefill_admit_ms: Option<f64>,
    pub source_held_ms: Option<f64>,
    pub destination_reserved_ms: Option<f64>,
    pub destination_activated_ms: Option<f64>,
    pub decode_admit_ms: Option<f64>,
    pub source_released_ms: Option<f64>,
    pub decode_reused_input_tokens: Option<u32>,
    pub prefill_route_overlap_tokens: Option<u32>,
    pub decode_route_overlap_tokens: Option<u32>,
    pub route_outcome: &'static str,
    pub route_queue_wait_ms: f64,
    pub selected_overlap_blocks: Option<u32>,
    pub best_available_overlap_blocks: Option<u32>,
    /// One entry per pool.
    pub routing_history: Vec<RoutingRecord>,
    pub admission_history: Vec<AdmissionRecord>,
    pub admission_count: u32,
    pub readmission_count: u32,
    /// Always empty: no replay of ours puts requests under pressure from outside.
    pub pressure_record_ordinals: Vec<u32>,
    pub terminal_status: Terminal,
}

/// Place of a request in a graph of requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AgenticIdentity {
    /// Its name.
    pub request_id: String,
    /// Its play.
    pub play_id: String,
    /// Its session.
    pub conversation_id: String,
    /// `lane:N` of its play, where there are lanes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane_id: Option<String>,
    /// The only request of its play that waits for nobody; none where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_id: Option<String>,
    /// The request that started its session, the first by name where several did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<String>,
}

/// Way through one router.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RoutingRecord {
    /// `aggregated`, `prefill` or `decode`.
    pub pool: &'static str,
    /// `immediate` or `queued`.
    pub outcome: &'static str,
    pub queue_entered_at_ms: Option<f64>,
    pub released_at_ms: Option<f64>,
    pub queue_wait_ms: f64,
    pub logical_worker_id: Option<u32>,
    pub scheduler_id: Option<u32>,
    pub dp_rank: Option<u32>,
    pub reported_overlap_tokens: u32,
    pub selected_overlap_blocks: Option<u32>,
    pub best_available_overlap_blocks: Option<u32>,
    pub overlap_regret_blocks: Option<u32>,
    pub placement_replica_id: Option<u32>,
}

/// One admission to a running batch.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdmissionRecord {
    pub admission_ordinal: u32,
    /// Among those of its pool.
    pub pool_admission_ordinal: u32,
    /// `aggregated`, `prefill` or `decode`.
    pub pool: &'static str,
    pub at_ms: f64,
    pub reused_input_tokens: u32,
    /// Of a first admission where there is host memory, as the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub g1_reused_input_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_reused_input_tokens: Option<u32>,
    /// After a preemption.
    pub is_readmission: bool,
}
