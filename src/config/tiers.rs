//! Settings of the memory for KV below the GPU's.

use super::ConfigError;
use super::choices::Finite;
use super::layers::Layered;
use super::rules::refused;
use super::settings::Settings;
use crate::engine::{TierBandwidth, TierConfig};

/// Blocks of one transfer, unless given.
const BATCH_BLOCKS: u32 = 32;

/// The tiers that are asked for. `None`: no blocks of host memory.
///
/// # Errors
/// [`ConfigError::Value`] names what is missing.
pub(super) fn tiers(layered: &Layered, s: &Settings) -> Result<Option<TierConfig>, ConfigError> {
    let speeds = [
        ("bandwidth_g1_to_g2_gbps", s.bandwidth_g1_to_g2_gbps),
        ("bandwidth_g2_to_g1_gbps", s.bandwidth_g2_to_g1_gbps),
        ("bandwidth_g2_to_g3_gbps", s.bandwidth_g2_to_g3_gbps),
        ("bandwidth_g3_to_g2_gbps", s.bandwidth_g3_to_g2_gbps),
        ("bandwidth_g2_to_g4_gbps", s.bandwidth_g2_to_g4_gbps),
        ("bandwidth_g4_to_g2_gbps", s.bandwidth_g4_to_g2_gbps),
    ];
    let host_blocks = s.num_g2_blocks.unwrap_or(0);
    if host_blocks == 0 {
        let speed = speeds.iter().find(|(_, speed)| speed.is_some()).map(|&(key, _)| key);
        let batch = s.offload_batch_size.map(|_| "offload_batch_size");
        return match speed.or(batch) {
            Some(key) => Err(refused(layered, key, "requires --num-g2-blocks")),
            None => Ok(None),
        };
    }
    let Some(bytes_per_token) = s.kv_bytes_per_token else {
        return Err(refused(layered, "num_g2_blocks", "requires --kv-bytes-per-token"));
    };
    let defaults = TierBandwidth::default();
    let speed = |given: Option<Finite>, default: f64| given.map_or(default, Finite::get);
    Ok(Some(TierConfig {
        host_blocks,
        disk_blocks: s.num_g3_blocks.unwrap_or(0),
        storage: s.enable_g4_storage == Some(true),
        batch_blocks: s.offload_batch_size.unwrap_or(BATCH_BLOCKS),
        bytes_per_token,
        bandwidth: TierBandwidth {
            g1_to_g2: speed(s.bandwidth_g1_to_g2_gbps, defaults.g1_to_g2),
            g2_to_g1: speed(s.bandwidth_g2_to_g1_gbps, defaults.g2_to_g1),
            g2_to_g3: speed(s.bandwidth_g2_to_g3_gbps, defaults.g2_to_g3),
            g3_to_g2: speed(s.bandwidth_g3_to_g2_gbps, defaults.g3_to_g2),
            g2_to_g4: speed(s.bandwidth_g2_to_g4_gbps, defaults.g2_to_g4),
            g4_to_g2: speed(s.bandwidth_g4_to_g2_gbps, defaults.g4_to_g2),
        },
    }))
}
