//! What the ranks of a fleet have had: prompts that a router may still believe in although nobody has them any more.

use std::collections::BTreeMap;

use super::cache::{Block, Caches, RankCache, RankId};

/// Blocks that ranks have had lately, those of dead workers included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Past {
    /// By actor path: ids change with incarnations.
    pub ranks: BTreeMap<String, Had>,
}

/// What one rank has had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Had {
    /// Whose it was last.
    pub id: RankId,
    /// Oldest first. Blocks that came back are here too, and more than once when they went again.
    pub blocks: Vec<Block>,
    /// Blocks before those, which were too many to keep: what a router believes of them is out of sight.
    pub dropped: u64,
}

impl Had {
    /// Blocks that have gone in all this time.
    fn gone(&self) -> u64 {
        self.dropped + self.blocks.len() as u64
    }
}

impl Past {
    /// Blocks that were too many to keep.
    pub fn dropped(&self) -> u64 {
        self.ranks.values().map(|had| had.dropped).sum()
    }

    /// Everything that is or was there, so that each block that is gone has the chain to its root.
    pub fn joined(&self, present: &Caches) -> Caches {
        let mut joined = present.clone();
        for (path, had) in &self.ranks {
            let cache = joined.ranks.entry(had.id).or_default();
            let blocks = cache.blocks().iter().chain(&had.blocks).copied().collect();
            *cache = RankCache::new(path.clone(), blocks);
        }
        joined
    }

    /// What has gone since an earlier look.
    pub fn since(&self, earlier: &Self) -> Caches {
        let rank = |(path, had): (&String, &Had)| {
            let before = earlier.ranks.get(path).map_or(0, Had::gone);
            let new = usize::try_from(had.gone().saturating_sub(before)).unwrap_or(usize::MAX);
            let known = had.blocks.len().saturating_sub(new);
            (had.id, RankCache::new(path.clone(), had.blocks[known..].to_vec()))
        };
        Caches {
            ranks: self.ranks.iter().map(rank).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{LocalHash, SequenceHash};

    fn block(hash: u64, parent: Option<u64>) -> Block {
        Block {
            hash: SequenceHash(hash),
            local: LocalHash(hash),
            parent: parent.map(SequenceHash),
        }
    }

    fn had(id: RankId, blocks: &[Block], dropped: u64) -> Had {
        Had {
            id,
            blocks: blocks.to_vec(),
            dropped,
        }
    }

    const ALIVE: RankId = RankId::new(1, 0);
    const DEAD: RankId = RankId::new(2, 0);

    #[test]
    fn a_block_that_is_gone_hangs_below_one_that_is_there() {
        let cache = RankCache::new("w0/r0".to_owned(), vec![block(1, None), block(2, Some(1))]);
        let present = Caches {
            ranks: [(ALIVE, cache)].into(),
        };
        let past = Past {
            ranks: [
                ("w0/r0".to_owned(), had(ALIVE, &[block(3, Some(2)), block(1, None)], 0)),
                ("w1/r0".to_owned(), had(DEAD, &[block(9, None)], 3)),
            ]
            .into(),
        };
        let joined = past.joined(&present);
        let chains = |id: RankId| -> Vec<Vec<u64>> {
            let chains = joined.ranks[&id].chains();
            let hashes = |chain: &Vec<Block>| chain.iter().map(|block| block.hash.0).collect();
            chains.iter().map(hashes).collect()
        };
        assert_eq!((chains(ALIVE), chains(DEAD)), (vec![vec![1, 2, 3]], vec![vec![9]]));
        assert_eq!((joined.ranks[&DEAD].path.as_str(), past.dropped()), ("w1/r0", 3));
    }

    #[test]
    fn what_has_gone_since_a_look_is_told_also_when_the_memory_is_full() {
        let past = |blocks: &[u64], dropped: u64| {
            let blocks: Vec<Block> = blocks.iter().map(|hash| block(*hash, None)).collect();
            Past {
                ranks: [("w0/r0".to_owned(), had(ALIVE, &blocks, dropped))].into(),
            }
        };
        let gone = |earlier: &Past, later: &Past| -> Vec<u64> {
            let since = later.since(earlier);
            since.ranks[&ALIVE].blocks().iter().map(|block| block.hash.0).collect()
        };
        let earlier = past(&[1, 2, 3], 10);
        assert_eq!(gone(&earlier, &earlier), Vec::<u64>::new());
        assert_eq!(gone(&earlier, &past(&[2, 3, 4], 11)), [4]);
        assert_eq!(gone(&earlier, &past(&[7, 8, 9], 90)), [7, 8, 9], "and many more");
        assert_eq!(gone(&Past::default(), &earlier), [1, 2, 3]);
    }
}
