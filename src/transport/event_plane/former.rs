//! Blocks that a rank has announced and has no more: what a router may still believe in although it should not.
//!
//! An index that only answers questions shows its phantoms to nobody who cannot name their prompts. Kept per rank, across
//! the rank's incarnations, so that blocks of a worker that has died can be asked for too.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::types::{SequenceHash, StoredBlock};

/// Blocks that one rank keeps, the newest: 64 KiB, and nothing before the first block is gone.
pub const KEPT_BLOCKS: usize = 2048;

/// A block with the one before it.
pub type Placed = (Option<SequenceHash>, StoredBlock);

/// The memory of one rank.
#[derive(Debug, Default)]
pub struct Former(Mutex<Memory>);

/// What is remembered.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Memory {
    /// Oldest first. A block that came back and went again is here twice.
    pub blocks: VecDeque<Placed>,
    /// Those that were too many to keep.
    pub dropped: u64,
}

impl Former {
    /// Notes blocks that are gone. Who notes many at once gives children before their parents: the oldest make room for
    /// new ones, and a block whose parent is forgotten is of no use.
    pub fn note(&self, gone: impl IntoIterator<Item = Placed>) {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for block in gone {
            if memory.blocks.len() == KEPT_BLOCKS {
                memory.blocks.pop_front();
                memory.dropped += 1;
            }
            memory.blocks.push_back(block);
        }
    }

    /// Counts blocks that were not even noted.
    pub(super) fn count_dropped(&self, blocks: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).dropped += blocks;
    }

    /// Everything that is remembered.
    pub fn memory(&self) -> Memory {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::LocalHash;

    #[test]
    fn the_newest_blocks_are_kept_and_the_others_counted() {
        let former = Former::default();
        let block = |hash: u64| {
            let block = StoredBlock {
                block_hash: SequenceHash(hash),
                tokens_hash: LocalHash(hash),
            };
            (None, block)
        };
        former.note((0..3).map(block));
        assert_eq!((former.memory().blocks.len(), former.memory().dropped), (3, 0));
        let many = KEPT_BLOCKS as u64 + 7;
        former.note((3..many).map(block));
        let memory = former.memory();
        assert_eq!((memory.blocks.len(), memory.dropped), (KEPT_BLOCKS, 7));
        assert_eq!(memory.blocks.front(), Some(&block(7)));
    }
}
