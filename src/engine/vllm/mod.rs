//! The vLLM scheduler: one token budget per pass, shared by decoding requests, chunks of prompts and new requests.
//!
//! A pass serves the running requests in admission order, then admits from the waiting queue while budget, slots and
//! blocks last. When a running request finds no block, the one admitted last gives way and is recomputed later.
//!
//! | Operation | Cost |
//! |---|---|
//! | quiet pass (every running request decodes, nobody crosses a block boundary, ends or is admitted) | O(1), plus one draw per token where tokens are handed out |
//! | any other pass | O(log running) per request that does something besides decoding |
//! | submit, cancel | O(log waiting + running) |
//! | admission | O(blocks of the prompt), each hashed once in the request's life |
//! | preemption | O(blocks + prefilling), finding the victim O(1), O(running) for `fifo` and priorities |
//! | handoff: source held or released, destination reserved or activated | O(blocks of the prompt + log waiting); tried in vain O(blocks), once until room comes |
//! | withholding blocks | O(1) per block |
//!
//! The same scheduler with blocks set aside to a request's longest end is that of TensorRT-LLM.
//!
//! Sources: vLLM 0.32.0 (fidelity `real`), Dynamo 1.6.1 engine core (fidelity `mocker`, and TensorRT-LLM); where they
//! differ the code asks [`Rules`].

mod admit;
mod cadence;
mod changes;
#[cfg(test)]
mod cost;
mod emit;
mod handoff;
mod lanes;
mod lower;
mod preempt;
mod rules;
mod schedule;
mod speculate;
mod waiting;
mod withhold;

use std::sync::Arc;

use hashbrown::HashMap;

use crate::block_hash::salted_seed;
use crate::types::{EngineRequest, HashSalt, KvEvent, Load, LowerTier, RequestId, SequenceHash, SimTime, StoredBlock};

use super::answer::{Answer, Generator};
use super::calendar::{Calendar, Entry};
use super::config::{ConfigError, EngineConfig, WorkerRole, Writes};
use super::forward::Lengths;
use super::handoff::{Desk, Reserves};
use super::kv::backend::BlockPool;
use super::kv::logical::BlockIdentity;
use super::kv::pool::{BlockTable, CopyId, EventStyle};
use super::kv::run::StoredRun;
use super::kv::tiers::{SharedMemory, Tiers};
use super::sequence::{Sequence, SequenceHasher};
use super::slab::Slab;
use super::speculation::Acceptance;
use super::timing::{PassClock, PassTiming};
use super::totals::{Totals, count};
use super::{DiskUse, Engine, Listing, Output, Pass, Rejected};
use cadence::Cadence;
use emit::DecodeBatch;
use lanes::Lanes;
use lower::{Below, Lower};
use rules::Rules;
use waiting::{Place, Waiting};

/// One rank's scheduler.
#[derive(Debug)]
pub(crate) struct Vllm {
    rules: Rules,
    clock: PassClock,
    /// Decides which drafts are accepted.
    acceptance: Option<Acceptance>,
    generator: Generator,
    hasher: SequenceHasher,
    pool: BlockPool,
    /// Blocks that no request may have.
    withheld: BlockTable,
    slots: Slab<Slot>,
    ids: HashMap<RequestId, u32, IdHash>,
    waiting: Waiting,
    lanes: Lanes,
    /// Running requests that still compute known tokens, in admission order.
    prefilling: Vec<u32>,
    calendar: Calendar,
    cadence: Cadence,
    desk: Desk,
    /// Memory below the GPU.
    tiers: Option<Box<Tiers>>,
    below: Below,
    /// Cache changes of handoff commands; told with the next pass, before its own.
    unheard: Box<Pass>,
    /// Over decoding requests.
    decoding: Totals,
    queued_prefill: Lengths,
    queued_decode: Lengths,
    /// Number of the next pass, from 1.
    pass: i64,
    preemptions: u64,
    /// Blocks that running requests may still take of those set aside for them.
    promised: u32,
    /// Pool version at which the head of the queue did not fit; it is not tried again before that changes.
    blocked_at: Option<u64>,
    listing: Listing,
    scratch: Scratch,
    /// Visits of the scheduler to single requests.
    #[cfg(test)]
    visits: u64,
}

/// A request and what the scheduler knows about it.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // independent facts, each set and read in one place
struct Slot {
    sequence: Sequence,
    salt: HashSalt,
    place: Place,
    phase: Phase,
    admitted_before: bool,
    /// Prefill side of a handoff: the blocks outlive the answer.
    keeps_blocks: bool,
    /// Decode side of a handoff.
    destination: bool,
    /// The prompt's KV is in the table before the first admission.
    resident: bool,
    /// Blocks set aside for the longest end while running, those in the table included.
    set_aside: u32,
    setbacks: Setbacks,
    lower: Lower,
    /// Admission number while running.
    ordinal: u64,
    /// Pass of the valid calendar entry while decoding.
    due: i64,
    /// Last pass in which the scheduler visited the request, and what it gave.
    visit: Visit,
}

impl Slot {
    /// Tokens that it counts with while it waits: of a destination the prompt's only, however much it has answered.
    fn queued_len(&self) -> u32 {
        if self.destination {
            self.sequence.prompt_len()
        } else {
            self.sequence.len()
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Prefilling,
    Decoding,
    /// Source whose KV waits for its transfer.
    Held,
    /// Destination without blocks.
    Pending,
    /// Destination with blocks, without KV.
    Reserved,
}

/// Preemptions in a row that brought a request no token in between.
#[derive(Debug, Clone, Copy, Default)]
struct Setbacks {
    count: u32,
    /// Generated tokens at the last preemption.
    generated: u32,
}

/// One visit of the scheduler.
#[derive(Debug, Clone, Copy, Default)]
struct Visit {
    pass: i64,
    tokens: u32,
    /// Prompt tokens up to the end of the visit and those before it, if it computed any.
    prompt: Option<(u32, u32)>,
    /// Length, if a part of the answer was computed again and more is left.
    recomputed: Option<u32>,
}

/// Buffers that live from pass to pass.
#[derive(Debug, Default)]
struct Scratch {
    /// Running requests to visit: (ordinal, slot).
    visits: Vec<(u64, u32)>,
    /// Slots that start decoding in this pass.
    joined: Vec<u32>,
    /// Slots that end in this pass.
    finishing: Vec<u32>,
    rejected: Vec<Output>,
    hits: Vec<CopyId>,
    /// Full blocks of the request that is about to get blocks, or those of its prompt that are not cached.
    known: Vec<BlockIdentity>,
    /// Blocks that filled up in this pass and become visible at its end: admission number, slot, full blocks.
    filled: Vec<(u64, u32, u32)>,
    /// Blocks of one request that become visible now.
    run: StoredRun,
}

/// Fixed hasher for request ids: they are unique and need spreading only.
type IdHash = std::hash::BuildHasherDefault<SpreadId>;

#[derive(Debug, Default, Clone, Copy)]
struct SpreadId(u64);

impl std::hash::Hasher for SpreadId {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        let spread = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ (spread >> 32);
    }
}

/// Running sums of one pass while it is put together.
#[derive(Debug, Default)]
struct Work {
    /// Token budget of the pass.
    budget: i64,
    now: SimTime,
    /// Tokens of visited requests; each other running request takes one.
    visited_tokens: i64,
    visited_lanes: i64,
    preempted: bool,
    /// Only decoding requests are served in this pass, and those that are cached but for a token.
    defers_prefills: bool,
    /// Some decoding requests got no token.
    stalled: bool,
    prefill: Prefill,
    /// Those that compute parts of their answer again without an end in this pass, by length.
    recomputed: Lengths,
}

#[derive(Debug, Default, Clone, Copy)]
struct Prefill {
    lengths: Lengths,
    /// Tokens scheduled, recomputed answers included.
    tokens: u64,
    isl: u64,
    prefix: u64,
}

impl Vllm {
    /// `config` is valid; `timing` is the model that it names or one given from outside.
    ///
    /// # Errors
    /// Others use `memory` on other terms.
    pub(crate) fn new(
        config: &EngineConfig,
        timing: Arc<dyn PassTiming>,
        memory: &SharedMemory,
    ) -> Result<Self, ConfigError> {
        let tiers = config.tiers.as_ref().map(|tiers| {
            let instant = config.speedup_ratio == 0.0;
            Tiers::new(tiers, config.block_size, instant, memory).map(Box::new)
        });
        let mut tiers = tiers.transpose()?;
        if config.role == WorkerRole::Decode
            && let Some(tiers) = &mut tiers
        {
            tiers.mute();
        }
        let rules = Rules::new(config);
        let generator = Generator::new(config.token_source, config.seed, config.token_ids).thinking(config.reasoning);
        let style = if rules.real {
            EventStyle::EachCopy
        } else {
            EventStyle::Visibility
        };
        let mut pool = BlockPool::new(config.eviction_backend, rules.usable_blocks, style);
        if config.tiers.is_some_and(|tiers| tiers.writes != Writes::Through) {
            pool.keep_lost();
        }
        if tiers.as_ref().is_some_and(|tiers| tiers.holds_sources()) {
            pool.hold_read();
        }
        Ok(Self {
            clock: PassClock::new(config, timing),
            acceptance: config
                .speculation
                .as_ref()
                .filter(|_| rules.drafts > 0)
                .map(Acceptance::new),
            generator,
            hasher: SequenceHasher::new(rules.block_size, generator),
            pool,
            withheld: BlockTable::default(),
            slots: Slab::new(),
            ids: HashMap::default(),
            waiting: Waiting::new(rules.by_priority),
            lanes: Lanes::default(),
            prefilling: Vec::new(),
            calendar: Calendar::default(),
            desk: Desk::default(),
            tiers,
            below: Below::default(),
            cadence: Cadence::new(config),
            unheard: Box::default(),
            decoding: Totals::default(),
            queued_prefill: Lengths::default(),
            queued_decode: Lengths::default(),
            pass: 1,
            preemptions: 0,
            promised: 0,
            blocked_at: None,
            listing: Listing::default(),
            scratch: Scratch::default(),
            #[cfg(test)]
            visits: 0,
            rules,
        })
    }

    /// With memory of its own only.
    #[cfg(test)]
    fn alone(config: &EngineConfig, timing: Arc<dyn PassTiming>) -> Self {
        Self::new(config, timing, &SharedMemory::new()).expect("nobody to disagree with")
    }

    /// Whether the next pass has to look at the waiting queue.
    fn may_admit(&self) -> bool {
        self.head().is_some_and(|at| self.may_try(at))
            && self.lanes.len() < self.rules.max_num_seqs
            && (self.lanes.len() as u64) < self.rules.budget
    }

    /// Whether some running request has its whole prompt computed.
    fn has_decoding(&self) -> bool {
        let prefilled = |&at: &u32| {
            let sequence = &self.slots[at].sequence;
            sequence.computed >= sequence.prompt_len()
        };
        self.lanes.len() > self.prefilling.len() || self.prefilling.iter().any(prefilled)
    }

    /// Takes a request in, without a place in any queue.
    fn enlist(&mut self, request: EngineRequest) -> Result<u32, Rejected> {
        if self.ids.contains_key(&request.id) {
            return Err(Rejected::Duplicate(request.id));
        }
        self.rules.accepts(&request)?;
        let answer = Answer::new(&request, self.generator, self.rules.max_len, self.rules.most_tokens());
        let seed = salted_seed(&request.salt);
        let sequence = Sequence::new(
            request.id,
            request.prompt,
            answer,
            request.priority,
            SimTime::ZERO,
            seed,
        );
        let at = self.slots.insert(Slot {
            place: Place::default(),
            phase: Phase::Waiting,
            admitted_before: false,
            keeps_blocks: false,
            destination: false,
            resident: false,
            set_aside: 0,
            setbacks: Setbacks::default(),
            lower: Lower::default(),
            ordinal: 0,
            due: 0,
            visit: Visit::default(),
            salt: request.salt,
            sequence,
        });
        self.ids.insert(request.id, at);
        Ok(at)
    }

    /// Takes a waiting request out of the queue.
    fn unqueue(&mut self, at: u32) {
        let slot = &mut self.slots[at];
        match slot.lower.parked.take() {
            Some(place) => self.below.parked.remove(place),
            None => self.waiting.remove(slot.place),
        }
        let queued = if slot.admitted_before || slot.destination {
            &mut self.queued_decode
        } else {
            &mut self.queued_prefill
        };
        queued.remove(slot.queued_len());
    }

    /// Somebody gave blocks or a place back: whoever waits for them is tried again.
    fn room_came(&mut self) {
        self.blocked_at = None;
        self.desk.room_came();
    }

    /// Takes a running request off the list; its settled length is then `len`.
    fn leave(&mut self, index: usize) -> u32 {
        let lane = self.lanes.remove(index);
        let slot = &mut self.slots[lane.sequence];
        self.promised -= std::mem::take(&mut slot.set_aside).saturating_sub(slot.sequence.table.len());
        match slot.phase {
            Phase::Decoding => {
                let len = lane.offset + self.pass.max(lane.first_pass);
                slot.sequence.generated = u32::try_from(len).unwrap_or(0) - slot.sequence.prompt_len();
                self.decoding.remove(lane.offset);
            }
            Phase::Prefilling => self.prefilling.retain(|&at| at != lane.sequence),
            Phase::Waiting | Phase::Held | Phase::Pending | Phase::Reserved => {
                debug_assert!(false, "only prefilling and decoding requests are on the running list");
            }
        }
        lane.sequence
    }
}

impl Vllm {
    /// Computes a pass, unless nothing can run.
    fn try_pass(&mut self, now: SimTime, pass: &mut Pass) -> bool {
        let mut work = Work {
            budget: i64::try_from(self.rules.budget).unwrap_or(i64::MAX),
            now,
            ..Work::default()
        };
        work.defers_prefills = self.cadence.defers(self.has_decoding());
        self.schedule_running(&mut work, pass);
        if !work.preempted {
            self.admit(&mut work, pass);
        }
        self.prepare_stores(now);
        if self.lanes.is_empty() && !work.preempted && self.scratch.rejected.is_empty() {
            return false;
        }
        if !work.defers_prefills && !work.preempted {
            self.cadence.left_waiting = !self.waiting.is_empty();
        }
        self.finish_pass(now, &mut work, pass);
        true
    }
}

impl Engine for Vllm {
    fn submit(&mut self, request: EngineRequest, now: SimTime) -> Result<(), Rejected> {
        let at = self.enlist(request)?;
        let slot = &mut self.slots[at];
        slot.sequence.arrival = now;
        self.queued_prefill.add(slot.sequence.prompt_len());
        let head = self.waiting.head();
        slot.place = self.waiting.push(at, slot.sequence.priority, now);
        if self.waiting.head() != head {
            self.blocked_at = None;
        }
        Ok(())
    }

    fn cancel(&mut self, id: RequestId, now: SimTime) -> bool {
        let Some(at) = self.ids.remove(&id) else { return false };
        let slot = &self.slots[at];
        let gives = slot.phase != Phase::Waiting || slot.sequence.table.len() > 0;
        match slot.phase {
            Phase::Waiting => {
                self.unqueue(at);
                self.forget_lower(at, now);
            }
            Phase::Pending | Phase::Reserved => self.forget_destination(at),
            Phase::Held => {}
            Phase::Prefilling | Phase::Decoding => {
                if let Some(index) = self.lanes.find(slot.ordinal) {
                    self.leave(index);
                }
            }
        }
        self.blocked_at = None;
        if let Some(mut slot) = self.slots.remove(at) {
            self.pool.release(&mut slot.sequence.table);
        }
        if gives {
            self.desk.room_came();
        }
        self.after_command(now);
        true
    }

    fn step_into(&mut self, now: SimTime, pass: &mut Pass) -> bool {
        pass.clear();
        self.listing.begin();
        self.use_pass_end(now);
        if let Some(end) = self.below.closing.take() {
            self.close_lower(end, pass);
        }
        self.settle(now, pass);
        let asleep = self.is_asleep();
        loop {
            let runs = self.try_pass(now, pass);
            if let Some(tiers) = &mut self.tiers {
                tiers.note_pass(runs);
            }
            if runs {
                return true;
            }
            match self.next_transfer_end() {
                // What takes no time may let somebody run at once.
                Some(at) if at <= now => self.settle(now, pass),
                None if self.give_up_copies() => {}
                Some(_) | None => break,
            }
        }
        let told = self.end_idle(pass);
        pass.ends_at = now;
        pass.load = self.load();
        if !asleep || self.rules.real {
            pass.forward.queued_prefill = self.queued_prefill;
            pass.forward.queued_decode = self.queued_decode;
        }
        told
    }

    fn step_quiet(&mut self, now: SimTime) -> Option<SimTime> {
        self.use_pass_end(now);
        if self.shares_memory() {
            return None;
        }
        // Each end of a pass may give a destination its blocks, and somebody has to hear of it.
        if self.desk.has_pending() || self.wakes_at().is_some_and(|at| at <= now) {
            return None;
        }
        let slots = &self.slots;
        let due = self.calendar.first_due(|entry| is_due(slots, entry));
        let quiet = !self.lanes.is_empty()
            && self.prefilling.is_empty()
            && due.is_none_or(|due| due > self.pass)
            && self.lanes.len() as u64 <= self.rules.budget
            && self.below.is_quiet()
            && !self.may_admit();
        if !quiet {
            return None;
        }
        let lengths = self.decoding.lengths(self.pass);
        let work = self.decode_time(&DecodeBatch::all(lengths), self.used_blocks());
        let ends_at = self.clock.end(now, now + work);
        if self.next_transfer_end().is_some_and(|at| at <= ends_at) {
            return None;
        }
        self.pass += 1;
        self.note_progress();
        if !self.cadence.defers(true) {
            self.cadence.left_waiting = !self.waiting.is_empty();
        }
        self.cadence.passed(true);
        self.desk.pass_ran(ends_at);
        Some(ends_at)
    }

    fn load(&self) -> Load {
        Load {
            running: count(self.lanes.len()),
            waiting: count(self.waiting.len() + self.below.parked.len() + self.desk.waiting()),
            active_blocks: self.used_blocks(),
            inactive_blocks: self.pool.inactive(),
            total_blocks: self.pool.capacity() - self.withheld.len(),
            preemptions: self.preemptions,
        }
    }

    fn cached_blocks(&self) -> Vec<(Option<SequenceHash>, StoredBlock)> {
        match self.rules.role {
            WorkerRole::Aggregated | WorkerRole::Prefill => self.pool.cached_blocks(),
            WorkerRole::Decode => Vec::new(),
        }
    }

    fn clear_cache(&mut self) -> Vec<KvEvent> {
        let events = self.pool.clear();
        self.pool.take_lost();
        if let Some(tiers) = &mut self.tiers {
            tiers.clear();
        }
        match self.rules.role {
            WorkerRole::Aggregated | WorkerRole::Prefill => events,
            WorkerRole::Decode => Vec::new(),
        }
    }

    fn withhold(&mut self, blocks: u32) -> Vec<KvEvent> {
        Self::withhold(self, blocks)
    }

    fn withheld(&self) -> u32 {
        self.withheld.len()
    }

    fn lower_blocks(&self) -> Vec<(LowerTier, Option<SequenceHash>, StoredBlock)> {
        match (&self.tiers, self.rules.role) {
            (Some(tiers), WorkerRole::Aggregated | WorkerRole::Prefill) => tiers.contents(),
            (None, _) | (_, WorkerRole::Decode) => Vec::new(),
        }
    }

    fn wakes_at(&self) -> Option<SimTime> {
        self.tiers.as_ref().and_then(|tiers| tiers.wakes_at())
    }

    fn mute_lower(&mut self) {
        if let Some(tiers) = &mut self.tiers {
            tiers.mute();
        }
    }

    fn is_ready(&self) -> bool {
        let tried = !self.waiting.is_empty() || self.below.parked.head().is_some() || self.desk.has_pending();
        !self.lanes.is_empty() || tried
    }

    fn copied_blocks(&self) -> u32 {
        self.pool.held()
    }

    fn own_disk(&self) -> Option<DiskUse> {
        self.tiers.as_ref()?.own_disk()
    }

    fn is_moving(&self) -> bool {
        self.tiers.as_ref().is_some_and(|tiers| tiers.is_moving())
    }

    fn join_step(&mut self, step: u64) {
        self.cadence.join(step);
    }

    fn end_step(&mut self, end: SimTime, pass: &mut Pass) -> bool {
        if self.shares_memory() {
            self.below.closing = Some(end);
            return false;
        }
        self.close_lower(end, pass);
        self.tell_lower(pass)
    }

    fn end_pass(&mut self, now: SimTime, pass: &mut Pass) {
        if self.below.closing.take().is_some() {
            self.close_lower(now, pass);
            pass.load = self.load();
            // Nobody may step a rank that has nobody left.
            if !self.is_ready()
                && let Some(tiers) = &mut self.tiers
            {
                tiers.note_pass(false);
            }
        }
    }

    fn end_transfers(&mut self, now: SimTime, pass: &mut Pass) {
        pass.clear();
        self.settle(now, pass);
        if self.tell_lower(pass) && self.rules.role != WorkerRole::Decode {
            self.tell_earlier(pass);
        }
    }

    fn listing(&self) -> &Listing {
        &self.listing
    }

    fn listing_mut(&mut self) -> &mut Listing {
        &mut self.listing
    }
}

/// Whether a calendar entry still speaks of the request that made it.
fn is_due(slots: &Slab<Slot>, entry: &Entry) -> bool {
    slots
        .get(entry.sequence)
        .is_some_and(|slot| slot.phase == Phase::Decoding && slot.ordinal == entry.ordinal && slot.due == entry.pass)
}
