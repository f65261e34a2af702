//! The response socket: for each request the worker dials the caller's response server and streams the answer there.
//!
//! | Module | What |
//! |---|---|
//! | [`socket`] | the socket itself, with TLS or without, and who dials it |
//! | [`sink`] | buffer and socket of one answer, written to straight from the rank's thread |
//! | [`stream`] | the task that minds the socket: cancellation, back-pressure, the closing handshake |
//! | [`open`] | answers under way |
//! | [`generate`] | the `generate` endpoint: decode, dial, submit |
//! | [`ready`] | answers that are known as a whole: recovery queries |
//!
//! One connection per request is the protocol; nothing is pooled.

mod content;
pub mod generate;
pub mod open;
pub mod ready;
pub mod sink;
pub mod socket;
pub mod stream;

use std::time::Duration;

pub use socket::{Dialer, ResponseSocket};

/// Bounds of one answer.
#[derive(Debug, Clone, Copy)]
pub struct AnswerLimits {
    /// Time to connect to the caller.
    pub connect: Duration,
    /// Bytes that may wait for a reader that does not keep up; more cancels the request.
    pub max_pending_bytes: usize,
    /// Longest time without any progress while bytes wait; longer cancels the request.
    pub stall: Duration,
    /// After the last frame: time for the caller to close.
    pub close: Duration,
}

impl Default for AnswerLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            max_pending_bytes: 1024 * 1024,
            stall: Duration::from_secs(30),
            close: Duration::from_secs(10),
        }
    }
}
