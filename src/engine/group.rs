//! Data-parallel ranks of one worker that step together.
//!
//! All ranks start a pass at the same instant and the pass ends when the slowest is done; a rank without work takes part
//! idle. Source: Dynamo 1.6.1 engine core.

use crate::types::SimTime;

use super::{Engine, Pass};

/// Ranks of one worker behind one barrier.
pub struct Group {
    ranks: Vec<Box<dyn Engine>>,
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
        Self { ranks }
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

    /// Computes the next pass of all ranks into `pass`, reusing its buffers. `false`: no rank has work.
    pub fn step_into(&mut self, now: SimTime, pass: &mut GroupPass) -> bool {
        pass.ends_at = now;
        pass.ranks.resize_with(self.ranks.len(), Pass::default);
        let mut busy = false;
        for (rank, part) in self.ranks.iter_mut().zip(&mut pass.ranks) {
            if rank.step_into(now, part) {
                busy = true;
                pass.ends_at = pass.ends_at.max(part.ends_at);
            } else {
                part.ends_at = now;
                part.load = rank.load();
            }
        }
        busy
    }
}
