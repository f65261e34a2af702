//! A pass that computes prompt tokens; whoever decodes waits for it.

use crate::types::SimTime;

use super::super::{Output, OutputDetail, PageChangeKind, Pass};
use super::running::Lane;
use super::{Part, Phase, Sglang};

/// When an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextEnd {
    /// It has no further token.
    Now,
    /// With the next token.
    WithToken,
    /// With a later one.
    Later,
}

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
            if part.take > 0 {
                pass.forward.prefill.add(slot.sequence.prompt_len());
                pass.forward.prefill_kv_tokens += u64::from(part.start);
            }
            if let Some(record) = &mut self.listing.schedule {
                record.push((slot.sequence.id, part.take));
            }
        }
        pass.ends_at = now + self.clock.prefill(requests, isl, prefix);
        pass.forward.prefill_tokens = tokens;
        self.computed_tokens += tokens;
        if self.rules.is_real() {
            for part in &batch {
                self.end_part(*part, pass);
            }
        } else {
            for part in batch.iter().filter(|part| !part.whole) {
                self.share(part.at);
            }
            // Those whose prompt goes on are first again, in their order.
            for part in batch.iter().rev().filter(|part| !part.whole) {
                self.slots[part.at].phase = Phase::Waiting;
                self.enqueue(part.at, true);
            }
            self.first_tokens(&batch, pass);
        }
        self.batch = batch;
        self.batch.clear();
    }

    fn end_part(&mut self, part: Part, pass: &mut Pass) {
        if part.whole {
            self.first_token(part.at, pass);
        } else {
            self.slots[part.at].phase = Phase::Chunked;
            self.chunked = Some(part.at);
            // It is taken out of the batch that begins to decode, which SGLang counts as if somebody had left.
            self.full = false;
        }
    }

    /// Hands out the token that a computed prompt brings, and lets the request decode or go.
    pub(super) fn first_token(&mut self, at: u32, pass: &mut Pass) {
        match self.next_end(at) {
            NextEnd::Now => {
                self.end_empty(at, pass);
                self.retire(at);
            }
            NextEnd::WithToken => {
                self.bring(at, true, pass);
                self.retire(at);
            }
            NextEnd::Later => {
                self.bring(at, false, pass);
                self.share(at);
                self.join(at, false);
            }
        }
    }

    /// The emulator's first tokens: those who end come first, then the others if there are pages for all of them; else
    /// their tokens come with the next decode step.
    fn first_tokens(&mut self, batch: &[Part], pass: &mut Pass) {
        let mut ended = Vec::new();
        let mut going_on: Vec<u32> = batch.iter().filter(|part| part.whole).map(|part| part.at).collect();
        going_on.retain(|&at| {
            let ends = self.next_end(at) == NextEnd::Now;
            if ends {
                self.end_empty(at, pass);
                ended.push(at);
            }
            !ends
        });
        if self.rules.decodes_at_once() {
            for &at in &going_on {
                self.join(at, self.slots[at].sequence.generated == 0);
            }
            going_on.clear();
        }
        going_on.retain(|&at| {
            let ends = self.next_end(at) == NextEnd::WithToken;
            if ends {
                self.bring(at, true, pass);
                ended.push(at);
            }
            !ends
        });
        let page = self.rules.page;
        let crosses_page = |computed: u32| u32::from(computed.is_multiple_of(page));
        let pages: u32 = going_on
            .iter()
            .map(|&at| crosses_page(self.slots[at].sequence.computed))
            .sum();
        let fit = self.make_room(u64::from(pages) * u64::from(self.rules.page));
        for &at in &going_on {
            if fit {
                self.take_free(
                    crosses_page(self.slots[at].sequence.computed),
                    PageChangeKind::Allocation,
                );
                self.slots[at].sequence.computed += 1;
                self.bring(at, false, pass);
                self.complete_page(at);
                self.join(at, false);
            } else {
                self.join(at, self.slots[at].sequence.generated == 0);
            }
        }
        for at in ended {
            self.retire(at);
        }
    }

    /// When a request whose known tokens are computed ends.
    fn next_end(&mut self, at: u32) -> NextEnd {
        let generator = self.generator;
        let sequence = &mut self.slots[at].sequence;
        let index = sequence.generated;
        sequence.answer.look_ahead(generator, index);
        match sequence.answer.end().0 {
            end if end <= index => NextEnd::Now,
            end if end == index + 1 => NextEnd::WithToken,
            _ => NextEnd::Later,
        }
    }

    fn end_empty(&self, at: u32, pass: &mut Pass) {
        let sequence = &self.slots[at].sequence;
        pass.outputs.push(Output::Empty {
            id: sequence.id,
            finish: sequence.answer.end().1,
        });
    }

    /// Hands out the next token of a request that does not run.
    fn bring(&mut self, at: u32, last: bool, pass: &mut Pass) {
        let sequence = &mut self.slots[at].sequence;
        let index = sequence.generated;
        // A request that was retracted has had its first token before.
        if last || index == 0 || self.listing.detail == OutputDetail::EveryToken {
            pass.outputs.push(Output::Token {
                id: sequence.id,
                token: sequence.answer.token(self.generator, index),
                finish: last.then_some(sequence.answer.end().1),
            });
        }
        sequence.generated += 1;
    }

    /// Moves a request into the running batch.
    pub(super) fn join(&mut self, at: u32, first: bool) {
        let slot = &mut self.slots[at];
        slot.phase = Phase::Decoding;
        let lane = Lane {
            ordinal: 0,
            slot: at,
            id: slot.sequence.id,
            plain: slot.sequence.answer.plain_stream(),
            offset: 0,
            first,
            burst: 1,
            finish: None,
        };
        slot.ordinal = self.running.push(slot.sequence.computed, lane);
        self.plan(at);
    }
}
