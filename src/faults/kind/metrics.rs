//! Faults of load figures.

use serde::{Deserialize, Serialize};

use super::param::{self, Param, Values};
use super::{GateFault, Kind, KindInfo, Layer};

/// Shape of a lie over time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wave {
    /// Always `high`.
    #[default]
    Constant,
    /// From `low` to `high` once per period, then again.
    Ramp,
    /// `low` for half a period, `high` for the other half.
    Square,
}

fn second() -> f64 {
    1000.0
}

gate! {
    /// Load figures, asked for each report.
    Metrics(MetricsFault, Metrics, 11) {
        /// Figures are told so much later, ms.
        Stale = "stale" {
            /// Delay, ms.
            ms: f64 as param::SOME_MS,
        }
        /// Nothing is told any more.
        Frozen = "frozen" {}
        /// The used blocks are made up.
        Lying = "lying" {
            /// Shape over time: `constant`, `ramp` or `square`.
            #[serde(default)]
            wave: Wave as Values::Word(Wave::WORDS),
            /// Lowest figure, blocks.
            #[serde(default)]
            low: u64 as param::BLOCKS,
            /// Highest figure, blocks.
            high: u64 as param::BLOCKS,
            /// Length of a period, ms.
            #[serde(default = "second")]
            period_ms: f64 as param::PERIOD_MS,
        }
    }
}

impl Wave {
    /// How they are written.
    pub(super) const WORDS: &[&str] = &["constant", "ramp", "square"];
}

impl MetricsFault {
    /// What holds for its parameters together.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        match self {
            Self::Lying { low, high, .. } if low > high => Err("low must be at most high"),
            Self::Lying { .. } | Self::Stale { .. } | Self::Frozen {} => Ok(()),
        }
    }
}
