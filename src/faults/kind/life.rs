//! Faults of workers as processes.

use serde::{Deserialize, Serialize};

use super::param::{self, Param, Values};
use super::{GateFault, Kind, KindInfo, Layer, is_false};

gate! {
    /// What happens to a worker as a process, once, at the start of its window.
    Life(LifeFault, Life, 0, once) {
        /// The worker dies without a word: sockets are reset, the lease runs out.
        Crash = "crash" {
            /// Child that dies instead of the worker: `r0`, `kv`, `r1/kv`, `metrics`, `lease`, `rendezvous`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            actor: Option<String> as Values::Text,
            /// Start it again after so long, ms; stays dead without.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            restart_after_ms: Option<f64> as param::MS,
            /// Under its former instance id.
            #[serde(default, skip_serializing_if = "is_false")]
            same_id: bool as Values::Flag,
        }
        /// An actor panics; its supervisor replaces it.
        Panic = "panic" {
            /// Child that panics instead of the worker, as for `crash`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            actor: Option<String> as Values::Text,
        }
        /// The worker unlists itself, finishes its streams and leaves.
        Drain = "drain" {
            /// Start it again so long after it has been told to drain, ms.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            restart_after_ms: Option<f64> as param::MS,
            /// Under its former instance id.
            #[serde(default, skip_serializing_if = "is_false")]
            same_id: bool as Values::Flag,
        }
        /// The worker crashes and is started again at once.
        Restart = "restart" {
            /// Under its former instance id.
            #[serde(default, skip_serializing_if = "is_false")]
            same_id: bool as Values::Flag,
        }
        /// The worker crashes and comes back, again and again.
        Flap = "flap" {
            /// Time alive, ms.
            up_ms: f64 as param::BEAT_MS,
            /// Time dead, ms.
            down_ms: f64 as param::BEAT_MS,
            /// Under its former instance id.
            #[serde(default, skip_serializing_if = "is_false")]
            same_id: bool as Values::Flag,
        }
    }
}

impl LifeFault {
    /// What holds for its parameters together.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        match self {
            Self::Crash {
                restart_after_ms: None,
                same_id: true,
                ..
            }
            | Self::Drain {
                restart_after_ms: None,
                same_id: true,
            } => Err("same_id is of the restart, and there is none without restart_after_ms"),
            Self::Crash { .. } | Self::Panic { .. } | Self::Drain { .. } | Self::Restart { .. } | Self::Flap { .. } => {
                Ok(())
            }
        }
    }
}

gate! {
    /// How the worker lives, asked by its ranks and at its starts.
    Condition(ConditionFault, Life, 1, once) {
        /// The worker takes requests and never answers; it renews its lease all the while.
        Hang = "hang" {}
        /// Starts take longer: requests wait so much longer for the first pass, ms.
        SlowStart = "slow_start" {
            /// Extra time, ms.
            ms: f64 as param::SOME_MS,
        }
    }
}
