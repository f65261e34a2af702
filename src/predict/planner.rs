//! The section `planner`: Dynamo 1.6.1's names for what its planner's own configuration calls otherwise.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::replay::dynamo_planner::{PlannerConfig, Spelling};

use super::PredictError;
use super::document::{Document, Format, Mode, Source};

/// Who scales. Read as it is written here, written as the planner's configuration.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Planner {
    /// Whether anybody does; else the other settings are read and mean nothing.
    #[serde(skip_serializing)]
    pub policy: PlannerPolicy,
    #[serde(rename(serialize = "optimization_target"))]
    pub target: PlannerTarget,
    pub enable_throughput_scaling: Option<bool>,
    pub enable_load_scaling: Option<bool>,
    pub throughput_adjustment_interval_seconds: Option<u32>,
    pub load_adjustment_interval_seconds: Option<u32>,
    pub max_throughput_scaling_replicas: Option<u32>,
    pub max_num_fpm_samples: Option<u32>,
    pub fpm_sample_bucket_size: Option<u32>,
    pub load_scaling_down_sensitivity: Option<u32>,
    pub load_min_observations: Option<u32>,
    pub load_predictor: LoadPredictor,
    pub load_predictor_log1p: bool,
    pub prophet_window_size: Option<u32>,
    pub kalman_q_level: Option<f64>,
    pub kalman_q_trend: Option<f64>,
    pub kalman_r: Option<f64>,
    pub kalman_min_points: Option<u32>,
    #[serde(rename(serialize = "max_gpu_budget"))]
    pub max_num_gpus: Option<i32>,
    #[serde(rename(serialize = "min_gpu_budget"))]
    pub min_num_gpus: Option<i32>,
    #[serde(rename(serialize = "min_endpoint"))]
    pub min_workers: Option<u32>,
    #[serde(rename(serialize = "prefill_min_endpoint"))]
    pub prefill_min_workers: Option<u32>,
    #[serde(rename(serialize = "decode_min_endpoint"))]
    pub decode_min_workers: Option<u32>,
}

/// What a planner aims at.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PlannerTarget {
    #[default]
    Throughput,
    Latency,
    Load,
    Sla,
}

/// How a planner foresees load.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadPredictor {
    Constant,
    #[default]
    Arima,
    Prophet,
    Kalman,
}

/// Whether anybody scales.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlannerPolicy {
    #[default]
    Disabled,
    Enabled,
}

/// Most workers of a side that come or go by one look at the traffic, unless the section says.
const MOST_STEPS: u32 = 8;

fn wrong<T>(what: impl Into<String>) -> Result<T, PredictError> {
    Err(PredictError::Config(what.into()))
}

/// The configuration of the planner of a document whose workers take so many GPUs (prefill, the others); none where nobody
/// scales.
///
/// # Errors
/// [`PredictError::Config`] names the key.
pub(super) fn configuration(document: &Document, gpus: (u32, u32)) -> Result<Option<String>, PredictError> {
    let Some(section) = &document.planner else {
        return Ok(None);
    };
    if section.policy == PlannerPolicy::Disabled {
        return Ok(None);
    }
    check_traffic(document)?;
    let disaggregated = document.engine.mode == Mode::Disaggregated;
    let mut found = json!(section);
    let Value::Object(keys) = &mut found else {
        return wrong("planner: expected a mapping");
    };
    keys.retain(|_, value| !value.is_null());
    keys.insert("mode".into(), if disaggregated { "disagg" } else { "agg" }.into());
    keys.entry("max_throughput_scaling_replicas")
        .or_insert(MOST_STEPS.into());
    keys.insert("decode_engine_num_gpu".into(), gpus.1.into());
    if disaggregated {
        keys.insert("prefill_engine_num_gpu".into(), gpus.0.into());
    }
    match section.target {
        PlannerTarget::Throughput | PlannerTarget::Latency => {}
        PlannerTarget::Load => {
            // The section has no keys for them; these are the peer's.
            keys.insert("prefill_scale_up_queue_tokens".into(), 1.into());
            keys.insert("prefill_scale_down_queue_tokens".into(), 0.into());
            keys.insert("decode_scale_up_kv_rate".into(), 90.into());
            keys.insert("decode_scale_down_kv_rate".into(), 70.into());
        }
        PlannerTarget::Sla => {
            let sla = document.evaluation.as_ref().and_then(|evaluation| evaluation.sla);
            let sla = sla.unwrap_or_default();
            for (key, bound) in [("ttft_ms", sla.ttft_ms), ("itl_ms", sla.itl_ms)] {
                if let Some(bound) = bound {
                    keys.insert(key.into(), bound.into());
                } else if section.enable_throughput_scaling != Some(false) {
                    return wrong(format!(
                        "evaluation.sla.{key} is missing; planner.target sla scales for throughput by it, unless \
                         planner.enable_throughput_scaling is false"
                    ));
                }
            }
        }
    }
    let checked = PlannerConfig::read(found.clone(), disaggregated, Spelling::Prediction);
    checked.map_err(PredictError::Config)?;
    Ok(Some(found.to_string()))
}

/// Whether the traffic is of a kind that planners are replayed with.
fn check_traffic(document: &Document) -> Result<(), PredictError> {
    if let Source::Trace { format, .. } = &document.traffic.source
        && !matches!(format, Format::Mooncake | Format::Dynamo)
    {
        return wrong("planner.policy is enabled, which works with traces of format mooncake or dynamo; use disabled");
    }
    if document.traffic.stop.max_virtual_time_seconds.is_some() {
        return wrong(
            "traffic.stop.max_virtual_time_seconds and planner.policy enabled exclude each other; leave one of them out",
        );
    }
    Ok(())
}
