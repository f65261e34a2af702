//! What the ranks of a fleet have had: prompts that a router may still believe in although nobody has them any more.

use super::cache::{Caches, RankCache};

/// Blocks that ranks have had lately, those of dead workers included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Past {
    /// By rank. Blocks that came back are here too.
    pub caches: Caches,
    /// Blocks that were too many to keep: what a router believes of them is out of sight.
    pub dropped: u64,
}

impl Past {
    /// Everything that is or was there, so that each block that is gone has the chain to its root.
    pub fn joined(&self, present: &Caches) -> Caches {
        let mut joined = present.clone();
        for (id, had) in &self.caches.ranks {
            let cache = joined.ranks.entry(*id).or_default();
            let blocks = cache.blocks().iter().chain(had.blocks()).copied().collect();
            *cache = RankCache::new(had.path.clone(), blocks);
        }
        joined
    }
}

#[cfg(test)]
mod tests {
    use super::super::cache::{Block, RankId};
    use super::*;
    use crate::types::{LocalHash, SequenceHash};

    #[test]
    fn a_block_that_is_gone_hangs_below_one_that_is_there() {
        let block = |hash: u64, parent: Option<u64>| Block {
            hash: SequenceHash(hash),
            local: LocalHash(hash),
            parent: parent.map(SequenceHash),
        };
        let cache = |blocks: &[Block]| RankCache::new("w0/r0".to_owned(), blocks.to_vec());
        let (alive, dead) = (RankId::new(1, 0), RankId::new(2, 0));
        let present = Caches {
            ranks: [(alive, cache(&[block(1, None), block(2, Some(1))]))].into(),
        };
        let past = Past {
            caches: Caches {
                ranks: [
                    (alive, cache(&[block(3, Some(2)), block(1, None)])),
                    (dead, cache(&[block(9, None)])),
                ]
                .into(),
            },
            dropped: 0,
        };
        let joined = past.joined(&present);
        let chains = |id: RankId| -> Vec<Vec<u64>> {
            let chains = joined.ranks[&id].chains();
            chains
                .iter()
                .map(|chain| chain.iter().map(|block| block.hash.0).collect())
                .collect()
        };
        assert_eq!((chains(alive), chains(dead)), (vec![vec![1, 2, 3]], vec![vec![9]]));
        assert_eq!(joined.ranks[&alive].path, "w0/r0");
    }
}
