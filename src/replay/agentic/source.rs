//! Plays a graph.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::engine::Semantics;
use crate::types::{Prompt, SimTime, Token, Tokens};

use super::super::held::HeldPrompt;
use super::super::prompt::{PromptRef, PromptStore};
use super::super::record::Terminal;
use super::super::source::{PlayFailure, Source, Trajectory, Turn};
use super::super::trace::{TraceError, spooling};
use super::graph::{AgenticRequest, Graph, GraphError, GraphOrigin, Trigger};
use super::ids::{Away, HashIds, IdStore};
use super::lifecycle::{End, Lifecycle, Named};

/// A graph and what happened to it, for the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphSummary {
    /// Where it comes from.
    pub origin: GraphOrigin,
    /// BLAKE3 of its canonical JSON: equal graphs have equal digests, here and with Dynamo 1.6.1.
    pub digest: String,
    /// Tokens per hash id.
    pub block_size: u32,
    /// Requests.
    pub nodes: u64,
    /// Plays.
    pub plays: u64,
    /// Requests that were sent out, ended, came to rest or were skipped, and plays that came to rest.
    pub lifecycle_events: u64,
    /// BLAKE3 of these events with their times: equal runs have equal digests.
    pub lifecycle_digest: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Waits for others, or for its time.
    Waiting,
    /// Sent out.
    Out,
    /// Ended.
    Ended,
    /// Its play failed before it was due.
    Skipped,
}

#[derive(Debug)]
struct Node {
    request_id: Box<str>,
    session: u32,
    turn: u32,
    play: u32,
    state: State,
    prompt: NodePrompt,
    output_tokens: u32,
    planned: Option<Tokens>,
    priority: i32,
    strict_priority: u32,
    policy_class: Option<Arc<str>>,
    /// Earliest time as known so far.
    ready: SimTime,
    /// Triggers still to come.
    missing: u32,
    /// It waits for nothing but its time.
    root: bool,
    /// Who waits for this one.
    waiters: Vec<Waiter>,
}

/// Where a request's prompt is.
#[derive(Debug, Clone, Copy)]
enum NodePrompt {
    Stored(PromptRef),
    /// Hash ids that are read when the request is due; tokens of the prompt.
    Away(Away, u32),
}

impl NodePrompt {
    fn tokens(self) -> u32 {
        match self {
            Self::Stored(prompt) => prompt.tokens(),
            Self::Away(_, tokens) => tokens,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Waiter {
    node: u32,
    trigger: Trigger,
    delay_ms: f64,
}

#[derive(Debug)]
struct Play {
    name: Box<str>,
    nodes: Vec<u32>,
    /// Earliest time of its roots.
    first: SimTime,
    /// When the first of its roots was sent out.
    started: Option<SimTime>,
    /// Requests that have neither ended nor been skipped.
    left: usize,
    on_lane: bool,
    ended: Option<SimTime>,
    failure: Option<(SimTime, u32, Terminal)>,
}

/// Plays a graph.
#[derive(Debug)]
pub struct AgenticSource {
    prompts: PromptStore,
    ids: IdStore,
    /// Prompts of requests in flight that were read when they were due.
    held: HashMap<u32, HeldPrompt, FxBuildHasher>,
    failure: Option<TraceError>,
    nodes: Vec<Node>,
    plays: Vec<Play>,
    sessions: Vec<Box<str>>,
    /// Next play for a lane without work.
    next_play: usize,
    due: BinaryHeap<Reverse<(SimTime, u32)>>,
    /// Requests that have neither ended nor been skipped.
    left: u64,
    rules: Semantics,
    origin: GraphOrigin,
    digest: String,
    lifecycle: Lifecycle,
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl AgenticSource {
    /// Plays `graph`. Times and delays are divided by `speedup`; the earliest time becomes 0. With `lanes` at most so many
    /// plays are under way.
    ///
    /// # Errors
    /// [`GraphError`] names the request.
    pub fn new(mut graph: Graph, speedup: f64, lanes: Option<usize>) -> Result<Self, GraphError> {
        if lanes == Some(0) {
            return Err(GraphError::NoLanes);
        }
        if graph.rules == Semantics::V1_6_1 {
            graph.sort();
        }
        graph.rescale(speedup);
        let waiters = waiters(&graph)?;
        let mut source = Self {
            prompts: PromptStore::new(graph.block_tokens),
            nodes: Vec::with_capacity(graph.requests.len()),
            plays: Vec::new(),
            sessions: Vec::new(),
            next_play: 0,
            due: BinaryHeap::new(),
            left: graph.requests.len() as u64,
            rules: graph.rules,
            digest: graph.digest()?,
            origin: graph.origin,
            ids: graph.ids,
            held: HashMap::default(),
            failure: None,
            lifecycle: Lifecycle::default(),
        };
        let ordinals = source.add_nodes(graph.requests, waiters);
        source.check_cycles()?;
        source.order_plays(&ordinals)?;
        source.prompts.seal();
        source.begin(lanes);
        Ok(source)
    }

    /// Returns the position that the trace gives to each play.
    fn add_nodes(&mut self, requests: Vec<AgenticRequest>, waiters: Vec<Vec<Waiter>>) -> Vec<Option<u64>> {
        let mut ordinals = Vec::new();
        let mut plays: HashMap<String, u32, FxBuildHasher> = HashMap::default();
        let mut sessions: HashMap<String, (u32, u32), FxBuildHasher> = HashMap::default();
        for (at, (request, waiters)) in requests.into_iter().zip(waiters).enumerate() {
            let ready = SimTime::of_ms(request.not_before_ms);
            let root = request.dependencies.is_empty();
            let play = *plays.entry(request.play_id).or_insert_with_key(|name| {
                self.plays.push(Play {
                    name: name.as_str().into(),
                    nodes: Vec::new(),
                    first: SimTime::MAX,
                    started: None,
                    left: 0,
                    on_lane: false,
                    ended: None,
                    failure: None,
                });
                ordinals.push(request.source_play_ordinal);
                number(self.plays.len() - 1)
            });
            let entry = &mut self.plays[play as usize];
            entry.nodes.push(number(at));
            entry.left += 1;
            if root {
                entry.first = entry.first.min(ready);
            }
            let (session, turns) = sessions.entry(request.session_id).or_insert_with_key(|name| {
                self.sessions.push(name.as_str().into());
                (number(self.sessions.len() - 1), 0)
            });
            *turns += 1;
            self.nodes.push(Node {
                request_id: request.request_id.into(),
                session: *session,
                turn: *turns - 1,
                play,
                state: State::Waiting,
                prompt: match request.hash_ids {
                    HashIds::Here(ids) => NodePrompt::Stored(self.prompts.add(ids, request.input_tokens)),
                    HashIds::Away(place) => NodePrompt::Away(place, request.input_tokens),
                },
                output_tokens: request.output_tokens,
                planned: request.planned,
                priority: request.priority,
                strict_priority: request.strict_priority,
                policy_class: request.policy_class,
                ready,
                missing: number(request.dependencies.len()),
                root,
                waiters,
            });
        }
        ordinals
    }

    /// Plays in the order in which lanes take them: by the positions that the trace gives, else by name; with the rules of
    /// 1.4.2 as they are.
    fn order_plays(&mut self, ordinals: &[Option<u64>]) -> Result<(), GraphError> {
        let mut order: Vec<usize> = (0..self.plays.len()).collect();
        if ordinals.iter().any(Option::is_some) {
            order.sort_by_key(|&play| ordinals[play]);
            for (expected, &play) in (0..).zip(&order) {
                if ordinals[play] != Some(expected) {
                    let found = ordinals[play].map_or_else(|| "missing".to_owned(), |found| found.to_string());
                    return Err(GraphError::Ordinal(self.plays[play].name.to_string(), found));
                }
            }
        } else if self.rules == Semantics::V1_6_1 {
            order.sort_by(|&a, &b| self.plays[a].name.cmp(&self.plays[b].name));
        }
        let mut places = vec![0; order.len()];
        for (place, &play) in (0..).zip(&order) {
            places[play] = place;
        }
        for node in &mut self.nodes {
            node.play = places[node.play as usize];
        }
        let mut plays: Vec<Option<Play>> = std::mem::take(&mut self.plays).into_iter().map(Some).collect();
        self.plays = order.iter().filter_map(|&play| plays[play].take()).collect();
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

    /// Starts every play, or one per lane.
    fn begin(&mut self, lanes: Option<usize>) {
        match lanes {
            None => (0..self.plays.len()).for_each(|play| self.start(play)),
            Some(lanes) => (0..lanes).for_each(|_| self.fill_lane(SimTime::ZERO)),
        }
    }

    /// A lane without work takes the next play, whose first request is due at `now`.
    fn fill_lane(&mut self, now: SimTime) {
        let Some(play) = self.plays.get_mut(self.next_play) else {
            return;
        };
        play.on_lane = true;
        let first = std::mem::replace(&mut play.first, now);
        for &node in &play.nodes {
            let ready = &mut self.nodes[node as usize].ready;
            *ready = now.after_ms(ready.ms_since(first));
        }
        self.next_play += 1;
        self.start(self.next_play - 1);
    }

    fn start(&mut self, play: usize) {
        for &node in &self.plays[play].nodes {
            let entry = &self.nodes[node as usize];
            if entry.root {
                self.due.push(Reverse((entry.ready, node)));
            }
        }
    }

    /// Reads the prompt of a request that is due, where it is away.
    fn hold(&mut self, tag: u32) -> Result<(), TraceError> {
        let NodePrompt::Away(place, tokens) = self.nodes[tag as usize].prompt else {
            return Ok(());
        };
        let ids = self.ids.fetch(place).map_err(spooling)?;
        let prompt = HeldPrompt::new(&ids, tokens, self.prompts.block_tokens());
        self.held.insert(tag, prompt);
        Ok(())
    }

    fn trigger(&mut self, tag: u32, trigger: Trigger, now: SimTime) {
        let waiters = std::mem::take(&mut self.nodes[tag as usize].waiters);
        for waiter in waiters.iter().filter(|waiter| waiter.trigger == trigger) {
            let node = &mut self.nodes[waiter.node as usize];
            if node.state != State::Waiting {
                continue;
            }
            node.ready = node.ready.max(now.after_ms(waiter.delay_ms));
            node.missing -= 1;
            if node.missing == 0 {
                self.due.push(Reverse((node.ready, waiter.node)));
            }
        }
        self.nodes[tag as usize].waiters = waiters;
    }

    /// Takes what was not sent out away from a play that failed.
    fn skip_rest(&mut self, play: u32) -> Vec<u32> {
        let play = &mut self.plays[play as usize];
        let waits = |node: &&u32| self.nodes[**node as usize].state == State::Waiting;
        let skipped: Vec<u32> = play.nodes.iter().filter(waits).copied().collect();
        for &node in &skipped {
            self.nodes[node as usize].state = State::Skipped;
        }
        play.left -= skipped.len();
        self.left -= skipped.len() as u64;
        let nodes = &self.nodes;
        self.due
            .retain(|Reverse((_, node))| nodes[*node as usize].state == State::Waiting);
        skipped
    }
}

/// Who waits for each request.
fn waiters(graph: &Graph) -> Result<Vec<Vec<Waiter>>, GraphError> {
    let names = graph.names()?;
    let mut waiters = vec![Vec::new(); graph.requests.len()];
    for (at, request) in graph.requests.iter().enumerate() {
        for dependency in &request.dependencies {
            let other = graph.resolve(&names, at, dependency)?;
            waiters[other as usize].push(Waiter {
                node: number(at),
                trigger: dependency.trigger,
                delay_ms: dependency.delay_ms,
            });
        }
    }
    Ok(waiters)
}

impl Source for AgenticSource {
    fn next_at(&self) -> Option<SimTime> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    fn take(&mut self, now: SimTime) -> Option<Turn> {
        let &Reverse((at, tag)) = self.due.peek().filter(|Reverse((at, _))| *at <= now)?;
        if let Err(error) = self.hold(tag) {
            // Nothing more comes; the failure says why.
            self.due.clear();
            self.failure = Some(error);
            return None;
        }
        self.due.pop();
        let node = &mut self.nodes[tag as usize];
        node.state = State::Out;
        let turn = Turn {
            tag,
            session: node.session,
            turn: node.turn,
            arrival: at,
            input_tokens: node.prompt.tokens(),
            output_tokens: node.output_tokens,
            planned: node.planned.clone(),
            priority: node.priority,
            strict_priority: node.strict_priority,
            policy_class: node.policy_class.clone(),
        };
        if node.root {
            self.plays[node.play as usize].started.get_or_insert(now);
        }
        let (nodes, plays) = (&self.nodes, &self.plays);
        self.lifecycle.dispatched(tag, now, |node| named(nodes, plays, node));
        self.trigger(tag, Trigger::Dispatch, now);
        Some(turn)
    }

    fn ended(&mut self, tag: u32, now: SimTime, terminal: Terminal) {
        self.left -= 1;
        self.held.remove(&tag);
        let node = &mut self.nodes[tag as usize];
        node.state = State::Ended;
        let number = node.play;
        let play = &mut self.plays[number as usize];
        play.left -= 1;
        play.ended = Some(now);
        let mut skipped = Vec::new();
        if terminal == Terminal::Completed || self.rules == Semantics::V1_4_2 {
            if play.failure.is_none() {
                self.trigger(tag, Trigger::Completion, now);
            }
        } else {
            let failure = (now, tag, terminal);
            let first = play.failure.is_none_or(|(at, node, _)| (now, tag) < (at, node));
            if first {
                play.failure = Some(failure);
            }
            skipped = self.skip_rest(number);
        }
        let play = &self.plays[number as usize];
        let play_over = play.left == 0;
        let on_lane = play.on_lane;
        let end = End {
            node: tag,
            status: terminal,
            skipped,
            play_over,
        };
        let (nodes, plays) = (&self.nodes, &self.plays);
        self.lifecycle.ended(end, now, |node| named(nodes, plays, node));
        if play_over && on_lane {
            self.fill_lane(now);
        }
    }

    fn write_prompt(&self, tag: u32, prompt: &mut Vec<Token>) {
        match (self.nodes[tag as usize].prompt, self.held.get(&tag)) {
            (NodePrompt::Stored(stored), _) => self.prompts.write(stored, prompt),
            (NodePrompt::Away(..), Some(held)) => held.write(prompt),
            (NodePrompt::Away(..), None) => {}
        }
    }

    fn prompt(&self, tag: u32) -> Prompt {
        match (self.nodes[tag as usize].prompt, self.held.get(&tag)) {
            (NodePrompt::Stored(stored), _) => self.prompts.prompt(stored),
            (NodePrompt::Away(..), Some(held)) => held.prompt(),
            (NodePrompt::Away(..), None) => Vec::new().into(),
        }
    }

    fn failure(&mut self) -> Option<TraceError> {
        self.failure.take()
    }

    fn is_drained(&self) -> bool {
        self.left == 0
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
            started: play.started,
            ended: play.ended,
            over: play.left == 0,
            failure: play.failure.map(|(at, node, status)| PlayFailure {
                at,
                request_id: self.nodes[node as usize].request_id.to_string(),
                status,
            }),
        };
        Some(self.plays.iter().map(trajectory).collect())
    }

    fn graph(&self) -> Option<GraphSummary> {
        let (lifecycle_events, lifecycle_digest) = self.lifecycle.summary(|node| named(&self.nodes, &self.plays, node));
        Some(GraphSummary {
            origin: self.origin.clone(),
            digest: self.digest.clone(),
            block_size: self.prompts.block_tokens(),
            nodes: self.nodes.len() as u64,
            plays: self.plays.len() as u64,
            lifecycle_events,
            lifecycle_digest,
        })
    }

    fn play_name(&self, tag: u32) -> Option<&str> {
        Some(&self.plays[self.nodes[tag as usize].play as usize].name)
    }
}

fn named<'a>(nodes: &'a [Node], plays: &'a [Play], node: u32) -> Named<'a> {
    let node = &nodes[node as usize];
    Named {
        play: &plays[node.play as usize].name,
        request: &node.request_id,
    }
}

#[cfg(test)]
mod tests {
    use super::super::graph::{Dependency, Relation};
    use super::super::ids::tests::Shared;
    use super::*;

    fn request(name: &str, waits_for: &[&str]) -> AgenticRequest {
        let wait = |other: &&str| Dependency {
            request_id: (*other).to_owned(),
            trigger: Trigger::Completion,
            delay_ms: 5.0,
            relation: Relation::Sequence,
        };
        AgenticRequest {
            request_id: name.to_owned(),
            hash_ids: vec![1].into(),
            input_tokens: 4,
            output_tokens: 1,
            dependencies: waits_for.iter().map(wait).collect(),
            ..AgenticRequest::default()
        }
    }

    fn source(requests: &[AgenticRequest], lanes: Option<usize>) -> Result<AgenticSource, GraphError> {
        let graph = Graph {
            requests: requests.to_vec(),
            block_tokens: 4,
            origin: GraphOrigin::default(),
            rules: Semantics::V1_6_1,
            ids: IdStore::default(),
        };
        AgenticSource::new(graph, 1.0, lanes)
    }

    #[test]
    fn a_request_is_due_after_the_latest_of_its_dependencies() {
        let graph = [request("a", &[]), request("b", &[]), request("c", &["a", "b"])];
        let mut source = source(&graph, None).unwrap();
        let first = [
            source.take(SimTime::of_nanos(0)),
            source.take(SimTime::of_nanos(0)),
            source.take(SimTime::of_nanos(0)),
        ];
        assert_eq!(first.map(|turn| turn.map(|turn| turn.tag)), [Some(0), Some(1), None]);
        source.ended(1, SimTime::of_nanos(7_000_000), Terminal::Completed);
        assert_eq!(source.next_at(), None);
        source.ended(0, SimTime::of_nanos(9_000_000), Terminal::Completed);
        assert_eq!(source.next_at(), Some(SimTime::of_nanos(14_000_000)));
    }

    #[test]
    fn a_rejected_request_ends_its_play_and_frees_its_lane() {
        let play = |play: &str, request: AgenticRequest| AgenticRequest {
            play_id: play.into(),
            ..request
        };
        let graph = [
            play("p", request("a", &[])),
            play("p", request("b", &["a"])),
            play("q", request("c", &[])),
        ];
        let mut source = source(&graph, Some(1)).unwrap();
        assert_eq!(source.take(SimTime::of_nanos(0)).map(|turn| turn.tag), Some(0));
        assert_eq!(source.next_at(), None);
        source.ended(0, SimTime::of_nanos(3), Terminal::Rejected);
        assert_eq!(source.take(SimTime::of_nanos(3)).map(|turn| turn.tag), Some(2));
        source.ended(2, SimTime::of_nanos(9), Terminal::Completed);
        assert!(source.is_drained());
        let plays = source.trajectories().unwrap();
        let failed = plays[0].failure.as_ref().map(|failure| failure.request_id.as_str());
        assert_eq!((failed, plays[1].failure.is_none()), (Some("a"), true));
        // Two sent out, ended and at rest, one skipped, two plays at rest.
        assert_eq!(source.graph().unwrap().lifecycle_events, 9);
    }

    #[test]
    fn digests_tell_graphs_and_runs_apart() {
        let graph = [request("a", &[]), request("b", &["a"])];
        let run = |graph: &[AgenticRequest], end: u64| {
            let mut source = source(graph, None).unwrap();
            source.take(SimTime::of_nanos(0)).unwrap();
            source.ended(0, SimTime::of_nanos(end), Terminal::Completed);
            source.graph().unwrap()
        };
        let (one, same, later) = (run(&graph, 5), run(&graph, 5), run(&graph, 6));
        assert_eq!(one, same);
        assert_eq!((one.lifecycle_events, one.nodes, one.plays), (3, 2, 1));
        assert_eq!(one.digest, later.digest);
        assert_ne!(one.lifecycle_digest, later.lifecycle_digest);
        let mut other = graph.clone();
        other[1].dependencies[0].delay_ms = 6.0;
        assert_ne!(one.digest, run(&other, 5).digest);
    }

    /// A small graph whose hash ids are in `file`.
    fn away(file: &Shared) -> Graph {
        let mut sink = file.sink();
        let mut requests = vec![request("a", &[]), request("b", &["a"])];
        for (request, ids) in requests.iter_mut().zip([vec![1, 2, 1 << 40], vec![1, 2, 7]]) {
            request.input_tokens = 11;
            request.hash_ids = sink.put(ids).unwrap();
        }
        Graph {
            requests,
            block_tokens: 4,
            origin: GraphOrigin::default(),
            rules: Semantics::V1_6_1,
            ids: sink.finish().unwrap(),
        }
    }

    #[test]
    fn a_graph_whose_prompts_are_away_has_the_digest_and_the_blocks_of_one_that_is_here() {
        let file = Shared::default();
        let graph = away(&file);
        let mut here = graph.clone();
        for request in &mut here.requests {
            request.hash_ids = graph.ids.get(&request.hash_ids).unwrap().into_owned().into();
        }
        let mut away = AgenticSource::new(graph, 1.0, None).unwrap();
        let mut here = AgenticSource::new(here, 1.0, None).unwrap();
        assert_eq!(away.graph(), here.graph());
        let mut prompts = Vec::new();
        for now in [SimTime::ZERO, SimTime::of_ms(9.0)] {
            let tag = away.take(now).unwrap().tag;
            assert_eq!(here.take(now).unwrap().tag, tag);
            let prompt = away.prompt(tag).to_vec();
            // Ids that fit a token stand for themselves in both.
            assert_eq!(prompt[..8], here.prompt(tag).to_vec()[..8]);
            assert_eq!(prompt.len(), 11);
            prompts.push(prompt);
            for source in [&mut away, &mut here] {
                source.ended(tag, SimTime::of_ms(1.0), Terminal::Completed);
            }
            assert!(away.held.is_empty());
        }
        assert_eq!(prompts[0][..8], prompts[1][..8]);
        assert_ne!(prompts[0][8..], prompts[1][8..]);
    }

    #[test]
    fn prompts_that_cannot_be_read_back_are_an_error() {
        let file = Shared::default();
        let graph = away(&file);
        let mut source = AgenticSource::new(graph.clone(), 1.0, None).unwrap();
        file.clear();
        assert!(source.take(SimTime::ZERO).is_none());
        assert_eq!((source.next_at(), source.failure().is_some()), (None, true));
        assert!(matches!(AgenticSource::new(graph, 1.0, None), Err(GraphError::Lost(_))));
    }

    #[test]
    fn graphs_that_cannot_be_played_name_the_request() {
        let error = |graph: &[AgenticRequest]| source(graph, None).unwrap_err();
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
