//! The radix tree: which page follows which, who is in use, who leaves first.
//!
//! An edge holds whole pages. A page is known by its chained hash, so equal pages have equal prefixes, an edge is found by
//! its first page alone, and how far two runs of pages agree is a binary search.
//!
//! | Operation | Cost (n nodes, d nodes on the path, e pages on an edge) |
//! |---|---|
//! | match, insert | O(d (log n + log e)), plus the pages of a new leaf or of a split edge |
//! | lock, unlock | O(d + log n) |
//! | evict | O(log n) per node that leaves |
//!
//! Source: SGLang 0.5.23, its unified cache (full attention).

mod candidates;

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::types::{SequenceHash, StoredBlock};

use super::super::config::RadixEviction;
use super::super::slab::Slab;
use candidates::Rank;

/// A node of the tree. It keeps naming the end of its pages when the node is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

/// How far a key is in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Where the matched part ends; the root when nothing matched.
    pub node: NodeId,
    /// Matched pages.
    pub pages: u32,
}

#[derive(Debug)]
struct Node {
    parent: u32,
    pages: Vec<StoredBlock>,
    /// By position among the siblings.
    children: BTreeMap<u64, u32>,
    position: u64,
    created: u64,
    accessed: u64,
    hits: u32,
    priority: i32,
    locks: u32,
    /// Pages before it.
    start: u32,
    /// Pages up to the furthest end that was ever below it, or its own.
    reached: u32,
}

/// An edge on the way down.
#[derive(Debug, Clone, Copy)]
struct Edge {
    end: u32,
    /// Pages of the key up to there.
    done: usize,
    /// All of the edge's pages are the key's.
    whole: bool,
}

/// What an insert brings along.
#[derive(Debug, Clone, Copy, Default)]
pub struct Insert {
    /// Eviction priority of the pages; larger stays longer.
    pub priority: i32,
    /// Pages at the start that this request has inserted before: they do not count as another use.
    pub counted: u32,
}

#[derive(Debug)]
pub(super) struct Tree {
    policy: RadixEviction,
    /// `tlru`: pages at the end of a conversation that may be computed again.
    tail: u32,
    nodes: Slab<Node>,
    /// Nodes by their first page.
    edges: HashMap<SequenceHash, u32, FxBuildHasher>,
    /// Unlocked leaves.
    candidates: BTreeSet<(Rank, u32)>,
    clock: u64,
    evictable: u64,
    protected: u64,
    /// How often a node was listed, taken off the list or locked.
    #[cfg(test)]
    pub(super) touched: u64,
}

/// The root's index: it is made first and never removed.
const ROOT: u32 = 0;

impl Tree {
    /// `tail` is only of `tlru`: pages at the end of a conversation that may be computed again.
    pub(super) fn new(policy: RadixEviction, tail: u32) -> Self {
        let mut nodes = Slab::new();
        nodes.insert(Node {
            parent: ROOT,
            pages: Vec::new(),
            children: BTreeMap::new(),
            position: 0,
            created: 0,
            accessed: 0,
            hits: 0,
            priority: 0,
            locks: 0,
            start: 0,
            reached: 0,
        });
        Self {
            policy,
            tail,
            nodes,
            edges: HashMap::default(),
            candidates: BTreeSet::new(),
            clock: 0,
            evictable: 0,
            protected: 0,
            #[cfg(test)]
            touched: 0,
        }
    }

    pub(super) fn tail(&self) -> u32 {
        self.tail
    }

    pub(super) const fn root() -> NodeId {
        NodeId(ROOT)
    }

    /// Pages that nobody uses.
    pub(super) fn evictable(&self) -> u64 {
        self.evictable
    }

    /// Pages in use.
    pub(super) fn protected(&self) -> u64 {
        self.protected
    }

    /// Finds the longest prefix of `key`, which counts as used; an edge that matches in part is split.
    pub(super) fn find(&mut self, key: &[StoredBlock]) -> Match {
        self.descend(key, |_, _| {})
    }

    /// Adds `key`; returns its node, and how much of it was there before.
    pub(super) fn insert(&mut self, key: &[StoredBlock], how: Insert) -> Match {
        let present = self.descend(key, |node, end| {
            node.priority = node.priority.max(how.priority);
            node.hits += u32::from(end > how.counted as usize);
        });
        let rest = &key[present.pages as usize..];
        if rest.is_empty() {
            return present;
        }
        Match {
            node: NodeId(self.add_leaf(present.node.0, rest, how.priority)),
            pages: present.pages,
        }
    }

    fn add_leaf(&mut self, parent: u32, pages: &[StoredBlock], priority: i32) -> u32 {
        self.unlist(parent);
        let now = self.tick();
        let above = &self.nodes[parent];
        let length = |pages: &[StoredBlock]| u32::try_from(pages.len()).unwrap_or(u32::MAX);
        let start = above.start + length(&above.pages);
        let reached = start + length(pages);
        let at = self.nodes.insert(Node {
            parent,
            pages: pages.to_vec(),
            children: BTreeMap::new(),
            position: now,
            created: now,
            accessed: now,
            hits: 1,
            priority,
            locks: 0,
            start,
            reached,
        });
        self.nodes[parent].children.insert(now, at);
        let mut above = parent;
        while self.nodes[above].reached < reached {
            self.nodes[above].reached = reached;
            above = self.nodes[above].parent;
        }
        self.edges.extend(pages.first().map(|page| (page.block_hash, at)));
        self.evictable += pages.len() as u64;
        self.list(at);
        at
    }

    /// How much of `key` is cached, without using it.
    pub(super) fn peek(&self, key: &[StoredBlock]) -> u32 {
        let (mut at, mut done) = (ROOT, 0);
        while let Some(child) = self.child(at, key, done) {
            let pages = &self.nodes[child].pages;
            let shared = agreement(pages, &key[done..]);
            done += shared;
            if shared < pages.len() {
                break;
            }
            at = child;
        }
        u32::try_from(done).unwrap_or(u32::MAX)
    }

    /// Like [`Self::find`] as the reference emulator does it: the parts of an edge that is split keep their age.
    pub(super) fn find_keeping_age(&mut self, key: &[StoredBlock]) -> Match {
        let (mut at, mut done) = (ROOT, 0);
        while let Some(edge) = self.walk_edge(at, done, key) {
            (at, done) = (edge.end, edge.done);
            if !edge.whole {
                break;
            }
        }
        Match {
            node: NodeId(at),
            pages: u32::try_from(done).unwrap_or(u32::MAX),
        }
    }

    /// Adds `key` behind `start`, where its first `held` pages end, as the reference emulator does it: a leaf that nobody
    /// else uses becomes longer. Returns the node at the end of `key`, and how much of it was there before.
    pub(super) fn extend(&mut self, start: NodeId, held: u32, key: &[StoredBlock]) -> Match {
        let NodeId(start) = start;
        let (mut at, mut done) = (start, held as usize);
        if done < key.len() {
            while at != ROOT {
                self.touch(at, |_| {});
                at = self.nodes[at].parent;
            }
            at = start;
        }
        let mut present = done;
        while done < key.len() {
            if self.may_grow(at, start) {
                self.lengthen(at, &key[done..]);
                break;
            }
            let Some(edge) = self.walk_edge(at, done, key) else {
                at = self.add_leaf(at, &key[done..], 0);
                break;
            };
            (at, done) = (edge.end, edge.done);
            present = done;
        }
        Match {
            node: NodeId(at),
            pages: u32::try_from(present).unwrap_or(u32::MAX),
        }
    }

    /// Whether new pages behind a node become part of it.
    fn may_grow(&self, at: u32, start: u32) -> bool {
        let node = &self.nodes[at];
        let alone = node.locks == 0 || (at == start && node.locks == 1);
        at != ROOT && node.children.is_empty() && alone
    }

    fn lengthen(&mut self, at: u32, pages: &[StoredBlock]) {
        let listed = self.unlist(at);
        let now = self.tick();
        let node = &mut self.nodes[at];
        node.accessed = now;
        node.pages.extend_from_slice(pages);
        let counted = if node.locks == 0 {
            &mut self.evictable
        } else {
            &mut self.protected
        };
        *counted += pages.len() as u64;
        if listed {
            self.list(at);
        }
    }

    /// The edge below `at` that goes on with `key`.
    fn child(&self, at: u32, key: &[StoredBlock], done: usize) -> Option<u32> {
        let child = *self.edges.get(&key.get(done)?.block_hash)?;
        (self.nodes[child].parent == at).then_some(child)
    }

    /// Goes down one edge: a whole one counts as used, of another one the part that is not shared is split off.
    fn walk_edge(&mut self, at: u32, done: usize, key: &[StoredBlock]) -> Option<Edge> {
        let child = self.child(at, key, done)?;
        let shared = agreement(&self.nodes[child].pages, &key[done..]);
        let whole = shared == self.nodes[child].pages.len();
        let end = if whole {
            self.touch(child, |_| {});
            child
        } else {
            self.split(child, shared)
        };
        Some(Edge {
            end,
            done: done + shared,
            whole,
        })
    }

    /// Every page, parents before children, with the page before it.
    pub(super) fn contents(&self) -> Vec<(Option<SequenceHash>, StoredBlock)> {
        let mut pages = Vec::new();
        let mut open = vec![(ROOT, None)];
        while let Some((at, mut before)) = open.pop() {
            for &page in &self.nodes[at].pages {
                pages.push((before, page));
                before = Some(page.block_hash);
            }
            open.extend(self.nodes[at].children.values().rev().map(|&child| (child, before)));
        }
        pages
    }

    /// The nodes of `ends` and those above them, each after all its descendants, heavier subtrees first: a subtree weighs
    /// as much as it has `ends`, equals come in the order of their creation.
    pub(super) fn heaviest_first(&self, ends: impl Iterator<Item = NodeId>) -> Vec<NodeId> {
        let mut weights: HashMap<u32, u32, FxBuildHasher> = HashMap::default();
        let mut below: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for NodeId(mut at) in ends {
            loop {
                let weight = weights.entry(at).or_insert(0);
                *weight += 1;
                if at == ROOT {
                    break;
                }
                let parent = self.nodes[at].parent;
                if *weight == 1 {
                    below.entry(parent).or_default().push(at);
                }
                at = parent;
            }
        }
        for children in below.values_mut() {
            children.sort_by_key(|&at| (std::cmp::Reverse(weights[&at]), self.nodes[at].position));
        }
        // Parents first with the heaviest child last is the wanted order backwards.
        let mut order = Vec::new();
        let mut open = vec![ROOT];
        while let Some(at) = open.pop() {
            order.push(NodeId(at));
            open.extend(below.get(&at).into_iter().flatten());
        }
        order.reverse();
        order
    }

    fn descend(&mut self, key: &[StoredBlock], mut pass_over: impl FnMut(&mut Node, usize)) -> Match {
        let (mut at, mut done) = (ROOT, 0);
        while let Some(next) = key.get(done)
            && let Some(&child) = self.edges.get(&next.block_hash)
            && self.nodes[child].parent == at
        {
            let shared = agreement(&self.nodes[child].pages, &key[done..]);
            let whole = shared == self.nodes[child].pages.len();
            self.touch(child, |_| {});
            at = if whole { child } else { self.split(child, shared) };
            done += shared;
            self.touch(at, |node| pass_over(node, done));
            if !whole {
                break;
            }
        }
        Match {
            node: NodeId(at),
            pages: u32::try_from(done).unwrap_or(u32::MAX),
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Marks a node as used now.
    fn touch(&mut self, at: u32, change: impl FnOnce(&mut Node)) {
        let listed = self.unlist(at);
        let now = self.tick();
        let node = &mut self.nodes[at];
        node.accessed = now;
        change(node);
        if listed {
            self.list(at);
        }
    }

    /// Cuts the edge of `at` behind `pages` pages; the new upper node takes over its place and everything that counts,
    /// `at` stays the end.
    fn split(&mut self, at: u32, pages: usize) -> u32 {
        // Where a node starts is part of its rank.
        let listed = self.unlist(at);
        let now = self.tick();
        let lower = &mut self.nodes[at];
        let tail = lower.pages.split_off(pages);
        let head = std::mem::replace(&mut lower.pages, tail);
        let (first, second) = (head[0].block_hash, lower.pages[0].block_hash);
        let position = std::mem::replace(&mut lower.position, now);
        let parent = lower.parent;
        let upper = Node {
            parent,
            pages: head,
            children: BTreeMap::from([(now, at)]),
            position,
            created: lower.created,
            accessed: lower.accessed,
            hits: lower.hits,
            priority: lower.priority,
            locks: lower.locks,
            start: lower.start,
            reached: lower.reached,
        };
        lower.start += u32::try_from(pages).unwrap_or(u32::MAX);
        let upper = self.nodes.insert(upper);
        self.nodes[at].parent = upper;
        self.nodes[parent].children.insert(position, upper);
        self.edges.insert(first, upper);
        self.edges.insert(second, at);
        if listed {
            self.list(at);
        }
        upper
    }
}

/// Pages at the start of both that are the same. Hashes are chained, so once different means different to the end.
fn agreement(a: &[StoredBlock], b: &[StoredBlock]) -> usize {
    let (mut same, mut different) = (0, a.len().min(b.len()) + 1);
    while same + 1 < different {
        let middle = usize::midpoint(same, different);
        if a[middle - 1].block_hash == b[middle - 1].block_hash {
            same = middle;
        } else {
            different = middle;
        }
    }
    same
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_hash::hash_blocks;
    use crate::types::HashSalt;

    fn key(tokens: &[u32]) -> Vec<StoredBlock> {
        hash_blocks(tokens, 1, &HashSalt::default(), false)
    }

    #[test]
    fn a_limit_trims_the_end_of_a_leaf_and_keeps_it_a_candidate() {
        let mut tree = Tree::new(RadixEviction::Lru, 0);
        let pages = key(&[1, 2, 3, 4, 5]);
        tree.insert(&pages, Insert::default());
        let mut gone = Vec::new();
        assert_eq!(tree.evict_one(Some(2), |freed| gone.extend_from_slice(freed)), Some(2));
        assert_eq!((gone, tree.evictable()), (pages[3..].to_vec(), 3));
        assert_eq!(tree.find(&pages).pages, 3);
        assert_eq!(tree.insert(&pages, Insert::default()).pages, 3);
        assert_eq!(tree.evict_one(Some(9), |_| {}), Some(2));
        assert_eq!(tree.evict_one(None, |_| {}), Some(3));
        assert_eq!(tree.evict_one(None, |_| {}), None);
    }

    #[test]
    fn children_come_before_their_parents_and_the_heavier_ones_first() {
        let mut tree = Tree::new(RadixEviction::Lru, 0);
        let mut end = |tokens: &[u32]| tree.insert(&key(tokens), Insert::default()).node;
        let (left, right) = (end(&[1, 2, 3]), end(&[1, 2, 4]));
        let alone = end(&[9]);
        let above = tree.find(&key(&[1, 2])).node;
        let order = |ends: &[NodeId]| tree.heaviest_first(ends.iter().copied());
        assert_eq!(
            order(&[alone, left, right, above]),
            [left, right, above, alone, Tree::root()]
        );
        assert_eq!(order(&[alone, alone, right]), [alone, right, above, Tree::root()]);
        assert_eq!(order(&[]), [Tree::root()]);
    }

    #[test]
    fn the_tails_of_conversations_go_before_older_heads() {
        let mut tree = Tree::new(RadixEviction::Tlru, 2);
        let mut add = |tokens: &[u32]| {
            tree.insert(&key(tokens), Insert::default());
        };
        add(&[1, 2, 3]);
        add(&[1, 2, 3, 4, 5]);
        add(&[7, 8]);
        add(&[9]);
        tree.find(&key(&[7, 8]));
        let mut gone = Vec::new();
        while tree.evict_one(None, |freed| gone.push(freed[0])).is_some() {}
        let first = |tokens: &[u32], index: usize| key(tokens)[index];
        // The last two tokens of the first conversation, then the short ones by age; its head was not to be lost.
        assert_eq!(
            gone,
            [
                first(&[1, 2, 3, 4, 5], 3),
                first(&[9], 0),
                first(&[7, 8], 0),
                first(&[1], 0)
            ]
        );
    }

    #[test]
    fn the_end_of_an_edge_that_is_split_is_a_tail_from_then_on() {
        let mut tree = Tree::new(RadixEviction::Tlru, 2);
        tree.insert(&key(&[7, 8, 9]), Insert::default());
        tree.insert(&key(&[1, 2, 3, 4, 5]), Insert::default());
        tree.find(&key(&[1, 2, 3]));
        let mut gone = Vec::new();
        while tree.evict_one(None, |freed| gone.push(freed[0])).is_some() {}
        let first = |tokens: &[u32], index: usize| key(tokens)[index];
        let expected = [first(&[1, 2, 3, 4], 3), first(&[7, 8, 9], 0), first(&[1], 0)];
        assert_eq!((gone.as_slice(), tree.evictable()), (&expected[..], 0));
    }

    #[test]
    fn a_request_counts_as_one_use_of_what_it_inserts_again() {
        let mut tree = Tree::new(RadixEviction::Lfu, 0);
        tree.insert(&key(&[1, 2]), Insert::default());
        tree.insert(
            &key(&[1, 2, 3]),
            Insert {
                counted: 2,
                priority: 0,
            },
        );
        tree.insert(&key(&[5]), Insert::default());
        tree.insert(&key(&[5]), Insert::default());
        let mut gone = Vec::new();
        while tree.evict_one(None, |freed| gone.push(freed[0])).is_some() {}
        assert_eq!(gone, [key(&[1, 2, 3])[2], key(&[1])[0], key(&[5])[0]]);
    }
}
