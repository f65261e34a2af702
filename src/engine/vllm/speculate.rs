//! Speculative decoding: a pass brings each request one token and those of its drafts that are accepted.
//!
//! Blocks for the longest possible burst of everybody are found before the draws, preempting if needed; what the draws
//! leave unused is not taken. Source: Dynamo 1.6.1 engine core (MTP).

use super::super::speculation::Acceptance;
use super::super::{Output, OutputDetail, Pass};
use super::lanes::Lane;
use super::{Vllm, Work};

impl Vllm {
    /// Draws the burst of every request that brings a token in this pass. Returns the blocks in use before any burst took
    /// some, and without those that gave way for them.
    pub(super) fn speculate(&mut self, work: &mut Work, pass: &mut Pass) -> u32 {
        while self.longest_bursts() > self.pool.available() && self.somebody_gives_way() {
            let index = self.victim();
            self.preempt(index, work, pass);
        }
        let used = self.used_blocks();
        // Room for the longest bursts is made whatever the draws bring.
        self.pool
            .make_room(self.longest_bursts().min(self.pool.available()), &mut pass.kv_events);
        pass.note_cache_changes(self.used_blocks(), self.pool.inactive());
        let drafts = self.rules.drafts;
        for index in 0..self.lanes.len() {
            let Some((len, left)) = self.to_come(&self.lanes[index], drafts + 1) else {
                continue;
            };
            let at = self.lanes[index].sequence;
            let accepted = self.acceptance.as_mut().map_or(1, Acceptance::draw);
            let burst = accepted.min(left).min(self.held(at, len));
            let sequence = &mut self.slots[at].sequence;
            let generated = len - sequence.prompt_len();
            sequence.answer.look_ahead(self.generator, generated + burst);
            self.bring(index, len, burst, pass);
        }
        used
    }

    /// Whether somebody gives way for the longest bursts. The last one does as long as others hold blocks, which they may
    /// give back; again and again at one instant in the reference emulator, here until it goes on with what there is.
    fn somebody_gives_way(&self) -> bool {
        match &self.lanes[..] {
            _ if self.rules.to_completion => false,
            [last] => {
                let own = self.slots[last.sequence].sequence.table.len();
                own < self.used_blocks() && !self.is_spared(last.sequence)
            }
            lanes => !lanes.is_empty(),
        }
    }

    /// Length and tokens to come, at most `most`, of a request that brings tokens in this pass.
    fn to_come(&self, lane: &Lane, most: u32) -> Option<(u32, u32)> {
        if lane.first_pass > self.pass {
            return None;
        }
        let len = u32::try_from(lane.offset + self.pass).unwrap_or(0);
        let sequence = &self.slots[lane.sequence].sequence;
        let generated = len - sequence.prompt_len();
        Some((
            len,
            (sequence.answer.end().0 - generated.min(sequence.answer.end().0)).min(most),
        ))
    }

    /// Blocks that are missing if every draft of everybody is accepted.
    fn longest_bursts(&self) -> u32 {
        let drafts = self.rules.drafts;
        let missing = |lane: &Lane| {
            let (len, left) = self.to_come(lane, drafts + 1)?;
            let blocks = self.rules.blocks(len + left);
            Some(blocks.saturating_sub(self.slots[lane.sequence].sequence.table.len()))
        };
        self.lanes.iter().filter_map(missing).sum()
    }

    /// Tokens that a request of `len` tokens may still get in the blocks that it has or can get.
    fn held(&self, at: u32, len: u32) -> u32 {
        let blocks = self.slots[at].sequence.table.len() + self.pool.available();
        (blocks.saturating_mul(self.rules.block_size) - len).max(1)
    }

    /// Books `burst` tokens for the request at list position `index`.
    fn bring(&mut self, index: usize, len: u32, burst: u32, pass: &mut Pass) {
        let at = self.lanes[index].sequence;
        let slot = &self.slots[at];
        let (end, reason) = slot.sequence.answer.end();
        let burst = burst.min(end - (len - slot.sequence.prompt_len()).min(end));
        let computed = len + burst.saturating_sub(1);
        let done = len + burst - slot.sequence.prompt_len() >= end;
        // The newest token gets its place now; the last one needs it only where the blocks are kept for a transfer.
        let wanted = self.rules.blocks(if done && !slot.keeps_blocks {
            computed
        } else {
            len + burst
        });
        let missing = wanted
            .saturating_sub(slot.sequence.table.len())
            .min(self.pool.available());
        self.take_blocks(at, missing, pass);
        self.publish(at, computed / self.rules.block_size, pass);
        let lane = &mut self.lanes[index];
        lane.burst = burst;
        if done {
            lane.finish = Some(reason);
            self.scratch.finishing.push(at);
        }
    }

    /// The lengths of the next pass follow from the bursts of this one.
    pub(super) fn settle_bursts(&mut self) {
        for index in 0..self.lanes.len() {
            let lane = &mut self.lanes[index];
            if lane.first_pass > self.pass {
                continue;
            }
            let extra = i64::from(std::mem::replace(&mut lane.burst, 1)) - 1;
            if extra != 0 {
                self.decoding.remove(lane.offset);
                lane.offset += extra;
                self.decoding.add(lane.offset);
            }
        }
    }

    /// Hands out the tokens of a burst that starts at absolute position `position`.
    pub(super) fn emit_burst(&self, lane: &Lane, position: u32, pass: &mut Pass) {
        let sequence = &self.slots[lane.sequence].sequence;
        let first = position - sequence.prompt_len();
        for index in first..first + lane.burst {
            let last = index + 1 == first + lane.burst;
            let milestone = index == 0 || (last && lane.finish.is_some());
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
