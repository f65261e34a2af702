//! What is wrong with a configuration of Dynamo's planner, key by key.

use crate::plain_words::number;

use super::config::{Learning, ServiceTarget, Spelling, Target, ThresholdTarget, Thresholds, Throughput};
use super::document::{Document, Mode, PredictorName, TargetName};
use super::forecast::Method;

/// Seconds between throughput decisions.
const THROUGHPUT_INTERVAL_S: u32 = 180;
const TTFT_MS: f64 = 500.0;
const ITL_MS: f64 = 50.0;
/// Seconds between ticks.
const STEP: &str = "scheduling.scale_interval_seconds";
/// The way out of what is not built in.
const PROGRAM: &str = "or let a program plan: {command: [...]}, see replay --help";

/// A document under check.
pub(super) struct Check<'a> {
    pub(super) document: &'a Document,
    pub(super) spelling: Spelling,
}

impl Check<'_> {
    fn wrong<T>(&self, key: &str, what: impl std::fmt::Display) -> Result<T, String> {
        Err(format!("{} {what}", self.spelling.key(key)))
    }

    pub(super) fn mode(&self, disaggregated: bool) -> Result<(), String> {
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
    pub(super) fn outside(&self) -> Result<(), String> {
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

    pub(super) fn target(&self, load_s: f64) -> Result<Target, String> {
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
                level: self.not_negative("kalman_q_level", document.kalman_q_level, 1.0)?,
                trend: self.not_negative("kalman_q_trend", document.kalman_q_trend, 0.1)?,
                noise: self.not_negative("kalman_r", document.kalman_r, 10.0)?,
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

    fn not_negative(&self, key: &str, value: Option<f64>, default: f64) -> Result<f64, String> {
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

    pub(super) fn positive(&self, key: &str, value: Option<u32>, default: u32) -> Result<u32, String> {
        match value {
            Some(0) => self.wrong(key, "is 0, expected at least 1"),
            value => Ok(value.unwrap_or(default)),
        }
    }

    /// Seconds between ticks: what the document says, else the longest step that meets every interval.
    pub(super) fn scale_interval(&self, load_s: f64, throughput_s: Option<f64>) -> Result<f64, String> {
        let given = self.document.scheduling.as_ref();
        let Some(given) = given.and_then(|scheduling| scheduling.scale_interval_seconds) else {
            return Ok(throughput_s.map_or(load_s, |throughput_s| common_step(load_s, throughput_s)));
        };
        if !given.is_finite() || given <= 0.0 {
            return self.wrong(STEP, format_args!("is {}, expected seconds above 0", number(given)));
        }
        for (key, interval) in [
            ("load_adjustment_interval_seconds", Some(load_s)),
            ("throughput_adjustment_interval_seconds", throughput_s),
        ] {
            if interval.is_some_and(|interval| !divides(given, interval)) {
                let key = self.spelling.key(key);
                return self.wrong(
                    STEP,
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
