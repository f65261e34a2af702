//! What a request holds of the pool: pages of its own, pages in the cache that it locks, and how it lets go of them.

use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;

use super::super::PageChangeKind;
use super::{Insert, Phase, RadixCache, Sglang};
use crate::types::{SequenceHash, StoredBlock};

impl Sglang {
    /// Evicts until `tokens` are free; `false`: there is not enough to evict.
    pub(super) fn make_room(&mut self, tokens: u64) -> bool {
        let missing = tokens.saturating_sub(self.available());
        if missing > 0 {
            let pages = missing.div_ceil(u64::from(self.rules.page));
            let freed = self.cache.evict(pages, |_| {});
            self.give_back(u32::try_from(freed).unwrap_or(0), PageChangeKind::Eviction);
        }
        self.available() >= tokens
    }

    /// Puts the complete pages of a request into the cache; copies that the cache has already are given back.
    pub(super) fn share(&mut self, at: u32) {
        let slot = &mut self.slots[at];
        let full = slot.sequence.computed / self.rules.page;
        if !self.rules.prefix_caching || full == 0 {
            return;
        }
        self.hasher.block(&mut slot.sequence, full - 1);
        let fresh = slot.cached..full;
        self.note_contents(at, fresh);
        let slot = &mut self.slots[at];
        let key = slot.sequence.hashed(full);
        let inserted = self.cache.insert_behind(slot.node, slot.cached, key, slot.insert());
        let copies = slot.cached.min(inserted.pages)..inserted.pages;
        self.cache.release(&key[copies.start as usize..copies.end as usize]);
        let prompt = slot.sequence.prompt_len() / self.rules.page;
        if self.rules.is_real() && (1..full).contains(&prompt) {
            // Prompt and answer become two nodes, so that answers can be evicted alone, and before prompts.
            let how = Insert {
                priority: slot.insert().priority.saturating_add(1),
                counted: prompt,
            };
            self.cache.insert(&key[..prompt as usize], how);
        }
        self.cache.lock(inserted.node);
        self.cache.unlock(slot.node);
        slot.node = inserted.node;
        slot.cached = full;
        slot.counted = full;
        self.give_back(copies.end - copies.start, PageChangeKind::Free);
    }

    /// A request has its last token: it goes, unless its pages wait for a transfer.
    pub(super) fn retire(&mut self, at: u32) {
        // Also where it was the first token, which a prefill brings.
        self.full = false;
        if self.slots[at].keeps_pages {
            self.hold(at);
        } else {
            self.finish(at);
            self.desk.room_came();
        }
    }

    /// A request goes; what it computed stays in the cache.
    pub(super) fn finish(&mut self, at: u32) {
        self.share(at);
        self.forget(at);
    }

    /// Takes away the pages that a request has for itself, and its hold on the others.
    pub(super) fn drop_pages(&mut self, at: u32) {
        let slot = &mut self.slots[at];
        let full = slot.sequence.computed / self.rules.page;
        // Pages that wait for their KV have not been told.
        if full > slot.cached && slot.phase != Phase::Reserved && !self.rules.is_real() && self.rules.prefix_caching {
            self.hasher.block(&mut slot.sequence, full - 1);
            self.cache.release(&slot.sequence.hashed(full)[slot.cached as usize..]);
        }
        let own = self.rules.pages(slot.sequence.computed) - slot.cached;
        let kind = if slot.phase == Phase::Reserved {
            PageChangeKind::ReleaseUnpublished
        } else {
            PageChangeKind::Free
        };
        self.cache.unlock(slot.node);
        slot.node = RadixCache::root();
        slot.cached = 0;
        slot.counted = 0;
        slot.sequence.computed = 0;
        self.give_back(own, kind);
    }

    /// The emulator tells of a request's complete pages before they are in the tree; adds those to `pages`.
    pub(super) fn add_untreed(&self, pages: &mut Vec<(Option<SequenceHash>, StoredBlock)>) {
        let mut known: HashSet<SequenceHash, FxBuildHasher> = pages.iter().map(|(_, page)| page.block_hash).collect();
        for slot in self.ids.values().map(|&at| &self.slots[at]) {
            let full = slot.sequence.computed / self.rules.page;
            if slot.phase == Phase::Reserved || full <= slot.cached {
                continue;
            }
            let own = slot.sequence.hashed(full);
            let mut parent = slot.cached.checked_sub(1).map(|last| own[last as usize].block_hash);
            for page in &own[slot.cached as usize..] {
                if known.insert(page.block_hash) {
                    pages.push((parent, *page));
                }
                parent = Some(page.block_hash);
            }
        }
    }

    /// Drops a request that is on no list any more.
    pub(super) fn forget(&mut self, at: u32) {
        self.drop_pages(at);
        if let Some(slot) = self.slots.remove(at) {
            self.ids.remove(&slot.sequence.id);
        }
    }
}
