//! KV memory below the GPU's: host (G2), disk (G3) and object storage (G4).
//!
//! Blocks come to the host from the GPU: those of a prompt when a pass has computed them ([`Writes::Through`]), or any when
//! the GPU's cache evicts them ([`Writes::OnEviction`]). What has arrived in the host goes on to every tier below it. A
//! request whose prompt goes on in the host behind what the GPU has is parked while the blocks are copied into GPU memory
//! that was set aside for them, and runs with a longer cached prefix then. Blocks that only a tier below the host has are
//! brought into the host first.
//!
//! GPU memory that is read by a transfer can be given away at once, but nobody computes in it before the transfer is
//! done: the pass that writes to it starts later ([`Tiers::ready_at`]). Each rank has tiers of its own.
//!
//! | Operation | Cost |
//! |---|---|
//! | offer, look up, touch a block | O(log blocks of the tier) |
//! | start or end of a transfer | O(log) per block of it, O(transfers on the link) |
//! | next instant at which something ends | O(transfers on their way) |
//!
//! Sources: Dynamo 1.6.1 engine core (`native_host_offload`, `g3_offload`), Dynamo 1.4.2 (tiers, directions, batches,
//! links that are shared).

mod levels;
mod link;
mod store;

use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;

use super::super::config::{TierConfig, Writes};
use super::logical::BlockIdentity;
use crate::types::{KvEvent, LowerTier, SequenceHash, SimTime, StoredBlock, TierEvent};
use levels::Level;
pub(crate) use link::TransferId;
use link::{Direction, Lanes, Link, Shared, Speed};
use store::{Presence, Store};

/// Blocks that object storage remembers at most, so that a long run does not fill the memory of this process.
const STORAGE_BLOCKS: u32 = 1 << 20;

/// How often a request sends for blocks from below the host at most before it goes on without them: a prompt that is longer
/// than the host evicts its own blocks. Source: Dynamo 1.6.1.
const MOST_ROUNDS: u32 = 1024;

/// What the host has behind the GPU's part of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    /// So many blocks, ready to be read.
    Blocks(u32),
    /// Some that are on their way: worth waiting for.
    Coming,
}

/// A way between two tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// GPU to host.
    Store,
    /// Host to GPU.
    Load,
    /// Host to the level below with this number.
    Sink(usize),
    /// That level to host.
    Stage(usize),
}

#[derive(Debug)]
struct Transfer {
    way: Way,
    blocks: Vec<BlockIdentity>,
    /// Of a load: who waits for it.
    reader: u32,
}

/// The lower tiers of one rank.
#[derive(Debug)]
pub(crate) struct Tiers {
    block_bytes: u64,
    writes: Writes,
    host: Store,
    /// Between GPU and host.
    link: Link,
    levels: Vec<Level>,
    transfers: HashMap<TransferId, Transfer, FxBuildHasher>,
    /// Blocks of the host that are being copied to the GPU.
    loading: HashSet<SequenceHash, FxBuildHasher>,
    next_id: u64,
    /// Stores that start when the running pass is over.
    prepared: Vec<TransferId>,
    /// Stores of evicted blocks since the last pass; nobody computes in their place before they are done.
    evicted: Vec<TransferId>,
    /// No pass computes before this.
    ready_at: SimTime,
    /// Stores that are done, and requests whose load is.
    stored: Vec<TransferId>,
    loaded: Vec<u32>,
    events: Vec<TierEvent>,
    version: u64,
    /// Blocks that requests have sent for at this instant.
    attempted_at: SimTime,
    attempted: HashSet<(u32, SequenceHash), FxBuildHasher>,
}

impl Tiers {
    /// `instant`: no transfer takes time.
    pub(crate) fn new(config: &TierConfig, block_size: u32, instant: bool) -> Self {
        let speed = |down, up, latency_ms| {
            if instant {
                Speed::INSTANT
            } else {
                Speed { down, up, latency_ms }
            }
        };
        let gb_s = &config.bandwidth;
        let host = speed(gb_s.g1_to_g2, gb_s.g2_to_g1, config.host_latency_ms);
        let disk = speed(gb_s.g2_to_g3, gb_s.g3_to_g2, config.disk_latency_ms);
        let storage = speed(gb_s.g2_to_g4, gb_s.g4_to_g2, config.disk_latency_ms);
        let disk = (config.disk_blocks > 0).then(|| Level::new(LowerTier::Disk, config.disk_blocks, disk));
        let storage = config
            .storage
            .then(|| Level::new(LowerTier::Storage, STORAGE_BLOCKS, storage));
        Self {
            block_bytes: u64::from(block_size) * config.bytes_per_token,
            writes: config.writes,
            host: Store::new(config.host_blocks),
            link: match config.writes {
                Writes::Through => Link::InTurn(Lanes::new(host)),
                Writes::OnEviction { .. } => Link::Shared(Shared::new(host)),
            },
            levels: disk.into_iter().chain(storage).collect(),
            transfers: HashMap::default(),
            loading: HashSet::default(),
            next_id: 0,
            prepared: Vec::new(),
            evicted: Vec::new(),
            ready_at: SimTime::ZERO,
            stored: Vec::new(),
            loaded: Vec::new(),
            events: Vec::new(),
            version: 0,
            attempted_at: SimTime::ZERO,
            attempted: HashSet::default(),
        }
    }

    /// Whether computed blocks of prompts are written, rather than evicted blocks.
    pub(crate) fn writes_through(&self) -> bool {
        self.writes == Writes::Through
    }

    /// Whether computed blocks of prompts end up below the host, too.
    pub(crate) fn reaches_below_host(&self) -> bool {
        self.writes_through() && !self.levels.is_empty()
    }

    /// Changes whenever a lookup may have another outcome or another effect.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Whether the host lacks the block, and does not expect it either.
    pub(crate) fn lacks(&self, hash: SequenceHash) -> bool {
        self.host.presence(hash) == Presence::Missing
    }

    /// What the host has of `prompt`, block by block behind what the GPU has. Blocks that are below the host only are sent
    /// for first; returns whether that was begun, too, which `reader` has seen `rounds` times.
    pub(crate) fn find(&mut self, reader: u32, prompt: &[BlockIdentity], rounds: u32, now: SimTime) -> (Found, bool) {
        if self.writes_through() {
            if rounds < MOST_ROUNDS
                && let Some(started) = self.promote(reader, prompt, now)
            {
                return (Found::Coming, started);
            }
        } else if rounds == 0 && self.stage(prompt, now) {
            return (Found::Coming, true);
        }
        let mut blocks = 0;
        let mut coming = false;
        for identity in prompt {
            let hash = identity.block.block_hash;
            match self.host.presence(hash) {
                Presence::Missing => break,
                Presence::Coming => coming = true,
                Presence::Here => coming |= self.loading.contains(&hash),
            }
            blocks += 1;
        }
        match blocks {
            0 => (Found::Nothing, false),
            _ if coming => (Found::Coming, false),
            blocks => (Found::Blocks(blocks), false),
        }
    }

    /// Blocks are used now, the last one first.
    pub(crate) fn touch(&mut self, prompt: impl DoubleEndedIterator<Item = SequenceHash>) {
        for hash in prompt.rev() {
            self.host.touch(hash);
        }
    }

    /// Blocks that a pass computed are written to the host when it is over: those of `cohort` that the host lacks, all of
    /// them or, if there is no room, none. The host has none of `missing`.
    pub(crate) fn prepare(&mut self, missing: Vec<BlockIdentity>, cohort: &[SequenceHash]) -> Option<TransferId> {
        let gone = self.host.expect(&missing, cohort)?;
        self.version += 1;
        self.tell_removed(LowerTier::Host, gone);
        let id = self.open(Way::Store, missing, 0);
        self.prepared.push(id);
        Some(id)
    }

    /// The GPU's cache lost these blocks at `now`: as many as the host has room for are written to it.
    pub(crate) fn evicted(&mut self, mut blocks: Vec<BlockIdentity>, now: SimTime) {
        let Writes::OnEviction { batch_blocks } = self.writes else {
            return;
        };
        let mut seen = HashSet::<SequenceHash, FxBuildHasher>::default();
        blocks.retain(|identity| {
            let hash = identity.block.block_hash;
            self.lacks(hash) && seen.insert(hash)
        });
        blocks.truncate(self.host.room(&[]));
        for batch in blocks.chunks(batch_blocks as usize) {
            let Some(gone) = self.host.expect(batch, &[]) else {
                break;
            };
            self.version += 1;
            self.tell_removed(LowerTier::Host, gone);
            let id = self.open(Way::Store, batch.to_vec(), 0);
            let bytes = self.bytes(batch.len());
            self.link.send(id, Direction::Down, now, bytes);
            self.evicted.push(id);
        }
    }

    /// Whether a store is under way or prepared.
    pub(crate) fn has(&self, id: TransferId) -> bool {
        self.transfers.contains_key(&id)
    }

    /// No pass computes before these stores are done, as far as they have started.
    pub(crate) fn wait_for(&mut self, id: TransferId) {
        self.ready_at = self.ready_at.max(self.end_of_store(id));
    }

    /// When a store is done; zero if it is already or has not started.
    pub(crate) fn end_of_store(&self, id: TransferId) -> SimTime {
        self.link.end_of(id).unwrap_or(SimTime::ZERO)
    }

    /// When a pass may compute.
    pub(crate) fn ready_at(&mut self) -> SimTime {
        for id in std::mem::take(&mut self.evicted) {
            self.wait_for(id);
        }
        self.ready_at
    }

    /// Keeps blocks that are going to be loaded while GPU blocks are evicted for them, which may need room in the host.
    pub(crate) fn hold(&mut self, blocks: &[BlockIdentity]) {
        if !self.writes_through() {
            self.host.read(&hashes(blocks));
        }
    }

    /// Ends [`Self::hold`].
    pub(crate) fn let_go(&mut self, blocks: &[BlockIdentity]) {
        if !self.writes_through() {
            self.host.done(&hashes(blocks));
        }
    }

    /// Copies these blocks, which the host has, to the GPU for `reader`, into memory that is free from `from` on.
    pub(crate) fn load(&mut self, reader: u32, blocks: Vec<BlockIdentity>, now: SimTime, from: SimTime) -> TransferId {
        self.version += 1;
        let hashes = hashes(&blocks);
        self.host.read(&hashes);
        self.loading.extend(hashes);
        let bytes = self.bytes(blocks.len());
        let id = self.open(Way::Load, blocks, reader);
        self.link.send(id, Direction::Up, now.max(from), bytes);
        id
    }

    /// Nobody waits for this load any more.
    pub(crate) fn cancel_load(&mut self, id: TransferId, now: SimTime) {
        if let Some(transfer) = self.transfers.remove(&id) {
            self.version += 1;
            self.link.remove(id, now);
            self.loaded_or_not(&transfer.blocks);
        }
    }

    /// Starts what was prepared: the pass is over.
    pub(crate) fn submit_prepared(&mut self, now: SimTime) {
        for id in std::mem::take(&mut self.prepared) {
            let bytes = self.bytes(self.transfers[&id].blocks.len());
            self.link.send(id, Direction::Down, now, bytes);
        }
    }

    /// Ends what is done by `now`; returns whether anything is.
    pub(crate) fn settle(&mut self, now: SimTime) -> bool {
        if self.reaches_below_host() {
            return self.settle_by_tier(now);
        }
        let mut any = false;
        while let Some(at) = self.next_end().filter(|&at| at <= now) {
            let mut ended = self.settle_host(at);
            self.settle_levels(at, &mut ended);
            any |= !ended.is_empty();
            for transfer in ended {
                self.end(transfer, at);
            }
        }
        any
    }

    /// Takes the stores that are done; GPU memory that they read may be written to.
    pub(crate) fn take_stored(&mut self) -> Vec<TransferId> {
        std::mem::take(&mut self.stored)
    }

    /// Takes the requests whose load is done, in the order of the loads.
    pub(crate) fn take_loaded(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.loaded)
    }

    /// When there is something to do or to tell.
    pub(crate) fn wakes_at(&self) -> Option<SimTime> {
        if self.events.is_empty() {
            self.next_end()
        } else {
            Some(SimTime::ZERO)
        }
    }

    /// When something happens to a transfer next.
    pub(crate) fn next_end(&self) -> Option<SimTime> {
        let levels = self.levels.iter().filter_map(Level::next);
        self.link.next().into_iter().chain(levels).min()
    }

    /// Moves what has changed to the end of `events`.
    pub(crate) fn take_events(&mut self, events: &mut Vec<TierEvent>) {
        events.append(&mut self.events);
    }

    /// What can be read where, with the parent of each block.
    pub(crate) fn contents(&self) -> Vec<(LowerTier, Option<SequenceHash>, StoredBlock)> {
        let levels = self.levels.iter().map(|level| (level.tier, &level.store));
        let all = std::iter::once((LowerTier::Host, &self.host)).chain(levels);
        all.flat_map(|(tier, store)| {
            store
                .contents()
                .map(move |identity| (tier, identity.parent, identity.block))
        })
        .collect()
    }

    /// Drops everything that no transfer is about.
    pub(crate) fn clear(&mut self) {
        self.version += 1;
        let gone = self.host.clear();
        self.tell_removed(LowerTier::Host, gone);
        for index in 0..self.levels.len() {
            let gone = self.levels[index].store.clear();
            self.tell_removed(self.levels[index].tier, gone);
        }
    }

    fn open(&mut self, way: Way, blocks: Vec<BlockIdentity>, reader: u32) -> TransferId {
        let id = TransferId(self.next_id);
        self.next_id += 1;
        self.transfers.insert(id, Transfer { way, blocks, reader });
        id
    }

    fn bytes(&self, blocks: usize) -> u64 {
        self.block_bytes.saturating_mul(blocks as u64)
    }

    /// Takes a transfer that is done off the list.
    fn take(&mut self, id: TransferId) -> Option<Transfer> {
        let transfer = self.transfers.remove(&id)?;
        self.version += 1;
        if transfer.way == Way::Store {
            self.stored.push(id);
        }
        Some(transfer)
    }

    /// Takes the transfers between GPU and host that are done by `now`.
    fn settle_host(&mut self, now: SimTime) -> Vec<Transfer> {
        let ended = self.link.settle(now);
        ended.into_iter().filter_map(|(_, id)| self.take(id)).collect()
    }

    fn end(&mut self, transfer: Transfer, at: SimTime) {
        let Transfer { way, blocks, reader } = transfer;
        match way {
            Way::Store => {
                self.host.arrive(&blocks);
                self.tell_stored(LowerTier::Host, &blocks);
                self.sink(&blocks, at);
            }
            Way::Load => {
                self.loaded_or_not(&blocks);
                self.loaded.push(reader);
            }
            Way::Sink(_) => self.host.done(&hashes(&blocks)),
            Way::Stage(_) => {
                self.host.arrive(&blocks);
                self.tell_stored(LowerTier::Host, &blocks);
            }
        }
    }

    /// Dynamo 1.6.1 looks at the ends of passes only. What has come to the host by then goes on to the levels from then on,
    /// which see their own transfers end before; the host sees the end of those last.
    fn settle_by_tier(&mut self, now: SimTime) -> bool {
        let done = self.settle_host(now);
        let mut any = !done.is_empty();
        let mut landed: Vec<Vec<BlockIdentity>> = Vec::new();
        for transfer in done {
            if transfer.way == Way::Load {
                self.loaded_or_not(&transfer.blocks);
                self.loaded.push(transfer.reader);
            } else {
                self.host.land(&transfer.blocks);
                self.tell_stored(LowerTier::Host, &transfer.blocks);
                landed.push(transfer.blocks);
            }
        }
        for blocks in landed {
            self.sink(&blocks, now);
            self.host.done(&hashes(&blocks));
        }
        let mut ended = Vec::new();
        self.settle_levels(now, &mut ended);
        any |= !ended.is_empty();
        for Transfer { way, blocks, .. } in ended {
            if let Way::Sink(_) = way {
                self.host.done(&hashes(&blocks));
            } else {
                for block in &blocks {
                    self.host.arrive(std::slice::from_ref(block));
                    self.tell_stored(LowerTier::Host, std::slice::from_ref(block));
                }
            }
        }
        any
    }

    /// A load of these blocks is over.
    fn loaded_or_not(&mut self, blocks: &[BlockIdentity]) {
        let hashes = hashes(blocks);
        for hash in &hashes {
            self.loading.remove(hash);
        }
        self.host.done(&hashes);
    }

    fn tell_removed(&mut self, tier: LowerTier, block_hashes: Vec<SequenceHash>) {
        if !block_hashes.is_empty() {
            let event = KvEvent::Removed { block_hashes };
            self.events.push(TierEvent { tier, event });
        }
    }

    /// Blocks that follow each other are one event.
    fn tell_stored(&mut self, tier: LowerTier, blocks: &[BlockIdentity]) {
        for chain in blocks.chunk_by(|a, b| b.parent == Some(a.block.block_hash)) {
            self.events.push(TierEvent {
                tier,
                event: KvEvent::Stored {
                    parent: chain[0].parent,
                    blocks: chain.iter().map(|identity| identity.block).collect(),
                },
            });
        }
    }
}

fn hashes(blocks: &[BlockIdentity]) -> Vec<SequenceHash> {
    blocks.iter().map(|identity| identity.block.block_hash).collect()
}

#[cfg(test)]
mod tests;
