//! What a block is called inside the pool.

use crate::types::{SequenceHash, StoredBlock};

/// A full block and its place in its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockIdentity {
    /// Identity and content.
    pub block: StoredBlock,
    /// The block before it; `None` at the root.
    pub parent: Option<SequenceHash>,
    /// Blocks before it.
    pub position: u32,
}

/// Positions from which a wider position field is used: width in bits of the position and of the parent's fragment.
const LAYOUTS: [(u32, u32, u32); 3] = [(1 << 8, 8, 54), (1 << 16, 16, 46), (u32::MAX, 24, 38)];

impl BlockIdentity {
    /// The 128-bit name under which accesses are counted.
    ///
    /// ```text
    /// bits      127..126   then 8 | 16 | 24        then 64          the lowest 54 | 46 | 38
    /// content   layout     position in blocks      sequence hash    low bits of the parent's sequence hash (root: 0)
    /// ```
    ///
    /// Positions beyond 24 bits keep their low bits. Source: dynamo-tokens 1.6.1, positional lineage hash.
    pub(super) fn access_key(&self) -> u128 {
        let layout = LAYOUTS
            .iter()
            .position(|&(end, ..)| self.position < end)
            .unwrap_or(LAYOUTS.len() - 1);
        let (_, position_bits, parent_bits) = LAYOUTS[layout];
        let low = |value: u64, bits: u32| u128::from(value & ((1 << bits) - 1));
        let parent = self.parent.map_or(0, |hash| hash.0);
        ((layout as u128) << 126)
            | (low(u64::from(self.position), position_bits) << (64 + parent_bits))
            | (u128::from(self.block.block_hash.0) << parent_bits)
            | low(parent, parent_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::LocalHash;

    fn key(position: u32, parent: Option<u64>) -> u128 {
        BlockIdentity {
            block: StoredBlock {
                block_hash: SequenceHash(0x0123_4567_89ab_cdef),
                tokens_hash: LocalHash(0),
            },
            parent: parent.map(SequenceHash),
            position,
        }
        .access_key()
    }

    #[test]
    fn the_parents_fragment_narrows_as_the_position_widens() {
        let hash = 0x0123_4567_89ab_cdef_u128;
        assert_eq!(key(0, None), hash << 54);
        assert_eq!(key(255, Some(u64::MAX)), (255 << 118) | (hash << 54) | ((1 << 54) - 1));
        assert_eq!(
            key(256, Some(u64::MAX)),
            (1 << 126) | (256 << 110) | (hash << 46) | ((1 << 46) - 1)
        );
        assert_eq!(key(65_536, Some(5)), (2 << 126) | (65_536 << 102) | (hash << 38) | 5);
        assert_eq!(key(u32::MAX, None) >> 126, 2);
    }
}
