//! Second half of a pass: requests from the waiting queue, in order, until one does not fit.

use super::super::config::WorkerRole;
use super::super::totals::count;
use super::super::{Admission, Output, Pass, Rejected};
use super::lower::{Load, Look};
use super::schedule::position;
use super::{Phase, Vllm, Work};

/// What became of the head of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Head {
    Admitted,
    /// It waits aside, and the next one is tried.
    Aside,
    /// It waits, and all behind it.
    Waits,
}

impl Vllm {
    /// Admits what budget, slots and blocks allow. Nothing behind a request that has to wait for memory is tried.
    pub(super) fn admit(&mut self, work: &mut Work, pass: &mut Pass) {
        while !work.preempted
            && self.lanes.len() < self.rules.max_num_seqs
            && let Some(at) = self.head().filter(|&at| self.may_try(at))
        {
            let used = work.visited_tokens + position(self.lanes.len()) - work.visited_lanes;
            let left = u32::try_from((work.budget - used).max(0)).unwrap_or(u32::MAX);
            if left == 0 && self.tiers.is_some() {
                // A look below the GPU counts as use of what is found there.
                break;
            }
            if self.reject(at, work) {
                continue;
            }
            if self.slots[at].resident {
                self.admit_resident(at, work, pass);
                if left == 0 {
                    break;
                }
                continue;
            }
            // Without budget the reference emulator still admits one request with nothing to compute.
            let tried = left > 0 || !self.rules.real;
            match tried.then(|| self.admit_head(at, left, work, pass)) {
                Some(Head::Admitted) if left > 0 => {}
                Some(Head::Aside) => {}
                Some(Head::Admitted | Head::Waits) | None => break,
            }
        }
    }

    /// The next request to be tried: one that waited for blocks from below the GPU, else the head of the queue. While a
    /// destination waits for blocks it is the first that has its KV in place, also past others, and on a decode worker
    /// with host memory as long as there is one.
    pub(super) fn head(&self) -> Option<u32> {
        if self.desk.has_pending() {
            return self.waiting.resident_head();
        }
        let decodes = self.rules.role == WorkerRole::Decode;
        let first = decodes && self.tiers.as_ref().is_some_and(|tiers| tiers.writes_through());
        let resident = first.then(|| self.waiting.resident_head()).flatten();
        resident.or_else(|| self.parked_head()).or_else(|| self.waiting.head())
    }

    /// Whether the outcome of trying this head is not known beforehand. Looks at memory that others use are uses of what is
    /// there, between which others use something, too; and looks at a disk are counted.
    pub(super) fn may_try(&self, at: u32) -> bool {
        let looked_at = self
            .tiers
            .as_ref()
            .is_some_and(|tiers| tiers.is_shared() || tiers.reaches_below_host());
        looked_at || self.slots[at].resident || self.blocked_at != Some(self.version())
    }

    /// Changes whenever the head of the queue might fare differently.
    pub(super) fn version(&self) -> u64 {
        self.pool.version() + self.tiers.as_ref().map_or(0, |tiers| tiers.version())
    }

    /// Drops a new request that can never fit.
    fn reject(&mut self, at: u32, work: &Work) -> bool {
        let slot = &self.slots[at];
        if slot.admitted_before || self.rules.real {
            return false;
        }
        let Err(reason) = self.rules.fits(slot.sequence.prompt_len()) else {
            return false;
        };
        if matches!(reason, Rejected::PoolTooSmall { .. }) && self.look_below(at, work.now) == Look::Wait {
            self.park(at);
            return true;
        }
        self.turn_down(at, reason);
        true
    }

    /// Drops a request that waits, and gives back what was copied for it.
    fn turn_down(&mut self, at: u32, reason: Rejected) {
        self.unqueue(at);
        let Some(mut slot) = self.slots.remove(at) else { return };
        let id = slot.sequence.id;
        self.ids.remove(&id);
        self.scratch.rejected.push(Output::Rejected { id, reason });
        if slot.sequence.table.len() > 0 {
            self.pool.release(&mut slot.sequence.table);
            self.room_came();
        }
    }

    /// Admits the head of the queue with its first chunk, or finds that it has to wait.
    fn admit_head(&mut self, at: u32, budget: u32, work: &mut Work, pass: &mut Pass) -> Head {
        let look = self.look_below(at, work.now);
        if look == Look::Wait {
            self.park(at);
            return Head::Aside;
        }
        let here = self.slots[at].lower.load != Load::Nothing;
        let (hits, referenced) = match look {
            _ if here => {
                let blocks = self.slots[at].sequence.table.len();
                (blocks, blocks)
            }
            // Found by the look.
            Look::Copy(_) => (self.hits(), self.in_use()),
            Look::Try | Look::Wait => {
                let referenced = self.find_prefix(at);
                (self.hits(), referenced)
            }
        };
        let sequence = &self.slots[at].sequence;
        let len = sequence.len();
        let cached = hits.min(self.most_cached(at)) * self.rules.block_size;
        let whole = if self.rules.real {
            len
        } else {
            sequence.prompt_len().max(cached)
        };
        let copies = matches!(look, Look::Copy(_));
        // A long prompt is cut at its threshold all the same.
        let piece = self.chunk(whole - cached, u32::MAX);
        if !self.rules.chunked_prefill && piece > budget && !copies {
            // Nobody runs who could bring more of it into the cache: it would wait for ever, and all behind it.
            if self.lanes.is_empty() && u64::from(budget) >= self.rules.budget && !self.rules.real {
                let reason = self.rules.over_budget(self.slots[at].sequence.prompt_len());
                self.turn_down(at, reason);
                return Head::Aside;
            }
            return Head::Waits;
        }
        if cached < len && budget == 0 {
            return Head::Waits;
        }
        let end = cached + self.chunk(len - cached, budget);
        let longest = sequence.prompt_len() + sequence.answer.end().0;
        let (extent, least) = match &self.rules {
            rules if rules.to_completion => (longest, longest),
            rules if rules.reserve_full_isl || copies => (len, len),
            // In another pass its first part may be shorter.
            _ => (end, cached + 1),
        };
        let kept_free = if self.lanes.is_empty() {
            0
        } else {
            self.rules.watermark_blocks
        };
        let spoken_for = if copies { self.spoken_for() } else { 0 };
        let needed =
            |tokens| self.rules.blocks(tokens).saturating_sub(referenced) + kept_free + self.promised + spoken_for;
        if needed(extent) > self.pool.available() {
            if needed(least) > self.pool.available() {
                self.blocked_at = Some(self.version());
            }
            return Head::Waits;
        }
        if let Look::Copy(blocks) = look {
            if !self.copy_up(at, blocks, work.now, pass) {
                self.blocked_at = Some(self.version());
                return Head::Waits;
            }
            self.park(at);
            return Head::Aside;
        }
        if work.defers_prefills && len - cached > 1 {
            return Head::Waits;
        }
        let fresh = self.rules.blocks(end).saturating_sub(hits);
        if !here && !self.make_way(at, fresh, work, pass) {
            self.blocked_at = Some(self.version());
            return Head::Waits;
        }
        let from_host = self.note_admission(at, cached);
        self.enter(at, cached, from_host, pass);
        if !here {
            let table = &mut self.slots[at].sequence.table;
            self.pool.adopt(table, &self.scratch.hits);
        }
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
        Head::Admitted
    }

    /// Makes sure that `fresh` blocks can be had beside those of `scratch.hits`. A request may be let through although they
    /// cannot: the reference emulator counts cached blocks in use that are left out at the end, too. Then those who run give
    /// way as they do for each other. `false`: that is not enough, or the request has lost its blocks too often to take theirs.
    fn make_way(&mut self, at: u32, fresh: u32, work: &mut Work, pass: &mut Pass) -> bool {
        while fresh + self.hits() - self.in_use() > self.pool.available() {
            if self.lanes.is_empty() || self.rules.to_completion || self.is_spared(at) {
                return false;
            }
            let index = self.victim();
            self.preempt(index, work, pass);
        }
        true
    }

    /// Blocks in `scratch.hits`.
    fn hits(&self) -> u32 {
        count(self.scratch.hits.len())
    }

    /// Admits a request whose prompt KV is in its blocks: nothing is computed before its first decode step.
    fn admit_resident(&mut self, at: u32, work: &mut Work, pass: &mut Pass) {
        self.slots[at].resident = false;
        self.enter(at, 0, 0, pass);
        let len = self.slots[at].sequence.len();
        self.compute(at, len, len, work, pass);
        self.reach_end(at, len);
    }

    /// Like [`Self::find_prefix`], for a prompt that is not computed here: all of its full blocks may be cached.
    pub(super) fn find_whole_prefix(&mut self, at: u32) -> u32 {
        let blocks = self.slots[at].sequence.len() / self.rules.block_size;
        self.find_cached(at, if self.rules.prefix_caching { blocks } else { 0 })
    }

    /// Fills `scratch.hits` with the cached blocks at the start of a request; returns how many of them count as in use. At
    /// least one token is left to compute, so that there is something to sample from.
    fn find_prefix(&mut self, at: u32) -> u32 {
        let most = self.most_cached(at);
        // The reference emulator looks at all that is cached and leaves the end out afterwards.
        let in_use = if self.rules.real {
            self.find_cached(at, most)
        } else {
            self.find_whole_prefix(at)
        };
        let hits = self.hits().min(most);
        // The drafting layers, which a prefill worker has, too, have to see the block before the first new token.
        let left_out = u32::from(self.rules.speculates && self.keeps_last_token(at) && hits > 0);
        self.scratch.hits.truncate((hits - left_out) as usize);
        if self.rules.real && left_out > 0 {
            return self.in_use();
        }
        in_use.min(self.hits())
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
    pub(super) fn find_cached(&mut self, at: u32, most: u32) -> u32 {
        self.scratch.hits.clear();
        let sequence = &mut self.slots[at].sequence;
        for index in 0..most {
            let block = self.hasher.block(sequence, index);
            let Some(copy) = self.pool.lookup(block.block_hash) else {
                break;
            };
            self.scratch.hits.push(copy);
        }
        self.in_use()
    }

    /// How many of `scratch.hits` are in use.
    fn in_use(&self) -> u32 {
        let in_use = self.scratch.hits.iter().filter(|&&copy| self.pool.is_referenced(copy));
        count(in_use.count())
    }

    /// Moves the head of the queue to the end of the running list.
    fn enter(&mut self, at: u32, cached: u32, from_host: u32, pass: &mut Pass) {
        self.unqueue(at);
        let slot = &mut self.slots[at];
        slot.ordinal = self
            .lanes
            .push(at, slot.sequence.id, slot.sequence.answer.plain_stream());
        slot.phase = Phase::Prefilling;
        self.prefilling.push(at);
        let again = std::mem::replace(&mut slot.admitted_before, true);
        let has_host = self.tiers.as_ref().is_some_and(|tiers| tiers.writes_through());
        pass.admissions.push(Admission {
            id: slot.sequence.id,
            cached_tokens: cached,
            from_host: (has_host && !again).then_some(from_host),
            again,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::config::{EngineConfig, Fidelity, Speculation};
    use super::super::super::{Engine, Output, cost, timing};
    use super::super::Vllm;
    use crate::types::SimTime;

    #[test]
    fn who_is_let_through_by_blocks_behind_those_it_uses_takes_the_place_of_others() {
        let config = EngineConfig {
            fidelity: Fidelity::Mocker,
            num_gpu_blocks: 7,
            block_size: 4,
            speculation: Some(Speculation {
                nextn: 1,
                accept_rates: vec![0.0],
                seed: 0,
            }),
            ..EngineConfig::default()
        };
        let mut engine = Vllm::alone(&config, timing::build(&config.timing));
        let mut now = SimTime::ZERO;
        // Blocks 0 and 1 stay cached.
        engine.submit(cost::request(1, 0, 8, 1), now).unwrap();
        (now, _) = cost::run(&mut engine, now);
        // Drafts take block 0 only: the request computes block 1 again, for itself, and 2 and 3 for everybody.
        engine.submit(cost::request(2, 0, 16, 8), now).unwrap();
        now = engine.step(now).unwrap().ends_at;
        assert_eq!((engine.load().active_blocks, engine.load().inactive_blocks), (5, 1));
        // It uses blocks 0 and 1, of which one is in use, but 2 and 3 are in use, too: two of four blocks seem to be missing
        // where there are two, one of which is block 1.
        engine.submit(cost::request(3, 0, 16, 2), now).unwrap();
        let pass = engine.step(now).unwrap();
        assert_eq!(
            pass.admissions
                .iter()
                .map(|at| (at.id.0, at.cached_tokens))
                .collect::<Vec<_>>(),
            [(3, 8)]
        );
        assert_eq!(pass.preempted.iter().map(|id| id.0).collect::<Vec<_>>(), [2]);
        now = pass.ends_at;
        let mut last = Vec::new();
        while let Some(pass) = engine.step(now) {
            now = pass.ends_at;
            last.extend(pass.outputs.into_iter().filter_map(|output| match output {
                Output::Token { id, finish, .. } => finish.map(|_| id.0),
                Output::Empty { .. } | Output::Rejected { .. } => None,
            }));
        }
        assert_eq!(last, [3, 2]);
    }
}
