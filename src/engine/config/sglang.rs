//! What only SGLang has.

use serde::{Deserialize, Serialize};

use super::super::kv::backend::EvictionBackend;
use super::{ConfigError, EngineConfig};

/// Order of SGLang's waiting queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SglangPolicy {
    /// First come, first served.
    #[default]
    #[serde(alias = "fifo")]
    Fcfs,
    /// Longest cached prefix first.
    Lpm,
    /// Depth first through the cache, heaviest subtree first.
    DfsWeight,
    /// Longest output first.
    Lof,
    /// Shuffled before every admission, by the engine's seed.
    Random,
    /// Highest response ratio next: prompt tokens computed since it came, per token that it has to compute.
    Hrrn,
    /// Fewest tokens to compute first; long prompts that are computed in part leave room for shorter ones.
    ShortestPrefillFirst,
    /// Requests whose routing key most of those that run have first; the others by their keys.
    RoutingKey,
}

/// What only SGLang has.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SglangConfig {
    /// Queue order.
    pub schedule_policy: SglangPolicy,
    /// Prompt tokens per prefill pass, soft limit.
    pub max_prefill_tokens: u32,
    /// Prompt tokens per prefill pass, hard limit; `None`: prompts are not cut.
    pub chunked_prefill_size: Option<u32>,
    /// Most output tokens that an admission sets aside per request.
    pub clip_max_new_tokens: u32,
    /// How much of the outputs still to come an admission sets aside.
    pub schedule_conservativeness: f64,
    /// Eviction order.
    pub radix_eviction_policy: RadixEviction,
    /// `tlru`: tokens that a conversation's next prompt may compute in time.
    pub tlru_threshold: u32,
    /// `tlru`: tokens that the next prompt is expected to bring.
    pub tlru_next_prompt_estimate: u32,
    /// Decode passes between two prefill passes at least.
    pub prefill_decode_interval: u32,
}

impl Default for SglangConfig {
    fn default() -> Self {
        Self {
            schedule_policy: SglangPolicy::default(),
            max_prefill_tokens: 16_384,
            chunked_prefill_size: Some(8192),
            clip_max_new_tokens: 4096,
            schedule_conservativeness: 1.0,
            radix_eviction_policy: RadixEviction::default(),
            tlru_threshold: 0,
            tlru_next_prompt_estimate: 0,
            prefill_decode_interval: 0,
        }
    }
}

/// Which unlocked leaf of SGLang's radix cache leaves first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RadixEviction {
    /// Least recently used.
    #[default]
    Lru,
    /// Most recently used.
    Mru,
    /// Least often used.
    Lfu,
    /// Used once before used again, least recently used within.
    Slru,
    /// Created first.
    Fifo,
    /// Created last.
    Filo,
    /// Lowest priority, least recently used within.
    Priority,
    /// Ends of conversations that these can do without, least recently used within, then as `lru`.
    Tlru,
}

impl EngineConfig {
    /// Checks of an engine of SGLang.
    pub(super) fn validate_sglang(&self) -> Result<(), ConfigError> {
        if self.eviction_backend != EvictionBackend::Native {
            return Err(ConfigError::PoolOfSglang);
        }
        let sglang = &self.sglang;
        let positive = [
            ("sglang.max_prefill_tokens", Some(sglang.max_prefill_tokens)),
            ("sglang.chunked_prefill_size", sglang.chunked_prefill_size),
            ("sglang.clip_max_new_tokens", Some(sglang.clip_max_new_tokens)),
        ];
        if let Some((key, _)) = positive.iter().find(|(_, value)| *value == Some(0)) {
            return Err(ConfigError::Zero(key));
        }
        if sglang.radix_eviction_policy == RadixEviction::Tlru
            && sglang.tlru_threshold <= sglang.tlru_next_prompt_estimate
        {
            return Err(ConfigError::TlruWithoutTail {
                threshold: sglang.tlru_threshold,
                estimate: sglang.tlru_next_prompt_estimate,
            });
        }
        if sglang.schedule_policy == SglangPolicy::ShortestPrefillFirst && !self.enable_prefix_caching {
            return Err(ConfigError::ShortestWithoutCache);
        }
        let conservativeness = sglang.schedule_conservativeness;
        if !conservativeness.is_finite() || conservativeness < 0.0 {
            return Err(ConfigError::NotARatio {
                key: "sglang.schedule_conservativeness",
                value: conservativeness,
            });
        }
        match sglang.chunked_prefill_size {
            Some(chunk) if !chunk.is_multiple_of(self.block_size) => Err(ConfigError::UnevenChunk {
                chunk,
                page: self.block_size,
            }),
            Some(chunk) if chunk < self.ranks_of_a_chunk() => Err(ConfigError::SharedChunk {
                chunk,
                ranks: self.ranks_of_a_chunk(),
            }),
            _ => Ok(()),
        }
    }
}
