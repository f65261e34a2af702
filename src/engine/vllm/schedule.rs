//! First half of a pass: the running requests.
//!
//! Only requests that do more than decode are visited: those with prompt tokens left and those the calendar names. The
//! others take one token of the budget each, which is arithmetic on list positions.

use super::super::Pass;
use super::super::calendar::Entry;
use super::lanes::Lane;
use super::rules::Victim;
use super::{Phase, Visit, Vllm, Work, is_due};

/// What a visit came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Visited {
    Scheduled,
    /// The request itself gave way.
    Preempted,
}

impl Vllm {
    /// Serves the running list within `work.budget`, preempting when blocks run out.
    pub(super) fn schedule_running(&mut self, work: &mut Work, pass: &mut Pass) {
        self.collect_visits();
        if work.defers_prefills {
            self.put_off_prefills(work);
        }
        let mut next = 0;
        while let Some(&(ordinal, at)) = self.scratch.visits.get(next) {
            next += 1;
            let Some(index) = self.lanes.find(ordinal) else {
                continue;
            };
            if self.slots[at].visit.pass == self.pass {
                continue;
            }
            let before = work.visited_tokens + position(index) - work.visited_lanes;
            let left = u32::try_from(work.budget - before).unwrap_or(if before < work.budget { u32::MAX } else { 0 });
            if left == 0 {
                break;
            }
            let mut passed_over = 0;
            let visited = self.visit(at, ordinal, left, &mut passed_over, work, pass);
            let index = index - passed_over;
            let behind = index + usize::from(visited == Visited::Scheduled);
            if visited == Visited::Preempted && self.rules.by_priority {
                self.stall_from(behind, work);
                return;
            }
            if self.rules.victim == Victim::Oldest && !self.rules.real {
                self.pass_over(behind, passed_over, work);
            }
        }
        let served = work.budget - work.visited_tokens + work.visited_lanes;
        if served < position(self.lanes.len()) {
            self.stall_from(usize::try_from(served).unwrap_or(0), work);
        }
    }

    /// Due and prefilling requests in list order.
    fn collect_visits(&mut self) {
        let visits = &mut self.scratch.visits;
        visits.clear();
        while let Some(entry) = self.calendar.pop_due(self.pass) {
            if is_due(&self.slots, &entry) {
                visits.push((entry.ordinal, entry.sequence));
            }
        }
        if !self.prefilling.is_empty() {
            visits.extend(self.prefilling.iter().map(|&at| (self.slots[at].ordinal, at)));
            visits.sort_unstable();
        }
    }

    /// Nobody whose prompt is not computed is served in this pass.
    fn put_off_prefills(&mut self, work: &mut Work) {
        for &at in &self.prefilling {
            let slot = &mut self.slots[at];
            if slot.sequence.computed < slot.sequence.prompt_len() {
                slot.visit = Visit {
                    pass: self.pass,
                    ..Visit::default()
                };
                work.visited_lanes += 1;
            }
        }
    }

    /// Gives one request its tokens. `passed_over` counts victims that stood before it.
    fn visit(
        &mut self,
        at: u32,
        ordinal: u64,
        budget: u32,
        passed_over: &mut usize,
        work: &mut Work,
        pass: &mut Pass,
    ) -> Visited {
        #[cfg(test)]
        {
            self.visits += 1;
        }
        let (computed, len) = self.progress(at);
        let tokens = self.chunk(len - computed, budget);
        let end = computed + tokens;
        let needed = self
            .rules
            .blocks(end)
            .saturating_sub(self.slots[at].sequence.table.len());
        while !self.take_blocks(at, needed, pass) {
            let index = self.victim();
            let own = self.lanes[index].ordinal;
            self.preempt(index, work, pass);
            if own == ordinal {
                return Visited::Preempted;
            }
            *passed_over += usize::from(own < ordinal);
        }
        self.compute(at, computed, end, work, pass);
        if end == len {
            self.reach_end(at, len);
        }
        Visited::Scheduled
    }

    /// Computed and known tokens of a running request at the start of this pass.
    fn progress(&self, at: u32) -> (u32, u32) {
        let slot = &self.slots[at];
        if slot.phase == Phase::Decoding
            && let Some(index) = self.lanes.find(slot.ordinal)
        {
            let len = u32::try_from(self.lanes[index].offset + self.pass).unwrap_or(0);
            return (len - 1, len);
        }
        (slot.sequence.computed, slot.sequence.len())
    }

    /// Tokens of `missing` that one request gets from `budget`.
    pub(super) fn chunk(&self, missing: u32, budget: u32) -> u32 {
        let requests = (self.lanes.len() + self.waiting.len() + self.below.parked.len()) as u64;
        let limit = self.rules.long_prefill_tokens;
        if limit == 0 || requests <= 1 {
            return missing.min(budget);
        }
        let share = if self.rules.long_prefill_adapts {
            u32::try_from(self.rules.budget / requests).unwrap_or(u32::MAX)
        } else {
            0
        };
        missing.min(budget).min(limit.max(share))
    }

    /// Gives a request `blocks` more blocks if there are that many.
    pub(super) fn take_blocks(&mut self, at: u32, blocks: u32, pass: &mut Pass) -> bool {
        self.name_blocks(at, blocks);
        let slot = &mut self.slots[at];
        let set_aside = slot.set_aside.saturating_sub(slot.sequence.table.len());
        let table = &mut slot.sequence.table;
        let taken = self.pool.take(table, &self.scratch.known, blocks, &mut pass.kv_events);
        if taken {
            self.promised -= blocks.min(set_aside);
        }
        self.note_changes(at, pass);
        taken
    }

    /// Fills `scratch.known` with those of the next `blocks` blocks of a request that a pool which registers blocks before
    /// they are computed can name: full ones of the prompt, and of the answer where a further token is known.
    fn name_blocks(&mut self, at: u32, blocks: u32) {
        self.scratch.known.clear();
        if !self.pool.is_eager() || !self.rules.prefix_caching {
            return;
        }
        let (_, len) = self.progress(at);
        let sequence = &mut self.slots[at].sequence;
        let first = sequence.table.len();
        let full = sequence.prompt_len().max(len.saturating_sub(1)) / self.rules.block_size;
        for index in first..full.min(first + blocks) {
            self.scratch.known.push(self.hasher.identity(sequence, index));
        }
    }

    /// Accounts for the tokens `from..end` of a request: budget, prefill work, blocks that are full now.
    pub(super) fn compute(&mut self, at: u32, from: u32, end: u32, work: &mut Work, pass: &mut Pass) {
        let (_, len) = self.progress(at);
        let slot = &mut self.slots[at];
        slot.sequence.computed = end;
        let prompt_len = slot.sequence.prompt_len();
        let prompt = (from < prompt_len).then(|| (end.min(prompt_len), from));
        slot.visit = Visit {
            pass: self.pass,
            tokens: end - from,
            prompt,
            recomputed: (prompt.is_none() && end < len).then_some(len),
        };
        if let Some(len) = slot.visit.recomputed {
            work.recomputed.add(len);
        }
        work.visited_tokens += i64::from(end - from);
        work.visited_lanes += 1;
        if let Some((isl, prefix)) = prompt {
            work.prefill.lengths.add(prompt_len);
            work.prefill.tokens += u64::from(end - from);
            work.prefill.isl += u64::from(isl);
            work.prefill.prefix += u64::from(prefix);
        }
        self.publish(at, end / self.rules.block_size, pass);
        self.offer(at);
    }

    /// The first `full` blocks of a request are full. They become visible now, or when the pass is over if the pool names
    /// blocks that fill up while decoding with the token after them.
    pub(super) fn publish(&mut self, at: u32, full: u32, pass: &mut Pass) {
        if !self.rules.prefix_caching || full <= self.slots[at].sequence.table.cached() {
            return;
        }
        if self.pool.is_eager() {
            self.scratch.filled.push((self.slots[at].ordinal, at, full));
        } else {
            self.register(at, full, pass);
        }
    }

    /// Makes the first `full` blocks of a request visible, with one event per newly visible run.
    pub(super) fn register(&mut self, at: u32, full: u32, pass: &mut Pass) {
        let sequence = &mut self.slots[at].sequence;
        for index in sequence.table.cached()..full {
            let identity = self.hasher.identity(sequence, index);
            if self.pool.publish(&mut sequence.table, identity) {
                self.scratch.run.push(&identity);
            } else {
                self.scratch.run.flush(&mut pass.kv_events);
            }
        }
        self.scratch.run.flush(&mut pass.kv_events);
        self.note_changes(at, pass);
    }

    /// The request with all `len` tokens scheduled brings a token at the end of this pass.
    pub(super) fn reach_end(&mut self, at: u32, len: u32) {
        let Some(index) = self.lanes.find(self.slots[at].ordinal) else {
            return;
        };
        if self.slots[at].phase == Phase::Prefilling {
            let lane = &mut self.lanes[index];
            lane.offset = i64::from(len) - self.pass;
            lane.first_pass = self.pass;
            self.decoding.add(lane.offset);
            self.prefilling.retain(|&other| other != at);
            self.slots[at].phase = Phase::Decoding;
            self.scratch.joined.push(at);
        }
        self.plan(at, index, len);
    }

    /// Finds out what comes next for a request that brings its next token in this pass.
    fn plan(&mut self, at: u32, index: usize, len: u32) {
        let slot = &mut self.slots[at];
        if slot.sequence.answer.end().0 == 0 {
            self.scratch.finishing.push(at);
            return;
        }
        if self.rules.speculates {
            // How many tokens come is drawn at the end of the pass.
            slot.due = self.pass + 1;
            self.calendar.push(Entry {
                pass: slot.due,
                ordinal: slot.ordinal,
                sequence: at,
            });
            return;
        }
        let boundary = next_boundary(len, self.rules.block_size, self.rules.prefix_caching);
        let token = len - slot.sequence.prompt_len();
        slot.sequence
            .answer
            .look_ahead(self.generator, token + (boundary - len));
        let (end, reason) = slot.sequence.answer.end();
        if end <= token + 1 {
            self.lanes[index].finish = Some(reason);
            self.scratch.finishing.push(at);
            return;
        }
        let steps = (boundary - len).min(end - 1 - token);
        slot.due = self.pass + i64::from(steps);
        self.calendar.push(Entry {
            pass: slot.due,
            ordinal: slot.ordinal,
            sequence: at,
        });
    }

    /// No budget for the requests from list position `from` on: decoding ones bring their next token a pass later.
    fn stall_from(&mut self, from: usize, work: &mut Work) {
        for index in from..self.lanes.len() {
            self.stall(index);
        }
        work.visited_lanes += position(self.lanes.len().saturating_sub(from));
        work.stalled = true;
    }

    fn stall(&mut self, index: usize) {
        let lane: &mut Lane = &mut self.lanes[index];
        let slot = &mut self.slots[lane.sequence];
        slot.visit = Visit {
            pass: self.pass,
            ..Visit::default()
        };
        if slot.phase != Phase::Decoding {
            return;
        }
        self.decoding.remove(lane.offset);
        lane.offset -= 1;
        lane.first_pass = self.pass + 1;
        self.decoding.add(lane.offset);
        slot.due += 1;
        self.calendar.push(Entry {
            pass: slot.due,
            ordinal: lane.ordinal,
            sequence: lane.sequence,
        });
    }

    /// The reference emulator scans by index and does not move back when a victim before the current request leaves, so
    /// the next `count` requests, at `from`, are not served in this pass.
    fn pass_over(&mut self, from: usize, count: usize, work: &mut Work) {
        let end = self.lanes.len().min(from + count);
        for index in from..end {
            self.stall(index);
            work.visited_lanes += 1;
            work.stalled = true;
        }
    }
}

/// A list position or length as a signed number.
pub(super) fn position(index: usize) -> i64 {
    i64::try_from(index).unwrap_or(i64::MAX)
}

/// The next length above `len` at whose pass a decoding request fills a block (length a multiple of the block size; only
/// with prefix caching) or needs a new one (one more than a multiple).
fn next_boundary(len: u32, block_size: u32, prefix_caching: bool) -> u32 {
    let next = len + 1;
    match next % block_size {
        _ if block_size == 1 => next,
        0 if prefix_caching => next,
        0 => next + 1,
        1 => next,
        past if prefix_caching => next + block_size - past,
        past => next + block_size - past + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::config::EngineConfig;
    use super::super::super::{Engine, cost, timing};
    use super::super::Vllm;
    use super::next_boundary;
    use crate::types::SimTime;

    /// Tokens of each prompt of 100 tokens in the first pass of 40.
    fn first_chunks(requests: u32, long_prefill_token_threshold: u32, adaptive: bool) -> Vec<u32> {
        let config = EngineConfig {
            max_num_batched_tokens: Some(40),
            long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive: adaptive,
            ..EngineConfig::default()
        };
        let mut engine = Vllm::alone(&config, timing::build(&config.timing));
        engine.record_schedule(true);
        for family in 0..requests {
            let request = cost::request(u64::from(family), family, 100, 5);
            engine.submit(request, SimTime::ZERO).unwrap();
        }
        engine.step(SimTime::ZERO).unwrap();
        engine.schedule().iter().map(|&(_, tokens)| tokens).collect()
    }

    #[test]
    fn long_prompts_are_cut_at_the_threshold_or_an_equal_share_of_the_budget() {
        assert_eq!(first_chunks(3, 0, true), [40]);
        assert_eq!(first_chunks(3, 8, false), [8, 8, 8]);
        assert_eq!(first_chunks(3, 8, true), [13, 13, 13]);
        assert_eq!(first_chunks(3, 30, true), [30, 10]);
        assert_eq!(first_chunks(1, 8, false), [40], "nobody else has to wait for it");
    }

    #[test]
    fn boundaries_are_full_blocks_and_first_tokens_of_new_ones() {
        let walk = |caching: bool| {
            let mut len = 1;
            let mut seen = Vec::new();
            while len < 13 {
                len = next_boundary(len, 4, caching);
                seen.push(len);
            }
            seen
        };
        assert_eq!(walk(true), [4, 5, 8, 9, 12, 13]);
        assert_eq!(walk(false), [5, 9, 13]);
        assert_eq!(next_boundary(7, 1, true), 8);
    }
}
