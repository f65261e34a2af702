//! A Weka document and what makes it one that can be replayed.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::super::line::{MAX_MS, MAX_TOKENS};
use super::EPSILON_S;

/// One conversation.
#[derive(Debug, Deserialize)]
pub(super) struct Document {
    pub(super) id: String,
    #[serde(default)]
    models: Vec<String>,
    pub(super) block_size: u32,
    hash_id_scope: String,
    pub(super) requests: Vec<Item>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type")]
pub(super) enum Item {
    #[serde(rename = "n", alias = "s")]
    Request(Request),
    #[serde(rename = "subagent")]
    Subagent(Subagent),
}

/// A request inside a subagent.
#[derive(Debug, Deserialize)]
#[serde(tag = "type")]
pub(super) enum Nested {
    #[serde(rename = "n", alias = "s")]
    Request(Request),
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
        if self.models.iter().any(|model| model.trim().is_empty()) {
            return Err("models has an empty name".into());
        }
        let declared: BTreeSet<&str> = self.models.iter().map(String::as_str).collect();
        let mut own = 0_usize;
        for (at, item) in self.requests.iter().enumerate() {
            match item {
                Item::Request(request) => {
                    own += 1;
                    request
                        .check(&declared)
                        .map_err(|what| format!("requests[{at}]: {what}"))?;
                }
                Item::Subagent(subagent) => {
                    subagent.check().map_err(|what| format!("requests[{at}]: {what}"))?;
                    for (inner, Nested::Request(request)) in subagent.requests.iter().enumerate() {
                        let checked = request.check(&declared);
                        checked.map_err(|what| format!("requests[{at}].requests[{inner}]: {what}"))?;
                    }
                }
            }
        }
        if own == 0 {
            return Err("no request of the agent itself, only of subagents or none".into());
        }
        Ok(())
    }
}

impl Request {
    fn check(&self, declared: &BTreeSet<&str>) -> Result<(), String> {
        let longest = MAX_MS / 1e3;
        for (field, time) in [("t", Some(self.t)), ("api_time", self.api_time)] {
            if let Some(time) = time.filter(|time| !(0.0..=longest).contains(time)) {
                return Err(format!("{field} is {time}, expected seconds from 0 to {longest:e}"));
            }
        }
        if self.model.trim().is_empty() {
            return Err("model is empty, expected a name".into());
        }
        if !declared.is_empty() && !declared.contains(self.model.as_str()) {
            let model = &self.model;
            return Err(format!("model is {model}, which is not among the models of the trace"));
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
            return Err(format!("t is {}, expected seconds from 0 to {longest:e}", self.t));
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
            return Err("a completed subagent without requests; what it waited for is not known".into());
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
