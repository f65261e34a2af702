//! One group of workers: from merged settings to an engine configuration.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::types::MAX_RANKS_OF_WORKER;

use super::choices::{
    EventPlane, External, Finite, Limit, ProfilePath, Reasoning, RequestPlane, SchedulingPolicy, TimingModel,
};
use super::disaggregation;
use super::layers::Layered;
use super::rules::{check_built_in, check_ranges, refused};
use super::settings::Settings;
use super::tiers::{offloads_evicted, sized_by_model, tiers};
use super::{Brokers, ConfigError, Group, aic, choices, labels, lora, native, seconds};
use crate::engine::{
    self, EngineConfig, EngineKind, EvictionBackend, Fidelity, G1Backend, SglangConfig, Speculation, TimingConfig,
};
use crate::profile;
use crate::router::QueuePolicy;
use crate::transport::discovery::EndpointName;
use crate::transport::event_plane::zmq::BrokerAddresses;

/// Most draft tokens of speculative decoding.
const MAX_NEXTN: u32 = 5;

pub(super) fn resolve(index: usize, layered: &Layered) -> Result<Group, ConfigError> {
    check_ranges(layered)?;
    let s = layered.settings()?;
    let role = disaggregation::role(layered, &s)?;
    let component = disaggregation::default_component(role);
    let endpoint = match &s.endpoint {
        Some(endpoint) => endpoint.parse::<EndpointName>(),
        None => EndpointName::new(s.namespace.as_deref().unwrap_or_default(), component, "generate"),
    };
    let endpoint = endpoint.map_err(|error| {
        let key = if s.endpoint.is_some() { "endpoint" } else { "namespace" };
        refused(layered, key, &format!("cannot be: {error}"))
    })?;
    let data_parallel_size = s.data_parallel_size.unwrap_or(1);
    if data_parallel_size > MAX_RANKS_OF_WORKER {
        return Err(refused(
            layered,
            "data_parallel_size",
            &format!("exceeds {MAX_RANKS_OF_WORKER}"),
        ));
    }
    check_together(layered, &s)?;
    check_built_in(layered, true)?;
    let aic = aic::request(layered, &s)?;
    if let Some(policy) = &s.router_queue_policy {
        choices::word::<QueuePolicy>(policy).map_err(|error| refused(layered, "router_queue_policy", &error))?;
    }
    let tiers_by_model = sized_by_model(&s);
    let engine = if tiers_by_model {
        // Until the model is known.
        let sized = Settings {
            kv_bytes_per_token: Some(1),
            ..s.clone()
        };
        engine(layered, &sized)?
    } else {
        engine(layered, &s)?
    };
    let name = s.name.clone().unwrap_or_else(|| format!("group-{index}"));
    let disaggregation = disaggregation::resolve(layered, &s, role)?;
    Ok(Group {
        native: native::resolve(layered, &s, &name, &engine, disaggregation.local_prefill)?,
        name,
        endpoint,
        num_workers: s.num_workers.unwrap_or(1),
        data_parallel_size,
        startup_time: startup_time(layered, &s)?,
        request_plane: s.request_plane.unwrap_or(RequestPlane::Tcp),
        event_plane: s.event_plane.unwrap_or(EventPlane::Zmq),
        brokers: brokers(layered, &s)?,
        forward_passes: s.forward_pass_metrics.unwrap_or_default(),
        durable_kv_events: s.durable_kv_events.unwrap_or(false),
        request_codec: s.request_codec.unwrap_or_default(),
        kv_cache_trace: s.kv_cache_trace.unwrap_or(false),
        disaggregation,
        lora_modules: lora::resolve(layered, s.lora_modules.as_deref())?,
        labels: labels::resolve(layered)?,
        response_replay: s.response_replay_trace_path.clone(),
        tiers_by_model,
        aic,
        engine,
    })
}

fn brokers(layered: &Layered, s: &Settings) -> Result<Brokers, ConfigError> {
    match s.zmq_broker_url.as_deref().map(str::trim).filter(|url| !url.is_empty()) {
        Some(url) => BrokerAddresses::from_url(url)
            .map(|addresses| Brokers::At {
                url: url.to_owned(),
                addresses,
            })
            .map_err(|error| refused(layered, "zmq_broker_url", &format!("names no brokers: {error}"))),
        None if s.zmq_broker_enabled.unwrap_or(false) => Ok(Brokers::Discovered),
        None => Ok(Brokers::None),
    }
}

pub(super) fn startup_time(layered: &Layered, s: &Settings) -> Result<Duration, ConfigError> {
    seconds(layered, "startup_time", s.startup_time.map_or(0.0, Finite::get))
}

/// The engine that merged settings describe.
pub(super) fn engine(layered: &Layered, s: &Settings) -> Result<EngineConfig, ConfigError> {
    let defaults = EngineConfig::default();
    let ratio = |value: Option<Finite>| value.map_or(1.0, Finite::get);
    let zero = |value: Option<Finite>| value.map_or(0.0, Finite::get);
    let limit = |value: Option<Limit>, default: Option<u32>| value.map_or(default, Limit::get);
    let fidelity = s.scheduler_fidelity.unwrap_or_default();
    let engine = EngineConfig {
        kind: s.engine_type.unwrap_or_default(),
        fidelity,
        semantics: s.semantics.unwrap_or_default(),
        role: disaggregation::role(layered, s)?,
        data_parallel_size: s.data_parallel_size.unwrap_or(1),
        prefill_schedule_interval: s.prefill_schedule_interval.unwrap_or(1),
        num_gpu_blocks: s.num_gpu_blocks_override.unwrap_or(defaults.num_gpu_blocks),
        block_size: s.block_size.unwrap_or(defaults.block_size),
        max_model_len: s.max_model_len,
        max_num_seqs: limit(s.max_num_seqs, defaults.max_num_seqs),
        max_num_batched_tokens: limit(s.max_num_batched_tokens, defaults.max_num_batched_tokens),
        enable_prefix_caching: s.enable_prefix_caching.unwrap_or(true),
        enable_chunked_prefill: s.enable_chunked_prefill.unwrap_or(true),
        preemption_mode: s.preemption_mode.unwrap_or_default(),
        eviction_backend: eviction_backend(layered, s)?,
        priority_scheduling: s.scheduling_policy == Some(SchedulingPolicy::Priority),
        watermark: zero(s.watermark),
        reserve_full_isl: s.scheduler_reserve_full_isl.unwrap_or(true),
        long_prefill_token_threshold: s.long_prefill_token_threshold.unwrap_or(0),
        long_prefill_token_threshold_adaptive: s.long_prefill_token_threshold_adaptive == Some(true),
        speedup_ratio: ratio(s.speedup_ratio),
        decode_speedup_ratio: ratio(s.decode_speedup_ratio),
        sglang: sglang(s, defaults.sglang),
        capacity_policy: s.trtllm_capacity_scheduler_policy.unwrap_or_default(),
        speculation: speculation(layered, s)?,
        tiers: tiers(layered, s)?,
        timing: timing(layered, s)?,
        step_overhead_ms: zero(s.step_overhead_ms),
        step_jitter_ms: zero(s.step_jitter_ms),
        reasoning: s.reasoning.map(|reasoning| engine::Reasoning {
            start_token: reasoning.start_thinking_token_id,
            end_token: reasoning.end_thinking_token_id,
            ratio: reasoning.thinking_ratio.get(),
        }),
        seed: s.seed.unwrap_or(0),
        ..defaults
    };
    if fidelity == Fidelity::Real && engine.num_gpu_blocks < 2 {
        return Err(refused(
            layered,
            "num_gpu_blocks_override",
            "leaves no usable block (the engine keeps one for itself); use at least 2",
        ));
    }
    engine
        .validate()
        .map_err(|error| ConfigError::Invalid(error.to_string()))?;
    Ok(engine)
}

/// Whether the blocks can be those of a logical pool.
fn logical(s: &Settings) -> bool {
    let block_size = s.block_size.unwrap_or(EngineConfig::default().block_size);
    EvictionBackend::Lineage.accepts_block_size(block_size)
}

/// The KV pool, which has an old and a new name.
pub(super) fn eviction_backend(layered: &Layered, s: &Settings) -> Result<EvictionBackend, ConfigError> {
    match (s.g1_backend, s.eviction_backend) {
        (None, Some(eviction)) => Ok(eviction),
        // Blocks that are evicted to the host come from the logical pool, as in the release that has this.
        (None, None) if offloads_evicted(s) && logical(s) => Ok(EvictionBackend::Lineage),
        (None, None) => Ok(EvictionBackend::default()),
        (Some(G1Backend::Native), _) if offloads_evicted(s) => {
            let why = "cannot be combined with --num-g2-blocks, which takes blocks of the kvbm pool; leave it out or set kvbm";
            Err(refused(layered, "g1_backend", why))
        }
        (Some(g1), None) => Ok(g1.eviction()),
        (Some(g1), Some(eviction)) => {
            let native = (g1 == G1Backend::Native, eviction == EvictionBackend::Native);
            if native.0 == native.1 {
                return Ok(eviction);
            }
            let why = "and --eviction-backend contradict each other; leave --g1-backend out";
            Err(refused(layered, "g1_backend", why))
        }
    }
}

/// Settings that have to fit each other.
pub(super) fn check_together(layered: &Layered, s: &Settings) -> Result<(), ConfigError> {
    let engine_type = s.engine_type.unwrap_or_default();
    let fidelity = s.scheduler_fidelity.unwrap_or_default();
    match (engine_type, s.block_size) {
        (EngineKind::Sglang, Some(block)) => {
            if let Some(page) = s.sglang_page_size.filter(|&page| page != block) {
                let why = format!("must equal --block-size with the sglang engine, which is {block}, not {page}");
                return Err(refused(layered, "sglang_page_size", &why));
            }
            if let Some(chunk) = s
                .sglang_chunked_prefill_size
                .filter(|chunk| !chunk.is_multiple_of(block))
            {
                let why = format!("must be divisible by --block-size {block}: {chunk} is no whole number of pages");
                return Err(refused(layered, "sglang_chunked_prefill_size", &why));
            }
            if s.enable_chunked_prefill == Some(false) {
                let why = "is not supported by the sglang engine, which always computes long prompts in chunks";
                return Err(refused(layered, "enable_chunked_prefill", why));
            }
        }
        // The real vLLM may have such blocks; of TensorRT-LLM there is only the peer's scheduler.
        (kind @ (EngineKind::Vllm | EngineKind::Trtllm), Some(1))
            if kind == EngineKind::Trtllm || fidelity == Fidelity::Mocker =>
        {
            let why = "must be at least 2 with trtllm and with the emulated vllm scheduler";
            return Err(refused(layered, "block_size", why));
        }
        (EngineKind::Vllm | EngineKind::Sglang | EngineKind::Trtllm, _) => {}
    }
    if s.durable_kv_events == Some(true) && s.event_plane != Some(EventPlane::Nats) {
        let why = "keeps KV events in NATS JetStream: add --event-plane nats";
        return Err(refused(layered, "durable_kv_events", why));
    }
    if s.zmq_replay_ports.is_some() && s.zmq_kv_events_ports.is_none() {
        return Err(refused(layered, "zmq_replay_ports", "requires --zmq-kv-events-ports"));
    }
    for (key, ports) in [
        ("zmq_kv_events_ports", &s.zmq_kv_events_ports),
        ("zmq_replay_ports", &s.zmq_replay_ports),
    ] {
        if let Some(ports) = ports {
            disaggregation::port_list(layered, key, ports, s.num_workers.unwrap_or(1))?;
        }
    }
    if let Some(Reasoning { thinking_ratio, .. }) = s.reasoning
        && !(0.0..=1.0).contains(&thinking_ratio.get())
    {
        return Err(refused(layered, "reasoning", "needs a thinking_ratio between 0 and 1"));
    }
    Ok(())
}

fn sglang(s: &Settings, defaults: SglangConfig) -> SglangConfig {
    SglangConfig {
        schedule_policy: s.sglang_schedule_policy.unwrap_or(defaults.schedule_policy),
        max_prefill_tokens: s.sglang_max_prefill_tokens.unwrap_or(defaults.max_prefill_tokens),
        chunked_prefill_size: s.sglang_chunked_prefill_size.or(defaults.chunked_prefill_size),
        clip_max_new_tokens: s.sglang_clip_max_new_tokens.unwrap_or(defaults.clip_max_new_tokens),
        schedule_conservativeness: s
            .sglang_schedule_conservativeness
            .map_or(defaults.schedule_conservativeness, Finite::get),
        radix_eviction_policy: s.sglang_radix_eviction_policy.unwrap_or(defaults.radix_eviction_policy),
        tlru_threshold: s.sglang_tlru_threshold.unwrap_or(0),
        tlru_next_prompt_estimate: s.sglang_tlru_next_prompt_estimate.unwrap_or(0),
        prefill_decode_interval: s
            .sglang_prefill_decode_interval
            .unwrap_or(defaults.prefill_decode_interval),
    }
}

/// Chance of acceptance draft by draft, unless given.
pub(super) const ACCEPT_RATES: &str = "0.85,0.3,0,0,0";

/// Seed of the acceptance draws, unless given.
pub(super) const DRAFT_SEED: u64 = 42;

fn speculation(layered: &Layered, s: &Settings) -> Result<Option<Speculation>, ConfigError> {
    let Some(nextn) = s.aic_nextn else {
        return match s.aic_nextn_accept_rates {
            Some(_) => Err(refused(layered, "aic_nextn_accept_rates", "requires --aic-nextn")),
            None => Ok(None),
        };
    };
    if !(1..=MAX_NEXTN).contains(&nextn) {
        return Err(refused(layered, "aic_nextn", &format!("must be in 1..={MAX_NEXTN}")));
    }
    #[allow(clippy::float_cmp)]
    if s.decode_speedup_ratio.is_some_and(|ratio| ratio.get() != 1.0) {
        let why = "requires --decode-speedup-ratio 1.0, because both make decoding faster";
        return Err(refused(layered, "aic_nextn", why));
    }
    let rates = s.aic_nextn_accept_rates.as_deref().unwrap_or(ACCEPT_RATES);
    let chance = |rate: &str| {
        rate.trim()
            .parse::<f64>()
            .ok()
            .filter(|rate| (0.0..=1.0).contains(rate))
    };
    let Some(accept_rates) = rates.split(',').map(chance).collect() else {
        let why = "must be numbers between 0 and 1, comma separated";
        return Err(refused(layered, "aic_nextn_accept_rates", why));
    };
    Ok(Some(Speculation {
        nextn,
        accept_rates,
        seed: s.aic_mtp_seed.unwrap_or(DRAFT_SEED),
    }))
}

/// Measured durations where a profile is named, else those of the timing model.
fn timing(layered: &Layered, s: &Settings) -> Result<TimingConfig, ConfigError> {
    let model = s.timing_model.as_ref().unwrap_or(&TimingModel::Polynomial);
    match (s.planner_profile_data.as_deref(), model) {
        (Some(path), TimingModel::Polynomial) => measured(layered, "planner_profile_data", path),
        (Some(_), TimingModel::Fixed { .. } | TimingModel::External(_)) => Err(refused(
            layered,
            "timing_model",
            "and --planner-profile-data exclude each other",
        )),
        // A performance model stands in from when its measurements are read.
        (None, TimingModel::Polynomial | TimingModel::External(External::Ais(_))) => Ok(TimingConfig::Polynomial),
        (None, &TimingModel::Fixed { prefill_ms, decode_ms }) => {
            if prefill_ms.get() < 0.0 || decode_ms.get() < 0.0 {
                return Err(refused(layered, "timing_model", "must have times of 0 or greater"));
            }
            Ok(TimingConfig::Fixed {
                prefill_ms: prefill_ms.get(),
                decode_ms: decode_ms.get(),
            })
        }
        (None, TimingModel::External(External::DynamoProfile(ProfilePath { path }))) => {
            measured(layered, "timing_model", path)
        }
    }
}

fn measured(layered: &Layered, key: &str, path: &Path) -> Result<TimingConfig, ConfigError> {
    let profile = profile::load(path).map_err(|error| refused(layered, key, &format!("is no profile: {error}")))?;
    Ok(TimingConfig::Profile(Arc::new(profile)))
}
