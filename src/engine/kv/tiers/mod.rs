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

mod link;
mod store;

use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;

use super::super::config::{TierConfig, Writes};
use super::logical::BlockIdentity;
use crate::types::{KvEvent, LowerTier, SequenceHash, SimTime, StoredBlock, TierEvent};
pub(crate) use link::TransferId;
use link::{Link, Service};
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

/// A way between two tiers. Of those that are done at the same instant, the first here comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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

/// A tier below the host.
#[derive(Debug)]
struct Level {
    tier: LowerTier,
    store: Store,
    write: Link,
    read: Link,
}

/// The lower tiers of one rank.
#[derive(Debug)]
pub(crate) struct Tiers {
    block_bytes: u64,
    writes: Writes,
    host: Store,
    store: Link,
    load: Link,
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
        let service = match config.writes {
            Writes::Through => Service::InTurn,
            Writes::OnEviction { .. } => Service::Shared,
        };
        let link = |service, gb_s: f64, latency_ms: f64| {
            if instant {
                Link::new(service, 0.0, 0.0)
            } else {
                Link::new(service, gb_s, latency_ms)
            }
        };
        let level = |tier, blocks, write: f64, read: f64| Level {
            tier,
            store: Store::new(blocks),
            write: link(Service::Shared, write, config.disk_latency_ms),
            read: link(Service::Shared, read, config.disk_latency_ms),
        };
        let speed = &config.bandwidth;
        let disk = (config.disk_blocks > 0)
            .then(|| level(LowerTier::Disk, config.disk_blocks, speed.g2_to_g3, speed.g3_to_g2));
        let storage = config
            .storage
            .then(|| level(LowerTier::Storage, STORAGE_BLOCKS, speed.g2_to_g4, speed.g4_to_g2));
        Self {
            block_bytes: u64::from(block_size) * config.bytes_per_token,
            writes: config.writes,
            host: Store::new(config.host_blocks),
            store: link(service, speed.g1_to_g2, config.host_latency_ms),
            load: link(service, speed.g2_to_g1, config.host_latency_ms),
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
            self.store.advance(now);
            self.store.send(id, now, self.bytes(batch.len()));
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
        self.store.end_of(id).unwrap_or(SimTime::ZERO)
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
        self.load.advance(now);
        self.load.send(id, now.max(from), bytes);
        id
    }

    /// Nobody waits for this load any more.
    pub(crate) fn cancel_load(&mut self, id: TransferId) {
        if let Some(transfer) = self.transfers.remove(&id) {
            self.version += 1;
            self.load.remove(id);
            self.loaded_or_not(&transfer.blocks);
        }
    }

    /// Starts what was prepared: the pass is over.
    pub(crate) fn submit_prepared(&mut self, now: SimTime) {
        for id in std::mem::take(&mut self.prepared) {
            let bytes = self.bytes(self.transfers[&id].blocks.len());
            self.store.advance(now);
            self.store.send(id, now, bytes);
        }
    }

    /// Ends what is done by `now`; returns whether anything is.
    pub(crate) fn settle(&mut self, now: SimTime) -> bool {
        if self.writes_through() && !self.levels.is_empty() {
            return self.settle_by_tier(now);
        }
        let mut any = false;
        while let Some((at, _, id)) = self.next().filter(|&(at, ..)| at <= now) {
            self.end(id, at);
            any = true;
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

    /// When the next transfer is over.
    pub(crate) fn next_end(&self) -> Option<SimTime> {
        self.next().map(|(at, ..)| at)
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

    /// Sends for all blocks of `prompt` that only a level below the host has, block by block, up to the first that is
    /// nowhere or that the host has no room for. `None`: there is nothing to wait for; else whether something was sent for.
    fn promote(&mut self, reader: u32, prompt: &[BlockIdentity], now: SimTime) -> Option<bool> {
        if self.levels.is_empty() {
            return None;
        }
        if now > self.attempted_at {
            self.attempted_at = now;
            self.attempted.clear();
        }
        let keys = hashes(prompt);
        let mut coming = false;
        let mut wanted: Vec<Vec<BlockIdentity>> = vec![Vec::new(); self.levels.len()];
        for identity in prompt {
            let hash = identity.block.block_hash;
            match self.host.presence(hash) {
                Presence::Here => continue,
                Presence::Coming => {
                    coming = true;
                    continue;
                }
                Presence::Missing => {}
            }
            let below = |presence| {
                self.levels
                    .iter()
                    .position(|level| level.store.presence(hash) == presence)
            };
            let Some(index) = below(Presence::Here) else {
                if below(Presence::Coming).is_none() {
                    break;
                }
                coming = true;
                continue;
            };
            self.levels[index].store.touch(hash);
            // What takes no time may be evicted by the next look at the same instant.
            if self.attempted.contains(&(reader, hash)) && !self.could_hold(&keys) {
                break;
            }
            let Some(gone) = self.host.expect(&[*identity], &[hash]) else {
                break;
            };
            self.tell_removed(LowerTier::Host, gone);
            wanted[index].push(*identity);
        }
        let mut any = false;
        for (index, blocks) in wanted.into_iter().enumerate() {
            let read = hashes(&blocks);
            any |= self.send_up(index, blocks, now);
            self.attempted.extend(read.into_iter().map(|hash| (reader, hash)));
        }
        (any || coming).then_some(any)
    }

    /// Copies blocks from a level into the host, which expects them; `false`: there are none.
    fn send_up(&mut self, index: usize, blocks: Vec<BlockIdentity>, now: SimTime) -> bool {
        if blocks.is_empty() {
            return false;
        }
        self.version += 1;
        let bytes = self.bytes(blocks.len());
        let read = hashes(&blocks);
        let id = self.open(Way::Stage(index), blocks, 0);
        let level = &mut self.levels[index];
        level.store.read(&read);
        level.read.advance(now);
        level.read.send(id, now, bytes);
        true
    }

    /// Whether the host could hold the start of a prompt that it or a level below has.
    fn could_hold(&self, keys: &[SequenceHash]) -> bool {
        let missing = |hash: &SequenceHash| self.host.presence(*hash) == Presence::Missing;
        let below = |hash: SequenceHash| {
            let mut levels = self.levels.iter();
            levels.any(|level| level.store.presence(hash) != Presence::Missing)
        };
        let start = keys.iter().copied().take_while(|hash| !missing(hash) || below(*hash));
        let start: Vec<SequenceHash> = start.collect();
        start.iter().filter(|hash| missing(hash)).count() <= self.host.room(&start)
    }

    /// Sends for blocks of `prompt` that only a level below the host has, up to the first that nobody has or the host has no
    /// room for. Returns whether any were sent for.
    fn stage(&mut self, prompt: &[BlockIdentity], now: SimTime) -> bool {
        if self.levels.is_empty() {
            return false;
        }
        let hashes = hashes(prompt);
        let mut room = self.host.room(&hashes);
        let mut wanted: Vec<Vec<BlockIdentity>> = vec![Vec::new(); self.levels.len()];
        for &hash in &hashes {
            if self.host.presence(hash) != Presence::Missing {
                continue;
            }
            let found = self
                .levels
                .iter()
                .enumerate()
                .find_map(|(index, level)| Some((index, level.store.get(hash)?)));
            let Some((index, identity)) = found.filter(|_| room > 0) else {
                break;
            };
            room -= 1;
            wanted[index].push(identity);
        }
        let mut any = false;
        for (index, blocks) in wanted.into_iter().enumerate() {
            if blocks.is_empty() {
                continue;
            }
            let Some(gone) = self.host.expect(&blocks, &hashes) else {
                continue;
            };
            self.tell_removed(LowerTier::Host, gone);
            any |= self.send_up(index, blocks, now);
        }
        any
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

    /// What is done first.
    fn next(&self) -> Option<(SimTime, Way, TransferId)> {
        self.next_of_host().into_iter().chain(self.next_of_levels()).min()
    }

    /// What is done first below the host.
    fn next_of_levels(&self) -> Option<(SimTime, Way, TransferId)> {
        let on = |link: &Link, way: Way| link.next().map(|(at, id)| (at, way, id));
        let levels = self.levels.iter().enumerate();
        let ways =
            levels.flat_map(|(index, level)| [on(&level.write, Way::Sink(index)), on(&level.read, Way::Stage(index))]);
        ways.flatten().min()
    }

    /// What is done first between GPU and host.
    fn next_of_host(&self) -> Option<(SimTime, Way, TransferId)> {
        let on = |link: &Link, way: Way| link.next().map(|(at, id)| (at, way, id));
        let host = [on(&self.store, Way::Store), on(&self.load, Way::Load)];
        host.into_iter().flatten().min()
    }

    /// Takes a transfer that is done off its link.
    fn take(&mut self, id: TransferId, at: SimTime) -> Option<Transfer> {
        let transfer = self.transfers.remove(&id)?;
        self.version += 1;
        let link = match transfer.way {
            Way::Store => &mut self.store,
            Way::Load => &mut self.load,
            Way::Sink(index) => &mut self.levels[index].write,
            Way::Stage(index) => &mut self.levels[index].read,
        };
        link.advance(at);
        link.remove(id);
        Some(transfer)
    }

    fn end(&mut self, id: TransferId, at: SimTime) {
        let Some(Transfer { way, blocks, reader }) = self.take(id, at) else {
            return;
        };
        match way {
            Way::Store => {
                self.host.arrive(&blocks);
                self.tell_stored(LowerTier::Host, &blocks);
                self.stored.push(id);
                self.sink(&blocks, at);
            }
            Way::Load => {
                self.loaded_or_not(&blocks);
                self.loaded.push(reader);
            }
            Way::Sink(index) => {
                self.host.done(&hashes(&blocks));
                self.levels[index].store.arrive(&blocks);
                self.tell_stored(self.levels[index].tier, &blocks);
            }
            Way::Stage(index) => {
                self.levels[index].store.done(&hashes(&blocks));
                self.host.arrive(&blocks);
                self.tell_stored(LowerTier::Host, &blocks);
            }
        }
    }

    /// Dynamo 1.6.1 looks at the ends of passes only. What has come to the host by then goes on to the levels from then on,
    /// which see their own transfers end before; the host sees the end of those last.
    fn settle_by_tier(&mut self, now: SimTime) -> bool {
        let mut any = false;
        let mut landed: Vec<Vec<BlockIdentity>> = Vec::new();
        while let Some((at, _, id)) = self.next_of_host().filter(|&(at, ..)| at <= now) {
            let Some(transfer) = self.take(id, at) else { break };
            any = true;
            if transfer.way == Way::Load {
                self.loaded_or_not(&transfer.blocks);
                self.loaded.push(transfer.reader);
            } else {
                self.host.land(&transfer.blocks);
                self.tell_stored(LowerTier::Host, &transfer.blocks);
                self.stored.push(id);
                landed.push(transfer.blocks);
            }
        }
        let mut ended = Vec::new();
        for blocks in landed {
            self.settle_levels(now, &mut ended);
            self.sink(&blocks, now);
            self.host.done(&hashes(&blocks));
        }
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

    /// Ends transfers below the host, as far as the levels are concerned.
    fn settle_levels(&mut self, now: SimTime, ended: &mut Vec<Transfer>) {
        while let Some((at, way, id)) = self.next_of_levels().filter(|&(at, ..)| at <= now) {
            let Some(transfer) = self.take(id, at) else { break };
            match way {
                Way::Sink(index) => {
                    self.levels[index].store.arrive(&transfer.blocks);
                    self.tell_stored(self.levels[index].tier, &transfer.blocks);
                }
                Way::Stage(index) => self.levels[index].store.done(&hashes(&transfer.blocks)),
                Way::Store | Way::Load => {}
            }
            ended.push(transfer);
        }
    }

    /// A load of these blocks is over.
    fn loaded_or_not(&mut self, blocks: &[BlockIdentity]) {
        let hashes = hashes(blocks);
        for hash in &hashes {
            self.loading.remove(hash);
        }
        self.host.done(&hashes);
    }

    /// What has arrived in the host goes on to every level that lacks it and has room.
    fn sink(&mut self, blocks: &[BlockIdentity], at: SimTime) {
        // What a level has of them stays there.
        let kept = if self.writes_through() {
            hashes(blocks)
        } else {
            Vec::new()
        };
        for index in 0..self.levels.len() {
            let level = &mut self.levels[index];
            let mut blocks: Vec<BlockIdentity> = blocks.to_vec();
            blocks.retain(|identity| level.store.presence(identity.block.block_hash) == Presence::Missing);
            blocks.truncate(level.store.room(&kept));
            let gone = level.store.expect(&blocks, &kept).filter(|_| !blocks.is_empty());
            let Some(gone) = gone else { continue };
            let bytes = self.bytes(blocks.len());
            self.host.read(&hashes(&blocks));
            let id = self.open(Way::Sink(index), blocks, 0);
            let level = &mut self.levels[index];
            level.write.advance(at);
            level.write.send(id, at, bytes);
            self.tell_removed(self.levels[index].tier, gone);
        }
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
