//! Trace files: one reader per format, line by line.
//!
//! A reader never holds more than one line of text. What it keeps per request is the compact form of the prompt, so
//! memory grows with hash ids, not with the file or with tokens. Mooncake rows can also be played one by one
//! ([`StreamSource`](super::StreamSource)); then memory holds only what is in flight.

mod agent_sessions;
mod agentic;
mod applied;
mod line;
mod mooncake;
mod request_trace;
mod weka;

pub use agentic::read as read_agentic;
pub use applied::{SharedPrefix, read as read_applied_compute};
pub use line::{Lines, TraceError};
pub(crate) use mooncake::MooncakeRow;
pub use mooncake::{MooncakeOptions, MooncakeRows, MooncakeScan, read as read_mooncake};
pub use request_trace::{RequestTrace, RequestTraceReader};
pub use weka::{NestedTimes, WekaReader};
