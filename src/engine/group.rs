//! Data-parallel ranks of one worker that step together.
//!
//! All ranks start a pass at the same instant and the pass ends when the slowest is done; a rank without work takes part
//! idle. Source: Dynamo 1.6.1 engine core.

use crate::types::SimTime;

use super::{Engine, GroupOutcome, Pass};

/// Ranks of one worker behind one barrier.
pub struct Group {
    ranks: Vec<Box<dyn Engine>>,
    /// Steps since all ranks last ran out of work.
    step: u64,
}

/// One pass of all ranks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupPass {
    /// End of the slowest rank: everything of all ranks becomes visible then.
    pub ends_at: SimTime,
    /// What each rank did, by rank number; `ends_at` of each is its own end.
    pub ranks: Vec<Pass>,
}

impl Group {
    /// A group of these ranks, numbered from 0.
    pub fn new(ranks: Vec<Box<dyn Engine>>) -> Self {
        Self { ranks, step: 0 }
    }

    /// Number of ranks.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Whether there are no ranks.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// One rank, to submit to, cancel on or ask; `None` past the last.
    pub fn rank(&mut self, rank: usize) -> Option<&mut dyn Engine> {
        match self.ranks.get_mut(rank) {
            Some(engine) => Some(engine.as_mut()),
            None => None,
        }
    }

    /// When some rank has something to tell or may run although it could not at the last step. `None`: never.
    pub fn wakes_at(&self) -> Option<SimTime> {
        self.ranks.iter().filter_map(|rank| rank.wakes_at()).min()
    }

    /// Computes the next pass of all ranks into `pass`, reusing its buffers. `false`: no rank has work.
    pub fn step_into(&mut self, now: SimTime, pass: &mut GroupPass) -> bool {
        pass.ranks.resize_with(self.ranks.len(), Pass::default);
        loop {
            let outcome = self.try_step(now, pass);
            let mut again = false;
            for rank in &mut self.ranks {
                again |= rank.leave_step(outcome);
            }
            let left = pass.ranks.iter().any(|rank| rank.load.running + rank.load.waiting > 0);
            self.step = if left { self.step + 1 } else { 0 };
            if outcome.worked || !again {
                return outcome.worked;
            }
        }
    }

    fn try_step(&mut self, now: SimTime, pass: &mut GroupPass) -> GroupOutcome {
        pass.ends_at = now;
        let mut outcome = GroupOutcome::default();
        for (rank, part) in self.ranks.iter_mut().zip(&mut pass.ranks) {
            rank.join_step(self.step);
            if rank.step_into(now, part) {
                outcome.worked = true;
                outcome.prefilled |= part.forward.prefill_tokens > 0;
                pass.ends_at = pass.ends_at.max(part.ends_at);
            } else {
                part.ends_at = now;
                part.load = rank.load();
            }
        }
        outcome
    }
}
