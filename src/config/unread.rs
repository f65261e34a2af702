//! Settings that are said and that nothing reads, because the engine, its fidelity or another setting leaves no room for
//! them. They are told and not refused: the top of a file may say what only some of its groups read.

use super::ConfigError;
use super::aic;
use super::choices::{DisaggregationMode, SchedulingPolicy};
use super::implied::is_said;
use super::layers::{Layered, Merged, Origin};
use super::settings::Settings;
use crate::engine::{CapacityPolicy, EngineKind, Fidelity, RadixEviction};

/// A setting, who reads it, and that in words.
type Rule = (&'static str, fn(&Settings) -> bool, &'static str);

const REAL_VLLM: &str = "--engine-type vllm with --scheduler-fidelity real";
const SGLANG: &str = "--engine-type sglang";
const TLRU: &str = "--sglang-radix-eviction-policy tlru";
const AIC: &str = "--aic-perf-model";
const DISAGGREGATED: &str = "--disaggregation-mode prefill or decode";

/// Every setting that some workers do not read. What contradicts another setting is refused elsewhere and not here.
const RULES: &[Rule] = &[
    ("watermark", real_vllm, REAL_VLLM),
    ("scheduling_policy", real_vllm, REAL_VLLM),
    ("long_prefill_token_threshold", real_vllm, REAL_VLLM),
    (
        "long_prefill_token_threshold_adaptive",
        |s| real_vllm(s) && s.long_prefill_token_threshold.is_some_and(|tokens| tokens > 0),
        "--engine-type vllm with --scheduler-fidelity real and --long-prefill-token-threshold",
    ),
    ("scheduler_reserve_full_isl", real_vllm, REAL_VLLM),
    (
        "preemption_mode",
        preempts_by_age,
        "--engine-type vllm without --scheduling-policy priority, or trtllm with --trtllm-capacity-scheduler-policy \
         max_utilization",
    ),
    (
        "max_num_batched_tokens",
        |s| !sglang(s),
        "--engine-type vllm or trtllm (sglang has --sglang-max-prefill-tokens and --sglang-chunked-prefill-size; routers are \
         told the number all the same)",
    ),
    (
        "prefill_schedule_interval",
        |s| kind(s) == EngineKind::Vllm && s.data_parallel_size.is_some_and(|ranks| ranks > 1),
        "--engine-type vllm with --data-parallel-size 2 or more",
    ),
    ("sglang_schedule_policy", sglang, SGLANG),
    ("sglang_page_size", sglang, SGLANG),
    ("sglang_max_prefill_tokens", sglang, SGLANG),
    ("sglang_chunked_prefill_size", sglang, SGLANG),
    ("sglang_clip_max_new_tokens", sglang, SGLANG),
    ("sglang_schedule_conservativeness", sglang, SGLANG),
    (
        "sglang_radix_eviction_policy",
        real_sglang,
        "--engine-type sglang with --scheduler-fidelity real",
    ),
    ("sglang_tlru_threshold", tlru, TLRU),
    ("sglang_tlru_next_prompt_estimate", tlru, TLRU),
    ("sglang_prefill_decode_interval", sglang, SGLANG),
    (
        "trtllm_capacity_scheduler_policy",
        |s| kind(s) == EngineKind::Trtllm,
        "--engine-type trtllm",
    ),
    ("aic_systems_path", aic::is_on, AIC),
    ("aic_model_configs", aic::is_on, AIC),
    ("aic_database_mode", aic::is_on, AIC),
    ("aic_plan", aic::is_on, AIC),
    ("aic_system", aic::is_on, AIC),
    ("aic_backend", aic::is_on, AIC),
    ("aic_backend_version", aic::is_on, AIC),
    ("aic_model_path", aic::is_on, AIC),
    ("aic_tp_size", aic::is_on, AIC),
    ("aic_moe_tp_size", aic::is_on, AIC),
    ("aic_moe_ep_size", aic::is_on, AIC),
    ("aic_attention_dp_size", aic::is_on, AIC),
    ("aic_gemm_dtype", aic::is_on, AIC),
    ("aic_moe_dtype", aic::is_on, AIC),
    ("aic_fmha_dtype", aic::is_on, AIC),
    ("aic_kv_cache_dtype", aic::is_on, AIC),
    ("aic_comm_dtype", aic::is_on, AIC),
    (
        "gpu_memory_utilization",
        |s| aic::reads_share("gpu_memory_utilization", s),
        "--aic-perf-model of backend vllm, without --num-gpu-blocks-override",
    ),
    (
        "mem_fraction_static",
        |s| aic::reads_share("mem_fraction_static", s),
        "--aic-perf-model of backend sglang, without --num-gpu-blocks-override",
    ),
    (
        "free_gpu_memory_fraction",
        |s| aic::reads_share("free_gpu_memory_fraction", s),
        "--aic-perf-model of backend trtllm, without --num-gpu-blocks-override",
    ),
    ("aic_nextn_accept_rates", drafts, "--aic-nextn"),
    ("aic_mtp_seed", drafts, "--aic-nextn"),
    ("kv_transfer_bandwidth", hands_over, DISAGGREGATED),
    ("kv_transfer_timing_mode", hands_over, DISAGGREGATED),
    ("handoff_pairing_timeout_ms", hands_over, DISAGGREGATED),
    ("handoff_session_timeout_ms", hands_over, DISAGGREGATED),
    ("router_queue_policy", |_| false, "the router of `ghostfleet replay`"),
];

fn kind(s: &Settings) -> EngineKind {
    s.engine_type.unwrap_or_default()
}

fn is_real(s: &Settings) -> bool {
    s.scheduler_fidelity.unwrap_or_default() == Fidelity::Real
}

fn real_vllm(s: &Settings) -> bool {
    kind(s) == EngineKind::Vllm && is_real(s)
}

fn sglang(s: &Settings) -> bool {
    kind(s) == EngineKind::Sglang
}

fn real_sglang(s: &Settings) -> bool {
    sglang(s) && is_real(s)
}

fn tlru(s: &Settings) -> bool {
    real_sglang(s) && s.sglang_radix_eviction_policy == Some(RadixEviction::Tlru)
}

fn preempts_by_age(s: &Settings) -> bool {
    match kind(s) {
        EngineKind::Vllm => !(is_real(s) && s.scheduling_policy == Some(SchedulingPolicy::Priority)),
        EngineKind::Trtllm => s.trtllm_capacity_scheduler_policy == Some(CapacityPolicy::MaxUtilization),
        EngineKind::Sglang => false,
    }
}

fn drafts(s: &Settings) -> bool {
    s.aic_nextn.is_some()
}

fn hands_over(s: &Settings) -> bool {
    let named = s
        .disaggregation_mode
        .is_some_and(|mode| mode != DisaggregationMode::Agg);
    named || s.is_prefill_worker == Some(true) || s.is_decode_worker == Some(true)
}

/// Whether workers with these settings read `key`.
pub(super) fn is_read(key: &str, s: &Settings) -> bool {
    RULES.iter().find(|rule| rule.0 == key).is_none_or(|rule| rule.1(s))
}

/// One line for each setting that is said for nobody: for the whole fleet when no group reads it, for a group when only
/// that group says it.
///
/// # Errors
/// As [`Layered::settings`].
pub(super) fn of(merged: &Merged) -> Result<Vec<String>, ConfigError> {
    let settings = merged.groups.iter().map(Layered::settings);
    let settings = settings.collect::<Result<Vec<_>, _>>()?;
    let mut told = Vec::new();
    for &(key, reads, readers) in RULES {
        let mut tell = |layered: &Layered| {
            if let Some((value, origin)) = layered.value(key).zip(layered.origin(key)) {
                let place = origin.place(key, value);
                told.push(format!("{place} has no effect here: it needs {readers}"));
            }
        };
        let unread = || merged.groups.iter().zip(&settings).filter(|(_, s)| !reads(s));
        if unread().count() == settings.len() && is_said(&merged.fleet, key) {
            tell(&merged.fleet);
            continue;
        }
        // A printed config repeats in every group what the fleet says.
        let own = |layered: &Layered| {
            let here = matches!(layered.origin(key).map(named_at), Some(Origin::Group { .. }));
            here && layered.value(key) != merged.fleet.value(key)
        };
        for (layered, _) in unread().filter(|(layered, _)| own(layered) && is_said(layered, key)) {
            tell(layered);
        }
    }
    Ok(told)
}

/// Where a value was said, or the document that says it was named.
fn named_at(mut origin: &Origin) -> &Origin {
    while let Origin::EngineArgs { named_by, .. } = origin {
        origin = named_by;
    }
    origin
}
