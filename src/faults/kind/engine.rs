//! Faults of the scheduler and the KV cache.

use serde::{Deserialize, Serialize};

use super::param::{self, Param, Values};
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
            /// Multiple; below 1 is faster, 0: no time at all.
            factor: f64 as param::TIMES,
        }
        /// A pass takes so much longer, ms.
        Stall = "stall" {
            /// Extra time, ms.
            ms: f64 as param::SOME_MS,
        }
        /// Each pass takes longer by a random time, uniform up to so much, ms.
        Jitter = "jitter" {
            /// Most extra time, ms.
            ms: f64 as param::SOME_MS,
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
            message: String as Values::Text,
            /// Blame the request (400) instead of the worker.
            #[serde(default, skip_serializing_if = "is_false")]
            invalid: bool as Values::Flag,
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
            share: Option<f64> as param::SHARE,
            /// Blocks; or `share`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            blocks: Option<u32> as param::SOME_BLOCKS,
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
            event: Told as Values::Word(Told::WORDS),
            /// How late, ms.
            #[serde(default, skip_serializing_if = "is_zero")]
            late_ms: f64 as param::MS,
        }
    }
}

impl Told {
    /// How they are written.
    pub(super) const WORDS: &[&str] = &["with", "without", "late"];
}

impl PassFault {
    /// What holds for its parameters together.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        match self {
            #[allow(clippy::float_cmp)]
            Self::Slow { factor } if *factor == 1.0 => Err("factor 1 changes nothing; more is slower, less is faster"),
            Self::Slow { .. } | Self::Stall { .. } | Self::Jitter { .. } => Ok(()),
        }
    }
}

impl PurgeFault {
    /// What holds for its parameters together.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let Self::ClearCache { event, late_ms } = self;
        if *event != Told::Late && *late_ms > 0.0 {
            return Err("late_ms goes with event=late");
        }
        Ok(())
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
