//! When prefills are put off so that data-parallel ranks decode together.
//!
//! In a group every n-th step only computes prompts while somebody decodes, unless the last step that did left requests
//! waiting. Source: Dynamo 1.6.1 engine core (`prefill_schedule_interval`).

use super::super::config::{EngineConfig, EngineKind};

/// The steps of a rank, in its group's count or its own.
#[derive(Debug)]
pub(super) struct Cadence {
    /// Steps from one with prefills to the next; 1: all.
    interval: u64,
    /// Number of the step to come, counted from 0 since there was nothing left to do.
    step: u64,
    /// The step is counted by a group.
    grouped: bool,
    /// The last pass that could compute prompts left requests waiting.
    pub(super) left_waiting: bool,
}

impl Cadence {
    pub(super) fn new(config: &EngineConfig) -> Self {
        let applies = config.data_parallel_size > 1 && config.kind == EngineKind::Vllm;
        Self {
            interval: if applies {
                u64::from(config.prefill_schedule_interval)
            } else {
                1
            },
            step: 0,
            grouped: false,
            left_waiting: false,
        }
    }

    /// The group takes this step.
    pub(super) fn join(&mut self, step: u64) {
        self.step = step;
        self.grouped = true;
    }

    /// Whether a group counts the steps.
    pub(super) fn is_grouped(&self) -> bool {
        self.grouped
    }

    /// Whether prefills are put off in the step to come.
    pub(super) fn defers(&self, decodes: bool) -> bool {
        decodes && !self.left_waiting && !self.step.is_multiple_of(self.interval)
    }

    /// A step is over, with or without more to do.
    pub(super) fn passed(&mut self, more: bool) {
        if !self.grouped {
            self.step = if more { self.step + 1 } else { 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cadence(ranks: u32, interval: u32) -> Cadence {
        Cadence::new(&EngineConfig {
            data_parallel_size: ranks,
            prefill_schedule_interval: interval,
            ..EngineConfig::default()
        })
    }

    #[test]
    fn prefills_are_put_off_between_multiples_of_the_interval_while_somebody_decodes() {
        let mut group = cadence(2, 3);
        let deferred: Vec<bool> = (0..6)
            .map(|step| {
                group.join(step);
                group.defers(true)
            })
            .collect();
        assert_eq!(deferred, [false, true, true, false, true, true]);
        assert!(!group.defers(false));
        group.left_waiting = true;
        assert!(!group.defers(true));
    }

    #[test]
    fn a_rank_outside_a_group_counts_its_own_steps() {
        let mut alone = cadence(2, 2);
        assert!(!alone.defers(true));
        alone.passed(true);
        assert!(alone.defers(true));
        alone.passed(false);
        assert!(!alone.defers(true));
        let mut single = cadence(1, 2);
        single.passed(true);
        assert!(!single.defers(true), "one rank has nobody to wait for");
    }
}
