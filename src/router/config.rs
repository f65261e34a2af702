//! Router configuration: the keys of the peer's JSON.

use serde::Deserialize;

/// Order of the requests that wait in the router.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueuePolicy {
    /// First come, first served.
    #[default]
    Fcfs,
    /// Last come, first served.
    Lcfs,
    /// Most urgent per uncached token first.
    Wspt,
}

/// Model of prefill durations on the router's side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrefillLoadModel {
    /// None: prefill load does not run down.
    #[default]
    None,
    /// AIC estimate.
    #[serde(alias = "ais")]
    Aic,
}

/// Keys of `--router-config`, defaults of Dynamo 1.6.1. Keys without effect in virtual time are read and checked.
#[allow(clippy::struct_excessive_bools, missing_docs)]
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouterConfig {
    /// Blocks of credit per matched block.
    pub overlap_score_credit: f64,
    /// How much prefill load takes away from the credit.
    pub overlap_score_credit_decay: f64,
    /// Weight of the prefill part of the cost.
    pub prefill_load_scale: f64,
    /// Blocks of cost per active request.
    pub decode_active_request_weight: f64,
    /// Old name: sets `prefill_load_scale`, and 0 takes the credit away too.
    pub overlap_score_weight: Option<f64>,
    pub host_cache_hit_weight: f64,
    pub disk_cache_hit_weight: f64,
    /// Spread of the choice; 0: always the cheapest.
    pub router_temperature: f64,
    pub use_kv_events: bool,
    pub durable_kv_events: bool,
    pub router_replica_sync: bool,
    pub router_track_active_blocks: bool,
    pub router_track_output_blocks: bool,
    pub router_assume_kv_reuse: bool,
    pub router_track_prefill_tokens: bool,
    pub router_tracking_hash: Option<String>,
    pub router_tracking_key_file: Option<String>,
    pub router_tracking_key_id: Option<String>,
    pub router_prefill_load_model: PrefillLoadModel,
    /// Share of `max_num_batched_tokens` above which a target is busy; `None`: nothing waits in the router.
    pub router_queue_threshold: Option<f64>,
    pub router_queue_policy: QueuePolicy,
    pub router_policy_config: Option<String>,
    pub router_event_threads: u32,
    pub skip_initial_worker_wait: bool,
    pub use_remote_indexer: bool,
    pub serve_indexer: bool,
    pub shared_cache_multiplier: Option<f64>,
    pub shared_cache_type: SharedCache,
    pub router_predicted_ttl_secs: Option<f64>,
    pub router_ttl_secs: f64,
    pub conditional_disagg_enabled: bool,
    pub conditional_disagg_policy: ConditionalDisagg,
    pub conditional_disagg_eff_isl_threshold: u32,
    pub conditional_disagg_eff_isl_ratio_threshold: f64,
    pub conditional_disagg_prefill_busy_threshold: Option<f64>,
    pub conditional_disagg_decode_busy_threshold: Option<f64>,
    pub enable_session_prefix_index: bool,
}

/// Cache that all workers share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SharedCache {
    /// None.
    #[default]
    None,
    /// SGLang `HiCache`.
    Hicache,
}

/// When a prompt skips the prefill pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConditionalDisagg {
    /// By uncached prompt length.
    #[default]
    IslBounding,
    /// By prefill load.
    PrefillLoad,
    /// By either.
    IslOrLoad,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self {
            overlap_score_credit: 1.0,
            overlap_score_credit_decay: 0.0,
            prefill_load_scale: 1.0,
            decode_active_request_weight: 0.0,
            overlap_score_weight: None,
            host_cache_hit_weight: 0.75,
            disk_cache_hit_weight: 0.25,
            router_temperature: 0.0,
            use_kv_events: true,
            durable_kv_events: false,
            router_replica_sync: false,
            router_track_active_blocks: true,
            router_track_output_blocks: false,
            router_assume_kv_reuse: true,
            router_track_prefill_tokens: true,
            router_tracking_hash: None,
            router_tracking_key_file: None,
            router_tracking_key_id: None,
            router_prefill_load_model: PrefillLoadModel::None,
            router_queue_threshold: None,
            router_queue_policy: QueuePolicy::Fcfs,
            router_policy_config: None,
            router_event_threads: 4,
            skip_initial_worker_wait: false,
            use_remote_indexer: false,
            serve_indexer: false,
            shared_cache_multiplier: None,
            shared_cache_type: SharedCache::None,
            router_predicted_ttl_secs: None,
            router_ttl_secs: 120.0,
            conditional_disagg_enabled: false,
            conditional_disagg_policy: ConditionalDisagg::IslBounding,
            conditional_disagg_eff_isl_threshold: 2048,
            conditional_disagg_eff_isl_ratio_threshold: 0.7,
            conditional_disagg_prefill_busy_threshold: None,
            conditional_disagg_decode_busy_threshold: None,
            enable_session_prefix_index: false,
        }
    }
}

/// A router configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON of the right form.
    #[error("router config: {0}")]
    Form(String),
    /// A number out of range.
    #[error("router config: {key} must be finite and at least 0, got {value}")]
    Negative {
        /// Key.
        key: &'static str,
        /// Value.
        value: f64,
    },
    /// A key that needs another one.
    #[error("router config: {key} needs {needs}")]
    Needs {
        /// Key.
        key: &'static str,
        /// What has to be on.
        needs: &'static str,
    },
}

impl RouterConfig {
    /// Reads and checks a JSON object.
    ///
    /// # Errors
    /// [`ConfigError`] names the key and what was expected.
    pub fn parse(json: &str) -> Result<Self, ConfigError> {
        let config: Self = serde_json::from_str(json).map_err(|error| ConfigError::Form(error.to_string()))?;
        config.resolved()
    }

    fn resolved(mut self) -> Result<Self, ConfigError> {
        if let Some(weight) = self.overlap_score_weight {
            self.prefill_load_scale = weight;
            if weight == 0.0 {
                self.overlap_score_credit = 0.0;
            }
        }
        let numbers = [
            ("overlap_score_credit", Some(self.overlap_score_credit)),
            ("overlap_score_credit_decay", Some(self.overlap_score_credit_decay)),
            ("prefill_load_scale", Some(self.prefill_load_scale)),
            ("decode_active_request_weight", Some(self.decode_active_request_weight)),
            ("host_cache_hit_weight", Some(self.host_cache_hit_weight)),
            ("disk_cache_hit_weight", Some(self.disk_cache_hit_weight)),
            ("router_temperature", Some(self.router_temperature)),
            ("router_queue_threshold", self.router_queue_threshold),
            ("shared_cache_multiplier", self.shared_cache_multiplier),
            ("router_predicted_ttl_secs", self.router_predicted_ttl_secs),
            ("router_ttl_secs", Some(self.router_ttl_secs)),
        ];
        for (key, value) in numbers {
            if let Some(value) = value.filter(|value| !value.is_finite() || *value < 0.0) {
                return Err(ConfigError::Negative { key, value });
            }
        }
        let rules = [
            (
                self.router_track_output_blocks && !self.router_track_active_blocks,
                "router_track_output_blocks",
                "router_track_active_blocks",
            ),
            (
                self.router_prefill_load_model != PrefillLoadModel::None && !self.router_track_prefill_tokens,
                "router_prefill_load_model",
                "router_track_prefill_tokens",
            ),
            (
                self.router_predicted_ttl_secs.is_some() && !self.use_kv_events,
                "router_predicted_ttl_secs",
                "use_kv_events",
            ),
        ];
        match rules.into_iter().find(|(broken, ..)| *broken) {
            Some((_, key, needs)) => Err(ConfigError::Needs { key, needs }),
            None => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_object_means_the_defaults_and_unknown_keys_are_named() {
        assert_eq!(RouterConfig::parse("{}").unwrap(), RouterConfig::default());
        let error = RouterConfig::parse(r#"{"foo":1}"#).unwrap_err().to_string();
        assert!(error.contains("`foo`"), "{error}");
        let error = RouterConfig::parse(r#"{"router_queue_policy":"sjf"}"#)
            .unwrap_err()
            .to_string();
        assert!(error.contains("`sjf`"), "{error}");
    }

    #[test]
    fn the_old_weight_of_zero_takes_the_credit_away() {
        let config = RouterConfig::parse(r#"{"overlap_score_weight":0}"#).unwrap();
        assert!(config.prefill_load_scale.abs() + config.overlap_score_credit.abs() < f64::EPSILON);
    }

    #[test]
    fn keys_that_need_another_one_say_so() {
        let error = RouterConfig::parse(r#"{"router_track_output_blocks":true,"router_track_active_blocks":false}"#);
        let expected = ConfigError::Needs {
            key: "router_track_output_blocks",
            needs: "router_track_active_blocks",
        };
        assert_eq!(error, Err(expected));
        assert!(RouterConfig::parse(r#"{"router_temperature":-1}"#).is_err());
    }
}
