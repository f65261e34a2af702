//! A Weka document and what makes it one that can be replayed.
//!
//! Items are checked as they are read. What is wrong begins with the path of the field. Fields that do not count are looked
//! at, too: the peer refuses those of another type.

use std::fmt;

use serde::de::{DeserializeOwned, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::super::line::{MAX_MS, MAX_TOKENS};
use super::EPSILON_S;
use crate::plain_words::{number, plain};

/// One conversation.
#[derive(Debug, Deserialize)]
pub(super) struct Document {
    pub(super) id: String,
    #[serde(default)]
    models: Vec<String>,
    pub(super) block_size: u32,
    hash_id_scope: String,
    #[serde(rename = "tool_tokens", default)]
    _tool_tokens: u64,
    #[serde(rename = "system_tokens", default)]
    _system_tokens: u64,
    pub(super) requests: Vec<Item>,
}

#[derive(Debug)]
pub(super) enum Item {
    Request(Request),
    Subagent(Subagent),
}

/// A request inside a subagent.
#[derive(Debug)]
pub(super) enum Nested {
    Request(Request),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = |kind: &str, fields| match kind {
            "n" | "s" => checked(fields, Request::check).map(Self::Request),
            "subagent" => checked(fields, Subagent::check).map(Self::Subagent),
            other => Err(format!(".type is {other:?}, expected \"n\", \"s\" or \"subagent\"")),
        };
        deserializer.deserialize_map(Typed(read))
    }
}

impl<'de> Deserialize<'de> for Nested {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = |kind: &str, fields| match kind {
            "n" | "s" => checked(fields, Request::check).map(Self::Request),
            other => Err(format!(".type is {other:?}, expected \"n\" or \"s\" inside a subagent")),
        };
        deserializer.deserialize_map(Typed(read))
    }
}

/// An object that is read by its `type`. What is wrong begins with a dot and the path of the field.
struct Typed<F>(F);

impl<'de, T, F: FnOnce(&str, Map<String, Value>) -> Result<T, String>> Visitor<'de> for Typed<F> {
    type Value = T;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let mut fields = Map::new();
        while let Some((key, value)) = map.next_entry::<String, Value>()? {
            let twice = KNOWN.contains(&key.as_str()) && fields.contains_key(&key);
            if twice {
                return Err(A::Error::custom(format!(".{key} is given twice")));
            }
            fields.insert(key, value);
        }
        let kind = match fields.remove("type") {
            Some(Value::String(kind)) => kind,
            Some(other) => return Err(A::Error::custom(format!(".type is {other}, expected a string"))),
            None => return Err(A::Error::custom(".type is missing")),
        };
        (self.0)(&kind, fields).map_err(A::Error::custom)
    }
}

/// Fields that may be given once.
const KNOWN: [&str; 22] = [
    "type",
    "t",
    "model",
    "in",
    "out",
    "hash_ids",
    "api_time",
    "agent_id",
    "subagent_type",
    "status",
    "duration_ms",
    "requests",
    "input_types",
    "output_types",
    "stop",
    "think_time",
    "ttft",
    "total_tokens",
    "tool_use_count",
    "models",
    "tool_tokens",
    "system_tokens",
];

/// Reads and checks what an object holds.
fn checked<T: DeserializeOwned>(
    fields: Map<String, Value>,
    check: impl FnOnce(&T) -> Result<(), String>,
) -> Result<T, String> {
    let read = serde_path_to_error::deserialize(Value::Object(fields));
    let read = read.map_err(|error| format!(".{}", plain(&error.path().to_string(), &error.inner().to_string())))?;
    check(&read).map_err(|what| format!(".{what}"))?;
    Ok(read)
}

#[derive(Debug, Deserialize)]
pub(super) struct Request {
    /// Begin, s.
    pub(super) t: f64,
    pub(super) model: String,
    #[serde(rename = "in")]
    pub(super) input: u32,
    #[serde(rename = "out")]
    pub(super) output: u32,
    #[serde(default)]
    pub(super) hash_ids: Vec<u64>,
    /// How long it took, s.
    pub(super) api_time: Option<f64>,
    #[serde(rename = "input_types", default)]
    _input_types: Vec<String>,
    #[serde(rename = "output_types", default)]
    _output_types: Vec<String>,
    #[serde(rename = "stop", default)]
    _stop: String,
    #[serde(rename = "think_time")]
    _think_time: Option<f64>,
    #[serde(rename = "ttft")]
    _ttft: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Subagent {
    /// Where its marker stands, s.
    pub(super) t: f64,
    pub(super) agent_id: String,
    #[serde(rename = "subagent_type")]
    _kind: String,
    status: String,
    pub(super) duration_ms: Option<i64>,
    pub(super) requests: Vec<Nested>,
    #[serde(rename = "total_tokens")]
    _total_tokens: Option<u64>,
    #[serde(rename = "tool_use_count")]
    _tool_use_count: Option<u64>,
    #[serde(rename = "models", default)]
    _models: Vec<String>,
    #[serde(rename = "tool_tokens", default)]
    _tool_tokens: u64,
    #[serde(rename = "system_tokens", default)]
    _system_tokens: u64,
}

impl Document {
    pub(super) fn subagents(&self) -> impl Iterator<Item = &Subagent> {
        self.requests.iter().filter_map(|item| match item {
            Item::Subagent(subagent) => Some(subagent),
            Item::Request(_) => None,
        })
    }

    /// Whether it can be replayed.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.id.trim().is_empty() {
            return Err("id is empty, expected a name".into());
        }
        if self.block_size == 0 {
            return Err("block_size is 0, expected at least 1".into());
        }
        if self.hash_id_scope != "local" {
            let scope = &self.hash_id_scope;
            return Err(format!("hash_id_scope is {scope:?}, expected \"local\""));
        }
        if let Some(at) = self.models.iter().position(|model| model.trim().is_empty()) {
            return Err(format!("models[{at}] is empty, expected a name"));
        }
        let mut own = 0_usize;
        for (at, item) in self.requests.iter().enumerate() {
            match item {
                Item::Request(request) => {
                    own += 1;
                    self.check_model(request)
                        .map_err(|what| format!("requests[{at}].{what}"))?;
                }
                Item::Subagent(subagent) => {
                    for (inner, Nested::Request(request)) in subagent.requests.iter().enumerate() {
                        let checked = self.check_model(request);
                        checked.map_err(|what| format!("requests[{at}].requests[{inner}].{what}"))?;
                    }
                }
            }
        }
        if own == 0 {
            return Err("requests has none of the agent itself, expected at least one".into());
        }
        Ok(())
    }

    /// Where the document declares models, others are unknown.
    fn check_model(&self, request: &Request) -> Result<(), String> {
        if self.models.is_empty() || self.models.contains(&request.model) {
            return Ok(());
        }
        let model = &request.model;
        Err(format!("model is {model}, which is not among the models of the trace"))
    }
}

impl Request {
    fn check(&self) -> Result<(), String> {
        let longest = MAX_MS / 1e3;
        for (field, time) in [("t", Some(self.t)), ("api_time", self.api_time)] {
            if let Some(time) = time.filter(|time| !(0.0..=longest).contains(time)) {
                let time = number(time);
                return Err(format!("{field} is {time}, expected seconds from 0 to {longest:e}"));
            }
        }
        if self.model.trim().is_empty() {
            return Err("model is empty, expected a name".into());
        }
        if self.input == 0 {
            return Err("in is 0, expected at least 1".into());
        }
        for (field, tokens) in [("in", self.input), ("out", self.output)] {
            if tokens > MAX_TOKENS {
                return Err(format!("{field} is {tokens}, expected at most {MAX_TOKENS} tokens"));
            }
        }
        Ok(())
    }
}

impl Subagent {
    /// The agent waits for it.
    pub(super) fn is_blocking(&self) -> bool {
        self.status == "completed"
    }

    fn check(&self) -> Result<(), String> {
        let longest = MAX_MS / 1e3;
        if !(0.0..=longest).contains(&self.t) {
            let time = number(self.t);
            return Err(format!("t is {time}, expected seconds from 0 to {longest:e}"));
        }
        if self.agent_id.trim().is_empty() {
            return Err("agent_id is empty, expected a name".into());
        }
        if let Some(took) = self.duration_ms.filter(|took| *took < 0) {
            return Err(format!("duration_ms is {took}, expected ms from 0 on"));
        }
        if !["completed", "async_launched"].contains(&self.status.as_str()) {
            let status = &self.status;
            return Err(format!("status is {status:?}, expected completed or async_launched"));
        }
        if self.is_blocking() && self.requests.is_empty() {
            return Err("requests is empty, expected what a completed subagent was waited for".into());
        }
        Ok(())
    }

    /// Whether a time inside lies before the marker, so that times inside cannot be those of the trace.
    pub(super) fn begins_before_marker(&self) -> bool {
        let mut inner = self.requests.iter();
        inner.any(|Nested::Request(request)| request.t < self.t - EPSILON_S)
    }

    /// A time inside on the clock of the trace, s; `None`: it would lie before the marker.
    pub(super) fn on_trace_clock(&self, t: f64, relative: bool) -> Option<f64> {
        if relative {
            Some(self.t + t)
        } else {
            (t >= self.t - EPSILON_S).then(|| t.max(self.t))
        }
    }
}
