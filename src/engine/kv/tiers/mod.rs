//! KV memory below the GPU's: host (G2), disk (G3) and object storage (G4).
//!
//! Blocks come to the host from the GPU: those of a prompt when a pass has computed them ([`Writes::Through`]), or any when
//! the GPU's cache evicts them ([`Writes::OnEviction`]). What has arrived in the host goes on to every tier below it. A
//! request whose prompt goes on in the host behind what the GPU has is parked while the blocks are copied into GPU memory
//! that was set aside for them, and runs with a longer cached prefix then. Blocks that only a tier below the host has are
//! brought into the host first.
//!
//! GPU memory that is read by a transfer can be given away at once, but nobody computes in it before the transfer is
//! done: the pass that writes to it starts later ([`Tiers::ready_at`]).
//!
//! [`Tiers`] is what one rank sees. The host and the disk are its own, or pools that many ranks use ([`SharedMemory`]).
//! When a transfer of a shared host ends depends on what others do meanwhile; the GPU memory that it reads is therefore not
//! given away before it is done.
//!
//! | Operation | Cost |
//! |---|---|
//! | offer, look up, touch a block | O(log blocks of the tier) |
//! | start or end of a transfer | O(log) per block of it and rank that is told, O(transfers on the link) |
//! | next instant at which something ends | O(transfers on their way) |
//!
//! Sources: Dynamo 1.6.1 engine core (`native_host_offload`, `g3_offload`), Dynamo 1.4.2 (tiers, directions, batches,
//! links that are shared).

mod below;
mod host;
mod levels;
mod link;
mod news;
mod sharing;
mod store;

use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;

use super::super::config::{ConfigError, TierConfig, Writes};
use super::super::tier_use::DiskUse;
use super::logical::BlockIdentity;
use crate::types::{LowerTier, SequenceHash, SimTime, StoredBlock, TierEvent};
use host::{Done, Host};
use levels::Level;
pub(crate) use link::TransferId;
use link::{ClientId, Lanes, Link, Shared, Speed};
pub use sharing::SharedMemory;
use sharing::{Held, Terms};
use store::Presence;

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

/// The lower tiers of one rank.
#[derive(Debug)]
pub(crate) struct Tiers {
    writes: Writes,
    host: Held<Host>,
    levels: Vec<Held<Level>>,
    /// Who the rank is in each of them.
    client: ClientId,
    /// Blocks of the host that are being copied to this rank's GPU.
    loading: HashSet<SequenceHash, FxBuildHasher>,
    /// Stores of evicted blocks since the last pass; nobody computes in their place before they are done.
    evicted: Vec<TransferId>,
    /// No pass computes before this.
    ready_at: SimTime,
    /// Stores that are done, and requests whose load is.
    stored: Vec<TransferId>,
    loaded: Vec<u32>,
    /// Blocks that requests have sent for at this instant.
    attempted_at: SimTime,
    attempted: HashSet<(u32, SequenceHash), FxBuildHasher>,
}

impl Tiers {
    /// `instant`: no transfer takes time. What is shared is in `memory`.
    ///
    /// # Errors
    /// Others share the memory on other terms.
    pub(crate) fn new(
        config: &TierConfig,
        block_size: u32,
        instant: bool,
        memory: &SharedMemory,
    ) -> Result<Self, ConfigError> {
        let speed = |down, up, latency_ms| {
            if instant {
                Speed::INSTANT
            } else {
                Speed { down, up, latency_ms }
            }
        };
        let gb_s = &config.bandwidth;
        let block_bytes = u64::from(block_size) * config.bytes_per_token;
        let client = memory.client();
        let mut levels = Vec::new();
        if config.disk_blocks > 0 {
            let level = |cap, changes| Level::new(LowerTier::Disk, config.disk_blocks, block_bytes, cap, changes);
            let mut disk = match config.disk_shared {
                None => Held::Own(Box::new(level(Speed::INSTANT, None))),
                Some(shared) => {
                    let cap = speed(shared.down, shared.up, 0.0);
                    let terms = Terms::of_disk(shared, config, block_size);
                    memory.join_disk(terms, |changes| level(cap, Some(changes)))?
                }
            };
            let own = speed(gb_s.g2_to_g3, gb_s.g3_to_g2, config.disk_latency_ms);
            disk.get().admit(client, own);
            levels.push(disk);
        }
        if config.storage {
            let mut storage = Level::new(LowerTier::Storage, STORAGE_BLOCKS, block_bytes, Speed::INSTANT, None);
            storage.admit(client, speed(gb_s.g2_to_g4, gb_s.g4_to_g2, config.disk_latency_ms));
            levels.push(Held::Own(Box::new(storage)));
        }
        let host = |link, changes| Host::new(config.host_blocks, block_bytes, link, changes);
        let mut host = match config.host_shared {
            Some(shared) => {
                let cap = speed(shared.down, shared.up, 0.0);
                let terms = Terms::of_host(shared, config, block_size);
                memory.join_host(terms, |changes| host(Link::Shared(Shared::new(cap)), Some(changes)))?
            }
            None => Held::Own(Box::new(host(
                match config.writes {
                    Writes::Through => Link::InTurn(Lanes::default()),
                    Writes::OnEviction { .. } => Link::Shared(Shared::new(Speed::INSTANT)),
                },
                None,
            ))),
        };
        let pins = config.writes == Writes::Through && !levels.is_empty();
        let own = speed(gb_s.g1_to_g2, gb_s.g2_to_g1, config.host_latency_ms);
        host.get().admit(client, own, pins);
        Ok(Self {
            writes: config.writes,
            host,
            levels,
            client,
            loading: HashSet::default(),
            evicted: Vec::new(),
            ready_at: SimTime::ZERO,
            stored: Vec::new(),
            loaded: Vec::new(),
            attempted_at: SimTime::ZERO,
            attempted: HashSet::default(),
        })
    }

    /// Whether other ranks use some of it, too: then what happens at the end of a pass has to wait for that end.
    pub(crate) fn is_shared(&self) -> bool {
        self.host.is_shared() || self.levels.iter().any(Held::is_shared)
    }

    /// Whether other ranks may still do something that lets this one go on, although no transfer is on its way.
    pub(crate) fn may_go_on(&self) -> bool {
        self.host.is_shared() && self.host.look(Host::is_in_use)
    }

    /// The rank starts a pass, or finds nothing to do.
    pub(crate) fn note_pass(&mut self, runs: bool) {
        if self.host.is_shared() {
            self.host.get().note_pass(self.client, runs);
        }
    }

    /// Whether GPU memory stays in use until what is written from it is in the host.
    pub(crate) fn holds_sources(&self) -> bool {
        self.host.is_shared()
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
        let levels = self.levels.iter().map(|level| level.look(Level::version));
        self.host.look(Host::version) + levels.sum::<u64>()
    }

    /// Whether the host lacks the block, and does not expect it either.
    pub(crate) fn lacks(&self, hash: SequenceHash) -> bool {
        self.host.look(|host| host.presence(hash)) == Presence::Missing
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
        let host = self.host.get();
        for identity in prompt {
            let hash = identity.block.block_hash;
            match host.presence(hash) {
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

    /// A request has sent for blocks from below the host so many times since it or its rank got somewhere.
    pub(crate) fn note_round(&mut self, rounds: u32) {
        if rounds == MOST_ROUNDS
            && let Some(level) = self.levels.first_mut()
        {
            level.get().count_bypass();
        }
    }

    /// Blocks are used now, the last one first.
    pub(crate) fn touch(&mut self, prompt: impl DoubleEndedIterator<Item = SequenceHash>) {
        let mut host = self.host.get();
        for hash in prompt.rev() {
            host.touch(hash);
        }
    }

    /// Blocks that a pass computed are written to the host when it is over: those of `cohort` that the host lacks, all of
    /// them or, if there is no room, none. The host has none of `missing`.
    pub(crate) fn prepare(
        &mut self,
        missing: Vec<BlockIdentity>,
        cohort: &[SequenceHash],
        now: SimTime,
    ) -> Option<TransferId> {
        self.host.get().prepare(self.client, missing, cohort, now)
    }

    /// The GPU's cache lost these blocks at `now`: as many as the host has room for are written to it.
    pub(crate) fn evicted(&mut self, mut blocks: Vec<BlockIdentity>, now: SimTime) {
        let Writes::OnEviction { batch_blocks } = self.writes else {
            return;
        };
        let mut host = self.host.get();
        let mut seen = HashSet::<SequenceHash, FxBuildHasher>::default();
        blocks.retain(|identity| {
            let hash = identity.block.block_hash;
            host.presence(hash) == Presence::Missing && seen.insert(hash)
        });
        blocks.truncate(host.room(&[]));
        for batch in blocks.chunks(batch_blocks as usize) {
            let Some(id) = host.store(self.client, batch, now) else {
                break;
            };
            self.evicted.push(id);
        }
    }

    /// Whether a store is under way or prepared.
    pub(crate) fn has(&self, id: TransferId) -> bool {
        self.host.look(|host| host.has(id))
    }

    /// No pass computes before these stores are done, as far as they have started.
    pub(crate) fn wait_for(&mut self, id: TransferId) {
        self.ready_at = self.ready_at.max(self.end_of_store(id));
    }

    /// When a store is done; zero if it is already or has not started, or if nobody has to wait for it.
    pub(crate) fn end_of_store(&self, id: TransferId) -> SimTime {
        self.host.look(|host| host.end_of(id)).unwrap_or(SimTime::ZERO)
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
            self.host.get().pin(&hashes(blocks));
        }
    }

    /// Ends [`Self::hold`].
    pub(crate) fn let_go(&mut self, blocks: &[BlockIdentity]) {
        if !self.writes_through() {
            self.host.get().unpin(&hashes(blocks));
        }
    }

    /// Copies these blocks to the GPU for `reader`, into memory that is free from `from` on. `None`: the host does not have
    /// all of them any more, because of other ranks.
    pub(crate) fn load(
        &mut self,
        reader: u32,
        blocks: Vec<BlockIdentity>,
        now: SimTime,
        from: SimTime,
    ) -> Option<TransferId> {
        let keys = hashes(&blocks);
        let id = self.host.get().load(self.client, reader, blocks, now, from)?;
        self.loading.extend(keys);
        Some(id)
    }

    /// Nobody waits for this load any more.
    pub(crate) fn cancel_load(&mut self, id: TransferId, now: SimTime) {
        let blocks = self.host.get().cancel_load(self.client, id, now);
        for hash in hashes(&blocks) {
            self.loading.remove(&hash);
        }
    }

    /// Starts what was prepared: the pass is over.
    pub(crate) fn submit_prepared(&mut self, now: SimTime) {
        self.host.get().submit(self.client, now);
    }

    /// Ends what is done by `now`; returns whether anything is.
    pub(crate) fn settle(&mut self, now: SimTime) -> bool {
        if self.writes_through() {
            return self.settle_at(now);
        }
        // Each transfer finds what those before it have left.
        let mut any = false;
        while let Some(at) = self.next_end().filter(|&at| at <= now) {
            any |= self.settle_at(at);
        }
        any
    }

    /// Dynamo 1.6.1 looks at the ends of passes only. What has come to the host by then goes on to the levels from then on,
    /// which see their own transfers end before; the host sees the end of those last.
    fn settle_at(&mut self, now: SimTime) -> bool {
        let (done, mut any) = self.host.get().look(self.client, now);
        for done in done {
            match done {
                Done::Loaded(_, reader, blocks) => {
                    for hash in hashes(&blocks) {
                        self.loading.remove(&hash);
                    }
                    self.loaded.push(reader);
                }
                Done::Stored(id, blocks) => {
                    self.stored.push(id);
                    self.sink(&blocks, now);
                }
            }
        }
        any |= self.settle_levels(now);
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

    /// What a disk of its own has done.
    pub(crate) fn own_disk(&self) -> Option<DiskUse> {
        let disk = self.levels.iter().find_map(|level| match level {
            Held::Own(level) if level.tier == LowerTier::Disk => Some(level),
            Held::Own(_) | Held::Shared(_) => None,
        });
        disk.filter(|_| self.writes_through()).map(|disk| disk.used())
    }

    /// Whether a transfer of this rank is on its way, or over without its having looked.
    pub(crate) fn is_moving(&self) -> bool {
        let client = self.client;
        self.host.look(|host| host.is_moving(client))
            || self
                .levels
                .iter()
                .any(|level| level.look(|level| level.is_moving(client)))
    }

    /// When there is something to do or to tell.
    pub(crate) fn wakes_at(&self) -> Option<SimTime> {
        let client = self.client;
        let told = self.host.look(|host| host.audience.waits_for(client))
            || self
                .levels
                .iter()
                .any(|level| level.look(|level| level.audience.waits_for(client)));
        if told { Some(SimTime::ZERO) } else { self.next_end() }
    }

    /// When something happens to a transfer next.
    pub(crate) fn next_end(&self) -> Option<SimTime> {
        let client = self.client;
        let levels = self
            .levels
            .iter()
            .filter_map(|level| level.look(|level| level.next(client)));
        let host = self.host.look(|host| host.next(client));
        host.into_iter().chain(levels).min()
    }

    /// Nobody asks what has changed.
    pub(crate) fn mute(&mut self) {
        self.host.get().audience.dismiss(self.client);
        for level in &mut self.levels {
            level.get().audience.dismiss(self.client);
        }
    }

    /// Moves what has changed to the end of `events`.
    pub(crate) fn take_events(&mut self, events: &mut Vec<TierEvent>) {
        self.host.get().audience.take(self.client, events);
        for level in &mut self.levels {
            level.get().audience.take(self.client, events);
        }
    }

    /// What can be read where, with the parent of each block.
    pub(crate) fn contents(&self) -> Vec<(LowerTier, Option<SequenceHash>, StoredBlock)> {
        let told = |tier: LowerTier, identity: BlockIdentity| (tier, identity.parent, identity.block);
        let mut all: Vec<_> = self.host.look(|host| {
            host.contents()
                .map(|identity| told(LowerTier::Host, identity))
                .collect()
        });
        for level in &self.levels {
            level.look(|level| all.extend(level.contents().map(|identity| told(level.tier, identity))));
        }
        all
    }

    /// Drops everything of the rank's own that no transfer is about.
    pub(crate) fn clear(&mut self) {
        if let Held::Own(host) = &mut self.host {
            host.clear();
        }
        for level in &mut self.levels {
            if let Held::Own(level) = level {
                level.clear();
            }
        }
    }
}

impl Drop for Tiers {
    /// What others share must not wait for a rank that is gone.
    fn drop(&mut self) {
        if !self.is_shared() {
            return;
        }
        let mut host = self.host.get();
        for level in &mut self.levels {
            for transfer in level.get().retire(self.client) {
                match transfer.direction {
                    link::Direction::Up => host.forget(self.client, &transfer.blocks),
                    link::Direction::Down => host.unpin(&hashes(&transfer.blocks)),
                }
            }
        }
        host.retire(self.client);
    }
}

fn hashes(blocks: &[BlockIdentity]) -> Vec<SequenceHash> {
    blocks.iter().map(|identity| identity.block.block_hash).collect()
}

fn bytes_of(block_bytes: u64, blocks: usize) -> u64 {
    block_bytes.saturating_mul(blocks as u64)
}

#[cfg(test)]
mod tests;
