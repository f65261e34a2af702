//! A pass that gives every running request one token.

use std::time::Duration;

use crate::types::SimTime;

use super::super::calendar::Entry;
use super::super::speculation::Acceptance;
use super::super::{Output, OutputDetail, PageChangeKind, Pass};
use super::ratio::{RETRACT_TOKENS, Survivors};
use super::running::Lane;
use super::{Phase, Sglang};

/// A running request as (how soon it is retracted, ordinal).
type Victim = ((u32, i64, i64), u64);

/// Tokens that are drawn ahead to find a stop id.
const LOOK_AHEAD: u32 = 64;

impl Sglang {
    /// Runs a decode step from `now` on; `false`: nobody is left to decode.
    pub(super) fn run_decode(&mut self, now: SimTime, pass: &mut Pass) -> bool {
        if self.running.is_empty() {
            return false;
        }
        // Those that are retracted now count as well.
        pass.forward.decode = self.running.lengths();
        if !self.retract(pass) || self.running.is_empty() {
            return false;
        }
        self.make_room(self.decode_headroom());
        pass.ends_at = now + self.decode_time();
        if let Some(record) = &mut self.listing.schedule {
            record.extend(self.running.iter().map(|lane| (lane.id, 1)));
        }
        self.mark_last_tokens();
        self.emit(pass);
        self.take_free(self.step_pages(), PageChangeKind::Allocation);
        self.running.step += 1;
        self.lengthen_bursts();
        self.settle_due();
        true
    }

    /// Tokens that are made free before a decode step if there is something to evict: SGLang allows for a page for
    /// everybody, whoever needs one.
    pub(super) fn decode_headroom(&self) -> u64 {
        let pages = if self.rules.is_real() {
            self.running.count().max(self.decode_pages())
        } else {
            self.decode_pages()
        };
        u64::from(pages) * u64::from(self.rules.page)
    }

    pub(super) fn decode_time(&self) -> Duration {
        let lengths = self.running.lengths();
        let capacity = self.rules.capacity_tokens();
        let read = if self.rules.decodes_at_once() {
            lengths.tokens.min(capacity)
        } else {
            lengths.tokens
        };
        self.clock.decode(lengths.requests, lengths.tokens, read, capacity)
    }

    /// Notes when something happens next to a running request: a page that fills, a look ahead, its end.
    pub(super) fn plan(&mut self, at: u32) {
        let (generator, step) = (self.generator, self.running.step);
        let slot = &mut self.slots[at];
        let Some(index) = self.running.find(slot.ordinal) else {
            return;
        };
        let lane = &self.running[index];
        let held = self.running.held(lane);
        let token = held + self.rules.lag() - slot.sequence.prompt_len();
        slot.sequence.answer.look_ahead(generator, token + LOOK_AHEAD);
        let (end, _) = slot.sequence.answer.end();
        let mut steps = end.saturating_sub(token + 1);
        if lane.plain.is_none() {
            steps = steps.min(LOOK_AHEAD);
        }
        if !self.rules.is_real() && self.rules.prefix_caching {
            steps = steps.min(self.rules.page - 1 - held % self.rules.page);
        }
        if lane.first || self.rules.speculates() {
            steps = 0;
        }
        slot.due = step + i64::from(steps);
        let entry = Entry {
            pass: slot.due,
            ordinal: slot.ordinal,
            sequence: at,
        };
        self.running.calendar.push(entry);
    }

    /// Collects who is due in this step, in list order, and marks those for whom it is the last.
    fn mark_last_tokens(&mut self) {
        self.due.clear();
        while let Some(entry) = self.running.calendar.pop_due(self.running.step) {
            if !super::is_due(&self.slots, &entry) {
                continue;
            }
            let Some(index) = self.running.find(entry.ordinal) else {
                continue;
            };
            let held = self.running.held(&self.running[index]);
            let sequence = &self.slots[entry.sequence].sequence;
            let token = held + self.rules.lag() - sequence.prompt_len();
            let (end, reason) = sequence.answer.end();
            let accepted = self.acceptance.as_mut().map_or(1, Acceptance::draw);
            let burst = accepted.min(end - token.min(end)).max(1);
            self.running[index].burst = burst;
            self.running[index].finish = (end == token + burst).then_some(reason);
            self.due.push((entry.ordinal, entry.sequence));
        }
        self.due.sort_unstable();
    }

    fn emit(&self, pass: &mut Pass) {
        match self.listing.detail {
            OutputDetail::EveryToken => {
                for lane in self.running.iter() {
                    self.emit_token(lane, pass);
                }
            }
            OutputDetail::Milestones => {
                let due = self.due.iter().filter_map(|&(ordinal, _)| self.running.find(ordinal));
                let told = due.filter(|&index| self.running[index].first || self.running[index].finish.is_some());
                for index in told {
                    self.emit_token(&self.running[index], pass);
                }
            }
        }
    }

    fn emit_token(&self, lane: &Lane, pass: &mut Pass) {
        if lane.burst > 1 {
            self.emit_burst(lane, pass);
            return;
        }
        let position = self.running.held(lane) + self.rules.lag();
        let token = if let Some(stream) = lane.plain {
            self.generator.token(stream, position)
        } else {
            let sequence = &self.slots[lane.slot].sequence;
            sequence.answer.token(self.generator, position - sequence.prompt_len())
        };
        pass.outputs.push(Output::Token {
            id: lane.id,
            token,
            finish: lane.finish,
        });
    }

    /// Pages fill, requests end.
    fn settle_due(&mut self) {
        let due = std::mem::take(&mut self.due);
        let mut ended = Vec::new();
        for &(ordinal, at) in &due {
            let Some(index) = self.running.find(ordinal) else {
                continue;
            };
            self.running[index].first = false;
            let finished = self.running[index].finish.is_some();
            let held = self.running.held(&self.running[index]);
            let burst = std::mem::replace(&mut self.running[index].burst, 1);
            if !self.rules.is_real() {
                for held in held + 1 - burst..held + u32::from(!finished) {
                    self.settle(at, held);
                    self.complete_page(at);
                }
            }
            self.settle(at, held);
            if finished {
                self.leave(index);
                ended.push(at);
            } else {
                self.plan(at);
            }
        }
        // The pages that the last tokens fill are cached when all others are; those of a source when it is released.
        for at in ended {
            match (self.rules.is_real(), self.slots[at].keeps_pages) {
                (true, _) => {}
                (false, true) => self.tell_page(at),
                (false, false) => self.complete_page(at),
            }
            self.retire(at);
        }
        self.due = due;
    }

    /// The emulator caches the complete pages of a request with each token that completes one, and with its first.
    pub(super) fn complete_page(&mut self, at: u32) {
        let slot = &self.slots[at];
        if slot.sequence.computed / self.rules.page > slot.cached {
            self.tell_page(at);
            self.share(at);
        }
    }

    /// Tells of the page that the newest token completes, if it does.
    fn tell_page(&mut self, at: u32) {
        let page = self.rules.page;
        let slot = &mut self.slots[at];
        let (held, full) = (slot.sequence.computed, slot.sequence.computed / page);
        if !self.rules.prefix_caching || full <= slot.cached || !held.is_multiple_of(page) {
            return;
        }
        self.hasher.block(&mut slot.sequence, full - 1);
        self.note_contents(at, full - 1..full);
        let pages = self.slots[at].sequence.hashed(full);
        let parent = (full > 1).then(|| pages[full as usize - 2].block_hash);
        self.cache.hold(parent, &pages[full as usize - 1..]);
    }

    /// Makes room for the next token of everybody, sending requests back to the queue while there is too little. `false`:
    /// there is none even for the last one, which keeps its place until a handoff gives memory back.
    fn retract(&mut self, pass: &mut Pass) -> bool {
        if self.has_room() {
            if !self.rules.decodes_at_once() {
                self.ratio.decay();
            }
            return true;
        }
        let mut victims = self.victims();
        let mut retracted = false;
        while self.running.len() > 1 && !(retracted && self.has_room()) {
            let Some((_, ordinal)) = victims.pop() else { break };
            if let Some(index) = self.running.find(ordinal) {
                self.send_back(index, pass);
                retracted = true;
            }
        }
        let has_room = self.has_room();
        let waits = !has_room && self.withheld == 0 && !self.rules.is_real() && self.handoffs_hold_memory();
        if waits {
            if !retracted {
                self.ratio.settle();
                return false;
            }
        } else if !has_room {
            if self.withheld > 0 {
                // There will be room when its pages come back.
                self.send_back(0, pass);
            } else {
                let at = self.leave(0);
                self.full = false;
                self.abort(at);
            }
        } else if self.rules.is_real() {
            self.reorder(&victims);
        }
        if self.rules.decodes_at_once() {
            self.ratio.reset();
            return !waits;
        }
        let mut survivors = Survivors::default();
        for lane in self.running.iter() {
            let slot = &self.slots[lane.slot];
            survivors.add(self.generated(slot, self.running.held(lane)), slot.max_new);
        }
        self.ratio.retracted(survivors);
        !waits
    }

    /// Evicts what the next token of everybody needs; `false`: that is not enough.
    fn has_room(&mut self) -> bool {
        let tokens = u64::from(self.decode_pages()) * u64::from(self.rules.page);
        if !self.rules.is_real() && self.obtainable() < i64::try_from(tokens).unwrap_or(i64::MAX) {
            // The emulator looks before it evicts.
            return false;
        }
        self.make_room(tokens)
    }

    /// Running requests, the first victim last.
    fn victims(&self) -> Vec<Victim> {
        let key = |(index, lane): (usize, &Lane)| {
            let slot = &self.slots[lane.slot];
            let generated = self.generated(slot, self.running.held(lane));
            let index = i64::try_from(index).unwrap_or(i64::MAX);
            (
                retraction_rank(self.rules.is_real(), generated, slot.sequence.prompt_len(), index),
                lane.ordinal,
            )
        };
        let mut victims: Vec<_> = self.running.iter().enumerate().map(key).collect();
        victims.sort_unstable_by(|a, b| b.cmp(a));
        victims
    }

    /// SGLang leaves the running batch in the order in which it looked for victims.
    fn reorder(&mut self, victims: &[Victim]) {
        self.running.reorder(victims.iter().map(|&(_, ordinal)| ordinal));
        for index in 0..self.running.len() {
            let lane = &self.running[index];
            let at = lane.slot;
            self.slots[at].ordinal = lane.ordinal;
            self.plan(at);
        }
    }

    /// Sends a running request back to the queue. Its tokens stay, its pages go.
    fn send_back(&mut self, index: usize, pass: &mut Pass) {
        let at = self.leave(index);
        self.drop_pages(at);
        let slot = &mut self.slots[at];
        slot.phase = Phase::Waiting;
        pass.preempted.push(slot.sequence.id);
        self.enqueue(at, self.rules.decodes_at_once());
        self.desk.room_came();
        self.full = false;
        if self.rules.is_real() {
            self.preemptions += 1;
            // More than the next token needs, so that the next step does not retract again.
            let left = u64::from(self.running.count());
            self.make_room(left * u64::from(RETRACT_TOKENS));
        }
    }
}

/// Smallest first: fewest generated tokens; among equals SGLang takes the longest prompt, then the last of the batch, the
/// emulator the first.
fn retraction_rank(real: bool, generated: u32, prompt: u32, index: i64) -> (u32, i64, i64) {
    if real {
        (generated, -i64::from(prompt), -index)
    } else {
        (generated, 0, index)
    }
}

/// Indices of running requests, each given as prompt and generated tokens, in the order in which SGLang retracts them.
pub fn retraction_order(running: &[(u32, u32)]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..running.len()).collect();
    order.sort_by_key(|&index| {
        let (prompt, generated) = running[index];
        retraction_rank(true, generated, prompt, i64::try_from(index).unwrap_or(i64::MAX))
    });
    order
}
