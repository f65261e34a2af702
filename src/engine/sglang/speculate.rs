//! Speculative decoding: a decode step brings each request one token and those of its drafts that are accepted.
//!
//! Pages for the longest possible burst of everybody are found before the draws, retracting if needed; only those that the
//! bursts fill are taken. Source: Dynamo 1.6.1 engine core (MTP).

use super::super::{Output, OutputDetail, Pass};
use super::Sglang;
use super::running::Lane;

impl Sglang {
    /// Pages that the next step takes if every draft of everybody is accepted.
    pub(super) fn decode_pages(&self) -> u32 {
        if !self.rules.speculates() {
            return self.running.pages_due();
        }
        self.pages_of(|_, left| left.min(self.rules.drafts + 1).max(1))
    }

    /// Pages that the tokens of this step take.
    pub(super) fn step_pages(&self) -> u32 {
        if !self.rules.speculates() {
            return self.running.pages_due();
        }
        self.pages_of(|lane, _| lane.burst)
    }

    /// Pages for so many more tokens of each running request, given with the tokens that it may still generate.
    fn pages_of(&self, tokens: impl Fn(&Lane, u32) -> u32) -> u32 {
        let pages = |lane: &Lane| {
            let slot = &self.slots[lane.slot];
            let held = self.running.held(lane);
            let left = slot.max_new.saturating_sub(self.generated(slot, held));
            self.rules.pages(held + tokens(lane, left)) - self.rules.pages(held)
        };
        self.running.iter().map(pages).sum()
    }

    /// Requests are longer by their accepted drafts.
    pub(super) fn lengthen_bursts(&mut self) {
        if !self.rules.speculates() {
            return;
        }
        for index in 0..self.running.len() {
            let extra = self.running[index].burst - 1;
            if extra > 0 {
                self.running.extend(index, extra);
            }
        }
    }

    /// Hands out the tokens of a burst.
    pub(super) fn emit_burst(&self, lane: &Lane, pass: &mut Pass) {
        let sequence = &self.slots[lane.slot].sequence;
        let first = self.running.held(lane) + self.rules.lag() - sequence.prompt_len();
        for index in first..first + lane.burst {
            let last = index + 1 == first + lane.burst;
            let milestone = (lane.first && index == first) || (last && lane.finish.is_some());
            if self.listing.detail == OutputDetail::Milestones && !milestone {
                continue;
            }
            pass.outputs.push(Output::Token {
                id: lane.id,
                token: sequence.answer.token(self.generator, index),
                finish: lane.finish.filter(|_| last),
            });
        }
    }
}
