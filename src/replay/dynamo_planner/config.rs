//! Dynamo's planner configuration, checked and completed with its defaults.
//!
//! Source of defaults and limits: planner configuration of Dynamo 1.4.2; floors per role and the cap on throughput steps:
//! 1.6.1.

use serde_json::Value;

use super::budget::Budget;
use super::check::Check;
use super::document::Document;
use super::forecast::Method;

/// Seconds between load decisions.
const LOAD_INTERVAL_S: u32 = 5;
/// GPUs of the fleet.
const MAX_GPUS: i32 = 8;

/// Whose names errors use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// Of the planner configuration itself.
    Document,
    /// Of the YAML of predictions.
    Prediction,
}

impl Spelling {
    /// A key as the user wrote it.
    pub(super) fn key(self, key: &str) -> String {
        let below = match (self, key) {
            (Self::Document, _) => return key.to_owned(),
            (Self::Prediction, "ttft_ms" | "itl_ms") => return format!("evaluation.sla.{key}"),
            (Self::Prediction, "optimization_target") => "target",
            (Self::Prediction, "max_gpu_budget") => "max_num_gpus",
            (Self::Prediction, "min_gpu_budget") => "min_num_gpus",
            (Self::Prediction, "min_endpoint") => "min_workers",
            (Self::Prediction, "prefill_min_endpoint") => "prefill_min_workers",
            (Self::Prediction, "decode_min_endpoint") => "decode_min_workers",
            (Self::Prediction, same) => same,
        };
        format!("planner.{below}")
    }
}

/// A value for the prefill side and one for the workers that answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sides<T> {
    pub(super) prefill: T,
    pub(super) serving: T,
}

/// A checked configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannerConfig {
    pub(super) target: Target,
    /// Between ticks.
    pub(super) scale_interval_s: f64,
    /// Between load decisions.
    pub(super) load_interval_s: f64,
    pub(super) budget: Budget,
    pub(super) least: Sides<u32>,
    /// GPUs of a worker, where the document says so.
    pub(super) gpus: Sides<Option<u32>>,
}

/// What it aims at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Target {
    Thresholds(ThresholdTarget),
    Service(ServiceTarget),
}

/// Loads between thresholds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ThresholdTarget {
    /// Full caches and queues.
    Throughput,
    /// Short queues.
    Latency,
    /// Given thresholds.
    Load(Thresholds),
}

/// Latencies within bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ServiceTarget {
    pub(super) ttft_ms: f64,
    pub(super) itl_ms: f64,
    /// One worker less has to leave this share of the bounds.
    pub(super) sensitivity: f64,
    pub(super) learning: Learning,
    /// Drafted tokens per pass where the engine does not say.
    pub(super) nextn: u32,
    /// Whether load scales.
    pub(super) by_load: bool,
    /// How throughput scales; `None`: it does not.
    pub(super) throughput: Option<Throughput>,
}

/// How the speed of engines is learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Learning {
    /// Most observations of a kind.
    pub(super) most: u32,
    /// Fewest of them.
    pub(super) least: u32,
    /// Parts of the range of loads, a square.
    pub(super) buckets: u32,
}

/// How throughput scales.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Throughput {
    pub(super) interval_s: f64,
    pub(super) method: Method,
    /// Most workers that come or go at once.
    pub(super) most_steps: Option<u32>,
}

/// When to scale, for the target `load`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Thresholds {
    /// Queued prompt tokens of a prefill worker: up from the first on, down at the second.
    pub(super) queue_tokens: (u64, u64),
    /// Share of the KV cache in use, alike.
    pub(super) kv_share: (f64, f64),
}

impl PlannerConfig {
    /// Reads and checks a configuration for an aggregated or disaggregated fleet.
    ///
    /// # Errors
    /// Which key is wrong and what is expected.
    pub fn read(document: Value, disaggregated: bool, spelling: Spelling) -> Result<Self, String> {
        let document = Document::read(document)?;
        let check = Check {
            document: &document,
            spelling,
        };
        check.mode(disaggregated)?;
        check.outside()?;
        let load_interval_s = check.positive(
            "load_adjustment_interval_seconds",
            document.load_adjustment_interval_seconds,
            LOAD_INTERVAL_S,
        )?;
        let load_interval_s = f64::from(load_interval_s);
        let target = check.target(load_interval_s)?;
        let throughput_s = match &target {
            Target::Thresholds(_) => None,
            Target::Service(service) => service.throughput.map(|throughput| throughput.interval_s),
        };
        let scale_interval_s = check.scale_interval(load_interval_s, throughput_s)?;
        let least = document.min_endpoint.unwrap_or(1);
        Ok(Self {
            target,
            scale_interval_s,
            load_interval_s,
            budget: Budget {
                min: u32::try_from(document.min_gpu_budget.unwrap_or(-1)).ok(),
                max: u32::try_from(document.max_gpu_budget.unwrap_or(MAX_GPUS)).ok(),
            },
            least: Sides {
                prefill: document.prefill_min_endpoint.unwrap_or(least),
                serving: document.decode_min_endpoint.unwrap_or(least),
            },
            gpus: Sides {
                prefill: document.prefill_engine_num_gpu,
                serving: document.decode_engine_num_gpu,
            },
        })
    }

    /// Without what Dynamo 1.4.2 does not heed: GPUs of a worker, which it asks the engines for, and the cap on steps.
    #[must_use]
    pub fn of_1_4_2(mut self) -> Self {
        self.gpus = Sides::default();
        if let Target::Service(ServiceTarget {
            throughput: Some(throughput),
            ..
        }) = &mut self.target
        {
            throughput.most_steps = None;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(document: Value) -> Result<PlannerConfig, String> {
        PlannerConfig::read(document, false, Spelling::Document)
    }

    #[test]
    fn what_is_left_out_has_the_peers_defaults_and_keys_have_their_other_names() {
        let found = PlannerConfig::read(json!({}), true, Spelling::Document).unwrap();
        let expected = PlannerConfig {
            target: Target::Thresholds(ThresholdTarget::Throughput),
            scale_interval_s: 5.0,
            load_interval_s: 5.0,
            budget: Budget {
                min: None,
                max: Some(8),
            },
            least: Sides { prefill: 1, serving: 1 },
            gpus: Sides::default(),
        };
        assert_eq!(found, expected);
        let found = read(json!({
            "mode": "agg", "load_adjustment_interval": 4, "scheduling": {"scale_interval_seconds": 0.5},
            "max_gpu_budget": -1, "min_gpu_budget": 2, "min_endpoint": 3, "decode_engine_num_gpu": 4,
            "report_interval_hours": null, "environment": "virtual", "ttft": 100,
        }));
        let found = found.unwrap();
        assert_eq!((found.load_interval_s, found.scale_interval_s), (4.0, 0.5));
        assert_eq!((found.budget.min, found.budget.max), (Some(2), None));
        assert_eq!((found.least.serving, found.gpus.serving), (3, Some(4)));
        assert_eq!(found.of_1_4_2().gpus.serving, None);
    }

    /// With `more` keys an aggregated fleet's configuration is refused.
    fn refused(more: &Value, expected: &str) {
        let mut document = json!({"mode": "agg"});
        let keys = document.as_object_mut().unwrap();
        keys.extend(more.as_object().unwrap().clone());
        let error = read(document).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn a_wrong_configuration_is_refused_with_the_name_of_the_key() {
        for (more, expected) in [
            (json!({"mode": "disagg"}), "mode is disagg, but the fleet is aggregated"),
            (
                json!({"mode": "decode"}),
                "mode is decode; a replay is planned with agg or disagg",
            ),
            (
                json!({"mode": "both"}),
                "mode is \"both\", expected one of disagg, prefill",
            ),
            (json!({"max_gpus": 2}), "max_gpus is not known to Dynamo's planner"),
            (
                json!({"scheduling": {"every": 2}}),
                "scheduling.every is not known to Dynamo's planner",
            ),
            (
                json!({"load_adjustment_interval_seconds": 0}),
                "load_adjustment_interval_seconds is 0, expected at least 1",
            ),
            (
                json!({"load_adjustment_interval_seconds": "soon"}),
                "load_adjustment_interval_seconds is \"soon\", expected a whole number",
            ),
            (
                json!({"scheduling": {"scale_interval_seconds": 2}}),
                "scheduling.scale_interval_seconds is 2, which does not divide load_adjustment_interval_seconds evenly",
            ),
            (
                json!({"scheduling": {"external_plugins": [{}]}}),
                "scheduling.external_plugins names plugins",
            ),
            (
                json!({"scheduling": {"gateway": {"enabled": true}}}),
                "scheduling.gateway.enabled asks for a gateway",
            ),
            (
                json!({"plugin_registration": {"in_process_plugins": [{}]}}),
                "plugin_registration.in_process_plugins names plugins",
            ),
            (
                json!({"enable_power_awareness": true}),
                "enable_power_awareness is true",
            ),
            (
                json!({"decode_min_endpoint": 2}),
                "decode_min_endpoint is for disaggregated fleets; use min_endpoint",
            ),
            (
                json!({"decode_engine_num_gpu": 0}),
                "decode_engine_num_gpu is 0, expected at least 1",
            ),
            (
                json!({"optimization_target": "load", "decode_scale_up_kv_rate": 5}),
                "decode_scale_down_kv_rate is missing; optimization_target load needs it",
            ),
            (
                json!({"optimization_target": "load", "decode_scale_up_kv_rate": 5, "decode_scale_down_kv_rate": 5}),
                "decode_scale_up_kv_rate must be greater than decode_scale_down_kv_rate",
            ),
            (
                json!({"optimization_target": "load", "decode_scale_up_kv_rate": 105}),
                "decode_scale_up_kv_rate is 105, expected 0 to 100",
            ),
        ] {
            refused(&more, expected);
        }
        let error = PlannerConfig::read(json!({"mode": "agg"}), true, Spelling::Prediction).unwrap_err();
        assert!(error.starts_with("planner.mode is agg, but"), "{error}");
        assert!(read(json!([1])).unwrap_err().contains("expected a mapping"));
    }

    #[test]
    fn what_the_target_sla_cannot_work_with_is_refused_with_the_name_of_the_key() {
        for (more, expected) in [
            (
                json!({"optimization_target": "sla"}),
                "load_predictor is arima, which is not built in; use constant or kalman",
            ),
            (
                json!({"optimization_target": "sla", "aic_perf_model": {}}),
                "aic_perf_model names a model of engines",
            ),
            (
                json!({"optimization_target": "sla", "enable_throughput_scaling": false}),
                "enable_load_scaling or enable_throughput_scaling must be true",
            ),
            (
                json!({"optimization_target": "sla", "load_predictor": "constant", "ttft": 0}),
                "ttft_ms is 0, expected a number above 0",
            ),
            (
                json!({"optimization_target": "sla", "load_predictor": "kalman", "kalman_r": -1}),
                "kalman_r is -1, expected a number from 0 on",
            ),
            (
                json!({"optimization_target": "sla", "load_predictor": "constant", "load_predictor_warmup_trace": "t"}),
                "load_predictor_warmup_trace warms forecasts up",
            ),
            (
                json!({"optimization_target": "sla", "load_predictor": "constant", "enable_load_scaling": true,
                    "throughput_adjustment_interval": 5}),
                "throughput_adjustment_interval_seconds is 5, expected more than load_adjustment_interval_seconds",
            ),
            (
                json!({"optimization_target": "sla", "load_predictor": "constant", "fpm_sample_bucket_size": 15}),
                "fpm_sample_bucket_size is 15, expected the square",
            ),
            (
                json!({"optimization_target": "sla", "load_predictor": "constant", "max_num_fpm_samples": 4}),
                "load_min_observations is 5, expected at most max_num_fpm_samples, 4",
            ),
        ] {
            refused(&more, expected);
        }
    }
}
