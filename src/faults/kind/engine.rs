//! Faults of the scheduler and the KV cache.

use serde::{Deserialize, Serialize};

use super::{GateFault, Kind, KindInfo, Layer, injected, is_false, is_zero};

/// Whether and how a cleared cache is told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// At once, as it should be.
    #[default]
    With,
    /// Never.
    Without,
    /// Later.
    Late,
}

gate! {
    /// Duration of forward passes, asked before each one.
    Pass(PassFault, Engine, 2) {
        /// Passes take a multiple of their time.
        Slow = "slow" {
            /// Multiple; below 1 is faster.
            factor: f64,
        }
        /// A pass takes so much longer, ms.
        Stall = "stall" {
            /// Extra time, ms.
            ms: f64,
        }
        /// Each pass takes longer by a random time, uniform up to so much, ms.
        Jitter = "jitter" {
            /// Most extra time, ms.
            ms: f64,
        }
    }
}

gate! {
    /// The door of a worker, asked before a request is looked at.
    Door(DoorFault, Engine, 15) {
        /// The worker says that it is overloaded.
        Refuse = "refuse" {}
    }
}

gate! {
    /// Requests on their way to a rank, asked for each one.
    Admission(AdmissionFault, Engine, 3) {
        /// The request fails with an error.
        Reject = "reject" {
            /// Text of the error.
            #[serde(default = "injected")]
            message: String,
            /// Blame the request (400) instead of the worker.
            #[serde(default, skip_serializing_if = "is_false")]
            invalid: bool,
        }
    }
}

gate! {
    /// Size of the KV cache, asked when faults change.
    Capacity(CapacityFault, Engine, 4, once) {
        /// Each rank has so many KV blocks less, or so large a share of them; it gets them back when the fault ends.
        LoseCapacity = "lose_capacity" {
            /// Share, from 0 to 1; or `blocks`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            share: Option<f64>,
            /// Blocks; or `share`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            blocks: Option<u32>,
        }
    }
}

gate! {
    /// Content of the KV cache, once, at the start of the window.
    Purge(PurgeFault, Engine, 13, once) {
        /// Every unreferenced block is dropped.
        ClearCache = "clear_cache" {
            /// Whether routers are told: `with`, `without` or `late`.
            #[serde(default)]
            event: Told,
            /// How late, ms.
            #[serde(default, skip_serializing_if = "is_zero")]
            late_ms: f64,
        }
    }
}

impl CapacityFault {
    /// What holds for its parameters together.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        match self {
            Self::LoseCapacity {
                share: Some(_),
                blocks: None,
            }
            | Self::LoseCapacity {
                share: None,
                blocks: Some(_),
            } => Ok(()),
            Self::LoseCapacity { .. } => Err("say either share (0 to 1) or blocks"),
        }
    }
}
