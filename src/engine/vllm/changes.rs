//! What a pass tells of the prefix cache beside its events: the pool's state and, when asked for, block contents.

use super::super::{Pass, StoredContent};
use super::Vllm;
use crate::types::{KvEvent, StoredBlock};

impl Vllm {
    /// Books the events since the last call, all caused by the request at `at`. The pool can have named its blocks at any
    /// moment between their being taken and their being full, so contents are looked up after the fact.
    pub(super) fn note_changes(&mut self, at: u32, pass: &mut Pass) {
        if self.listing.stored {
            let news = pass.cache_changes.len();
            for event in &pass.kv_events[news..] {
                if let KvEvent::Stored { blocks, .. } = event {
                    let content = self.content(at, blocks);
                    pass.stored.push(content);
                }
            }
        }
        pass.note_cache_changes(self.used_blocks(), self.pool.inactive());
    }

    /// Content of a chain of blocks of the request at `at`.
    fn content(&self, at: u32, blocks: &[StoredBlock]) -> StoredContent {
        let slot = &self.slots[at];
        let start = blocks
            .first()
            .and_then(|first| slot.sequence.find_block(first.block_hash));
        debug_assert!(start.is_some(), "a request's events are about its own blocks");
        let mut tokens = Vec::new();
        for (index, _) in (start.unwrap_or(0)..).zip(blocks) {
            self.hasher.put_tokens(&slot.sequence, index, &mut tokens);
        }
        StoredContent {
            tokens,
            salt: slot.salt.clone(),
        }
    }
}
