//! A pass that computes prompt tokens; whoever decodes waits for it.

use crate::types::SimTime;

use super::super::{Output, OutputDetail, Pass};
use super::running::Lane;
use super::{Part, Phase, Sglang};

impl Sglang {
    /// Runs `batch`, which is not empty.
    pub(super) fn run_prefill(&mut self, now: SimTime, pass: &mut Pass) {
        let batch = std::mem::take(&mut self.batch);
        let (mut requests, mut isl, mut prefix, mut tokens) = (0, 0, 0, 0);
        for part in &batch {
            requests += 1;
            isl += u64::from(part.start + part.take);
            prefix += u64::from(part.start);
            tokens += u64::from(part.take);
            let slot = &mut self.slots[part.at];
            slot.sequence.computed = part.start + part.take;
            pass.forward.prefill.add(slot.sequence.prompt_len());
            if let Some(record) = &mut self.record {
                record.push((slot.sequence.id, part.take));
            }
        }
        pass.ends_at = now + self.clock.prefill(requests, isl, prefix);
        pass.forward.prefill_tokens = tokens;
        pass.forward.prefill_kv_tokens = prefix;
        if self.rules.is_real() {
            for part in &batch {
                self.end_part(*part, pass);
            }
        } else {
            for part in &batch {
                self.share(part.at);
            }
            // Those whose prompt goes on are first again, in their order.
            for part in batch.iter().rev().filter(|part| !part.whole) {
                self.slots[part.at].phase = Phase::Waiting;
                self.enqueue(part.at, true);
            }
            for part in batch.iter().filter(|part| part.whole) {
                self.first_token(part.at, pass);
            }
        }
        self.batch = batch;
        self.batch.clear();
        self.prefill_rests = self.rules.prefill_interval;
    }

    fn end_part(&mut self, part: Part, pass: &mut Pass) {
        if part.whole {
            self.first_token(part.at, pass);
        } else {
            self.slots[part.at].phase = Phase::Chunked;
            self.chunked = Some(part.at);
        }
    }

    /// Hands out the token that a computed prompt brings, and lets the request decode or go.
    fn first_token(&mut self, at: u32, pass: &mut Pass) {
        let generator = self.generator;
        let slot = &mut self.slots[at];
        let index = slot.sequence.generated;
        slot.sequence.answer.look_ahead(generator, index);
        let (end, reason) = slot.sequence.answer.end();
        let id = slot.sequence.id;
        if end <= index {
            pass.outputs.push(Output::Empty { id, finish: reason });
            self.retire(at);
            return;
        }
        if self.rules.decodes_at_once() {
            self.join(at, index == 0);
            return;
        }
        let last = end == index + 1;
        if !last && !self.rules.is_real() && !self.grow(at) {
            // No page for the token: it comes with the next decode.
            self.join(at, index == 0);
            return;
        }
        let slot = &mut self.slots[at];
        // A request that was retracted has had its first token before.
        if last || index == 0 || self.detail == OutputDetail::EveryToken {
            pass.outputs.push(Output::Token {
                id,
                token: slot.sequence.answer.token(generator, index),
                finish: last.then_some(reason),
            });
        }
        slot.sequence.generated += 1;
        if last {
            self.retire(at);
            return;
        }
        if self.rules.is_real() {
            self.share(at);
        } else {
            self.complete_page(at);
        }
        self.join(at, false);
    }

    /// Takes a place in the pool for one more token of a request that does not run yet.
    fn grow(&mut self, at: u32) -> bool {
        let held = self.slots[at].sequence.computed;
        if held.is_multiple_of(self.rules.page) {
            if !self.make_room(u64::from(self.rules.page)) {
                return false;
            }
            self.free_pages -= 1;
        }
        self.slots[at].sequence.computed += 1;
        true
    }

    /// Moves a request into the running batch.
    fn join(&mut self, at: u32, first: bool) {
        let slot = &mut self.slots[at];
        slot.phase = Phase::Decoding;
        let lane = Lane {
            ordinal: 0,
            slot: at,
            id: slot.sequence.id,
            plain: slot.sequence.answer.plain_stream(),
            offset: 0,
            first,
            finish: None,
        };
        slot.ordinal = self.running.push(slot.sequence.computed, lane);
        self.plan(at);
    }
}
