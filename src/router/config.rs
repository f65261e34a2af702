//! Router configuration: the keys of the peer's JSON.

use serde::Deserialize;

use crate::plain_words::plain;

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
    pub router_tracking_hash: TrackingHash,
    pub router_tracking_key_file: Option<String>,
    pub router_tracking_key_id: Option<String>,
    pub router_prefill_load_model: PrefillLoadModel,
    pub router_snapshot_threshold: Option<u32>,
    pub router_reset_states: bool,
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

/// How routers name blocks among themselves; without effect on where requests go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum TrackingHash {
    /// As in KV events.
    #[default]
    #[serde(rename = "public-xxh3-v1")]
    Public,
    /// With a key from a file.
    #[serde(rename = "keyed-xxh3-v1")]
    Keyed,
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
            router_tracking_hash: TrackingHash::Public,
            router_tracking_key_file: None,
            router_tracking_key_id: None,
            router_prefill_load_model: PrefillLoadModel::None,
            router_snapshot_threshold: None,
            router_reset_states: false,
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
    /// Not a policy file.
    #[error("router policy file: {0}")]
    Policy(String),
    /// A number out of range.
    #[error("router config: {key} must be finite and at least 0, got {value}")]
    Negative {
        /// Key.
        key: &'static str,
        /// Value.
        value: f64,
    },
    /// A share out of range.
    #[error("router config: {key} must be between 0 and 1, got {value}")]
    NotAShare {
        /// Key.
        key: &'static str,
        /// Value.
        value: f64,
    },
    /// Two keys that exclude each other.
    #[error("router config: {0} and {1} exclude each other")]
    Conflict(&'static str, &'static str),
    /// A key that needs another one.
    #[error("router config: {key} needs {needs}")]
    Needs {
        /// Key.
        key: &'static str,
        /// What has to be on.
        needs: &'static str,
    },
}

impl ConfigError {
    /// The message of a policy file's error without its introduction.
    pub(crate) fn policy_text(&self) -> String {
        match self {
            Self::Policy(text) => text.clone(),
            Self::Form(_)
            | Self::Negative { .. }
            | Self::NotAShare { .. }
            | Self::Conflict(..)
            | Self::Needs { .. } => self.to_string(),
        }
    }
}

impl RouterConfig {
    /// Reads and checks a JSON object.
    ///
    /// # Errors
    /// [`ConfigError`] names the key and what was expected.
    pub fn parse(json: &str) -> Result<Self, ConfigError> {
        // A list would pass by position.
        if json.trim_start().starts_with('[') {
            return Err(ConfigError::Form("it is an array, expected an object".into()));
        }
        let mut text = serde_json::Deserializer::from_str(json);
        let read = serde_path_to_error::deserialize(&mut text).map_err(|error| {
            let inner = error.inner();
            ConfigError::Form(if inner.is_data() {
                plain(&error.path().to_string(), &inner.to_string())
            } else {
                format!("not JSON: {inner}")
            })
        });
        let config: Self = read?;
        text.end()
            .map_err(|error| ConfigError::Form(format!("not JSON: {error}")))?;
        config.resolved()
    }

    fn resolved(mut self) -> Result<Self, ConfigError> {
        if let Some(weight) = self.overlap_score_weight {
            self.prefill_load_scale = weight;
            if weight == 0.0 {
                self.overlap_score_credit = 0.0;
            }
        }
        self.check_numbers()?;
        if self.use_remote_indexer && self.serve_indexer {
            return Err(ConfigError::Conflict("use_remote_indexer", "serve_indexer"));
        }
        // A shared cache counts half unless it is said otherwise.
        if self.shared_cache_type == SharedCache::Hicache {
            self.shared_cache_multiplier = self.shared_cache_multiplier.or(Some(0.5));
        }
        match self.missing() {
            Some((key, needs)) => Err(ConfigError::Needs { key, needs }),
            None => Ok(self),
        }
    }

    fn check_numbers(&self) -> Result<(), ConfigError> {
        let numbers = [
            ("overlap_score_credit", Some(self.overlap_score_credit)),
            ("overlap_score_credit_decay", Some(self.overlap_score_credit_decay)),
            ("prefill_load_scale", Some(self.prefill_load_scale)),
            ("decode_active_request_weight", Some(self.decode_active_request_weight)),
            ("router_temperature", Some(self.router_temperature)),
            ("router_queue_threshold", self.router_queue_threshold),
            ("router_predicted_ttl_secs", self.router_predicted_ttl_secs),
            ("router_ttl_secs", Some(self.router_ttl_secs)),
            (
                "conditional_disagg_prefill_busy_threshold",
                self.conditional_disagg_prefill_busy_threshold,
            ),
            (
                "conditional_disagg_decode_busy_threshold",
                self.conditional_disagg_decode_busy_threshold,
            ),
        ];
        for (key, value) in numbers {
            if let Some(value) = value.filter(|value| !value.is_finite() || *value < 0.0) {
                return Err(ConfigError::Negative { key, value });
            }
        }
        let shares = [
            ("host_cache_hit_weight", Some(self.host_cache_hit_weight)),
            ("disk_cache_hit_weight", Some(self.disk_cache_hit_weight)),
            ("shared_cache_multiplier", self.shared_cache_multiplier),
            (
                "conditional_disagg_eff_isl_ratio_threshold",
                Some(self.conditional_disagg_eff_isl_ratio_threshold),
            ),
        ];
        for (key, value) in shares {
            if let Some(value) = value.filter(|value| !(0.0..=1.0).contains(value)) {
                return Err(ConfigError::NotAShare { key, value });
            }
        }
        if self.router_event_threads == 0 {
            return Err(ConfigError::Form("router_event_threads must be at least 1".into()));
        }
        Ok(())
    }

    /// A key that needs another one which is not there.
    fn missing(&self) -> Option<(&'static str, &'static str)> {
        let keyed = self.router_tracking_hash == TrackingHash::Keyed;
        let key_file = self
            .router_tracking_key_file
            .as_deref()
            .is_some_and(|file| !file.is_empty());
        let key_id = self.router_tracking_key_id.as_deref().is_some_and(|id| !id.is_empty());
        let load_bound = self.conditional_disagg_enabled
            && match self.conditional_disagg_policy {
                ConditionalDisagg::IslBounding => false,
                ConditionalDisagg::PrefillLoad | ConditionalDisagg::IslOrLoad => true,
            };
        let no_threshold =
            self.conditional_disagg_prefill_busy_threshold.is_none() && self.router_queue_threshold.is_none();
        let rules = [
            (
                keyed && !key_file,
                "router_tracking_hash keyed-xxh3-v1",
                "router_tracking_key_file",
            ),
            (
                keyed && !key_id,
                "router_tracking_hash keyed-xxh3-v1",
                "router_tracking_key_id",
            ),
            (
                !keyed && (self.router_tracking_key_file.is_some() || self.router_tracking_key_id.is_some()),
                "router_tracking_key_file or router_tracking_key_id",
                "router_tracking_hash keyed-xxh3-v1",
            ),
            (
                load_bound && no_threshold,
                "conditional_disagg_policy",
                "conditional_disagg_prefill_busy_threshold or router_queue_threshold",
            ),
            (
                self.enable_session_prefix_index && !self.use_kv_events,
                "enable_session_prefix_index",
                "use_kv_events",
            ),
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
        let broken = rules.into_iter().find(|(broken, ..)| *broken);
        broken.map(|(_, key, needs)| (key, needs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_object_means_the_defaults_and_unknown_keys_are_named() {
        assert_eq!(RouterConfig::parse("{}").unwrap(), RouterConfig::default());
        let error = RouterConfig::parse(r#"{"foo":1}"#).unwrap_err().to_string();
        assert!(error.contains("foo is not known"), "{error}");
        let error = RouterConfig::parse(r#"{"router_queue_policy":"sjf"}"#)
            .unwrap_err()
            .to_string();
        assert!(error.contains("router_queue_policy is \"sjf\", expected"), "{error}");
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
        // Each of these is refused by release 1.6.1 too.
        for refused in [
            r#"{"router_temperature":-1}"#,
            r#"{"router_temperature":null}"#,
            r#"{"router_tracking_hash":"keyed-xxh3-v1"}"#,
            r#"{"router_tracking_hash":"keyed-xxh3-v1","router_tracking_key_file":"k"}"#,
            r#"{"router_tracking_key_file":"k"}"#,
            r#"{"router_ttl_secs":-1}"#,
            r#"{"router_event_threads":0}"#,
            r#"{"shared_cache_multiplier":2}"#,
            r#"{"host_cache_hit_weight":2}"#,
            r#"{"conditional_disagg_eff_isl_ratio_threshold":2}"#,
            r#"{"use_remote_indexer":true,"serve_indexer":true}"#,
            r#"{"enable_session_prefix_index":true,"use_kv_events":false}"#,
            r#"{"conditional_disagg_enabled":true,"conditional_disagg_policy":"prefill_load"}"#,
        ] {
            assert!(RouterConfig::parse(refused).is_err(), "{refused}");
        }
        for accepted in [
            r#"{"router_reset_states":true,"router_snapshot_threshold":0}"#,
            r#"{"conditional_disagg_enabled":true}"#,
            r#"{"router_track_active_blocks":false,"decode_active_request_weight":1}"#,
            r#"{"overlap_score_credit":2,"router_predicted_ttl_secs":0}"#,
        ] {
            assert!(RouterConfig::parse(accepted).is_ok(), "{accepted}");
        }
    }
}
