//! The blocks that one rank has announced and not withdrawn, as a router should believe them.

use std::collections::hash_map::Entry;

use rustc_hash::{FxBuildHasher, FxHashMap};

use super::former::Placed;
use super::kv_event::{MAX_MERGED_BLOCKS, encode_stored};
use crate::types::{DpRank, InstanceId, LocalHash, SequenceHash, StoredBlock};

/// The hasher is fixed, so that equal histories dump equal bytes.
type ByHash<V> = FxHashMap<SequenceHash, V>;

/// Three words, so that a full rank of 16,384 blocks takes about 1 MiB.
struct Node {
    parent: SequenceHash,
    tokens_hash: LocalHash,
    stores: u32,
    is_root: bool,
}

impl Node {
    fn parent(&self) -> Option<SequenceHash> {
        (!self.is_root).then_some(self.parent)
    }

    fn placed(&self, hash: SequenceHash) -> Placed {
        let block = StoredBlock {
            block_hash: hash,
            tokens_hash: self.tokens_hash,
        };
        (self.parent(), block)
    }
}

/// What came of the removal of a block.
pub(super) enum Removal {
    /// It was stored more often; routers need not hear of it.
    Stays,
    /// It is gone, and routers have to hear of it.
    Gone(Placed),
    /// It was never stored. Routers hear of it all the same: hiding such a removal would hide a fault.
    Unknown,
}

/// Announced blocks with their parents and the number of times each was stored. An empty tree owns no memory.
#[derive(Default)]
pub(super) struct BlockTree {
    nodes: ByHash<Node>,
}

impl BlockTree {
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Counts one more store of a block. The first parent stays: a block's identity covers all before it.
    pub(super) fn store(&mut self, parent: Option<SequenceHash>, block: StoredBlock) {
        match self.nodes.entry(block.block_hash) {
            Entry::Occupied(mut node) => {
                let node = node.get_mut();
                node.stores = node.stores.saturating_add(1);
            }
            Entry::Vacant(slot) => {
                slot.insert(Node {
                    parent: parent.unwrap_or(SequenceHash(0)),
                    tokens_hash: block.tokens_hash,
                    stores: 1,
                    is_root: parent.is_none(),
                });
            }
        }
    }

    /// Counts one store of a block less.
    pub(super) fn remove(&mut self, hash: SequenceHash) -> Removal {
        match self.nodes.entry(hash) {
            Entry::Occupied(mut node) if node.get().stores > 1 => {
                node.get_mut().stores -= 1;
                Removal::Stays
            }
            Entry::Occupied(node) => Removal::Gone(node.remove().placed(hash)),
            Entry::Vacant(_) => Removal::Unknown,
        }
    }

    /// A block with the one before it.
    pub(super) fn get(&self, hash: SequenceHash) -> Option<Placed> {
        self.nodes.get(&hash).map(|node| node.placed(hash))
    }

    /// At most `most` blocks, parents before children.
    pub(super) fn beginning(&self, most: usize) -> Vec<Placed> {
        let mut told = Vec::new();
        let (mut placed, mut chain) = (ByHash::default(), Vec::new());
        for &leaf in self.nodes.keys() {
            if told.len() >= most {
                break;
            }
            if self.climb(leaf, &mut placed, &mut chain) {
                placed.extend(chain.iter().map(|block| (block.block_hash, true)));
                told.extend(chain.iter().rev().filter_map(|block| self.get(block.block_hash)));
            }
        }
        told.truncate(most);
        told
    }

    pub(super) fn clear(&mut self) {
        self.nodes = ByHash::default();
    }

    /// Appends `stored` events that rebuild the tree, parents before children, ids from 0, in linear time; returns how
    /// many. Blocks whose chain to a root is broken are left out: a router cannot place them.
    pub(super) fn dump(&self, body: &mut Vec<u8>, worker: InstanceId, rank: DpRank) -> usize {
        let mut events = 0_usize;
        self.each_chain(|parent, blocks| {
            encode_stored(body, worker, rank, None, events as u64, parent, blocks);
            events += 1;
        });
        events
    }

    /// Tells the blocks in chains of at most [`MAX_MERGED_BLOCKS`], each with its parent, parents before children.
    pub(super) fn each_chain(&self, mut tell: impl FnMut(Option<SequenceHash>, &[StoredBlock])) {
        // Seen and on its chain: true once it has been told, false while it waits or when it hangs in the air.
        let mut placed: ByHash<bool> = ByHash::with_capacity_and_hasher(self.nodes.len(), FxBuildHasher);
        let mut chain: Vec<StoredBlock> = Vec::new();
        for &leaf in self.nodes.keys() {
            if !self.climb(leaf, &mut placed, &mut chain) {
                continue;
            }
            chain.reverse();
            let mut parent = chain.first().and_then(|top| self.parent(top.block_hash));
            for block in &chain {
                placed.insert(block.block_hash, true);
            }
            for blocks in chain.chunks(MAX_MERGED_BLOCKS) {
                tell(parent, blocks);
                parent = blocks.last().map(|block| block.block_hash);
            }
        }
    }

    /// Collects into `chain` the blocks from `leaf` upwards that have not been told yet; false when there are none or
    /// when they do not reach a root.
    fn climb(&self, leaf: SequenceHash, placed: &mut ByHash<bool>, chain: &mut Vec<StoredBlock>) -> bool {
        chain.clear();
        let mut hash = leaf;
        loop {
            match placed.get(&hash) {
                Some(true) => return !chain.is_empty(),
                Some(false) => return false,
                None => {}
            }
            let Some(node) = self.nodes.get(&hash) else {
                return false;
            };
            placed.insert(hash, false);
            chain.push(StoredBlock {
                block_hash: hash,
                tokens_hash: node.tokens_hash,
            });
            if node.is_root {
                return true;
            }
            hash = node.parent;
        }
    }

    fn parent(&self, hash: SequenceHash) -> Option<SequenceHash> {
        self.nodes.get(&hash).and_then(Node::parent)
    }
}
