//! Prefill and decode as separate roles: who does what, where the two sides meet, how long KV travels.

use std::time::Duration;

use serde_json::Value;

pub use super::choices::TransferTiming;
use super::choices::{DisaggregationMode, Finite, brief};
use super::layers::Layered;
use super::rules::refused;
use super::settings::Settings;
use super::{ConfigError, Group};
use crate::engine::{EngineKind, WorkerRole};
use crate::model::CACHE_DTYPES;

/// What only disaggregated workers have.
#[derive(Debug, Clone, PartialEq)]
pub struct Disaggregation {
    /// Rendezvous ports of prefill workers, one per worker, 0: any; empty: the prefill leg ends before the decode leg
    /// starts, and nobody meets.
    pub bootstrap_ports: Vec<u16>,
    /// Longest wait of one side of a handoff for the other.
    pub pairing_timeout: Duration,
    /// Longest handoff, modelled transfer not included.
    pub session_timeout: Duration,
    /// Decode workers compute prompts that come without their KV, and publish their cache.
    pub local_prefill: bool,
    /// KV transfers.
    pub transfer: TransferSettings,
}

/// Ports that are listed one by one on the start screen.
const LISTED_PORTS: usize = 8;

impl Disaggregation {
    /// Where prefill workers and decode workers meet, and how fast KV travels, in words.
    fn words(&self) -> String {
        let meet = match &self.bootstrap_ports[..] {
            [] => "no rendezvous: decode legs follow prefill legs".to_owned(),
            ports if ports.iter().all(|&port| port == 0) => "rendezvous on free ports".to_owned(),
            ports => {
                let port = |&port: &u16| if port == 0 { "any".to_owned() } else { port.to_string() };
                let listed: Vec<String> = ports.iter().take(LISTED_PORTS).map(port).collect();
                let more = if ports.len() > LISTED_PORTS { ", ..." } else { "" };
                format!("rendezvous on ports {}{more}", listed.join(", "))
            }
        };
        let bandwidth = self.transfer.bandwidth_gb_s;
        if bandwidth > 0.0 {
            format!("{meet}; KV at {} GB/s", brief(bandwidth))
        } else {
            format!("{meet}; KV at once")
        }
    }
}

impl Group {
    /// How its workers hand prompts over, in words; `None`: they compute none for others.
    pub fn handoffs(&self) -> Option<String> {
        (self.engine.role == WorkerRole::Prefill).then(|| self.disaggregation.words())
    }
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

/// How long one side waits for the other unless said otherwise, ms. Source: Dynamo 1.6.1.
pub(super) const PAIRING_TIMEOUT_MS: u64 = 30_000;

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
        Some(_) if role != WorkerRole::Prefill => {
            let place = group_name(layered).map_or_else(
                || "give it with --disaggregation-mode prefill".to_owned(),
                |name| format!("group {name} has none: give it in the [[group]] of those that it is for"),
            );
            let why = format!("is for prefill workers, which listen there; {place}");
            return Err(refused(layered, "bootstrap_ports", &why));
        }
        Some(ports) => port_list(layered, "bootstrap_ports", ports, workers)?,
    };
    if !bootstrap_ports.is_empty() && s.engine_type == Some(EngineKind::Trtllm) {
        let why = "needs an engine with a rendezvous, which trtllm has not; use vllm or sglang, or leave it out: the \
                   prefill leg then ends before the decode leg begins";
        return Err(refused(layered, "bootstrap_ports", why));
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
        pairing_timeout: Duration::from_millis(s.handoff_pairing_timeout_ms.unwrap_or(PAIRING_TIMEOUT_MS)),
        session_timeout: Duration::from_millis(s.handoff_session_timeout_ms.unwrap_or(SESSION_TIMEOUT_MS)),
        transfer: TransferSettings {
            bandwidth_gb_s: s.kv_transfer_bandwidth.map_or(0.0, Finite::get),
            timing: s.kv_transfer_timing_mode.unwrap_or(TransferTiming::FullPrompt),
            bytes_per_token: s.kv_bytes_per_token,
            cache_dtype,
        },
    })
}

fn group_name(layered: &Layered) -> Option<&str> {
    layered.value("name").and_then(Value::as_str)
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Reads a list of ports, one per worker.
///
/// # Errors
/// [`ConfigError::Value`].
pub(super) fn port_list(layered: &Layered, key: &str, ports: &str, workers: u32) -> Result<Vec<u16>, ConfigError> {
    if ports.trim().is_empty() {
        let why = "is an empty list; give one port per worker, comma separated, or leave it out";
        return Err(refused(layered, key, why));
    }
    let listed: Result<Vec<u16>, _> = ports.split(',').map(|port| port.trim().parse::<u16>()).collect();
    match listed {
        Ok(listed) if listed.len() == workers as usize => Ok(listed),
        Ok(listed) => {
            let why = format!(
                "lists {} for the {}{}; give one port per worker",
                count(listed.len(), "port"),
                count(workers as usize, "worker"),
                group_name(layered).map_or_else(String::new, |name| format!(" of group {name}"))
            );
            Err(refused(layered, key, &why))
        }
        Err(_) => Err(refused(
            layered,
            key,
            "must be port numbers from 0 to 65535, comma separated",
        )),
    }
}

/// What prefill and decode groups hand KV to each other for: a router pairs those of one namespace.
fn pools(groups: &[Group]) -> impl Iterator<Item = (&Group, &Group)> {
    let of = |role: WorkerRole| groups.iter().filter(move |group| group.engine.role == role);
    of(WorkerRole::Prefill).flat_map(move |prefill| {
        let decode =
            of(WorkerRole::Decode).filter(|decode| prefill.endpoint.namespace() == decode.endpoint.namespace());
        decode.map(move |decode| (prefill, decode))
    })
}

/// Refuses pools that meet at a rendezvous where each of their handoffs would be refused.
///
/// # Errors
/// Names both groups and the way out.
pub(super) fn check_pools(groups: &[Group]) -> Result<(), ConfigError> {
    let mut meet = pools(groups).filter(|(prefill, _)| !prefill.disaggregation.bootstrap_ports.is_empty());
    let Some((prefill, decode)) = meet.find(|(prefill, decode)| prefill.engine.kind != decode.engine.kind) else {
        return Ok(());
    };
    Err(ConfigError::Invalid(format!(
        "group {} hands its KV to group {} of the same namespace {}, but engine_type is {} in one and {} in the other, and \
         every handoff would be refused: use one engine_type, or give each pair of pools an endpoint in a namespace of its \
         own",
        prefill.name,
        decode.name,
        prefill.endpoint.namespace(),
        prefill.engine.kind.word(),
        decode.engine.kind.word()
    )))
}

/// In what the pools of a fleet differ although they hand KV to each other, which real engines could not do.
pub fn doubts(groups: &[Group]) -> Vec<String> {
    let differences = |(prefill, decode): (&Group, &Group)| {
        let (from, to) = (&prefill.disaggregation.transfer, &decode.disaggregation.transfer);
        let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "the model's".to_owned(), |bytes| bytes.to_string());
        let compared = [
            (
                "engine_type",
                prefill.engine.kind.word().to_owned(),
                decode.engine.kind.word().to_owned(),
            ),
            (
                "block_size",
                prefill.engine.block_size.to_string(),
                decode.engine.block_size.to_string(),
            ),
            ("kv_cache_dtype", from.cache_dtype.clone(), to.cache_dtype.clone()),
            (
                "kv_bytes_per_token",
                bytes(from.bytes_per_token),
                bytes(to.bytes_per_token),
            ),
        ];
        let differing = compared.into_iter().filter(|(_, from, to)| from != to);
        let said: Vec<String> = differing
            .map(|(key, from, to)| format!("{key} {from} and {to}"))
            .collect();
        let prefixes = if prefill.engine.block_size == decode.engine.block_size {
            ""
        } else {
            ", and a router that takes one block size for both finds no cached prefix in one of them"
        };
        (!said.is_empty()).then(|| {
            format!(
                "groups {} and {} hand KV to each other and differ in {}: real engines could not{prefixes}",
                prefill.name,
                decode.name,
                said.join(", ")
            )
        })
    };
    pools(groups).filter_map(differences).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_screen_says_where_and_how_fast() {
        let words = |bootstrap_ports: Vec<u16>, bandwidth_gb_s| {
            let transfer = TransferSettings {
                bandwidth_gb_s,
                timing: TransferTiming::FullPrompt,
                bytes_per_token: None,
                cache_dtype: "auto".to_owned(),
            };
            let settings = Disaggregation {
                bootstrap_ports,
                pairing_timeout: Duration::ZERO,
                session_timeout: Duration::ZERO,
                local_prefill: false,
                transfer,
            };
            settings.words()
        };
        assert_eq!(
            words(vec![], 0.0),
            "no rendezvous: decode legs follow prefill legs; KV at once"
        );
        assert_eq!(words(vec![0, 0], 64.0), "rendezvous on free ports; KV at 64 GB/s");
        assert_eq!(
            words(vec![9000, 0], 1.5),
            "rendezvous on ports 9000, any; KV at 1.5 GB/s"
        );
        assert!(words((1..100).collect(), 1.0).starts_with("rendezvous on ports 1, 2, 3, 4, 5, 6, 7, 8, ...;"));
    }
}
