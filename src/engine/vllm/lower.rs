//! Use of the memory below the GPU: which requests wait for blocks from there, and which blocks are written to it.
//!
//! Source: Dynamo 1.6.1 engine core (`native_host_offload`), after vLLM's offloading connector.

use super::super::Pass;
use super::super::config::WorkerRole;
use super::super::kv::logical::BlockIdentity;
use super::super::kv::tiers::{Found, TransferId};
use super::waiting::Parked;
use super::{Phase, Vllm, Work};
use crate::types::{SequenceHash, SimTime};

/// Requests that have to do with the memory below.
#[derive(Debug, Default)]
pub(super) struct Below {
    pub(super) parked: Parked,
    /// Running requests with blocks of their prompt that may have to be written: (ordinal, slot).
    storing: Vec<(u64, u32)>,
    /// A store that was not possible may be now.
    retry: bool,
    /// Blocks were taken between passes.
    pub(super) taken: bool,
    /// Passes that got somewhere.
    progress: u64,
    /// A transfer is over since the first destination was tried, which may have waited for it.
    pub(super) over: bool,
    /// The pass under way ends then, which memory that others use must not see before.
    pub(super) closing: Option<SimTime>,
}

impl Below {
    /// Whether a pass has to look at what is to be written.
    pub(super) fn is_quiet(&self) -> bool {
        !self.taken && (!self.retry || self.storing.is_empty())
    }
}

/// What one request has to do with it.
#[derive(Debug, Default)]
pub(super) struct Lower {
    /// Place among the parked requests.
    pub(super) parked: Option<u64>,
    pub(super) load: Load,
    /// Blocks of the prompt that have been written, or were there.
    stored: u32,
    /// Last store of blocks of its prompt.
    latest: Option<TransferId>,
    /// How often blocks have been sent for from below the host since it was last admitted, or since the rank got somewhere.
    rounds: u32,
    /// How far the rank was then.
    progress: u64,
}

/// Blocks that are copied for a waiting request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Load {
    #[default]
    Nothing,
    /// On their way into the private blocks at the end of its table.
    Coming { id: TransferId, needs: u32, in_gpu: u32 },
    /// In its table, all of whose blocks are cached, behind `in_gpu` that were there before.
    Here { needs: u32, in_gpu: u32 },
}

impl Load {
    /// Blocks of all that the request knows, while some are set aside for it.
    fn needs(self) -> Option<u32> {
        match self {
            Self::Nothing => None,
            Self::Coming { needs, .. } | Self::Here { needs, .. } => Some(needs),
        }
    }
}

/// What a look below the GPU means for the head of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// It is tried with what the GPU has.
    Try,
    /// So many blocks behind those of the GPU are to be copied first.
    Copy(u32),
    /// It has to wait for a transfer.
    Wait,
}

impl Vllm {
    /// Looks for the blocks of a prompt behind what the GPU has, and marks the prompt as used.
    pub(super) fn look_below(&mut self, at: u32, now: SimTime) -> Look {
        if self.tiers.is_none() || self.slots[at].lower.load != Load::Nothing {
            return match self.slots[at].lower.load {
                Load::Coming { .. } => Look::Wait,
                Load::Nothing | Load::Here { .. } => Look::Try,
            };
        }
        let whole = self.slots[at].sequence.len() / self.rules.block_size;
        self.find_cached(at, whole);
        let cached = u32::try_from(self.scratch.hits.len()).unwrap_or(u32::MAX);
        let Some(tiers) = &mut self.tiers else { return Look::Try };
        let slot = &mut self.slots[at];
        if slot.lower.latest.is_some_and(|id| tiers.has(id)) {
            return Look::Wait;
        }
        slot.lower.latest = None;
        let blocks = slot.sequence.prompt_len() / self.rules.block_size;
        let prompt = &mut self.scratch.known;
        prompt.clear();
        for index in cached..blocks {
            prompt.push(self.hasher.identity(&mut slot.sequence, index));
        }
        let (found, staged) = tiers.find(at, prompt, slot.lower.rounds, now);
        if staged {
            if std::mem::replace(&mut slot.lower.progress, self.below.progress) != self.below.progress {
                slot.lower.rounds = 0;
            }
            slot.lower.rounds += 1;
            tiers.note_round(slot.lower.rounds);
        }
        if blocks > 0 {
            self.hasher.block(&mut slot.sequence, blocks - 1);
        }
        tiers.touch(slot.sequence.hashed(blocks).iter().map(|block| block.block_hash));
        match found {
            Found::Nothing => Look::Try,
            Found::Blocks(blocks) => Look::Copy(blocks),
            Found::Coming => Look::Wait,
        }
    }

    /// The head of the queue waits for a transfer; others are tried meanwhile.
    pub(super) fn park(&mut self, at: u32) {
        let slot = &mut self.slots[at];
        if let Some(place) = slot.lower.parked {
            self.below.parked.sleep(place);
            return;
        }
        self.waiting.remove(slot.place);
        slot.lower.parked = Some(self.below.parked.push(at));
    }

    /// The parked request to be tried next. With a tier below the host it is the first that has memory set aside for it.
    pub(super) fn parked_head(&self) -> Option<u32> {
        let deep = self.tiers.as_ref().is_some_and(|tiers| tiers.reaches_below_host());
        let holds = |at: &u32| self.slots[*at].lower.load != Load::Nothing;
        let holder = deep.then(|| self.below.parked.awake().find(holds)).flatten();
        holder.or_else(|| self.below.parked.head())
    }

    /// Whether nobody can do anything before a transfer is over. Among other ranks the reference emulator counts such a rank
    /// as one that has nobody.
    pub(super) fn is_asleep(&self) -> bool {
        self.lanes.is_empty() && self.waiting.is_empty() && self.below.parked.head().is_none() && !self.below.over
    }

    /// Blocks that running prefills and copies under way are going to take, which another copy must leave alone.
    pub(super) fn spoken_for(&self) -> u32 {
        let prefill = |&at: &u32| {
            let sequence = &self.slots[at].sequence;
            let known = self.rules.blocks(sequence.len());
            (sequence.computed < sequence.prompt_len()).then(|| known.saturating_sub(sequence.table.len()))
        };
        let copy = |at: u32| {
            let slot = &self.slots[at];
            slot.lower
                .load
                .needs()
                .map(|needs| needs.saturating_sub(slot.sequence.table.len()))
        };
        let copies = self.below.parked.iter().filter_map(copy).sum::<u32>();
        self.prefilling.iter().filter_map(prefill).sum::<u32>() + copies
    }

    /// Sets memory aside for `blocks` blocks behind the cached ones and has them copied. `false`: there is not enough.
    pub(super) fn copy_up(&mut self, at: u32, blocks: u32, now: SimTime, pass: &mut Pass) -> bool {
        let identities: Vec<BlockIdentity> = self.scratch.known[..blocks as usize].to_vec();
        if let Some(tiers) = &mut self.tiers {
            tiers.hold(&identities);
        }
        self.use_taken(now);
        let hits = std::mem::take(&mut self.scratch.hits);
        self.pool.adopt(&mut self.slots[at].sequence.table, &hits);
        self.scratch.hits = hits;
        let table = &mut self.slots[at].sequence.table;
        let taken = self.pool.take(table, &[], blocks, &mut pass.kv_events);
        if taken {
            self.note_changes(at, pass);
        } else {
            self.pool.release(table);
        }
        let Some(tiers) = &mut self.tiers else { return false };
        tiers.evicted(self.pool.take_lost(), now);
        if !taken {
            tiers.let_go(&identities);
            return false;
        }
        let readers = self.pool.take_readers();
        let free = readers.iter().map(|&id| tiers.end_of_store(id)).max();
        let id = tiers.load(at, identities.clone(), now, free.unwrap_or(now));
        tiers.let_go(&identities);
        let Some(id) = id else {
            self.pool.release(&mut self.slots[at].sequence.table);
            return false;
        };
        let needs = self.rules.blocks(self.slots[at].sequence.len());
        let in_gpu = u32::try_from(self.scratch.hits.len()).unwrap_or(u32::MAX);
        self.slots[at].lower.load = Load::Coming { id, needs, in_gpu };
        true
    }

    /// A request is admitted with `cached` tokens, perhaps with copied blocks in its table; returns how many tokens these
    /// have brought.
    pub(super) fn note_admission(&mut self, at: u32, cached: u32) -> u32 {
        let lower = &mut self.slots[at].lower;
        lower.rounds = 0;
        let load = std::mem::take(&mut lower.load);
        if load != Load::Nothing {
            lower.stored = cached / self.rules.block_size;
        }
        match load {
            Load::Here { in_gpu, .. } => cached.saturating_sub(in_gpu.saturating_mul(self.rules.block_size)),
            Load::Nothing | Load::Coming { .. } => 0,
        }
    }

    /// A waiting request goes away.
    pub(super) fn forget_lower(&mut self, at: u32, now: SimTime) {
        let Some(tiers) = &mut self.tiers else { return };
        if let Load::Coming { id, .. } = self.slots[at].lower.load {
            tiers.cancel_load(id, now);
            self.below.parked.wake();
        }
    }

    /// A running request gives its blocks back in this pass, which waits for what is read from them.
    pub(super) fn wait_for_stores(&mut self, at: u32) {
        if let (Some(tiers), Some(id)) = (&mut self.tiers, self.slots[at].lower.latest) {
            tiers.wait_for(id);
        }
    }

    /// Somebody computes in this pass, or has an outcome: who waits for blocks from below the host may go on waiting.
    pub(super) fn note_progress(&mut self) {
        self.below.progress += 1;
    }

    /// Blocks were taken: the pass waits for what is read from them, and what was in them may be written down.
    pub(super) fn use_taken(&mut self, now: SimTime) {
        self.below.taken = false;
        let Some(tiers) = &mut self.tiers else { return };
        for id in self.pool.take_readers() {
            tiers.wait_for(id);
        }
        tiers.evicted(self.pool.take_lost(), now);
    }

    /// Blocks of a prompt are computed by the running pass.
    pub(super) fn offer(&mut self, at: u32) {
        let slot = &self.slots[at];
        let through = self.tiers.as_ref().is_some_and(|tiers| tiers.writes_through());
        if !through || slot.lower.stored >= slot.sequence.prompt_len() / self.rules.block_size {
            return;
        }
        let entry = (slot.ordinal, at);
        if let Err(place) = self.below.storing.binary_search(&entry) {
            self.below.storing.insert(place, entry);
        }
        self.below.retry = true;
    }

    /// Prepares the stores of what the pass has computed, in the order of the running list.
    pub(super) fn prepare_stores(&mut self, now: SimTime) {
        // Others may have made room in what they share.
        if !std::mem::take(&mut self.below.retry) && !self.shares_memory() {
            return;
        }
        let mut storing = std::mem::take(&mut self.below.storing);
        storing.retain(|&(ordinal, at)| {
            let Some(index) = self.lanes.find(ordinal) else {
                return false;
            };
            let served = self.is_served(index);
            self.below.retry |= !served;
            !served || !self.prepare_store(at, now)
        });
        self.below.storing = storing;
    }

    /// Whether the request at this list position gets tokens in this pass.
    fn is_served(&self, index: usize) -> bool {
        let lane = &self.lanes[index];
        let slot = &self.slots[lane.sequence];
        match slot.phase {
            Phase::Decoding => lane.first_pass <= self.pass,
            Phase::Prefilling => slot.visit.pass == self.pass && slot.visit.tokens > 0,
            Phase::Waiting | Phase::Held | Phase::Pending | Phase::Reserved => false,
        }
    }

    /// Prepares the store of what a request's prompt has more than the host. Returns whether the whole prompt is done with.
    fn prepare_store(&mut self, at: u32, now: SimTime) -> bool {
        let Some(tiers) = &mut self.tiers else { return true };
        let slot = &mut self.slots[at];
        let all = slot.sequence.prompt_len() / self.rules.block_size;
        let computed = match slot.phase {
            Phase::Decoding => all,
            Phase::Prefilling | Phase::Waiting | Phase::Held | Phase::Pending | Phase::Reserved => {
                slot.sequence.computed / self.rules.block_size
            }
        };
        let (from, end) = (slot.lower.stored, computed.min(all));
        if end <= from {
            return end == all;
        }
        let blocks = slot.sequence.hashed(all).iter();
        let hashes: Vec<SequenceHash> = blocks.map(|block| block.block_hash).collect();
        let missing: Vec<u32> = (from..end)
            .filter(|&index| tiers.lacks(hashes[index as usize]))
            .collect();
        let copies: Vec<_> = missing
            .iter()
            .filter_map(|&index| slot.sequence.table.copy(index))
            .collect();
        if copies.len() < missing.len() || copies.iter().any(|&copy| self.pool.is_read(copy)) {
            return false;
        }
        if !missing.is_empty() {
            let sequence = &mut slot.sequence;
            let blocks = missing
                .iter()
                .map(|&index| self.hasher.identity(sequence, index))
                .collect();
            let Some(id) = tiers.prepare(blocks, &hashes[from as usize..end as usize], now) else {
                return false;
            };
            self.pool.begin_reading(id, &copies);
            slot.lower.latest = Some(id);
            tiers.touch(hashes.iter().copied());
        }
        slot.lower.stored = end;
        end == all
    }

    /// Ends the transfers that are done by `now`: parked requests get their blocks or are tried again.
    pub(super) fn settle(&mut self, now: SimTime, pass: &mut Pass) {
        let Some(tiers) = &mut self.tiers else { return };
        if !tiers.settle(now) {
            return;
        }
        for id in tiers.take_stored() {
            self.pool.end_reading(id);
        }
        for at in tiers.take_loaded() {
            let slot = &mut self.slots[at];
            if let Load::Coming { needs, in_gpu, .. } = slot.lower.load {
                slot.lower.load = Load::Here { needs, in_gpu };
                let blocks = slot.sequence.table.len();
                self.register(at, blocks, pass);
            }
        }
        self.below.parked.wake();
        self.below.retry = true;
        self.below.over = self.desk.has_pending();
        self.room_came();
    }

    /// Nothing runs and nothing is on its way, yet somebody waits. If that is because copies for others take the memory up,
    /// which stops the reference emulator for good, the last of these requests gives its own up; it is copied again, or
    /// found in the GPU, when its turn comes. Returns whether there was one.
    pub(super) fn give_up_copies(&mut self) -> bool {
        if self.tiers.as_ref().is_some_and(|tiers| tiers.may_go_on()) {
            return false;
        }
        let head = self.below.parked.head();
        let holds = |at: &u32| matches!(self.slots[*at].lower.load, Load::Here { .. }) && Some(*at) != head;
        let Some(at) = self.below.parked.iter().rev().find(holds) else {
            return false;
        };
        let slot = &mut self.slots[at];
        slot.lower.load = Load::Nothing;
        self.pool.release(&mut slot.sequence.table);
        self.room_came();
        true
    }

    /// The pass is over at `end`: what it computed goes to the host from then on.
    pub(super) fn close_lower(&mut self, end: SimTime, pass: &mut Pass) {
        self.settle(end, pass);
        if let Some(tiers) = &mut self.tiers {
            tiers.submit_prepared(end);
        }
        self.settle(end, pass);
        self.tell_lower(pass);
    }

    /// Whether the end of a pass is to be waited for before anything happens to the memory below.
    pub(super) fn shares_memory(&self) -> bool {
        self.tiers.as_ref().is_some_and(|tiers| tiers.is_shared())
    }

    /// When the next transfer is over.
    pub(super) fn next_transfer_end(&self) -> Option<SimTime> {
        self.tiers.as_ref()?.next_end()
    }

    /// When the pass may compute.
    pub(super) fn starts_at(&mut self, work: &Work) -> SimTime {
        match &mut self.tiers {
            Some(tiers) => tiers.ready_at().max(work.now),
            None => work.now,
        }
    }

    /// Moves the changes of the lower tiers into `pass`, of which a decode worker tells nothing; returns whether there is
    /// anything to tell.
    pub(super) fn tell_lower(&mut self, pass: &mut Pass) -> bool {
        if let Some(tiers) = &mut self.tiers {
            tiers.take_events(&mut pass.tier_events);
        }
        if self.rules.role == WorkerRole::Decode {
            pass.tier_events.clear();
            pass.kv_events.clear();
            pass.stored.clear();
        }
        !(pass.tier_events.is_empty() && pass.kv_events.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::config::{EngineConfig, Fidelity, TierBandwidth, TierConfig, Writes};
    use super::super::super::{Engine, cost, timing};
    use super::*;

    /// Runs until nothing is to be done and no transfer is on its way.
    fn settled(engine: &mut Vllm, mut now: SimTime) -> SimTime {
        loop {
            if let Some(pass) = engine.step(now) {
                now = pass.ends_at;
            } else if let Some(at) = engine.wakes_at().filter(|&at| at > now) {
                now = at;
            } else {
                return now;
            }
        }
    }

    #[test]
    fn a_decode_worker_tells_nobody_what_leaves_its_cache_for_a_copy() {
        let config = EngineConfig {
            fidelity: Fidelity::Mocker,
            role: WorkerRole::Decode,
            num_gpu_blocks: 4,
            block_size: 4,
            tiers: Some(TierConfig {
                writes: Writes::Through,
                host_blocks: 16,
                disk_blocks: 0,
                storage: false,
                bytes_per_token: 1_000_000,
                bandwidth: TierBandwidth::default(),
                host_latency_ms: 0.0,
                disk_latency_ms: 0.0,
                host_shared: None,
                disk_shared: None,
            }),
            ..EngineConfig::default()
        };
        let mut engine = Vllm::alone(&config, timing::build(&config.timing));
        let mut now = SimTime::ZERO;
        for (id, family, prompt_len) in [(1, 0, 8), (2, 1, 16)] {
            engine.submit(cost::request(id, family, prompt_len, 1), now).unwrap();
            now = settled(&mut engine, now);
        }
        assert_eq!(
            engine.load().inactive_blocks,
            4,
            "of the second prompt; the first one is in the host"
        );
        engine.submit(cost::request(3, 0, 12, 1), now).unwrap();
        assert!(engine.step(now).is_none(), "nothing runs before the copy is there");
        assert!(engine.wakes_at().is_some_and(|at| at > now));
        assert_eq!(engine.load().inactive_blocks, 2);
    }
}
