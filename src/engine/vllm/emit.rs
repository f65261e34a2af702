//! End of a pass: how long it takes, who gets which token, who is done.

use std::time::Duration;

use crate::types::{FinishReason, SimTime};

use super::super::config::{Semantics, WorkerRole};
use super::super::forward::{Forward, Lengths};
use super::super::{Output, OutputDetail, Pass};
use super::lanes::Lane;
use super::{Phase, Slot, Vllm, Work};

/// Requests that bring a token at the end of a pass, by length before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecodeBatch {
    /// All of them.
    emitting: Lengths,
    /// Less those whose first token comes from prompt tokens computed in this pass.
    later: Lengths,
    /// Less all that computed prompt tokens in this pass.
    without_prompt: Lengths,
}

impl DecodeBatch {
    /// Of a pass in which everybody decodes.
    pub(super) fn all(lengths: Lengths) -> Self {
        Self {
            emitting: lengths,
            later: lengths,
            without_prompt: lengths,
        }
    }
}

impl Vllm {
    /// Turns scheduled work into a timed pass with outputs, and lets finished requests go.
    pub(super) fn finish_pass(&mut self, now: SimTime, work: &mut Work, pass: &mut Pass) {
        let mut active_blocks = self.used_blocks();
        let mut batch = self.decode_batch(work);
        let prefill = work.prefill;
        let span = self
            .clock
            .prefill(prefill.lengths.requests, prefill.isl, prefill.prefix);
        self.record_visits();
        self.end_empty(pass);
        let mut decode = batch.without_prompt;
        decode.append(work.recomputed);
        if self.rules.speculates {
            active_blocks = self.speculate(work, pass);
            batch = self.decode_batch(work);
        }
        self.use_taken(now);
        let worked = self.starts_at(work).max(now) + span + self.decode_time(&batch, active_blocks);
        pass.ends_at = self.clock.end(now, worked);
        *pass.forward = Forward {
            prefill: prefill.lengths,
            prefill_tokens: prefill.tokens,
            prefill_kv_tokens: prefill.prefix,
            decode,
            queued_prefill: self.queued_prefill,
            queued_decode: self.queued_decode,
        };
        match self.listing.detail {
            OutputDetail::EveryToken => self.emit_all(pass),
            OutputDetail::Milestones => self.emit_milestones(pass),
        }
        pass.outputs.append(&mut self.scratch.rejected);
        if !pass.outputs.is_empty() || prefill.tokens > 0 || decode.requests > 0 {
            self.note_progress();
        }
        self.retire(pass);
        if self.rules.speculates {
            self.settle_bursts();
        }
        if self.shares_memory() {
            self.below.closing = Some(pass.ends_at);
        } else if !self.cadence.is_grouped() {
            self.close_lower(pass.ends_at, pass);
        }
        self.tell_earlier(pass);
        self.desk.pass_ran(pass.ends_at);
        if self.rules.role == WorkerRole::Decode {
            pass.kv_events.clear();
            pass.stored.clear();
        }
        self.scratch.joined.clear();
        self.pass += 1;
        pass.load = super::Engine::load(self);
        self.cadence.passed(pass.load.running + pass.load.waiting > 0);
    }

    /// Time of the decode step of a pass with `active_blocks` in use before any burst.
    pub(super) fn decode_time(&self, batch: &DecodeBatch, active_blocks: u32) -> Duration {
        let capacity = self.rules.capacity_tokens;
        let DecodeBatch { emitting, later, .. } = batch;
        match self.rules.semantics {
            Semantics::V1_6_1 if self.rules.speculates => {
                self.clock
                    .decode(emitting.requests, emitting.tokens, emitting.tokens, capacity)
            }
            Semantics::V1_6_1 => self.clock.decode(later.requests, later.tokens, later.tokens, capacity),
            Semantics::V1_4_2 => {
                let kv_tokens = u64::from(active_blocks) * u64::from(self.rules.block_size);
                self.clock
                    .decode(emitting.requests, emitting.tokens, kv_tokens, capacity)
            }
        }
    }

    fn decode_batch(&self, work: &Work) -> DecodeBatch {
        let mut emitting = self.decoding.lengths(self.pass);
        if work.stalled {
            for lane in self.lanes.iter().filter(|lane| lane.first_pass == self.pass + 1) {
                emitting.remove(u32::try_from(lane.offset + self.pass).unwrap_or(0));
            }
        }
        let joined = || self.scratch.joined.iter().map(|&at| &self.slots[at]);
        let is_empty = |slot: &&Slot| slot.sequence.answer.end().0 == 0;
        for slot in joined().filter(is_empty) {
            emitting.remove(slot.sequence.computed);
        }
        let (mut later, mut without_prompt) = (emitting, emitting);
        for slot in joined().filter(|slot| !is_empty(slot) && slot.visit.prompt.is_some()) {
            without_prompt.remove(slot.sequence.computed);
            if slot.sequence.generated == 0 && self.rules.role == WorkerRole::Aggregated {
                later.remove(slot.sequence.computed);
            }
        }
        DecodeBatch {
            emitting,
            later,
            without_prompt,
        }
    }

    fn record_visits(&mut self) {
        let Some(record) = &mut self.listing.schedule else {
            return;
        };
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
        for lane in self.lanes.iter().filter(|lane| lane.first_pass <= self.pass) {
            self.emit(lane, pass);
        }
    }

    fn emit_milestones(&mut self, pass: &mut Pass) {
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

    /// Requests with nothing to generate end, and their blocks are free, before anybody gets a token.
    fn end_empty(&mut self, pass: &mut Pass) {
        let mut finishing = std::mem::take(&mut self.scratch.finishing);
        finishing.retain(|&at| {
            let sequence = &self.slots[at].sequence;
            if sequence.answer.end().0 != 0 {
                return true;
            }
            pass.outputs.push(Output::Empty {
                id: sequence.id,
                finish: FinishReason::Length,
            });
            self.scratch.joined.retain(|&other| other != at);
            self.end(at);
            false
        });
        self.scratch.finishing = finishing;
    }

    /// A request that has all its tokens leaves; its blocks are free unless they wait for a transfer.
    fn end(&mut self, at: u32) {
        if let Some(index) = self.lanes.find(self.slots[at].ordinal) {
            self.leave(index);
        }
        self.room_came();
        if self.slots[at].keeps_blocks {
            self.hold(at);
        } else if let Some(mut slot) = self.slots.remove(at) {
            self.pool.release(&mut slot.sequence.table);
            self.ids.remove(&slot.sequence.id);
        }
    }

    fn emit(&self, lane: &Lane, pass: &mut Pass) {
        let position = u32::try_from(lane.offset + self.pass).unwrap_or(0);
        if lane.burst > 1 {
            self.emit_burst(lane, position, pass);
            return;
        }
        let token = if let Some(stream) = lane.plain {
            self.generator.token(stream, position)
        } else {
            let sequence = &self.slots[lane.sequence].sequence;
            sequence.answer.token(self.generator, position - sequence.prompt_len())
        };
        pass.outputs.push(Output::Token {
            id: lane.id,
            token,
            finish: lane.finish,
        });
    }

    /// Finished requests leave; the next pass finds their blocks free.
    fn retire(&mut self, pass: &mut Pass) {
        let finishing = std::mem::take(&mut self.scratch.finishing);
        let mut filled = std::mem::take(&mut self.scratch.filled);
        filled.sort_unstable();
        let mut next = filled.iter().copied().peekable();
        for &at in &finishing {
            // Each running request in turn: first the block that its new token completes, then its end.
            let ordinal = self.slots[at].ordinal;
            while let Some((_, at, full)) = next.next_if(|&(other, ..)| other <= ordinal) {
                self.register(at, full, pass);
            }
            self.end(at);
        }
        for (_, at, full) in next {
            self.register(at, full, pass);
        }
        filled.clear();
        self.scratch.filled = filled;
        self.scratch.finishing = finishing;
        self.scratch.finishing.clear();
    }
}
