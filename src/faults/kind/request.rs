//! Faults of calls as they come in.

use serde::{Deserialize, Serialize};

use super::param::{self, Param};
use super::{GateFault, Kind, KindInfo, Layer, is_zero};

gate! {
    /// Calls as they come in, asked for each one.
    Request(RequestFault, Request, 5) {
        /// The call is looked at later.
        Latency = "latency" {
            /// Delay, ms.
            ms: f64 as param::MS,
            /// Random extra delay, uniform up to so much, ms.
            #[serde(default, skip_serializing_if = "is_zero")]
            jitter_ms: f64 as param::MS,
        }
        /// The connection that brought the call is reset.
        ResetPeer = "reset_peer" {}
        /// The call disappears: no ack, no answer.
        BlackHole = "black_hole" {}
        /// The call is served, but its ack is withheld, and so are all later acks on that connection.
        AckWithheld = "ack_withheld" {}
        /// The call is acked and nobody ever dials back.
        NoCallHome = "no_call_home" {}
    }
}
