//! Types of settings: what a flag, a TOML value, a JSON value and an environment variable may say.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// Where workers announce themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DiscoveryBackend {
    /// An etcd server (`ETCD_ENDPOINTS`).
    Etcd,
    /// A directory on this host (`DYN_FILE_KV`); no server needed.
    File,
    /// A map in this process; no router outside can see it.
    Mem,
}

/// How requests travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum RequestPlane {
    /// TCP, frames and acks on pooled connections.
    Tcp,
    /// NATS requests and replies (`NATS_SERVER`); answers still go by TCP.
    Nats,
}

/// How KV events and load figures travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EventPlane {
    /// ZeroMQ: one PUB socket per rank, or one to all brokers.
    Zmq,
    /// NATS subjects (`NATS_SERVER`).
    Nats,
}

/// How answers travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ResponsePlane {
    /// A TCP connection per request, dialled by the worker.
    Tcp,
    /// QUIC streams.
    Quic,
}

/// NATS connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum NatsConnections {
    /// One for the whole process.
    Shared,
    /// One per worker, so that a worker's death ends its connection.
    PerWorker,
}

/// Request listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Ports {
    /// One listener for the whole process; the endpoint path tells workers apart.
    Shared,
    /// One listener per worker, so that a crashed worker's port is really closed.
    PerWorker,
}

/// What the status server says while workers are starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub enum StartingStatus {
    /// 200.
    Ready,
    /// 503.
    NotReady,
}

/// How native event sockets meet their reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum NativeMode {
    /// They listen, and readers connect.
    Bind,
    /// They connect to a reader that listens, as vLLM does for concrete addresses.
    Connect,
}

/// Order in which waiting requests are admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SchedulingPolicy {
    /// First come, first served.
    Fcfs,
    /// Smallest priority first.
    Priority,
}

/// Part of the work that a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DisaggregationMode {
    /// Everything.
    #[serde(alias = "aggregated")]
    #[value(alias = "aggregated")]
    Agg,
    /// Prompts.
    Prefill,
    /// Answers.
    Decode,
}

/// Tokens that a KV transfer is charged for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum TransferTiming {
    /// The whole prompt.
    #[value(name = "full_prompt")]
    FullPrompt,
    /// What the destination does not have.
    #[value(name = "destination_missing")]
    DestinationMissing,
}

/// Whose the host memory is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum HostScope {
    /// Each rank has its own.
    #[default]
    #[value(name = "dp_rank_local")]
    DpRankLocal,
    /// One pool for all ranks that say so.
    #[value(name = "cluster_shared")]
    ClusterShared,
}

/// Whose the disk is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum DiskScope {
    /// Each rank has its own.
    #[default]
    #[value(name = "worker_local")]
    WorkerLocal,
    /// One disk for all ranks that say so.
    #[value(name = "cluster_shared")]
    ClusterShared,
}

/// A number that can be computed with: not NaN, not infinite.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Finite(f64);

impl Finite {
    /// For a number that is finite by its nature, such as a literal.
    pub(super) const fn literal(value: f64) -> Self {
        assert!(value.is_finite());
        Self(value)
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

/// A number for people: very large and very small ones by their power of ten.
pub fn brief(number: f64) -> String {
    if number == 0.0 || (1e-4..1e7).contains(&number.abs()) {
        number.to_string()
    } else {
        format!("{number:e}")
    }
}

impl FromStr for Finite {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse::<f64>().map_err(|_| "must be a number".to_owned())?;
        Self::checked(number)
    }
}

impl Finite {
    fn checked(number: f64) -> Result<Self, String> {
        if number.is_finite() {
            Ok(Self(number))
        } else {
            Err("must be a finite number".to_owned())
        }
    }
}

impl<'de> Deserialize<'de> for Finite {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::checked(f64::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// A limit that can be taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// At most this many.
    Most(u32),
    /// No limit; written `unlimited`.
    Unlimited,
}

impl Limit {
    /// The number, if there is a limit.
    pub fn get(self) -> Option<u32> {
        match self {
            Self::Most(number) => Some(number),
            Self::Unlimited => None,
        }
    }
}

const LIMIT: &str = "a whole number or \"unlimited\"";

const TOO_LARGE: &str = "is too large; the largest limit is 4294967295, and \"unlimited\" takes it away";

fn is_whole(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(number) => Ok(Self::Most(number)),
            Err(_) if text == "unlimited" => Ok(Self::Unlimited),
            Err(_) if is_whole(text) => Err(TOO_LARGE.to_owned()),
            Err(_) => Err(format!("use {LIMIT}")),
        }
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Most(number) => number.serialize(to),
            Self::Unlimited => "unlimited".serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Limit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(LIMIT)
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Limit, E> {
                let number = u32::try_from(number);
                number.map(Limit::Most).map_err(|_| E::custom(TOO_LARGE))
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Limit, E> {
                let number = u64::try_from(number).map_err(|_| E::custom(format!("expected {LIMIT}")))?;
                self.visit_u64(number)
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Limit, E> {
                text.parse().map_err(E::custom)
            }
        }
        from.deserialize_any(Visitor)
    }
}

/// A span of reasoning at the start of each answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reasoning {
    /// First token of the span.
    pub start_thinking_token_id: u32,
    /// Last token of the span.
    pub end_thinking_token_id: u32,
    /// Share of the answer, 0 to 1.
    pub thinking_ratio: Finite,
}

/// How long passes take, in the form of the peer's `timing_model`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum TimingModel {
    /// The built-in curves.
    Polynomial,
    /// Constant durations.
    Fixed {
        /// Per pass with prefill work, ms.
        prefill_ms: Finite,
        /// Per pass with decode work, ms.
        decode_ms: Finite,
    },
    /// A model from outside.
    External(External),
}

/// A model from outside the engine, by its provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "provider", content = "config", rename_all = "snake_case")]
pub enum External {
    /// Measured durations.
    DynamoProfile(ProfilePath),
    /// The peer's performance model; 1.4.2 calls it AIC.
    #[serde(alias = "aic")]
    Ais(Value),
}

/// Where a profile is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfilePath {
    /// NPZ file or directory of profiler results.
    pub path: PathBuf,
}

/// Reads one of a settings enum's words, the same ones that a config file has.
pub(super) fn word<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(Value::from(text)).map_err(|error| error.to_string())
}

/// Reads a flag whose value is a JSON object.
pub(super) fn json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Reads ports: a list of numbers, one number, or text with commas, which is what comes out.
pub(super) fn ports<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    const WANTED: &str = "ports: a list such as [5000, 5010], or text such as \"5000,5010\"";
    let wrong = || D::Error::custom(format!("expected {WANTED}"));
    let one = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => number.as_u64().map(|port| port.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    let read = match &Value::deserialize(from)? {
        Value::Null => return Ok(None),
        Value::Array(items) => items
            .iter()
            .map(one)
            .collect::<Option<Vec<_>>>()
            .map(|ports| ports.join(",")),
        value @ (Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => one(value),
    };
    read.map(Some).ok_or_else(wrong)
}

/// Reads a table, or JSON text that holds one (as an environment variable does).
pub(super) fn table_or_json<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Option<T>, D::Error> {
    let value = Value::deserialize(from)?;
    let read = match value.as_str() {
        Some(text) => serde_json::from_str(text),
        None => serde_json::from_value(value),
    };
    read.map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people_have_no_long_rows_of_zeros() {
        assert_eq!(
            [0.0, 1.0, 0.25, 1234.5, -3.0].map(brief),
            ["0", "1", "0.25", "1234.5", "-3"]
        );
        assert_eq!([1e-300, 1e30].map(brief), ["1e-300", "1e30"]);
    }
}
