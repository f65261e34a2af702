//! The blocks that one rank has announced below the GPU, as a router should believe them.

use rustc_hash::FxHashMap;

use super::kv_event::encode_stored;
use crate::types::{DpRank, InstanceId, KvEvent, LocalHash, LowerTier, SequenceHash, StoredBlock, TierEvent};

/// Blocks with their parents, which may be elsewhere.
type ByHash = FxHashMap<SequenceHash, (Option<SequenceHash>, LocalHash)>;

/// Announced blocks by tier. Without any it owns no memory.
#[derive(Default)]
pub(super) struct LowerBlocks {
    tiers: [ByHash; LowerTier::ALL.len()],
}

impl LowerBlocks {
    /// Takes in one announced change.
    pub(super) fn apply(&mut self, TierEvent { tier, event }: &TierEvent) {
        let blocks = &mut self.tiers[*tier as usize];
        match event {
            KvEvent::Stored { parent, blocks: chain } => {
                let mut parent = *parent;
                for block in chain {
                    blocks.insert(block.block_hash, (parent, block.tokens_hash));
                    parent = Some(block.block_hash);
                }
            }
            KvEvent::Removed { block_hashes } => {
                for hash in block_hashes {
                    blocks.remove(hash);
                }
            }
            KvEvent::Cleared => *blocks = ByHash::default(),
        }
    }

    /// Events that withdraw everything.
    pub(super) fn withdrawals(&self) -> Vec<TierEvent> {
        let of = |tier: LowerTier| {
            let block_hashes: Vec<SequenceHash> = self.tiers[tier as usize].keys().copied().collect();
            (!block_hashes.is_empty()).then_some(TierEvent {
                tier,
                event: KvEvent::Removed { block_hashes },
            })
        };
        LowerTier::ALL.into_iter().filter_map(of).collect()
    }

    /// Appends a `stored` event per block, with ids from `first_id` on; returns how many.
    pub(super) fn dump(&self, out: &mut Vec<u8>, worker: InstanceId, rank: DpRank, first_id: usize) -> usize {
        let mut events = 0;
        for tier in LowerTier::ALL {
            for (&block_hash, &(parent, tokens_hash)) in &self.tiers[tier as usize] {
                let block = StoredBlock {
                    block_hash,
                    tokens_hash,
                };
                let id = (first_id + events) as u64;
                encode_stored(out, worker, rank, Some(tier), id, parent, &[block]);
                events += 1;
            }
        }
        events
    }
}
