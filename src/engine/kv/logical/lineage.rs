//! Inactive blocks as a forest of parents and children; only leaves are evicted, so that no block leaves before those
//! that hang on it.
//!
//! A node whose block is not inactive (in use, or never seen) stays as a *placeholder* while it has children. It keeps
//! the link to its own parent if it had a block here before; then that parent is not a leaf.
//!
//! Each leaf has a tick, and the smallest tick leaves first. With [`Ticks::OnEntry`] a block gets its tick when it becomes
//! inactive, so that a parent whose last child leaves goes back to its old place; with [`Ticks::OnLeaf`] it gets a new one
//! whenever it becomes a leaf (FIFO over leaves).
//!
//! Entering, leaving and evicting cost O(log leaves), plus O(1) per placeholder that loses its last child on the way.
//! Source: kvbm-logical 1.6.1.

use std::collections::BTreeMap;

use hashbrown::HashTable;

use crate::types::SequenceHash;

const NONE: u32 = u32::MAX;

/// When a block gets its place in the eviction order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ticks {
    OnEntry,
    OnLeaf,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    hash: SequenceHash,
    /// Slot of the inactive block; [`NONE`]: placeholder.
    block: u32,
    /// Node above; [`NONE`]: root, or a placeholder whose parent is not known.
    parent: u32,
    children: u32,
    tick: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Lineage {
    ticks: Ticks,
    nodes: Vec<Node>,
    vacant: Vec<u32>,
    index: HashTable<u32>,
    /// Nodes with a block and without children, by tick.
    leaves: BTreeMap<u64, u32>,
    next_tick: u64,
    blocks: u32,
}

impl Lineage {
    pub(super) fn new(ticks: Ticks) -> Self {
        Self {
            ticks,
            nodes: Vec::new(),
            vacant: Vec::new(),
            index: HashTable::new(),
            leaves: BTreeMap::new(),
            next_tick: 0,
            blocks: 0,
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.blocks
    }

    /// Makes the block in slot `block` evictable.
    pub(super) fn enter(&mut self, block: u32, hash: SequenceHash, parent: Option<SequenceHash>) {
        let at = self.find(hash).unwrap_or_else(|| self.add(hash));
        debug_assert_eq!(self.node(at).block, NONE, "a block enters once");
        self.node(at).block = block;
        self.node(at).tick = self.tick();
        self.blocks += 1;
        if let Some(parent) = parent
            && self.node(at).parent == NONE
        {
            self.link(at, parent);
        }
        if self.node(at).children == 0 {
            self.add_leaf(at);
        }
    }

    /// Takes out a block that is in.
    pub(super) fn remove(&mut self, hash: SequenceHash) {
        match self.find(hash) {
            Some(at) => self.vacate(at),
            None => debug_assert!(false, "only inactive blocks are removed"),
        }
    }

    /// Slot of the next block to evict.
    pub(super) fn victim(&self) -> Option<u32> {
        let (_, &at) = self.leaves.first_key_value()?;
        Some(self.nodes[at as usize].block)
    }

    fn link(&mut self, at: u32, parent: SequenceHash) {
        let above = self.find(parent).unwrap_or_else(|| self.add(parent));
        self.node(at).parent = above;
        let node = self.node(above);
        node.children += 1;
        let (first, tick) = (node.children == 1 && node.block != NONE, node.tick);
        if first {
            self.leaves.remove(&tick);
        }
    }

    /// The node's block is gone; the node goes too unless it has children, and so do placeholders above it that were
    /// there for it alone.
    fn vacate(&mut self, mut at: u32) {
        let node = self.node(at);
        node.block = NONE;
        let (leaf, tick) = (node.children == 0, node.tick);
        self.blocks -= 1;
        if leaf {
            self.leaves.remove(&tick);
        }
        while self.node(at).children == 0 {
            let above = self.drop_node(at);
            if above == NONE {
                return;
            }
            let node = self.node(above);
            node.children -= 1;
            if node.block != NONE {
                if node.children == 0 {
                    self.add_leaf(above);
                }
                return;
            }
            at = above;
        }
    }

    fn add_leaf(&mut self, at: u32) {
        if self.ticks == Ticks::OnLeaf {
            self.node(at).tick = self.tick();
        }
        let tick = self.node(at).tick;
        self.leaves.insert(tick, at);
    }

    fn tick(&mut self) -> u64 {
        self.next_tick += 1;
        self.next_tick
    }

    fn node(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }

    fn find(&self, hash: SequenceHash) -> Option<u32> {
        let found = self.index.find(hash.0, |&at| self.nodes[at as usize].hash == hash);
        found.copied()
    }

    fn add(&mut self, hash: SequenceHash) -> u32 {
        let node = Node {
            hash,
            block: NONE,
            parent: NONE,
            children: 0,
            tick: 0,
        };
        let at = if let Some(at) = self.vacant.pop() {
            self.nodes[at as usize] = node;
            at
        } else {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).unwrap_or(NONE)
        };
        let nodes = &self.nodes;
        self.index.insert_unique(hash.0, at, |&at| nodes[at as usize].hash.0);
        at
    }

    /// Frees a node; returns the one above.
    fn drop_node(&mut self, at: u32) -> u32 {
        let hash = self.nodes[at as usize].hash;
        if let Ok(entry) = self.index.find_entry(hash.0, |&other| other == at) {
            entry.remove();
        }
        self.vacant.push(at);
        self.nodes[at as usize].parent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entered(ticks: Ticks, blocks: &[(u64, Option<u64>)]) -> Lineage {
        let mut lineage = Lineage::new(ticks);
        for &(hash, parent) in blocks {
            lineage.enter(
                u32::try_from(hash).unwrap(),
                SequenceHash(hash),
                parent.map(SequenceHash),
            );
        }
        lineage
    }

    fn drained(mut lineage: Lineage) -> Vec<u32> {
        let mut order = Vec::new();
        while let Some(block) = lineage.victim() {
            lineage.remove(SequenceHash(u64::from(block)));
            order.push(block);
        }
        assert_eq!(lineage.len(), 0);
        assert!(lineage.index.is_empty() && lineage.leaves.is_empty());
        assert_eq!(lineage.vacant.len(), lineage.nodes.len(), "no node is left behind");
        order
    }

    #[test]
    fn a_parent_goes_back_to_its_old_place_or_to_the_end() {
        let chain_and_single = [(1, None), (2, Some(1)), (9, None)];
        assert_eq!(drained(entered(Ticks::OnEntry, &chain_and_single)), [2, 1, 9]);
        assert_eq!(drained(entered(Ticks::OnLeaf, &chain_and_single)), [2, 9, 1]);
    }

    #[test]
    fn a_block_in_use_still_stands_between_its_parent_and_its_children() {
        let mut lineage = entered(Ticks::OnEntry, &[(1, None), (2, Some(1)), (3, Some(2)), (9, None)]);
        lineage.remove(SequenceHash(2));
        assert_eq!(drained(lineage), [3, 1, 9]);
    }

    #[test]
    fn a_block_that_was_never_here_stands_between_nobody() {
        assert_eq!(drained(entered(Ticks::OnEntry, &[(1, None), (3, Some(2))])), [1, 3]);
    }
}
