//! One lower tier: blocks by hash, the least recently used leaves first.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::super::logical::BlockIdentity;
use crate::types::{SequenceHash, SimTime};

/// A block and the age of its last use.
#[derive(Debug)]
struct Entry {
    identity: BlockIdentity,
    used: u64,
}

/// A tier of a fixed number of blocks. A new block takes the place of the least recently used one when its transfer is
/// done. O(log n) per operation.
#[derive(Debug)]
pub(super) struct Store {
    capacity: usize,
    entries: HashMap<SequenceHash, Entry, FxBuildHasher>,
    by_age: BTreeMap<u64, SequenceHash>,
    /// Transfers on their way in, by end and order.
    arriving: BTreeMap<(SimTime, u64), Vec<BlockIdentity>>,
    /// Blocks of these transfers.
    expected: HashMap<SequenceHash, (), FxBuildHasher>,
    clock: u64,
}

impl Store {
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            capacity: capacity as usize,
            entries: HashMap::default(),
            by_age: BTreeMap::new(),
            arriving: BTreeMap::new(),
            expected: HashMap::default(),
            clock: 0,
        }
    }

    /// Whether the block can be read.
    pub(super) fn holds(&self, hash: SequenceHash) -> bool {
        self.entries.contains_key(&hash)
    }

    /// Whether the block is there or on its way.
    pub(super) fn knows(&self, hash: SequenceHash) -> bool {
        self.holds(hash) || self.expected.contains_key(&hash)
    }

    /// Blocks are on their way and will be there at `at`.
    pub(super) fn expect(&mut self, at: SimTime, blocks: Vec<BlockIdentity>) {
        for identity in &blocks {
            self.expected.insert(identity.block.block_hash, ());
        }
        self.clock += 1;
        self.arriving.insert((at, self.clock), blocks);
    }

    /// When the next transfer is done.
    pub(super) fn next_arrival(&self) -> Option<SimTime> {
        self.arriving.first_key_value().map(|(&(at, _), _)| at)
    }

    /// Takes in one transfer that is done by `now`; returns when it was, and its blocks. What had to go for them is added
    /// to `gone`. `None`: there is none.
    pub(super) fn arrive(
        &mut self,
        now: SimTime,
        gone: &mut Vec<BlockIdentity>,
    ) -> Option<(SimTime, Vec<BlockIdentity>)> {
        let (&(at, number), _) = self.arriving.first_key_value()?;
        if at > now {
            return None;
        }
        let mut blocks = self.arriving.remove(&(at, number))?;
        blocks.retain(|identity| self.expected.remove(&identity.block.block_hash).is_some());
        // What does not fit beside the rest of its own transfer never arrives: the heads of chains matter more.
        blocks.truncate(self.capacity);
        let room = self.capacity - blocks.len();
        while self.entries.len() > room
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            gone.extend(self.entries.remove(&oldest).map(|entry| entry.identity));
        }
        // Used last to first, so that tails go before the heads they hang on.
        for identity in blocks.iter().rev() {
            self.clock += 1;
            self.by_age.insert(self.clock, identity.block.block_hash);
            let entry = Entry {
                identity: *identity,
                used: self.clock,
            };
            self.entries.insert(identity.block.block_hash, entry);
        }
        Some((at, blocks))
    }

    /// The block is used now.
    pub(super) fn touch(&mut self, hash: SequenceHash) {
        if let Some(entry) = self.entries.get_mut(&hash) {
            self.clock += 1;
            self.by_age.remove(&std::mem::replace(&mut entry.used, self.clock));
            self.by_age.insert(self.clock, hash);
        }
    }

    /// What is there, the oldest first.
    pub(super) fn contents(&self) -> impl Iterator<Item = BlockIdentity> {
        let entries = &self.entries;
        self.by_age
            .values()
            .filter_map(|hash| Some(entries.get(hash)?.identity))
    }

    /// Forgets everything, also what is on its way.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.by_age.clear();
        self.arriving.clear();
        self.expected.clear();
    }
}
