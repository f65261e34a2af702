//! Faults of answers and their connections.

use serde::{Deserialize, Serialize};

use super::param::{self, Param, Values};
use super::{GateFault, Kind, KindInfo, Layer, injected, is_none_left, is_zero};

gate! {
    /// What a rank says, on every plane, asked for each request.
    Answer(AnswerFault, Response, 14) {
        /// The stream breaks off after so many tokens, as with a dead process.
        Cut = "cut" {
            /// Tokens that still go out.
            #[serde(default, skip_serializing_if = "is_none_left")]
            tokens: u32 as param::TOKENS,
        }
        /// Nothing goes out any more after so many tokens, and the connection stays open.
        BlackHole = "black_hole" {
            /// Tokens that still go out.
            #[serde(default, skip_serializing_if = "is_none_left")]
            after_tokens: u32 as param::TOKENS,
        }
        /// After so many tokens the answer ends with an error.
        ErrorItem = "error_item" {
            /// Tokens before it.
            #[serde(default, skip_serializing_if = "is_none_left")]
            after_tokens: u32 as param::TOKENS,
            /// Text of the error.
            #[serde(default = "injected")]
            message: String as Values::Text,
        }
    }
}

gate! {
    /// Response sockets, asked for each one at its start.
    Response(ResponseFault, Response, 6) {
        /// Every write is late.
        Latency = "latency" {
            /// Delay, ms.
            ms: f64 as param::MS,
            /// Random extra delay, uniform up to so much, ms.
            #[serde(default, skip_serializing_if = "is_zero")]
            jitter_ms: f64 as param::MS,
        }
        /// So many bytes per second at most.
        Bandwidth = "bandwidth" {
            /// Rate, bytes per second.
            bytes_per_s: f64 as param::BYTES_PER_S,
        }
        /// The connection is reset so long after it was opened.
        ResetPeer = "reset_peer" {
            /// Delay, ms.
            #[serde(default, skip_serializing_if = "is_zero")]
            after_ms: f64 as param::MS,
        }
        /// The last bytes are on the wire, and the end of the stream comes so much later; on HTTP that is the end of the
        /// connection, so that a client sees an answer late that ends with it.
        SlowClose = "slow_close" {
            /// Delay, ms.
            ms: f64 as param::SOME_MS,
        }
        /// The connection is closed after so many bytes.
        LimitData = "limit_data" {
            /// Bytes that still go out.
            bytes: u64 as param::SOME_BYTES,
        }
        /// Writes are cut into small pieces with pauses between them.
        Slicer = "slicer" {
            /// Bytes of a piece.
            bytes: u64 as param::SOME_BYTES,
            /// Pause after each, ms.
            #[serde(default, skip_serializing_if = "is_zero")]
            delay_ms: f64 as param::MS,
        }
        /// The stream begins without its prologue; HTTP has none.
        NoPrologue = "no_prologue" {}
        /// The last item is sent twice; HTTP has none.
        DuplicateFinal = "duplicate_final" {}
        /// The stream ends without its last item; HTTP has none.
        MissingFinal = "missing_final" {}
        /// After so many tokens comes a frame that is no frame; on HTTP an event that is no JSON, and of an answer that is
        /// not streamed a whole body that is none.
        MalformedFrame = "malformed_frame" {
            /// Tokens before it.
            #[serde(default, skip_serializing_if = "is_none_left")]
            after_tokens: u32 as param::TOKENS,
        }
    }
}

impl ResponseFault {
    /// Whether it acts on the bytes of a connection, whatever they say.
    pub const fn acts_on_bytes(&self) -> bool {
        match self {
            Self::Latency { .. }
            | Self::Bandwidth { .. }
            | Self::ResetPeer { .. }
            | Self::SlowClose { .. }
            | Self::LimitData { .. }
            | Self::Slicer { .. } => true,
            Self::NoPrologue {} | Self::DuplicateFinal {} | Self::MissingFinal {} | Self::MalformedFrame { .. } => {
                false
            }
        }
    }
}
