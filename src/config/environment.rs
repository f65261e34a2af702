//! Environment variables: the peer's (`DYN_*`, `ETCD_*`) where they move something of ours, and `GHOSTFLEET_<KEY>` for
//! every key.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::ConfigError;
use super::settings::Settings;

type Apply = fn(&mut Settings, &str) -> Result<(), String>;

const KV_CACHE_TRACE: &str = "DYN_MOCKER_KV_CACHE_TRACE";
/// Where the peer's own tool looks for measurements.
const AIC_SYSTEMS: &str = "AICONFIGURATOR_SYSTEMS_PATH";
const ZMQ_BROKER: &str = "DYN_ZMQ_BROKER_ENABLED";

/// Switches: whatever is not yes is no, as the peer reads them. With what they turn on.
const SWITCHES: [(&str, &str); 2] = [(KV_CACHE_TRACE, "the trace"), (ZMQ_BROKER, "the search for brokers")];

/// The peer's variables, by name. Empty values count as unset, as the peer reads them.
const VARIABLES: [(&str, Apply); 26] = [
    ("DYN_NAMESPACE", |s, v| put(&mut s.namespace, v)),
    ("DYN_DISCOVERY_BACKEND", |s, v| choice(&mut s.discovery_backend, v)),
    ("DYN_REQUEST_PLANE", |s, v| choice(&mut s.request_plane, v)),
    ("DYN_RESPONSE_PLANE", |s, v| choice(&mut s.response_plane, v)),
    ("DYN_EVENT_PLANE", |s, v| choice(&mut s.event_plane, v)),
    ("DYN_FILE_KV", |s, v| put(&mut s.file_kv, v)),
    ("ETCD_ENDPOINTS", |s, v| put(&mut s.etcd_endpoints, v)),
    ("ETCD_LEASE_TTL", |s, v| put(&mut s.lease_ttl, v)),
    ("ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS", |s, v| {
        put(&mut s.etcd_connect_timeout, v)
    }),
    ("DYN_TCP_RPC_HOST", |s, v| put(&mut s.tcp_host, v)),
    ("DYN_TCP_RPC_PORT", |s, v| put(&mut s.tcp_port, v)),
    ("DYN_EVENT_PLANE_HOST", |s, v| put(&mut s.event_host, v)),
    ("DYN_TCP_MAX_MESSAGE_SIZE", |s, v| put(&mut s.max_message_size, v)),
    ("DYN_ENDPOINT", |s, v| put(&mut s.endpoint, v)),
    ("DYN_REQUEST_PLANE_CODEC", |s, v| {
        s.request_codec = Some(super::choices::word(v)?);
        Ok(())
    }),
    ("NATS_SERVER", |s, v| put(&mut s.nats_server, v)),
    ("DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS", |s, v| {
        put(&mut s.drain_timeout, v)
    }),
    ("DYN_ZMQ_BROKER_URL", |s, v| put(&mut s.zmq_broker_url, v)),
    (ZMQ_BROKER, |s, v| {
        s.zmq_broker_enabled = Some(truth(v).unwrap_or(false));
        Ok(())
    }),
    (AIC_SYSTEMS, |s, v| put(&mut s.aic_systems_path, v)),
    (KV_CACHE_TRACE, |s, v| {
        s.kv_cache_trace = Some(truth(v).unwrap_or(false));
        Ok(())
    }),
    ("DYN_SYSTEM_PORT", |s, v| put(&mut s.system_port, v)),
    ("DYN_SYSTEM_HOST", |s, v| put(&mut s.system_host, v)),
    ("DYN_SYSTEM_HEALTH_PATH", |s, v| put(&mut s.system_health_path, v)),
    ("DYN_SYSTEM_LIVE_PATH", |s, v| put(&mut s.system_live_path, v)),
    ("DYN_SYSTEM_STARTING_HEALTH_STATUS", |s, v| {
        choice(&mut s.system_starting_health_status, v)
    }),
];

/// What the peer takes for yes and no.
fn truth(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Values that count although they are likely not meant, in words for a log.
pub(super) fn doubts(environment: &BTreeMap<String, String>) -> Vec<String> {
    let unclear = |(name, what): (&str, &str)| {
        let value = environment.get(name)?.trim();
        let unclear = !value.is_empty() && truth(value).is_none();
        unclear.then(|| format!("{name}={value} counts as off; 1, true, yes or on turns {what} on"))
    };
    SWITCHES.into_iter().filter_map(unclear).collect()
}

fn put<T: FromStr>(slot: &mut Option<T>, value: &str) -> Result<(), String>
where
    T::Err: std::fmt::Display,
{
    *slot = Some(value.parse().map_err(|error: T::Err| plainly(&error.to_string()))?);
    Ok(())
}

/// What the standard library says of numbers, in words that name what is wanted.
fn plainly(error: &str) -> String {
    match error {
        "invalid digit found in string" | "cannot parse integer from empty string" => "must be a whole number",
        "number too large to fit in target type" => "is too large a number",
        "number too small to fit in target type" => "is too small a number",
        other => other,
    }
    .to_owned()
}

fn choice<T: clap::ValueEnum>(slot: &mut Option<T>, value: &str) -> Result<(), String> {
    *slot = Some(T::from_str(value, true).map_err(|_| {
        let known: Vec<_> = T::value_variants()
            .iter()
            .filter_map(clap::ValueEnum::to_possible_value)
            .collect();
        format!(
            "use {}",
            known
                .iter()
                .map(clap::builder::PossibleValue::get_name)
                .collect::<Vec<_>>()
                .join(" or ")
        )
    })?);
    Ok(())
}

/// One layer per variable that is set, in order of precedence.
///
/// # Errors
/// Names the variable and the value.
pub(super) fn layers(environment: &BTreeMap<String, String>) -> Result<Vec<(String, Settings)>, ConfigError> {
    let mut layers = Vec::new();
    for (name, apply) in VARIABLES {
        let Some(value) = environment.get(name).map(|v| v.trim()).filter(|v| !v.is_empty()) else {
            continue;
        };
        let mut layer = Settings::default();
        apply(&mut layer, value).map_err(|error| ConfigError::Environment {
            name: name.to_owned(),
            value: value.to_owned(),
            error,
        })?;
        layers.push((name.to_owned(), layer));
    }
    for key in super::layers::known_keys() {
        let name = format!("GHOSTFLEET_{}", key.to_ascii_uppercase());
        let Some(value) = environment.get(&name).map(|v| v.trim()).filter(|v| !v.is_empty()) else {
            continue;
        };
        // As in a file: a bare word is a string, everything else is TOML.
        let parsed = toml::from_str::<Settings>(&format!("{key} = {value}"))
            .or_else(|_| toml::from_str(&format!("{key} = {}", toml::Value::from(value))))
            .map_err(|error| ConfigError::Environment {
                name: name.clone(),
                value: value.to_owned(),
                error: error.message().to_owned(),
            })?;
        layers.push((name, parsed));
    }
    Ok(layers)
}
