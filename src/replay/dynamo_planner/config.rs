//! Dynamo's planner configuration, checked and completed with its defaults.
//!
//! Source of defaults and limits: planner configuration of Dynamo 1.4.2; floors per role and the cap on throughput steps:
//! 1.6.1.

use serde_json::Value;

use crate::plain_words::number;

use super::budget::Budget;
use super::document::{Document, Mode, PredictorName, TargetName};
use super::forecast::Method;

/// Seconds between load decisions.
const LOAD_INTERVAL_S: u32 = 5;
/// Seconds between throughput decisions.
const THROUGHPUT_INTERVAL_S: u32 = 180;
/// GPUs of the fleet.
const MAX_GPUS: i32 = 8;
const TTFT_MS: f64 = 500.0;
const ITL_MS: f64 = 50.0;
/// The way out of what is not built in.
const PROGRAM: &str = "or let a program plan: {command: [...]}, see replay --help";

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
    fn key(self, key: &str) -> String {
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

/// A document under check.
struct Check<'a> {
    document: &'a Document,
    spelling: Spelling,
}

impl Check<'_> {
    fn wrong<T>(&self, key: &str, what: impl std::fmt::Display) -> Result<T, String> {
        Err(format!("{} {what}", self.spelling.key(key)))
    }

    fn mode(&self, disaggregated: bool) -> Result<(), String> {
        let mode = self.document.mode;
        match (mode, disaggregated) {
            (Mode::Agg, false) | (Mode::Disagg, true) => {}
            (Mode::Agg, true) => {
                return self.wrong(
                    "mode",
                    "is agg, but the fleet has a prefill and a decode side; use disagg",
                );
            }
            (Mode::Disagg, false) => {
                return self.wrong(
                    "mode",
                    "is disagg, but the fleet is aggregated; use agg, or give --prefill-engine-args and \
                     --decode-engine-args",
                );
            }
            (Mode::Prefill | Mode::Decode, _) => {
                let mode = mode.name();
                return self.wrong(
                    "mode",
                    format_args!("is {mode}; a replay is planned with agg or disagg"),
                );
            }
        }
        for (key, least) in [
            ("prefill_min_endpoint", self.document.prefill_min_endpoint),
            ("decode_min_endpoint", self.document.decode_min_endpoint),
        ] {
            let Some(least) = least else { continue };
            if !disaggregated {
                let all = self.spelling.key("min_endpoint");
                return self.wrong(key, format_args!("is for disaggregated fleets; use {all}"));
            }
            if least == 0 {
                return self.wrong(key, "is 0, expected at least 1");
            }
        }
        for (key, gpus) in [
            ("prefill_engine_num_gpu", self.document.prefill_engine_num_gpu),
            ("decode_engine_num_gpu", self.document.decode_engine_num_gpu),
        ] {
            if gpus == Some(0) {
                return self.wrong(key, "is 0, expected at least 1");
            }
        }
        Ok(())
    }

    /// What is not a matter of this program.
    fn outside(&self) -> Result<(), String> {
        let document = self.document;
        let scheduling = document.scheduling.as_ref();
        if scheduling.is_some_and(|scheduling| !scheduling.external_plugins.is_empty()) {
            return self.wrong(
                "scheduling.external_plugins",
                format_args!("names plugins, which are not called here; leave it out, {PROGRAM}"),
            );
        }
        if scheduling.is_some_and(|scheduling| scheduling.gateway.enabled) {
            return self.wrong(
                "scheduling.gateway.enabled",
                format_args!("asks for a gateway for plugins, which is not opened here; leave it out, {PROGRAM}"),
            );
        }
        let plugins = document.plugin_registration.as_ref();
        let plugins = plugins.and_then(|plugins| plugins["in_process_plugins"].as_array());
        if plugins.is_some_and(|plugins| !plugins.is_empty()) {
            return self.wrong(
                "plugin_registration.in_process_plugins",
                format_args!("names plugins in Python, which are not loaded here; leave it out, {PROGRAM}"),
            );
        }
        if document.enable_power_awareness {
            return self.wrong(
                "enable_power_awareness",
                "is true, but power limits are read from Kubernetes, also by the peer; leave it out",
            );
        }
        Ok(())
    }

    fn target(&self, load_s: f64) -> Result<Target, String> {
        Ok(Target::Thresholds(match self.document.optimization_target {
            TargetName::Throughput => ThresholdTarget::Throughput,
            TargetName::Latency => ThresholdTarget::Latency,
            TargetName::Load => ThresholdTarget::Load(self.thresholds()?),
            TargetName::Sla => return Ok(Target::Service(self.service(load_s)?)),
        }))
    }

    fn service(&self, load_s: f64) -> Result<ServiceTarget, String> {
        let document = self.document;
        for (key, model) in [
            ("aic_perf_model", &document.aic_perf_model),
            ("ais_perf_model", &document.ais_perf_model),
        ] {
            if model.is_some() {
                return self.wrong(
                    key,
                    format_args!(
                        "names a model of engines by their hardware, which this build does not have; leave it out to \
                         learn from passes, {PROGRAM}"
                    ),
                );
            }
        }
        let by_load = document.enable_load_scaling.unwrap_or(false);
        let by_throughput = document.enable_throughput_scaling.unwrap_or(true);
        if !by_load && !by_throughput {
            let other = self.spelling.key("enable_throughput_scaling");
            return self.wrong("enable_load_scaling", format_args!("or {other} must be true"));
        }
        let throughput = by_throughput.then(|| self.throughput(by_load.then_some(load_s)));
        let sensitivity = document.load_scaling_down_sensitivity.unwrap_or(80);
        if sensitivity > 100 {
            return self.wrong(
                "load_scaling_down_sensitivity",
                format_args!("is {sensitivity}, expected 0 to 100"),
            );
        }
        let most = self.positive("max_num_fpm_samples", document.max_num_fpm_samples, 64)?;
        let least = self.positive("load_min_observations", document.load_min_observations, 5)?;
        if least > most {
            let most_key = self.spelling.key("max_num_fpm_samples");
            return self.wrong(
                "load_min_observations",
                format_args!("is {least}, expected at most {most_key}, {most}"),
            );
        }
        let buckets = self.positive("fpm_sample_bucket_size", document.fpm_sample_bucket_size, 16)?;
        if buckets.isqrt().pow(2) != buckets {
            return self.wrong(
                "fpm_sample_bucket_size",
                format_args!("is {buckets}, expected the square of a whole number"),
            );
        }
        Ok(ServiceTarget {
            ttft_ms: self.above_zero("ttft_ms", document.ttft_ms, TTFT_MS)?,
            itl_ms: self.above_zero("itl_ms", document.itl_ms, ITL_MS)?,
            sensitivity: f64::from(sensitivity) / 100.0,
            learning: Learning { most, least, buckets },
            nextn: document.speculative_nextn.unwrap_or(0),
            by_load,
            throughput: throughput.transpose()?,
        })
    }

    fn throughput(&self, load_s: Option<f64>) -> Result<Throughput, String> {
        const KEY: &str = "throughput_adjustment_interval_seconds";
        let document = self.document;
        let method = match document.load_predictor {
            PredictorName::Constant => Method::Constant,
            PredictorName::Kalman => Method::Kalman {
                level: self.from_zero("kalman_q_level", document.kalman_q_level, 1.0)?,
                trend: self.from_zero("kalman_q_trend", document.kalman_q_trend, 0.1)?,
                noise: self.from_zero("kalman_r", document.kalman_r, 10.0)?,
                logarithms: document.load_predictor_log1p,
            },
            unknown @ (PredictorName::Arima | PredictorName::Prophet) => {
                let (name, load) = (unknown.name(), self.spelling.key("enable_throughput_scaling"));
                return self.wrong(
                    "load_predictor",
                    format_args!(
                        "is {name}, which is not built in; use constant or kalman, or set {load} to false, {PROGRAM}"
                    ),
                );
            }
        };
        if document.load_predictor_warmup_trace.is_some() {
            return self.wrong(
                "load_predictor_warmup_trace",
                format_args!("warms forecasts up, which is not built in; leave it out, {PROGRAM}"),
            );
        }
        let interval_s = f64::from(self.positive(
            KEY,
            document.throughput_adjustment_interval_seconds,
            THROUGHPUT_INTERVAL_S,
        )?);
        if load_s.is_some_and(|load_s| load_s >= interval_s) {
            let load = self.spelling.key("load_adjustment_interval_seconds");
            return self.wrong(
                KEY,
                format_args!("is {}, expected more than {load}", number(interval_s)),
            );
        }
        let most_steps = document.max_throughput_scaling_replicas;
        if most_steps == Some(0) {
            return self.wrong("max_throughput_scaling_replicas", "is 0, expected at least 1");
        }
        Ok(Throughput {
            interval_s,
            method,
            most_steps,
        })
    }

    fn above_zero(&self, key: &str, value: Option<f64>, default: f64) -> Result<f64, String> {
        let value = value.unwrap_or(default);
        if value.is_finite() && value > 0.0 {
            return Ok(value);
        }
        self.wrong(key, format_args!("is {}, expected a number above 0", number(value)))
    }

    fn from_zero(&self, key: &str, value: Option<f64>, default: f64) -> Result<f64, String> {
        let value = value.unwrap_or(default);
        if value.is_finite() && value >= 0.0 {
            return Ok(value);
        }
        self.wrong(key, format_args!("is {}, expected a number from 0 on", number(value)))
    }

    fn thresholds(&self) -> Result<Thresholds, String> {
        let document = self.document;
        let of_prefill = (
            document.prefill_scale_up_queue_tokens,
            document.prefill_scale_down_queue_tokens,
        );
        let queue_tokens = if document.mode == Mode::Disagg {
            self.pair(
                ("prefill_scale_up_queue_tokens", of_prefill.0),
                ("prefill_scale_down_queue_tokens", of_prefill.1),
            )?
        } else {
            (0, 0)
        };
        let (up, down) = (document.decode_scale_up_kv_rate, document.decode_scale_down_kv_rate);
        for (key, rate) in [("decode_scale_up_kv_rate", up), ("decode_scale_down_kv_rate", down)] {
            if let Some(rate) = rate.filter(|rate| !(0.0..=100.0).contains(rate)) {
                return self.wrong(key, format_args!("is {}, expected 0 to 100", number(rate)));
            }
        }
        let (up, down) = self.pair(("decode_scale_up_kv_rate", up), ("decode_scale_down_kv_rate", down))?;
        Ok(Thresholds {
            queue_tokens,
            kv_share: (up / 100.0, down / 100.0),
        })
    }

    /// Two thresholds that the target `load` needs.
    fn pair<T: PartialOrd + Copy>(&self, up: (&str, Option<T>), down: (&str, Option<T>)) -> Result<(T, T), String> {
        match (up.1, down.1) {
            (Some(high), Some(low)) if high > low => Ok((high, low)),
            (Some(_), Some(_)) => self.wrong(up.0, format_args!("must be greater than {}", self.spelling.key(down.0))),
            (found, _) => {
                let missing = if found.is_none() { up.0 } else { down.0 };
                let target = self.spelling.key("optimization_target");
                self.wrong(missing, format_args!("is missing; {target} load needs it"))
            }
        }
    }

    fn positive(&self, key: &str, value: Option<u32>, default: u32) -> Result<u32, String> {
        match value {
            Some(0) => self.wrong(key, "is 0, expected at least 1"),
            value => Ok(value.unwrap_or(default)),
        }
    }

    /// Seconds between ticks: what the document says, else the longest step that meets every interval.
    fn scale_interval(&self, load_s: f64, throughput_s: Option<f64>) -> Result<f64, String> {
        let given = self.document.scheduling.as_ref();
        let Some(given) = given.and_then(|scheduling| scheduling.scale_interval_seconds) else {
            return Ok(throughput_s.map_or(load_s, |throughput_s| common_step(load_s, throughput_s)));
        };
        const KEY: &str = "scheduling.scale_interval_seconds";
        if !given.is_finite() || given <= 0.0 {
            return self.wrong(KEY, format_args!("is {}, expected seconds above 0", number(given)));
        }
        for (key, interval) in [
            ("load_adjustment_interval_seconds", Some(load_s)),
            ("throughput_adjustment_interval_seconds", throughput_s),
        ] {
            if interval.is_some_and(|interval| !divides(given, interval)) {
                let key = self.spelling.key(key);
                return self.wrong(
                    KEY,
                    format_args!("is {}, which does not divide {key} evenly", number(given)),
                );
            }
        }
        Ok(given)
    }
}

/// Longest time that both times of whole seconds are multiples of.
fn common_step(a: f64, b: f64) -> f64 {
    if b == 0.0 { a } else { common_step(b, a % b) }
}

fn divides(step: f64, interval: f64) -> bool {
    let ratio = interval / step;
    (ratio - ratio.round()).abs() <= 1e-9 * ratio.abs().max(1.0)
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
            let mut document = json!({"mode": "agg"});
            let keys = document.as_object_mut().unwrap();
            keys.extend(more.as_object().unwrap().clone());
            let error = read(document).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let error = PlannerConfig::read(json!({"mode": "agg"}), true, Spelling::Prediction).unwrap_err();
        assert!(error.starts_with("planner.mode is agg, but"), "{error}");
        assert!(read(json!([1])).unwrap_err().contains("expected a mapping"));
    }
}
