//! One Weka document as one play of a request graph.
//!
//! | A request waits for | relation |
//! |---|---|
//! | the one before it in its conversation, and the recorded pause | sequence |
//! | first of a fork or subagent: the one it forked off or its marker stands behind; its end if it was over, else its begin | spawn |
//! | the latest that was over of each other conversation of the same agent, without a pause | replay barrier |
//! | the ends of a subagent that blocks and was over when it began | join |
//! | first of a conversation that waits for nothing: the begin of the play's first | spawn |
//!
//! Source: Dynamo 1.6.1.

use super::super::super::agentic::{AgenticRequest, Dependency, IdSink, Relation, Trigger};
use super::super::line::spooling;
use super::EPSILON_S;
use super::chains::{Step, Steps, conversations};
use super::document::{Document, Item, Nested, Request, Subagent};

/// How a document is read.
pub(super) struct Play<'a> {
    /// Name of the document within the corpus.
    pub(super) source: &'a str,
    /// Number of the play.
    pub(super) ordinal: u64,
    /// Times inside subagents count from their markers.
    pub(super) relative: bool,
    pub(super) block_tokens: u32,
}

/// A conversation on its way into the graph.
#[derive(Debug)]
struct Stream {
    session: String,
    steps: Vec<usize>,
    spawned_by: Option<usize>,
    /// Agent that it belongs to.
    agent: usize,
}

#[derive(Debug, Clone, Copy)]
struct Edge {
    other: usize,
    trigger: Trigger,
    delay_ms: f64,
    relation: Relation,
}

/// Seconds as ms, whole nanoseconds, none below 0.
fn ms(seconds: f64) -> f64 {
    (seconds.max(0.0) * 1e9).round() / 1e6
}

/// First eight bytes of a hash of what a block is.
fn hash_id(kind: &str, what: &str) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for part in [kind, "\0", what, "\0", "0"] {
        hasher.update(part.as_bytes());
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}

impl Play<'_> {
    /// The requests of a document that was checked.
    ///
    /// # Errors
    /// What makes no sense, and where.
    pub(super) fn requests(&self, document: Document, ids: &mut IdSink) -> Result<Vec<AgenticRequest>, String> {
        let digest = blake3::hash(self.source.as_bytes()).to_hex();
        let space = format!("weka:{}", &digest.as_str()[..16]);
        let play_id = format!("{space}:play:{}", document.id);
        let mut graph = Lowering::new(&space);
        let mut subagents = Vec::new();
        for (at, item) in document.requests.into_iter().enumerate() {
            match item {
                Item::Request(request) => graph.step(format!("outer:{at}"), at, request.t, request),
                Item::Subagent(subagent) => subagents.push((at, subagent)),
            }
        }
        graph.agent("root", (0..graph.steps.len()).collect());
        let own = graph.streams.len();
        let mut joins = Vec::new();
        for (at, subagent) in subagents {
            joins.extend(self.subagent(&mut graph, own, at, subagent)?);
        }
        graph.connect(&joins);
        self.rows(graph, &space, &play_id, ids)
            .map_err(|error| spooling(error).to_string())
    }

    /// Adds the conversations of a subagent; who waits for it, and for which.
    fn subagent(
        &self,
        graph: &mut Lowering<'_>,
        own: usize,
        at: usize,
        subagent: Subagent,
    ) -> Result<Option<(usize, Vec<usize>)>, String> {
        let of_agent = graph.streams[..own].iter().enumerate();
        let steps = of_agent.flat_map(|(stream, found)| found.steps.iter().map(move |&step| (stream, step)));
        let before = steps.filter(|&(_, step)| graph.steps[step].order < at);
        let Some((owner, spawner)) = before.max_by_key(|&(_, step)| graph.steps[step].order) else {
            return Err(format!(
                "requests[{at}] is a subagent before the first request; nothing can have started it"
            ));
        };
        let mut end = subagent.t;
        let first = graph.steps.len();
        let blocking = subagent.is_blocking();
        let took = subagent.duration_ms;
        let agent = format!("subagent:{at}:{}", subagent.agent_id);
        let marker = subagent.t;
        let mut times = Vec::with_capacity(subagent.requests.len());
        for (inner, Nested::Request(request)) in subagent.requests.iter().enumerate() {
            let t = subagent.on_trace_clock(request.t, self.relative).ok_or_else(|| {
                format!(
                    "requests[{at}].requests[{inner}].t is {}, before the subagent's own, {marker}; are nested times relative?",
                    request.t
                )
            })?;
            times.push(t);
        }
        for (inner, (t, Nested::Request(request))) in times.into_iter().zip(subagent.requests).enumerate() {
            graph.step(format!("outer:{at}:inner:{inner}"), inner, t, request);
            end = end.max(graph.steps[graph.steps.len() - 1].end());
        }
        if graph.steps.len() == first {
            return Ok(None);
        }
        let streams = graph.agent(&agent, (first..graph.steps.len()).collect());
        graph.streams[streams.start].spawned_by = Some(spawner);
        if !blocking {
            return Ok(None);
        }
        #[allow(clippy::cast_precision_loss)]
        let end = took.map_or(end, |took| marker + took as f64 / 1000.0);
        let after = graph.streams[owner].steps.iter().copied();
        let after = after.filter(|&step| {
            let step = &graph.steps[step];
            step.order > at && step.t + EPSILON_S >= end
        });
        let joiner = after.min_by_key(|&step| graph.steps[step].order);
        let last = graph.streams[streams]
            .iter()
            .filter_map(|stream| stream.steps.last().copied());
        Ok(joiner.map(|joiner| (joiner, last.collect())))
    }

    fn rows(
        &self,
        graph: Lowering<'_>,
        space: &str,
        play_id: &str,
        ids: &mut IdSink,
    ) -> std::io::Result<Vec<AgenticRequest>> {
        let times = graph.steps.iter().map(|step| step.t);
        let begin = times.min_by(f64::total_cmp).unwrap_or(0.0);
        let names: Vec<String> = graph
            .steps
            .iter()
            .map(|step| format!("{space}:request:{}", step.name))
            .collect();
        let mut sessions = vec![""; graph.steps.len()];
        for stream in &graph.streams {
            for &step in &stream.steps {
                sessions[step] = &stream.session;
            }
        }
        let rows = graph.steps.into_iter().zip(graph.edges).enumerate();
        let mut row = |(at, (step, edges)): (usize, (Step, Vec<Edge>))| {
            Ok(AgenticRequest {
                request_id: names[at].clone(),
                session_id: sessions[at].to_owned(),
                play_id: play_id.to_owned(),
                source_play_ordinal: Some(self.ordinal),
                not_before_ms: ms(step.t - begin),
                recorded_api_time_ms: step.request.api_time.map(ms),
                hash_ids: ids.put(self.hash_ids(&names[at], &step.request))?,
                input_tokens: step.request.input,
                output_tokens: step.request.output,
                dependencies: edges.iter().map(|edge| edge.named(&names)).collect(),
                model: step.request.model,
                ..AgenticRequest::default()
            })
        };
        rows.map(&mut row).collect()
    }

    /// Ids of the blocks of a prompt: those of the document's own name space for whole blocks, its own for the rest.
    fn hash_ids(&self, name: &str, request: &Request) -> Vec<u64> {
        let whole = request.input / self.block_tokens;
        let block = |at: u32| match request.hash_ids.get(at as usize) {
            Some(id) => hash_id("weka-full-block", &format!("source:{}:{id}", self.source)),
            None => hash_id("weka-full-block", &format!("private:missing:{name}:{at}")),
        };
        let rest = !request.input.is_multiple_of(self.block_tokens);
        let rest = rest.then(|| hash_id("weka-partial-tail", &format!("{name}:{whole}:{}", request.input)));
        (0..whole).map(block).chain(rest).collect()
    }
}

impl Edge {
    fn named(&self, names: &[String]) -> Dependency {
        Dependency {
            request_id: names[self.other].clone(),
            trigger: self.trigger,
            delay_ms: self.delay_ms,
            relation: self.relation,
        }
    }
}

/// A play in the making.
struct Lowering<'a> {
    space: &'a str,
    steps: Vec<Step>,
    streams: Vec<Stream>,
    agents: usize,
    /// What each step waits for.
    edges: Vec<Vec<Edge>>,
}

impl<'a> Lowering<'a> {
    fn new(space: &'a str) -> Self {
        Self {
            space,
            steps: Vec::new(),
            streams: Vec::new(),
            agents: 0,
            edges: Vec::new(),
        }
    }

    fn step(&mut self, name: String, order: usize, t: f64, request: Request) {
        self.steps.push(Step {
            name,
            order,
            t,
            request,
        });
        self.edges.push(Vec::new());
    }

    /// Adds the conversations of an agent, the main one first.
    fn agent(&mut self, name: &str, members: Vec<usize>) -> std::ops::Range<usize> {
        let first = self.streams.len();
        for (at, chain) in conversations(&self.steps, members).into_iter().enumerate() {
            let space = self.space;
            self.streams.push(Stream {
                session: match at.checked_sub(1) {
                    None => format!("{space}:session:{name}"),
                    Some(worker) => format!("{space}:session:{name}:worker:{worker}"),
                },
                spawned_by: chain.forked_off(),
                steps: chain.steps,
                agent: self.agents,
            });
        }
        self.agents += 1;
        first..self.streams.len()
    }

    /// Lets requests wait for one another; `joins` says who waits for which ends of subagents.
    fn connect(&mut self, joins: &[(usize, Vec<usize>)]) {
        let (steps, streams, edges) = (&self.steps, &self.streams, &mut self.edges);
        for stream in streams {
            for pair in stream.steps.windows(2) {
                let pause = steps[pair[1]].t - steps[pair[0]].end();
                add(&mut edges[pair[1]], after(pair[0], pause, Relation::Sequence));
            }
        }
        for stream in streams {
            if let (Some(&first), Some(spawner)) = (stream.steps.first(), stream.spawned_by) {
                add(&mut edges[first], spawned(steps, first, spawner));
            }
        }
        barriers(steps, streams, edges);
        for (joiner, ends) in joins {
            for &end in ends {
                let pause = steps[*joiner].t - steps[end].end();
                add(&mut edges[*joiner], after(end, pause, Relation::Join));
            }
        }
        // What nothing starts begins with the play.
        let root = streams.first().and_then(|stream| stream.steps.first().copied());
        for &first in streams.iter().filter_map(|stream| stream.steps.first()) {
            if let Some(root) = root.filter(|&root| root != first && edges[first].is_empty()) {
                let edge = Edge {
                    other: root,
                    trigger: Trigger::Dispatch,
                    delay_ms: ms(steps[first].t - steps[root].t),
                    relation: Relation::Spawn,
                };
                add(&mut edges[first], edge);
            }
        }
    }
}

/// A wait for an end.
fn after(other: usize, pause: f64, relation: Relation) -> Edge {
    Edge {
        other,
        trigger: Trigger::Completion,
        delay_ms: ms(pause),
        relation,
    }
}

fn spawned(steps: &Steps, first: usize, spawner: usize) -> Edge {
    let (begin, parent) = (steps[first].t, &steps[spawner]);
    if begin < parent.end() {
        Edge {
            other: spawner,
            trigger: Trigger::Dispatch,
            delay_ms: ms(begin - parent.t),
            relation: Relation::Spawn,
        }
    } else {
        after(spawner, begin - parent.end(), Relation::Spawn)
    }
}

/// Each request waits for what was over of the other conversations of its agent.
fn barriers(steps: &Steps, streams: &[Stream], edges: &mut [Vec<Edge>]) {
    let over = |earlier: usize, later: usize| {
        let (earlier, later) = (&steps[earlier], &steps[later]);
        earlier.t < later.t && earlier.end() <= later.t + EPSILON_S
    };
    for (own, stream) in streams.iter().enumerate() {
        let others = || {
            let numbered = streams.iter().enumerate();
            numbered.filter(move |(at, other)| *at != own && other.agent == stream.agent)
        };
        for &target in &stream.steps {
            let latest = others().filter_map(|(_, other)| {
                let before = other.steps.iter().copied().filter(|&step| over(step, target));
                before.max_by(|&a, &b| {
                    let (a, b) = (&steps[a], &steps[b]);
                    let order = a.end().total_cmp(&b.end()).then(a.t.total_cmp(&b.t));
                    order.then_with(|| a.name.cmp(&b.name))
                })
            });
            let latest: Vec<usize> = latest.collect();
            for &other in &latest {
                // One that another of them waited for need not be named.
                if !latest.iter().any(|&later| over(other, later)) {
                    add(&mut edges[target], after(other, 0.0, Relation::ReplayBarrier));
                }
            }
        }
    }
}

/// The first of equal waits counts.
fn add(edges: &mut Vec<Edge>, edge: Edge) {
    let key = |edge: &Edge| (edge.other, edge.trigger, edge.relation);
    if !edges.iter().any(|known| key(known) == key(&edge)) {
        edges.push(edge);
    }
}
