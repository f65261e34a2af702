//! Faults of load figures.

use serde::{Deserialize, Serialize};

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
            ms: f64,
        }
        /// Nothing is told any more.
        Frozen = "frozen" {}
        /// The used blocks are made up.
        Lying = "lying" {
            /// Shape over time: `constant`, `ramp` or `square`.
            #[serde(default)]
            wave: Wave,
            /// Lowest figure, blocks.
            #[serde(default)]
            low: u64,
            /// Highest figure, blocks.
            high: u64,
            /// Length of a period, ms.
            #[serde(default = "second")]
            period_ms: f64,
        }
    }
}
