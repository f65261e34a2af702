//! Memory for KV below the GPU's.

use super::super::kv::backend::EvictionBackend;
use super::{ConfigError, EngineConfig, EngineKind, WorkerRole};

/// Memory for KV below the GPU's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TierConfig {
    /// When blocks are written to the host.
    pub writes: Writes,
    /// Blocks of host memory (G2), at least 1.
    pub host_blocks: u32,
    /// Blocks of disk (G3); 0: none.
    pub disk_blocks: u32,
    /// Object storage (G4) below the others.
    pub storage: bool,
    /// KV bytes per token, at least 1.
    pub bytes_per_token: u64,
    /// Speed of the connections.
    pub bandwidth: TierBandwidth,
    /// Time before the first byte of each transfer to or from the host, ms.
    pub host_latency_ms: f64,
    /// Time before the first byte of each transfer to or from the levels below it, ms.
    pub disk_latency_ms: f64,
    /// The host memory is one pool for all ranks that say so; only with [`Writes::Through`].
    pub host_shared: Option<SharedTier>,
    /// So is the disk; only with [`Writes::Through`].
    pub disk_shared: Option<SharedTier>,
}

impl TierConfig {
    /// Whether other ranks use some of it, too.
    pub fn is_shared(&self) -> bool {
        self.host_shared.is_some() || self.disk_shared.is_some()
    }

    /// Whether there is anything below the host.
    pub fn reaches_below_host(&self) -> bool {
        self.disk_blocks > 0 || self.storage
    }
}

/// A tier that ranks share, beside what each has to itself: a connection of its own and the latency.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SharedTier {
    /// GB/s of all ranks together towards the tier; 0: without limit.
    pub down: f64,
    /// GB/s of all ranks together from it; 0: without limit.
    pub up: f64,
    /// Whoever shares it stores KV of this layout.
    pub layout: u64,
}

impl SharedTier {
    /// GB/s of each direction unless given. Source: Dynamo 1.6.1.
    pub const GB_S: f64 = 80.0;

    /// What stands for a layout that goes by this name on workers of so many GPUs.
    pub fn layout(name: &str, tensor_parallel: u32) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(name.as_bytes(), u64::from(tensor_parallel))
    }
}

/// When blocks are written to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// Whole blocks of prompts when a pass has computed them (Dynamo 1.6.1 and vLLM's offloading connector). Transfers of
    /// one direction go one after the other.
    Through,
    /// Blocks that the GPU's cache evicts (Dynamo 1.4.2). Transfers of one direction share its speed.
    OnEviction {
        /// Most blocks of one transfer, at least 1.
        batch_blocks: u32,
    },
}

/// GB/s (1e9 bytes) from one tier to another; 0: instant. Defaults: Dynamo 1.4.2. Not divided by a speed-up, as there; but
/// a speed-up of 0 makes every transfer instant.
#[allow(missing_docs)] // the names say it
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TierBandwidth {
    pub g1_to_g2: f64,
    pub g2_to_g1: f64,
    pub g2_to_g3: f64,
    pub g3_to_g2: f64,
    pub g2_to_g4: f64,
    pub g4_to_g2: f64,
}

impl Default for TierBandwidth {
    fn default() -> Self {
        Self {
            g1_to_g2: 14.0,
            g2_to_g1: 14.0,
            g2_to_g3: 7.0,
            g3_to_g2: 7.0,
            g2_to_g4: 4.0,
            g4_to_g2: 4.0,
        }
    }
}

impl TierBandwidth {
    fn is_valid(&self) -> bool {
        let Self {
            g1_to_g2,
            g2_to_g1,
            g2_to_g3,
            g3_to_g2,
            g2_to_g4,
            g4_to_g2,
        } = *self;
        let all = [g1_to_g2, g2_to_g1, g2_to_g3, g3_to_g2, g2_to_g4, g4_to_g2];
        all.iter().all(|gb_s| gb_s.is_finite() && *gb_s >= 0.0)
    }
}

impl EngineConfig {
    /// Checks of the memory below the GPU, if there is any.
    pub(super) fn validate_tiers(&self) -> Result<(), ConfigError> {
        let Some(tiers) = &self.tiers else { return Ok(()) };
        if self.kind != EngineKind::Vllm {
            return Err(ConfigError::TiersOfVllm);
        }
        if !self.enable_prefix_caching {
            return Err(ConfigError::TiersWithoutCache);
        }
        if self.speculation.is_some() {
            return Err(ConfigError::TiersWithDrafts);
        }
        let batch_blocks = match tiers.writes {
            Writes::Through => 1,
            Writes::OnEviction { batch_blocks } => batch_blocks,
        };
        for (key, value) in [
            ("the number of blocks of host memory", u64::from(tiers.host_blocks)),
            ("offload_batch_size", u64::from(batch_blocks)),
            (
                "kv_bytes_per_token (or kv_cache_bytes_per_token)",
                tiers.bytes_per_token,
            ),
        ] {
            if value == 0 {
                return Err(ConfigError::Zero(key));
            }
        }
        if tiers.writes == Writes::Through && self.eviction_backend != EvictionBackend::Native {
            return Err(ConfigError::WriteThroughOfNative);
        }
        let apart = self.role != WorkerRole::Aggregated;
        if tiers.writes == Writes::Through && tiers.disk_blocks > 0 && apart {
            return Err(ConfigError::DiskOfAggregated);
        }
        let shared = tiers.host_shared.into_iter().chain(tiers.disk_shared);
        if tiers.writes != Writes::Through && shared.clone().next().is_some() {
            return Err(ConfigError::SharedOfWriteThrough);
        }
        let numbers = [tiers.host_latency_ms, tiers.disk_latency_ms].into_iter();
        let mut numbers = numbers.chain(shared.flat_map(|shared| [shared.down, shared.up]));
        if tiers.bandwidth.is_valid() && numbers.all(|number| number.is_finite() && number >= 0.0) {
            Ok(())
        } else {
            Err(ConfigError::TierBandwidth)
        }
    }
}
