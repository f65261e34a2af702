//! Prefill and decode as separate roles: who does what, where the two sides meet, how long KV travels.

use std::time::Duration;

use super::ConfigError;
pub use super::choices::TransferTiming;
use super::choices::{DisaggregationMode, Finite};
use super::layers::Layered;
use super::rules::refused;
use super::settings::Settings;
use crate::engine::{EngineKind, WorkerRole};
use crate::model::CACHE_DTYPES;

/// What only disaggregated workers have.
#[derive(Debug, Clone, PartialEq)]
pub struct Disaggregation {
    /// Rendezvous ports of prefill workers, one per worker, 0: any; empty: the prefill leg ends before the decode leg
    /// starts, and nobody meets.
    pub bootstrap_ports: Vec<u16>,
    /// Longest handoff, modelled transfer not included.
    pub session_timeout: Duration,
    /// Decode workers compute prompts that come without their KV, and publish their cache.
    pub local_prefill: bool,
    /// KV transfers.
    pub transfer: TransferSettings,
}

/// How long KV travels, as far as the settings say it.
#[derive(Debug, Clone, PartialEq)]
pub struct TransferSettings {
    /// GB/s, 1 GB = 1e9 bytes; 0: no delay.
    pub bandwidth_gb_s: f64,
    /// Tokens that are charged.
    pub timing: TransferTiming,
    /// Bytes per token; `None`: by the model's config.
    pub bytes_per_token: Option<u64>,
    /// Type of the cache for that; `auto`: the model's.
    pub cache_dtype: String,
}

/// Part of the work that the workers of a group do.
///
/// # Errors
/// The older flags contradict each other or the mode.
pub(super) fn role(layered: &Layered, s: &Settings) -> Result<WorkerRole, ConfigError> {
    let prefill = s.is_prefill_worker == Some(true);
    let decode = s.is_decode_worker == Some(true);
    let mode = s.disaggregation_mode.unwrap_or(DisaggregationMode::Agg);
    let role = match (mode, prefill, decode) {
        (_, true, true) => {
            let why = "and --is-decode-worker exclude each other";
            return Err(refused(layered, "is_prefill_worker", why));
        }
        (DisaggregationMode::Agg, false, false) => WorkerRole::Aggregated,
        (DisaggregationMode::Agg | DisaggregationMode::Prefill, _, false) => WorkerRole::Prefill,
        (DisaggregationMode::Agg | DisaggregationMode::Decode, false, _) => WorkerRole::Decode,
        (DisaggregationMode::Prefill, _, true) | (DisaggregationMode::Decode, true, _) => {
            let why = "contradicts --is-prefill-worker or --is-decode-worker; give the mode alone";
            return Err(refused(layered, "disaggregation_mode", why));
        }
    };
    Ok(role)
}

/// Component that a role serves unless told otherwise.
pub(super) fn default_component(role: WorkerRole) -> &'static str {
    match role {
        WorkerRole::Aggregated | WorkerRole::Decode => "backend",
        WorkerRole::Prefill => "prefill",
    }
}

/// Longest handoff unless said otherwise, ms. Source: Dynamo 1.6.1.
const SESSION_TIMEOUT_MS: u64 = 300_000;

/// What only disaggregated workers have.
///
/// # Errors
/// [`ConfigError::Value`].
pub(super) fn resolve(layered: &Layered, s: &Settings, role: WorkerRole) -> Result<Disaggregation, ConfigError> {
    let workers = s.num_workers.unwrap_or(1);
    let bootstrap_ports = match &s.bootstrap_ports {
        None => Vec::new(),
        Some(ports) => port_list(layered, "bootstrap_ports", ports, workers)?,
    };
    if !bootstrap_ports.is_empty() {
        match role {
            WorkerRole::Prefill => {}
            WorkerRole::Decode | WorkerRole::Aggregated => {
                let why = "are where prefill workers listen; give them with --disaggregation-mode prefill";
                return Err(refused(layered, "bootstrap_ports", why));
            }
        }
        if s.engine_type == Some(EngineKind::Trtllm) {
            let why = "need an engine with a rendezvous; use vllm or sglang, or leave the ports out";
            return Err(refused(layered, "bootstrap_ports", why));
        }
    }
    let local_prefill = s.decode_local_prefill == Some(true);
    if local_prefill && role != WorkerRole::Decode {
        let why = "is for decode workers; give it with --disaggregation-mode decode";
        return Err(refused(layered, "decode_local_prefill", why));
    }
    if local_prefill && s.engine_type == Some(EngineKind::Trtllm) {
        let why = "needs an engine that can take KV from elsewhere; use vllm or sglang";
        return Err(refused(layered, "decode_local_prefill", why));
    }
    let cache_dtype = s.kv_cache_dtype.clone().unwrap_or_else(|| "auto".to_owned());
    if !CACHE_DTYPES.contains(&cache_dtype.as_str()) {
        let why = format!("is no type of a KV cache; use {}", CACHE_DTYPES.join(", "));
        return Err(refused(layered, "kv_cache_dtype", &why));
    }
    Ok(Disaggregation {
        bootstrap_ports,
        local_prefill,
        session_timeout: Duration::from_millis(s.handoff_session_timeout_ms.unwrap_or(SESSION_TIMEOUT_MS)),
        transfer: TransferSettings {
            bandwidth_gb_s: s.kv_transfer_bandwidth.map_or(0.0, Finite::get),
            timing: s.kv_transfer_timing_mode.unwrap_or(TransferTiming::FullPrompt),
            bytes_per_token: s.kv_bytes_per_token,
            cache_dtype,
        },
    })
}

/// Reads a list of ports, one per worker.
///
/// # Errors
/// [`ConfigError::Value`].
pub(super) fn port_list(layered: &Layered, key: &str, ports: &str, workers: u32) -> Result<Vec<u16>, ConfigError> {
    let listed: Result<Vec<u16>, _> = ports.split(',').map(|port| port.trim().parse::<u16>()).collect();
    match listed {
        Ok(listed) if listed.len() == workers as usize => Ok(listed),
        Ok(listed) => {
            let why = format!(
                "lists {} ports for {workers} workers; give one port per worker",
                listed.len()
            );
            Err(refused(layered, key, &why))
        }
        Err(_) => Err(refused(layered, key, "must be port numbers, comma separated")),
    }
}
