//! Weka traces: one JSON document per conversation with an agent, subagents nested in it.
//!
//! `{id, models, block_size, hash_id_scope, requests: [...]}`, where a request is `{type: "n" | "s", t, model, in, out,
//! hash_ids, api_time?, think_time?, ...}` (times in seconds) or `{type: "subagent", t, agent_id, requests: [...]}`. A file holds one
//! document, several after one another, or one per line.
//!
//! Lowered to a request graph, one play per document: within an agent each request waits for the one before, with the
//! recorded pause between its end and the next start; a subagent's first request is spawned by the request before its
//! marker, and the request after the marker joins its last one, unless that one ended later (then it ran in the
//! background). Without `api_time` an end is not known; the pause is then the `think_time` of the request that waits.
//!
//! Source: fields as Dynamo 1.6.1 documents its import; edges by the rule of its request traces.

use std::collections::BTreeSet;
use std::io::Read;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use serde::Deserialize;

use crate::engine::Semantics;

use super::super::agentic::{AgenticRequest, Dependency, Graph, GraphOrigin, Relation, Trigger};
use super::line::{MAX_MS, MAX_TOKENS, TraceError, placeless};

/// Deepest nesting of subagents.
const MAX_DEPTH: usize = 16;

#[derive(Deserialize)]
struct Document {
    id: String,
    block_size: u32,
    hash_id_scope: Option<Scope>,
    requests: Vec<Item>,
}

/// Where equal hash ids mean equal blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Scope {
    Local,
    Global,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Item {
    #[serde(rename = "n", alias = "s")]
    Request(Request),
    #[serde(rename = "subagent")]
    Subagent(Subagent),
}

#[derive(Deserialize)]
struct Request {
    t: f64,
    model: Option<String>,
    #[serde(rename = "in")]
    input: u32,
    #[serde(rename = "out")]
    output: u32,
    hash_ids: Vec<u64>,
    api_time: Option<f64>,
    think_time: Option<f64>,
}

#[derive(Deserialize)]
struct Subagent {
    t: f64,
    agent_id: String,
    requests: Vec<Item>,
}

/// What times inside a subagent count from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NestedTimes {
    /// The subagent's marker, if any nested time of all traces lies before its marker; else the trace's begin.
    #[default]
    Auto,
    /// The trace's begin.
    Absolute,
    /// The marker.
    Relative,
}

/// Reads the documents of several files.
#[derive(Default)]
pub struct WekaReader {
    documents: Vec<(String, Document)>,
    block_tokens: Option<u32>,
    name: Option<String>,
}

/// First and last request of an agent, and when the last one ended, s.
struct Span {
    first: usize,
    last: usize,
    end: f64,
}

/// One request and when it began and, as far as known, ended, s.
struct Placed {
    start: f64,
    end: Option<f64>,
    /// Pause before it, s, as far as known.
    think: f64,
}

impl WekaReader {
    /// A reader; `block_tokens` is what the traces' block size has to be, if anything.
    pub fn new(block_tokens: Option<u32>) -> Self {
        Self {
            block_tokens,
            ..Self::default()
        }
    }

    /// Reads one file.
    ///
    /// # Errors
    /// [`TraceError`] names the file, the line and the path of the field.
    pub fn read<R: Read>(&mut self, file: &str, reader: R) -> Result<(), TraceError> {
        self.name.get_or_insert_with(|| file.to_owned());
        let mut json = serde_json::Deserializer::from_reader(std::io::BufReader::new(reader));
        loop {
            let document: Option<Document> = match serde_path_to_error::deserialize(&mut json) {
                Ok(document) => Some(document),
                Err(error) if error.inner().is_eof() && error.path().iter().len() == 0 => {
                    json.end().map_err(|_| line(file, error.inner()))?;
                    None
                }
                Err(error) => {
                    let path = error.path().to_string();
                    let TraceError::Line { file, line, what } = line(file, error.inner()) else {
                        return Err(line(file, error.inner()));
                    };
                    let what = if path == "." { what } else { format!("{path}: {what}") };
                    return Err(TraceError::Line { file, line, what });
                }
            };
            let Some(document) = document else { return Ok(()) };
            let size = document.block_size;
            if size == 0 {
                return Err(TraceError::File {
                    file: file.to_owned(),
                    what: format!("block_size of trace {} is 0, expected at least 1", document.id),
                });
            }
            if *self.block_tokens.get_or_insert(size) != size {
                let before = self.block_tokens.unwrap_or(0);
                return Err(TraceError::File {
                    file: file.to_owned(),
                    what: format!(
                        "block_size of trace {} is {size}, expected {before} as before or as --trace-block-size says",
                        document.id
                    ),
                });
            }
            self.documents.push((file.to_owned(), document));
        }
    }

    /// The graph of all traces.
    ///
    /// # Errors
    /// [`TraceError`] when there is nothing to replay, or a request makes no sense; names the request by its place.
    pub fn finish(self, nested: NestedTimes) -> Result<Graph, TraceError> {
        let file = self.name.unwrap_or_default();
        let relative = match nested {
            NestedTimes::Absolute => false,
            NestedTimes::Relative => true,
            NestedTimes::Auto => self
                .documents
                .iter()
                .any(|(_, document)| begins_before_marker(&document.requests, f64::NEG_INFINITY)),
        };
        let mut builder = Builder {
            relative,
            block_tokens: self.block_tokens.unwrap_or(1),
            ..Builder::default()
        };
        let documents = self.documents.len();
        for (number, (file, document)) in self.documents.into_iter().enumerate() {
            let scope = document.hash_id_scope.unwrap_or(Scope::Local);
            builder.scope = (scope == Scope::Local).then_some(number);
            let play = document.id.clone();
            let agent = Agent {
                session: &play,
                play: &play,
                offset: 0.0,
                depth: 0,
            };
            builder
                .agent(document.requests, &agent)
                .map_err(|what| TraceError::File {
                    file,
                    what: format!("trace {play}: {what}"),
                })?;
        }
        if builder.requests.is_empty() {
            return Err(TraceError::File {
                file,
                what: "no requests in the trace".into(),
            });
        }
        // Plays are taken in the order of the files.
        let mut plays: HashMap<String, u64, FxBuildHasher> = HashMap::default();
        for request in &mut builder.requests {
            let next = plays.len() as u64;
            request.source_play_ordinal = Some(*plays.entry_ref(&request.play_id).or_insert(next));
        }
        for (request, placed) in builder.requests.iter_mut().zip(&builder.placed) {
            if request.dependencies.is_empty() {
                request.not_before_ms = ms(placed.start);
            }
        }
        Ok(Graph {
            origin: GraphOrigin {
                format: "weka".into(),
                digest: format!("traces:{documents};requests:{}", builder.requests.len()),
                models: builder.models.into_iter().collect(),
            },
            requests: builder.requests,
            block_tokens: builder.block_tokens,
            rules: Semantics::V1_6_1,
        })
    }
}

fn line(file: &str, error: &serde_json::Error) -> TraceError {
    TraceError::Line {
        file: file.to_owned(),
        line: error.line() as u64,
        what: placeless(error),
    }
}

/// Whether some nested time lies before the marker of its subagent.
fn begins_before_marker(items: &[Item], marker: f64) -> bool {
    items.iter().any(|item| match item {
        Item::Request(request) => request.t < marker,
        Item::Subagent(agent) => agent.t < marker || begins_before_marker(&agent.requests, agent.t),
    })
}

/// Whose requests are read.
struct Agent<'a> {
    session: &'a str,
    play: &'a str,
    /// What its times count from, s.
    offset: f64,
    depth: usize,
}

/// Seconds as ms, rounded to ns: sums of decimal fractions get rid of their tails.
fn ms(seconds: f64) -> f64 {
    (seconds * 1e9).round() / 1e6
}

#[derive(Default)]
struct Builder {
    relative: bool,
    block_tokens: u32,
    /// Trace whose hash ids mean something only within it.
    scope: Option<usize>,
    numbers: HashMap<(usize, u64), u64, FxBuildHasher>,
    requests: Vec<AgenticRequest>,
    placed: Vec<Placed>,
    models: BTreeSet<String>,
}

impl Builder {
    /// Adds the requests of an agent and of those it started.
    fn agent(&mut self, items: Vec<Item>, agent: &Agent<'_>) -> Result<Option<Span>, String> {
        if agent.depth > MAX_DEPTH {
            return Err(format!("subagents are nested deeper than {MAX_DEPTH}"));
        }
        let mut span: Option<Span> = None;
        let mut children: Vec<Span> = Vec::new();
        for (at, item) in items.into_iter().enumerate() {
            match item {
                Item::Request(request) => {
                    let number = self
                        .request(request, agent)
                        .map_err(|what| format!("requests[{at}] of {}: {what}", agent.session))?;
                    if let Some(span) = &span {
                        let wait = self.wait(span.last, number, Relation::Sequence);
                        self.requests[number].dependencies.push(wait);
                    }
                    for child in children
                        .drain(..)
                        .filter(|child| child.end <= self.placed[number].start)
                    {
                        let wait = self.wait(child.last, number, Relation::Join);
                        self.requests[number].dependencies.push(wait);
                    }
                    let end = self.placed[number].end.unwrap_or(self.placed[number].start);
                    span = Some(match span {
                        Some(span) => Span {
                            last: number,
                            end: span.end.max(end),
                            ..span
                        },
                        None => Span {
                            first: number,
                            last: number,
                            end,
                        },
                    });
                }
                Item::Subagent(child) => {
                    let session = format!("{}/{}", agent.session, child.agent_id);
                    let marker = agent.offset + child.t;
                    let inner = Agent {
                        session: &session,
                        play: agent.play,
                        offset: if self.relative { marker } else { 0.0 },
                        depth: agent.depth + 1,
                    };
                    let Some(child) = self.agent(child.requests, &inner)? else {
                        continue;
                    };
                    if let Some(span) = &span {
                        let wait = self.wait(span.last, child.first, Relation::Spawn);
                        self.requests[child.first].dependencies.push(wait);
                    }
                    children.push(child);
                }
            }
        }
        // Where the agent ends with subagents, whoever waits for it waits for the last of them.
        for child in children {
            span = Some(match span {
                Some(span) if span.end >= child.end => span,
                Some(span) => Span {
                    first: span.first,
                    ..child
                },
                None => child,
            });
        }
        Ok(span)
    }

    fn request(&mut self, request: Request, agent: &Agent<'_>) -> Result<usize, String> {
        let number = self.requests.len();
        let start = agent.offset + request.t;
        let longest = MAX_MS / 1e3;
        if !(0.0..=longest).contains(&start) {
            return Err(format!("t is {}, expected seconds from 0 to {longest:e}", request.t));
        }
        for (field, time) in [("api_time", request.api_time), ("think_time", request.think_time)] {
            if let Some(time) = time.filter(|time| !(0.0..=longest).contains(time)) {
                return Err(format!("{field} is {time}, expected seconds from 0 to {longest:e}"));
            }
        }
        let covered = u32::try_from(request.hash_ids.len())
            .unwrap_or(u32::MAX)
            .saturating_mul(self.block_tokens);
        if request.input == 0 || request.input > covered {
            let input = request.input;
            return Err(format!("in is {input}, expected 1 to {covered}, what hash_ids cover"));
        }
        for (field, tokens) in [("in", request.input), ("out", request.output)] {
            if tokens > MAX_TOKENS {
                return Err(format!("{field} is {tokens}, expected at most {MAX_TOKENS} tokens"));
            }
        }
        let model = request.model.unwrap_or_else(|| "unknown".into());
        self.models.insert(model.clone());
        let hash_ids = request.hash_ids.into_iter().map(|id| self.id(id)).collect();
        self.placed.push(Placed {
            start,
            end: request.api_time.map(|time| start + time),
            think: request.think_time.unwrap_or(0.0),
        });
        self.requests.push(AgenticRequest {
            request_id: format!("{}#{number}", agent.session),
            session_id: agent.session.to_owned(),
            play_id: agent.play.to_owned(),
            model,
            recorded_api_time_ms: request.api_time.map(ms),
            hash_ids,
            input_tokens: request.input,
            output_tokens: request.output,
            ..AgenticRequest::default()
        });
        Ok(number)
    }

    /// A hash id that means the same block everywhere.
    fn id(&mut self, id: u64) -> u64 {
        let Some(scope) = self.scope else { return id };
        // Numbers of local ids have the top bit, which keeps them apart from global ones.
        let fresh = 1 << 63 | self.numbers.len() as u64;
        *self.numbers.entry((scope, id)).or_insert(fresh)
    }

    /// The recorded wait of one request for another; only a spawned one can begin before the other's end.
    fn wait(&self, other: usize, of: usize, relation: Relation) -> Dependency {
        let after = relation != Relation::Spawn;
        let (before, now) = (&self.placed[other], &self.placed[of]);
        let (trigger, delay) = match before.end {
            Some(end) if after || end <= now.start => (Trigger::Completion, now.start - end),
            None if after => (Trigger::Completion, now.think),
            Some(_) | None => (Trigger::Dispatch, now.start - before.start),
        };
        Dependency {
            request_id: self.requests[other].request_id.clone(),
            trigger,
            delay_ms: ms(delay.max(0.0)),
            relation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = r#"{"id":"w","models":["m"],"block_size":4,"hash_id_scope":"local","tool_tokens":1,"requests":[
      {"type":"n","t":1.0,"model":"m","in":8,"out":3,"hash_ids":[1,2],"api_time":0.5,"stop":"x"},
      {"type":"subagent","t":1.6,"agent_id":"a","status":"ok","requests":[
        {"type":"s","t":1.7,"model":"m2","in":4,"out":0,"hash_ids":[9],"api_time":0.2},
        {"type":"n","t":2.0,"model":"m2","in":4,"out":1,"hash_ids":[9],"api_time":0.5}]},
      {"type":"n","t":3.0,"model":"m","in":12,"out":3,"hash_ids":[1,2,3],"api_time":0.5}]}"#;

    fn graph(text: &str, nested: NestedTimes) -> Result<Graph, TraceError> {
        let mut reader = WekaReader::new(None);
        reader.read("w.json", text.as_bytes())?;
        reader.finish(nested)
    }

    fn waits(request: &AgenticRequest) -> Vec<(&str, Trigger, f64)> {
        let wait = |edge: &Dependency| (edge.trigger, (edge.delay_ms * 1e6).round() / 1e6);
        let names = request.dependencies.iter().map(|edge| edge.request_id.as_str());
        let waits = request.dependencies.iter().map(wait);
        names
            .zip(waits)
            .map(|(name, (trigger, delay))| (name, trigger, delay))
            .collect()
    }

    #[test]
    fn subagents_are_spawned_and_joined_with_the_recorded_pauses() {
        let graph = graph(TRACE, NestedTimes::Auto).unwrap();
        let [first, child, second, last] = graph.requests.as_slice() else {
            panic!("{:?}", graph.requests)
        };
        assert_eq!((first.not_before_ms, waits(first)), (1000.0, vec![]));
        assert_eq!(waits(child), [("w#0", Trigger::Completion, 200.0)]);
        assert_eq!((child.output_tokens, child.session_id.as_str()), (0, "w/a"));
        assert_eq!(waits(second), [("w/a#1", Trigger::Completion, 100.0)]);
        assert_eq!(
            waits(last),
            [
                ("w#0", Trigger::Completion, 1500.0),
                ("w/a#2", Trigger::Completion, 500.0)
            ]
        );
        assert_eq!(graph.origin.models, ["m", "m2"]);
        assert_eq!(first.hash_ids, last.hash_ids[..2]);
    }

    #[test]
    fn nested_times_count_from_the_marker_when_one_lies_before_it() {
        let text = TRACE
            .replace(r#""t":1.7"#, r#""t":0.1"#)
            .replace(r#""t":2.0"#, r#""t":0.4"#);
        let relative = graph(&text, NestedTimes::Auto).unwrap();
        assert_eq!(waits(&relative.requests[1]), [("w#0", Trigger::Completion, 200.0)]);
        let absolute = graph(&text, NestedTimes::Absolute).unwrap();
        assert_eq!(waits(&absolute.requests[1]), [("w#0", Trigger::Dispatch, 0.0)]);
    }

    #[test]
    fn ids_of_different_traces_are_different_blocks_unless_they_are_global() {
        let two = |text: String| {
            let graph = graph(
                &format!("{text}\n{}", text.replace(r#""id":"w""#, r#""id":"v""#)),
                NestedTimes::Auto,
            );
            let graph = graph.unwrap();
            graph.requests[0].hash_ids == graph.requests[4].hash_ids
        };
        assert!(!two(TRACE.to_owned()));
        assert!(two(TRACE.replace("local", "global")));
    }

    #[test]
    fn every_refusal_names_the_place() {
        for (text, expected) in [
            (
                TRACE.replace(r#""in":4"#, r#""in":5"#),
                "w.json: trace w: requests[0] of w/a: in is 5, expected 1 to 4",
            ),
            (TRACE.replace(r#""in":12"#, r#""in":"x""#), "w.json, line "),
            (
                TRACE.replace(r#""block_size":4,"#, ""),
                "w.json, line 6: missing field `block_size`",
            ),
            (
                TRACE.replace(r#""block_size":4"#, r#""block_size":0"#),
                "w.json: block_size of trace w is 0",
            ),
            (
                TRACE.replace(r#""t":3.0"#, r#""t":-3.0"#),
                "w.json: trace w: requests[2] of w: t is -3",
            ),
            (format!("{TRACE} x"), "w.json, line 6: expected value"),
            (TRACE[..300].to_owned(), "w.json, line "),
            (String::new(), "w.json: no requests in the trace"),
        ] {
            let error = graph(&text, NestedTimes::Auto).err().map(|error| error.to_string());
            assert!(
                error.as_ref().is_some_and(|error| error.starts_with(expected)),
                "{error:?} {expected}"
            );
        }
    }
}
