//! The prefix caches of a fleet at one moment.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::types::{DpRank, InstanceId, LocalHash, SequenceHash, StoredBlock};

/// A rank as routers know it: the instance of its worker and its number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RankId {
    /// Discovery id of the worker, or whatever else an index calls it.
    pub worker: InstanceId,
    /// Number within the worker.
    pub rank: DpRank,
}

impl RankId {
    /// Rank `rank` of `worker`.
    pub const fn new(worker: u64, rank: u32) -> Self {
        Self {
            worker: InstanceId(worker),
            rank: DpRank(rank),
        }
    }
}

impl fmt::Display for RankId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}/{}", self.worker, self.rank)
    }
}

/// A cached block: what it is, and what a router matches it by. Ordered by what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// Identity.
    pub hash: SequenceHash,
    /// Hash of its tokens alone.
    pub local: LocalHash,
    /// Block before it; `None`: it begins a prompt.
    pub parent: Option<SequenceHash>,
}

impl Block {
    /// From a pair of parent and block, as ranks tell it.
    pub fn of(&(parent, block): &(Option<SequenceHash>, StoredBlock)) -> Self {
        Self {
            hash: block.block_hash,
            local: block.tokens_hash,
            parent,
        }
    }
}

/// Blocks of one rank, each once, ordered by identity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RankCache {
    /// Actor path, for people; what an index calls it where it has none.
    pub path: String,
    blocks: Vec<Block>,
}

impl RankCache {
    /// The cache of the rank at `path`. Copies of a block count once.
    pub fn new(path: String, mut blocks: Vec<Block>) -> Self {
        blocks.sort_unstable();
        blocks.dedup_by_key(|block| block.hash);
        Self { path, blocks }
    }

    /// From the pairs of parent and block that a rank tells.
    pub fn of(path: String, told: &[(Option<SequenceHash>, StoredBlock)]) -> Self {
        Self::new(path, told.iter().map(Block::of).collect())
    }

    /// Ordered by identity.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The block with this identity.
    pub fn get(&self, hash: SequenceHash) -> Option<&Block> {
        let found = self.blocks.binary_search_by_key(&hash, |block| block.hash);
        found.ok().and_then(|at| self.blocks.get(at))
    }

    /// How many blocks of a prompt are here before the first one that is not. `chain`: its blocks, root first.
    pub fn prefix(&self, chain: &[SequenceHash]) -> usize {
        chain.iter().take_while(|hash| self.get(**hash).is_some()).count()
    }

    /// Every prompt in here up to its last block, as chains of blocks, root first; in order of their last blocks. Blocks
    /// whose beginning is not here have no chain: nobody can hit them.
    pub fn chains(&self) -> Vec<Vec<Block>> {
        let mut is_parent = vec![false; self.blocks.len()];
        for parent in self.blocks.iter().filter_map(|block| block.parent) {
            if let Ok(at) = self.blocks.binary_search_by_key(&parent, |block| block.hash) {
                is_parent[at] = true;
            }
        }
        let leaves = self.blocks.iter().zip(is_parent).filter(|(_, is_parent)| !is_parent);
        leaves.filter_map(|(leaf, _)| self.chain_to(*leaf)).collect()
    }

    fn chain_to(&self, leaf: Block) -> Option<Vec<Block>> {
        let mut chain = vec![leaf];
        let mut parent = leaf.parent;
        while let Some(hash) = parent {
            // Longer than there are blocks: a ring, which only a broken dump can have.
            if chain.len() > self.blocks.len() {
                return None;
            }
            let block = *self.get(hash)?;
            chain.push(block);
            parent = block.parent;
        }
        chain.reverse();
        Some(chain)
    }
}

/// The caches of all ranks of a fleet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caches {
    /// By who they are.
    pub ranks: BTreeMap<RankId, RankCache>,
}

impl Caches {
    /// Blocks of all ranks; a block that two ranks have counts twice.
    pub fn len(&self) -> usize {
        self.ranks.values().map(|rank| rank.blocks.len()).sum()
    }

    /// Whether no rank has a block.
    pub fn is_empty(&self) -> bool {
        self.ranks.values().all(|rank| rank.blocks.is_empty())
    }
}

#[cfg(test)]
impl Caches {
    /// Ranks of worker 7, each with unconnected blocks of these hashes.
    pub(super) fn sample(ranks: &[(u32, &[u64])]) -> Self {
        let rank = |&(rank, hashes): &(u32, &[u64])| {
            let block = |&hash: &u64| Block {
                hash: SequenceHash(hash),
                local: LocalHash(hash),
                parent: None,
            };
            let blocks = hashes.iter().map(block).collect();
            (RankId::new(7, rank), RankCache::new(format!("w0/r{rank}"), blocks))
        };
        Self {
            ranks: ranks.iter().map(rank).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn block(hash: u64, parent: Option<u64>) -> Block {
        Block {
            hash: SequenceHash(hash),
            local: LocalHash(hash + 1000),
            parent: parent.map(SequenceHash),
        }
    }

    #[test]
    fn chains_lead_from_the_root_to_each_last_block() {
        let cache = RankCache::new(
            "w0/r0".to_owned(),
            vec![
                block(3, Some(2)),
                block(1, None),
                block(2, Some(1)),
                block(4, Some(1)),
                block(4, Some(1)),
                block(9, Some(8)),
            ],
        );
        assert_eq!(cache.blocks().len(), 5, "copies count once");
        let chains: Vec<Vec<u64>> = cache
            .chains()
            .iter()
            .map(|chain| chain.iter().map(|block| block.hash.0).collect())
            .collect();
        assert_eq!(chains, [vec![1, 2, 3], vec![1, 4]]);
        assert_eq!(cache.prefix(&[1, 2, 7, 3].map(SequenceHash)), 2);
        let ring = RankCache::new(
            String::new(),
            vec![block(1, Some(2)), block(2, Some(1)), block(5, Some(1))],
        );
        assert_eq!(ring.chains(), Vec::<Vec<Block>>::new());
    }
}
