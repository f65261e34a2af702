//! A graph as readers find it, its checks, and the digest that identifies it.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use serde::ser::{Error, SerializeSeq};
use serde::{Deserialize, Serialize, Serializer};

use crate::engine::Semantics;
use crate::types::Tokens;

use super::ids::{HashIds, IdStore};

/// What a dependency waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// The other request is sent out.
    Dispatch,
    /// The other request ends.
    Completion,
}

/// Why a request waits for another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// It is the next turn of the same session.
    #[default]
    Sequence,
    /// It begins a session that the other one started.
    Spawn,
    /// It uses what another session came to.
    Join,
    /// The trace says so.
    ReplayBarrier,
}

impl Relation {
    /// Only a session that is spawned can wait for another request to be sent out.
    pub(crate) fn can_wait_for(self, trigger: Trigger) -> bool {
        self == Self::Spawn || trigger == Trigger::Completion
    }
}

/// One thing that a request waits for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Dependency {
    /// Name of the other request.
    pub request_id: String,
    /// What about it.
    pub trigger: Trigger,
    /// Wait after that, ms.
    pub delay_ms: f64,
    /// Why.
    pub relation: Relation,
}

impl Dependency {
    /// What dependencies are sorted by.
    fn key(&self) -> (&str, Trigger, Relation) {
        (&self.request_id, self.trigger, self.relation)
    }
}

/// Where a request was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// File.
    pub file: Arc<str>,
    /// Line, from 1; 0: not known.
    pub line: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            return out.write_str("another request");
        }
        write!(out, "{}, line {}", self.file, self.line)
    }
}

/// One request of a graph.
#[derive(Debug, Clone, Default)]
pub struct AgenticRequest {
    /// Unique name.
    pub request_id: String,
    /// Session, for records.
    pub session_id: String,
    /// Play that it belongs to.
    pub play_id: String,
    /// Position of that play among all, where the trace gives one.
    pub source_play_ordinal: Option<u64>,
    /// Model that was asked.
    pub model: String,
    /// Not due before this time, ms.
    pub not_before_ms: f64,
    /// How long the recorded request took, ms.
    pub recorded_api_time_ms: Option<f64>,
    /// Hash ids of the prompt.
    pub hash_ids: HashIds,
    /// Prompt tokens.
    pub input_tokens: u32,
    /// Tokens to generate.
    pub output_tokens: u32,
    /// Exact ids to generate.
    pub planned: Option<Tokens>,
    /// Router queue.
    pub priority: i32,
    /// Router queue.
    pub strict_priority: u32,
    /// Router queue: class or family.
    pub policy_class: Option<Arc<str>>,
    /// What it waits for.
    pub dependencies: Vec<Dependency>,
    /// Where it was read.
    pub place: Place,
}

/// Where a graph comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GraphOrigin {
    /// Format of the trace.
    pub format: String,
    /// What identifies the content.
    pub digest: String,
    /// Models that were asked, each once, in alphabetical order.
    pub models: Vec<String>,
    /// Weka: what nested times were taken to count from.
    pub nested_times: Option<&'static str>,
}

/// A graph and how many tokens each hash id stands for.
#[derive(Debug, Clone)]
pub struct Graph {
    /// Requests; with the rules of 1.4.2 the first of several goes first at one instant.
    pub requests: Vec<AgenticRequest>,
    /// Tokens per hash id.
    pub block_tokens: u32,
    /// Where it comes from.
    pub origin: GraphOrigin,
    /// Release whose rules it is made for.
    pub rules: Semantics,
    /// Where the hash ids are that are not here.
    pub ids: IdStore,
}

/// Why requests do not make a graph that can be played.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// A name twice; the place of the first.
    #[error("request_id is {0}, as in {1}; expected a name of its own")]
    Duplicate(String, Place),
    /// A dependency on nobody; its field, the request and what it names.
    #[error("{0} of request {1} names {2}, expected the request_id of a line of this trace")]
    Unknown(&'static str, String, String),
    /// A dependency on itself.
    #[error("{0} of request {1} names the request itself, expected others")]
    Itself(&'static str, String),
    /// A dependency on another play.
    #[error("{0} of request {1} names {2}, which is in another play; expected requests with the same play_id")]
    OtherPlay(&'static str, String, String),
    /// A ring of dependencies.
    #[error("request {1} waits for itself through others (a cycle); expected {0} that lead to a request without any")]
    Cycle(&'static str, String),
    /// Some plays have a position and some have none, or positions do not count up.
    #[error("source_play_ordinal of play {0} is {1}; the plays of a trace are numbered 0, 1, 2, ... or not at all")]
    Ordinal(String, String),
    /// Rows of one play give it different positions; the play, what this row and the first one say, and where that is.
    #[error("source_play_ordinal of play {0} is {1}, but {2} in {3}; expected the same in all rows of a play")]
    Ordinals(String, String, String, Place),
    /// What is wrong with a request, and where it was read.
    #[error("{0}: {1}")]
    At(Place, Box<GraphError>),
    /// Nothing to play on.
    #[error("agentic_lanes is 0, expected at least 1")]
    NoLanes,
    /// The temporary file of a large trace is gone or damaged.
    #[error("cannot read hash ids back from the temporary file: {0}")]
    Lost(String),
}

impl GraphError {
    /// With the place of the request at fault, where it is known.
    pub(super) fn at(self, place: &Place) -> Self {
        if place.line == 0 {
            self
        } else {
            Self::At(place.clone(), Box::new(self))
        }
    }
}

impl Graph {
    /// The field of a line that says what a request waits for.
    pub(super) fn waiting_field(&self) -> &'static str {
        match self.rules {
            Semantics::V1_6_1 => "dependencies",
            Semantics::V1_4_2 => "wait_for",
        }
    }

    /// Requests and the dependencies of each in the order of their names, as Dynamo 1.6.1 keeps them.
    pub(super) fn sort(&mut self) {
        self.requests.sort_by(|a, b| a.request_id.cmp(&b.request_id));
        for request in &mut self.requests {
            let order =
                |a: &Dependency, b: &Dependency| a.key().cmp(&b.key()).then_with(|| a.delay_ms.total_cmp(&b.delay_ms));
            request.dependencies.sort_by(order);
        }
    }

    /// Shifts times so that the earliest is 0 and divides times and delays by `speedup`. Those by the rules of 1.4.2 count
    /// from the earliest time stamp already, whoever it belongs to.
    pub(super) fn rescale(&mut self, speedup: f64) {
        let times = self.requests.iter().map(|request| request.not_before_ms);
        let earliest = match self.rules {
            Semantics::V1_6_1 => times.min_by(f64::total_cmp).unwrap_or(0.0),
            Semantics::V1_4_2 => 0.0,
        };
        for request in &mut self.requests {
            request.not_before_ms = (request.not_before_ms - earliest) / speedup;
            for dependency in &mut request.dependencies {
                dependency.delay_ms /= speedup;
            }
        }
    }

    /// Place of each request by its name.
    pub(super) fn names(&self) -> Result<Names<'_>, GraphError> {
        let mut names = Names::default();
        for (at, request) in (0..).zip(&self.requests) {
            if let Some(first) = names.insert(&request.request_id, at) {
                let first = self.requests[first as usize].place.clone();
                return Err(GraphError::Duplicate(request.request_id.clone(), first).at(&request.place));
            }
        }
        Ok(names)
    }

    /// Place of what `dependency` of request `at` waits for.
    pub(super) fn resolve(&self, names: &Names<'_>, at: usize, dependency: &Dependency) -> Result<u32, GraphError> {
        let request = &self.requests[at];
        let field = self.waiting_field();
        let pair = || (request.request_id.clone(), dependency.request_id.clone());
        let Some(&other) = names.get(dependency.request_id.as_str()) else {
            let (name, missing) = pair();
            return Err(GraphError::Unknown(field, name, missing).at(&request.place));
        };
        if other as usize == at {
            return Err(GraphError::Itself(field, request.request_id.clone()).at(&request.place));
        }
        if self.requests[other as usize].play_id != request.play_id {
            let (name, other) = pair();
            return Err(GraphError::OtherPlay(field, name, other).at(&request.place));
        }
        Ok(other)
    }

    /// BLAKE3 of the graph's canonical JSON: what Dynamo 1.6.1 calls `graph_digest`.
    ///
    /// # Errors
    /// [`GraphError::Lost`].
    pub(super) fn digest(&self) -> Result<String, GraphError> {
        let mut hasher = Hashing(Box::default());
        let canonical = Canonical {
            block_size: self.block_tokens,
            nodes: Nodes(self),
        };
        // A hasher takes every byte and every map key is a text.
        serde_json::to_writer(&mut hasher, &canonical).map_err(|error| GraphError::Lost(error.to_string()))?;
        Ok(hasher.0.finalize().to_hex().to_string())
    }
}

/// Place of each request by its name.
pub(super) type Names<'a> = HashMap<&'a str, u32, FxBuildHasher>;

#[derive(Serialize)]
struct Canonical<'a> {
    block_size: u32,
    nodes: Nodes<'a>,
}

/// All requests, one at a time.
struct Nodes<'a>(&'a Graph);

impl Serialize for Nodes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut nodes = serializer.serialize_seq(Some(self.0.requests.len()))?;
        for request in &self.0.requests {
            let ids = self.0.ids.get(&request.hash_ids).map_err(S::Error::custom)?;
            nodes.serialize_element(&Node::of(request, &ids))?;
        }
        nodes.end()
    }
}

#[derive(Serialize)]
struct Node<'a> {
    request_id: &'a str,
    play_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_play_ordinal: Option<u64>,
    session_id: &'a str,
    model: &'a str,
    input_length: u32,
    max_output_tokens: u32,
    output_token_ids: Option<&'a [u32]>,
    /// The request's name, where its answer is given.
    replay_key: Option<&'a str>,
    hash_ids: &'a [u64],
    not_before_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded_api_time_ms: Option<f64>,
    priority: i32,
    strict_priority: u32,
    policy_class: Option<&'a str>,
    dependencies: &'a [Dependency],
}

impl<'a> Node<'a> {
    fn of(request: &'a AgenticRequest, hash_ids: &'a [u64]) -> Self {
        Self {
            request_id: &request.request_id,
            play_id: &request.play_id,
            source_play_ordinal: request.source_play_ordinal,
            session_id: &request.session_id,
            model: &request.model,
            input_length: request.input_tokens,
            max_output_tokens: request.output_tokens,
            output_token_ids: request.planned.as_deref(),
            replay_key: request.planned.as_ref().map(|_| request.request_id.trim()),
            hash_ids,
            not_before_ms: request.not_before_ms,
            recorded_api_time_ms: request.recorded_api_time_ms,
            priority: request.priority,
            strict_priority: request.strict_priority,
            policy_class: request.policy_class.as_deref(),
            dependencies: &request.dependencies,
        }
    }
}

struct Hashing(Box<blake3::Hasher>);

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
