//! Dynamo's planner configuration as it is written. Keys and their other names are those of Dynamo 1.4.2, with those
//! that 1.6.1 added.

use serde::Deserialize;
use serde_json::Value;

use crate::plain_words::plain;

/// Keys about where a planner runs, whom it asks and what it reports there. In a replay they mean nothing.
const ELSEWHERE: &[&str] = &[
    "advisory",
    "aic_interpolation",
    "backend",
    "control_api_port",
    "environment",
    "global_planner_namespace",
    "live_dashboard_port",
    "log_dir",
    "metric_pulling_prometheus_ca_bundle",
    "metric_pulling_prometheus_endpoint",
    "metric_pulling_prometheus_extra_query_params",
    "metric_pulling_prometheus_request_timeout_seconds",
    "metric_pulling_prometheus_ssl_verify",
    "metric_pulling_prometheus_token",
    "metric_pulling_prometheus_token_file",
    "metric_reporting_prometheus_port",
    "model_name",
    "namespace",
    "pre_deployment_sweeping_mode",
    "profile_results_dir",
    "report_filename",
    "report_interval_hours",
    "report_output_dir",
    "report_write_gzip_log",
    "throughput_metrics_source",
];

/// What the document says of a replay.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Document {
    pub(super) mode: Mode,
    pub(super) optimization_target: TargetName,
    #[serde(alias = "throughput_adjustment_interval")]
    pub(super) throughput_adjustment_interval_seconds: Option<u32>,
    #[serde(alias = "load_adjustment_interval")]
    pub(super) load_adjustment_interval_seconds: Option<u32>,
    pub(super) enable_throughput_scaling: Option<bool>,
    pub(super) enable_load_scaling: Option<bool>,
    pub(super) max_throughput_scaling_replicas: Option<u32>,
    /// Negative: none.
    pub(super) max_gpu_budget: Option<i32>,
    /// Negative: none.
    pub(super) min_gpu_budget: Option<i32>,
    pub(super) min_endpoint: Option<u32>,
    pub(super) prefill_min_endpoint: Option<u32>,
    pub(super) decode_min_endpoint: Option<u32>,
    pub(super) prefill_engine_num_gpu: Option<u32>,
    pub(super) decode_engine_num_gpu: Option<u32>,
    #[serde(alias = "ttft")]
    pub(super) ttft_ms: Option<f64>,
    #[serde(alias = "itl")]
    pub(super) itl_ms: Option<f64>,
    pub(super) load_predictor: PredictorName,
    pub(super) load_predictor_log1p: bool,
    pub(super) prophet_window_size: Option<u32>,
    pub(super) load_predictor_warmup_trace: Option<String>,
    pub(super) kalman_q_level: Option<f64>,
    pub(super) kalman_q_trend: Option<f64>,
    pub(super) kalman_r: Option<f64>,
    pub(super) kalman_min_points: Option<u32>,
    pub(super) max_num_fpm_samples: Option<u32>,
    pub(super) fpm_sample_bucket_size: Option<u32>,
    pub(super) load_scaling_down_sensitivity: Option<u32>,
    pub(super) load_min_observations: Option<u32>,
    pub(super) prefill_scale_up_queue_tokens: Option<u64>,
    pub(super) prefill_scale_down_queue_tokens: Option<u64>,
    pub(super) decode_scale_up_kv_rate: Option<f64>,
    pub(super) decode_scale_down_kv_rate: Option<f64>,
    pub(super) speculative_nextn: Option<u32>,
    pub(super) scheduling: Option<Scheduling>,
    pub(super) plugin_registration: Option<Value>,
    pub(super) aic_perf_model: Option<Value>,
    pub(super) ais_perf_model: Option<Value>,
    pub(super) enable_power_awareness: bool,
    pub(super) total_gpu_power_limit: Option<u32>,
}

/// Sides that a planner looks after.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    #[default]
    Disagg,
    Prefill,
    Decode,
    Agg,
}

impl Mode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Disagg => "disagg",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Agg => "agg",
        }
    }
}

/// What a planner aims at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TargetName {
    #[default]
    Throughput,
    Latency,
    Load,
    Sla,
}

/// How load is foreseen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum PredictorName {
    Constant,
    #[default]
    Arima,
    Prophet,
    Kalman,
}

impl PredictorName {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Arima => "arima",
            Self::Prophet => "prophet",
            Self::Kalman => "kalman",
        }
    }
}

/// When the planner's parts run.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Scheduling {
    pub(super) scale_interval_seconds: Option<f64>,
    /// Of the clock on the wall, which a replay does not watch.
    tick_max_duration_seconds: Option<f64>,
    pub(super) external_plugins: Vec<Value>,
    pub(super) gateway: Gateway,
}

/// Where plugins from outside register.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Gateway {
    pub(super) enabled: bool,
    listen: Option<String>,
    allow_insecure: bool,
}

impl Document {
    /// Reads a document; unknown keys are errors.
    pub(super) fn read(mut document: Value) -> Result<Self, String> {
        let Some(keys) = document.as_object_mut() else {
            return Err("expected a mapping of keys to values".into());
        };
        keys.retain(|key, _| !ELSEWHERE.contains(&key.as_str()));
        serde_path_to_error::deserialize(document).map_err(|error| {
            let text = error.inner().to_string();
            // The list of all keys would bury the one that is wrong.
            let unknown = text.starts_with("unknown field");
            let text = if unknown {
                text.split(", expected").next().unwrap_or(&text)
            } else {
                &text
            };
            let what = plain(&error.path().to_string(), text);
            if unknown {
                format!("{what} to Dynamo's planner")
            } else {
                what
            }
        })
    }
}
