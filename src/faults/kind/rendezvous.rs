//! Faults of handoffs between prefill and decode workers.

use serde::{Deserialize, Serialize};

use super::param::{self, Param};
use super::{GateFault, Kind, KindInfo, Layer};

gate! {
    /// Handoffs of a prefill worker, asked for each one when its prompt is computed, or when its two sides have met.
    Rendezvous(RendezvousFault, Rendezvous, 12) {
        /// The prefill worker never says that the KV is ready: the handoff ends with its client or its time-out.
        NeverReady = "never_ready" {}
        /// It says so later, ms.
        Late = "late" {
            /// Delay, ms.
            ms: f64 as param::SOME_MS,
        }
        /// It answers for another room.
        WrongRoom = "wrong_room" {}
        /// It breaks the handoff off when the KV is ready.
        Abort = "abort" {}
        /// It forgets the handoff when the KV is ready, and keeps the blocks until the handoff's time-out.
        Orphan = "orphan" {}
        /// The transfer takes a multiple of its time.
        SlowLink = "slow_link" {
            /// Multiple; below 1 is faster, 0: no time at all.
            factor: f64 as param::TIMES,
        }
        /// The transfer breaks off half-way.
        LostLink = "lost_link" {}
    }
}
