//! The pool of logical blocks: equal blocks exist once, and what leaves first is a choice.
//!
//! | State | Meaning | Counts as |
//! |---|---|---|
//! | Reset | without content | free |
//! | Mutable | one request's, still being filled; gives its place back as Reset | active |
//! | Complete | a Mutable block that was given its identity; on the way to registration | active |
//! | Immutable | registered under its hash, with owners | active |
//! | Inactive | registered, without owner; found by lookups until it is evicted | inactive |
//!
//! Registering a hash that is there already makes its owner a further owner of the existing block (an `ActiveHit`, or an
//! `InactiveHit` that brings it back); the new block becomes Reset, so occupancy shrinks. Only a `NewStore` is a
//! [`KvEvent::Stored`]; [`KvEvent::Removed`] comes from eviction and clearing alone. A request's full blocks are
//! registered when they are taken, before they are computed; blocks that fill up while decoding when the token after them
//! is drawn.
//!
//! Blocks without content cannot be told apart, so numbers stand for them, and an idle pool of any size costs nothing.
//!
//! | Operation | Cost |
//! |---|---|
//! | lookup, owner added or gone, registration | O(1); `lineage` O(log leaves) where a block becomes inactive or stops being so |
//! | eviction of a block | O(1); `lineage` O(log leaves) |
//! | `multi_lru`, per access or block that becomes inactive | four hashes more |
//! | [`LogicalPool::cached_blocks`] | O(n log n) |
//!
//! Source: kvbm-logical 1.6.1 with duplicates rejected, as Dynamo 1.4.2 uses it (`g1_backend: kvbm`).

mod identity;
mod lineage;
mod order;
mod sketch;
#[cfg(test)]
mod tests;
mod tiers;

use hashbrown::HashTable;

use super::backend::EvictionBackend;
use super::pool::{BlockTable, CopyId};
use super::run::StoredRun;
use crate::types::{KvEvent, SequenceHash, StoredBlock};
pub use identity::BlockIdentity;
use order::Order;

/// What became of a block on registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registered {
    /// Its hash was new.
    NewStore,
    /// A block with this hash was in use; it has one owner more now.
    ActiveHit,
    /// A block with this hash was inactive; it is in use again.
    InactiveHit,
}

#[derive(Debug, Clone)]
struct Slot {
    identity: BlockIdentity,
    /// Owners; inactive without any.
    owners: u32,
}

/// See the module's text.
#[derive(Debug)]
pub struct LogicalPool {
    capacity: u32,
    mutable: u32,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    index: HashTable<u32>,
    order: Order,
    version: u64,
    /// Buffers of [`Self::take`].
    found: Vec<Option<CopyId>>,
    run: StoredRun,
    /// Evicted content, when asked for.
    lost: Option<Vec<BlockIdentity>>,
}

impl LogicalPool {
    /// An empty pool of `capacity` blocks; `None` if `backend` is the native pool, which is not this one.
    pub fn new(capacity: u32, backend: EvictionBackend) -> Option<Self> {
        Some(Self {
            capacity,
            mutable: 0,
            slots: Vec::new(),
            vacant: Vec::new(),
            index: HashTable::new(),
            order: Order::new(backend, capacity)?,
            version: 0,
            found: Vec::new(),
            run: StoredRun::default(),
            lost: None,
        })
    }

    /// All blocks.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Blocks that somebody owns.
    pub fn active(&self) -> u32 {
        self.mutable + self.registered() - self.inactive()
    }

    /// Registered blocks that nobody owns.
    pub fn inactive(&self) -> u32 {
        self.order.len()
    }

    /// Blocks that can be taken, evictions included.
    pub fn available(&self) -> u32 {
        self.capacity - self.active()
    }

    /// Reset, and Inactive to Reset as far as needed, to Mutable: all `blocks` of them, or none and `None` if fewer are
    /// available. Returns what was evicted, in order.
    pub fn allocate(&mut self, blocks: u32) -> Option<Vec<SequenceHash>> {
        if blocks > self.available() {
            return None;
        }
        self.version += 1;
        let unused = self.capacity - self.mutable - self.registered();
        let evicted = self.evict(blocks.saturating_sub(unused));
        self.mutable += blocks;
        Some(evicted)
    }

    /// Mutable to Reset.
    pub fn discard(&mut self, blocks: u32) {
        debug_assert!(blocks <= self.mutable, "only mutable blocks are discarded");
        self.version += 1;
        self.mutable = self.mutable.saturating_sub(blocks);
    }

    /// Mutable to Complete to Immutable, with one owner, for one block that [`Self::allocate`] gave; an equal block that
    /// is there already takes its place.
    pub fn register(&mut self, identity: BlockIdentity) -> Registered {
        let (outcome, _) = self.complete(identity);
        outcome
    }

    /// Adds an owner to each block at the start of `hashes`, up to the first unknown one, and counts an access of each.
    /// Returns how many.
    pub fn match_prefix(&mut self, hashes: &[SequenceHash]) -> usize {
        hashes.iter().take_while(|&&hash| self.match_one(hash)).count()
    }

    /// Adds an owner to the block with this hash, if there is one, and counts the access.
    pub fn match_one(&mut self, hash: SequenceHash) -> bool {
        let found = self.lookup(hash);
        if let Some(id) = found {
            self.version += 1;
            self.own(id);
            self.touch(id);
        }
        found.is_some()
    }

    /// Takes an owner away from the block with this hash; without owners it becomes Inactive. Returns whether there was
    /// one to take.
    pub fn release_one(&mut self, hash: SequenceHash) -> bool {
        match self.lookup(hash) {
            Some(id) if self.is_referenced(id) => {
                self.version += 1;
                self.disown(id);
                true
            }
            _ => false,
        }
    }

    /// Evicts every Inactive block. Returns them in eviction order.
    pub fn evict_all(&mut self) -> Vec<SequenceHash> {
        self.version += 1;
        self.evict(self.inactive())
    }

    /// Every registered block with its parent, parents before children.
    pub fn cached_blocks(&self) -> Vec<(Option<SequenceHash>, StoredBlock)> {
        let mut order: Vec<u32> = self.index.iter().copied().collect();
        order.sort_unstable_by_key(|&at| (self.slots[at as usize].identity.position, at));
        let identities = order.into_iter().map(|at| &self.slots[at as usize].identity);
        identities.map(|identity| (identity.parent, identity.block)).collect()
    }

    /// Keeps what is evicted from now on for [`Self::take_lost`].
    pub(crate) fn keep_lost(&mut self) {
        self.lost = Some(Vec::new());
    }

    /// Takes the content that was evicted, in order.
    pub(crate) fn take_lost(&mut self) -> Vec<BlockIdentity> {
        self.lost.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Changes whenever an admission might be decided differently.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn lookup(&self, hash: SequenceHash) -> Option<CopyId> {
        let is = |at: &u32| self.slots[*at as usize].identity.block.block_hash == hash;
        self.index.find(hash.0, is).map(|&at| CopyId(at))
    }

    pub(crate) fn is_referenced(&self, id: CopyId) -> bool {
        self.slots[id.0 as usize].owners > 0
    }

    /// Puts registered blocks at the front of an empty table.
    pub(crate) fn adopt(&mut self, table: &mut BlockTable, hits: &[CopyId]) {
        debug_assert_eq!(table.len(), 0, "hits go in front of everything else");
        self.version += 1;
        for &id in hits {
            self.hit(id);
        }
        table.cached.extend_from_slice(hits);
    }

    /// Adds `blocks` blocks to a table, of which the first are full ones that are known already, in one transaction: all
    /// that exist get a further owner, the others are taken, and the known ones of these registered. Without enough blocks
    /// nothing is taken; but inactive blocks that were looked at come to the end of the eviction order, as in the
    /// reference, which finds out only after it has taken them.
    pub(crate) fn take(
        &mut self,
        table: &mut BlockTable,
        known: &[BlockIdentity],
        blocks: u32,
        events: &mut Vec<KvEvent>,
    ) -> bool {
        debug_assert!(known.is_empty() || table.private == 0, "full blocks follow full blocks");
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        found.extend(known.iter().map(|identity| self.lookup(identity.block.block_hash)));
        for &id in found.iter().flatten() {
            self.hit(id);
        }
        let hits = u32::try_from(found.iter().flatten().count()).unwrap_or(u32::MAX);
        let Some(evicted) = self.allocate(blocks.saturating_sub(hits)) else {
            // Owners that were there before are only counted back; the others make their blocks inactive again.
            for &id in found.iter().flatten() {
                self.disown(id);
            }
            self.found = found;
            return false;
        };
        if !evicted.is_empty() {
            events.push(KvEvent::Removed { block_hashes: evicted });
        }
        let mut run = std::mem::take(&mut self.run);
        for (identity, found) in known.iter().zip(&found) {
            let (outcome, id) = match found {
                Some(id) => (Registered::ActiveHit, *id),
                None => self.complete(*identity),
            };
            table.cached.push(id);
            match outcome {
                Registered::NewStore => run.push(identity),
                Registered::ActiveHit | Registered::InactiveHit => run.flush(events),
            }
        }
        run.flush(events);
        self.run = run;
        table.private += blocks - u32::try_from(known.len()).unwrap_or(blocks).min(blocks);
        self.found = found;
        true
    }

    /// Registers the first private block of a table. Returns whether that is an event.
    pub(crate) fn publish(&mut self, table: &mut BlockTable, identity: BlockIdentity) -> bool {
        debug_assert!(table.private > 0, "only owned blocks are registered");
        table.private -= 1;
        let Some(id) = self.lookup(identity.block.block_hash) else {
            let (_, id) = self.complete(identity);
            table.cached.push(id);
            return true;
        };
        self.discard(1);
        self.hit(id);
        table.cached.push(id);
        false
    }

    /// Gives all blocks of a table back, last to first.
    pub(crate) fn release(&mut self, table: &mut BlockTable) {
        self.discard(std::mem::take(&mut table.private));
        while let Some(id) = table.cached.pop() {
            self.disown(id);
        }
        table.cached.shrink_to_fit();
    }

    /// Evicts every inactive block; returns the events.
    pub(crate) fn clear(&mut self) -> Vec<KvEvent> {
        let block_hashes = self.evict_all();
        match (block_hashes.is_empty(), self.registered()) {
            (true, _) => Vec::new(),
            (false, 0) => vec![KvEvent::Cleared],
            (false, _) => vec![KvEvent::Removed { block_hashes }],
        }
    }

    fn registered(&self) -> u32 {
        u32::try_from(self.slots.len() - self.vacant.len()).unwrap_or(u32::MAX)
    }

    fn complete(&mut self, identity: BlockIdentity) -> (Registered, CopyId) {
        debug_assert!(self.mutable > 0, "blocks are allocated before they are registered");
        self.version += 1;
        self.mutable = self.mutable.saturating_sub(1);
        if let Some(id) = self.lookup(identity.block.block_hash) {
            let active = self.is_referenced(id);
            self.own(id);
            let outcome = if active {
                Registered::ActiveHit
            } else {
                Registered::InactiveHit
            };
            return (outcome, id);
        }
        self.order.touch(&identity);
        let slot = Slot { identity, owners: 1 };
        let at = if let Some(at) = self.vacant.pop() {
            self.slots[at as usize] = slot;
            at
        } else {
            self.slots.push(slot);
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        };
        let slots = &self.slots;
        let hash = |at: &u32| slots[*at as usize].identity.block.block_hash.0;
        self.index.insert_unique(identity.block.block_hash.0, at, hash);
        (Registered::NewStore, CopyId(at))
    }

    /// A request finds a block of its own: one in use counts as no access, one that comes back does.
    fn hit(&mut self, id: CopyId) {
        let back = !self.is_referenced(id);
        self.own(id);
        if back {
            self.touch(id);
        }
    }

    fn touch(&mut self, CopyId(at): CopyId) {
        self.order.touch(&self.slots[at as usize].identity);
    }

    fn own(&mut self, CopyId(at): CopyId) {
        let slot = &mut self.slots[at as usize];
        if slot.owners == 0 {
            self.order.remove(at, &slot.identity);
        }
        slot.owners += 1;
    }

    fn disown(&mut self, CopyId(at): CopyId) {
        let slot = &mut self.slots[at as usize];
        slot.owners -= 1;
        if slot.owners == 0 {
            self.order.enter(at, &slot.identity);
        }
    }

    fn evict(&mut self, blocks: u32) -> Vec<SequenceHash> {
        let mut gone = Vec::new();
        for _ in 0..blocks {
            let Some(at) = self.order.victim() else {
                debug_assert!(false, "only inactive blocks are evicted");
                break;
            };
            let identity = self.slots[at as usize].identity;
            debug_assert_eq!(self.slots[at as usize].owners, 0, "a block in use is never evicted");
            self.order.remove(at, &identity);
            let hash = identity.block.block_hash;
            if let Ok(entry) = self.index.find_entry(hash.0, |&other| other == at) {
                entry.remove();
            }
            self.vacant.push(at);
            gone.push(hash);
            if let Some(lost) = &mut self.lost {
                lost.push(identity);
            }
        }
        gone
    }
}
