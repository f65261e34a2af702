//! What the scheduler tells about itself.

use crate::types::RequestId;

/// Queues and memory between two passes.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// Waiting requests in the order of the queue.
    pub waiting: Vec<RequestId>,
    /// Requests that decode, in admission order.
    pub running: Vec<RequestId>,
    /// Free tokens of the pool.
    pub available_tokens: u64,
    /// Cached tokens that nobody uses.
    pub evictable_tokens: u64,
    /// Cached tokens in use.
    pub protected_tokens: u64,
    /// Share of the outputs still to come that an admission sets aside.
    pub new_token_ratio: f64,
}

/// One attempt to admit requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// The queue as it was tried.
    pub order: Vec<RequestId>,
    /// Budget before the first candidate.
    pub budget: Remaining,
    /// Whom it looked at; the first refusal is the last.
    pub candidates: Vec<Candidate>,
}

/// Tokens left in a prefill budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Remaining {
    /// For prompts and the outputs still to come.
    pub total_tokens: f64,
    /// Of `max_prefill_tokens`.
    pub input_tokens: i64,
    /// Of `chunked_prefill_size`.
    pub chunk_tokens: Option<i64>,
}

/// One request that an attempt looked at.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Who.
    pub id: RequestId,
    /// Whether it goes on with a prompt that an earlier pass has begun.
    pub continued: bool,
    /// Tokens that need not be computed.
    pub prefix: u32,
    /// What came of it.
    pub verdict: Verdict,
    /// Set if it was admitted.
    pub admitted: Option<Admitted>,
}

/// The part of a prompt that a pass computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Admitted {
    /// Tokens.
    pub extend: u32,
    /// Whether that is not yet all.
    pub chunked: bool,
    /// Budget after it.
    pub budget: Remaining,
}

/// Whether an attempt goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// With the next request.
    Continue,
    /// Memory is short.
    NoToken,
    /// The pass is full.
    Other,
}
