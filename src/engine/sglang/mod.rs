//! SGLang: a pass either computes prompts or gives everybody who runs one token.
//!
//! Waiting requests are admitted while a budget lasts that sets part of the answers still to come aside; prompts share a
//! radix cache. When decoding finds no page, unused cache is evicted, then the request with the fewest tokens goes back
//! to the queue, and admission becomes more careful.
//!
//! | Operation | Cost |
//! |---|---|
//! | quiet pass (decode; nobody ends, nothing is tried for admission) | O(1), plus one draw per token where tokens are handed out |
//! | other decode pass | O(log running) per request that ends or, as the emulator, fills a page |
//! | attempt to admit | O(running + waiting · (cache path + log waiting)) for the orders that look at the cache (`lpm`, `hrrn`, `shortest-prefill-first`, `dfs-weight`), O(running + waiting · log waiting) plus one path per candidate for `lof`, `random` and `routing-key`, without the waiting for `fcfs` |
//! | prefill | O(cache path), plus one hash per page in the request's life |
//! | retraction | O(running · log running) |
//! | submit; cancel | O(1); O(waiting) or O(running) |
//! | handoff: source held or released, destination reserved, activated or tried in vain | O(cache path); O(destinations) to take one out |
//! | withholding blocks | O(log nodes) per node that is evicted |
//!
//! Real SGLang tries again only when something left, the emulator with every pass while requests wait, which therefore
//! are not quiet.
//!
//! Sources: SGLang 0.5.23 (`Fidelity::Real`: without overlap scheduling, mixed chunks and hierarchical cache), Dynamo
//! 1.6.1 engine core and Dynamo 1.4.2 (`Fidelity::Mocker`). They are one scheduler here: where they differ the code asks
//! [`Rules`]. Pages are called by Dynamo's block hashes in all of them; SGLang itself has SHA-256 there.

mod admit;
mod budget;
mod cache;
mod contents;
#[cfg(test)]
mod cost;
mod decode;
mod events;
mod handoff;
mod holdings;
mod order;
mod pages;
mod prefill;
mod ratio;
mod report;
mod rules;
mod running;
mod speculate;
mod tree;
mod withhold;

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::block_hash::salted_seed;
use crate::types::{EngineRequest, HashSalt, KvEvent, Load, RequestId, SequenceHash, SimTime, StoredBlock};

use super::answer::{Answer, Generator};
use super::calendar::Entry;
use super::config::{ConfigError, EngineConfig};
use super::forward::Lengths;
use super::handoff::{Desk, Reserves};
use super::sequence::{Sequence, SequenceHasher};
use super::slab::Slab;
use super::speculation::Acceptance;
use super::timing::{self, PassClock, PassTiming};
use super::totals::count;
use super::{Engine, GroupOutcome, Listing, Output, PageChange, PageChangeKind, Pass, Rejected};
use contents::Contents;
use ratio::NewTokenRatio;
use rules::Rules;
use running::Running;

pub use cache::RadixCache;
pub use decode::retraction_order;
pub use ratio::retraction_ratio;
pub use report::{Admitted, Attempt, Candidate, Remaining, State, Verdict};
pub use tree::{Insert, Match, NodeId};

/// One rank's scheduler.
#[derive(Debug)]
pub struct Sglang {
    rules: Rules,
    clock: PassClock,
    generator: Generator,
    hasher: SequenceHasher,
    seed: u64,
    cache: RadixCache,
    /// Pages that neither the cache nor a request has.
    free_pages: u32,
    /// Pages that no request may have.
    withheld: u32,
    slots: Slab<Slot>,
    ids: HashMap<RequestId, u32, FxBuildHasher>,
    waiting: VecDeque<u32>,
    /// Waiting requests that will be refused.
    too_long: u32,
    /// Waiting requests without and with generated tokens.
    queued_prefill: Lengths,
    queued_decode: Lengths,
    running: Running,
    /// SGLang keeps the one request whose prompt is computed in part beside the queue.
    chunked: Option<u32>,
    /// Admission makes no sense until something leaves.
    full: bool,
    ratio: NewTokenRatio,
    /// Attempts to admit since the start.
    attempts: u64,
    /// Chances to keep the prefixes of waiting requests fresh.
    refreshes: u64,
    /// Prompt tokens computed since the start.
    computed_tokens: u64,
    /// Requests queued since the start.
    arrivals: u64,
    /// Passes until the next attempt.
    prefill_rests: u32,
    /// A group says what its ranks did.
    grouped: bool,
    desk: Desk,
    /// Sources whose pages wait for their transfer.
    held: usize,
    /// Destinations whose KV is there, in the order of its arrival.
    ready: VecDeque<u32>,
    /// Decides which drafts are accepted.
    acceptance: Option<Acceptance>,
    preemptions: u64,
    listing: Listing,
    /// Changes of the pool since the last pass, when asked for.
    page_changes: Option<Vec<PageChange>>,
    attempt: Option<Attempt>,
    /// What stored pages contain, when asked for.
    contents: Option<Contents>,
    // Buffers that live from pass to pass.
    batch: Vec<Part>,
    due: Vec<(u64, u32)>,
    /// Destinations that get the token that came with their KV.
    arrived: Vec<u32>,
    rejected: Vec<Output>,
}

/// A request and what the scheduler knows about it.
#[derive(Debug)]
struct Slot {
    /// `computed` counts the tokens that have a place in the pool.
    sequence: Sequence,
    salt: HashSalt,
    routing_key: Option<Arc<str>>,
    /// Most tokens that it may generate; it may stop earlier.
    max_new: u32,
    ignore_eos: bool,
    phase: Phase,
    admitted_before: bool,
    /// Prefill side of a handoff: the pages outlive the answer.
    keeps_pages: bool,
    /// Why it will be refused when its turn comes.
    refused: Option<Rejected>,
    /// Number in the running batch.
    ordinal: u64,
    /// Step of the valid calendar entry while decoding.
    due: i64,
    /// End of its pages in the cache, which it locks.
    node: NodeId,
    /// Pages up to there.
    cached: u32,
    /// Pages that it has inserted before.
    counted: u32,
    /// Number in the order of coming to the queue, and the prompt tokens that had been computed by then.
    queued_at: (u64, u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    /// Beside the queue with a prompt computed in part.
    Chunked,
    /// In the batch of this pass.
    Prefilling,
    Decoding,
    /// Source whose KV waits for its transfer.
    Held,
    /// Destination without pages.
    Pending,
    /// Destination with pages, without KV.
    Reserved,
    /// Destination with KV.
    Ready,
}

/// The part of a prompt that a pass computes.
#[derive(Debug, Clone, Copy)]
struct Part {
    at: u32,
    /// Tokens before it.
    start: u32,
    take: u32,
    /// It ends the prompt.
    whole: bool,
}

impl Sglang {
    /// An engine with the timing model that `config` names.
    ///
    /// # Errors
    /// [`ConfigError`] names the value that no engine can work with.
    pub fn from_config(config: &EngineConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self::new(config, timing::build(&config.timing)))
    }

    /// `config` is valid; `timing` is the model that it names or one given from outside.
    pub(crate) fn new(config: &EngineConfig, timing: Arc<dyn PassTiming>) -> Self {
        let rules = Rules::new(config);
        let generator = Generator::new(config.token_source, config.seed, config.token_ids).thinking(config.reasoning);
        let mut cache = if rules.is_real() {
            RadixCache::with_tail(rules.eviction, rules.tail)
        } else {
            RadixCache::emulated()
        };
        // A new rank has nothing to clear, and routers take a clear as meant for all ranks of a worker.
        cache.take_events(&mut Vec::new());
        Self {
            clock: PassClock::new(config, timing),
            generator,
            hasher: SequenceHasher::new(rules.page, generator),
            seed: config.seed,
            cache,
            free_pages: rules.pages,
            withheld: 0,
            slots: Slab::new(),
            ids: HashMap::default(),
            waiting: VecDeque::new(),
            running: Running::new(rules.page, rules.lag()),
            too_long: 0,
            queued_prefill: Lengths::default(),
            queued_decode: Lengths::default(),
            chunked: None,
            full: false,
            ratio: NewTokenRatio::new(rules.conservativeness, rules.highest_ratio()),
            attempts: 0,
            refreshes: 0,
            computed_tokens: 0,
            arrivals: 0,
            prefill_rests: 0,
            grouped: false,
            desk: Desk::default(),
            held: 0,
            ready: VecDeque::new(),
            acceptance: rules
                .speculates()
                .then(|| config.speculation.as_ref().map(Acceptance::new))
                .flatten(),
            preemptions: 0,
            listing: Listing::default(),
            page_changes: None,
            attempt: None,
            contents: None,
            batch: Vec::new(),
            due: Vec::new(),
            arrived: Vec::new(),
            rejected: Vec::new(),
            rules,
        }
    }

    /// Queues and memory right now.
    pub fn state(&self) -> State {
        let page = u64::from(self.rules.page);
        State {
            waiting: self.waiting.iter().map(|&at| self.slots[at].sequence.id).collect(),
            running: self.running.iter().map(|lane| lane.id).collect(),
            available_tokens: self.available(),
            evictable_tokens: self.cache.evictable_pages() * page,
            protected_tokens: self.cache.protected_pages() * page,
            new_token_ratio: self.ratio.value(),
        }
    }

    /// What the last pass tried to admit; `None`: it did not try, or is not recorded ([`Engine::record_schedule`]).
    pub fn attempt(&self) -> Option<&Attempt> {
        self.attempt.as_ref()
    }

    /// Free tokens of the pool.
    fn available(&self) -> u64 {
        u64::from(self.free_pages) * u64::from(self.rules.page)
    }

    /// Tokens that a request with `held` tokens in the pool has generated.
    fn generated(&self, slot: &Slot, held: u32) -> u32 {
        (held + self.rules.lag()).saturating_sub(slot.sequence.prompt_len())
    }

    /// Puts a request into the queue.
    fn enqueue(&mut self, at: u32, first: bool) {
        self.arrivals += 1;
        self.slots[at].queued_at = (self.arrivals, self.computed_tokens);
        if first {
            self.waiting.push_front(at);
        } else {
            self.waiting.push_back(at);
        }
        self.queued(at, Lengths::add);
    }

    /// Takes the head out of the queue.
    fn dequeue(&mut self) {
        if let Some(at) = self.waiting.pop_front() {
            self.queued(at, Lengths::remove);
        }
    }

    /// Takes the request at list position `index` out of the running batch.
    fn leave(&mut self, index: usize) -> u32 {
        let (lane, held) = self.running.remove(index);
        self.settle(lane.slot, held);
        lane.slot
    }

    /// Writes down how far a running request is.
    fn settle(&mut self, at: u32, held: u32) {
        let generated = self.generated(&self.slots[at], held);
        let sequence = &mut self.slots[at].sequence;
        sequence.computed = held;
        sequence.generated = generated;
    }
}

impl Slot {
    fn insert(&self) -> Insert {
        Insert {
            // Requests with smaller numbers come first; in the cache larger ones stay longer.
            priority: self.sequence.priority.saturating_neg(),
            counted: self.counted,
        }
    }
}

impl Engine for Sglang {
    fn submit(&mut self, request: EngineRequest, now: SimTime) -> Result<(), Rejected> {
        let at = self.enlist(request, now)?;
        self.too_long += u32::from(self.slots[at].refused.is_some());
        self.enqueue(at, false);
        Ok(())
    }

    fn cancel(&mut self, id: RequestId, now: SimTime) -> bool {
        let Some(&at) = self.ids.get(&id) else { return false };
        match self.slots[at].phase {
            Phase::Waiting => {
                if self.slots[at].sequence.computed > 0 {
                    self.desk.room_came();
                }
                self.waiting.retain(|&other| other != at);
                self.queued(at, Lengths::remove);
                self.too_long -= u32::from(self.slots[at].refused.is_some());
            }
            Phase::Chunked | Phase::Prefilling => {
                self.chunked = None;
                self.desk.room_came();
            }
            Phase::Decoding => {
                if let Some(index) = self.running.find(self.slots[at].ordinal) {
                    self.leave(index);
                }
                self.full = false;
                self.desk.room_came();
                if !self.rules.is_real() {
                    // A page that it has told of without a place in the tree stays, rather than being withdrawn unseen.
                    self.share(at);
                }
            }
            Phase::Held => {
                self.leave_handoff(at);
                // Its prompt is computed, whoever lets go of it.
                self.finish(at);
                self.after_command(now);
                return true;
            }
            Phase::Pending | Phase::Reserved | Phase::Ready => self.leave_handoff(at),
        }
        self.forget(at);
        self.after_command(now);
        true
    }

    fn step_into(&mut self, now: SimTime, pass: &mut Pass) -> bool {
        self.use_pass_end(now);
        loop {
            let idles = self.rules.passes_idle() && (!self.waiting.is_empty() || self.prefill_rests > 0);
            let worked = self.try_step(now, pass);
            if self.grouped {
                return worked || (idles && self.reserve_idle());
            }
            let outcome = GroupOutcome {
                prefilled: pass.forward.prefill_tokens > 0,
                worked,
            };
            if !self.end_round(outcome) || worked {
                return worked || (idles && self.reserve_idle());
            }
        }
    }

    fn step_quiet(&mut self, now: SimTime) -> Option<SimTime> {
        self.use_pass_end(now);
        let tries = !self.waiting.is_empty() && !self.full;
        let starts = !self.ready.is_empty() || self.rules.speculates();
        if self.running.is_empty() || self.chunked.is_some() || tries || starts || self.prefill_rests > 0 {
            return None;
        }
        let slots = &self.slots;
        let due = self.running.calendar.first_due(|entry| is_due(slots, entry));
        let pages = self.running.pages_due();
        let evicts = self.decode_headroom() > self.available() && self.cache.evictable_pages() > 0;
        if due.is_some_and(|due| due <= self.running.step) || pages > self.free_pages || evicts {
            return None;
        }
        let ends_at = self.clock.end(now, now + self.decode_time());
        self.ratio.decay();
        self.free_pages -= pages;
        self.running.step += 1;
        self.desk.pass_ran(ends_at);
        Some(ends_at)
    }

    fn load(&self) -> Load {
        let evictable = u32::try_from(self.cache.evictable_pages()).unwrap_or(u32::MAX);
        // The emulator does not tell cached pages from those in use.
        let inactive_blocks = if self.rules.is_real() { evictable } else { 0 };
        Load {
            running: count(self.running.len()) + u32::from(self.chunked.is_some()),
            waiting: count(self.waiting.len() + self.ready.len() + self.desk.waiting()),
            active_blocks: self.rules.pages - self.withheld - self.free_pages - inactive_blocks,
            inactive_blocks,
            total_blocks: self.rules.pages - self.withheld,
            preemptions: self.preemptions,
        }
    }

    fn cached_blocks(&self) -> Vec<(Option<SequenceHash>, StoredBlock)> {
        if !self.rules.publishes {
            return Vec::new();
        }
        let mut pages = self.cache.contents();
        if !self.rules.is_real() {
            self.add_untreed(&mut pages);
        }
        pages
    }

    fn clear_cache(&mut self) -> Vec<KvEvent> {
        let cached = self.cache.evictable_pages();
        // Pages that a request computes are not in the tree yet, and are announced all the same by the emulator.
        let idle = self.ids.len() == self.waiting.len();
        if cached > 0 && idle && self.cache.protected_pages() == 0 {
            self.cache.reset();
            self.give_back(u32::try_from(cached).unwrap_or(0), PageChangeKind::Eviction);
        } else {
            self.make_room(self.available() + cached * u64::from(self.rules.page));
        }
        let mut events = Vec::new();
        self.cache.take_events(&mut events);
        if !self.rules.publishes {
            events.clear();
        }
        events
    }

    fn withhold(&mut self, blocks: u32) -> Vec<KvEvent> {
        Self::withhold(self, blocks)
    }

    fn withheld(&self) -> u32 {
        self.withheld
    }

    fn join_step(&mut self, _step: u64) {
        self.grouped = true;
    }

    fn leave_step(&mut self, outcome: GroupOutcome) -> bool {
        self.end_round(outcome)
    }

    fn listing(&self) -> &Listing {
        &self.listing
    }

    fn listing_mut(&mut self) -> &mut Listing {
        &mut self.listing
    }

    fn record_stored(&mut self, on: bool) {
        self.contents = on.then(Contents::default);
    }

    fn record_pages(&mut self, on: bool) {
        self.page_changes = on.then(Vec::new);
    }
}

impl Sglang {
    /// A waiting request.
    fn slot(&self, request: EngineRequest, max_new: u32, refused: Option<Rejected>, now: SimTime) -> Slot {
        let prompt_len = request.prompt.len();
        let answer = Answer::new(&request, self.generator, prompt_len.saturating_add(max_new), u32::MAX);
        let seed = salted_seed(&request.salt);
        Slot {
            max_new,
            ignore_eos: request.stop.ignore_eos,
            phase: Phase::Waiting,
            admitted_before: false,
            keeps_pages: false,
            refused,
            ordinal: 0,
            due: 0,
            node: RadixCache::root(),
            cached: 0,
            counted: 0,
            queued_at: (0, 0),
            sequence: Sequence::new(request.id, request.prompt, answer, request.priority, now, seed),
            salt: request.salt,
            routing_key: request.routing_key,
        }
    }

    /// The round of all ranks, or of this one alone, is over. Returns whether prefills were put off in it, so that the
    /// next one may bring some at the same instant.
    fn end_round(&mut self, outcome: GroupOutcome) -> bool {
        let put_off = self.prefill_rests > 0;
        if put_off && !outcome.worked {
            self.ratio.reset();
        }
        self.prefill_rests = if outcome.prefilled {
            self.rules.prefill_interval
        } else {
            self.prefill_rests.saturating_sub(1)
        };
        put_off
    }

    fn try_step(&mut self, now: SimTime, pass: &mut Pass) -> bool {
        pass.clear();
        pass.ends_at = now;
        self.attempt = None;
        self.listing.begin();
        let empty = self.waiting.is_empty() && self.running.is_empty() && self.ready.is_empty();
        if let Some(at) = self.chunked {
            self.share(at);
        }
        if self.running.is_empty() {
            self.full = false;
        }
        self.reject_long();
        self.start_ready(pass);
        self.plan_prefill(pass);
        let prefills = !self.batch.is_empty();
        if prefills {
            self.run_prefill(now, pass);
        }
        let decodes = (!prefills || self.rules.decodes_at_once()) && self.run_decode(pass.ends_at, pass);
        let arrived = self.bring_arrived(pass);
        let idles = !prefills && !decodes && self.prefill_rests == 0 && !self.rules.is_real();
        // A rank of a group that has nobody has no pass.
        if (self.rules.decodes_at_once() && !empty) || (idles && !self.rejected.is_empty()) {
            self.ratio.decay();
        }
        let worked = prefills || decodes || arrived || !pass.preempted.is_empty();
        pass.forward.queued_prefill = self.queued_prefill;
        pass.forward.queued_decode = self.queued_decode;
        self.cache.take_events(&mut pass.kv_events);
        self.put_contents(pass);
        self.put_page_changes(pass);
        if !self.rules.publishes {
            pass.kv_events.clear();
            pass.stored.clear();
        }
        pass.outputs.append(&mut self.rejected);
        if !worked && pass.outputs.is_empty() && pass.kv_events.is_empty() {
            if self.rules.is_real() {
                self.ratio.reset();
            } else if self.rules.passes_idle() && self.prefill_rests == 0 && !self.waiting.is_empty() {
                // The emulator tries again as long as that changes anything.
                self.ratio.settle();
            }
            pass.load = self.load();
            return false;
        }
        pass.ends_at = self.clock.end(now, pass.ends_at);
        pass.load = self.load();
        self.desk.pass_ran(pass.ends_at);
        true
    }
}

/// Whether a calendar entry still speaks of the request that made it.
fn is_due(slots: &Slab<Slot>, entry: &Entry) -> bool {
    slots
        .get(entry.sequence)
        .is_some_and(|slot| slot.phase == Phase::Decoding && slot.ordinal == entry.ordinal && slot.due == entry.pass)
}
