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
        let members = self.ranks.iter_mut().zip(&mut pass.ranks);
        let mut members: Vec<_> = members.map(|(engine, pass)| Stepped { engine, pass }).collect();
        let ends_at = step_together(&mut members, &mut self.step, now);
        pass.ends_at = ends_at.unwrap_or(now);
        ends_at.is_some()
    }
}

/// A rank with its part of the pass.
struct Stepped<'a> {
    engine: &'a mut Box<dyn Engine>,
    pass: &'a mut Pass,
}

impl Member for Stepped<'_> {
    fn engine(&mut self) -> &mut dyn Engine {
        self.engine.as_mut()
    }

    fn step(&mut self, now: SimTime) -> Option<SimTime> {
        if self.engine.step_into(now, self.pass) {
            return Some(self.pass.ends_at);
        }
        self.pass.ends_at = now;
        self.pass.load = self.engine.load();
        None
    }

    fn prefills(&self) -> bool {
        self.pass.forward.prefill_tokens > 0
    }

    fn end(&mut self, end: SimTime) -> bool {
        let told = self.engine.end_step(end, self.pass);
        if told {
            self.pass.load = self.engine.load();
        }
        told
    }
}

/// One of the ranks that step together.
pub(crate) trait Member {
    /// The rank.
    fn engine(&mut self) -> &mut dyn Engine;

    /// Computes its part of the step; its end, or `None` without work.
    fn step(&mut self, now: SimTime) -> Option<SimTime>;

    /// Whether its part computes prompt tokens.
    fn prefills(&self) -> bool;

    /// The step ends at `end` for all; returns whether the rank has something to tell of it ([`Engine::end_step`]).
    fn end(&mut self, end: SimTime) -> bool;
}

/// Lets ranks take step number `step` of their group together; when the slowest is done, or `None` if none has work.
pub(crate) fn step_together<M: Member>(members: &mut [M], step: &mut u64, now: SimTime) -> Option<SimTime> {
    loop {
        let mut ends_at = None;
        let mut prefilled = false;
        for member in members.iter_mut() {
            member.engine().join_step(*step);
            let end = member.step(now);
            prefilled |= end.is_some() && member.prefills();
            ends_at = ends_at.max(end);
        }
        let end = ends_at.unwrap_or(now);
        for member in members.iter_mut() {
            if member.end(end) {
                ends_at = Some(end);
            }
        }
        let worked = ends_at.is_some();
        let (mut again, mut left, mut under_way) = (false, false, false);
        for member in members.iter_mut() {
            let engine = member.engine();
            again |= engine.leave_step(GroupOutcome { prefilled, worked });
            let load = engine.load();
            left |= load.running + load.waiting > 0;
            under_way |= engine.is_moving();
        }
        // The count goes on while something is still copied to memory below the GPU, too; waiting for that is no step.
        if left || (under_way && worked) {
            *step += 1;
        } else if !under_way {
            *step = 0;
        }
        if worked || !again {
            return ends_at;
        }
    }
}
