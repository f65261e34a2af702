//! The prefix cache of SGLang: a radix tree that tells what it stores and removes.

use crate::types::{KvEvent, SequenceHash, StoredBlock};

use super::super::config::RadixEviction;
use super::events::{EventLog, Identity};
use super::tree::{Insert, Match, NodeId, Tree};

/// A radix cache. Keys are runs of whole pages from the first one on.
#[derive(Debug)]
pub struct RadixCache {
    policy: RadixEviction,
    tree: Tree,
    log: EventLog,
    /// Leaves leave as a whole; the reference emulator trims them.
    whole_leaves: bool,
}

impl RadixCache {
    /// An empty cache as SGLang 0.5.23 has it; its first event is [`KvEvent::Cleared`].
    pub fn new(policy: RadixEviction) -> Self {
        Self::with_tail(policy, 0)
    }

    /// Like [`Self::new`]; with `tlru` the last `tail` pages of a conversation are those that it can do without.
    pub fn with_tail(policy: RadixEviction, tail: u32) -> Self {
        let mut log = EventLog::new(Identity::Node);
        log.cleared();
        Self {
            policy,
            tree: Tree::new(policy, tail),
            log,
            whole_leaves: true,
        }
    }

    /// An empty cache as Dynamo 1.6.1's emulator has it.
    pub(super) fn emulated() -> Self {
        Self {
            policy: RadixEviction::Lru,
            tree: Tree::new(RadixEviction::Lru, 0),
            log: EventLog::new(Identity::Owners(hashbrown::HashMap::default())),
            whole_leaves: false,
        }
    }

    /// The node above all pages.
    pub const fn root() -> NodeId {
        Tree::root()
    }

    /// Finds the longest cached prefix of `key`, which counts as used.
    pub fn find(&mut self, key: &[StoredBlock]) -> Match {
        if self.whole_leaves {
            self.tree.find(key)
        } else {
            self.tree.find_keeping_age(key)
        }
    }

    /// How many pages of `key` are cached, without using them.
    pub(super) fn peek(&self, key: &[StoredBlock]) -> u32 {
        self.tree.peek(key)
    }

    /// Caches `key`, whose first `held` pages end at `start`, as [`Self::insert`] does, or as the emulator does: what is
    /// missing lengthens a leaf that nobody else uses.
    pub(super) fn insert_behind(&mut self, start: NodeId, held: u32, key: &[StoredBlock], how: Insert) -> Match {
        if self.whole_leaves {
            return self.insert(key, how);
        }
        // Its requests have told of their pages.
        self.tree.extend(start, held, key)
    }

    /// Caches `key`: what is missing becomes one leaf. Returns the node at the end of `key` and the pages that were there
    /// before.
    pub fn insert(&mut self, key: &[StoredBlock], how: Insert) -> Match {
        let inserted = self.tree.insert(key, how);
        let (present, missing) = key.split_at(inserted.pages as usize);
        if !missing.is_empty() {
            self.log.inserted(present.last().map(|page| page.block_hash), missing);
        }
        inserted
    }

    /// Protects the pages up to `node` from eviction. Locks count.
    pub fn lock(&mut self, node: NodeId) {
        self.tree.lock(node);
    }

    /// Takes back one [`Self::lock`].
    pub fn unlock(&mut self, node: NodeId) {
        self.tree.unlock(node);
    }

    /// Evicts unlocked leaves until `pages` pages are free or none is left; returns how many that were, which may be more.
    /// `freed` sees the pages of each leaf.
    pub fn evict(&mut self, pages: u64, mut freed: impl FnMut(&[StoredBlock])) -> u64 {
        let mut done = 0;
        let mut gone: Vec<SequenceHash> = Vec::new();
        while done < pages {
            let left = u32::try_from(pages - done).unwrap_or(u32::MAX);
            let most = (!self.whole_leaves).then_some(left);
            let evicted = self.tree.evict_one(most, |leaf| {
                gone.extend(leaf.iter().map(|page| page.block_hash));
                freed(leaf);
            });
            let Some(evicted) = evicted else { break };
            done += u64::from(evicted);
        }
        if !gone.is_empty() {
            self.log.evicted(gone);
        }
        done
    }

    /// Drops everything, locked or not.
    pub fn reset(&mut self) {
        self.tree = Tree::new(self.policy, self.tree.tail());
        self.log.cleared();
    }

    /// Moves the events since the last call to the end of `into`.
    pub fn take_events(&mut self, into: &mut Vec<KvEvent>) {
        self.log.take(into);
    }

    /// Pages that [`Self::evict`] can free.
    pub fn evictable_pages(&self) -> u64 {
        self.tree.evictable()
    }

    /// Pages that locks protect.
    pub fn protected_pages(&self) -> u64 {
        self.tree.protected()
    }

    /// Every page, parents before children, with the page before it.
    pub fn contents(&self) -> Vec<(Option<SequenceHash>, StoredBlock)> {
        self.tree.contents()
    }

    /// How often a node was listed, taken off the list or locked.
    #[cfg(test)]
    pub(super) fn touched(&self) -> u64 {
        self.tree.touched
    }

    /// See [`Tree::heaviest_first`].
    pub(super) fn heaviest_first(&self, ends: impl Iterator<Item = NodeId>) -> Vec<NodeId> {
        self.tree.heaviest_first(ends)
    }

    /// A request filled these pages of its own, the first of them behind `parent`.
    pub(super) fn hold(&mut self, parent: Option<SequenceHash>, pages: &[StoredBlock]) {
        self.log.held(parent, pages);
    }

    /// A request gave up these pages of its own.
    pub(super) fn release(&mut self, pages: &[StoredBlock]) {
        self.log.dropped(pages);
    }
}
