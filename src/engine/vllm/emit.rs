//! End of a pass: how long it takes, who gets which token, who is done.

use std::time::Duration;

use crate::types::{FinishReason, SimTime};

use super::super::{Output, OutputDetail, Pass};
use super::lanes::Lane;
use super::{Phase, Vllm, Work};

impl Vllm {
    /// Turns scheduled work into a timed pass with outputs, and lets finished requests go.
    pub(super) fn finish_pass(&mut self, now: SimTime, work: &Work, pass: &mut Pass) {
        let prefill = work.prefill;
        let duration = self.clock.prefill(prefill.requests, prefill.isl, prefill.prefix);
        let (count, total_len) = self.decode_batch(work);
        pass.ends_at = now + duration + self.decode_time(count, total_len);
        self.record_visits();
        match self.detail {
            OutputDetail::EveryToken => self.emit_all(pass),
            OutputDetail::Milestones => self.emit_milestones(pass),
        }
        pass.outputs.append(&mut self.scratch.rejected);
        self.retire();
        self.scratch.joined.clear();
        self.pass += 1;
        pass.load = super::Engine::load(self);
    }

    pub(super) fn decode_time(&self, count: u32, total_len: u64) -> Duration {
        self.clock
            .decode(count, total_len, total_len, self.rules.capacity_tokens)
    }

    /// Requests that decode in this pass and their total length: all that bring a token, except those whose token comes
    /// from the prompt tokens computed in this pass.
    fn decode_batch(&self, work: &Work) -> (u32, u64) {
        let mut count = self.decoding.count();
        let mut total = self.decoding.total_len(self.pass);
        for &at in &self.scratch.joined {
            let slot = &self.slots[at];
            if slot.visit.prompt.is_some() || slot.sequence.answer.end().0 == 0 {
                count -= 1;
                total -= u64::from(slot.sequence.computed);
            }
        }
        if work.stalled {
            for lane in self.lanes.iter().filter(|lane| lane.first_pass == self.pass + 1) {
                count -= 1;
                total -= u64::try_from(lane.offset + self.pass).unwrap_or(0);
            }
        }
        (count, total)
    }

    fn record_visits(&mut self) {
        let Some(record) = &mut self.record else { return };
        for lane in self.lanes.iter() {
            let slot = &self.slots[lane.sequence];
            if slot.visit.pass == self.pass {
                record.extend((slot.visit.tokens > 0).then_some((lane.id, slot.visit.tokens)));
            } else if slot.phase == Phase::Decoding {
                record.push((lane.id, 1));
            }
        }
    }

    fn emit_all(&self, pass: &mut Pass) {
        self.emit_empty(pass);
        for lane in self.lanes.iter().filter(|lane| lane.first_pass <= self.pass) {
            self.emit(lane, pass);
        }
    }

    fn emit_milestones(&mut self, pass: &mut Pass) {
        self.emit_empty(pass);
        let mut marked = std::mem::take(&mut self.scratch.visits);
        marked.clear();
        let first_token = |at: &u32| self.slots[*at].sequence.generated == 0;
        let firsts = self.scratch.joined.iter().copied().filter(first_token);
        marked.extend(
            firsts
                .chain(self.scratch.finishing.iter().copied())
                .map(|at| (self.slots[at].ordinal, at)),
        );
        marked.sort_unstable();
        marked.dedup();
        for &(ordinal, _) in &marked {
            if let Some(index) = self.lanes.find(ordinal) {
                self.emit(&self.lanes[index], pass);
            }
        }
        self.scratch.visits = marked;
    }

    /// Ends of requests with nothing to generate come before all tokens.
    fn emit_empty(&self, pass: &mut Pass) {
        for &at in &self.scratch.finishing {
            let sequence = &self.slots[at].sequence;
            if sequence.answer.end().0 == 0 {
                pass.outputs.push(Output::Empty {
                    id: sequence.id,
                    finish: FinishReason::Length,
                });
            }
        }
    }

    fn emit(&self, lane: &Lane, pass: &mut Pass) {
        let position = u32::try_from(lane.offset + self.pass).unwrap_or(0);
        let token = if let Some(stream) = lane.plain {
            self.generator.token(stream, position)
        } else {
            let sequence = &self.slots[lane.sequence].sequence;
            if sequence.answer.end().0 == 0 {
                return;
            }
            sequence.answer.token(self.generator, position - sequence.prompt_len())
        };
        pass.outputs.push(Output::Token {
            id: lane.id,
            token,
            finish: lane.finish,
        });
    }

    /// Finished requests leave; the next pass finds their blocks free.
    fn retire(&mut self) {
        let finishing = std::mem::take(&mut self.scratch.finishing);
        for &at in &finishing {
            if let Some(index) = self.lanes.find(self.slots[at].ordinal) {
                self.leave(index);
            }
            if let Some(mut slot) = self.slots.remove(at) {
                self.pool.release(&mut slot.sequence.table);
                self.ids.remove(&slot.sequence.id);
            }
        }
        self.blocked_at = if finishing.is_empty() { self.blocked_at } else { None };
        self.scratch.finishing = finishing;
        self.scratch.finishing.clear();
    }
}
