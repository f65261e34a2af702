//! What a value may be, setting by setting, whatever place it came from; and what this build cannot do yet.

use serde_json::Value;

use super::ConfigError;
use super::layers::{Layered, Origin, flag};
use crate::aic;

/// Range of a number.
#[derive(Debug, Clone, Copy)]
enum Range {
    /// 1 or more.
    Positive,
    /// 0 or more.
    NonNegative,
    /// A factor of durations: 0 or more, and 0 means none.
    Ratio,
    /// 0 to 1.
    Share,
    /// 0 up to 1, but not 1.
    LessThanOne,
}

use Range::{LessThanOne, NonNegative, Positive, Ratio, Share};

const RANGES: &[(&str, Range)] = &[
    ("num_workers", Positive),
    ("data_parallel_size", Positive),
    ("num_gpu_blocks_override", Positive),
    ("block_size", Positive),
    ("max_model_len", Positive),
    ("max_num_seqs", Positive),
    ("max_num_batched_tokens", Positive),
    ("max_open_requests", Positive),
    ("lease_ttl", Positive),
    ("prefill_schedule_interval", Positive),
    ("sglang_page_size", Positive),
    ("sglang_max_prefill_tokens", Positive),
    ("sglang_chunked_prefill_size", Positive),
    ("sglang_clip_max_new_tokens", Positive),
    ("sglang_schedule_conservativeness", NonNegative),
    ("handoff_pairing_timeout_ms", Positive),
    ("handoff_session_timeout_ms", Positive),
    ("aic_tp_size", Positive),
    ("aic_moe_tp_size", Positive),
    ("aic_moe_ep_size", Positive),
    ("aic_attention_dp_size", Positive),
    ("speedup_ratio", Ratio),
    ("decode_speedup_ratio", Ratio),
    ("step_overhead_ms", NonNegative),
    ("step_jitter_ms", NonNegative),
    ("startup_time", NonNegative),
    ("etcd_connect_timeout", NonNegative),
    ("kv_transfer_bandwidth", NonNegative),
    ("host_offload_d2h_bandwidth_gbps", NonNegative),
    ("host_offload_h2d_bandwidth_gbps", NonNegative),
    ("host_offload_latency_ms", NonNegative),
    ("host_offload_shared_d2h_bandwidth_gbps", NonNegative),
    ("host_offload_shared_h2d_bandwidth_gbps", NonNegative),
    ("g3_latency_ms", NonNegative),
    ("g3_shared_read_bandwidth_gbps", NonNegative),
    ("g3_shared_write_bandwidth_gbps", NonNegative),
    ("bandwidth_g1_to_g2_gbps", NonNegative),
    ("bandwidth_g2_to_g1_gbps", NonNegative),
    ("bandwidth_g2_to_g3_gbps", NonNegative),
    ("bandwidth_g3_to_g2_gbps", NonNegative),
    ("bandwidth_g2_to_g4_gbps", NonNegative),
    ("bandwidth_g4_to_g2_gbps", NonNegative),
    ("gpu_memory_utilization", Share),
    ("mem_fraction_static", Share),
    ("free_gpu_memory_fraction", Share),
    ("watermark", LessThanOne),
];

impl Range {
    fn holds(self, number: f64) -> bool {
        match self {
            Positive => number >= 1.0,
            NonNegative | Ratio => number >= 0.0,
            Share => (0.0..=1.0).contains(&number),
            LessThanOne => (0.0..1.0).contains(&number),
        }
    }

    fn words(self) -> &'static str {
        match self {
            Positive => "must be at least 1",
            NonNegative => "must be 0 or greater",
            Ratio => "must be 0 or greater (0: no modelled delay)",
            Share => "must be between 0 and 1",
            LessThanOne => "must be at least 0 and below 1",
        }
    }
}

/// What the settings `aic_*` ask for.
const AIC: &str = "the AIC performance model";

/// A share of a GPU's memory says how many blocks there are only with a model of the GPU and of what the model's weights
/// take of it.
const KV_ESTIMATE: &str = "the estimate of KV blocks from the AIC performance model";

/// What no build has, with the name of the part. Only values that ask for nothing are accepted.
const NOWHERE: &[(&str, &str)] = &[("response_plane", "the QUIC response plane")];

/// What builds without the feature `aic` do not have, likewise.
const NEEDS_AIC: &[(&str, &str)] = &[
    // Of a flat document, which turns the model on by it.
    ("aic_backend", AIC),
    ("aic_perf_model", AIC),
    ("ais_perf_config", AIC),
    ("aic_systems_path", AIC),
    ("aic_model_configs", AIC),
    ("aic_database_mode", AIC),
    ("aic_plan", AIC),
    ("aic_system", AIC),
    ("aic_backend_version", AIC),
    ("aic_model_path", AIC),
    ("aic_tp_size", AIC),
    ("aic_moe_tp_size", AIC),
    ("aic_moe_ep_size", AIC),
    ("aic_attention_dp_size", AIC),
    ("aic_gemm_dtype", AIC),
    ("aic_moe_dtype", AIC),
    ("aic_fmha_dtype", AIC),
    ("aic_kv_cache_dtype", AIC),
    ("aic_comm_dtype", AIC),
    ("gpu_memory_utilization", KV_ESTIMATE),
    ("mem_fraction_static", KV_ESTIMATE),
    ("free_gpu_memory_fraction", KV_ESTIMATE),
];

/// Settings that ask for what this build does not have.
fn not_built_in() -> impl Iterator<Item = (&'static str, &'static str)> {
    let aic = if aic::BUILT_IN { &[] } else { NEEDS_AIC };
    NOWHERE.iter().chain(aic).copied()
}

/// Checks every number against its range.
///
/// # Errors
/// [`ConfigError::Value`] names the setting, its value and where that came from.
pub(super) fn check_ranges(layered: &Layered) -> Result<(), ConfigError> {
    for &(key, range) in RANGES {
        let number = layered.value(key).and_then(Value::as_f64);
        if number.is_some_and(|number| !range.holds(number)) {
            return Err(refused(layered, key, range.words()));
        }
    }
    Ok(())
}

/// Settings that turn the AIC performance model on. Its others an engine alone, as `replay` and comparisons with the peer run
/// it, does not look at without them: Dynamo's replay takes them, and so much of them as counts GPUs and ranks is taken by
/// [`super::parallelism`].
const TURNS_THE_MODEL_ON: &[&str] = &["aic_perf_model", "aic_backend", "ais_perf_config"];

/// Why not, and what to do instead.
fn way_out(part: &str) -> String {
    match part {
        AIC => format!(
            ", but {}, or use --planner-profile-data or --timing-model instead",
            aic::NOT_BUILT_IN
        ),
        KV_ESTIMATE => format!(", but {}, or give --num-gpu-blocks-override instead", aic::NOT_BUILT_IN),
        _ => ", which this build does not have; use tcp, here and on the frontends (DYN_RESPONSE_PLANE)".to_owned(),
    }
}

/// The refusal of the model where a value, and not a setting of its own, asks for it.
///
/// # Errors
/// [`ConfigError::Value`].
pub(super) fn check_model_is_built_in(layered: &Layered, key: &str) -> Result<(), ConfigError> {
    if aic::BUILT_IN {
        return Ok(());
    }
    Err(refused(layered, key, &format!("asks for {AIC}{}", way_out(AIC))))
}

/// Words that ask for what is there anyway.
const NOTHING_ASKED: &[(&str, &str)] = &[("response_plane", "tcp")];

/// Refuses what cannot be done rather than ignoring it. `live`: in a worker with sockets, not in an engine alone.
///
/// # Errors
/// [`ConfigError::Value`].
pub(super) fn check_built_in(layered: &Layered, live: bool) -> Result<(), ConfigError> {
    for (key, part) in not_built_in() {
        if !live && part == AIC && !TURNS_THE_MODEL_ON.contains(&key) {
            continue;
        }
        let asks = |value: &Value| {
            value != &Value::from(false) && !NOTHING_ASKED.contains(&(key, value.as_str().unwrap_or_default()))
        };
        if layered.value(key).is_some_and(asks) {
            return Err(refused(layered, key, &format!("asks for {part}{}", way_out(part))));
        }
    }
    Ok(())
}

/// An error about the value of `key`.
pub(super) fn refused(layered: &Layered, key: &str, why: &str) -> ConfigError {
    let place = match (layered.value(key), layered.origin(key)) {
        (Some(value), origin) => origin.unwrap_or(&Origin::Flag).place(key, value),
        (None, _) => flag(key),
    };
    ConfigError::Value {
        place,
        why: why.to_owned(),
    }
}
