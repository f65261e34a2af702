//! A trace whose turns stay in its files until they are due.

use super::super::sessions::TurnSpec;
use super::line::TraceError;

/// One turn as it was read.
#[derive(Debug)]
pub(crate) struct FoundTurn {
    /// Name of its session, where the file gives one.
    pub(crate) session: Option<Box<str>>,
    /// What other sessions are numbered by.
    pub(crate) number: u64,
    /// Time stamp, ms.
    pub(crate) timestamp: Option<f64>,
    /// Wait after the turn before, ms.
    pub(crate) delay_ms: f64,
    /// The last time stamp of the session so far.
    pub(crate) last_seen: Option<f64>,
    /// Everything else.
    pub(crate) turn: TurnSpec,
}

/// See the module's text. Turns are known by numbers below `total`.
pub(crate) trait TurnFile {
    /// Turns in all.
    fn total(&self) -> u64;

    /// Tokens per hash id.
    fn block_tokens(&self) -> u32;

    /// Whether later turns hold only what is new.
    fn is_delta(&self) -> bool;

    /// What sessions without a name are called, before their number.
    fn label(&self) -> &'static str;

    /// Earliest time stamp of a first turn, ms.
    fn earliest_ms(&self) -> f64;

    /// The first turn of the session that starts next, each once.
    fn next_start(&mut self) -> Option<u32>;

    /// Whether Dynamo takes the turns for single requests where they come at their own times: where no session has a second
    /// one.
    fn is_of_requests(&self) -> bool;

    /// The turn that follows in the same session.
    fn following(&self, turn: u32) -> Option<u32>;

    /// Reads a turn; `last_seen` is the last time stamp of its session, or `None` for a first turn.
    ///
    /// # Errors
    /// [`TraceError`] when the file cannot be read or is not what it was.
    fn fetch(&mut self, turn: u32, last_seen: Option<f64>) -> Result<FoundTurn, TraceError>;
}
