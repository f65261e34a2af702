//! Plays a graph.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::engine::Semantics;
use crate::types::{Prompt, SimTime, Token};

use super::super::held::HeldPrompt;
use super::super::prompt::PromptStore;
use super::super::record::{AgenticIdentity, Terminal};
use super::super::source::{Source, Trajectory, Turn};
use super::super::trace::{TraceError, spooling};
use super::graph::{Graph, GraphError, GraphOrigin, Trigger};
use super::ids::IdStore;
use super::lifecycle::{End, Lifecycle};
use super::plays::{NodePrompt, Plays, State};

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

/// Plays a graph.
#[derive(Debug)]
pub struct AgenticSource {
    prompts: PromptStore,
    ids: IdStore,
    /// Prompts of requests in flight that were read when they were due.
    held: HashMap<u32, HeldPrompt, FxBuildHasher>,
    failure: Option<TraceError>,
    plays: Plays,
    /// Next play for a lane without work.
    next_play: u32,
    due: BinaryHeap<Reverse<(SimTime, u32)>>,
    /// Requests that have neither ended nor been skipped.
    left: u64,
    rules: Semantics,
    origin: GraphOrigin,
    digest: String,
    lifecycle: Lifecycle,
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
        let digest = graph.digest()?;
        let mut prompts = PromptStore::new(graph.block_tokens);
        let plays = Plays::take(&mut graph, &mut prompts)?;
        prompts.seal();
        let mut source = Self {
            prompts,
            left: plays.requests(),
            plays,
            next_play: 0,
            due: BinaryHeap::new(),
            rules: graph.rules,
            digest,
            origin: graph.origin,
            ids: graph.ids,
            held: HashMap::default(),
            failure: None,
            lifecycle: Lifecycle::default(),
        };
        source.begin(lanes);
        Ok(source)
    }

    /// Starts every play, or one per lane.
    fn begin(&mut self, lanes: Option<usize>) {
        let all = u32::try_from(self.plays.len()).unwrap_or(u32::MAX);
        match lanes.map(|lanes| u32::try_from(lanes).unwrap_or(u32::MAX)) {
            None => (0..all).for_each(|play| self.start(play)),
            Some(lanes) => (0..lanes.min(all)).for_each(|lane| self.fill_lane(lane, SimTime::ZERO)),
        }
    }

    /// A lane without work takes the next play, whose first request is due at `now`.
    fn fill_lane(&mut self, lane: u32, now: SimTime) {
        let play = self.next_play;
        if (play as usize) < self.plays.len() {
            self.plays.put_on_lane(play, lane, now);
            self.next_play += 1;
            self.start(play);
        }
    }

    fn start(&mut self, play: u32) {
        self.due.extend(self.plays.roots(play).map(Reverse));
    }

    /// Reads the prompt of a request that is due, where it is away.
    fn hold(&mut self, tag: u32) -> Result<(), TraceError> {
        let NodePrompt::Away(place, tokens) = self.plays.node(tag).prompt else {
            return Ok(());
        };
        let ids = self.ids.fetch(place).map_err(spooling)?;
        let prompt = HeldPrompt::new(&ids, tokens, self.prompts.block_tokens());
        self.held.insert(tag, prompt);
        Ok(())
    }

    fn trigger(&mut self, tag: u32, trigger: Trigger, now: SimTime) {
        let waiters = std::mem::take(&mut self.plays.node_mut(tag).waiters);
        for waiter in waiters.iter().filter(|waiter| waiter.trigger == trigger) {
            let node = self.plays.node_mut(waiter.node);
            if node.state != State::Waiting {
                continue;
            }
            node.ready = node.ready.max(now.after_ms(waiter.delay_ms));
            node.missing -= 1;
            if node.missing == 0 {
                self.due.push(Reverse((node.ready, waiter.node)));
            }
        }
        self.plays.node_mut(tag).waiters = waiters;
    }

    /// Takes what was not sent out away from a play that failed.
    fn skip_rest(&mut self, play: u32) -> Vec<u32> {
        let skipped = self.plays.skip_rest(play);
        self.left -= skipped.len() as u64;
        let plays = &self.plays;
        self.due
            .retain(|Reverse((_, node))| plays.node(*node).state == State::Waiting);
        skipped
    }
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
        let node = self.plays.node_mut(tag);
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
        let play = node.root.then_some(node.play);
        if let Some(play) = play {
            self.plays.play_mut(play).started.get_or_insert(now);
        }
        let plays = &self.plays;
        self.lifecycle.dispatched(tag, now, |node| plays.named(node));
        self.trigger(tag, Trigger::Dispatch, now);
        Some(turn)
    }

    fn ended(&mut self, tag: u32, now: SimTime, terminal: Terminal) {
        self.left -= 1;
        self.held.remove(&tag);
        let node = self.plays.node_mut(tag);
        node.state = State::Ended;
        let number = node.play;
        let play = self.plays.play_mut(number);
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
        let play = self.plays.play(number);
        let play_over = play.left == 0;
        let lane = play.lane.filter(|_| play_over);
        let end = End {
            node: tag,
            status: terminal,
            skipped,
            play_over,
        };
        let plays = &self.plays;
        self.lifecycle.ended(end, now, |node| plays.named(node));
        if let Some(lane) = lane {
            self.fill_lane(lane, now);
        }
    }

    fn write_prompt(&self, tag: u32, prompt: &mut Vec<Token>) {
        match (self.plays.node(tag).prompt, self.held.get(&tag)) {
            (NodePrompt::Stored(stored), _) => self.prompts.write(stored, prompt),
            (NodePrompt::Away(..), Some(held)) => held.write(prompt),
            (NodePrompt::Away(..), None) => {}
        }
    }

    fn prompt(&self, tag: u32) -> Prompt {
        match (self.plays.node(tag).prompt, self.held.get(&tag)) {
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
        self.plays.requests()
    }

    fn session_name(&self, tag: u32) -> String {
        self.plays.session_name(tag).to_owned()
    }

    fn request_name(&self, tag: u32) -> Option<&str> {
        Some(&self.plays.node(tag).request_id)
    }

    fn trajectories(&self) -> Option<Vec<Trajectory>> {
        Some(self.plays.trajectories())
    }

    fn graph(&self) -> Option<GraphSummary> {
        let (lifecycle_events, lifecycle_digest) = self.lifecycle.summary(|node| self.plays.named(node));
        Some(GraphSummary {
            origin: self.origin.clone(),
            digest: self.digest.clone(),
            block_size: self.prompts.block_tokens(),
            nodes: self.plays.requests(),
            plays: self.plays.len() as u64,
            lifecycle_events,
            lifecycle_digest,
        })
    }

    fn play_name(&self, tag: u32) -> Option<&str> {
        Some(self.plays.play_name(tag))
    }

    fn identity(&self, tag: u32) -> Option<AgenticIdentity> {
        (self.rules == Semantics::V1_6_1).then(|| self.plays.identity(tag))
    }
}

#[cfg(test)]
mod tests {
    use super::super::graph::{AgenticRequest, Dependency, Place, Relation};
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
    fn graphs_that_cannot_be_played_name_line_field_and_request() {
        let said = |mut graph: Vec<AgenticRequest>| {
            for (line, request) in (2..).zip(&mut graph) {
                request.place = Place { file: "t".into(), line };
            }
            source(&graph, None).unwrap_err().to_string()
        };
        let other_play = AgenticRequest {
            play_id: "q".into(),
            ..request("b", &["a"])
        };
        for (graph, expected) in [
            (
                vec![request("a", &["b"]), request("b", &["a"])],
                "t, line 2: request a waits for itself through others (a cycle); expected dependencies",
            ),
            (
                vec![request("b", &[]), request("a", &["x"])],
                "t, line 3: dependencies of request a names x, expected the request_id of a line of this trace",
            ),
            (
                vec![request("a", &["a"])],
                "t, line 2: dependencies of request a names the request itself",
            ),
            (
                vec![request("a", &[]), request("a", &[])],
                "t, line 3: request_id is a, as in t, line 2; expected a name of its own",
            ),
            (
                vec![request("a", &[]), other_play],
                "t, line 3: dependencies of request b names a, which is in another play",
            ),
            (
                vec![AgenticRequest {
                    source_play_ordinal: Some(1),
                    ..request("a", &[])
                }],
                "t, line 2: source_play_ordinal of play  is 1",
            ),
            (
                vec![
                    AgenticRequest {
                        source_play_ordinal: Some(0),
                        ..request("a", &[])
                    },
                    request("b", &["a"]),
                ],
                "t, line 3: source_play_ordinal of play  is missing, but 0 in t, line 2",
            ),
        ] {
            let found = said(graph);
            assert!(found.starts_with(expected), "{found}");
        }
        let unplaced = source(&[request("a", &["a"])], None).unwrap_err();
        assert_eq!(unplaced, GraphError::Itself("dependencies", "a".into()));
    }
}
