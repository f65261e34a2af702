//! What a router knows of a cache from its events.

use std::collections::BTreeMap;

use ghostfleet::types::{KvEvent, LowerTier, SequenceHash, StoredBlock, TierEvent};

/// Stored blocks with the number of copies and the parent that they were announced with.
#[derive(Debug, Default)]
pub(crate) struct Index {
    blocks: BTreeMap<SequenceHash, (u32, Option<SequenceHash>, StoredBlock)>,
}

impl Index {
    pub(crate) fn apply(&mut self, events: &[KvEvent]) {
        for event in events {
            match event {
                KvEvent::Stored { parent, blocks } => {
                    let mut parent = *parent;
                    for &block in blocks {
                        assert!(
                            parent.is_none_or(|hash| self.blocks.contains_key(&hash)),
                            "parents come first"
                        );
                        let entry = self.blocks.entry(block.block_hash).or_insert((0, parent, block));
                        entry.0 += 1;
                        assert_eq!((entry.1, entry.2), (parent, block));
                        parent = Some(block.block_hash);
                    }
                }
                KvEvent::Removed { block_hashes } => {
                    assert!(!block_hashes.is_empty());
                    for hash in block_hashes {
                        let entry = self.blocks.get_mut(hash).expect("only stored blocks are removed");
                        entry.0 -= 1;
                        if entry.0 == 0 {
                            self.blocks.remove(hash);
                        }
                    }
                }
                KvEvent::Cleared => self.blocks.clear(),
            }
        }
    }

    /// `orphans`: a block may outlive its parent.
    pub(crate) fn assert_equals(&self, cached: &[(Option<SequenceHash>, StoredBlock)], orphans: bool) {
        let listed = |hash| cached.iter().any(|(_, block)| block.block_hash == hash);
        let mut seen = BTreeMap::new();
        for &(parent, block) in cached {
            assert!(
                parent.is_none_or(|hash| seen.contains_key(&hash) || (orphans && !listed(hash))),
                "parents before children"
            );
            assert!(
                seen.insert(block.block_hash, (parent, block)).is_none(),
                "each block once"
            );
        }
        let told: BTreeMap<_, _> = self
            .blocks
            .iter()
            .map(|(&hash, &(_, parent, block))| (hash, (parent, block)))
            .collect();
        assert_eq!(told, seen);
    }
}

/// What a router knows of the memory below the GPU: a block may be there without the one before it.
#[derive(Debug, Default)]
pub(crate) struct LowerIndex {
    blocks: BTreeMap<(LowerTier, SequenceHash), (Option<SequenceHash>, StoredBlock)>,
}

impl LowerIndex {
    pub(crate) fn apply(&mut self, events: &[TierEvent]) {
        for TierEvent { tier, event } in events {
            match event {
                KvEvent::Stored { parent, blocks } => {
                    let mut parent = *parent;
                    for &block in blocks {
                        let before = self.blocks.insert((*tier, block.block_hash), (parent, block));
                        assert!(before.is_none(), "a tier holds a block once");
                        parent = Some(block.block_hash);
                    }
                }
                KvEvent::Removed { block_hashes } => {
                    for hash in block_hashes {
                        assert!(
                            self.blocks.remove(&(*tier, *hash)).is_some(),
                            "only stored blocks leave"
                        );
                    }
                }
                KvEvent::Cleared => panic!("lower tiers withdraw block by block"),
            }
        }
    }

    pub(crate) fn assert_equals(&self, held: &[(LowerTier, Option<SequenceHash>, StoredBlock)]) {
        let held: BTreeMap<_, _> = held
            .iter()
            .map(|&(tier, parent, block)| ((tier, block.block_hash), (parent, block)))
            .collect();
        assert_eq!(self.blocks, held);
    }
}
