//! Settings of the memory for KV below the GPU's: two releases, two rules.

use super::ConfigError;
use super::choices::{DiskScope, Finite, HostScope};
use super::layers::Layered;
use super::rules::refused;
use super::settings::Settings;
use crate::engine::{SharedTier, TierBandwidth, TierConfig, Writes};

/// Blocks of one transfer of evicted blocks, unless given.
const BATCH_BLOCKS: u32 = 32;

/// Defaults with `--num-host-blocks`, GB/s and ms.
const HOST_GB_S: f64 = 32.0;
const DISK_GB_S: f64 = 10.0;
const DISK_LATENCY_MS: f64 = 0.1;

/// The tiers that are asked for. `None`: no host memory.
///
/// # Errors
/// [`ConfigError::Value`] names what is missing or does not go together.
pub(super) fn tiers(layered: &Layered, s: &Settings) -> Result<Option<TierConfig>, ConfigError> {
    let host_blocks = s.num_host_blocks.filter(|blocks| *blocks > 0);
    let g2_blocks = s.num_g2_blocks.filter(|_| offloads_evicted(s));
    check_company(layered, s, host_blocks.is_some(), g2_blocks.is_some())?;
    let Some(blocks) = host_blocks.or(g2_blocks) else {
        return Ok(None);
    };
    let of_host = host_blocks.is_some();
    let Some(bytes_per_token) = s.kv_cache_bytes_per_token.or(s.kv_bytes_per_token) else {
        let key = if of_host { "num_host_blocks" } else { "num_g2_blocks" };
        return Err(refused(layered, key, "requires --kv-bytes-per-token"));
    };
    let or = |given: Option<Finite>, default: f64| given.map_or(default, Finite::get);
    let defaults = if of_host {
        TierBandwidth {
            g1_to_g2: or(s.host_offload_d2h_bandwidth_gbps, HOST_GB_S),
            g2_to_g1: or(s.host_offload_h2d_bandwidth_gbps, HOST_GB_S),
            g2_to_g3: DISK_GB_S,
            g3_to_g2: DISK_GB_S,
            ..TierBandwidth::default()
        }
    } else {
        TierBandwidth::default()
    };
    Ok(Some(TierConfig {
        writes: if of_host {
            Writes::Through
        } else {
            Writes::OnEviction {
                batch_blocks: batch_blocks(s).unwrap_or(BATCH_BLOCKS),
            }
        },
        host_blocks: blocks,
        disk_blocks: s.num_g3_blocks.unwrap_or(0),
        storage: s.enable_g4_storage == Some(true),
        bytes_per_token,
        bandwidth: TierBandwidth {
            g1_to_g2: or(s.bandwidth_g1_to_g2_gbps, defaults.g1_to_g2),
            g2_to_g1: or(s.bandwidth_g2_to_g1_gbps, defaults.g2_to_g1),
            g2_to_g3: or(s.bandwidth_g2_to_g3_gbps, defaults.g2_to_g3),
            g3_to_g2: or(s.bandwidth_g3_to_g2_gbps, defaults.g3_to_g2),
            g2_to_g4: or(s.bandwidth_g2_to_g4_gbps, defaults.g2_to_g4),
            g4_to_g2: or(s.bandwidth_g4_to_g2_gbps, defaults.g4_to_g2),
        },
        host_latency_ms: or(s.host_offload_latency_ms, 0.0),
        disk_latency_ms: or(s.g3_latency_ms, if of_host { DISK_LATENCY_MS } else { 0.0 }),
        host_shared: (s.host_offload_scope == Some(HostScope::ClusterShared)).then(|| SharedTier {
            down: or(s.host_offload_shared_d2h_bandwidth_gbps, SharedTier::GB_S),
            up: or(s.host_offload_shared_h2d_bandwidth_gbps, SharedTier::GB_S),
            layout: layout(s),
        }),
        disk_shared: (s.g3_scope == Some(DiskScope::ClusterShared)).then(|| SharedTier {
            down: or(s.g3_shared_write_bandwidth_gbps, SharedTier::GB_S),
            up: or(s.g3_shared_read_bandwidth_gbps, SharedTier::GB_S),
            layout: layout(s),
        }),
    }))
}

/// What workers that share memory have to agree on.
fn layout(s: &Settings) -> u64 {
    SharedTier::layout(
        s.kv_layout_id.as_deref().unwrap_or_default(),
        s.aic_tp_size.unwrap_or(1),
    )
}

/// Dynamo 1.4.2 takes a batch of no blocks as no word about it.
fn batch_blocks(s: &Settings) -> Option<u32> {
    s.offload_batch_size.filter(|blocks| *blocks > 0)
}

/// Whether blocks that are evicted go to host memory.
pub(super) fn offloads_evicted(s: &Settings) -> bool {
    s.num_g2_blocks.is_some_and(|blocks| blocks > 0)
}

/// Whether the model has to say how large a block of the host is. With `--num-host-blocks` it is always said, as in the
/// release that has it.
pub(super) fn sized_by_model(s: &Settings) -> bool {
    let sized = s.kv_cache_bytes_per_token.or(s.kv_bytes_per_token).is_some();
    !sized && offloads_evicted(s)
}

/// What [`tiers`] takes where `s` says nothing, as settings.
pub(super) fn implied(layered: &Layered, s: &Settings) -> Settings {
    let sized = Settings {
        kv_bytes_per_token: s.kv_bytes_per_token.or(Some(1)),
        ..s.clone()
    };
    let Ok(Some(tiers)) = tiers(layered, &sized) else {
        return Settings::default();
    };
    let speed = tiers.bandwidth;
    let some = |number: f64| Some(Finite::literal(number));
    let host = match tiers.writes {
        Writes::Through => Settings {
            host_offload_d2h_bandwidth_gbps: some(speed.g1_to_g2),
            host_offload_h2d_bandwidth_gbps: some(speed.g2_to_g1),
            host_offload_latency_ms: some(tiers.host_latency_ms),
            host_offload_shared_d2h_bandwidth_gbps: tiers.host_shared.and_then(|shared| some(shared.down)),
            host_offload_shared_h2d_bandwidth_gbps: tiers.host_shared.and_then(|shared| some(shared.up)),
            g3_shared_write_bandwidth_gbps: tiers.disk_shared.and_then(|shared| some(shared.down)),
            g3_shared_read_bandwidth_gbps: tiers.disk_shared.and_then(|shared| some(shared.up)),
            ..Settings::default()
        },
        Writes::OnEviction { batch_blocks } => Settings {
            bandwidth_g1_to_g2_gbps: some(speed.g1_to_g2),
            bandwidth_g2_to_g1_gbps: some(speed.g2_to_g1),
            offload_batch_size: Some(batch_blocks),
            ..Settings::default()
        },
    };
    let disk = |number: f64| some(number).filter(|_| tiers.disk_blocks > 0);
    let storage = |number: f64| some(number).filter(|_| tiers.storage);
    Settings {
        bandwidth_g2_to_g3_gbps: disk(speed.g2_to_g3),
        bandwidth_g3_to_g2_gbps: disk(speed.g3_to_g2),
        g3_latency_ms: disk(tiers.disk_latency_ms),
        bandwidth_g2_to_g4_gbps: storage(speed.g2_to_g4),
        bandwidth_g4_to_g2_gbps: storage(speed.g4_to_g2),
        ..host
    }
}

/// Every setting of a tier needs the tier, and there is one host.
fn check_company(layered: &Layered, s: &Settings, host: bool, g2: bool) -> Result<(), ConfigError> {
    if host && g2 {
        let why = "and --num-g2-blocks are two rules for the same memory; use one of them";
        return Err(refused(layered, "num_host_blocks", why));
    }
    let given = |speed: Option<Finite>| speed.is_some();
    for (key, said) in [
        (
            "host_offload_d2h_bandwidth_gbps",
            given(s.host_offload_d2h_bandwidth_gbps),
        ),
        (
            "host_offload_h2d_bandwidth_gbps",
            given(s.host_offload_h2d_bandwidth_gbps),
        ),
        ("host_offload_latency_ms", given(s.host_offload_latency_ms)),
        (
            "host_offload_scope",
            s.host_offload_scope == Some(HostScope::ClusterShared),
        ),
        (
            "host_offload_shared_d2h_bandwidth_gbps",
            given(s.host_offload_shared_d2h_bandwidth_gbps),
        ),
        (
            "host_offload_shared_h2d_bandwidth_gbps",
            given(s.host_offload_shared_h2d_bandwidth_gbps),
        ),
        ("kv_layout_id", s.kv_layout_id.is_some()),
        ("g3_scope", s.g3_scope == Some(DiskScope::ClusterShared)),
        ("g3_shared_read_bandwidth_gbps", given(s.g3_shared_read_bandwidth_gbps)),
        (
            "g3_shared_write_bandwidth_gbps",
            given(s.g3_shared_write_bandwidth_gbps),
        ),
    ] {
        if said && !host {
            return Err(refused(layered, key, "requires --num-host-blocks"));
        }
    }
    for (key, said) in [
        ("bandwidth_g1_to_g2_gbps", given(s.bandwidth_g1_to_g2_gbps)),
        ("bandwidth_g2_to_g1_gbps", given(s.bandwidth_g2_to_g1_gbps)),
        ("offload_batch_size", batch_blocks(s).is_some()),
    ] {
        if said && !g2 {
            return Err(refused(layered, key, "requires --num-g2-blocks"));
        }
    }
    for (key, said) in [
        ("bandwidth_g2_to_g3_gbps", given(s.bandwidth_g2_to_g3_gbps)),
        ("bandwidth_g3_to_g2_gbps", given(s.bandwidth_g3_to_g2_gbps)),
        ("g3_latency_ms", given(s.g3_latency_ms)),
        ("bandwidth_g2_to_g4_gbps", given(s.bandwidth_g2_to_g4_gbps)),
        ("bandwidth_g4_to_g2_gbps", given(s.bandwidth_g4_to_g2_gbps)),
        ("num_g3_blocks", has_disk(s)),
        ("enable_g4_storage", s.enable_g4_storage == Some(true)),
    ] {
        if said && !host && !g2 {
            return Err(refused(layered, key, "requires --num-g2-blocks or --num-host-blocks"));
        }
    }
    if s.g3_scope == Some(DiskScope::ClusterShared) && !has_disk(s) {
        return Err(refused(layered, "g3_scope", "requires --num-g3-blocks"));
    }
    let named = s.kv_layout_id.as_ref().is_some_and(|id| !id.trim().is_empty());
    if s.host_offload_scope == Some(HostScope::ClusterShared) && !named {
        let why = "requires --kv-layout-id, a name of your choice for the layout of the stored KV";
        return Err(refused(layered, "host_offload_scope", why));
    }
    Ok(())
}

fn has_disk(s: &Settings) -> bool {
    s.num_g3_blocks.is_some_and(|blocks| blocks > 0)
}
