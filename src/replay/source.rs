//! What comes when.

use std::sync::Arc;

use crate::types::{Prompt, SimTime, Token, Tokens};

use super::agentic::GraphSummary;
use super::record::{AgenticIdentity, Terminal};
use super::trace::TraceError;

/// One request that is due.
#[derive(Debug, Clone)]
pub struct Turn {
    /// The source's name for it.
    pub tag: u32,
    /// Number of its session, in order of first turns.
    pub session: u32,
    /// Position in the session, from 0.
    pub turn: u32,
    /// When it was due.
    pub arrival: SimTime,
    /// Prompt tokens.
    pub input_tokens: u32,
    /// Tokens to generate.
    pub output_tokens: u32,
    /// Exact ids to generate.
    pub planned: Option<Tokens>,
    /// Router queue: seconds of advantage or weight.
    pub priority: i32,
    /// Router queue: served before lower ones.
    pub strict_priority: u32,
    /// Router queue: class or family.
    pub policy_class: Option<Arc<str>>,
}

/// One play of an agentic workload: an independent graph of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trajectory {
    /// Name of the play.
    pub play: String,
    /// When the first of its requests that wait for nobody was sent out.
    pub started: Option<SimTime>,
    /// When the latest request so far ended.
    pub ended: Option<SimTime>,
    /// Nothing of it is left to do.
    pub over: bool,
    /// What ended it before its time.
    pub failure: Option<PlayFailure>,
}

/// A request whose end ended its play.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlayFailure {
    /// When.
    pub at: SimTime,
    /// Its name.
    pub request_id: String,
    /// How it ended.
    pub status: Terminal,
}

/// A workload. Times are those of the virtual clock.
pub trait Source {
    /// When the next request is due, as far as that is known without further completions.
    fn next_at(&self) -> Option<SimTime>;

    /// The next request that is due at `now`.
    fn take(&mut self, now: SimTime) -> Option<Turn>;

    /// A request is about to end with so many tokens, fewer than were asked for: its worker takes no longer sequence.
    fn cut_short(&mut self, _tag: u32, _tokens: u32) {}

    /// A request ended. What was to follow one that failed never comes.
    fn ended(&mut self, tag: u32, now: SimTime, terminal: Terminal);

    /// Appends the prompt of a request to `prompt`.
    fn write_prompt(&self, tag: u32, prompt: &mut Vec<Token>);

    /// The prompt of a request as an engine keeps it: shared with the workload where that can be.
    fn prompt(&self, tag: u32) -> Prompt {
        let mut tokens = Vec::new();
        self.write_prompt(tag, &mut tokens);
        tokens.into()
    }

    /// Whether no request will come any more.
    fn is_drained(&self) -> bool;

    /// Requests in all.
    fn total(&self) -> u64;

    /// Name of the session that a request belongs to.
    fn session_name(&self, tag: u32) -> String;

    /// Whether Dynamo's records name it; not where Dynamo plays single requests.
    fn tells_sessions(&self) -> bool {
        true
    }

    /// Whether first requests come at times of their own, not when others end.
    fn has_times(&self) -> bool {
        false
    }

    /// Name of the request, where the workload has one.
    fn request_name(&self, _tag: u32) -> Option<&str> {
        None
    }

    /// The plays of an agentic workload, in order; `None` for others.
    fn trajectories(&self) -> Option<Vec<Trajectory>> {
        None
    }

    /// The graph of an agentic workload.
    fn graph(&self) -> Option<GraphSummary> {
        None
    }

    /// Why no more requests come although there should: the file of a workload that is read on the way.
    fn failure(&mut self) -> Option<TraceError> {
        None
    }

    /// Name of the play that a request of an agentic workload belongs to.
    fn play_name(&self, _tag: u32) -> Option<&str> {
        None
    }

    /// Place of a request in the graph of an agentic workload.
    fn identity(&self, _tag: u32) -> Option<AgenticIdentity> {
        None
    }
}
