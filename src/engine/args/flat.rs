//! The flat dialect of Dynamo 1.4.2.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::super::config::{
    CapacityPolicy, EngineConfig, EngineKind, Fidelity, PreemptionMode, Semantics, SglangConfig, SglangPolicy,
    TimingConfig, WorkerRole,
};
use super::super::kv::backend::{EvictionBackend, G1Backend};
use super::nested::speculation;
use super::{
    ArgsError, Bandwidths, EngineArgs, MemoryFraction, OffloadArgs, Reasoning, TimingSource, TransferArgs,
    TransferTiming, max_num_batched_tokens, max_num_seqs, not_null,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    #[serde(default, deserialize_with = "engine_type")]
    engine_type: EngineKind,
    num_gpu_blocks: Option<u32>,
    #[serde(default, deserialize_with = "not_null")]
    block_size: Option<u32>,
    max_model_len: Option<u32>,
    #[serde(default = "max_num_seqs")]
    max_num_seqs: Option<u32>,
    #[serde(default = "max_num_batched_tokens")]
    max_num_batched_tokens: Option<u32>,
    #[serde(default, deserialize_with = "not_null")]
    enable_prefix_caching: Option<bool>,
    #[serde(default, deserialize_with = "not_null")]
    enable_chunked_prefill: Option<bool>,
    g1_backend: Option<G1Backend>,
    #[serde(default, deserialize_with = "not_null")]
    speedup_ratio: Option<f64>,
    #[serde(default, deserialize_with = "not_null")]
    decode_speedup_ratio: Option<f64>,
    #[serde(default, deserialize_with = "not_null")]
    dp_size: Option<u32>,
    startup_time: Option<f64>,
    worker_type: Option<WorkerRole>,
    is_prefill: Option<bool>,
    is_decode: Option<bool>,
    planner_profile_data: Option<String>,
    aic_backend: Option<String>,
    aic_system: Option<String>,
    aic_backend_version: Option<String>,
    aic_tp_size: Option<u32>,
    aic_model_path: Option<String>,
    aic_moe_tp_size: Option<u32>,
    aic_moe_ep_size: Option<u32>,
    aic_attention_dp_size: Option<u32>,
    aic_gemm_dtype: Option<String>,
    aic_moe_dtype: Option<String>,
    aic_fmha_dtype: Option<String>,
    aic_kv_cache_dtype: Option<String>,
    aic_comm_dtype: Option<String>,
    aic_nextn: Option<u32>,
    aic_nextn_accept_rates: Option<String>,
    aic_mtp_seed: Option<u64>,
    gpu_memory_utilization: Option<f64>,
    mem_fraction_static: Option<f64>,
    free_gpu_memory_fraction: Option<f64>,
    enable_local_indexer: Option<bool>,
    bootstrap_port: Option<u16>,
    zmq_kv_events_port: Option<u16>,
    zmq_replay_port: Option<u16>,
    handoff_session_timeout_ms: Option<u64>,
    kv_bytes_per_token: Option<u64>,
    kv_transfer_bandwidth: Option<f64>,
    kv_transfer_timing_mode: Option<TransferTiming>,
    num_g2_blocks: Option<u32>,
    num_g3_blocks: Option<u32>,
    offload_batch_size: Option<u32>,
    enable_g4_storage: Option<bool>,
    bandwidth_g1_to_g2_gbps: Option<f64>,
    bandwidth_g2_to_g1_gbps: Option<f64>,
    bandwidth_g2_to_g3_gbps: Option<f64>,
    bandwidth_g3_to_g2_gbps: Option<f64>,
    bandwidth_g2_to_g4_gbps: Option<f64>,
    bandwidth_g4_to_g2_gbps: Option<f64>,
    reasoning: Option<Reasoning>,
    response_replay_trace_path: Option<String>,
    #[serde(default, deserialize_with = "not_null")]
    preemption_mode: Option<PreemptionMode>,
    router_queue_policy: Option<String>,
    sglang: Option<Sglang>,
    trtllm: Option<Trtllm>,
    #[serde(rename = "has_perf_model")]
    _has_perf_model: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sglang {
    schedule_policy: Option<SglangPolicy>,
    page_size: Option<u32>,
    max_prefill_tokens: Option<u32>,
    chunked_prefill_size: Option<u32>,
    clip_max_new_tokens: Option<u32>,
    schedule_conservativeness: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Trtllm {
    capacity_scheduler_policy: Option<CapacityPolicy>,
}

fn engine_type<'de, D: Deserializer<'de>>(from: D) -> Result<EngineKind, D::Error> {
    let name = String::deserialize(from)?;
    match name.to_ascii_lowercase().as_str() {
        "vllm" => Ok(EngineKind::Vllm),
        "sglang" => Ok(EngineKind::Sglang),
        "trtllm" => Ok(EngineKind::Trtllm),
        _ => Err(serde::de::Error::custom(format!(
            "invalid engine_type '{name}': must be 'vllm', 'sglang', or 'trtllm'"
        ))),
    }
}

impl Document {
    pub(super) fn resolve(self) -> Result<EngineArgs, ArgsError> {
        let offload = self.offload()?;
        let args = EngineArgs {
            num_gpu_blocks_given: self.num_gpu_blocks.is_some(),
            dp_size: self.dp_size.unwrap_or(1),
            timing: self.timing(),
            startup_time_s: self.startup_time,
            enable_local_indexer: self.enable_local_indexer.unwrap_or(false),
            bootstrap_port: self.bootstrap_port,
            zmq_kv_events_port: self.zmq_kv_events_port,
            zmq_replay_port: self.zmq_replay_port,
            handoff_session_timeout_ms: self.handoff_session_timeout_ms.unwrap_or(super::HANDOFF_TIMEOUT_MS),
            transfer: TransferArgs {
                bytes_per_token: self.kv_bytes_per_token,
                bandwidth_gb_s: self.kv_transfer_bandwidth,
                timing: self.kv_transfer_timing_mode.unwrap_or_default(),
            },
            offload,
            reasoning: self.reasoning,
            response_replay_trace_path: self.response_replay_trace_path.clone(),
            router_queue_policy: self.router_queue_policy.clone(),
            memory_fraction: MemoryFraction {
                gpu_memory_utilization: self.gpu_memory_utilization,
                mem_fraction_static: self.mem_fraction_static,
                free_gpu_memory_fraction: self.free_gpu_memory_fraction,
            },
            engine: self.config()?,
        };
        args.validate()?;
        Ok(args)
    }

    fn config(self) -> Result<EngineConfig, ArgsError> {
        let kind = self.engine_type;
        let defaults = EngineConfig::default();
        let eviction_backend = self.eviction_backend();
        let sglang = self.sglang.unwrap_or_default();
        let block_size = match (kind, self.block_size.filter(|&size| size > 0), sglang.page_size) {
            (EngineKind::Sglang, Some(block), Some(page)) if block != page => {
                return Err(ArgsError::Value(format!(
                    "engine_type=sglang requires block_size and sglang.page_size to match, got {block} and {page}"
                )));
            }
            (EngineKind::Sglang, None, Some(page)) => page,
            (_, Some(block), _) => block,
            (kind, None, _) => kind.default_block_size(),
        };
        if self.max_model_len.is_some() && kind != EngineKind::Vllm {
            return Err(ArgsError::Value(
                "max_model_len is only supported for engine_type=vllm".into(),
            ));
        }
        Ok(EngineConfig {
            kind,
            fidelity: Fidelity::Mocker,
            semantics: Semantics::V1_4_2,
            role: role(self.worker_type, self.is_prefill, self.is_decode)?,
            num_gpu_blocks: self.num_gpu_blocks.unwrap_or(defaults.num_gpu_blocks),
            block_size,
            max_model_len: self.max_model_len,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            enable_prefix_caching: self.enable_prefix_caching.unwrap_or(true),
            enable_chunked_prefill: self.enable_chunked_prefill.unwrap_or(true),
            preemption_mode: self.preemption_mode.unwrap_or_default(),
            eviction_backend,
            speedup_ratio: self.speedup_ratio.unwrap_or(1.0),
            decode_speedup_ratio: self.decode_speedup_ratio.unwrap_or(1.0),
            sglang: sglang.config(),
            capacity_policy: self
                .trtllm
                .and_then(|trtllm| trtllm.capacity_scheduler_policy)
                .unwrap_or_default(),
            speculation: speculation(
                self.aic_nextn,
                self.aic_nextn_accept_rates.as_deref(),
                self.aic_mtp_seed,
            )?,
            timing: TimingConfig::Polynomial,
            ..defaults
        })
    }

    /// The pool of kvbm-logical if asked for, or if blocks are offloaded; SGLang has no choice.
    fn eviction_backend(&self) -> EvictionBackend {
        let offloads = self.num_g2_blocks.is_some_and(|blocks| blocks > 0);
        let pool = match self.engine_type {
            EngineKind::Sglang => None,
            EngineKind::Vllm | EngineKind::Trtllm => self.g1_backend.or(offloads.then_some(G1Backend::Kvbm)),
        };
        pool.map_or(EvictionBackend::Native, G1Backend::eviction)
    }

    fn offload(&self) -> Result<OffloadArgs, ArgsError> {
        let on = |blocks: Option<u32>| blocks.is_some_and(|blocks| blocks > 0);
        let g4 = self.enable_g4_storage.unwrap_or(false);
        for (key, wanted) in [("num_g3_blocks", on(self.num_g3_blocks)), ("enable_g4_storage", g4)] {
            if wanted && !on(self.num_g2_blocks) {
                return Err(ArgsError::Value(format!("{key} requires num_g2_blocks")));
            }
        }
        if on(self.num_g2_blocks) && self.kv_bytes_per_token.is_none() {
            return Err(ArgsError::Value("num_g2_blocks requires kv_bytes_per_token".into()));
        }
        if on(self.num_g2_blocks) && self.g1_backend == Some(G1Backend::Native) {
            return Err(ArgsError::Value("num_g2_blocks requires g1_backend=kvbm".into()));
        }
        Ok(OffloadArgs {
            num_g2_blocks: self.num_g2_blocks,
            num_g3_blocks: self.num_g3_blocks,
            enable_g4_storage: g4,
            batch_size: self.offload_batch_size,
            bandwidths: Bandwidths {
                g1_to_g2: self.bandwidth_g1_to_g2_gbps,
                g2_to_g1: self.bandwidth_g2_to_g1_gbps,
                g2_to_g3: self.bandwidth_g2_to_g3_gbps,
                g3_to_g2: self.bandwidth_g3_to_g2_gbps,
                g2_to_g4: self.bandwidth_g2_to_g4_gbps,
                g4_to_g2: self.bandwidth_g4_to_g2_gbps,
            },
        })
    }

    /// A set `aic_backend` turns AIC timing on; else a profile, else the built-in polynomials.
    fn timing(&self) -> TimingSource {
        let Some(backend) = &self.aic_backend else {
            return self
                .planner_profile_data
                .clone()
                .map_or(TimingSource::Engine, TimingSource::Profile);
        };
        let text = |value: &Option<String>| value.clone().map(Value::from);
        let number = |value: Option<u32>| value.map(Value::from);
        let identity = [
            ("backend", Some(Value::from(backend.clone()))),
            ("system", text(&self.aic_system)),
            ("backend_version", text(&self.aic_backend_version)),
            ("tp_size", number(self.aic_tp_size)),
            ("model_path", text(&self.aic_model_path)),
            ("moe_tp_size", number(self.aic_moe_tp_size)),
            ("moe_ep_size", number(self.aic_moe_ep_size)),
            ("attention_dp_size", number(self.aic_attention_dp_size)),
            ("gemm_dtype", text(&self.aic_gemm_dtype)),
            ("moe_dtype", text(&self.aic_moe_dtype)),
            ("fmha_dtype", text(&self.aic_fmha_dtype)),
            ("kv_cache_dtype", text(&self.aic_kv_cache_dtype)),
            ("comm_dtype", text(&self.aic_comm_dtype)),
        ];
        let given = identity
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)));
        TimingSource::Aic(given.collect::<Map<_, _>>())
    }
}

impl Sglang {
    fn config(&self) -> SglangConfig {
        let defaults = SglangConfig::default();
        SglangConfig {
            schedule_policy: self.schedule_policy.unwrap_or_default(),
            max_prefill_tokens: self.max_prefill_tokens.unwrap_or(defaults.max_prefill_tokens),
            chunked_prefill_size: self.chunked_prefill_size.or(defaults.chunked_prefill_size),
            clip_max_new_tokens: self.clip_max_new_tokens.unwrap_or(defaults.clip_max_new_tokens),
            schedule_conservativeness: self
                .schedule_conservativeness
                .unwrap_or(defaults.schedule_conservativeness),
            ..defaults
        }
    }
}

fn role(
    worker_type: Option<WorkerRole>,
    is_prefill: Option<bool>,
    is_decode: Option<bool>,
) -> Result<WorkerRole, ArgsError> {
    match (is_prefill.unwrap_or(false), is_decode.unwrap_or(false)) {
        (true, true) => Err(ArgsError::Value("is_prefill and is_decode cannot both be true".into())),
        (true, false) => Ok(WorkerRole::Prefill),
        (false, true) => Ok(WorkerRole::Decode),
        (false, false) => Ok(worker_type.unwrap_or_default()),
    }
}
