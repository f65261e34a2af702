//! Replay: traces and synthetic load against engines in virtual time.
//!
//! A [`Source`] says which request comes when, a router decides where it goes, engines say when their passes end; the
//! clock jumps from one such moment to the next. Nothing here reads a clock or opens a file: readers take `impl BufRead`.
//!
//! Cost grows with requests and passes, not with tokens: engines list only the first and last token of each request, and
//! the gaps between the others follow from the ends of passes ([`timeline`]). Prompts stay compact (runs of hash ids)
//! until they are submitted.
//!
//! Source of rules, names and formulas: Dynamo 1.6.1 offline replay; 1.4.2 where marked.

#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod agentic;
mod collector;
mod curves;
pub mod dynamo_planner;
mod file_source;
mod fleet;
mod flight;
mod harness;
mod held;
pub(crate) mod html;
mod live;
mod memory;
mod planner;
mod prompt;
mod record;
mod report;
mod series;
mod sessions;
mod sketch;
mod source;
mod stats;
mod stream;
mod synthetic;
mod table;
mod timeline;
pub mod trace;

pub use agentic::{
    AgenticRequest, AgenticSource, Dependency, Graph, GraphError, GraphOrigin, GraphSummary, HashIds, IdSink, IdStore,
    Place, ReadAt, Relation, Trigger,
};
pub use curves::Curves;
pub use file_source::from_file;
pub use harness::{Control, FleetSpec, Harness, PoolSpec, PrefillSpec, Progress, ReplayError, RouterSpec};
pub use html::{NamedReport, render as render_html};
pub use live::{Answer, LiveRun, Outgoing, Part};
pub use planner::{
    Decision, ForwardMetrics, Planner, PlannerError, ScalingEvent, ScalingLog, Script, Snapshot, Traffic,
};
pub use prompt::PromptStore;
pub use record::{AdmissionRecord, AgenticIdentity, RequestRecord, RoutingRecord, Terminal};
pub use report::{Goodput, Report, Sla, TokenGaps};
pub use sessions::{Load, SessionSource, SessionTrace, TurnSpec};
pub use source::{PlayFailure, Source, Trajectory, Turn};
pub use stream::StreamSource;
pub use synthetic::{Arrivals, SyntheticError, SyntheticSpec};
pub use table::render as render_table;
