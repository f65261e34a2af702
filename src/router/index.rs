//! Which blocks are cached where.
//!
//! A sequence hash names a block together with everything before it, so one flat map from hash to the set of targets that
//! hold it answers prefix queries: walk the prompt's hashes while some target still holds each of them. An event costs
//! O(blocks in it), a query O(matched blocks + targets).

use hashbrown::HashTable;

use super::targets::{WORD, members};
use crate::types::{KvEvent, SequenceHash};

/// Blocks per target.
#[derive(Debug, Default)]
pub struct Index {
    /// Words per set.
    words: usize,
    slots: HashTable<u32>,
    hashes: Vec<SequenceHash>,
    /// `words` words per slot: which targets hold the block.
    holders: Vec<u64>,
    vacant: Vec<u32>,
    /// Scratch of a query: targets that hold everything so far.
    matching: Vec<u64>,
}

impl Index {
    /// An index for `targets` targets, numbered from 0.
    pub fn new(targets: usize) -> Self {
        Self {
            words: targets.div_ceil(WORD).max(1),
            ..Self::default()
        }
    }

    /// Makes room for targets up to `targets`.
    pub fn grow(&mut self, targets: usize) {
        let words = targets.div_ceil(WORD).max(1);
        if words <= self.words {
            return;
        }
        let mut wider = vec![0; self.hashes.len() * words];
        for slot in 0..self.hashes.len() {
            let from = &self.holders[slot * self.words..(slot + 1) * self.words];
            wider[slot * words..slot * words + self.words].copy_from_slice(from);
        }
        self.holders = wider;
        self.words = words;
    }

    /// Blocks that somebody holds.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether nothing is cached anywhere.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn find(&self, hash: SequenceHash) -> Option<usize> {
        let hashes = &self.hashes;
        self.slots
            .find(hash.0, |&slot| hashes[slot as usize] == hash)
            .map(|&slot| slot as usize)
    }

    fn holders(&self, slot: usize) -> &[u64] {
        &self.holders[slot * self.words..(slot + 1) * self.words]
    }

    fn insert(&mut self, hash: SequenceHash, target: usize) {
        let slot = self.find(hash).unwrap_or_else(|| self.add(hash));
        self.holders[slot * self.words + target / WORD] |= 1 << (target % WORD);
    }

    fn add(&mut self, hash: SequenceHash) -> usize {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.hashes.push(hash);
            self.holders.resize(self.hashes.len() * self.words, 0);
            u32::try_from(self.hashes.len() - 1).unwrap_or(u32::MAX)
        });
        self.hashes[slot as usize] = hash;
        let hashes = &self.hashes;
        self.slots
            .insert_unique(hash.0, slot, |&other| hashes[other as usize].0);
        slot as usize
    }

    fn remove(&mut self, hash: SequenceHash, target: usize) {
        let Some(slot) = self.find(hash) else { return };
        self.holders[slot * self.words + target / WORD] &= !(1 << (target % WORD));
        if self.holders(slot).iter().all(|&word| word == 0) {
            self.vacate(slot);
        }
    }

    fn vacate(&mut self, slot: usize) {
        let hash = self.hashes[slot];
        if let Ok(entry) = self.slots.find_entry(hash.0, |&other| other as usize == slot) {
            let (slot, _) = entry.remove();
            self.vacant.push(slot);
        }
    }

    /// Takes over what `event` says about target number `target`.
    pub fn apply(&mut self, target: usize, event: &KvEvent) {
        match event {
            KvEvent::Stored { blocks, .. } => {
                for block in blocks {
                    self.insert(block.block_hash, target);
                }
            }
            KvEvent::Removed { block_hashes } => {
                for &hash in block_hashes {
                    self.remove(hash, target);
                }
            }
            KvEvent::Cleared => self.forget(target),
        }
    }

    /// Drops everything that target number `target` holds. Costs O(blocks).
    pub fn forget(&mut self, target: usize) {
        for slot in 0..self.hashes.len() {
            let word = &mut self.holders[slot * self.words + target / WORD];
            let bit = 1 << (target % WORD);
            if *word & bit == 0 {
                continue;
            }
            *word &= !bit;
            if self.holders(slot).iter().all(|&word| word == 0) {
                self.vacate(slot);
            }
        }
    }

    /// For each target the number of leading blocks of `prompt` that it holds, into `depths` (one entry per target).
    pub fn overlaps(&mut self, prompt: &[SequenceHash], depths: &mut [u32]) {
        depths.fill(0);
        let mut matching = std::mem::take(&mut self.matching);
        matching.clear();
        matching.resize(self.words, u64::MAX);
        let mut reached = 0;
        for &hash in prompt {
            let Some(slot) = self.find(hash) else { break };
            let mut some = 0;
            for (at, (word, &holder)) in matching.iter_mut().zip(self.holders(slot)).enumerate() {
                settle(at, *word & !holder, reached, depths);
                *word &= holder;
                some |= *word;
            }
            if some == 0 {
                break;
            }
            reached += 1;
        }
        for (at, &word) in matching.iter().enumerate() {
            settle(at, word, reached, depths);
        }
        self.matching = matching;
    }

    /// For each target the number of blocks of `prompt` that it holds one after the other from position `from` on, into
    /// `hits` (one entry per target).
    pub fn continued(&mut self, prompt: &[SequenceHash], from: &[u32], hits: &mut [u32]) {
        hits.fill(0);
        if self.is_empty() {
            return;
        }
        let mut starts: Vec<(usize, usize)> = from.iter().map(|&from| from as usize).zip(0..).collect();
        starts.sort_unstable();
        let mut starts = starts.into_iter().peekable();
        let mut going: Vec<usize> = Vec::new();
        let mut at = starts.peek().map_or(0, |&(first, _)| first);
        while let Some(&hash) = prompt.get(at) {
            while let Some((_, target)) = starts.next_if(|&(start, _)| start <= at) {
                going.push(target);
            }
            match self.find(hash) {
                Some(slot) => {
                    let holders = self.holders(slot);
                    going.retain(|&target| holders[target / WORD] & (1 << (target % WORD)) != 0);
                }
                None => going.clear(),
            }
            for &target in &going {
                hits[target] += 1;
            }
            at += 1;
            if going.is_empty() {
                let Some(&(next, _)) = starts.peek() else { break };
                at = at.max(next);
            }
        }
    }
}

/// Writes `depth` for the targets in word number `at`; 0 is there already.
fn settle(at: usize, word: u64, depth: usize, depths: &mut [u32]) {
    if depth == 0 {
        return;
    }
    for bit in members(&[word]) {
        if let Some(entry) = depths.get_mut(at * WORD + bit) {
            *entry = u32::try_from(depth).unwrap_or(u32::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{LocalHash, StoredBlock};

    fn hashes(range: std::ops::Range<u64>) -> Vec<SequenceHash> {
        range
            .map(|n| SequenceHash(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
            .collect()
    }

    fn stored(blocks: &[SequenceHash]) -> KvEvent {
        let block = |&block_hash| StoredBlock {
            block_hash,
            tokens_hash: LocalHash(0),
        };
        KvEvent::Stored {
            parent: None,
            blocks: blocks.iter().map(block).collect(),
        }
    }

    #[test]
    fn a_prompt_matches_each_target_as_far_as_it_holds_every_block() {
        let prompt = hashes(1..6);
        let mut index = Index::new(70);
        index.apply(0, &stored(&prompt[..2]));
        index.apply(69, &stored(&prompt));
        index.apply(3, &stored(&prompt[1..]));
        let mut depths = vec![9; 70];
        index.overlaps(&prompt, &mut depths);
        assert_eq!((depths[0], depths[69], depths[3], depths[1]), (2, 5, 0, 0));
        index.apply(
            69,
            &KvEvent::Removed {
                block_hashes: prompt[3..].to_vec(),
            },
        );
        index.overlaps(&prompt, &mut depths);
        assert_eq!((depths[0], depths[69]), (2, 3));
        index.overlaps(&hashes(100..102), &mut depths);
        assert!(depths.iter().all(|&depth| depth == 0));
    }

    #[test]
    fn a_forgotten_target_leaves_nothing_and_growing_keeps_everything() {
        let prompt = hashes(1..4);
        let mut index = Index::new(1);
        index.apply(0, &stored(&prompt));
        index.grow(200);
        index.apply(150, &stored(&prompt[..1]));
        let mut depths = vec![0; 200];
        index.overlaps(&prompt, &mut depths);
        assert_eq!((depths[0], depths[150]), (3, 1));
        index.forget(0);
        assert_eq!(index.len(), 1);
        index.apply(150, &KvEvent::Cleared);
        assert!(index.is_empty());
    }
}
