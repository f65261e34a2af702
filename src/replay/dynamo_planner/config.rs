//! Dynamo's planner configuration, checked and completed with its defaults.
//!
//! Source of defaults and limits: planner configuration of Dynamo 1.4.2; floors per role and the cap on throughput steps:
//! 1.6.1.

use serde_json::Value;

use crate::plain_words::number;

use super::budget::Budget;
use super::document::{Document, Mode, TargetName};

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
    /// Full caches and queues.
    Throughput,
    /// Short queues.
    Latency,
    /// Given thresholds.
    Load(Thresholds),
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
        let target = check.target()?;
        let load_interval_s = f64::from(check.positive(
            "load_adjustment_interval_seconds",
            document.load_adjustment_interval_seconds,
            LOAD_INTERVAL_S,
        )?);
        let scale_interval_s = check.scale_interval(load_interval_s, None)?;
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

    /// Without what it says of GPUs per worker: Dynamo 1.4.2 asks the engines only.
    #[must_use]
    pub fn with_gpus_of_engines(self) -> Self {
        Self {
            gpus: Sides::default(),
            ..self
        }
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
        const PROGRAM: &str = "or let a program plan: {command: [...]}, see --help";
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

    fn target(&self) -> Result<Target, String> {
        Ok(match self.document.optimization_target {
            TargetName::Throughput => Target::Throughput,
            TargetName::Latency => Target::Latency,
            TargetName::Load => Target::Load(self.thresholds()?),
            TargetName::Sla => {
                return self.wrong(
                    "optimization_target",
                    "is sla, which needs a model of the engine's speed that this build does not have; use throughput, \
                     latency or load, or let a program plan: {command: [...]}, see --help",
                );
            }
        })
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
            target: Target::Throughput,
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
        assert_eq!(found.with_gpus_of_engines().gpus.serving, None);
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
            (json!({"optimization_target": "sla"}), "optimization_target is sla"),
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
