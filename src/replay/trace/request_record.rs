//! Records of a request trace as they are written.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use super::super::agentic::{Relation, Trigger};

/// A line that may hold its record one level down.
#[derive(Deserialize)]
pub(super) struct Envelope<'a> {
    #[serde(borrow)]
    pub(super) event: Option<&'a RawValue>,
    pub(super) event_type: Option<Value>,
}

/// What says whether the rest matters.
#[derive(Deserialize)]
pub(super) struct Head {
    pub(super) event_type: Option<Value>,
}

/// `D`: dependencies, which Dynamo 1.4.2 does not know.
#[derive(Deserialize)]
#[serde(bound(deserialize = "D: Deserialize<'de> + Default"))]
pub(super) struct Record<D> {
    pub(super) schema: Option<String>,
    pub(super) event_type: Option<String>,
    pub(super) event_time_unix_ms: Option<u64>,
    pub(super) agent_context: Option<AgentContext>,
    pub(super) request: Option<Request<D>>,
    pub(super) tool: Option<Tool>,
}

#[derive(Deserialize)]
pub(super) struct AgentContext {
    pub(super) session_id: String,
    pub(super) parent_session_id: Option<String>,
}

#[allow(clippy::struct_field_names)]
#[derive(Deserialize)]
#[serde(bound(deserialize = "D: Deserialize<'de> + Default"))]
pub(super) struct Request<D> {
    pub(super) request_id: String,
    pub(super) model: Option<String>,
    pub(super) output_tokens: Option<u32>,
    pub(super) request_received_ms: Option<u64>,
    pub(super) total_time_ms: Option<f64>,
    pub(super) replay: Option<Replay<D>>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "D: Deserialize<'de> + Default"))]
pub(super) struct Replay<D> {
    pub(super) trace_block_size: u32,
    pub(super) input_length: u32,
    pub(super) input_sequence_hashes: Vec<u64>,
    #[serde(default)]
    pub(super) dependencies: D,
}

/// A dependency that the exporter of a trace knew.
#[derive(Deserialize)]
pub(super) struct Edge {
    pub(super) request_id: String,
    pub(super) relation: Relation,
    pub(super) trigger: Trigger,
}

#[allow(clippy::struct_field_names)]
#[derive(Deserialize)]
pub(super) struct Tool {
    pub(super) tool_call_id: String,
    pub(super) tool_class: String,
    pub(super) started_at_unix_ms: Option<u64>,
    pub(super) ended_at_unix_ms: Option<u64>,
    pub(super) duration_ms: Option<f64>,
    pub(super) claude: Option<Claude>,
}

/// What a coding agent says about a tool call.
#[allow(clippy::struct_field_names)]
#[derive(Deserialize)]
pub(super) struct Claude {
    pub(super) source_request_id: String,
    pub(super) consumer_request_id: Option<String>,
    pub(super) child_session_id: Option<String>,
    pub(super) execution_mode: String,
}

impl Record<IgnoredAny> {
    /// The same without dependencies.
    pub(super) fn unlinked(self) -> Record<Vec<Edge>> {
        let unlinked = |request: Request<IgnoredAny>| Request {
            request_id: request.request_id,
            model: request.model,
            output_tokens: request.output_tokens,
            request_received_ms: request.request_received_ms,
            total_time_ms: request.total_time_ms,
            replay: request.replay.map(|replay| Replay {
                trace_block_size: replay.trace_block_size,
                input_length: replay.input_length,
                input_sequence_hashes: replay.input_sequence_hashes,
                dependencies: Vec::new(),
            }),
        };
        Record {
            schema: self.schema,
            event_type: self.event_type,
            event_time_unix_ms: self.event_time_unix_ms,
            agent_context: self.agent_context,
            request: self.request.map(unlinked),
            tool: self.tool,
        }
    }
}
