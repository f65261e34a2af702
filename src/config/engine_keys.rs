//! The keys of engine documents and what they mean, one table per dialect.
//!
//! Null is refused where the peer refuses it. What a value may be is not said here but by the settings, for all places
//! alike; so the flat dialect also takes what only Dynamo 1.6.1 and real engines do: `max_model_len` for every engine,
//! `schedule_conservativeness` above 1, and every policy that a flag has.

use serde_json::{Value, json};

/// What a key of a document means.
#[derive(Debug, Clone, Copy)]
pub(super) enum Meaning {
    /// A setting; null is as good as absent.
    Setting(&'static str),
    /// A setting; null is refused.
    NotNull(&'static str),
    /// A number that is 1 anyway; null is refused.
    BeyondOne(&'static str),
    /// A number of things of which there must be one: neither null nor 0.
    Count(&'static str),
    /// A limit; null takes it away.
    Limit(&'static str),
    /// A setting whose 0 stands for its default.
    ZeroIsDefault(&'static str),
    /// A setting whose words may be written in any case.
    AnyCase(&'static str),
    /// An object whose members are keys of their own; null is as good as absent.
    Object,
    /// An object whose members are keys of their own; null is refused.
    Section,
    /// As [`Self::Object`], with members that must be there.
    With(&'static [&'static str]),
    /// Says nothing that matters here.
    NoEffect,
    /// Not modelled; only what the peer assumes anyway is accepted.
    Unmodelled(Assumed),
}

/// What the peer assumes when a key is absent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Assumed {
    Nothing,
    /// Yes or no: the worker decides it by its role and its prefix cache, as the peer's does.
    Either,
    NoneOf,
}

impl Assumed {
    pub(super) fn is(self, value: &Value) -> bool {
        match self {
            Self::Nothing => value.is_null(),
            Self::Either => value.is_boolean(),
            Self::NoneOf => value == &json!([]),
        }
    }
}

pub(super) type Key = (&'static str, Meaning);

use Meaning::{
    AnyCase, BeyondOne, Count, Limit, NoEffect, NotNull, Object, Section, Setting, Unmodelled, With, ZeroIsDefault,
};

/// Dynamo 1.4.2.
pub(super) const FLAT: &[Key] = &[
    ("engine_type", AnyCase("engine_type")),
    ("num_gpu_blocks", Setting("num_gpu_blocks_override")),
    ("block_size", ZeroIsDefault("block_size")),
    ("max_model_len", Setting("max_model_len")),
    ("max_num_seqs", Limit("max_num_seqs")),
    ("max_num_batched_tokens", Limit("max_num_batched_tokens")),
    ("enable_prefix_caching", NotNull("enable_prefix_caching")),
    ("enable_chunked_prefill", NotNull("enable_chunked_prefill")),
    ("g1_backend", NotNull("g1_backend")),
    ("speedup_ratio", NotNull("speedup_ratio")),
    ("decode_speedup_ratio", NotNull("decode_speedup_ratio")),
    ("dp_size", NotNull("data_parallel_size")),
    ("startup_time", Setting("startup_time")),
    ("worker_type", NotNull("disaggregation_mode")),
    ("is_prefill", NotNull("is_prefill_worker")),
    ("is_decode", NotNull("is_decode_worker")),
    ("planner_profile_data", Setting("planner_profile_data")),
    ("aic_backend", Setting("aic_backend")),
    ("aic_system", Setting("aic_system")),
    ("aic_backend_version", Setting("aic_backend_version")),
    ("aic_tp_size", Setting("aic_tp_size")),
    ("aic_model_path", Setting("aic_model_path")),
    ("aic_moe_tp_size", Setting("aic_moe_tp_size")),
    ("aic_moe_ep_size", Setting("aic_moe_ep_size")),
    ("aic_attention_dp_size", Setting("aic_attention_dp_size")),
    ("aic_gemm_dtype", Setting("aic_gemm_dtype")),
    ("aic_moe_dtype", Setting("aic_moe_dtype")),
    ("aic_fmha_dtype", Setting("aic_fmha_dtype")),
    ("aic_kv_cache_dtype", Setting("aic_kv_cache_dtype")),
    ("aic_comm_dtype", Setting("aic_comm_dtype")),
    ("aic_nextn", Setting("aic_nextn")),
    ("aic_nextn_accept_rates", Setting("aic_nextn_accept_rates")),
    ("aic_mtp_seed", NotNull("aic_mtp_seed")),
    ("gpu_memory_utilization", Setting("gpu_memory_utilization")),
    ("mem_fraction_static", Setting("mem_fraction_static")),
    ("free_gpu_memory_fraction", Setting("free_gpu_memory_fraction")),
    ("enable_local_indexer", NotNull("enable_local_indexer")),
    ("bootstrap_port", Setting("bootstrap_ports")),
    ("zmq_kv_events_port", Setting("zmq_kv_events_ports")),
    ("zmq_replay_port", Setting("zmq_replay_ports")),
    ("handoff_session_timeout_ms", NotNull("handoff_session_timeout_ms")),
    ("kv_bytes_per_token", Setting("kv_bytes_per_token")),
    ("kv_transfer_bandwidth", Setting("kv_transfer_bandwidth")),
    ("kv_transfer_timing_mode", NotNull("kv_transfer_timing_mode")),
    ("num_g2_blocks", Setting("num_g2_blocks")),
    ("num_g3_blocks", Setting("num_g3_blocks")),
    ("offload_batch_size", Setting("offload_batch_size")),
    ("enable_g4_storage", NotNull("enable_g4_storage")),
    ("bandwidth_g1_to_g2_gbps", Setting("bandwidth_g1_to_g2_gbps")),
    ("bandwidth_g2_to_g1_gbps", Setting("bandwidth_g2_to_g1_gbps")),
    ("bandwidth_g2_to_g3_gbps", Setting("bandwidth_g2_to_g3_gbps")),
    ("bandwidth_g3_to_g2_gbps", Setting("bandwidth_g3_to_g2_gbps")),
    ("bandwidth_g2_to_g4_gbps", Setting("bandwidth_g2_to_g4_gbps")),
    ("bandwidth_g4_to_g2_gbps", Setting("bandwidth_g4_to_g2_gbps")),
    ("reasoning", Setting("reasoning")),
    ("response_replay_trace_path", Setting("response_replay_trace_path")),
    ("preemption_mode", NotNull("preemption_mode")),
    ("router_queue_policy", Setting("router_queue_policy")),
    ("sglang", Object),
    ("sglang.schedule_policy", Setting("sglang_schedule_policy")),
    ("sglang.page_size", Setting("sglang_page_size")),
    ("sglang.max_prefill_tokens", Setting("sglang_max_prefill_tokens")),
    ("sglang.chunked_prefill_size", Setting("sglang_chunked_prefill_size")),
    ("sglang.clip_max_new_tokens", Setting("sglang_clip_max_new_tokens")),
    (
        "sglang.schedule_conservativeness",
        Setting("sglang_schedule_conservativeness"),
    ),
    ("trtllm", Object),
    (
        "trtllm.capacity_scheduler_policy",
        Setting("trtllm_capacity_scheduler_policy"),
    ),
    ("has_perf_model", NoEffect),
];

/// Dynamo 1.6.1.
pub(super) const NESTED: &[Key] = &[
    ("dp_size", NotNull("data_parallel_size")),
    ("tensor_parallel_size", BeyondOne("aic_tp_size")),
    ("startup_time", Setting("startup_time")),
    ("num_gpu_blocks_is_explicit", NoEffect),
    ("gpu_memory_utilization", Setting("gpu_memory_utilization")),
    ("mem_fraction_static", Setting("mem_fraction_static")),
    ("free_gpu_memory_fraction", Setting("free_gpu_memory_fraction")),
    ("cuda_graph_reserved_bytes", Unmodelled(Assumed::Nothing)),
    ("engine", Section),
    ("engine.backend", NotNull("engine_type")),
    ("engine.num_gpu_blocks", NotNull("num_gpu_blocks_override")),
    ("engine.block_size", NotNull("block_size")),
    ("engine.max_model_len", Setting("max_model_len")),
    ("engine.max_num_seqs", Limit("max_num_seqs")),
    ("engine.max_num_batched_tokens", Limit("max_num_batched_tokens")),
    ("engine.prefill_schedule_interval", NotNull("prefill_schedule_interval")),
    (
        "engine.prefill_decode_interval",
        NotNull("sglang_prefill_decode_interval"),
    ),
    ("engine.enable_prefix_caching", NotNull("enable_prefix_caching")),
    ("engine.enable_chunked_prefill", NotNull("enable_chunked_prefill")),
    ("engine.speedup_ratio", NotNull("speedup_ratio")),
    ("engine.decode_speedup_ratio", NotNull("decode_speedup_ratio")),
    ("engine.aic_nextn", Setting("aic_nextn")),
    ("engine.aic_nextn_accept_rates", Setting("aic_nextn_accept_rates")),
    ("engine.aic_mtp_seed", NotNull("aic_mtp_seed")),
    ("engine.worker_type", NotNull("disaggregation_mode")),
    ("engine.preemption_mode", NotNull("preemption_mode")),
    ("engine.emit_kv_events", Unmodelled(Assumed::Either)),
    ("engine.emit_kv_token_ids", Unmodelled(Assumed::Either)),
    ("engine.kv_transfer_bytes_per_token", Setting("kv_bytes_per_token")),
    ("engine.kv_bytes_per_token", Setting("kv_bytes_per_token")),
    ("engine.kv_cache_bytes_per_token", Setting("kv_cache_bytes_per_token")),
    ("engine.kv_cache_groups", Unmodelled(Assumed::NoneOf)),
    ("engine.kv_cache_capacity_bytes", Unmodelled(Assumed::Nothing)),
    ("engine.native_host_offload", With(&["num_host_blocks"])),
    ("engine.native_host_offload.scope", NotNull("host_offload_scope")),
    ("engine.native_host_offload.num_host_blocks", Count("num_host_blocks")),
    (
        "engine.native_host_offload.d2h_bandwidth_gbps",
        NotNull("host_offload_d2h_bandwidth_gbps"),
    ),
    (
        "engine.native_host_offload.h2d_bandwidth_gbps",
        NotNull("host_offload_h2d_bandwidth_gbps"),
    ),
    (
        "engine.native_host_offload.latency_to_first_byte_ms",
        NotNull("host_offload_latency_ms"),
    ),
    (
        "engine.native_host_offload.shared_d2h_bandwidth_gbps",
        NotNull("host_offload_shared_d2h_bandwidth_gbps"),
    ),
    (
        "engine.native_host_offload.shared_h2d_bandwidth_gbps",
        NotNull("host_offload_shared_h2d_bandwidth_gbps"),
    ),
    ("engine.native_host_offload.kv_layout_id", Setting("kv_layout_id")),
    ("engine.g3_offload", With(&["scope", "num_g3_blocks"])),
    ("engine.g3_offload.scope", NotNull("g3_scope")),
    ("engine.g3_offload.num_g3_blocks", Count("num_g3_blocks")),
    ("engine.g3_offload.latency_to_first_byte_ms", NotNull("g3_latency_ms")),
    (
        "engine.g3_offload.read_bandwidth_gbps",
        NotNull("bandwidth_g3_to_g2_gbps"),
    ),
    (
        "engine.g3_offload.write_bandwidth_gbps",
        NotNull("bandwidth_g2_to_g3_gbps"),
    ),
    (
        "engine.g3_offload.shared_read_bandwidth_gbps",
        NotNull("g3_shared_read_bandwidth_gbps"),
    ),
    (
        "engine.g3_offload.shared_write_bandwidth_gbps",
        NotNull("g3_shared_write_bandwidth_gbps"),
    ),
    ("engine.state_cache", Unmodelled(Assumed::Nothing)),
    ("engine.prefix_match_unit", Unmodelled(Assumed::Nothing)),
    ("engine.kv_transfer_bandwidth", Setting("kv_transfer_bandwidth")),
    ("engine.kv_transfer_timing_mode", NotNull("kv_transfer_timing_mode")),
    ("engine.timing_model", NotNull("timing_model")),
    ("engine.sglang", Section),
    ("engine.sglang.schedule_policy", NotNull("sglang_schedule_policy")),
    ("engine.sglang.max_prefill_tokens", NotNull("sglang_max_prefill_tokens")),
    (
        "engine.sglang.chunked_prefill_size",
        NotNull("sglang_chunked_prefill_size"),
    ),
    (
        "engine.sglang.clip_max_new_tokens",
        NotNull("sglang_clip_max_new_tokens"),
    ),
    (
        "engine.sglang.schedule_conservativeness",
        NotNull("sglang_schedule_conservativeness"),
    ),
    ("engine.trtllm", Section),
    (
        "engine.trtllm.capacity_scheduler_policy",
        NotNull("trtllm_capacity_scheduler_policy"),
    ),
    ("dynamo", Section),
    ("dynamo.enable_local_indexer", Setting("enable_local_indexer")),
    ("dynamo.bootstrap_port", Setting("bootstrap_ports")),
    (
        "dynamo.handoff_session_timeout_ms",
        Setting("handoff_session_timeout_ms"),
    ),
    ("dynamo.reasoning", Setting("reasoning")),
    (
        "dynamo.response_replay_trace_path",
        Setting("response_replay_trace_path"),
    ),
    ("dynamo.zmq_kv_events_port", Setting("zmq_kv_events_ports")),
    ("dynamo.zmq_replay_port", Setting("zmq_replay_ports")),
    ("dynamo.router_queue_policy", Setting("router_queue_policy")),
];
