//! Who computes prompt tokens in the next pass.

use super::super::config::SglangPolicy;
use super::super::forward::Lengths;
use super::super::{Admission, Output, PageChangeKind, Pass, Rejected};
use super::budget::Budget;
use super::report::{Admitted, Attempt, Candidate, Verdict};
use super::tree::Match;
use super::{Part, Phase, Sglang};

/// Outcome of looking at one request.
struct Look {
    prefix: u32,
    /// Tokens to compute, or why not.
    take: Result<u32, Verdict>,
}

/// Tokens from where on and for how many a request counts against the budget.
#[derive(Debug, Clone, Copy)]
struct Asked {
    start: u32,
    take: u32,
}

/// A request for the simulation of who frees what when.
#[derive(Debug, Clone, Copy)]
struct Holder {
    /// Tokens until its end.
    left: f64,
    /// Tokens that it frees then.
    occupied: i64,
}

impl Sglang {
    /// Fills `batch` with the prompts, or parts of them, that the pass computes. The first refusal ends it.
    pub(super) fn plan_prefill(&mut self, pass: &mut Pass) {
        let chunked = self.chunked;
        // Destinations come first: no prompt starts while one waits for pages or for a place.
        let rests = self.prefill_rests > 0 || self.desk.has_pending() || !self.ready.is_empty();
        // The emulator sorts in every pass, by the two orders that it has: what is evicted before the next admission has had its
        // effect. Other orders change with time or chance, and quiet passes must not.
        let in_every_pass =
            !self.rules.is_real() && matches!(self.rules.policy, SglangPolicy::Fcfs | SglangPolicy::Lpm);
        if in_every_pass {
            self.order_waiting();
        }
        if rests || (chunked.is_none() && (self.full || self.waiting.is_empty())) {
            return;
        }
        if chunked.is_none() && self.running.len() >= self.rules.max_running {
            self.full = self.rules.is_real();
            return;
        }
        if !in_every_pass {
            self.order_waiting();
        }
        let mut budget = self.budget();
        self.attempt = self.listing.schedule.is_some().then(|| Attempt {
            order: self.waiting.iter().map(|&at| self.slots[at].sequence.id).collect(),
            budget: budget.remaining(),
            candidates: Vec::new(),
        });
        let mut holders = Vec::new();
        if let Some(at) = chunked {
            self.continue_chunk(at, &mut budget);
        }
        while let Some(&at) = self.waiting.front() {
            if self.rules.is_real() && budget.verdict() == Verdict::Other {
                break;
            }
            if self.full || self.batch.len() + self.running.len() >= self.rules.max_running {
                self.full = self.rules.is_real();
                break;
            }
            match self.try_admit(at, &mut budget, &mut holders, pass) {
                Verdict::Continue => {}
                verdict @ (Verdict::NoToken | Verdict::Other) if self.is_stuck() => self.give_up(at, verdict),
                verdict @ (Verdict::NoToken | Verdict::Other) => {
                    self.full = self.rules.is_real() && verdict == Verdict::NoToken;
                    break;
                }
            }
        }
        if self.rules.is_real() {
            self.take_pages_for_batch();
        }
    }

    /// Tokens of the pool that are free or can be freed.
    pub(super) fn obtainable(&self) -> i64 {
        let pages = u64::from(self.free_pages) + self.cache.evictable_pages();
        i64::try_from(pages * u64::from(self.rules.page)).unwrap_or(i64::MAX)
    }

    fn budget(&self) -> Budget {
        let ratio = self.ratio.value();
        let reserve = |lane: &super::running::Lane| {
            let slot = &self.slots[lane.slot];
            let generated = self.generated(slot, self.running.held(lane));
            let outputs = slot.max_new.saturating_sub(generated).min(self.rules.clip);
            let certain = self.rules.is_real() && slot.ignore_eos;
            f64::from(outputs) * if certain { 1.0 } else { ratio }
        };
        let reserved = self.running.iter().map(reserve).sum();
        Budget::new(&self.rules, self.obtainable(), reserved)
    }

    /// Goes on with the prompt that an earlier pass has begun; it is never refused.
    fn continue_chunk(&mut self, at: u32, budget: &mut Budget) {
        let slot = &self.slots[at];
        let (start, max_new) = (slot.sequence.computed, slot.max_new);
        let rest = slot.sequence.len() - start;
        let chunk = budget.chunk().unwrap_or(i64::MAX);
        let most = self.leave_room(rest, budget.chunk().unwrap_or(0));
        #[allow(clippy::cast_possible_truncation)]
        let room = chunk.min(budget.total() as i64);
        let room = if room <= 0 { chunk } else { room };
        let room = most.map_or(room, |most| room.min(most));
        let wanted = rest.min(u32::try_from(room).unwrap_or(u32::MAX));
        // What runs may have outgrown its reserve meanwhile; the chunk then waits until something leaves.
        let obtainable = u32::try_from(self.obtainable()).unwrap_or(u32::MAX) / self.rules.page;
        let pages = self.rules.pages(start).saturating_add(obtainable);
        let take = wanted.min(pages.saturating_mul(self.rules.page).saturating_sub(start));
        if take == 0 {
            return;
        }
        let whole = take == rest;
        let asked = Asked { start, take };
        self.charge(budget, asked, if whole { max_new.min(self.rules.clip) } else { 0 });
        budget.pages += self.new_pages(start, take);
        self.chunked = None;
        let part = Part { at, start, take, whole };
        self.batch.push(part);
        let look = Look {
            prefix: start,
            take: Ok(take),
        };
        self.report(part.at, true, &look, Verdict::Continue, budget);
    }

    fn charge(&self, budget: &mut Budget, asked: Asked, outputs: u32) {
        let (tokens, page) = (self.rules.ceil(asked.take), i64::from(self.rules.page));
        let memory = if self.rules.is_real() {
            tokens + page
        } else if self.rules.decodes_at_once() {
            // Cached pages, too.
            i64::from(self.new_pages(asked.start, asked.take)) * page
        } else {
            tokens
        };
        budget.charge(tokens, memory, outputs);
    }

    /// Admits the head of the queue, or says why not.
    fn try_admit(&mut self, at: u32, budget: &mut Budget, holders: &mut Vec<Holder>, pass: &mut Pass) -> Verdict {
        let real = self.rules.is_real();
        let slot = &self.slots[at];
        let (len, computed) = (slot.sequence.len(), slot.sequence.computed);
        // Dynamo 1.4.2 charges cached tokens too, so what it takes does not depend on them.
        let asked = if self.rules.decodes_at_once() {
            match self.part_to_take(at, computed, budget, holders) {
                Ok(take) => Some(Asked { start: computed, take }),
                Err(verdict) => return verdict,
            }
        } else {
            None
        };
        let nothing_left = slot.max_new <= slot.sequence.generated;
        let kept = asked.map_or(u32::from(real || !nothing_left), |asked| len - asked.start - asked.take);
        // The emulator uses what is cached only when the budget has let the request through.
        let taken = if real || asked.is_some() {
            Ok(None)
        } else {
            let start = if computed > 0 {
                computed
            } else {
                self.peek_prefix(at, kept)
            };
            self.part_to_take(at, start, budget, holders).map(Some)
        };
        let taken = match taken {
            Ok(taken) => taken,
            Err(verdict) => return verdict,
        };
        let found = self.own_or_cached(at, kept);
        // Pinned pages cannot be evicted for it.
        self.cache.lock(found.node);
        self.look_again(budget);
        let start = computed.max(found.pages * self.rules.page);
        let take = match (asked, taken) {
            (Some(asked), _) => Ok(asked.start + asked.take - start),
            (None, Some(take)) => Ok(take),
            (None, None) => self.part_to_take(at, start, budget, holders),
        };
        let take = take.and_then(|take| self.obtain(start, take, budget));
        let look = Look { prefix: start, take };
        let take = match look.take {
            Ok(take) => take,
            Err(verdict) => {
                if self.rules.decodes_at_once() {
                    self.ratio.reset();
                }
                self.report(at, false, &look, verdict, budget);
                self.cache.unlock(found.node);
                self.look_again(budget);
                return verdict;
            }
        };
        let asked = asked.unwrap_or(Asked { start, take });
        let slot = &self.slots[at];
        let part = Part {
            at,
            start,
            take,
            whole: start + take == len,
        };
        // SGLang sets the whole answer aside again for a request that was retracted in the middle of it.
        let outputs = if real {
            slot.max_new
        } else {
            slot.max_new.saturating_sub(slot.sequence.generated)
        };
        let pages = self.new_pages(start, take);
        let reserve = if part.whole { outputs.min(self.rules.clip) } else { 0 };
        self.charge(budget, asked, reserve);
        self.dequeue();
        self.enter(at, start, found, pass);
        self.batch.push(part);
        if real {
            budget.pages += pages;
        } else {
            self.take_pages(0, pages);
            self.hold_pages(part);
        }
        let verdict = if real {
            budget.verdict()
        } else if budget.chunk().is_some_and(|chunk| chunk <= 0) {
            Verdict::Other
        } else {
            Verdict::Continue
        };
        self.report(at, false, &look, verdict, budget);
        verdict
    }

    /// What a request is to go on from: what is cached, or its own pages once it has some.
    fn own_or_cached(&mut self, at: u32, kept: u32) -> Match {
        let slot = &self.slots[at];
        if slot.sequence.computed > 0 && !self.rules.is_real() {
            return Match {
                node: slot.node,
                pages: slot.cached,
            };
        }
        self.find_prefix(at, kept)
    }

    /// SGLang's budget follows what can be evicted.
    fn look_again(&self, budget: &mut Budget) {
        if self.rules.is_real() {
            budget.pool = self.obtainable();
        }
    }

    /// How many of the tokens from `start` on a request computes in this pass, or why none.
    fn part_to_take(&self, at: u32, start: u32, budget: &Budget, holders: &mut Vec<Holder>) -> Result<u32, Verdict> {
        let slot = &self.slots[at];
        let extend = slot.sequence.len() - start;
        let left = slot.max_new.saturating_sub(slot.sequence.generated);
        if self.rules.simulates(slot.ignore_eos) {
            self.simulate(at, extend, budget, holders)
        } else if self.rules.is_real() {
            self.fit(extend, left, budget)
        } else {
            self.fit_as_emulator(at, extend, left, budget)
        }
    }

    /// Checks that there are pages for `take` tokens behind `start` tokens.
    fn obtain(&self, start: u32, take: u32, budget: &Budget) -> Result<u32, Verdict> {
        let pages = i64::from(budget.pages) + i64::from(self.new_pages(start, take));
        if pages * i64::from(self.rules.page) > self.obtainable() {
            return Err(Verdict::NoToken);
        }
        Ok(take)
    }

    /// Pages that `take` tokens behind `start` tokens need.
    fn new_pages(&self, start: u32, take: u32) -> u32 {
        self.rules.pages(start + take) - self.rules.pages(start)
    }

    /// SGLang: the prompt and the answer still to come have to fit behind what is set aside; a prompt that is too long
    /// for the pass is cut.
    fn fit(&self, extend: u32, left: u32, budget: &Budget) -> Result<u32, Verdict> {
        let needed = f64::from(extend) + f64::from(left.min(self.rules.clip)) + f64::from(self.rules.page);
        if needed >= budget.total() {
            return Err(Verdict::NoToken);
        }
        let rounded = self.rules.ceil(extend);
        match budget.chunk() {
            None if !self.batch.is_empty() && rounded >= budget.input() => Err(Verdict::Other),
            // Only one prompt can be computed in part.
            Some(chunk) if rounded > chunk && self.has_part_left() => Err(Verdict::Other),
            Some(chunk) if rounded > chunk => self.cut(chunk),
            _ => Ok(extend),
        }
    }

    /// Whether `shortest-prefill-first` has put a part of a prompt into the batch, and more of it is left.
    fn has_part_left(&self) -> bool {
        self.rules.policy == SglangPolicy::ShortestPrefillFirst && self.batch.iter().any(|part| !part.whole)
    }

    /// Dynamo's emulator.
    fn fit_as_emulator(&self, at: u32, extend: u32, left: u32, budget: &Budget) -> Result<u32, Verdict> {
        let chunk = budget.chunk().unwrap_or(i64::MAX);
        let fits = if self.rules.decodes_at_once() {
            self.rules.chunk_tokens.is_none_or(|whole| i64::from(extend) <= whole)
        } else {
            self.rules.ceil(extend) <= chunk
        };
        let take = if fits { extend } else { self.cut(chunk)? };
        let charged = self.rules.ceil(take);
        let outputs = if take < extend { 0 } else { left.min(self.rules.clip) };
        #[allow(clippy::cast_precision_loss)]
        let needed = charged as f64 + f64::from(outputs);
        if needed >= budget.total() && !self.fits_alone(at) {
            return Err(Verdict::NoToken);
        }
        if charged > budget.input() || charged > chunk {
            return Err(Verdict::Other);
        }
        Ok(take)
    }

    /// The whole pages of what is left of a pass.
    fn cut(&self, chunk: i64) -> Result<u32, Verdict> {
        let page = i64::from(self.rules.page);
        match u32::try_from(chunk.max(0) / page * page) {
            Ok(0) | Err(_) => Err(Verdict::Other),
            Ok(take) => Ok(take),
        }
    }

    /// SGLang without a prefix cache, for answers that run to their full length: everybody's end is known, so that memory
    /// is followed from end to end.
    fn simulate(&self, at: u32, extend: u32, budget: &Budget, holders: &mut Vec<Holder>) -> Result<u32, Verdict> {
        let needed = self.rules.ceil(extend) + i64::from(self.rules.page);
        #[allow(clippy::cast_precision_loss)]
        if needed as f64 > budget.total().min(budget.current() as f64) {
            return Err(Verdict::NoToken);
        }
        let candidate = self.holder(at, self.slots[at].sequence.generated);
        if holders.is_empty() {
            holders.extend(candidate);
            holders.extend(self.running.iter().filter_map(|lane| {
                let generated = self.generated(&self.slots[lane.slot], self.running.held(lane));
                self.holder(lane.slot, generated)
            }));
            let admitted = self.batch.iter();
            holders.extend(admitted.filter_map(|part| self.holder(part.at, self.slots[part.at].sequence.generated)));
            holders.sort_by(|a, b| a.left.total_cmp(&b.left));
        } else if let Some(candidate) = candidate {
            let behind = holders.iter().position(|holder| candidate.left <= holder.left);
            holders.insert(behind.unwrap_or(holders.len() - 1), candidate);
        }
        let free = budget.current() - needed;
        let mut freed = 0;
        for (index, holder) in holders.iter().enumerate() {
            #[allow(clippy::cast_precision_loss)]
            let others = (holders.len() - index) as f64;
            #[allow(clippy::cast_precision_loss)]
            let least = (free + freed) as f64 - holder.left * others;
            if least <= others {
                return Err(Verdict::NoToken);
            }
            freed += holder.occupied;
        }
        let chunk = budget.chunk().unwrap_or(i64::MAX);
        Ok(extend.min(u32::try_from(chunk).unwrap_or(u32::MAX)))
    }

    fn holder(&self, at: u32, generated: u32) -> Option<Holder> {
        let slot = &self.slots[at];
        let ratio = if slot.ignore_eos { 1.0 } else { self.ratio.value() };
        let left = f64::from(slot.max_new) * ratio - f64::from(generated);
        (left > 0.0).then(|| Holder {
            left,
            occupied: i64::from(slot.sequence.prompt_len() + generated),
        })
    }

    /// The request starts, or after a retraction starts again, or goes on with its next chunk.
    fn enter(&mut self, at: u32, start: u32, found: Match, pass: &mut Pass) {
        let slot = &mut self.slots[at];
        let continues = slot.sequence.computed > 0;
        // Its own pages are in the tree, so the new path covers the old one.
        self.cache.unlock(slot.node);
        slot.node = found.node;
        slot.cached = found.pages;
        slot.phase = Phase::Prefilling;
        // Dynamo 1.4.2 calls every chunk an admission.
        if !continues || self.rules.decodes_at_once() {
            let again = std::mem::replace(&mut slot.admitted_before, true);
            pass.admissions.push(Admission {
                id: slot.sequence.id,
                cached_tokens: start,
                from_host: None,
                again,
            });
        }
    }

    /// The emulator has the complete pages of a prompt from the moment of their allocation on.
    pub(super) fn hold_pages(&mut self, part: Part) {
        if !self.rules.prefix_caching {
            return;
        }
        let sequence = &mut self.slots[part.at].sequence;
        let (from, to) = (part.start / self.rules.page, (part.start + part.take) / self.rules.page);
        if from == to {
            return;
        }
        self.hasher.block(sequence, to - 1);
        self.note_contents(part.at, from..to);
        let pages = self.slots[part.at].sequence.hashed(to);
        let parent = from.checked_sub(1).map(|last| pages[last as usize].block_hash);
        self.cache.hold(parent, &pages[from as usize..]);
    }

    /// SGLang evicts once for the whole batch, and a bit more than it needs.
    fn take_pages_for_batch(&mut self) {
        let margin = if self.rules.page == 1 { 0 } else { self.rules.page };
        let tokens = self.batch.iter().map(|part| u64::from(part.take + margin)).sum();
        let pages = self.batch.iter().map(|part| self.new_pages(part.start, part.take));
        let taken = pages.sum();
        self.take_pages(tokens, taken);
    }

    /// Evicts until `tokens`, and at least `pages`, are free, and takes `pages`, which are known to be there.
    pub(super) fn take_pages(&mut self, tokens: u64, pages: u32) {
        self.take_pages_as(tokens, pages, PageChangeKind::Allocation);
    }

    /// Like [`Self::take_pages`], as another kind of change.
    pub(super) fn take_pages_as(&mut self, tokens: u64, pages: u32, kind: PageChangeKind) {
        self.make_room(tokens.max(u64::from(pages) * u64::from(self.rules.page)));
        self.take_free(pages, kind);
    }

    /// Nobody is there whose end could make room for the head of the queue, and no page will come back.
    fn is_stuck(&self) -> bool {
        self.withheld == 0
            && self.running.is_empty()
            && self.batch.is_empty()
            && self.chunked.is_none()
            && self.in_handoff() == 0
    }

    /// Whether a request for which nobody will make more room can run to its end in what is there: then it starts, also
    /// where the emulator, which wants a token to spare, would wait for ever.
    fn fits_alone(&self, at: u32) -> bool {
        let slot = &self.slots[at];
        let left = slot.max_new.saturating_sub(slot.sequence.generated);
        let end = u64::from(slot.sequence.len()) + u64::from(left);
        let whole = end
            .min(self.rules.capacity_tokens())
            .div_ceil(u64::from(self.rules.page));
        let missing = whole.saturating_sub(u64::from(self.rules.pages(slot.sequence.computed)));
        let pages = i64::try_from(missing).unwrap_or(i64::MAX);
        self.is_stuck() && pages.saturating_mul(i64::from(self.rules.page)) <= self.obtainable()
    }

    /// Refuses the head of the queue.
    fn give_up(&mut self, at: u32, verdict: Verdict) {
        self.dequeue();
        let tokens = self.slots[at].sequence.len();
        if verdict == Verdict::NoToken {
            self.abort(at);
        } else {
            let limit = self.rules.pass_tokens();
            self.refuse(at, Rejected::PassTooSmall { tokens, limit });
        }
    }

    fn refuse(&mut self, at: u32, reason: Rejected) {
        let id = self.slots[at].sequence.id;
        self.rejected.push(Output::Rejected { id, reason });
        self.forget(at);
    }

    /// Drops a request that has left all lists because nothing can ever make room for it.
    pub(super) fn abort(&mut self, at: u32) {
        let reason = Rejected::OutOfMemory {
            tokens: self.slots[at].sequence.len(),
            pool_tokens: self.rules.capacity_tokens(),
        };
        self.refuse(at, reason);
    }

    /// The emulator finds prompts too long at the start of a pass.
    pub(super) fn reject_long(&mut self) {
        if std::mem::take(&mut self.too_long) == 0 {
            return;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|&at| {
            let Some(reason) = self.slots[at].refused.take() else {
                return true;
            };
            self.queued(at, Lengths::remove);
            self.refuse(at, reason);
            false
        });
        self.waiting = waiting;
    }

    fn report(&mut self, at: u32, continued: bool, look: &Look, verdict: Verdict, budget: &Budget) {
        let slot = &self.slots[at];
        let Some(attempt) = &mut self.attempt else { return };
        attempt.candidates.push(Candidate {
            id: slot.sequence.id,
            continued,
            prefix: look.prefix,
            verdict,
            admitted: look.take.ok().map(|extend| Admitted {
                extend,
                chunked: look.prefix + extend < slot.sequence.len(),
                budget: budget.remaining(),
            }),
        });
    }
}
