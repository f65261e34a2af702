//! Handing a request from a prefill worker to a decode worker.
//!
//! The prefill side keeps the blocks of a finished prompt until it is told to release them; the decode side sets blocks
//! aside, is told when the KV has arrived, and then decodes without a prefill. What the engines have to say about it comes
//! as [`HandoffFact`]s; when a transfer is over is the driver's to decide ([`KvTransfer`] says how long it takes).
//!
//! A destination waits its turn for blocks; the first one is tried after each command between passes and once at the end
//! of each pass, and again only when somebody has given memory back meanwhile. A command in the middle of a pass only
//! queues.
//!
//! Source: Dynamo 1.6.1.

use std::collections::VecDeque;
use std::time::Duration;

use crate::types::{EngineRequest, RequestId, SimTime, span_of_ms};

/// What an engine says about a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandoffFact {
    /// The prompt is computed and its blocks are kept for the transfer.
    SourceHeld {
        /// Whose.
        id: RequestId,
        /// Length of the prompt.
        prompt_tokens: u32,
    },
    /// Blocks for the prompt are set aside.
    DestinationReserved {
        /// Whose.
        id: RequestId,
        /// Tokens of the blocks that have to be filled by the transfer: those that are not cached here.
        transferable_prompt_tokens: u32,
    },
}

/// Why a handoff command is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandoffRefused {
    /// The scheduler sets blocks aside in its own way.
    #[error("{0} does not support handoffs; use vllm or sglang")]
    Unsupported(&'static str),
    /// The prompt can never be held.
    #[error("destination prompt exceeds the KV pool capacity")]
    PromptTooLarge,
    /// As at any submission.
    #[error(transparent)]
    Rejected(#[from] super::Rejected),
}

/// Both ends of a handoff, as far as an engine has them.
pub trait Handoff {
    /// Queues the prefill side of a handoff: after its token the request keeps its blocks until
    /// [`Handoff::release_source`]. Allowed during a pass.
    ///
    /// # Errors
    /// [`HandoffRefused`] when the engine has no handoffs or the request can never run.
    fn submit_source(&mut self, request: EngineRequest, now: SimTime) -> Result<(), HandoffRefused>;

    /// Asks for blocks for a prompt whose KV comes from a prefill worker; [`HandoffFact::DestinationReserved`] says when
    /// they are there. Allowed during a pass.
    ///
    /// # Errors
    /// As [`Handoff::submit_source`].
    fn reserve_destination(&mut self, request: EngineRequest, now: SimTime) -> Result<(), HandoffRefused>;

    /// The KV of a reserved destination has arrived: the request waits for its first decode step. Only between passes.
    /// `false`: no such reservation.
    fn activate_destination(&mut self, id: RequestId) -> bool;

    /// Frees the blocks of a held source. Only between passes. `false`: nothing is held for it.
    fn release_source(&mut self, id: RequestId) -> bool;

    /// Moves what has become true about handoffs by `now` to the end of `facts`, in order. Ask after each command and at
    /// the end of each pass; what a pass brings about is true from its end on.
    fn take_handoff_facts(&mut self, now: SimTime, facts: &mut Vec<HandoffFact>);
}

/// The part of a handoff that does not depend on the scheduler: whose turn it is, and what is to be told when.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    /// Destinations without blocks, in the order of their requests.
    pending: VecDeque<u32>,
    /// The first of them was tried, and no room has come since.
    missed: bool,
    /// Destinations with blocks that wait for their KV.
    reserved: usize,
    /// Facts with the instant from which they are true; `None`: at the end of the pass that is being computed.
    facts: Vec<(Option<SimTime>, HandoffFact)>,
    pass_ends_at: SimTime,
    /// The end of the last pass has not been used to try the first destination.
    end_unused: bool,
}

impl Desk {
    /// A pass was computed that ends then.
    pub(crate) fn pass_ran(&mut self, ends_at: SimTime) {
        self.pass_ends_at = ends_at;
        self.end_unused = true;
        for (at, _) in &mut self.facts {
            at.get_or_insert(ends_at);
        }
    }

    /// Whether no pass is under way at `now`.
    pub(crate) fn is_between_passes(&self, now: SimTime) -> bool {
        now >= self.pass_ends_at
    }

    /// Whether the end of the last pass has come and is to be used; it is used then.
    pub(crate) fn use_end(&mut self, now: SimTime) -> bool {
        let due = self.end_unused && self.is_between_passes(now);
        self.end_unused &= !due;
        due
    }

    /// Lines up a destination.
    pub(crate) fn line_up(&mut self, slot: u32) {
        self.pending.push_back(slot);
    }

    /// The destination whose turn it is, unless it was tried in vain and no room has come since.
    pub(crate) fn first(&self) -> Option<u32> {
        self.pending.front().copied().filter(|_| !self.missed)
    }

    /// There is no room for the first destination. What is cached meanwhile is not looked at again.
    pub(crate) fn missed(&mut self) {
        self.missed = true;
    }

    /// Somebody gave memory or a place back.
    pub(crate) fn room_came(&mut self) {
        self.missed = false;
    }

    /// The first destination has its blocks.
    pub(crate) fn reserved(&mut self, fact: HandoffFact) {
        self.pending.pop_front();
        self.missed = false;
        self.reserved += 1;
        self.facts.push((Some(self.pass_ends_at), fact));
    }

    /// A destination has its KV, or goes away with blocks.
    pub(crate) fn settled(&mut self) {
        self.reserved -= 1;
    }

    /// A destination without blocks goes away.
    pub(crate) fn forget(&mut self, slot: u32) {
        self.missed = false;
        self.pending.retain(|&other| other != slot);
    }

    /// The pass that is being computed ends a source.
    pub(crate) fn held(&mut self, fact: HandoffFact) {
        self.facts.push((None, fact));
    }

    /// Whether some destination has no blocks yet.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether some destination has blocks that wait for their KV.
    pub(crate) fn has_reserved(&self) -> bool {
        self.reserved > 0
    }

    /// Destinations that wait for blocks or for KV.
    pub(crate) fn waiting(&self) -> usize {
        self.pending.len() + self.reserved
    }

    /// Moves what is true by `now` to the end of `facts`.
    pub(crate) fn take(&mut self, now: SimTime, facts: &mut Vec<HandoffFact>) {
        let is_true = |at: &Option<SimTime>| at.is_some_and(|at| at <= now);
        facts.extend(self.facts.extract_if(.., |(at, _)| is_true(at)).map(|(_, fact)| fact));
    }
}

/// A scheduler that sets memory aside for the first destination: when it tries to.
pub(crate) trait Reserves {
    fn desk(&mut self) -> &mut Desk;

    /// Sets memory aside for the first destination if there is enough.
    fn reserve_first(&mut self);

    /// Tries the first destination after a command at `now`, unless that came in the middle of a pass.
    fn after_command(&mut self, now: SimTime) {
        if self.desk().is_between_passes(now) {
            self.use_pass_end(now);
            self.reserve_first();
        }
    }

    /// Tries the first destination at the end of a pass, once.
    fn use_pass_end(&mut self, now: SimTime) {
        if self.desk().use_end(now) {
            self.reserve_first();
        }
    }

    /// Nothing can run at the instant of a step, which counts as an empty pass: tries the first destination; returns whether
    /// it has its memory now.
    fn reserve_idle(&mut self) -> bool {
        let pending = self.desk().pending.len();
        self.reserve_first();
        self.desk().pending.len() < pending
    }

    /// Moves what is true by `now` to the end of `facts`.
    fn take_facts(&mut self, now: SimTime, facts: &mut Vec<HandoffFact>) {
        self.use_pass_end(now);
        self.desk().take(now, facts);
    }
}

/// How long KV travels.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KvTransfer {
    /// Bytes per token; `None`: no delay.
    pub bytes_per_token: Option<u64>,
    /// GB/s, 1 GB = 1e9 bytes; `None` or 0: no delay.
    pub bandwidth_gb_s: Option<f64>,
}

impl KvTransfer {
    /// Time for `tokens` tokens, ms; 0: none.
    #[allow(clippy::cast_precision_loss)]
    pub fn delay_ms(&self, tokens: u32) -> f64 {
        match (self.bytes_per_token, self.bandwidth_gb_s) {
            (Some(bytes), Some(bandwidth)) if bandwidth > 0.0 => {
                f64::from(tokens) * bytes as f64 / (bandwidth * 1e9) * 1000.0
            }
            _ => 0.0,
        }
    }

    /// [`Self::delay_ms`] in whole nanoseconds, at most [`LONGEST_SPAN`](crate::types::LONGEST_SPAN).
    pub fn duration(&self, tokens: u32) -> Duration {
        span_of_ms(self.delay_ms(tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_take_as_long_as_the_link_says() {
        let link = |bandwidth| KvTransfer {
            bytes_per_token: Some(1_000_000),
            bandwidth_gb_s: bandwidth,
        };
        assert_eq!(link(Some(10.0)).duration(100), Duration::from_millis(10));
        assert_eq!(link(Some(10.0)).duration(112), Duration::from_micros(11_200));
        assert_eq!(link(Some(1e-300)).duration(100), crate::types::LONGEST_SPAN);
        assert_eq!(link(Some(0.0)).duration(100), Duration::ZERO);
        assert_eq!(link(None).duration(100), Duration::ZERO);
        assert_eq!(KvTransfer::default().duration(100), Duration::ZERO);
    }
}
