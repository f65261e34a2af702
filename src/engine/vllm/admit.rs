//! Second half of a pass: requests from the waiting queue, in order, until one does not fit.

use super::super::{Admission, Output, Pass};
use super::schedule::position;
use super::{Phase, Vllm, Work};

impl Vllm {
    /// Admits what budget, slots and blocks allow. Nothing behind a request that has to wait is tried.
    pub(super) fn admit(&mut self, work: &mut Work, pass: &mut Pass) {
        while self.lanes.len() < self.rules.max_num_seqs
            && self.blocked_at != Some(self.pool.version())
            && let Some(at) = self.waiting.head()
        {
            if self.reject(at) {
                continue;
            }
            let used = work.visited_tokens + position(self.lanes.len()) - work.visited_lanes;
            let left = u32::try_from((work.budget - used).max(0)).unwrap_or(u32::MAX);
            if left == 0 || !self.admit_head(at, left, work, pass) {
                break;
            }
        }
    }

    /// Drops a new request that can never fit.
    fn reject(&mut self, at: u32) -> bool {
        let slot = &self.slots[at];
        if slot.admitted_before || self.rules.is_real() {
            return false;
        }
        let Err(reason) = self.rules.fits(slot.sequence.prompt_len()) else {
            return false;
        };
        let id = slot.sequence.id;
        self.waiting.remove(slot.place);
        self.slots.remove(at);
        self.ids.remove(&id);
        self.scratch.rejected.push(Output::Rejected { id, reason });
        true
    }

    /// Admits the head of the queue with its first chunk, or finds that it has to wait.
    fn admit_head(&mut self, at: u32, budget: u32, work: &mut Work, pass: &mut Pass) -> bool {
        let referenced = self.find_prefix(at);
        let sequence = &self.slots[at].sequence;
        let hits = u32::try_from(self.scratch.hits.len()).unwrap_or(u32::MAX);
        let (len, cached) = (sequence.len(), hits * self.rules.block_size);
        let whole = if self.rules.is_real() {
            len
        } else {
            sequence.prompt_len().max(cached)
        };
        if !self.rules.chunked_prefill && whole - cached > budget {
            return false;
        }
        let end = cached + self.chunk(len - cached, budget);
        let extent = if self.rules.reserve_full_isl { len } else { end };
        let kept_free = if self.lanes.is_empty() {
            0
        } else {
            self.rules.watermark_blocks
        };
        if self.rules.blocks(extent) - referenced + kept_free > self.pool.available() {
            self.blocked_at = Some(self.pool.version());
            return false;
        }
        self.enter(at, cached, pass);
        let fresh = self.rules.blocks(end) - hits;
        let table = &mut self.slots[at].sequence.table;
        self.pool.adopt(table, &self.scratch.hits);
        self.take_blocks(at, fresh, pass);
        self.compute(at, cached, end, work, pass);
        if end == len {
            self.reach_end(at, len);
        }
        true
    }

    /// Fills `scratch.hits` with the cached blocks at the start of a request; returns how many of them are in use. At
    /// least one token is left to compute, so that there is something to sample from.
    fn find_prefix(&mut self, at: u32) -> u32 {
        let hits = &mut self.scratch.hits;
        hits.clear();
        if !self.rules.prefix_caching {
            return 0;
        }
        let sequence = &mut self.slots[at].sequence;
        let nothing_to_generate = sequence.answer.end().0 == 0 && !self.rules.is_real();
        let most = (sequence.len() - u32::from(!nothing_to_generate)) / self.rules.block_size;
        let mut referenced = 0;
        let mut leading = true;
        for index in 0..most {
            let block = self.hasher.block(sequence, index);
            let Some(copy) = self.pool.lookup(block.block_hash) else {
                break;
            };
            let in_use = self.pool.is_referenced(copy);
            leading &= in_use;
            referenced += u32::from(if self.rules.is_real() { in_use } else { leading });
            hits.push(copy);
        }
        referenced
    }

    /// Moves the head of the queue to the end of the running list.
    fn enter(&mut self, at: u32, cached: u32, pass: &mut Pass) {
        let slot = &mut self.slots[at];
        self.waiting.remove(slot.place);
        slot.ordinal = self
            .lanes
            .push(at, slot.sequence.id, slot.sequence.answer.plain_stream());
        slot.phase = Phase::Prefilling;
        self.prefilling.push(at);
        let again = std::mem::replace(&mut slot.admitted_before, true);
        pass.admissions.push(Admission {
            id: slot.sequence.id,
            cached_tokens: cached,
            again,
        });
    }
}
