//! One lower tier: blocks by hash, the least recently used leaves first.

use std::collections::BTreeSet;

use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;

use super::super::logical::BlockIdentity;
use crate::types::SequenceHash;

/// Whether a tier has a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    Missing,
    /// On its way in.
    Coming,
    Here,
}

#[derive(Debug)]
struct Entry {
    identity: BlockIdentity,
    here: bool,
    /// Transfers that read it.
    readers: u32,
    /// Time of its last use while it may be evicted; 0: it may not.
    used: u64,
}

/// A tier of a fixed number of blocks. O(log n) per block that comes, goes or is used.
///
/// What becomes evictable by one event has one age; the hash decides between such blocks. Source: Dynamo 1.6.1 engine
/// core (host tier).
#[derive(Debug)]
pub(super) struct Store {
    capacity: usize,
    entries: HashMap<SequenceHash, Entry, FxBuildHasher>,
    /// What may be evicted, the oldest first.
    by_age: BTreeSet<(u64, SequenceHash)>,
    clock: u64,
}

impl Store {
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            capacity: capacity as usize,
            entries: HashMap::default(),
            by_age: BTreeSet::new(),
            clock: 0,
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn presence(&self, hash: SequenceHash) -> Presence {
        match self.entries.get(&hash) {
            None => Presence::Missing,
            Some(entry) if entry.here => Presence::Here,
            Some(_) => Presence::Coming,
        }
    }

    /// A block that is here.
    pub(super) fn get(&self, hash: SequenceHash) -> Option<BlockIdentity> {
        self.entries
            .get(&hash)
            .filter(|entry| entry.here)
            .map(|entry| entry.identity)
    }

    /// Blocks that could be taken in if none of `kept` may go for them.
    pub(super) fn room(&self, kept: &[SequenceHash]) -> usize {
        let may_go = |hash: &&SequenceHash| self.entries.get(*hash).is_some_and(|entry| entry.used > 0);
        let stays = kept.iter().filter(may_go).count();
        self.capacity - self.entries.len() + self.by_age.len() - stays
    }

    /// Makes room for `missing`, which are on their way in from now on, without touching any of `kept`. Returns what had to
    /// go, the oldest first; `None`, and nothing changed, if there is not enough room.
    pub(super) fn expect(&mut self, missing: &[BlockIdentity], kept: &[SequenceHash]) -> Option<Vec<SequenceHash>> {
        let free = self.capacity - self.entries.len();
        let too_many = missing.len().saturating_sub(free);
        let kept: HashSet<SequenceHash, FxBuildHasher> = if too_many > 0 {
            kept.iter().copied().collect()
        } else {
            HashSet::default()
        };
        let may_go = self.by_age.iter().filter(|(_, hash)| !kept.contains(hash));
        let victims: Vec<(u64, SequenceHash)> = may_go.take(too_many).copied().collect();
        if free + victims.len() < missing.len() {
            return None;
        }
        for victim in &victims {
            self.by_age.remove(victim);
            self.entries.remove(&victim.1);
        }
        for &identity in missing {
            let entry = Entry {
                identity,
                here: false,
                readers: 0,
                used: 0,
            };
            self.entries.insert(identity.block.block_hash, entry);
        }
        Some(victims.into_iter().map(|(_, hash)| hash).collect())
    }

    /// Expected blocks are here.
    pub(super) fn arrive(&mut self, blocks: &[BlockIdentity]) {
        self.clock += 1;
        for identity in blocks {
            let hash = identity.block.block_hash;
            if let Some(entry) = self.entries.get_mut(&hash) {
                entry.here = true;
                entry.used = self.clock;
                self.by_age.insert((self.clock, hash));
            }
        }
    }

    /// Expected blocks are here, and somebody reads them at once.
    pub(super) fn land(&mut self, blocks: &[BlockIdentity]) {
        for identity in blocks {
            if let Some(entry) = self.entries.get_mut(&identity.block.block_hash) {
                entry.here = true;
                entry.readers += 1;
            }
        }
    }

    /// A transfer reads these blocks, which are here: they stay until it is over.
    pub(super) fn read(&mut self, hashes: &[SequenceHash]) {
        for &hash in hashes {
            if let Some(entry) = self.entries.get_mut(&hash) {
                entry.readers += 1;
                if entry.used > 0 {
                    self.by_age.remove(&(std::mem::take(&mut entry.used), hash));
                }
            }
        }
    }

    /// A transfer that read these blocks is over.
    pub(super) fn done(&mut self, hashes: &[SequenceHash]) {
        self.clock += 1;
        for &hash in hashes {
            if let Some(entry) = self.entries.get_mut(&hash) {
                entry.readers -= 1;
                if entry.readers == 0 && entry.here {
                    entry.used = self.clock;
                    self.by_age.insert((self.clock, hash));
                }
            }
        }
    }

    /// Blocks that were expected do not come.
    pub(super) fn forget(&mut self, hashes: &[SequenceHash]) {
        for hash in hashes {
            if self.entries.get(hash).is_some_and(|entry| !entry.here) {
                self.entries.remove(hash);
            }
        }
    }

    /// Blocks that are here, and those that are on their way in. O(blocks).
    pub(super) fn occupancy(&self) -> (usize, usize) {
        let here = self.entries.values().filter(|entry| entry.here).count();
        (here, self.entries.len() - here)
    }

    /// The block is used now, if it is one that may be evicted.
    pub(super) fn touch(&mut self, hash: SequenceHash) {
        if let Some(entry) = self.entries.get_mut(&hash)
            && entry.used > 0
        {
            self.clock += 1;
            self.by_age.remove(&(entry.used, hash));
            entry.used = self.clock;
            self.by_age.insert((self.clock, hash));
        }
    }

    /// What is here, in no particular order.
    pub(super) fn contents(&self) -> impl Iterator<Item = BlockIdentity> {
        self.entries
            .values()
            .filter(|entry| entry.here)
            .map(|entry| entry.identity)
    }

    /// Drops what no transfer is about; returns it, the oldest first.
    pub(super) fn clear(&mut self) -> Vec<SequenceHash> {
        let gone = std::mem::take(&mut self.by_age);
        for (_, hash) in &gone {
            self.entries.remove(hash);
        }
        gone.into_iter().map(|(_, hash)| hash).collect()
    }
}
