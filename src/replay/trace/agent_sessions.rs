//! Requests of agents, by session, as a graph.
//!
//! Within a session each request waits for the end of the one before. A session with a parent is started by a request of
//! that parent (`spawn`), and a later one of the parent uses what it came to (`join`): as tool calls or the exporter say,
//! else as the times suggest. Waits are those that were recorded.
//!
//! | | Dynamo 1.6.1 | Dynamo 1.4.2 |
//! |---|---|---|
//! | a spawned session waits for | the parent's request to be sent out | its end |
//! | a request that waits for several | each with its own recorded wait | the latest end, then the wait after the latest end as recorded |
//! | requests of a session that overlap | refused | wait for one another, without a pause |
//! | dependencies that the exporter knew | count for each pair of sessions that they link | unknown |
//! | a parent that is not in the trace | refused | no parent |

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::engine::Semantics;

use super::super::agentic::{AgenticRequest, Dependency, Graph, GraphOrigin, IdStore, Relation, Trigger};
use super::line::TraceError;
use super::request_trace::{Call, Found, SCHEMA};

/// Requests in the order of their begin, end and name, each with its session, and the tool calls between them.
pub(super) struct AgentTrace {
    pub(super) found: Vec<Found>,
    pub(super) calls: Vec<Call>,
    /// Tool calls in all.
    pub(super) tools: u64,
    pub(super) block_tokens: u32,
    pub(super) ids: IdStore,
}

impl AgentTrace {
    /// The graph by the rules of a release.
    ///
    /// # Errors
    /// [`TraceError`] names the line, the field, and requests and sessions.
    pub(super) fn graph(self, rules: Semantics) -> Result<Graph, TraceError> {
        let models: BTreeSet<String> = self.found.iter().map(|found| model(found).to_owned()).collect();
        let origin = GraphOrigin {
            format: SCHEMA.into(),
            digest: format!("requests:{};tools:{}", self.found.len(), self.tools),
            models: models.into_iter().collect(),
            nested_times: None,
        };
        let edges = Sessions::new(&self.found)?.edges(&self.calls, rules)?;
        let plays = plays(&self.found, &edges);
        let first = self.found.first().map_or(0, |found| found.start);
        let requests = self.found.into_iter().zip(edges).zip(plays);
        Ok(Graph {
            requests: requests
                .map(|((found, dependencies), play_id)| request(found, dependencies, play_id, first))
                .collect(),
            block_tokens: self.block_tokens,
            origin,
            rules,
            ids: self.ids,
        })
    }
}

fn model(found: &Found) -> &str {
    found.model.as_deref().unwrap_or("unknown")
}

#[allow(clippy::cast_precision_loss)]
fn request(found: Found, dependencies: Vec<Dependency>, play_id: String, first: u64) -> AgenticRequest {
    AgenticRequest {
        not_before_ms: if dependencies.is_empty() {
            (found.start - first) as f64
        } else {
            0.0
        },
        model: model(&found).to_owned(),
        request_id: found.request_id,
        place: found.place,
        session_id: found.agent.map(|agent| agent.session_id).unwrap_or_default(),
        play_id,
        hash_ids: found.hash_ids,
        input_tokens: found.input_tokens,
        output_tokens: found.output_tokens,
        dependencies,
        ..AgenticRequest::default()
    }
}

/// Requests of each session in order, and parents of sessions.
struct Sessions<'a> {
    found: &'a [Found],
    members: BTreeMap<&'a str, Vec<usize>>,
    parents: BTreeMap<&'a str, &'a str>,
    by_name: BTreeMap<&'a str, usize>,
}

/// What a request waits for.
#[derive(Debug, Clone, Copy)]
struct Wait {
    other: usize,
    trigger: Trigger,
    relation: Relation,
    /// The exporter says so, whatever the times say.
    given: bool,
}

impl Wait {
    fn new(other: usize, trigger: Trigger, relation: Relation) -> Self {
        Self {
            other,
            trigger,
            relation,
            given: false,
        }
    }
}

impl<'a> Sessions<'a> {
    fn new(found: &'a [Found]) -> Result<Self, TraceError> {
        let mut sessions = Self {
            found,
            members: BTreeMap::new(),
            parents: BTreeMap::new(),
            by_name: BTreeMap::new(),
        };
        for (at, request) in found.iter().enumerate() {
            sessions.by_name.insert(&request.request_id, at);
            let session = sessions.session(at);
            sessions.members.entry(session).or_default().push(at);
            let parent = request
                .agent
                .as_ref()
                .and_then(|agent| agent.parent_session_id.as_deref());
            if let Some(parent) = parent {
                let known = *sessions.parents.entry(session).or_insert(parent);
                if known != parent {
                    return Err(sessions.wrong(
                        at,
                        format!(
                            "agent_context.parent_session_id is {parent}, expected {known}, as in a request before of session \
                             {session}"
                        ),
                    ));
                }
            }
        }
        Ok(sessions)
    }

    /// Something is wrong with a request.
    fn wrong(&self, at: usize, what: String) -> TraceError {
        TraceError::at(&self.found[at].place, what)
    }

    fn session(&self, at: usize) -> &'a str {
        self.found[at].agent.as_ref().map_or("", |agent| &agent.session_id)
    }

    /// What each request waits for.
    fn edges(&self, calls: &[Call], rules: Semantics) -> Result<Vec<Vec<Dependency>>, TraceError> {
        let mut waits: Vec<Vec<Wait>> = vec![Vec::new(); self.found.len()];
        for members in self.members.values() {
            for step in members.windows(2) {
                add(
                    &mut waits[step[1]],
                    Wait::new(step[0], Trigger::Completion, Relation::Sequence),
                );
            }
        }
        let explicit = self.calls(calls)?;
        let linked = match rules {
            Semantics::V1_6_1 => self.given(&mut waits)?,
            Semantics::V1_4_2 => BTreeSet::new(),
        };
        for (&child, &parent) in &self.parents {
            let Some(above) = self.members.get(parent) else {
                if rules == Semantics::V1_4_2 {
                    continue;
                }
                let what = format!(
                    "agent_context.parent_session_id of session {child} is {parent}, of which there is no request in the \
                     trace; expected a session with some"
                );
                return Err(self.wrong(self.members[child][0], what));
            };
            if let Some(call) = explicit.get(child) {
                self.called(call, (child, parent), rules, &mut waits)?;
            } else if !linked.contains(&pair(child, parent)) {
                self.guess(child, above, rules, &mut waits);
            }
        }
        let waits = waits.into_iter().enumerate();
        match rules {
            Semantics::V1_6_1 => waits.map(|(at, waits)| self.each_wait(at, &waits)).collect(),
            Semantics::V1_4_2 => Ok(waits.map(|(at, waits)| self.one_wait(at, &waits)).collect()),
        }
    }

    /// Tool calls by the session that they ran.
    fn calls<'c>(&self, calls: &'c [Call]) -> Result<BTreeMap<&'c str, &'c Call>, TraceError> {
        let mut explicit = BTreeMap::new();
        for call in calls {
            let (name, claude) = (&call.name, &call.claude);
            if !["blocking", "background"].contains(&claude.execution_mode.as_str()) {
                let mode = &claude.execution_mode;
                return Err(call.wrong(format!(
                    "tool.claude.execution_mode of tool call {name} is {mode}, expected blocking or background"
                )));
            }
            for (field, request) in [
                ("source_request_id", Some(&claude.source_request_id)),
                ("consumer_request_id", claude.consumer_request_id.as_ref()),
            ] {
                let Some(request) = request else { continue };
                let Some(&at) = self.by_name.get(request.as_str()) else {
                    return Err(call.wrong(format!(
                        "tool.claude.{field} of tool call {name} is {request}, expected a request of the trace"
                    )));
                };
                let (found, own) = (self.session(at), &call.session);
                if found != own {
                    return Err(call.wrong(format!(
                        "tool.claude.{field} of tool call {name} is {request}, which belongs to session {found}; expected a \
                         request of session {own}"
                    )));
                }
            }
            let child = claude.child_session_id.as_deref();
            if let Some(child) = child.filter(|child| self.members.contains_key(child))
                && explicit.insert(child, call).is_some()
            {
                return Err(call.wrong(format!(
                    "tool.claude.child_session_id is {child}, which another tool call ran; expected one call for each session"
                )));
            }
        }
        Ok(explicit)
    }

    /// Dependencies that the exporter knew; pairs of sessions that they link.
    fn given(&self, waits: &mut [Vec<Wait>]) -> Result<BTreeSet<(&'a str, &'a str)>, TraceError> {
        let mut linked = BTreeSet::new();
        for (at, request) in self.found.iter().enumerate() {
            for edge in &request.dependencies {
                let (name, other) = (&request.request_id, &edge.request_id);
                let Some(&before) = self.by_name.get(other.as_str()) else {
                    return Err(self.wrong(
                        at,
                        format!(
                            "request.replay.dependencies of request {name} names {other}, which is in no shard; expected a \
                             request of the trace"
                        ),
                    ));
                };
                if self.found[before].start > request.start {
                    return Err(self.wrong(
                        at,
                        format!(
                            "request.replay.dependencies of request {name} names {other}, which began later; expected requests \
                             that began before"
                        ),
                    ));
                }
                if self.session(before) != self.session(at) {
                    linked.insert(pair(self.session(before), self.session(at)));
                }
                if !edge.relation.can_wait_for(edge.trigger) {
                    let (relation, trigger) = (edge.relation, edge.trigger);
                    return Err(self.wrong(
                        at,
                        format!(
                            "request.replay.dependencies of request {name} names {other} as {relation:?} of a {trigger:?}, \
                             expected a completion"
                        ),
                    ));
                }
                let wait = Wait {
                    given: true,
                    ..Wait::new(before, edge.trigger, edge.relation)
                };
                add(&mut waits[at], wait);
            }
        }
        Ok(linked)
    }

    /// A session that a tool call ran.
    fn called(
        &self,
        call: &Call,
        (child, parent): (&str, &str),
        rules: Semantics,
        waits: &mut [Vec<Wait>],
    ) -> Result<(), TraceError> {
        let members = &self.members[child];
        let of_parent = |request: &str| {
            let at = self.by_name[request];
            if self.session(at) == parent {
                return Ok(at);
            }
            let name = &call.name;
            Err(call.wrong(format!(
                "tool call {name} ran session {child} and names request {request}, expected one of its parent {parent}"
            )))
        };
        let spawner = of_parent(&call.claude.source_request_id)?;
        add(
            &mut waits[members[0]],
            Wait::new(spawner, spawning(rules), Relation::Spawn),
        );
        let Some(consumer) = &call.claude.consumer_request_id else {
            return Ok(());
        };
        let consumer = of_parent(consumer)?;
        let joined = match rules {
            // A child in the background may go on after its result was used.
            Semantics::V1_6_1 => {
                let over = |&at: &usize| self.found[at].end <= self.found[consumer].start;
                self.last_to_end(members.iter().copied().filter(over))
            }
            Semantics::V1_4_2 => self.last_to_end(members.iter().copied()),
        };
        if let Some(joined) = joined {
            add(
                &mut waits[consumer],
                Wait::new(joined, Trigger::Completion, Relation::Join),
            );
        }
        Ok(())
    }

    /// Where nothing is said: spawned by the latest request of the parent that began before, joined by the next after.
    fn guess(&self, child: &str, above: &[usize], rules: Semantics, waits: &mut [Vec<Wait>]) {
        let members = &self.members[child];
        let first = members[0];
        let begin = |at: usize| self.found[at].start;
        let before = above.iter().copied().filter(|&at| begin(at) <= begin(first));
        if let Some(spawner) = before.max_by_key(|&at| begin(at)) {
            add(&mut waits[first], Wait::new(spawner, spawning(rules), Relation::Spawn));
        }
        let Some(last) = self.last_to_end(members.iter().copied()) else {
            return;
        };
        let after = above.iter().copied().filter(|&at| begin(at) >= self.found[last].end);
        // The first of those that began together.
        if let Some(joiner) = after.max_by_key(|&at| Reverse((begin(at), at))) {
            add(&mut waits[joiner], Wait::new(last, Trigger::Completion, Relation::Join));
        }
    }

    fn last_to_end(&self, among: impl Iterator<Item = usize>) -> Option<usize> {
        among.max_by_key(|&at| {
            let found = &self.found[at];
            (found.end, found.start, &found.request_id)
        })
    }

    /// Each wait as long as it was recorded.
    #[allow(clippy::cast_precision_loss)]
    fn each_wait(&self, at: usize, waits: &[Wait]) -> Result<Vec<Dependency>, TraceError> {
        let found = &self.found[at];
        let dependency = |wait: &Wait| {
            let before = &self.found[wait.other];
            let since = match wait.trigger {
                Trigger::Dispatch => before.start,
                Trigger::Completion => before.end,
            };
            if found.start < since && !wait.given {
                let (name, other, early) = (&found.request_id, &before.request_id, since - found.start);
                return Err(self.wrong(
                    at,
                    format!(
                        "request {name} began {early} ms before the end of {other}, for which it has to wait; requests of one \
                         session must not overlap"
                    ),
                ));
            }
            Ok(Dependency {
                request_id: before.request_id.clone(),
                trigger: wait.trigger,
                delay_ms: found.start.saturating_sub(since) as f64,
                relation: wait.relation,
            })
        };
        waits.iter().map(dependency).collect()
    }

    /// The wait after the last of all ends, as it was recorded.
    #[allow(clippy::cast_precision_loss)]
    fn one_wait(&self, at: usize, waits: &[Wait]) -> Vec<Dependency> {
        let ends = waits.iter().map(|wait| self.found[wait.other].end);
        let delay = self.found[at].start.saturating_sub(ends.max().unwrap_or(0));
        let dependency = |wait: &Wait| Dependency {
            request_id: self.found[wait.other].request_id.clone(),
            trigger: wait.trigger,
            delay_ms: delay as f64,
            relation: wait.relation,
        };
        waits.iter().map(dependency).collect()
    }
}

impl Call {
    fn wrong(&self, what: String) -> TraceError {
        TraceError::at(&self.place, what)
    }
}

/// What a spawned session waits for.
fn spawning(rules: Semantics) -> Trigger {
    match rules {
        Semantics::V1_6_1 => Trigger::Dispatch,
        Semantics::V1_4_2 => Trigger::Completion,
    }
}

/// The first wait for a trigger counts.
fn add(waits: &mut Vec<Wait>, wait: Wait) {
    if !waits
        .iter()
        .any(|known| (known.other, known.trigger) == (wait.other, wait.trigger))
    {
        waits.push(wait);
    }
}

fn pair<'a>(one: &'a str, other: &'a str) -> (&'a str, &'a str) {
    if one <= other { (one, other) } else { (other, one) }
}

/// Name of the play of each request: requests that wait for one another, after the first of them that waits for nobody.
fn plays(found: &[Found], edges: &[Vec<Dependency>]) -> Vec<String> {
    let names: BTreeMap<&str, usize> = found
        .iter()
        .enumerate()
        .map(|(at, found)| (found.request_id.as_str(), at))
        .collect();
    // Each request's predecessor in its set; a set is known by its end.
    let mut above: Vec<usize> = (0..found.len()).collect();
    let find = |above: &mut Vec<usize>, mut at: usize| {
        while above[at] != at {
            above[at] = above[above[at]];
            at = above[at];
        }
        at
    };
    for (at, dependencies) in edges.iter().enumerate() {
        for dependency in dependencies {
            if let Some(&other) = names.get(dependency.request_id.as_str()) {
                let (left, right) = (find(&mut above, at), find(&mut above, other));
                above[left] = right;
            }
        }
    }
    let mut roots: BTreeMap<usize, usize> = BTreeMap::new();
    for at in (0..found.len()).filter(|&at| edges[at].is_empty()) {
        let set = find(&mut above, at);
        let key = |at: usize| (found[at].start, &found[at].request_id);
        let root = roots.entry(set).or_insert(at);
        if key(at) < key(*root) {
            *root = at;
        }
    }
    (0..found.len())
        .map(|at| {
            let root = roots.get(&find(&mut above, at)).copied().unwrap_or(at);
            format!("dynamo-play:{}", found[root].request_id)
        })
        .collect()
}
