//! Agentic Mooncake: requests that wait for one another.
//!
//! Two forms. With a header line `{"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": N, ...}` rows have
//! `play_id`, `not_before_ms` and `dependencies` and are played by the rules of Dynamo 1.6.1, which knows no other; without
//! one they have `wait_for`, `delay` and `tool_wait_ms` and are played by those of 1.4.2, which knows no header.

use std::collections::BTreeSet;
use std::io::BufRead;
use std::sync::Arc;

use serde::Deserialize;

use crate::engine::Semantics;
use crate::types::Tokens;

use super::super::agentic::{AgenticRequest, Dependency, Graph, GraphOrigin, IdSink, IdStore, Relation, Trigger};
use super::line::{Lines, TraceError, spooling};
use super::mooncake::ALIASES;

const SCHEMA: &str = "dynamo.agentic_mooncake";

#[derive(Deserialize)]
struct Header {
    schema: Option<String>,
    version: Option<u64>,
    block_size: Option<u32>,
    hash_id_scope: Option<String>,
    source: Option<Origin>,
}

#[derive(Deserialize)]
struct Origin {
    #[serde(default)]
    format: String,
    #[serde(default)]
    digest: String,
}

/// What rows of both forms have. The fields of the other form do not count in either.
#[derive(Deserialize)]
struct Row {
    request_id: Option<String>,
    session_id: Option<String>,
    #[serde(alias = "input_tokens")]
    input_length: Option<u32>,
    #[serde(alias = "output_tokens")]
    output_length: Option<u32>,
    output_token_ids: Option<Vec<u32>>,
    hash_ids: Option<Vec<u64>>,
    /// Number of hash ids, which go elsewhere.
    #[serde(skip)]
    blocks: Option<usize>,
    priority: Option<i32>,
    strict_priority: Option<u32>,
    policy_class: Option<Arc<str>>,
}

/// What rows without a header have besides.
#[derive(Deserialize)]
struct First {
    #[serde(alias = "created_time")]
    timestamp: Option<f64>,
    #[serde(alias = "delay_ms")]
    delay: Option<f64>,
    tool_wait_ms: Option<f64>,
    #[serde(default)]
    wait_for: Vec<String>,
    #[serde(rename = "prefix_reset")]
    _prefix_reset: Option<bool>,
}

/// What rows below a header have besides.
#[derive(Deserialize)]
struct Second {
    play_id: Option<String>,
    source_play_ordinal: Option<u64>,
    model: Option<String>,
    not_before_ms: Option<f64>,
    recorded_api_time_ms: Option<f64>,
    #[serde(default)]
    dependencies: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    request_id: String,
    trigger: Trigger,
    delay_ms: f64,
    relation: Relation,
}

/// Reads a whole trace, its hash ids into `ids`; `block_tokens` is the wanted number of tokens per hash id,
/// `default_tokens` that of files that do not say it.
///
/// # Errors
/// [`TraceError`] names the line and the field.
pub fn read<R: BufRead>(
    mut lines: Lines<R>,
    block_tokens: Option<u32>,
    default_tokens: u32,
    mut ids: IdSink,
) -> Result<Graph, TraceError> {
    let mut graph = Graph {
        requests: Vec::new(),
        block_tokens: block_tokens.unwrap_or(default_tokens),
        origin: GraphOrigin::default(),
        rules: Semantics::V1_4_2,
        ids: IdStore::default(),
    };
    let mut first = true;
    let mut earliest = f64::INFINITY;
    while lines.advance()? {
        if std::mem::take(&mut first) {
            let header: Header = lines.parse(&[])?;
            if header.schema.is_some() {
                graph.block_tokens = header.check(&lines, block_tokens)?;
                if let Some(Origin { format, digest }) = header.source {
                    graph.origin.format = format;
                    graph.origin.digest = digest;
                }
                graph.rules = Semantics::V1_6_1;
                continue;
            }
        }
        let mut row: Row = lines.parse(&ALIASES)?;
        let hash_ids = row.hash_ids.take();
        row.blocks = hash_ids.as_ref().map(Vec::len);
        let mut request = match graph.rules {
            Semantics::V1_6_1 => row.second(&lines, graph.block_tokens)?,
            Semantics::V1_4_2 => row.first(&lines, graph.block_tokens, &mut earliest)?,
        };
        request.hash_ids = ids.put(hash_ids.unwrap_or_default()).map_err(spooling)?;
        graph.requests.push(request);
    }
    graph.ids = ids.finish().map_err(spooling)?;
    if graph.requests.is_empty() {
        return Err(lines.wrong_file("no requests in the trace"));
    }
    let models: BTreeSet<&str> = graph.requests.iter().map(|request| request.model.as_str()).collect();
    graph.origin.models = models.into_iter().map(str::to_owned).collect();
    if graph.rules == Semantics::V1_4_2 {
        for request in &mut graph.requests {
            // Who has no time stamp comes with the earliest.
            request.not_before_ms = (request.not_before_ms - earliest).max(0.0);
        }
        graph.origin.format = "agentic_mooncake".into();
        graph.origin.digest = format!("requests:{}", graph.requests.len());
    }
    Ok(graph)
}

impl Header {
    fn check<R: BufRead>(&self, lines: &Lines<R>, wanted: Option<u32>) -> Result<u32, TraceError> {
        if self.schema.as_deref() != Some(SCHEMA) || self.version != Some(2) {
            return Err(lines.wrong(format!("the header's schema and version must be {SCHEMA} and 2")));
        }
        if self.hash_id_scope.as_deref() != Some("local") {
            return Err(lines.wrong("the header's hash_id_scope must be local"));
        }
        let named = self.source.as_ref().filter(|source| {
            let texts = [&source.format, &source.digest];
            texts.iter().all(|text| !text.trim().is_empty())
        });
        if named.is_none() {
            return Err(lines.wrong("the header's source must have a format and a digest"));
        }
        let found = self.block_size.filter(|&size| size > 0);
        let found = found.ok_or_else(|| lines.wrong("the header's block_size must be at least 1"))?;
        match wanted.filter(|&wanted| wanted != found) {
            Some(wanted) => Err(lines.wrong(format!("block_size is {found} but --trace-block-size is {wanted}"))),
            None => Ok(found),
        }
    }
}

impl Row {
    /// What both forms have.
    fn common<R: BufRead>(&self, lines: &Lines<R>, block_tokens: u32) -> Result<AgenticRequest, TraceError> {
        let missing = |field: &str| lines.wrong(format!("{field} is missing or empty; every request needs it"));
        let request_id = self.request_id.clone().filter(|id| !id.trim().is_empty());
        let request_id = request_id.ok_or_else(|| missing("request_id"))?;
        let ids = self.blocks.ok_or_else(|| missing("hash_ids"))?;
        let output_tokens = self.output_length.ok_or_else(|| missing("output_length"))?;
        let covered = u32::try_from(ids).unwrap_or(u32::MAX).saturating_mul(block_tokens);
        let input_tokens = self.input_length.unwrap_or(covered);
        if input_tokens > covered {
            return Err(lines.wrong(format!(
                "input_length is {input_tokens}, but {ids} hash_ids of {block_tokens} tokens cover {covered}"
            )));
        }
        if input_tokens == 0 {
            return Err(lines.wrong("the prompt is empty; expected input_length above 0 and at least one of hash_ids"));
        }
        lines.check_tokens("input_length", input_tokens)?;
        lines.check_tokens("output_length", output_tokens)?;
        let planned: Option<Tokens> = self.output_token_ids.as_deref().map(Into::into);
        if let Some(ids) = planned.as_ref().filter(|ids| ids.len() != output_tokens as usize) {
            let found = ids.len();
            return Err(lines.wrong(format!(
                "output_token_ids has {found} entries, expected output_length, {output_tokens}"
            )));
        }
        Ok(AgenticRequest {
            session_id: self
                .session_id
                .clone()
                .unwrap_or_else(|| format!("request_{}", lines.number())),
            model: "unknown".into(),
            input_tokens,
            output_tokens,
            planned,
            priority: self.priority.unwrap_or(0),
            strict_priority: self.strict_priority.unwrap_or(0),
            policy_class: self.policy_class.clone(),
            place: lines.place(),
            request_id,
            ..AgenticRequest::default()
        })
    }

    /// `earliest` becomes the earliest time stamp so far.
    fn first<R: BufRead>(
        &self,
        lines: &Lines<R>,
        block_tokens: u32,
        earliest: &mut f64,
    ) -> Result<AgenticRequest, TraceError> {
        let mut request = self.common(lines, block_tokens)?;
        let form: First = lines.parse(&ALIASES)?;
        let (delay, tool_wait) = (form.delay.unwrap_or(0.0), form.tool_wait_ms.unwrap_or(0.0));
        let delay_ms = delay + tool_wait;
        let field = if tool_wait == 0.0 {
            "delay"
        } else {
            "delay + tool_wait_ms"
        };
        lines.check_wait(field, delay_ms)?;
        if let Some(timestamp) = form.timestamp {
            lines.check_wait("timestamp", timestamp)?;
            *earliest = earliest.min(timestamp);
        }
        if form.wait_for.is_empty() {
            request.not_before_ms = form.timestamp.unwrap_or(0.0);
        }
        let wait = |other: &String| Dependency {
            request_id: other.clone(),
            trigger: Trigger::Completion,
            delay_ms,
            relation: Relation::Sequence,
        };
        request.dependencies = form.wait_for.iter().map(wait).collect();
        Ok(request)
    }

    fn second<R: BufRead>(&self, lines: &Lines<R>, block_tokens: u32) -> Result<AgenticRequest, TraceError> {
        let mut request = self.common(lines, block_tokens)?;
        let form: Second = lines.parse(&[])?;
        let missing = |field: &str| lines.wrong(format!("{field} is missing or empty; rows below a header need it"));
        for (field, value) in [
            ("play_id", &form.play_id),
            ("session_id", &self.session_id),
            ("model", &form.model),
        ] {
            if value.as_deref().is_none_or(|value| value.trim().is_empty()) {
                return Err(missing(field));
            }
        }
        if self.input_length.is_none() {
            return Err(missing("input_length"));
        }
        let (ids, blocks) = (self.blocks.unwrap_or(0), request.input_tokens.div_ceil(block_tokens));
        if ids != blocks as usize {
            let input_tokens = request.input_tokens;
            return Err(lines.wrong(format!(
                "hash_ids has {ids} entries, expected {blocks}, the blocks of {block_tokens} tokens that input_length, \
                 {input_tokens}, fills"
            )));
        }
        for (field, value) in [
            ("not_before_ms", form.not_before_ms),
            ("recorded_api_time_ms", form.recorded_api_time_ms),
        ] {
            lines.check_wait(field, value.unwrap_or(0.0))?;
        }
        request.play_id = form.play_id.unwrap_or_default();
        request.model = form.model.unwrap_or_default();
        request.source_play_ordinal = form.source_play_ordinal;
        request.recorded_api_time_ms = form.recorded_api_time_ms;
        request.not_before_ms = form.not_before_ms.ok_or_else(|| missing("not_before_ms"))?;
        for (at, edge) in form.dependencies.iter().enumerate() {
            let delay = edge.delay_ms;
            lines.check_wait(format_args!("dependencies[{at}].delay_ms"), delay)?;
            if !edge.relation.can_wait_for(edge.trigger) {
                return Err(lines.wrong(format!(
                    "dependencies[{at}].trigger is dispatch, expected completion unless its relation is spawn"
                )));
            }
            request.dependencies.push(Dependency {
                request_id: edge.request_id.clone(),
                trigger: edge.trigger,
                delay_ms: delay,
                relation: edge.relation,
            });
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"{"schema":"dynamo.agentic_mooncake","version":2,"block_size":8,"hash_id_scope":"local","source":{"format":"f","digest":"d"}}"#;
    const ROW: &str = r#""request_id":"a","output_length":1,"hash_ids":[1]"#;

    fn graph(text: &str) -> Result<Graph, TraceError> {
        read(Lines::new("t", text.as_bytes()), None, 512, IdSink::default())
    }

    #[test]
    fn a_header_brings_block_size_and_origin_and_asks_for_more_fields() {
        let row = format!(
            r#"{{{ROW},"play_id":"p","session_id":"s","not_before_ms":1,"model":"m","input_length":8,"policy_class":"c"}}"#
        );
        let found = graph(&format!("{HEADER}\n{row}")).unwrap();
        assert_eq!((found.block_tokens, found.requests[0].input_tokens), (8, 8));
        assert_eq!(found.requests[0].policy_class.as_deref(), Some("c"));
        let origin = (found.origin.format.as_str(), found.origin.digest.as_str());
        assert_eq!((origin, found.origin.models), (("f", "d"), vec!["m".to_owned()]));
    }

    #[test]
    fn every_refusal_names_line_and_field() {
        let below = |field: &str| format!("{HEADER}\n{{{ROW},{field}}}");
        for (text, expected) in [
            (format!("{HEADER}\n{{{ROW}}}"), "t, line 2: play_id is missing"),
            (
                format!(r#"{{{ROW},"play_id":"p"}}"#).replace("hash_ids", "x"),
                "t, line 1: hash_ids is missing",
            ),
            (
                format!(r#"{{{ROW},"wait_for":"b"}}"#),
                "t, line 1: wait_for is \"b\", expected an array",
            ),
            (
                format!(r#"{{{ROW},"input_length":513}}"#),
                "t, line 1: input_length is 513, but 1 hash_ids of 512",
            ),
            (format!(r#"{{{ROW},"delay":-1}}"#), "t, line 1: delay is -1, expected"),
            (
                format!(r#"{{{ROW},"timestamp":5e12}}"#),
                "t, line 1: timestamp is 5000000000000, expected ms from 0 to 4e12",
            ),
            (
                format!(r#"{{{ROW},"timestamp":"x"}}"#),
                "t, line 1: timestamp is \"x\", expected a number",
            ),
            (
                below(r#""dependencies":5"#),
                "t, line 2: dependencies is 5, expected an array",
            ),
            (
                below(r#""dependencies":[{"request_id":"a","trigger":"zz"}]"#),
                "t, line 2: dependencies[0].trigger is \"zz\", expected dispatch or completion",
            ),
            (
                below(r#""dependencies":[{"request_id":"a","trigger":null}]"#),
                "t, line 2: dependencies[0].trigger is null, expected a string",
            ),
            (
                below(r#""dependencies":[{"request_id":"a","trigger":[]}]"#),
                "t, line 2: dependencies[0].trigger is an array, expected a string",
            ),
            (
                below(r#""dependencies":[{"request_id":"a","trigger":{}}]"#),
                "t, line 2: dependencies[0].trigger is an object, expected a string",
            ),
            (
                below(r#""dependencies":[{"request_id":"a","trigger":"dispatch","relation":"spawn"}]"#),
                "t, line 2: dependencies[0].delay_ms is missing",
            ),
            (
                below(
                    r#""play_id":"p","session_id":"s","model":"m","not_before_ms":0,"input_length":8,"dependencies":[{"request_id":"a","trigger":"completion","relation":"sequence","delay_ms":-1}]"#,
                ),
                "t, line 2: dependencies[0].delay_ms is -1, expected ms from 0 to 4e12",
            ),
            (
                below(
                    r#""play_id":"p","session_id":"s","model":"m","not_before_ms":0,"input_length":8,"dependencies":[{"request_id":"a","trigger":"dispatch","relation":"join","delay_ms":0}]"#,
                ),
                "t, line 2: dependencies[0].trigger is dispatch, expected completion",
            ),
            (
                HEADER.replace(r#"{"format":"f","digest":"d"}"#, "5"),
                "t, line 1: source is 5, expected an object",
            ),
            (HEADER.replace('2', "3"), "t, line 1: the header's schema and version"),
            (HEADER.to_owned(), "t: no requests in the trace"),
        ] {
            let error = graph(&text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
