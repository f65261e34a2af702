//! KV memory below the GPU's: host (G2), disk (G3) and object storage (G4).
//!
//! When a pass has computed whole blocks of a prompt, those that the host lacks are written to it, in transfers of a
//! limited number of blocks. A block that leaves host memory goes to disk, what leaves the disk to storage, as far as
//! there are such tiers. A request that is admitted goes on behind its cached prefix with the blocks that any lower tier
//! holds: they are read into the GPU first, through the host, and the pass begins when they are there.
//!
//! Every connection has a bandwidth per direction and serves one transfer after the other. A block can be read, and is
//! told of, from the end of its transfer on. Each rank has tiers of its own.
//!
//! | Operation | Cost |
//! |---|---|
//! | offer, look up, read a block | O(log blocks of the tier) |
//! | end of a transfer | O(log) per block that comes or goes |
//!
//! Sources: Dynamo 1.6.1 engine core (`native_host_offload`: write-through of prompt blocks, recency, tier of events),
//! Dynamo 1.4.2 (tiers, directions, bandwidths).

mod link;
mod store;

use super::super::config::TierConfig;
use super::logical::BlockIdentity;
use crate::types::{KvEvent, LowerTier, SequenceHash, SimTime, StoredBlock, TierEvent};
use link::Link;
use store::Store;

/// Blocks that object storage remembers at most, so that a long run does not fill the memory of this process.
const STORAGE_BLOCKS: u32 = 1 << 20;

/// A tier with its connections to and from the host; the host's lead to and from the GPU.
#[derive(Debug)]
struct Level {
    tier: LowerTier,
    store: Store,
    write: Link,
    read: Link,
}

/// The lower tiers of one rank, host first.
#[derive(Debug)]
pub(crate) struct Tiers {
    block_bytes: u64,
    batch: usize,
    levels: Vec<Level>,
    /// Blocks that the running pass has computed.
    offered: Vec<BlockIdentity>,
    events: Vec<TierEvent>,
}

impl Tiers {
    /// `speedup_ratio` divides the time of transfers; 0: they take none.
    pub(crate) fn new(config: &TierConfig, block_size: u32, speedup_ratio: f64) -> Self {
        let level = |tier, blocks, write: f64, read: f64| Level {
            tier,
            store: Store::new(blocks),
            write: Link::new(write * speedup_ratio),
            read: Link::new(read * speedup_ratio),
        };
        let bandwidth = &config.bandwidth;
        let host = level(
            LowerTier::Host,
            config.host_blocks,
            bandwidth.g1_to_g2,
            bandwidth.g2_to_g1,
        );
        let disk = (config.disk_blocks > 0).then(|| {
            level(
                LowerTier::Disk,
                config.disk_blocks,
                bandwidth.g2_to_g3,
                bandwidth.g3_to_g2,
            )
        });
        let storage = config.storage.then(|| {
            level(
                LowerTier::Storage,
                STORAGE_BLOCKS,
                bandwidth.g2_to_g4,
                bandwidth.g4_to_g2,
            )
        });
        Self {
            block_bytes: u64::from(block_size) * config.bytes_per_token,
            batch: config.batch_blocks as usize,
            levels: std::iter::once(host).chain(disk).chain(storage).collect(),
            offered: Vec::new(),
            events: Vec::new(),
        }
    }

    /// A block of a prompt is computed by the running pass.
    pub(crate) fn offer(&mut self, identity: BlockIdentity) {
        if !self.levels[0].store.knows(identity.block.block_hash) {
            self.offered.push(identity);
        }
    }

    /// Writes what the pass that ends at `end` has computed to the host.
    pub(crate) fn write_offered(&mut self, end: SimTime) {
        let mut offered = std::mem::take(&mut self.offered);
        let host = &mut self.levels[0];
        let mut seen = hashbrown::HashSet::<SequenceHash, rustc_hash::FxBuildHasher>::default();
        offered.retain(|identity| seen.insert(identity.block.block_hash));
        for blocks in offered.chunks(self.batch) {
            let bytes = blocks.len() as u64 * self.block_bytes;
            host.store.expect(host.write.send(end, bytes), blocks.to_vec());
        }
        offered.clear();
        self.offered = offered;
    }

    /// Ends the transfers that are done by `now`.
    pub(crate) fn settle(&mut self, now: SimTime) {
        let mut gone = Vec::new();
        for index in 0..self.levels.len() {
            while let Some((at, blocks)) = self.levels[index].store.arrive(now, &mut gone) {
                let tier = self.levels[index].tier;
                self.tell_removed(tier, &gone);
                self.tell_stored(tier, &blocks);
                self.sink(index + 1, at, &mut gone);
            }
        }
    }

    /// What left a tier goes to the one at `index`, if there is such a tier and it lacks them.
    fn sink(&mut self, index: usize, at: SimTime, gone: &mut Vec<BlockIdentity>) {
        if let Some(level) = self.levels.get_mut(index) {
            gone.retain(|identity| !level.store.knows(identity.block.block_hash));
            if !gone.is_empty() {
                let bytes = gone.len() as u64 * self.block_bytes;
                level.store.expect(level.write.send(at, bytes), std::mem::take(gone));
            }
        }
        gone.clear();
    }

    /// Whether some tier can be read for this block.
    pub(crate) fn holds(&self, hash: SequenceHash) -> bool {
        self.levels.iter().any(|level| level.store.holds(hash))
    }

    /// Reads these blocks, which some tier holds, into the GPU from `now` on; returns when the last one is there. Those
    /// from below the host are in the host then, too.
    pub(crate) fn read(&mut self, blocks: &[BlockIdentity], now: SimTime) -> SimTime {
        let mut in_host = now;
        let mut staged = Vec::new();
        for identity in blocks {
            let hash = identity.block.block_hash;
            let holder = self.levels.iter_mut().position(|level| level.store.holds(hash));
            let Some(level) = holder.and_then(|holder| self.levels.get_mut(holder).filter(|_| holder > 0)) else {
                continue;
            };
            in_host = in_host.max(level.read.send(now, self.block_bytes));
            level.store.touch(hash);
            staged.push(*identity);
        }
        let host = &mut self.levels[0];
        for identity in blocks.iter().rev() {
            host.store.touch(identity.block.block_hash);
        }
        staged.retain(|identity| !host.store.knows(identity.block.block_hash));
        if !staged.is_empty() {
            host.store.expect(in_host, staged);
        }
        host.read.send(in_host, blocks.len() as u64 * self.block_bytes)
    }

    /// When there is something to tell.
    pub(crate) fn news_at(&self) -> Option<SimTime> {
        if self.events.is_empty() {
            self.next_arrival()
        } else {
            Some(SimTime::ZERO)
        }
    }

    /// When the next transfer is done.
    fn next_arrival(&self) -> Option<SimTime> {
        self.levels.iter().filter_map(|level| level.store.next_arrival()).min()
    }

    /// Moves what has changed to the end of `events`.
    pub(crate) fn take_events(&mut self, events: &mut Vec<TierEvent>) {
        events.append(&mut self.events);
    }

    /// What can be read where, with the parent of each block.
    pub(crate) fn contents(&self) -> Vec<(LowerTier, Option<SequenceHash>, StoredBlock)> {
        let of = |level: &Level| {
            let tier = level.tier;
            let blocks = level.store.contents();
            blocks
                .map(|identity| (tier, identity.parent, identity.block))
                .collect::<Vec<_>>()
        };
        self.levels.iter().flat_map(of).collect()
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.offered.clear();
        for index in 0..self.levels.len() {
            let gone: Vec<BlockIdentity> = self.levels[index].store.contents().collect();
            self.tell_removed(self.levels[index].tier, &gone);
            self.levels[index].store.clear();
        }
    }

    fn tell_removed(&mut self, tier: LowerTier, gone: &[BlockIdentity]) {
        if !gone.is_empty() {
            let block_hashes = gone.iter().map(|identity| identity.block.block_hash).collect();
            self.events.push(TierEvent {
                tier,
                event: KvEvent::Removed { block_hashes },
            });
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

#[cfg(test)]
mod tests;
