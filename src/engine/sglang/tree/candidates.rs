//! Who may leave the tree, and who leaves first.

use super::{Node, NodeId, ROOT, Tree};
use crate::engine::config::RadixEviction;
use crate::types::StoredBlock;

/// What a leaf is evicted by, smallest first.
pub(super) type Rank = (i64, u64);

impl Tree {
    /// Protects the path from `node` to the root.
    pub(in crate::engine::sglang) fn lock(&mut self, node: NodeId) {
        let mut at = node.0;
        while at != ROOT {
            self.unlist(at);
            let entry = &mut self.nodes[at];
            if entry.locks == 0 {
                self.evictable -= entry.pages.len() as u64;
                self.protected += entry.pages.len() as u64;
            }
            entry.locks += 1;
            at = entry.parent;
        }
    }

    /// Takes one protection back.
    pub(in crate::engine::sglang) fn unlock(&mut self, node: NodeId) {
        let mut at = node.0;
        while at != ROOT {
            #[cfg(test)]
            {
                self.touched += 1;
            }
            let entry = &mut self.nodes[at];
            entry.locks -= 1;
            let parent = entry.parent;
            if entry.locks == 0 {
                self.evictable += entry.pages.len() as u64;
                self.protected -= entry.pages.len() as u64;
                self.list(at);
            }
            at = parent;
        }
    }

    /// Evicts the first candidate, or with `most` given only so many pages of its end; its pages go to `freed`.
    /// `None`: there is none.
    pub(in crate::engine::sglang) fn evict_one(
        &mut self,
        most: Option<u32>,
        freed: impl FnOnce(&[StoredBlock]),
    ) -> Option<u32> {
        let &(rank, at) = self.candidates.first()?;
        let length = self.nodes[at].pages.len();
        let kept = most.map_or(0, |most| length.saturating_sub(most as usize));
        self.evictable -= (length - kept) as u64;
        freed(&self.nodes[at].pages[kept..]);
        if kept > 0 {
            self.nodes[at].pages.truncate(kept);
        } else {
            self.candidates.remove(&(rank, at));
            self.remove_leaf(at);
        }
        u32::try_from(length - kept).ok()
    }

    fn remove_leaf(&mut self, at: u32) {
        let Some(node) = self.nodes.remove(at) else { return };
        if let Some(first) = node.pages.first() {
            self.edges.remove(&first.block_hash);
        }
        self.nodes[node.parent].children.remove(&node.position);
        self.list(node.parent);
    }

    fn rank(&self, node: &Node) -> Rank {
        let oldest = node.accessed;
        match self.policy {
            RadixEviction::Lru => (0, oldest),
            RadixEviction::Mru => (0, u64::MAX - oldest),
            RadixEviction::Lfu => (i64::from(node.hits), oldest),
            RadixEviction::Slru => (i64::from(node.hits >= 2), oldest),
            RadixEviction::Fifo => (0, node.created),
            RadixEviction::Filo => (0, u64::MAX - node.created),
            RadixEviction::Priority => (i64::from(node.priority), oldest),
            // What the conversation can do without goes first.
            RadixEviction::Tlru => (i64::from(node.reached - node.start > self.tail), oldest),
        }
    }

    /// Makes a node a candidate if it is an unlocked leaf.
    pub(super) fn list(&mut self, at: u32) {
        #[cfg(test)]
        {
            self.touched += 1;
        }
        let node = &self.nodes[at];
        if at != ROOT && node.locks == 0 && node.children.is_empty() {
            self.candidates.insert((self.rank(node), at));
        }
    }

    /// Takes a node off the candidates; returns whether it was one.
    pub(super) fn unlist(&mut self, at: u32) -> bool {
        #[cfg(test)]
        {
            self.touched += 1;
        }
        let node = &self.nodes[at];
        let listed = at != ROOT && node.locks == 0 && node.children.is_empty();
        listed && self.candidates.remove(&(self.rank(node), at))
    }
}
