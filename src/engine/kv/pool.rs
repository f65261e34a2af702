//! The paged pool of vLLM: capacity counts physical blocks, lookups go by hash.
//!
//! A block is *private* (one request's, partial or not yet computed), *referenced* (cached and in use) or *inactive*
//! (cached, in the eviction queue). Equal content may exist in several copies; the oldest copy answers lookups. New blocks
//! come from unused capacity first, then from the front of the eviction queue. A request frees its blocks last to first,
//! so that tails are evicted before the heads they hang on.
//!
//! vLLM keeps one queue of all free blocks, with uncached ones always in front of cached ones; blocks without content
//! cannot be told apart, so a number stands for them here, and an idle pool of any size costs nothing.
//!
//! Every operation is O(1) per block (a further O(copies) when a block with twins is evicted); `cached_blocks` is
//! O(n log n). Source: vLLM 0.32.0, Dynamo 1.6.1 engine core (native G1).

use hashbrown::HashTable;

use super::logical::BlockIdentity;
use super::readers::{Held, Readers};
use super::tiers::TransferId;
use crate::types::{KvEvent, SequenceHash, StoredBlock};

const NONE: u32 = u32::MAX;

/// Handle of one cached block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopyId(pub(super) u32);

/// Blocks of one request: a cached front part and a private rest.
#[derive(Debug, Default)]
pub(crate) struct BlockTable {
    pub(super) cached: Vec<CopyId>,
    pub(super) private: u32,
    /// Position and reader of the private blocks whose memory a transfer still reads.
    readers: Vec<(u32, TransferId)>,
}

impl BlockTable {
    pub(crate) fn len(&self) -> u32 {
        self.cached() + self.private
    }

    /// Length of the cached front part.
    pub(crate) fn cached(&self) -> u32 {
        u32::try_from(self.cached.len()).unwrap_or(u32::MAX)
    }

    /// The cached block at this position.
    pub(crate) fn copy(&self, index: u32) -> Option<CopyId> {
        self.cached.get(index as usize).copied()
    }

    /// Takes the reader of the private block at `position`.
    fn take_reader(&mut self, position: u32) -> Option<TransferId> {
        let index = self.readers.iter().position(|&(at, _)| at == position)?;
        Some(self.readers.swap_remove(index).1)
    }
}

/// Which changes become events when equal blocks exist more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventStyle {
    /// Each copy is stored, and removed in an event of its own (vLLM).
    EachCopy,
    /// Stored with the first copy, removed with the last; one event per allocation (Dynamo's engine core).
    Visibility,
}

/// One cache line each: blocks are visited in no order that memory would know.
#[derive(Debug, Clone)]
#[repr(align(64))]
struct Copy {
    block: StoredBlock,
    parent: Option<SequenceHash>,
    depth: u32,
    refs: u32,
    /// Neighbours in the eviction queue while `refs == 0`.
    older: u32,
    newer: u32,
    /// Next younger copy of the same content.
    twin: u32,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct KvPool {
    capacity: u32,
    style: EventStyle,
    private: u32,
    copies: Vec<Copy>,
    vacant: Vec<u32>,
    /// Oldest copy per hash.
    index: HashTable<u32>,
    oldest: u32,
    newest: u32,
    inactive: u32,
    version: u64,
    /// Transfers out of this pool, once there was one.
    readers: Option<Box<Readers>>,
    /// Blocks by the transfer that reads them, where they stay in use until it is over.
    held: Option<Box<Held>>,
    /// Evicted content, when asked for.
    lost: Option<Vec<BlockIdentity>>,
    /// How often a copy was queued, taken out of the queue or passed by in a search.
    #[cfg(test)]
    touched: u64,
}

impl KvPool {
    pub(crate) fn new(capacity: u32, style: EventStyle) -> Self {
        Self {
            capacity,
            style,
            private: 0,
            copies: Vec::new(),
            vacant: Vec::new(),
            index: HashTable::new(),
            oldest: NONE,
            newest: NONE,
            inactive: 0,
            version: 0,
            readers: None,
            held: None,
            lost: None,
            #[cfg(test)]
            touched: 0,
        }
    }

    /// Keeps what is evicted from now on for [`Self::take_lost`].
    pub(crate) fn keep_lost(&mut self) {
        self.lost = Some(Vec::new());
    }

    /// Takes the content that was evicted, and of which no copy is left, in order.
    pub(crate) fn take_lost(&mut self) -> Vec<BlockIdentity> {
        self.lost.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// From now on blocks that a transfer reads stay in use until it is over, also when nobody else uses them. They still
    /// answer lookups.
    pub(crate) fn hold_read(&mut self) {
        self.held = Some(Box::default());
    }

    /// A transfer begins to read these cached blocks. `false`: another one still reads some of them.
    pub(crate) fn begin_reading(&mut self, id: TransferId, blocks: &[CopyId]) -> bool {
        if let Some(held) = &mut self.held {
            return held.begin(id, blocks);
        }
        let unused = self.unused();
        let readers = self.readers.get_or_insert_with(|| Box::new(Readers::new(unused)));
        let blocks: Vec<u32> = blocks.iter().map(|&CopyId(at)| at).collect();
        readers.begin(id, &blocks)
    }

    /// Whether a transfer reads a cached block.
    pub(crate) fn is_read(&self, CopyId(at): CopyId) -> bool {
        self.is_held(at)
            || self
                .readers
                .as_ref()
                .is_some_and(|readers| readers.of_block(at).is_some())
    }

    /// A transfer is over.
    pub(crate) fn end_reading(&mut self, id: TransferId) {
        // The tail first, so that the head is evicted last.
        for at in self.held.as_mut().map(|held| held.end(id)).into_iter().flatten().rev() {
            if self.copies[at as usize].refs == 0 {
                self.version += 1;
                self.append(at);
            }
        }
        if let Some(readers) = &mut self.readers {
            readers.end(id);
        }
    }

    /// The transfers that still read blocks which were taken since the last call.
    pub(crate) fn take_readers(&mut self) -> Vec<TransferId> {
        self.readers
            .as_mut()
            .map(|readers| readers.take_readers())
            .unwrap_or_default()
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Blocks that requests use.
    pub(crate) fn active(&self) -> u32 {
        self.private + self.existing() - self.inactive
    }

    /// Cached blocks that nobody uses.
    pub(crate) fn inactive(&self) -> u32 {
        self.inactive
    }

    /// Blocks that can be taken, evictions included.
    pub(crate) fn available(&self) -> u32 {
        self.capacity - self.active()
    }

    /// Changes whenever an admission might be decided differently.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// The copy that answers for `hash`.
    pub(crate) fn lookup(&self, hash: SequenceHash) -> Option<CopyId> {
        let copies = &self.copies;
        self.index
            .find(hash.0, |&at| copies[at as usize].block.block_hash == hash)
            .map(|&at| CopyId(at))
    }

    /// Whether somebody uses the block, be it a transfer that holds it.
    pub(crate) fn is_referenced(&self, id: CopyId) -> bool {
        self.copies[id.0 as usize].refs > 0 || self.is_held(id.0)
    }

    /// Blocks that only transfers keep in use.
    pub(crate) fn held(&self) -> u32 {
        let Some(held) = &self.held else { return 0 };
        let unused = held.blocks.iter().filter(|&&at| self.copies[at as usize].refs == 0);
        u32::try_from(unused.count()).unwrap_or(u32::MAX)
    }

    fn is_held(&self, at: u32) -> bool {
        self.held.as_ref().is_some_and(|held| held.blocks.contains(&at))
    }

    /// Puts cached blocks at the front of an empty table and takes a reference on each.
    pub(crate) fn adopt(&mut self, table: &mut BlockTable, hits: &[CopyId]) {
        debug_assert_eq!(table.len(), 0, "hits go in front of everything else");
        self.version += 1;
        for &id in hits {
            if self.copies[id.0 as usize].refs == 0 && !self.is_held(id.0) {
                self.unlink(id.0);
            }
            self.copies[id.0 as usize].refs += 1;
        }
        table.cached.extend_from_slice(hits);
    }

    /// Adds `blocks` private blocks to a table, evicting as needed. The caller has checked [`Self::available`].
    pub(crate) fn take(&mut self, table: &mut BlockTable, blocks: u32, events: &mut Vec<KvEvent>) {
        debug_assert!(
            blocks <= self.available(),
            "availability is checked before blocks are taken"
        );
        if blocks == 0 {
            return;
        }
        self.version += 1;
        self.make_room(blocks, events);
        if let Some(readers) = &mut self.readers {
            let first = table.len();
            readers.take(blocks, |number, reader| table.readers.push((first + number, reader)));
        }
        self.private += blocks;
        table.private += blocks;
    }

    /// Evicts until `blocks` blocks can be taken without another eviction. The caller has checked [`Self::available`].
    pub(crate) fn make_room(&mut self, blocks: u32, events: &mut Vec<KvEvent>) {
        let unused = self.unused();
        if blocks > unused {
            self.version += 1;
            self.evict(blocks - unused, events);
        }
    }

    /// Makes the first private block of a table visible in the cache. Returns whether that is an event.
    pub(crate) fn publish(&mut self, table: &mut BlockTable, block: StoredBlock, parent: Option<SequenceHash>) -> bool {
        debug_assert!(table.private > 0, "only owned blocks become visible");
        self.version += 1;
        self.private -= 1;
        table.private -= 1;
        let copy = Copy {
            block,
            parent,
            depth: table.cached(),
            refs: 1,
            older: NONE,
            newer: NONE,
            twin: NONE,
        };
        let at = if let Some(at) = self.vacant.pop() {
            self.copies[at as usize] = copy;
            at
        } else {
            self.copies.push(copy);
            u32::try_from(self.copies.len() - 1).unwrap_or(NONE)
        };
        if let Some(readers) = &mut self.readers {
            readers.fill(at, table.take_reader(table.cached()));
        }
        table.cached.push(CopyId(at));
        let Some(first) = self.lookup(block.block_hash) else {
            let copies = &self.copies;
            let hash = |at: &u32| copies[*at as usize].block.block_hash.0;
            self.index.insert_unique(block.block_hash.0, at, hash);
            return true;
        };
        let mut last = first.0;
        while self.copies[last as usize].twin != NONE {
            last = self.copies[last as usize].twin;
        }
        self.copies[last as usize].twin = at;
        self.style == EventStyle::EachCopy
    }

    /// Gives all blocks of a table back, last to first.
    pub(crate) fn release(&mut self, table: &mut BlockTable) {
        self.version += 1;
        if let Some(readers) = &mut self.readers {
            let mut left = table.private;
            while !table.readers.is_empty() && left > 0 {
                left -= 1;
                let reader = table.take_reader(table.cached() + left);
                readers.put_back(reader, 1);
            }
            readers.put_back(None, left);
        }
        self.private -= std::mem::take(&mut table.private);
        while let Some(CopyId(at)) = table.cached.pop() {
            let copy = &mut self.copies[at as usize];
            copy.refs -= 1;
            if copy.refs == 0 && !self.is_held(at) {
                self.append(at);
            }
        }
        table.cached.shrink_to_fit();
    }

    /// Drops every inactive block.
    pub(crate) fn clear(&mut self) -> Vec<KvEvent> {
        if self.inactive == 0 {
            return Vec::new();
        }
        self.version += 1;
        let mut events = Vec::new();
        let everything = self.inactive == self.existing();
        self.evict(self.inactive, &mut events);
        if everything {
            events.clear();
            events.push(KvEvent::Cleared);
        }
        events
    }

    /// Content of the cache: each hash once, parents before children.
    pub(crate) fn cached_blocks(&self) -> Vec<(Option<SequenceHash>, StoredBlock)> {
        let mut order: Vec<u32> = self.index.iter().copied().collect();
        order.sort_unstable_by_key(|&at| (self.copies[at as usize].depth, at));
        order
            .into_iter()
            .map(|at| {
                let copy = &self.copies[at as usize];
                (copy.parent, copy.block)
            })
            .collect()
    }

    fn unused(&self) -> u32 {
        self.capacity - self.private - self.existing()
    }

    fn existing(&self) -> u32 {
        u32::try_from(self.copies.len() - self.vacant.len()).unwrap_or(u32::MAX)
    }

    fn evict(&mut self, blocks: u32, events: &mut Vec<KvEvent>) {
        let mut gone = Vec::new();
        for _ in 0..blocks {
            let at = self.oldest;
            debug_assert_ne!(at, NONE, "only inactive blocks are evicted");
            self.unlink(at);
            let copy = &self.copies[at as usize];
            let hash = copy.block.block_hash;
            let identity = BlockIdentity {
                block: copy.block,
                parent: copy.parent,
                position: copy.depth,
            };
            let last = self.forget(at, hash);
            self.vacant.push(at);
            if let Some(readers) = &mut self.readers {
                readers.evict(at);
            }
            if let Some(lost) = self.lost.as_mut().filter(|_| last) {
                lost.push(identity);
            }
            match self.style {
                EventStyle::EachCopy => events.push(KvEvent::Removed {
                    block_hashes: vec![hash],
                }),
                EventStyle::Visibility if last => gone.push(hash),
                EventStyle::Visibility => {}
            }
        }
        if !gone.is_empty() {
            events.push(KvEvent::Removed { block_hashes: gone });
        }
    }

    /// Takes a copy out of the index. Returns whether it was the last of its content.
    fn forget(&mut self, at: u32, hash: SequenceHash) -> bool {
        let twin = self.copies[at as usize].twin;
        let copies = &self.copies;
        let Ok(entry) = self
            .index
            .find_entry(hash.0, |&at| copies[at as usize].block.block_hash == hash)
        else {
            debug_assert!(false, "every cached block is in the index");
            return true;
        };
        let first = *entry.get();
        if first == at {
            if twin == NONE {
                entry.remove();
                return true;
            }
            *entry.into_mut() = twin;
            return false;
        }
        let mut before = first;
        while self.copies[before as usize].twin != at {
            #[cfg(test)]
            {
                self.touched += 1;
            }
            before = self.copies[before as usize].twin;
        }
        self.copies[before as usize].twin = twin;
        false
    }

    fn append(&mut self, at: u32) {
        #[cfg(test)]
        {
            self.touched += 1;
        }
        let older = self.newest;
        let copy = &mut self.copies[at as usize];
        copy.older = older;
        copy.newer = NONE;
        match older {
            NONE => self.oldest = at,
            older => self.copies[older as usize].newer = at,
        }
        self.newest = at;
        self.inactive += 1;
    }

    fn unlink(&mut self, at: u32) {
        #[cfg(test)]
        {
            self.touched += 1;
        }
        let Copy { older, newer, .. } = self.copies[at as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.copies[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.copies[newer as usize].older = older,
        }
        self.inactive -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::LocalHash;

    fn block(n: u64) -> StoredBlock {
        StoredBlock {
            block_hash: SequenceHash(n),
            tokens_hash: LocalHash(n),
        }
    }

    fn filled(pool: &mut KvPool, hashes: &[u64]) -> (BlockTable, Vec<KvEvent>) {
        let mut table = BlockTable::default();
        let mut events = Vec::new();
        pool.take(&mut table, u32::try_from(hashes.len()).unwrap(), &mut events);
        let mut parent = None;
        for &hash in hashes {
            pool.publish(&mut table, block(hash), parent);
            parent = Some(SequenceHash(hash));
        }
        (table, events)
    }

    fn removed(hash: u64) -> KvEvent {
        KvEvent::Removed {
            block_hashes: vec![SequenceHash(hash)],
        }
    }

    #[test]
    fn tails_leave_before_heads_and_unused_capacity_goes_first() {
        let mut pool = KvPool::new(4, EventStyle::EachCopy);
        let (mut table, _) = filled(&mut pool, &[1, 2, 3]);
        pool.release(&mut table);
        assert_eq!((pool.active(), pool.inactive(), pool.available()), (0, 3, 4));
        let (_held, events) = filled(&mut pool, &[10, 11, 12]);
        assert_eq!(events, [removed(3), removed(2)]);
        assert!(pool.lookup(SequenceHash(1)).is_some());
        assert!(pool.lookup(SequenceHash(2)).is_none());
    }

    #[test]
    fn the_oldest_copy_answers_and_each_copy_is_removed() {
        let mut pool = KvPool::new(3, EventStyle::EachCopy);
        let (mut a, _) = filled(&mut pool, &[1]);
        let (mut b, _) = filled(&mut pool, &[1]);
        let first = pool.lookup(SequenceHash(1));
        pool.release(&mut b);
        pool.release(&mut a);
        assert_eq!(pool.lookup(SequenceHash(1)), first);
        let (_held, events) = filled(&mut pool, &[7, 8, 9]);
        assert_eq!(events, [removed(1), removed(1)]);
        assert_eq!(pool.cached_blocks().len(), 3);
    }

    #[test]
    fn visibility_events_come_with_the_first_and_the_last_copy() {
        let mut pool = KvPool::new(3, EventStyle::Visibility);
        let mut table = BlockTable::default();
        let mut events = Vec::new();
        pool.take(&mut table, 2, &mut events);
        assert!(pool.publish(&mut table, block(1), None));
        assert!(!pool.publish(&mut table, block(1), None));
        pool.release(&mut table);
        let (_held, events) = filled(&mut pool, &[5, 6]);
        assert!(events.is_empty(), "one copy of block 1 is left");
        assert!(pool.lookup(SequenceHash(1)).is_some());
        let (_held, events) = filled(&mut pool, &[7]);
        assert_eq!(events, [removed(1)]);
    }

    #[test]
    fn clearing_keeps_what_is_in_use() {
        let mut pool = KvPool::new(8, EventStyle::EachCopy);
        let (mut a, _) = filled(&mut pool, &[1, 2]);
        let (mut b, _) = filled(&mut pool, &[3]);
        pool.release(&mut b);
        assert_eq!(pool.clear(), [removed(3)]);
        assert!(pool.clear().is_empty());
        pool.release(&mut a);
        assert_eq!(pool.clear(), [KvEvent::Cleared]);
        assert_eq!((pool.active(), pool.inactive()), (0, 0));
        assert!(pool.cached_blocks().is_empty());
    }

    #[test]
    fn blocks_that_leave_and_come_back_are_touched_once_each_however_many_are_cached() {
        let mut pool = KvPool::new(10_000, EventStyle::Visibility);
        for prompt in 0..1000 {
            let hashes: Vec<u64> = (0..10).map(|at| prompt * 10 + at + 1).collect();
            let (mut table, _) = filled(&mut pool, &hashes);
            pool.release(&mut table);
        }
        assert_eq!((pool.inactive(), pool.available()), (10_000, 10_000));
        let before = pool.touched;
        let mut table = BlockTable::default();
        pool.take(&mut table, 500, &mut Vec::new());
        assert_eq!(pool.touched - before, 500, "evictions");
        pool.release(&mut table);
        let before = pool.touched;
        let hits: Vec<CopyId> = (9991..=10_000)
            .map(|hash| pool.lookup(SequenceHash(hash)).unwrap())
            .collect();
        pool.adopt(&mut table, &hits);
        pool.release(&mut table);
        assert_eq!(pool.touched - before, 20, "out of the queue and back");
    }
}
