//! What faults do to load figures.

use std::time::Duration;

use crate::faults::WorkerFaults;
use crate::faults::kind::{MetricsFault, Wave};
use crate::faults::table::Due;
use crate::types::span_of_ms;

/// What becomes of a report.
#[derive(Debug, Default)]
pub(super) struct Spin {
    /// Not at all.
    frozen: Option<Due<MetricsFault>>,
    /// So much later.
    late: Option<(Duration, Due<MetricsFault>)>,
    /// Other figures than the true ones.
    lie: Option<(Lie, Due<MetricsFault>)>,
}

/// When a report is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Now,
    Later(Duration),
    Never,
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
        let mut spin = Self::default();
        for due in faults.draw::<MetricsFault>() {
            match *due {
                MetricsFault::Frozen {} => spin.frozen = Some(due),
                MetricsFault::Stale { ms } => {
                    let late = span_of_ms(ms);
                    spin.late = Some((late, due));
                }
                MetricsFault::Lying { .. } => spin.lie = Lie::of(&due).map(|lie| (lie, due)),
            }
        }
        spin
    }

    /// When the report is told, if there is one.
    pub(super) fn told(&self) -> Told {
        if let Some(frozen) = &self.frozen {
            frozen.happened();
            return Told::Never;
        }
        match &self.late {
            Some((late, due)) if !late.is_zero() => {
                due.happened();
                Told::Later(*late)
            }
            Some(_) | None => Told::Now,
        }
    }

    /// The used blocks that are told at `now_ms` where there are `truly` so many.
    pub(super) fn used_blocks(&self, truly: u32, now_ms: u64) -> u64 {
        let Some((lie, due)) = &self.lie else {
            return truly.into();
        };
        due.happened();
        lie.at(now_ms)
    }
}

/// The lie that is in force; no dice are thrown.
pub(super) fn standing_lie(faults: &WorkerFaults) -> Option<Lie> {
    let in_force = faults.in_force::<MetricsFault>();
    in_force.iter().find_map(|fault| Lie::of(fault))
}

impl Lie {
    fn of(fault: &MetricsFault) -> Option<Self> {
        match *fault {
            MetricsFault::Lying {
                wave,
                low,
                high,
                period_ms,
            } => Some(Self {
                wave,
                low,
                high,
                period_ms,
            }),
            MetricsFault::Stale { .. } | MetricsFault::Frozen {} => None,
        }
    }

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
