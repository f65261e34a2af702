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
            if self.slots[at].resident {
                self.admit_resident(at, work, pass);
                if left == 0 {
                    break;
                }
                continue;
            }
            if self.desk.has_pending() {
                // Destinations come first: only requests with their KV in place are admitted meanwhile.
                break;
            }
            // Without budget the reference emulator still admits one request with nothing to compute.
            let tried = left > 0 || !self.rules.real;
            if !(tried && self.admit_head(at, left, work, pass) && left > 0) {
                break;
            }
        }
    }

    /// Drops a new request that can never fit.
    fn reject(&mut self, at: u32) -> bool {
        let slot = &self.slots[at];
        if slot.admitted_before || self.rules.real {
            return false;
        }
        let Err(reason) = self.rules.fits(slot.sequence.prompt_len()) else {
            return false;
        };
        let id = slot.sequence.id;
        self.unqueue(at);
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
        let len = sequence.len();
        let lower = self.find_lower(at, self.most_cached(at));
        let sequence = &self.slots[at].sequence;
        let cached = (hits + lower) * self.rules.block_size;
        let whole = if self.rules.real {
            len
        } else {
            sequence.prompt_len().max(cached)
        };
        if !self.rules.chunked_prefill && whole - cached > budget {
            return false;
        }
        if cached < len && budget == 0 {
            return false;
        }
        let end = cached + self.chunk(len - cached, budget);
        let longest = sequence.prompt_len() + sequence.answer.end().0;
        let extent = match &self.rules {
            rules if rules.to_completion => longest,
            rules if rules.reserve_full_isl => len,
            _ => end,
        };
        let kept_free = if self.lanes.is_empty() {
            0
        } else {
            self.rules.watermark_blocks
        };
        if self.rules.blocks(extent) - referenced + kept_free + self.promised > self.pool.available() {
            self.blocked_at = Some(self.pool.version());
            return false;
        }
        if work.defers_prefills && len - cached > 1 {
            return false;
        }
        self.read_lower(work);
        self.enter(at, cached, pass);
        let fresh = self.rules.blocks(end) - hits;
        let table = &mut self.slots[at].sequence.table;
        self.pool.adopt(table, &self.scratch.hits);
        if self.rules.to_completion {
            self.slots[at].set_aside = self.rules.blocks(longest);
            self.promised += self.rules.blocks(longest) - hits;
        }
        let taken = self.take_blocks(at, fresh, pass);
        debug_assert!(taken, "an admitted request finds its blocks");
        self.compute(at, cached, end, work, pass);
        if end == len {
            self.reach_end(at, len);
        }
        true
    }

    /// Admits a request whose prompt KV is in its blocks: nothing is computed before its first decode step.
    fn admit_resident(&mut self, at: u32, work: &mut Work, pass: &mut Pass) {
        self.slots[at].resident = false;
        self.enter(at, 0, pass);
        let len = self.slots[at].sequence.len();
        self.compute(at, len, len, work, pass);
        self.reach_end(at, len);
    }

    /// Like [`Self::find_prefix`], for a prompt that is not computed here: all of its full blocks may be cached.
    pub(super) fn find_whole_prefix(&mut self, at: u32) -> u32 {
        let blocks = self.slots[at].sequence.len() / self.rules.block_size;
        self.find_cached(at, if self.rules.prefix_caching { blocks } else { 0 })
    }

    /// Fills `scratch.hits` with the cached blocks at the start of a request; returns how many of them are in use. At
    /// least one token is left to compute, so that there is something to sample from.
    fn find_prefix(&mut self, at: u32) -> u32 {
        let referenced = self.find_cached(at, self.most_cached(at));
        if self.rules.speculates && self.keeps_last_token(at) && !self.scratch.hits.is_empty() {
            // The drafting layers have to see the block before the first new token.
            let hits = u32::try_from(self.scratch.hits.len()).unwrap_or(u32::MAX);
            return self.find_cached(at, hits - 1);
        }
        referenced
    }

    /// Whether the last known token of a request is computed in any case.
    fn keeps_last_token(&self, at: u32) -> bool {
        let nothing_to_generate = self.slots[at].sequence.answer.end().0 == 0 && !self.rules.real;
        self.rules.keeps_last_token && !nothing_to_generate
    }

    /// Blocks at the start of a request that may come from elsewhere than its own computation.
    fn most_cached(&self, at: u32) -> u32 {
        if !self.rules.prefix_caching {
            return 0;
        }
        let kept = u32::from(self.keeps_last_token(at));
        (self.slots[at].sequence.len() - kept) / self.rules.block_size
    }

    /// Fills `scratch.hits` with the leading cached blocks, at most `most`; returns how many of them are in use.
    fn find_cached(&mut self, at: u32, most: u32) -> u32 {
        let hits = &mut self.scratch.hits;
        hits.clear();
        let sequence = &mut self.slots[at].sequence;
        let mut referenced = 0;
        let mut leading = true;
        for index in 0..most {
            let block = self.hasher.block(sequence, index);
            let Some(copy) = self.pool.lookup(block.block_hash) else {
                break;
            };
            hits.push(copy);
            let in_use = self.pool.is_referenced(copy);
            leading &= in_use;
            referenced += u32::from(if self.rules.real { in_use } else { leading });
        }
        referenced
    }

    /// Moves the head of the queue to the end of the running list.
    fn enter(&mut self, at: u32, cached: u32, pass: &mut Pass) {
        self.unqueue(at);
        let slot = &mut self.slots[at];
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
