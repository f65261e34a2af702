//! The requests of a graph by the plays and sessions they belong to.

use std::sync::Arc;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::engine::Semantics;
use crate::types::{SimTime, Tokens};

use super::super::prompt::{PromptRef, PromptStore};
use super::super::record::{AgenticIdentity, Terminal};
use super::super::source::{PlayFailure, Trajectory};
use super::graph::{AgenticRequest, Graph, GraphError, Place, Relation, Trigger};
use super::ids::{Away, HashIds};
use super::lifecycle::Named;

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Waits for others, or for its time.
    Waiting,
    /// Sent out.
    Out,
    /// Ended.
    Ended,
    /// Its play failed before it was due.
    Skipped,
}

/// A request.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) request_id: Box<str>,
    pub(super) session: u32,
    pub(super) turn: u32,
    pub(super) play: u32,
    pub(super) state: State,
    pub(super) prompt: NodePrompt,
    pub(super) output_tokens: u32,
    pub(super) planned: Option<Tokens>,
    pub(super) priority: i32,
    pub(super) strict_priority: u32,
    pub(super) policy_class: Option<Arc<str>>,
    /// Earliest time as known so far.
    pub(super) ready: SimTime,
    /// Triggers still to come.
    pub(super) missing: u32,
    /// It waits for nothing but its time.
    pub(super) root: bool,
    /// The first request that started its session.
    parent: Option<u32>,
    /// Who waits for this one.
    pub(super) waiters: Vec<Waiter>,
}

/// Where a request's prompt is.
#[derive(Debug, Clone, Copy)]
pub(super) enum NodePrompt {
    /// In the store of prompts.
    Stored(PromptRef),
    /// Hash ids that are read when the request is due; tokens of the prompt.
    Away(Away, u32),
}

impl NodePrompt {
    pub(super) fn tokens(self) -> u32 {
        match self {
            Self::Stored(prompt) => prompt.tokens(),
            Self::Away(_, tokens) => tokens,
        }
    }
}

/// A request that waits for another.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiter {
    pub(super) node: u32,
    pub(super) trigger: Trigger,
    pub(super) delay_ms: f64,
}

/// An independent part of the graph.
#[derive(Debug)]
pub(super) struct Play {
    name: Box<str>,
    pub(super) nodes: Vec<u32>,
    /// Earliest time of its roots.
    pub(super) first: SimTime,
    /// When the first of its roots was sent out.
    pub(super) started: Option<SimTime>,
    /// Requests that have neither ended nor been skipped.
    pub(super) left: usize,
    pub(super) lane: Option<u32>,
    pub(super) ended: Option<SimTime>,
    pub(super) failure: Option<(SimTime, u32, Terminal)>,
    /// Requests that wait for nobody.
    roots: u32,
    /// The last of them in the order of requests.
    root: u32,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Plays {
    nodes: Vec<Node>,
    list: Vec<Play>,
    sessions: Vec<Box<str>>,
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl Plays {
    /// The requests of `graph`, which are taken out of it; their prompts go to `prompts`.
    ///
    /// # Errors
    /// [`GraphError`] names the request that cannot be played.
    pub(super) fn take(graph: &mut Graph, prompts: &mut PromptStore) -> Result<Self, GraphError> {
        let links = links(graph)?;
        check_cycles(graph, &links)?;
        let mut plays = Self::default();
        let requests = std::mem::take(&mut graph.requests);
        let ordinals = plays.add(requests, links, prompts)?;
        plays.order(&ordinals, graph.rules)?;
        Ok(plays)
    }

    /// Returns the position that the trace gives to each play, and where it does.
    ///
    /// # Errors
    /// [`GraphError::Ordinals`].
    fn add(
        &mut self,
        requests: Vec<AgenticRequest>,
        links: Links,
        prompts: &mut PromptStore,
    ) -> Result<Vec<(Option<u64>, Place)>, GraphError> {
        let mut ordinals = Vec::new();
        let mut plays: HashMap<String, u32, FxBuildHasher> = HashMap::default();
        let mut sessions: HashMap<String, (u32, u32), FxBuildHasher> = HashMap::default();
        let links = links.waiters.into_iter().zip(links.parents);
        for ((at, request), (waiters, parent)) in (0..).zip(requests).zip(links) {
            let ready = SimTime::of_ms(request.not_before_ms);
            let root = request.dependencies.is_empty();
            let play = *plays.entry(request.play_id).or_insert_with_key(|name| {
                self.list.push(Play::new(name));
                ordinals.push((request.source_play_ordinal, request.place.clone()));
                number(self.list.len() - 1)
            });
            let (ordinal, first) = &ordinals[play as usize];
            if *ordinal != request.source_play_ordinal {
                let name = self.list[play as usize].name.to_string();
                let said =
                    |ordinal: Option<u64>| ordinal.map_or_else(|| "missing".to_owned(), |ordinal| ordinal.to_string());
                let (found, before) = (said(request.source_play_ordinal), said(*ordinal));
                return Err(GraphError::Ordinals(name, found, before, first.clone()).at(&request.place));
            }
            self.list[play as usize].join(at, root, ready);
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
                    HashIds::Here(ids) => NodePrompt::Stored(prompts.add(ids, request.input_tokens)),
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
                parent,
                waiters,
            });
        }
        Ok(ordinals)
    }

    /// Plays in the order in which lanes take them: by the positions that the trace gives, else by name; with the rules of
    /// 1.4.2 as they are.
    fn order(&mut self, ordinals: &[(Option<u64>, Place)], rules: Semantics) -> Result<(), GraphError> {
        let mut order: Vec<usize> = (0..self.list.len()).collect();
        if ordinals.iter().any(|(ordinal, _)| ordinal.is_some()) {
            order.sort_by_key(|&play| ordinals[play].0);
            for (expected, &play) in (0..).zip(&order) {
                let (found, place) = &ordinals[play];
                if *found != Some(expected) {
                    let found = found.map_or_else(|| "missing".to_owned(), |found| found.to_string());
                    return Err(GraphError::Ordinal(self.list[play].name.to_string(), found).at(place));
                }
            }
        } else if rules == Semantics::V1_6_1 {
            order.sort_by(|&a, &b| self.list[a].name.cmp(&self.list[b].name));
        }
        let mut places = vec![0; order.len()];
        for (place, &play) in (0..).zip(&order) {
            places[play] = place;
        }
        for node in &mut self.nodes {
            node.play = places[node.play as usize];
        }
        let mut plays: Vec<Option<Play>> = std::mem::take(&mut self.list).into_iter().map(Some).collect();
        self.list = order.iter().filter_map(|&play| plays[play].take()).collect();
        Ok(())
    }

    pub(super) fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    pub(super) fn node_mut(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }

    /// Requests in all.
    pub(super) fn requests(&self) -> u64 {
        self.nodes.len() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn play(&self, at: u32) -> &Play {
        &self.list[at as usize]
    }

    pub(super) fn play_mut(&mut self, at: u32) -> &mut Play {
        &mut self.list[at as usize]
    }

    /// Gives a play to a lane, whose first request is due at `now`.
    pub(super) fn put_on_lane(&mut self, play: u32, lane: u32, now: SimTime) {
        let play = &mut self.list[play as usize];
        play.lane = Some(lane);
        let first = std::mem::replace(&mut play.first, now);
        for &node in &play.nodes {
            let ready = &mut self.nodes[node as usize].ready;
            *ready = now.after_ms(ready.ms_since(first));
        }
    }

    /// Requests that wait for nobody, and when they are due.
    pub(super) fn roots(&self, play: u32) -> impl Iterator<Item = (SimTime, u32)> {
        let nodes = self.play(play).nodes.iter();
        nodes
            .filter(|&&node| self.node(node).root)
            .map(|&node| (self.node(node).ready, node))
    }

    /// Takes what was not sent out away from a play that failed.
    pub(super) fn skip_rest(&mut self, play: u32) -> Vec<u32> {
        let play = &mut self.list[play as usize];
        let waits = |node: &&u32| self.nodes[**node as usize].state == State::Waiting;
        let skipped: Vec<u32> = play.nodes.iter().filter(waits).copied().collect();
        for &node in &skipped {
            self.nodes[node as usize].state = State::Skipped;
        }
        play.left -= skipped.len();
        skipped
    }

    pub(super) fn session_name(&self, node: u32) -> &str {
        &self.sessions[self.node(node).session as usize]
    }

    pub(super) fn play_name(&self, node: u32) -> &str {
        &self.play(self.node(node).play).name
    }

    pub(super) fn named(&self, node: u32) -> Named<'_> {
        Named {
            play: self.play_name(node),
            request: &self.node(node).request_id,
        }
    }

    /// The place of a request in the graph, for its record.
    pub(super) fn identity(&self, node: u32) -> AgenticIdentity {
        let name = |node: u32| self.node(node).request_id.to_string();
        let play = self.play(self.node(node).play);
        AgenticIdentity {
            request_id: name(node),
            play_id: play.name.to_string(),
            conversation_id: self.session_name(node).to_owned(),
            lane_id: play.lane.map(|lane| format!("lane:{lane}")),
            root_id: (play.roots == 1).then(|| name(play.root)),
            parent_id: self.node(node).parent.map(name),
        }
    }

    /// What became of each play.
    pub(super) fn trajectories(&self) -> Vec<Trajectory> {
        let trajectory = |play: &Play| Trajectory {
            play: play.name.to_string(),
            started: play.started,
            ended: play.ended,
            over: play.left == 0,
            failure: play.failure.map(|(at, node, status)| PlayFailure {
                at,
                request_id: self.node(node).request_id.to_string(),
                status,
            }),
        };
        self.list.iter().map(trajectory).collect()
    }
}

impl Play {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            nodes: Vec::new(),
            first: SimTime::MAX,
            started: None,
            left: 0,
            lane: None,
            ended: None,
            failure: None,
            roots: 0,
            root: 0,
        }
    }

    /// Takes in a request that is due at `ready` where it is a root.
    fn join(&mut self, node: u32, root: bool, ready: SimTime) {
        self.nodes.push(node);
        self.left += 1;
        if root {
            self.first = self.first.min(ready);
            self.roots += 1;
            self.root = node;
        }
    }
}

/// Dependencies from the other end.
struct Links {
    /// Who waits for each request.
    waiters: Vec<Vec<Waiter>>,
    /// The first request that started the session of each, where one did.
    parents: Vec<Option<u32>>,
}

fn links(graph: &Graph) -> Result<Links, GraphError> {
    let names = graph.names()?;
    let mut waiters = vec![Vec::new(); graph.requests.len()];
    let mut parents = vec![None; graph.requests.len()];
    for (at, request) in graph.requests.iter().enumerate() {
        for dependency in &request.dependencies {
            let other = graph.resolve(&names, at, dependency)?;
            waiters[other as usize].push(Waiter {
                node: number(at),
                trigger: dependency.trigger,
                delay_ms: dependency.delay_ms,
            });
            if dependency.relation == Relation::Spawn {
                parents[at] = Some(parents[at].map_or(other, |parent: u32| parent.min(other)));
            }
        }
    }
    Ok(Links { waiters, parents })
}

/// Takes away what can be played, again and again; what is left is a ring or waits for one.
fn check_cycles(graph: &Graph, links: &Links) -> Result<(), GraphError> {
    let mut missing: Vec<usize> = graph
        .requests
        .iter()
        .map(|request| request.dependencies.len())
        .collect();
    let mut free: Vec<usize> = (0..missing.len()).filter(|&at| missing[at] == 0).collect();
    while let Some(at) = free.pop() {
        for waiter in &links.waiters[at] {
            let left = &mut missing[waiter.node as usize];
            *left -= 1;
            if *left == 0 {
                free.push(waiter.node as usize);
            }
        }
    }
    match missing.iter().position(|&left| left > 0) {
        Some(at) => {
            let request = &graph.requests[at];
            Err(GraphError::Cycle(graph.waiting_field(), request.request_id.clone()).at(&request.place))
        }
        None => Ok(()),
    }
}
