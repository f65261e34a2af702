//! Trace files: one reader per format, line by line.
//!
//! A reader never holds more than one line of text. What it keeps per request is the compact form of the prompt, so
//! memory grows with hash ids, not with the file or with tokens. Mooncake rows can also be played one by one
//! ([`StreamSource`](super::StreamSource)), and turns of sessions, independent requests and tool sessions from where they
//! are in their files ([`from_file`](super::from_file)); then memory holds only what is in flight, and a few bytes per turn.

mod agent_sessions;
mod agentic;
mod applied;
mod line;
mod mooncake;
mod mooncake_file;
mod place;
mod request_file;
mod request_record;
mod request_trace;
mod turn_file;
mod unread;
mod weka;

pub(crate) use self::line::MAX_TOKENS;
pub use agentic::read as read_agentic;
pub use applied::{AppliedFile, SharedPrefix, read as read_applied_compute};
pub(in crate::replay) use line::spooling;
pub use line::{Lines, TraceError};
pub(crate) use mooncake::MooncakeRow;
pub use mooncake::{MooncakeOptions, MooncakeRows, MooncakeScan, read as read_mooncake};
pub use mooncake_file::MooncakeFile;
pub use place::Rewind;
pub use request_file::RequestFile;
pub use request_trace::{RequestTrace, RequestTraceReader};
pub(crate) use turn_file::{FoundTurn, TurnFile};
pub use weka::{NestedTimes, WekaCorpus, WekaFile, WekaReader};
