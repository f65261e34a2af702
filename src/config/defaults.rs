//! Defaults of the settings, and what belongs to a group of workers.

use std::path::Path;

use super::choices::{
    DisaggregationMode, DiscoveryBackend, EventPlane, External, Finite, Limit, NativeMode, NatsConnections, Ports,
    RequestPlane, ResponsePlane, SchedulingPolicy, StartingStatus, TimingModel, TransferTiming,
};
use super::engine_args;
use super::settings::Settings;
use crate::engine::{EngineKind, Fidelity, PreemptionMode, Semantics};
use crate::transport::event_plane::forward_pass::Detail;
use crate::transport::request_plane::Codec;

impl Settings {
    /// Settings that may differ from group to group; the others belong to the whole fleet.
    pub const GROUP_KEYS: &'static [&'static str] = &[
        "endpoint",
        "num_workers",
        "data_parallel_size",
        "extra_engine_args",
        "engine_type",
        "scheduler_fidelity",
        "semantics",
        "num_gpu_blocks_override",
        "block_size",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "enable_prefix_caching",
        "enable_chunked_prefill",
        "preemption_mode",
        "scheduling_policy",
        "watermark",
        "long_prefill_token_threshold",
        "long_prefill_token_threshold_adaptive",
        "scheduler_reserve_full_isl",
        "prefill_schedule_interval",
        "sglang_schedule_policy",
        "sglang_page_size",
        "sglang_max_prefill_tokens",
        "sglang_chunked_prefill_size",
        "sglang_clip_max_new_tokens",
        "sglang_schedule_conservativeness",
        "sglang_radix_eviction_policy",
        "sglang_tlru_threshold",
        "sglang_tlru_next_prompt_estimate",
        "sglang_prefill_decode_interval",
        "trtllm_capacity_scheduler_policy",
        "eviction_backend",
        "g1_backend",
        "kv_cache_trace",
        "timing_model",
        "speedup_ratio",
        "decode_speedup_ratio",
        "planner_profile_data",
        "step_overhead_ms",
        "step_jitter_ms",
        "aic_nextn",
        "aic_nextn_accept_rates",
        "aic_mtp_seed",
        "aic_perf_model",
        "ais_perf_config",
        "aic_systems_path",
        "aic_model_configs",
        "aic_database_mode",
        "aic_plan",
        "aic_system",
        "aic_backend",
        "aic_backend_version",
        "aic_model_path",
        "aic_tp_size",
        "aic_moe_tp_size",
        "aic_moe_ep_size",
        "aic_attention_dp_size",
        "aic_gemm_dtype",
        "aic_moe_dtype",
        "aic_fmha_dtype",
        "aic_kv_cache_dtype",
        "aic_comm_dtype",
        "gpu_memory_utilization",
        "mem_fraction_static",
        "free_gpu_memory_fraction",
        "disaggregation_mode",
        "is_prefill_worker",
        "is_decode_worker",
        "bootstrap_ports",
        "handoff_pairing_timeout_ms",
        "handoff_session_timeout_ms",
        "decode_local_prefill",
        "kv_transfer_bandwidth",
        "kv_transfer_timing_mode",
        "kv_cache_dtype",
        "kv_bytes_per_token",
        "kv_cache_bytes_per_token",
        "num_host_blocks",
        "host_offload_d2h_bandwidth_gbps",
        "host_offload_h2d_bandwidth_gbps",
        "host_offload_latency_ms",
        "host_offload_scope",
        "host_offload_shared_d2h_bandwidth_gbps",
        "host_offload_shared_h2d_bandwidth_gbps",
        "kv_layout_id",
        "num_g2_blocks",
        "num_g3_blocks",
        "g3_latency_ms",
        "g3_scope",
        "g3_shared_read_bandwidth_gbps",
        "g3_shared_write_bandwidth_gbps",
        "enable_g4_storage",
        "offload_batch_size",
        "bandwidth_g1_to_g2_gbps",
        "bandwidth_g2_to_g1_gbps",
        "bandwidth_g2_to_g3_gbps",
        "bandwidth_g3_to_g2_gbps",
        "bandwidth_g2_to_g4_gbps",
        "bandwidth_g4_to_g2_gbps",
        "zmq_kv_events_ports",
        "zmq_replay_ports",
        "zmq_kv_events_host",
        "zmq_kv_events_mode",
        "zmq_kv_events_format",
        "zmq_kv_events_topic",
        "zmq_replay_frames",
        "zmq_broker_url",
        "zmq_broker_enabled",
        "forward_pass_metrics",
        "enable_local_indexer",
        "reasoning",
        "response_replay_trace_path",
        "router_queue_policy",
        "startup_time",
        "name",
        "request_plane",
        "event_plane",
        "durable_kv_events",
        "request_codec",
        "labels",
    ];

    /// What is used where nothing else is said.
    pub fn defaults() -> Self {
        Self {
            namespace: Some("dynamo".into()),
            num_workers: Some(1),
            data_parallel_size: Some(1),
            num_gpu_blocks_override: Some(16_384),
            max_num_seqs: Some(Limit::Most(256)),
            max_num_batched_tokens: Some(Limit::Most(8192)),
            enable_prefix_caching: Some(true),
            enable_chunked_prefill: Some(true),
            preemption_mode: Some(PreemptionMode::Lifo),
            engine_type: Some(EngineKind::Vllm),
            scheduler_fidelity: Some(Fidelity::Real),
            semantics: Some(Semantics::V1_6_1),
            scheduling_policy: Some(SchedulingPolicy::Fcfs),
            watermark: Some(Finite::literal(0.0)),
            long_prefill_token_threshold: Some(0),
            scheduler_reserve_full_isl: Some(true),
            disaggregation_mode: Some(DisaggregationMode::Agg),
            handoff_session_timeout_ms: Some(300_000),
            kv_transfer_bandwidth: Some(Finite::literal(64.0)),
            kv_transfer_timing_mode: Some(TransferTiming::FullPrompt),
            kv_cache_dtype: Some("auto".into()),
            speedup_ratio: Some(Finite::literal(1.0)),
            decode_speedup_ratio: Some(Finite::literal(1.0)),
            step_overhead_ms: Some(Finite::literal(0.0)),
            step_jitter_ms: Some(Finite::literal(0.0)),
            startup_time: Some(Finite::literal(0.0)),
            stagger_delay: Some(Finite::literal(-1.0)),
            discovery_backend: Some(DiscoveryBackend::Etcd),
            request_plane: Some(RequestPlane::Tcp),
            response_plane: Some(ResponsePlane::Tcp),
            event_plane: Some(EventPlane::Zmq),
            file_kv: Some(std::env::temp_dir().join("dynamo_store_kv")),
            etcd_endpoints: Some("http://localhost:2379".into()),
            lease_ttl: Some(10),
            etcd_connect_timeout: Some(Finite::literal(120.0)),
            ports: Some(Ports::Shared),
            tcp_host: Some("127.0.0.1".into()),
            tcp_port: Some(0),
            event_host: Some("127.0.0.1".into()),
            max_message_size: Some(32 * 1024 * 1024),
            max_open_requests: Some(10_000),
            http_host: Some("127.0.0.1".into()),
            forward_pass_metrics: Some(Detail::Off),
            admin_host: Some("127.0.0.1".into()),
            system_port: Some(-1),
            system_host: Some("127.0.0.1".into()),
            system_health_path: Some("/health".into()),
            system_live_path: Some("/live".into()),
            system_starting_health_status: Some(StartingStatus::NotReady),
            zmq_kv_events_host: Some("127.0.0.1".into()),
            zmq_kv_events_mode: Some(NativeMode::Bind),
            zmq_replay_frames: Some(5),
            seed: Some(0),
            request_codec: Some(Codec::Msgpack),
            nats_server: Some("nats://localhost:4222".into()),
            nats_connections: Some(NatsConnections::Shared),
            nats_connect_timeout: Some(Finite::literal(30.0)),
            registration_timeout: Some(Finite::literal(60.0)),
            drain_timeout: Some(Finite::literal(900.0)),
            zmq_broker_enabled: Some(false),
            ..Self::default()
        }
    }

    /// Relative paths of a file in `base`, as paths from here. `./x` and `../x` name a model beside the file; any other
    /// model may be a hub id.
    #[must_use]
    pub(super) fn beside(mut self, base: &Path) -> Self {
        for model in [&mut self.model_path, &mut self.aic_model_path] {
            if let Some(path) = model.as_mut().filter(|m| m.starts_with("./") || m.starts_with("../")) {
                *path = base.join(&*path).display().to_string();
            }
        }
        let files = [
            &mut self.planner_profile_data,
            &mut self.response_replay_trace_path,
            &mut self.aic_systems_path,
            &mut self.aic_model_configs,
            &mut self.aic_plan,
        ];
        for file in files.into_iter().flatten() {
            *file = base.join(&*file);
        }
        if let Some(TimingModel::External(External::DynamoProfile(profile))) = &mut self.timing_model {
            profile.path = base.join(&profile.path);
        }
        for document in [&mut self.extra_engine_args, &mut self.ais_perf_config] {
            if let Some(path) = document.as_mut().filter(|text| !engine_args::is_inline(text)) {
                *path = base.join(&*path).display().to_string();
            }
        }
        self
    }

    /// The `--no-...` flags, folded into their positive settings.
    #[must_use]
    pub fn normalized(mut self) -> Self {
        if std::mem::take(&mut self.no_enable_prefix_caching) {
            self.enable_prefix_caching = Some(false);
        }
        if std::mem::take(&mut self.no_scheduler_reserve_full_isl) {
            self.scheduler_reserve_full_isl = Some(false);
        }
        if std::mem::take(&mut self.no_enable_chunked_prefill) {
            self.enable_chunked_prefill = Some(false);
        }
        self
    }
}
