//! Handing a request from a prefill worker to a decode worker.
//!
//! The prefill side keeps the blocks of a finished prompt until it is told to release them; the decode side sets blocks
//! aside, is told when the KV has arrived, and then decodes without a prefill. What the engines have to say about it comes
//! as [`HandoffFact`]s; when a transfer is over is the driver's to decide ([`KvTransfer`] says how long it takes).
//!
//! Source: Dynamo 1.6.1.

use std::time::Duration;

use crate::types::RequestId;

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

/// How long KV travels.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KvTransfer {
    /// Bytes per token; `None`: no delay.
    pub bytes_per_token: Option<u64>,
    /// GB/s, 1 GB = 1e9 bytes; `None` or 0: no delay.
    pub bandwidth_gb_s: Option<f64>,
}

impl KvTransfer {
    /// Time for `tokens` tokens, whole nanoseconds.
    #[allow(clippy::cast_precision_loss)]
    pub fn duration(&self, tokens: u32) -> Duration {
        let (Some(bytes), Some(bandwidth)) = (self.bytes_per_token, self.bandwidth_gb_s) else {
            return Duration::ZERO;
        };
        let seconds = f64::from(tokens) * bytes as f64 / (bandwidth * 1e9);
        if bandwidth > 0.0 {
            Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO)
        } else {
            Duration::ZERO
        }
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
        assert_eq!(link(Some(0.0)).duration(100), Duration::ZERO);
        assert_eq!(link(None).duration(100), Duration::ZERO);
        assert_eq!(KvTransfer::default().duration(100), Duration::ZERO);
    }
}
