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
        /// The connection that brought the call is reset, with everything else on it; NATS has no such connection, and the
        /// call disappears.
        ResetPeer = "reset_peer" {}
        /// The call disappears: no ack, no answer. Acks on TCP have no names, only an order: nothing more is acked on its
        /// connection, which all workers share unless each has a port of its own (`--ports per-worker`), until the fault or
        /// the worker ends, and the connection with it.
        BlackHole = "black_hole" {}
        /// The call is served, but its ack is withheld, and so are all later ones on its connection, as with `black_hole`;
        /// HTTP has no acks.
        AckWithheld = "ack_withheld" {}
        /// The call is acked and nobody ever dials back; over HTTP nobody is dialled.
        NoCallHome = "no_call_home" {}
    }
}

impl RequestFault {
    /// Whether there is something like it on an HTTP port.
    pub const fn is_of_http(&self) -> bool {
        match self {
            Self::Latency { .. } | Self::ResetPeer {} | Self::BlackHole {} => true,
            Self::AckWithheld {} | Self::NoCallHome {} => false,
        }
    }

    /// Whether acks are missing because of it.
    pub const fn withholds_acks(&self) -> bool {
        match self {
            Self::BlackHole {} | Self::AckWithheld {} => true,
            Self::Latency { .. } | Self::ResetPeer {} | Self::NoCallHome {} => false,
        }
    }
}
