//! `dynamo.request.trace.v1`: what Dynamo frontends write down about requests.
//!
//! A line is a record or `{"event": record}`. Without `agent_context` requests come at their recorded times; with it they
//! make a graph: within a session each waits for the one before, a child session is spawned by the latest request of its
//! parent that began before it, and the parent's next request waits for it. Source: Dynamo 1.6.1 replay.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::agentic::{AgenticRequest, Dependency, GraphOrigin, Trigger};
use super::super::sessions::{SessionTrace, TurnSpec};
use super::agentic::Graph;
use super::line::{Lines, TraceError};

const SCHEMA: &str = "dynamo.request.trace.v1";

/// A line that may hold its record one level down.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    event: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Record {
    schema: Option<String>,
    event_type: Option<String>,
    event_time_unix_ms: Option<u64>,
    agent_context: Option<AgentContext>,
    request: Option<Request>,
    tool: Option<Tool>,
}

#[derive(Deserialize)]
struct AgentContext {
    session_id: String,
    parent_session_id: Option<String>,
}

#[allow(clippy::struct_field_names)]
#[derive(Deserialize)]
struct Request {
    request_id: String,
    model: Option<String>,
    output_tokens: Option<u32>,
    request_received_ms: Option<u64>,
    total_time_ms: Option<f64>,
    replay: Option<Replay>,
}

#[derive(Deserialize)]
struct Replay {
    trace_block_size: u32,
    input_length: u32,
    input_sequence_hashes: Vec<u64>,
    #[serde(default)]
    dependencies: Vec<Edge>,
}

#[derive(Deserialize, Clone)]
struct Edge {
    request_id: String,
    trigger: Trigger,
}

#[derive(Deserialize)]
struct Tool {
    claude: Option<Claude>,
}

#[allow(clippy::struct_field_names)]
#[derive(Deserialize)]
struct Claude {
    source_request_id: String,
    consumer_request_id: Option<String>,
    child_session_id: Option<String>,
}

/// A trace by its form.
#[derive(Debug)]
pub enum RequestTrace {
    /// Requests at their times.
    Independent(SessionTrace),
    /// Sessions of agents.
    Agentic(Graph),
}

struct Found {
    request_id: String,
    model: Option<String>,
    start: u64,
    end: u64,
    hash_ids: Vec<u64>,
    input_tokens: u32,
    output_tokens: u32,
    session: Option<(String, Option<String>)>,
    dependencies: Vec<Edge>,
}

impl Found {
    fn model(&self) -> &str {
        self.model.as_deref().unwrap_or("unknown")
    }
}

/// Reads shards one after the other.
#[derive(Default)]
pub struct RequestTraceReader {
    found: Vec<Found>,
    calls: Vec<Claude>,
    tools: u64,
    block_tokens: Option<u32>,
    name: Option<String>,
}

impl RequestTraceReader {
    /// A reader; `block_tokens` is what the trace's block size has to be, if anything.
    pub fn new(block_tokens: Option<u32>) -> Self {
        Self {
            block_tokens,
            ..Self::default()
        }
    }

    /// Reads one shard.
    ///
    /// # Errors
    /// [`TraceError`] names the line and the field.
    pub fn read<R: BufRead>(&mut self, mut lines: Lines<R>) -> Result<(), TraceError> {
        self.name.get_or_insert_with(|| lines.file().to_owned());
        while lines.advance()? {
            if !lines.is_object()? {
                continue;
            }
            let envelope: Envelope<'_> = lines.read()?;
            let record: Record = match envelope.event {
                Some(event) => lines.read_part(event.get())?,
                None => lines.read()?,
            };
            if record.schema.as_deref() != Some(SCHEMA) {
                let found = record.schema.as_deref().unwrap_or("missing");
                return Err(lines.wrong(format!("schema is {found}, expected {SCHEMA}")));
            }
            match record.event_type.as_deref() {
                Some("request_payload" | "tool_start") => {}
                Some("request_end") => self.request(&lines, record)?,
                Some("tool_end" | "tool_error") => {
                    self.tools += 1;
                    self.calls.extend(record.tool.and_then(|tool| tool.claude));
                }
                other => {
                    let found = other.unwrap_or("missing");
                    return Err(lines.wrong(format!(
                        "event_type is {found}, expected request_end, request_payload, tool_start, tool_end or tool_error"
                    )));
                }
            }
        }
        Ok(())
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn request<R: BufRead>(&mut self, lines: &Lines<R>, record: Record) -> Result<(), TraceError> {
        let missing = |field: &str| lines.wrong(format!("{field} is missing; a request_end record needs it"));
        let request = record.request.ok_or_else(|| missing("request"))?;
        let replay = request.replay.ok_or_else(|| missing("request.replay"))?;
        let size = replay.trace_block_size;
        if *self.block_tokens.get_or_insert(size) != size || size == 0 {
            let before = self.block_tokens.unwrap_or(0);
            return Err(lines.wrong(format!(
                "trace_block_size is {size}, expected {before} as before or as --trace-block-size says"
            )));
        }
        let total = request.total_time_ms.filter(|total| total.is_finite() && *total >= 0.0);
        let total = total.map(|total| total.round() as u64);
        let ended = record.event_time_unix_ms;
        let start = request.request_received_ms;
        let start = start.or_else(|| ended.map(|ended| ended.saturating_sub(total.unwrap_or(0))));
        let start = start.ok_or_else(|| missing("request.request_received_ms or event_time_unix_ms"))?;
        let end = total
            .map(|total| start.saturating_add(total))
            .or(ended)
            .unwrap_or(start);
        let covered = u32::try_from(replay.input_sequence_hashes.len())
            .unwrap_or(u32::MAX)
            .saturating_mul(size);
        if replay.input_length == 0 || replay.input_length > covered {
            let length = replay.input_length;
            return Err(lines.wrong(format!(
                "request.replay.input_length is {length}, expected 1 to {covered}, what input_sequence_hashes cover"
            )));
        }
        let output_tokens = request.output_tokens;
        let output_tokens = output_tokens.ok_or_else(|| missing("request.output_tokens"))?;
        lines.check_tokens("request.replay.input_length", replay.input_length)?;
        lines.check_tokens("request.output_tokens", output_tokens)?;
        self.found.push(Found {
            request_id: request.request_id,
            model: request.model,
            start,
            end,
            hash_ids: replay.input_sequence_hashes,
            input_tokens: replay.input_length,
            output_tokens,
            session: record
                .agent_context
                .map(|context| (context.session_id, context.parent_session_id)),
            dependencies: replay.dependencies,
        });
        Ok(())
    }

    /// The trace.
    ///
    /// # Errors
    /// [`TraceError`] when there is nothing to replay or requests with and without `agent_context` are mixed.
    pub fn finish(mut self) -> Result<RequestTrace, TraceError> {
        let file = self.name.take().unwrap_or_default();
        let wrong = |what: String| TraceError::File { file, what };
        if self.found.is_empty() {
            return Err(wrong("no requests in the trace".into()));
        }
        let key = |found: &Found| (found.start, found.end, found.request_id.clone());
        self.found.sort_by_cached_key(key);
        let mut names: Vec<&str> = self.found.iter().map(|found| found.request_id.as_str()).collect();
        names.sort_unstable();
        if let Some([name, ..]) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(wrong(format!("request_id {name} stands for two requests")));
        }
        let agents = self.found.iter().filter(|found| found.session.is_some()).count();
        if agents == 0 {
            return Ok(RequestTrace::Independent(self.independent()));
        }
        if agents < self.found.len() {
            let plain = self.found.len() - agents;
            return Err(wrong(format!(
                "{agents} requests have an agent_context and {plain} have none; replay them as separate traces"
            )));
        }
        if let Some((request, missing)) = self.dangling() {
            return Err(wrong(format!(
                "request {request} depends on {missing}, which is in no shard of the trace"
            )));
        }
        let models: BTreeSet<&str> = self.found.iter().map(Found::model).collect();
        let origin = GraphOrigin {
            format: SCHEMA.into(),
            digest: format!("requests:{};tools:{}", self.found.len(), self.tools),
            models: models.into_iter().map(str::to_owned).collect(),
        };
        Ok(RequestTrace::Agentic(Graph {
            requests: self.graph(),
            block_tokens: self.block_tokens.unwrap_or(1),
            origin,
        }))
    }

    /// A dependency on a request that the trace does not have.
    fn dangling(&self) -> Option<(String, String)> {
        let known: BTreeSet<&str> = self.found.iter().map(|found| found.request_id.as_str()).collect();
        self.found.iter().find_map(|found| {
            let missing = found
                .dependencies
                .iter()
                .find(|edge| !known.contains(edge.request_id.as_str()))?;
            Some((found.request_id.clone(), missing.request_id.clone()))
        })
    }

    fn independent(self) -> SessionTrace {
        let mut trace = SessionTrace::new(self.block_tokens.unwrap_or(1), false, "request_");
        let first = self.found.first().map_or(0, |found| found.start);
        for (number, found) in (1..).zip(self.found) {
            #[allow(clippy::cast_precision_loss)]
            let start_ms = (found.start - first) as f64;
            let spec = TurnSpec {
                hash_ids: found.hash_ids,
                input_tokens: found.input_tokens,
                output_tokens: found.output_tokens,
                start_ms: Some(start_ms),
                ..TurnSpec::default()
            };
            trace.open(None, number, spec);
        }
        trace
    }

    #[allow(clippy::cast_precision_loss)]
    fn graph(&mut self) -> Vec<AgenticRequest> {
        let found = std::mem::take(&mut self.found);
        let sessions = Sessions::new(&found);
        let edges = sessions.edges(&found, &self.calls);
        let first = found.first().map_or(0, |found| found.start);
        let plays: Vec<String> = (0..found.len()).map(|at| sessions.play(&found, at)).collect();
        let requests = found.into_iter().zip(edges).zip(plays);
        requests
            .map(|((found, dependencies), play_id)| AgenticRequest {
                not_before_ms: if dependencies.is_empty() {
                    (found.start - first) as f64
                } else {
                    0.0
                },
                request_id: found.request_id,
                session_id: found.session.map(|(session, _)| session).unwrap_or_default(),
                play_id,
                hash_ids: found.hash_ids,
                input_tokens: found.input_tokens,
                output_tokens: found.output_tokens,
                priority: 0,
                strict_priority: 0,
                policy_class: None,
                dependencies,
            })
            .collect()
    }
}

/// Requests of each session in order, and parents of sessions.
struct Sessions {
    members: BTreeMap<String, Vec<usize>>,
    parents: BTreeMap<String, String>,
    by_name: BTreeMap<String, usize>,
}

/// Index of the other request, what about it, and the recorded wait in ms.
type Wait = (usize, Trigger, u64);

impl Sessions {
    fn new(found: &[Found]) -> Self {
        let mut sessions = Self {
            members: BTreeMap::new(),
            parents: BTreeMap::new(),
            by_name: BTreeMap::new(),
        };
        for (at, request) in found.iter().enumerate() {
            sessions.by_name.insert(request.request_id.clone(), at);
            let Some((session, parent)) = &request.session else {
                continue;
            };
            sessions.members.entry(session.clone()).or_default().push(at);
            if let Some(parent) = parent {
                sessions
                    .parents
                    .entry(session.clone())
                    .or_insert_with(|| parent.clone());
            }
        }
        sessions
    }

    /// Name of the play: the first request of the session that all others descend from.
    fn play(&self, found: &[Found], at: usize) -> String {
        let mut session = session_of(&found[at]);
        // Bounded, for parents that form a ring.
        for _ in 0..self.parents.len() {
            match self
                .parents
                .get(session)
                .filter(|parent| self.members.contains_key(*parent))
            {
                Some(parent) => session = parent,
                None => break,
            }
        }
        let first = self.members.get(session).and_then(|members| members.first()).copied();
        format!("dynamo-play:{}", found[first.unwrap_or(at)].request_id)
    }

    fn edges(&self, found: &[Found], calls: &[Claude]) -> Vec<Vec<Dependency>> {
        let mut waits: Vec<Vec<Wait>> = vec![Vec::new(); found.len()];
        // Pairs of sessions whose relation is given.
        let mut given: Vec<(&str, &str)> = Vec::new();
        for (at, request) in found.iter().enumerate() {
            for edge in &request.dependencies {
                let Some(&other) = self.by_name.get(&edge.request_id) else {
                    continue;
                };
                given.push(pair(session_of(&found[other]), session_of(request)));
                waits[at].push(wait(found, other, edge.trigger, at));
            }
        }
        for call in calls {
            self.call(found, call, &mut waits, &mut given);
        }
        for members in self.members.values() {
            for step in members.windows(2) {
                waits[step[1]].push(wait(found, step[0], Trigger::Completion, step[1]));
            }
        }
        for (child, parent) in &self.parents {
            if !given.contains(&pair(child, parent)) {
                self.guess(found, child, parent, &mut waits);
            }
        }
        waits.into_iter().map(|waits| dependencies(found, waits)).collect()
    }

    /// A tool call that ran a child session.
    fn call<'a>(
        &self,
        found: &'a [Found],
        call: &'a Claude,
        waits: &mut [Vec<Wait>],
        given: &mut Vec<(&'a str, &'a str)>,
    ) {
        let Some(child) = &call.child_session_id else { return };
        let Some(members) = self.members.get(child) else { return };
        let (Some(&first), Some(&last)) = (members.first(), members.last()) else {
            return;
        };
        let Some(&source) = self.by_name.get(&call.source_request_id) else {
            return;
        };
        given.push(pair(child, session_of(&found[source])));
        let trigger = if found[first].start >= found[source].end {
            Trigger::Completion
        } else {
            Trigger::Dispatch
        };
        waits[first].push(wait(found, source, trigger, first));
        let consumer = call
            .consumer_request_id
            .as_ref()
            .and_then(|name| self.by_name.get(name));
        if let Some(&consumer) = consumer {
            waits[consumer].push(wait(found, last, Trigger::Completion, consumer));
        }
    }

    /// Where nothing is said: spawned by the latest request of the parent that began before, joined by the next after.
    fn guess(&self, found: &[Found], child: &str, parent: &str, waits: &mut [Vec<Wait>]) {
        let (Some(members), Some(above)) = (self.members.get(child), self.members.get(parent)) else {
            return;
        };
        let (Some(&first), Some(&last)) = (members.first(), members.last()) else {
            return;
        };
        let spawner = above.iter().rev().find(|&&at| found[at].start <= found[first].start);
        if let Some(&spawner) = spawner {
            waits[first].push(wait(found, spawner, Trigger::Dispatch, first));
        }
        let joiner = above.iter().find(|&&at| found[at].start > found[last].end);
        if let Some(&joiner) = joiner {
            waits[joiner].push(wait(found, last, Trigger::Completion, joiner));
        }
    }
}

fn session_of(found: &Found) -> &str {
    found.session.as_ref().map_or("", |(session, _)| session)
}

fn pair<'a>(one: &'a str, other: &'a str) -> (&'a str, &'a str) {
    if one <= other { (one, other) } else { (other, one) }
}

/// The recorded wait of `at` for `other`.
fn wait(found: &[Found], other: usize, trigger: Trigger, at: usize) -> Wait {
    let since = match trigger {
        Trigger::Dispatch => found[other].start,
        Trigger::Completion => found[other].end,
    };
    (other, trigger, found[at].start.saturating_sub(since))
}

#[allow(clippy::cast_precision_loss)]
fn dependencies(found: &[Found], waits: Vec<Wait>) -> Vec<Dependency> {
    let dependency = |(other, trigger, delay): Wait| Dependency {
        request_id: found[other].request_id.clone(),
        trigger,
        delay_ms: delay as f64,
    };
    waits.into_iter().map(dependency).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(event: &str, agent: &str) -> String {
        format!(
            r#"{{"schema":"{SCHEMA}","event_type":"{event}","event_time_unix_ms":100{agent},"request":{{"request_id":"{event}{}","output_tokens":1,"replay":{{"trace_block_size":4,"input_length":4,"input_sequence_hashes":[1]}}}}}}"#,
            agent.len()
        )
    }

    #[test]
    fn every_refusal_names_line_and_the_path_of_the_field() {
        let good = line("request_end", "");
        for (text, expected) in [
            (
                good.replace(r#""input_length":4"#, r#""input_length":"x""#),
                "request.replay.input_length: invalid type",
            ),
            (
                good.replace(r#""request_id":"#, r#""id":"#),
                "request: missing field `request_id`",
            ),
            (
                good.replace(r#""output_tokens":1,"#, ""),
                "request.output_tokens is missing",
            ),
            (
                good.replace("[1]", "[-1]"),
                "request.replay.input_sequence_hashes[0]: invalid value",
            ),
            (
                good.replace("request.trace.v1", "other"),
                "schema is dynamo.other, expected dynamo.request.trace.v1",
            ),
            (
                format!(r#"{{"event":{}}}"#, good.replace("[1]", "[]")),
                "request.replay.input_length is 4",
            ),
            ("{".into(), "not JSON"),
        ] {
            let mut reader = RequestTraceReader::new(None);
            let text = format!("17\n{text}");
            let error = reader.read(Lines::new("t", text.as_bytes())).unwrap_err().to_string();
            assert!(error.starts_with(&format!("t, line 2: {expected}")), "{error}");
        }
    }

    #[test]
    fn a_dependency_on_a_request_that_is_nowhere_is_refused() {
        let agent = r#","agent_context":{"session_id":"s"}"#;
        let text = line("request_end", agent);
        let text = text.replace(
            "[1]}",
            r#"[1],"dependencies":[{"request_id":"gone","relation":"join","trigger":"completion"}]}"#,
        );
        let mut reader = RequestTraceReader::new(None);
        reader.read(Lines::new("t", text.as_bytes())).unwrap();
        let error = reader.finish().unwrap_err().to_string();
        assert!(error.contains("depends on gone, which is in no shard"), "{error}");
    }

    #[test]
    fn mixed_traces_and_unknown_events_are_refused() {
        let mut reader = RequestTraceReader::new(None);
        let agent = r#","agent_context":{"session_id":"s"}"#;
        let text = format!("{}\n{}", line("request_end", ""), line("request_end", agent));
        reader.read(Lines::new("t", text.as_bytes())).unwrap();
        let error = reader.finish().unwrap_err().to_string();
        assert!(
            error.contains("1 requests have an agent_context and 1 have none"),
            "{error}"
        );
        let mut reader = RequestTraceReader::new(None);
        let error = reader
            .read(Lines::new("t", line("nap", "").as_bytes()))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("t, line 1: event_type is nap, expected request_end"),
            "{error}"
        );
        let mut reader = RequestTraceReader::new(Some(16));
        let error = reader
            .read(Lines::new("t", line("request_end", "").as_bytes()))
            .unwrap_err()
            .to_string();
        assert!(error.contains("trace_block_size is 4, expected 16"), "{error}");
    }
}
