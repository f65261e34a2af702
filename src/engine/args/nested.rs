//! The nested dialect of Dynamo 1.6.1: `{"engine": {...}, "dynamo": {...}, ...}`.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::super::config::{
    CapacityPolicy, EngineConfig, EngineKind, Fidelity, PreemptionMode, SglangConfig, SglangPolicy, Speculation,
    TimingConfig, WorkerRole,
};
use super::{
    ArgsError, EngineArgs, MemoryFraction, Reasoning, TimingSource, TransferArgs, TransferTiming, accept_rates,
    max_num_batched_tokens, max_num_seqs, not_null,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    engine: Option<Engine>,
    #[serde(default)]
    dynamo: Dynamo,
    #[serde(default, deserialize_with = "not_null")]
    dp_size: Option<u32>,
    #[serde(default, deserialize_with = "not_null")]
    tensor_parallel_size: Option<u32>,
    startup_time: Option<f64>,
    #[serde(default, deserialize_with = "not_null")]
    num_gpu_blocks_is_explicit: Option<bool>,
    gpu_memory_utilization: Option<f64>,
    mem_fraction_static: Option<f64>,
    free_gpu_memory_fraction: Option<f64>,
    cuda_graph_reserved_bytes: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Engine {
    #[serde(default, deserialize_with = "not_null")]
    backend: Option<EngineKind>,
    #[serde(default, deserialize_with = "not_null")]
    num_gpu_blocks: Option<u32>,
    #[serde(default, deserialize_with = "not_null")]
    block_size: Option<u32>,
    max_model_len: Option<u32>,
    #[serde(default = "max_num_seqs")]
    max_num_seqs: Option<u32>,
    #[serde(default = "max_num_batched_tokens")]
    max_num_batched_tokens: Option<u32>,
    #[serde(default, deserialize_with = "not_null")]
    prefill_schedule_interval: Option<u32>,
    #[serde(default, deserialize_with = "not_null")]
    prefill_decode_interval: Option<u32>,
    #[serde(default, deserialize_with = "not_null")]
    enable_prefix_caching: Option<bool>,
    #[serde(default, deserialize_with = "not_null")]
    enable_chunked_prefill: Option<bool>,
    #[serde(default, deserialize_with = "not_null")]
    speedup_ratio: Option<f64>,
    #[serde(default, deserialize_with = "not_null")]
    decode_speedup_ratio: Option<f64>,
    aic_nextn: Option<u32>,
    aic_nextn_accept_rates: Option<String>,
    aic_mtp_seed: Option<u64>,
    worker_type: Option<WorkerRole>,
    #[serde(default, deserialize_with = "not_null")]
    preemption_mode: Option<PreemptionMode>,
    /// Events are a matter of the planes here; accepted and without effect.
    #[serde(rename = "emit_kv_events")]
    _emit_kv_events: Option<bool>,
    #[serde(rename = "emit_kv_token_ids")]
    _emit_kv_token_ids: Option<bool>,
    #[serde(alias = "kv_bytes_per_token")]
    kv_transfer_bytes_per_token: Option<u64>,
    kv_cache_bytes_per_token: Option<u64>,
    kv_transfer_bandwidth: Option<f64>,
    kv_transfer_timing_mode: Option<TransferTiming>,
    native_host_offload: Option<Value>,
    g3_offload: Option<Value>,
    kv_cache_groups: Option<Value>,
    kv_cache_capacity_bytes: Option<u64>,
    state_cache: Option<Value>,
    prefix_match_unit: Option<Value>,
    timing_model: Option<TimingModel>,
    sglang: Option<Sglang>,
    trtllm: Option<Trtllm>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum TimingModel {
    Polynomial,
    Fixed {
        prefill_ms: f64,
        decode_ms: f64,
    },
    External {
        provider: String,
        #[serde(default)]
        config: Map<String, Value>,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sglang {
    schedule_policy: Option<SglangPolicy>,
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

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Dynamo {
    #[serde(default, deserialize_with = "not_null")]
    enable_local_indexer: Option<bool>,
    bootstrap_port: Option<u16>,
    handoff_session_timeout_ms: Option<u64>,
    reasoning: Option<Reasoning>,
    response_replay_trace_path: Option<String>,
    zmq_kv_events_port: Option<u16>,
    zmq_replay_port: Option<u16>,
    router_queue_policy: Option<String>,
}

impl Document {
    pub(super) fn resolve(self) -> Result<EngineArgs, ArgsError> {
        let Self { engine, dynamo, .. } = self;
        let engine = match engine {
            Some(engine) => engine,
            None => super::read("{}")?,
        };
        engine.refuse_unsupported()?;
        if self.tensor_parallel_size == Some(0) {
            return Err(ArgsError::Value("tensor_parallel_size must be positive".into()));
        }
        if let Some(bytes) = self
            .cuda_graph_reserved_bytes
            .filter(|_| self.num_gpu_blocks_is_explicit == Some(true))
        {
            return Err(ArgsError::Value(format!(
                "cuda_graph_reserved_bytes {bytes} has no effect on an explicit num_gpu_blocks; leave one of them out"
            )));
        }
        let num_gpu_blocks_given = self
            .num_gpu_blocks_is_explicit
            .unwrap_or(engine.num_gpu_blocks.is_some());
        let transfer = TransferArgs {
            bytes_per_token: engine.kv_transfer_bytes_per_token,
            bandwidth_gb_s: engine.kv_transfer_bandwidth,
            timing: engine.kv_transfer_timing_mode.unwrap_or_default(),
        };
        let (timing, source) = timing(engine.timing_model.as_ref())?;
        let args = EngineArgs {
            engine: engine.config(timing)?,
            num_gpu_blocks_given,
            dp_size: self.dp_size.unwrap_or(1),
            timing: source,
            startup_time_s: self.startup_time,
            enable_local_indexer: dynamo.enable_local_indexer.unwrap_or(false),
            bootstrap_port: dynamo.bootstrap_port,
            zmq_kv_events_port: dynamo.zmq_kv_events_port,
            zmq_replay_port: dynamo.zmq_replay_port,
            handoff_session_timeout_ms: dynamo.handoff_session_timeout_ms.unwrap_or(super::HANDOFF_TIMEOUT_MS),
            transfer,
            offload: super::OffloadArgs::default(),
            reasoning: dynamo.reasoning,
            response_replay_trace_path: dynamo.response_replay_trace_path,
            router_queue_policy: dynamo.router_queue_policy,
            memory_fraction: MemoryFraction {
                gpu_memory_utilization: self.gpu_memory_utilization,
                mem_fraction_static: self.mem_fraction_static,
                free_gpu_memory_fraction: self.free_gpu_memory_fraction,
            },
        };
        args.validate()?;
        Ok(args)
    }
}

impl Engine {
    /// Models of the peer that are out of its own launcher's reach, and not modelled here.
    fn refuse_unsupported(&self) -> Result<(), ArgsError> {
        let given = [
            ("kv_cache_groups", self.kv_cache_groups.is_some()),
            ("kv_cache_capacity_bytes", self.kv_cache_capacity_bytes.is_some()),
            ("state_cache", self.state_cache.is_some()),
            ("prefix_match_unit", self.prefix_match_unit.is_some()),
            ("native_host_offload", self.native_host_offload.is_some()),
            ("g3_offload", self.g3_offload.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((key, _)) => Err(ArgsError::Value(format!("engine.{key} is not modelled; leave it out"))),
            None => Ok(()),
        }
    }

    fn config(self, timing: TimingConfig) -> Result<EngineConfig, ArgsError> {
        let kind = self.backend.unwrap_or_default();
        if kind == EngineKind::Sglang && self.enable_chunked_prefill == Some(false) {
            return Err(ArgsError::Value(
                "enable_chunked_prefill=false is not supported for backend=sglang".into(),
            ));
        }
        let _ = self.kv_cache_bytes_per_token;
        let defaults = EngineConfig::default();
        Ok(EngineConfig {
            kind,
            fidelity: Fidelity::Mocker,
            role: super::role(self.worker_type),
            num_gpu_blocks: self.num_gpu_blocks.unwrap_or(defaults.num_gpu_blocks),
            block_size: self.block_size.unwrap_or_else(|| kind.default_block_size()),
            max_model_len: self.max_model_len,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            enable_prefix_caching: self.enable_prefix_caching.unwrap_or(true),
            enable_chunked_prefill: self.enable_chunked_prefill.unwrap_or(true),
            preemption_mode: self.preemption_mode.unwrap_or_default(),
            speedup_ratio: self.speedup_ratio.unwrap_or(1.0),
            decode_speedup_ratio: self.decode_speedup_ratio.unwrap_or(1.0),
            prefill_schedule_interval: self.prefill_schedule_interval.unwrap_or(1),
            sglang: self.sglang.map_or_else(SglangConfig::default, |sglang| {
                sglang.config(self.prefill_decode_interval)
            }),
            capacity_policy: self
                .trtllm
                .and_then(|trtllm| trtllm.capacity_scheduler_policy)
                .unwrap_or_default(),
            speculation: speculation(
                self.aic_nextn,
                self.aic_nextn_accept_rates.as_deref(),
                self.aic_mtp_seed,
            )?,
            timing,
            ..defaults
        })
    }
}

/// `nextn` drafts with these rates, if any.
pub(super) fn speculation(
    nextn: Option<u32>,
    rates: Option<&str>,
    seed: Option<u64>,
) -> Result<Option<Speculation>, ArgsError> {
    let Some(nextn) = nextn else {
        return match rates {
            Some(_) => Err(ArgsError::Value("aic_nextn_accept_rates requires aic_nextn".into())),
            None => Ok(None),
        };
    };
    Ok(Some(Speculation {
        nextn,
        accept_rates: accept_rates(rates.unwrap_or("0.85,0.3,0,0,0"))?,
        seed: seed.unwrap_or(42),
    }))
}

impl Sglang {
    fn config(&self, prefill_decode_interval: Option<u32>) -> SglangConfig {
        let defaults = SglangConfig::default();
        SglangConfig {
            schedule_policy: self.schedule_policy.unwrap_or_default(),
            max_prefill_tokens: self.max_prefill_tokens.unwrap_or(defaults.max_prefill_tokens),
            chunked_prefill_size: self.chunked_prefill_size.or(defaults.chunked_prefill_size),
            clip_max_new_tokens: self.clip_max_new_tokens.unwrap_or(defaults.clip_max_new_tokens),
            schedule_conservativeness: self
                .schedule_conservativeness
                .unwrap_or(defaults.schedule_conservativeness),
            prefill_decode_interval: prefill_decode_interval.unwrap_or(0),
            ..defaults
        }
    }
}

fn timing(model: Option<&TimingModel>) -> Result<(TimingConfig, TimingSource), ArgsError> {
    let engine = |timing| Ok((timing, TimingSource::Engine));
    let Some(model) = model else {
        return engine(TimingConfig::Polynomial);
    };
    let (provider, config) = match model {
        TimingModel::Polynomial => return engine(TimingConfig::Polynomial),
        &TimingModel::Fixed { prefill_ms, decode_ms } => return engine(TimingConfig::Fixed { prefill_ms, decode_ms }),
        TimingModel::External { provider, config } => (provider.as_str(), config),
    };
    let source = match provider {
        "ais" | "aic" => TimingSource::Aic(config.clone()),
        "dynamo_profile" => match config.get("path").and_then(Value::as_str) {
            Some(path) => TimingSource::Profile(path.into()),
            None => {
                return Err(ArgsError::Value(
                    "timing_model.config.path is missing; name a profile".into(),
                ));
            }
        },
        other => {
            return Err(ArgsError::Value(format!(
                "unsupported external timing provider {other:?}"
            )));
        }
    };
    Ok((TimingConfig::Polynomial, source))
}
