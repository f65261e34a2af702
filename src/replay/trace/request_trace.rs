//! `dynamo.request.trace.v1`: what Dynamo frontends write down about requests.
//!
//! A line is a record or `{"event": record}`. Without `agent_context` requests come at their recorded times; with it they
//! make a graph ([`super::agent_sessions`]). Source: Dynamo 1.6.1 replay.

use std::io::BufRead;

use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::engine::Semantics;
use crate::plain_words::number;

use super::super::agentic::{Graph, HashIds, IdSink, IdStore, Place};
use super::super::sessions::{SessionTrace, TurnSpec};
use super::agent_sessions;
use super::line::{Lines, TraceError, spooling};
use super::request_record::{AgentContext, Claude, Edge, Envelope, Head, Record, Replay, Request, Tool};

pub(super) const SCHEMA: &str = "dynamo.request.trace.v1";

/// A tool call and the session that made it.
pub(super) struct Call {
    pub(super) place: Place,
    pub(super) name: String,
    pub(super) session: String,
    pub(super) claude: Claude,
}

/// A trace by its form.
#[derive(Debug)]
pub enum RequestTrace {
    /// Requests at their times.
    Independent(SessionTrace),
    /// Sessions of agents.
    Agentic(Graph),
}

/// One request.
pub(super) struct Found {
    pub(super) place: Place,
    pub(super) request_id: String,
    pub(super) model: Option<String>,
    /// Times, ms of the Unix clock.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) hash_ids: HashIds,
    pub(super) input_tokens: u32,
    pub(super) output_tokens: u32,
    pub(super) agent: Option<AgentContext>,
    pub(super) dependencies: Vec<Edge>,
}

/// Reads shards one after the other.
#[derive(Default)]
pub struct RequestTraceReader {
    found: Vec<Found>,
    names: HashSet<String, FxBuildHasher>,
    calls: Vec<Call>,
    tools: u64,
    block_tokens: Option<u32>,
    rules: Semantics,
    name: Option<String>,
    ids: IdSink,
}

impl RequestTraceReader {
    /// A reader by the rules of a release; `block_tokens` is what the trace's block size has to be, if anything.
    pub fn new(block_tokens: Option<u32>, rules: Semantics) -> Self {
        Self {
            block_tokens,
            rules,
            ..Self::default()
        }
    }

    /// Has the hash ids of what is read go there.
    #[must_use]
    pub fn with_ids(mut self, ids: IdSink) -> Self {
        self.ids = ids;
        self
    }

    /// Reads one shard.
    ///
    /// # Errors
    /// [`TraceError`] names the line and the field.
    pub fn read<R: BufRead>(&mut self, mut lines: Lines<R>) -> Result<(), TraceError> {
        self.name.get_or_insert_with(|| lines.file().to_owned());
        while let Some(mut found) = self.next_request(&mut lines)? {
            if !self.names.insert(found.request_id.clone()) {
                let name = &found.request_id;
                return Err(lines.wrong(format!(
                    "request.request_id is {name}, as in a line before; expected a name of its own"
                )));
            }
            if let HashIds::Here(ids) = std::mem::take(&mut found.hash_ids) {
                found.hash_ids = self.ids.put(ids).map_err(spooling)?;
            }
            self.found.push(found);
        }
        Ok(())
    }

    /// The next request of a shard; tool calls before it are taken in.
    pub(super) fn next_request<R: BufRead>(&mut self, lines: &mut Lines<R>) -> Result<Option<Found>, TraceError> {
        while lines.advance()? {
            if let Some(found) = self.line(lines)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The request in the line that was read last, if it is one.
    pub(super) fn line<R: BufRead>(&mut self, lines: &Lines<R>) -> Result<Option<Found>, TraceError> {
        if !lines.is_object()? {
            return Ok(None);
        }
        let envelope: Envelope<'_> = lines.read()?;
        let old = self.rules == Semantics::V1_4_2;
        let is_object = |event: &RawValue| event.get().starts_with('{');
        let names_nothing = |kind: Option<&Value>| kind.is_some_and(|kind| !kind.is_string());
        if old && (names_nothing(envelope.event_type.as_ref()) || envelope.event.is_some_and(|event| !is_object(event)))
        {
            return Ok(None);
        }
        let inner: Option<Head> = envelope.event.map(|event| lines.read_part(event.get())).transpose()?;
        let inner = inner.and_then(|head| head.event_type);
        if old && names_nothing(inner.as_ref()) {
            return Ok(None);
        }
        let event_type = inner.or(envelope.event_type);
        let ends_request = match event_type.as_ref().and_then(Value::as_str) {
            Some("request_payload" | "tool_start") => return Ok(None),
            Some("request_end") => true,
            Some("tool_end" | "tool_error") => false,
            other => {
                let found = other.map(str::to_owned).or(event_type.as_ref().map(Value::to_string));
                let found = found.as_deref().unwrap_or("missing");
                return Err(lines.wrong(format!(
                    "event_type is {found}, expected request_end, request_payload, tool_start, tool_end or tool_error"
                )));
            }
        };
        let record: Record<Vec<Edge>> = match envelope.event {
            Some(event) if old => lines.read_part::<Record<IgnoredAny>>(event.get())?.unlinked(),
            None if old => lines.read::<Record<IgnoredAny>>()?.unlinked(),
            Some(event) => lines.read_part(event.get())?,
            None => lines.read()?,
        };
        if record.schema.as_deref() != Some(SCHEMA) {
            let found = record.schema.as_deref().unwrap_or("missing");
            return Err(lines.wrong(format!("schema is {found}, expected {SCHEMA}")));
        }
        if record.event_type.is_none() {
            return Err(lines.wrong("event.event_type is missing, expected that of the record"));
        }
        let recorded = record.event_time_unix_ms;
        let recorded = recorded.ok_or_else(|| lines.wrong("event_time_unix_ms is missing; every record needs it"))?;
        if ends_request {
            return self.request(lines, record, recorded).map(Some);
        }
        self.tool(lines, record, recorded)?;
        Ok(None)
    }

    fn request<R: BufRead>(
        &mut self,
        lines: &Lines<R>,
        record: Record<Vec<Edge>>,
        recorded: u64,
    ) -> Result<Found, TraceError> {
        let missing = |field: &str| lines.wrong(format!("{field} is missing; a request_end record needs it"));
        let request = record.request.ok_or_else(|| missing("request"))?;
        if self.rules == Semantics::V1_4_2 && request.request_received_ms.is_none() {
            return Err(lines.wrong("request.request_received_ms is missing; the rules of Dynamo 1.4.2 need it"));
        }
        let (start, end) = self.times(lines, recorded, &request)?;
        let replay = request.replay.ok_or_else(|| missing("request.replay"))?;
        let size = replay.trace_block_size;
        if size == 0 {
            return Err(lines.wrong("request.replay.trace_block_size is 0, expected at least 1"));
        }
        if *self.block_tokens.get_or_insert(size) != size {
            let before = self.block_tokens.unwrap_or(0);
            return Err(lines.wrong(format!(
                "request.replay.trace_block_size is {size}, expected {before} as before or as --trace-block-size says"
            )));
        }
        let agentic = record.agent_context.is_some();
        let strict = self.rules == Semantics::V1_6_1;
        if request.request_id.trim().is_empty() && (strict || agentic) {
            return Err(missing("request.request_id"));
        }
        if let Some(agent) = record
            .agent_context
            .as_ref()
            .filter(|agent| strict && agent.session_id.trim().is_empty())
        {
            let session = &agent.session_id;
            return Err(lines.wrong(format!("agent_context.session_id is {session:?}, expected a name")));
        }
        if strict && agentic && request.model.as_deref().is_some_and(|model| model.trim().is_empty()) {
            return Err(lines.wrong("request.model is empty, expected a name or none"));
        }
        let input_tokens = self.input_tokens(lines, &replay, agentic)?;
        let output_tokens = request.output_tokens;
        let output_tokens = output_tokens.ok_or_else(|| missing("request.output_tokens"))?;
        lines.check_tokens("request.replay.input_length", input_tokens)?;
        lines.check_tokens("request.output_tokens", output_tokens)?;
        Ok(Found {
            place: lines.place(),
            request_id: request.request_id,
            model: request.model,
            start,
            end,
            hash_ids: replay.input_sequence_hashes.into(),
            input_tokens,
            output_tokens,
            agent: record.agent_context,
            dependencies: replay.dependencies,
        })
    }

    /// Tokens per hash id, as far as it is known.
    pub(super) fn block_tokens(&self) -> Option<u32> {
        self.block_tokens
    }

    /// Prompt tokens, which have to reach into the last block; where requests are independent Dynamo 1.6.1 takes fewer.
    fn input_tokens<R: BufRead>(
        &self,
        lines: &Lines<R>,
        replay: &Replay<Vec<Edge>>,
        agentic: bool,
    ) -> Result<u32, TraceError> {
        let size = replay.trace_block_size;
        let hashes = replay.input_sequence_hashes.len();
        let covered = u32::try_from(hashes).unwrap_or(u32::MAX).saturating_mul(size);
        let length = replay.input_length;
        if hashes == 0 {
            return Err(lines.wrong(format!(
                "request.replay.input_sequence_hashes is empty, expected one for each {size} tokens of the prompt"
            )));
        }
        let exact = agentic || self.rules == Semantics::V1_4_2;
        let least = if exact { covered.saturating_sub(size) + 1 } else { 1 };
        if (least..=covered).contains(&length) {
            return Ok(length);
        }
        let expected = format!("{least} to {covered}");
        Err(lines.wrong(format!(
            "request.replay.input_length is {length} with {hashes} input_sequence_hashes of {size} tokens, expected {expected}"
        )))
    }

    fn tool<R: BufRead>(
        &mut self,
        lines: &Lines<R>,
        record: Record<Vec<Edge>>,
        recorded: u64,
    ) -> Result<(), TraceError> {
        let (Some(agent), Some(tool)) = (record.agent_context, record.tool) else {
            return Ok(());
        };
        let end = tool.ended_at_unix_ms.unwrap_or(recorded);
        let began_later = tool.started_at_unix_ms.filter(|&start| end < start);
        if self.rules == Semantics::V1_4_2 {
            // What cannot be is left out.
            if began_later.is_none() {
                self.keep(lines, agent, tool);
            }
            return Ok(());
        }
        for (field, value) in [
            ("agent_context.session_id", &agent.session_id),
            ("tool.tool_call_id", &tool.tool_call_id),
            ("tool.tool_class", &tool.tool_class),
        ] {
            if value.trim().is_empty() {
                return Err(lines.wrong(format!("{field} is {value:?}, expected a name")));
            }
        }
        if let Some(took) = tool.duration_ms.filter(|took| !took.is_finite() || *took < 0.0) {
            return Err(lines.wrong(format!("tool.duration_ms is {}, expected ms from 0 on", number(took))));
        }
        if let Some(start) = began_later {
            return Err(lines.wrong(format!(
                "tool.ended_at_unix_ms is {end}, expected at least tool.started_at_unix_ms, {start}"
            )));
        }
        self.keep(lines, agent, tool);
        Ok(())
    }

    fn keep<R: BufRead>(&mut self, lines: &Lines<R>, agent: AgentContext, tool: Tool) {
        self.tools += 1;
        self.calls.extend(tool.claude.map(|claude| Call {
            place: lines.place(),
            name: tool.tool_call_id,
            session: agent.session_id,
            claude,
        }));
    }

    /// Begin and end of a request, ms of the Unix clock.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn times<R: BufRead>(
        &self,
        lines: &Lines<R>,
        recorded: u64,
        request: &Request<Vec<Edge>>,
    ) -> Result<(u64, u64), TraceError> {
        let mut total = request.total_time_ms;
        if self.rules == Semantics::V1_4_2 {
            total = total.map(|total| total.max(0.0));
        }
        lines.check_wait("request.total_time_ms", total.unwrap_or(0.0))?;
        #[allow(clippy::cast_precision_loss)]
        for (field, ms) in [
            ("event_time_unix_ms", Some(recorded)),
            ("request.request_received_ms", request.request_received_ms),
        ] {
            lines.check_time(field, ms.unwrap_or(0) as f64)?;
        }
        let total = total.map(|total| total.round() as u64);
        Ok(match (request.request_received_ms, total) {
            (Some(start), Some(total)) => (start, start.saturating_add(total)),
            (Some(start), None) if self.rules == Semantics::V1_4_2 => (start, recorded.max(start)),
            (Some(start), None) => (start, recorded),
            (None, total) => (recorded.saturating_sub(total.unwrap_or(0)), recorded),
        })
    }

    /// The trace.
    ///
    /// # Errors
    /// [`TraceError`] when there is nothing to replay, requests with and without `agent_context` are mixed, or what is
    /// said about sessions makes no sense.
    pub fn finish(mut self) -> Result<RequestTrace, TraceError> {
        let file = self.name.take().unwrap_or_default();
        let wrong = |what: String| TraceError::File { file, what };
        if self.found.is_empty() {
            return Err(wrong("no requests in the trace".into()));
        }
        let key = |found: &Found| (found.start, found.end, found.request_id.clone());
        self.found.sort_by_cached_key(key);
        let agents = self.found.iter().filter(|found| found.agent.is_some()).count();
        let ids = std::mem::take(&mut self.ids).finish().map_err(spooling)?;
        if agents == 0 {
            return Ok(RequestTrace::Independent(self.independent(&ids).map_err(spooling)?));
        }
        if agents < self.found.len() {
            let plain = self.found.len() - agents;
            let first = self.found.iter().find(|found| found.agent.is_none());
            let place = first.map(|found| found.place.clone()).unwrap_or_default();
            return Err(TraceError::at(
                &place,
                format!(
                    "agent_context is missing: {agents} requests have an agent_context and {plain} have none; replay them as \
                     separate traces"
                ),
            ));
        }
        let trace = agent_sessions::AgentTrace {
            found: self.found,
            calls: self.calls,
            tools: self.tools,
            block_tokens: self.block_tokens.unwrap_or(1),
            ids,
        };
        Ok(RequestTrace::Agentic(trace.graph(self.rules)?))
    }

    fn independent(self, ids: &IdStore) -> std::io::Result<SessionTrace> {
        let mut trace = SessionTrace::new(self.block_tokens.unwrap_or(1), false, "request_").of_requests();
        let first = self.found.first().map_or(0, |found| found.start);
        for (number, found) in (1..).zip(self.found) {
            #[allow(clippy::cast_precision_loss)]
            let start_ms = (found.start - first) as f64;
            let spec = TurnSpec {
                hash_ids: ids.get(&found.hash_ids)?.into_owned(),
                input_tokens: found.input_tokens,
                output_tokens: found.output_tokens,
                start_ms: Some(start_ms),
                ..TurnSpec::default()
            };
            trace.open(None, number, spec);
        }
        Ok(trace)
    }
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
                "request.replay.input_length is \"x\", expected a whole number from 0 to 4294967295",
            ),
            (
                good.replace(r#""request_id":"#, r#""id":"#),
                "request.request_id is missing",
            ),
            (
                good.replace(r#""output_tokens":1,"#, ""),
                "request.output_tokens is missing",
            ),
            (
                good.replace("[1]", "[-1]"),
                "request.replay.input_sequence_hashes[0] is -1, expected a whole number from 0 on",
            ),
            (
                good.replace("request.trace.v1", "other"),
                "schema is dynamo.other, expected dynamo.request.trace.v1",
            ),
            (
                format!(r#"{{"event":{}}}"#, good.replace("[1]", "[]")),
                "request.replay.input_sequence_hashes is empty, expected one for each 4 tokens",
            ),
            (
                format!("{good}\n{good}"),
                "request.request_id is request_end0, as in a line before",
            ),
            ("{".into(), "not JSON"),
        ] {
            let mut reader = RequestTraceReader::new(None, Semantics::V1_6_1);
            let text = format!("17\n{text}");
            let error = reader.read(Lines::new("t", text.as_bytes())).unwrap_err().to_string();
            assert!(
                error.starts_with("t, line ") && error.contains(&format!(": {expected}")),
                "{error}"
            );
        }
    }

    #[test]
    fn rows_are_read_as_each_release_reads_them() {
        let read = |rules, text: &str| {
            let mut reader = RequestTraceReader::new(None, rules);
            let read = reader.read(Lines::new("t", text.as_bytes()));
            read.map(|()| reader.found.len()).map_err(|error| error.to_string())
        };
        let (new, old) = (Semantics::V1_6_1, Semantics::V1_4_2);
        let bare = line("request_end", "");
        assert_eq!(read(new, &bare), Ok(1));
        let error = read(old, &bare).unwrap_err();
        assert!(
            error.starts_with("t, line 1: request.request_received_ms is missing"),
            "{error}"
        );
        let full = bare.replace(
            r#""output_tokens":1"#,
            r#""output_tokens":1,"request_received_ms":7,"total_time_ms":-5"#,
        );
        assert_eq!(read(old, &full), Ok(1));
        assert!(read(new, &full).unwrap_err().contains("total_time_ms is -5"));
        let full = full.replace("-5", "5");
        for (from, to) in [
            (r#""event_type":"request_end""#, r#""event_type":5"#),
            (
                r#""input_sequence_hashes":[1]"#,
                r#""input_sequence_hashes":[1],"dependencies":5"#,
            ),
        ] {
            let odd = format!("{}\n{full}", full.replace(from, to).replace("request_end0", "other"));
            assert!(read(old, &odd).is_ok(), "{odd}");
            assert!(read(new, &odd).is_err(), "{odd}");
        }
        let agent = line("request_end", r#","agent_context":{"session_id":"s"}"#);
        let unnamed = agent.replace(r#""output_tokens""#, r#""model":" ","output_tokens""#);
        let error = read(new, &unnamed).unwrap_err();
        assert_eq!(error, "t, line 1: request.model is empty, expected a name or none");
    }

    #[test]
    fn mixed_traces_and_unknown_events_are_refused() {
        let mut reader = RequestTraceReader::new(None, Semantics::V1_6_1);
        let agent = r#","agent_context":{"session_id":"s"}"#;
        let text = format!("{}\n{}", line("request_end", ""), line("request_end", agent));
        reader.read(Lines::new("t", text.as_bytes())).unwrap();
        let error = reader.finish().unwrap_err().to_string();
        assert!(
            error.starts_with("t, line 1: agent_context is missing: 1 requests have an agent_context and 1 have none"),
            "{error}"
        );
        let mut reader = RequestTraceReader::new(None, Semantics::V1_6_1);
        let error = reader
            .read(Lines::new("t", line("nap", "").as_bytes()))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("t, line 1: event_type is nap, expected request_end"),
            "{error}"
        );
        let mut reader = RequestTraceReader::new(Some(16), Semantics::V1_6_1);
        let error = reader
            .read(Lines::new("t", line("request_end", "").as_bytes()))
            .unwrap_err()
            .to_string();
        assert!(error.contains("trace_block_size is 4, expected 16"), "{error}");
    }
}
