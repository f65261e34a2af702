//! What faults do to load figures.

use std::time::Duration;

use crate::faults::WorkerFaults;
use crate::faults::kind::{MetricsFault, Wave};
use crate::types::span_of_ms;

/// What becomes of a report.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Spin {
    /// Not at all.
    pub(super) frozen: bool,
    /// So much later.
    pub(super) late: Duration,
    /// Other figures than the true ones.
    pub(super) lie: Option<Lie>,
}

/// Used blocks that are made up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Lie {
    wave: Wave,
    low: u64,
    high: u64,
    period_ms: f64,
}

impl Spin {
    /// Throws the dice for one report.
    #[inline]
    pub(super) fn ask(faults: &WorkerFaults) -> Self {
        Self::of(faults.ask::<MetricsFault>())
    }

    /// What is in force, without dice.
    pub(super) fn in_force(faults: &WorkerFaults) -> Self {
        Self::of(faults.in_force::<MetricsFault>().into_iter().map(|(_, fault)| fault))
    }

    fn of(faults: impl IntoIterator<Item = MetricsFault>) -> Self {
        let mut spin = Self::default();
        for fault in faults {
            match fault {
                MetricsFault::Frozen {} => spin.frozen = true,
                MetricsFault::Stale { ms } => {
                    spin.late = span_of_ms(ms);
                }
                MetricsFault::Lying {
                    wave,
                    low,
                    high,
                    period_ms,
                } => {
                    spin.lie = Some(Lie {
                        wave,
                        low,
                        high,
                        period_ms,
                    });
                }
            }
        }
        spin
    }
}

impl Lie {
    /// The figure at `now_ms`.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    pub(super) fn at(&self, now_ms: u64) -> u64 {
        let phase = (now_ms as f64 % self.period_ms) / self.period_ms;
        let span = self.high.saturating_sub(self.low) as f64;
        match self.wave {
            Wave::Square if phase < 0.5 => self.low,
            Wave::Constant | Wave::Square => self.high,
            Wave::Ramp => self.low + (span * phase) as u64,
        }
    }

    /// How often it has to be told to be believed.
    pub(super) fn step(&self) -> Duration {
        let ms = match self.wave {
            Wave::Constant => 1000.0,
            Wave::Ramp => self.period_ms / 20.0,
            Wave::Square => self.period_ms / 4.0,
        };
        span_of_ms(ms.clamp(20.0, 1000.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lies_follow_their_wave() {
        let lie = |wave| Lie {
            wave,
            low: 10,
            high: 110,
            period_ms: 1000.0,
        };
        let at = |wave| [0, 250, 500, 750, 1000].map(|ms| lie(wave).at(ms));
        assert_eq!(at(Wave::Constant), [110; 5]);
        assert_eq!(at(Wave::Ramp), [10, 35, 60, 85, 10]);
        assert_eq!(at(Wave::Square), [10, 10, 110, 110, 10]);
    }
}
