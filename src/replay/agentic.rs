//! Request graphs: requests that wait for others to be dispatched or to complete.
//!
//! A request is due at the latest of its own time and, for each dependency, the moment of the trigger plus a delay. Plays
//! (independent graphs) run at their own times, or are dealt to lanes: a lane starts its next play when the one before has
//! no work left. Source: Dynamo 1.6.1 agentic replay.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::types::{Prompt, SimTime, Token};

use super::prompt::{PromptRef, PromptStore};
use super::source::{Source, Trajectory, Turn};

/// What a dependency waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trigger {
    /// The other request goes to a worker.
    Dispatch,
    /// The other request ends.
    Completion,
}

/// One thing that a request waits for.
#[derive(Debug, Clone, PartialEq)]
pub struct Dependency {
    /// Name of the other request.
    pub request_id: String,
    /// What about it.
    pub trigger: Trigger,
    /// Wait after that, ms.
    pub delay_ms: f64,
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
    /// Not due before this time, ms.
    pub not_before_ms: f64,
    /// Hash ids of the prompt.
    pub hash_ids: Vec<u64>,
    /// Prompt tokens.
    pub input_tokens: u32,
    /// Tokens to generate.
    pub output_tokens: u32,
    /// Router queue.
    pub priority: i32,
    /// Router queue.
    pub strict_priority: u32,
    /// Router queue: class or family.
    pub policy_class: Option<Arc<str>>,
    /// What it waits for.
    pub dependencies: Vec<Dependency>,
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
}

/// A graph and what happened to it, for the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphSummary {
    /// Where it comes from.
    pub origin: GraphOrigin,
    /// BLAKE3 of requests, times and dependencies: equal graphs have equal digests.
    pub digest: String,
    /// Tokens per hash id.
    pub block_size: u32,
    /// Requests.
    pub nodes: u64,
    /// Plays.
    pub plays: u64,
    /// Requests that came due, were dispatched and ended, and plays that ended.
    pub lifecycle_events: u64,
    /// BLAKE3 of these events with their times: equal runs have equal digests.
    pub lifecycle_digest: String,
}

/// Why requests do not make a graph that can be played.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// A name twice.
    #[error("request_id {0} stands for two requests; names must be unique")]
    Duplicate(String),
    /// A dependency on nobody.
    #[error("request {0} waits for {1}, which is not in the trace")]
    Unknown(String, String),
    /// A dependency on itself.
    #[error("request {0} waits for itself")]
    Itself(String),
    /// A ring of dependencies.
    #[error("request {0} waits for itself through others (a cycle)")]
    Cycle(String),
    /// Nothing to play on.
    #[error("agentic_lanes is 0, expected at least 1")]
    NoLanes,
}

#[derive(Debug)]
struct Node {
    request_id: Box<str>,
    session: u32,
    turn: u32,
    play: u32,
    prompt: PromptRef,
    output_tokens: u32,
    priority: i32,
    strict_priority: u32,
    policy_class: Option<Arc<str>>,
    /// Earliest time as known so far.
    ready: SimTime,
    /// Triggers still to come.
    missing: u32,
    /// Who waits for this one.
    waiters: Vec<Waiter>,
}

#[derive(Debug, Clone, Copy)]
struct Waiter {
    node: u32,
    trigger: Trigger,
    delay: Duration,
}

#[derive(Debug)]
struct Play {
    name: Box<str>,
    nodes: Vec<u32>,
    /// Its earliest time in the trace.
    first: SimTime,
    left: usize,
    lane: Option<usize>,
    ended: SimTime,
}

/// Plays a graph.
#[derive(Debug)]
pub struct AgenticSource {
    prompts: PromptStore,
    nodes: Vec<Node>,
    plays: Vec<Play>,
    sessions: Vec<Box<str>>,
    lanes: Vec<VecDeque<u32>>,
    due: BinaryHeap<Reverse<(SimTime, u32)>>,
    ended: u64,
    origin: GraphOrigin,
    digest: String,
    lifecycle: Lifecycle,
}

/// Running digest of what happens.
#[derive(Debug, Default)]
struct Lifecycle {
    hasher: Box<blake3::Hasher>,
    events: u64,
}

/// What happens to requests and plays.
#[derive(Debug, Clone, Copy)]
enum Event {
    Due,
    Dispatched,
    Ended,
    PlayEnded,
}

impl Lifecycle {
    fn note(&mut self, event: Event, of: u32, at: SimTime) {
        self.events += 1;
        self.hasher.update(&[event as u8]);
        self.hasher.update(&of.to_le_bytes());
        self.hasher.update(&at.0.to_le_bytes());
    }
}

/// Digest of a graph; every part is preceded by its length, so that no two graphs read the same.
fn digest(requests: &[AgenticRequest], block_tokens: u32) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut number = |number: u64| {
        hasher.update(&number.to_le_bytes());
    };
    number(u64::from(block_tokens));
    for request in requests {
        for text in [&request.request_id, &request.session_id, &request.play_id] {
            number(text.len() as u64);
            text.bytes().for_each(|byte| number(u64::from(byte)));
        }
        number(request.not_before_ms.to_bits());
        number(request.hash_ids.len() as u64);
        request.hash_ids.iter().for_each(|&id| number(id));
        number(u64::from(request.input_tokens));
        number(u64::from(request.output_tokens));
        number(request.dependencies.len() as u64);
        for dependency in &request.dependencies {
            number(dependency.request_id.len() as u64);
            dependency.request_id.bytes().for_each(|byte| number(u64::from(byte)));
            number(dependency.trigger as u64);
            number(dependency.delay_ms.to_bits());
        }
    }
    hasher.finalize().to_hex().to_string()
}

type Names<'a> = HashMap<&'a str, u32, FxBuildHasher>;

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Milliseconds as a span, divided by a speed-up.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn span(ms: f64, speedup: f64) -> Duration {
    Duration::from_nanos((ms / speedup * 1e6).round().max(0.0) as u64)
}

impl AgenticSource {
    /// Says where the graph comes from.
    #[must_use]
    pub fn with_origin(mut self, origin: GraphOrigin) -> Self {
        self.origin = origin;
        self
    }

    /// Plays `requests`, whose hash ids stand for `block_tokens` tokens each. Times and delays are divided by `speedup`;
    /// the earliest time becomes 0. With `lanes` plays are dealt round robin to so many lanes.
    ///
    /// # Errors
    /// [`GraphError`] names the request.
    pub fn new(
        requests: &[AgenticRequest],
        block_tokens: u32,
        speedup: f64,
        lanes: Option<usize>,
    ) -> Result<Self, GraphError> {
        if lanes == Some(0) {
            return Err(GraphError::NoLanes);
        }
        let mut names = Names::default();
        for (at, request) in requests.iter().enumerate() {
            if names.insert(&request.request_id, number(at)).is_some() {
                return Err(GraphError::Duplicate(request.request_id.clone()));
            }
        }
        let earliest = requests.iter().filter(|request| request.dependencies.is_empty());
        let earliest = earliest
            .map(|request| request.not_before_ms)
            .min_by(f64::total_cmp)
            .unwrap_or(0.0);
        let mut source = Self {
            prompts: PromptStore::new(block_tokens),
            nodes: Vec::with_capacity(requests.len()),
            plays: Vec::new(),
            sessions: Vec::new(),
            lanes: vec![VecDeque::new(); lanes.unwrap_or(0)],
            due: BinaryHeap::new(),
            ended: 0,
            origin: GraphOrigin::default(),
            digest: digest(requests, block_tokens),
            lifecycle: Lifecycle::default(),
        };
        source.add_nodes(requests, earliest, speedup);
        source.add_edges(requests, &names, speedup)?;
        source.check_cycles()?;
        source.prompts.seal();
        source.begin();
        Ok(source)
    }

    fn add_nodes(&mut self, requests: &[AgenticRequest], earliest: f64, speedup: f64) {
        let mut plays = Names::default();
        let mut sessions: HashMap<&str, (u32, u32), FxBuildHasher> = HashMap::default();
        for (at, request) in requests.iter().enumerate() {
            let ready = SimTime::ZERO + span(request.not_before_ms - earliest, speedup);
            let play = *plays.entry(&request.play_id).or_insert_with(|| {
                self.plays.push(Play {
                    name: request.play_id.as_str().into(),
                    nodes: Vec::new(),
                    first: ready,
                    left: 0,
                    lane: None,
                    ended: SimTime::ZERO,
                });
                number(self.plays.len() - 1)
            });
            let entry = &mut self.plays[play as usize];
            entry.nodes.push(number(at));
            entry.left += 1;
            if request.dependencies.is_empty() {
                entry.first = entry.first.min(ready);
            }
            let (session, turns) = sessions.entry(&request.session_id).or_insert_with(|| {
                self.sessions.push(request.session_id.as_str().into());
                (number(self.sessions.len() - 1), 0)
            });
            *turns += 1;
            self.nodes.push(Node {
                request_id: request.request_id.as_str().into(),
                session: *session,
                turn: *turns - 1,
                play,
                prompt: self.prompts.add(request.hash_ids.iter().copied(), request.input_tokens),
                output_tokens: request.output_tokens,
                priority: request.priority,
                strict_priority: request.strict_priority,
                policy_class: request.policy_class.clone(),
                ready,
                missing: number(request.dependencies.len()),
                waiters: Vec::new(),
            });
        }
    }

    fn add_edges(&mut self, requests: &[AgenticRequest], names: &Names<'_>, speedup: f64) -> Result<(), GraphError> {
        for (at, request) in requests.iter().enumerate() {
            for dependency in &request.dependencies {
                let Some(&other) = names.get(dependency.request_id.as_str()) else {
                    let (name, missing) = (request.request_id.clone(), dependency.request_id.clone());
                    return Err(GraphError::Unknown(name, missing));
                };
                if other as usize == at {
                    return Err(GraphError::Itself(request.request_id.clone()));
                }
                self.nodes[other as usize].waiters.push(Waiter {
                    node: number(at),
                    trigger: dependency.trigger,
                    delay: span(dependency.delay_ms, speedup),
                });
            }
        }
        Ok(())
    }

    /// Takes away what can be played, again and again; what is left is a ring or waits for one.
    fn check_cycles(&self) -> Result<(), GraphError> {
        let mut missing: Vec<u32> = self.nodes.iter().map(|node| node.missing).collect();
        let mut free: Vec<usize> = (0..missing.len()).filter(|&at| missing[at] == 0).collect();
        while let Some(at) = free.pop() {
            for waiter in &self.nodes[at].waiters {
                let left = &mut missing[waiter.node as usize];
                *left -= 1;
                if *left == 0 {
                    free.push(waiter.node as usize);
                }
            }
        }
        match missing.iter().position(|&left| left > 0) {
            Some(at) => Err(GraphError::Cycle(self.nodes[at].request_id.to_string())),
            None => Ok(()),
        }
    }

    /// Starts every play, or the first of each lane.
    fn begin(&mut self) {
        if self.lanes.is_empty() {
            (0..self.plays.len()).for_each(|play| self.start(play, None));
            return;
        }
        let lanes = self.lanes.len();
        for play in 0..self.plays.len() {
            self.plays[play].lane = Some(play % lanes);
            self.lanes[play % lanes].push_back(number(play));
        }
        for lane in 0..lanes {
            if let Some(play) = self.lanes[lane].pop_front() {
                self.start(play as usize, None);
            }
        }
    }

    /// Starts a play at its own time, or so that its earliest request is due at `at`.
    fn start(&mut self, play: usize, at: Option<SimTime>) {
        let first = self.plays[play].first;
        self.plays[play].first = at.unwrap_or(first);
        for node in self.plays[play].nodes.clone() {
            let entry = &mut self.nodes[node as usize];
            if let Some(at) = at {
                entry.ready = at + entry.ready.since(first);
            }
            if entry.missing == 0 {
                self.due.push(Reverse((entry.ready, node)));
            }
        }
    }

    fn trigger(&mut self, tag: u32, trigger: Trigger, now: SimTime) {
        let waiters = std::mem::take(&mut self.nodes[tag as usize].waiters);
        for waiter in waiters.iter().filter(|waiter| waiter.trigger == trigger) {
            let node = &mut self.nodes[waiter.node as usize];
            node.ready = node.ready.max(now + waiter.delay);
            node.missing -= 1;
            if node.missing == 0 {
                self.due.push(Reverse((node.ready, waiter.node)));
            }
        }
        self.nodes[tag as usize].waiters = waiters;
    }
}

impl Source for AgenticSource {
    fn next_at(&self) -> Option<SimTime> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    fn take(&mut self, now: SimTime) -> Option<Turn> {
        let &Reverse((at, tag)) = self.due.peek().filter(|Reverse((at, _))| *at <= now)?;
        self.due.pop();
        self.lifecycle.note(Event::Due, tag, at);
        let node = &self.nodes[tag as usize];
        Some(Turn {
            tag,
            session: node.session,
            turn: node.turn,
            arrival: at,
            input_tokens: node.prompt.tokens(),
            output_tokens: node.output_tokens,
            planned: None,
            priority: node.priority,
            strict_priority: node.strict_priority,
            policy_class: node.policy_class.clone(),
        })
    }

    fn dispatched(&mut self, tag: u32, now: SimTime) {
        self.lifecycle.note(Event::Dispatched, tag, now);
        self.trigger(tag, Trigger::Dispatch, now);
    }

    fn ended(&mut self, tag: u32, now: SimTime, _completed: bool) {
        self.ended += 1;
        self.lifecycle.note(Event::Ended, tag, now);
        self.trigger(tag, Trigger::Completion, now);
        let number = self.nodes[tag as usize].play;
        let play = &mut self.plays[number as usize];
        play.left -= 1;
        play.ended = now;
        if play.left == 0 {
            self.lifecycle.note(Event::PlayEnded, number, now);
        }
        if play.left == 0
            && let Some(lane) = play.lane
            && let Some(next) = self.lanes[lane].pop_front()
        {
            self.start(next as usize, Some(now));
        }
    }

    fn write_prompt(&self, tag: u32, prompt: &mut Vec<Token>) {
        self.prompts.write(self.nodes[tag as usize].prompt, prompt);
    }

    fn prompt(&self, tag: u32) -> Prompt {
        self.prompts.prompt(self.nodes[tag as usize].prompt)
    }

    fn is_drained(&self) -> bool {
        self.ended == self.nodes.len() as u64
    }

    fn total(&self) -> u64 {
        self.nodes.len() as u64
    }

    fn session_name(&self, tag: u32) -> String {
        self.sessions[self.nodes[tag as usize].session as usize].to_string()
    }

    fn request_name(&self, tag: u32) -> Option<&str> {
        Some(&self.nodes[tag as usize].request_id)
    }

    fn trajectories(&self) -> Option<Vec<Trajectory>> {
        let trajectory = |play: &Play| Trajectory {
            play: play.name.to_string(),
            started: play.first,
            ended: (play.left == 0).then_some(play.ended),
        };
        Some(self.plays.iter().map(trajectory).collect())
    }

    fn graph(&self) -> Option<GraphSummary> {
        Some(GraphSummary {
            origin: self.origin.clone(),
            digest: self.digest.clone(),
            block_size: self.prompts.block_tokens(),
            nodes: self.nodes.len() as u64,
            plays: self.plays.len() as u64,
            lifecycle_events: self.lifecycle.events,
            lifecycle_digest: self.lifecycle.hasher.finalize().to_hex().to_string(),
        })
    }

    fn play_name(&self, tag: u32) -> Option<&str> {
        Some(&self.plays[self.nodes[tag as usize].play as usize].name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: &str, waits_for: &[&str]) -> AgenticRequest {
        let wait = |other: &&str| Dependency {
            request_id: (*other).to_owned(),
            trigger: Trigger::Completion,
            delay_ms: 5.0,
        };
        AgenticRequest {
            request_id: name.to_owned(),
            hash_ids: vec![1],
            input_tokens: 4,
            output_tokens: 1,
            dependencies: waits_for.iter().map(wait).collect(),
            ..AgenticRequest::default()
        }
    }

    #[test]
    fn a_request_is_due_after_the_latest_of_its_dependencies() {
        let graph = [request("a", &[]), request("b", &[]), request("c", &["a", "b"])];
        let mut source = AgenticSource::new(&graph, 4, 1.0, None).unwrap();
        let first = [
            source.take(SimTime(0)),
            source.take(SimTime(0)),
            source.take(SimTime(0)),
        ];
        assert_eq!(first.map(|turn| turn.map(|turn| turn.tag)), [Some(0), Some(1), None]);
        source.ended(1, SimTime(7_000_000), true);
        assert_eq!(source.next_at(), None);
        source.ended(0, SimTime(9_000_000), true);
        assert_eq!(source.next_at(), Some(SimTime(14_000_000)));
    }

    #[test]
    fn digests_tell_graphs_and_runs_apart() {
        let graph = [request("a", &[]), request("b", &["a"])];
        let run = |graph: &[AgenticRequest], end: u64| {
            let mut source = AgenticSource::new(graph, 4, 1.0, None).unwrap();
            source.take(SimTime(0)).unwrap();
            source.ended(0, SimTime(end), true);
            source.graph().unwrap()
        };
        let (one, same, later) = (run(&graph, 5), run(&graph, 5), run(&graph, 6));
        assert_eq!(one, same);
        assert_eq!((one.lifecycle_events, one.nodes, one.plays), (2, 2, 1));
        assert_eq!(one.digest, later.digest);
        assert_ne!(one.lifecycle_digest, later.lifecycle_digest);
        let mut other = graph.clone();
        other[1].dependencies[0].delay_ms = 6.0;
        assert_ne!(one.digest, run(&other, 5).digest);
    }

    #[test]
    fn graphs_that_cannot_be_played_name_the_request() {
        let error = |graph: &[AgenticRequest]| AgenticSource::new(graph, 4, 1.0, None).unwrap_err();
        let ring = [request("a", &["b"]), request("b", &["a"])];
        assert_eq!(error(&ring), GraphError::Cycle("a".into()));
        assert_eq!(
            error(&[request("a", &["x"])]),
            GraphError::Unknown("a".into(), "x".into())
        );
        assert_eq!(error(&[request("a", &["a"])]), GraphError::Itself("a".into()));
        assert_eq!(
            error(&[request("a", &[]), request("a", &[])]),
            GraphError::Duplicate("a".into())
        );
    }
}
