//! Keys of the SGLang recordings: runs of consecutive tokens.

use std::collections::BTreeMap;

use ghostfleet::block_hash::hash_blocks;
use ghostfleet::types::{HashSalt, KvEvent, SequenceHash, StoredBlock, Token};
use serde::Deserialize;

/// For each pair `(s, n)` the `n` tokens `10000 * s`, `10000 * s + 1`, ...
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Key(Vec<(u32, u32)>);

impl Key {
    pub(crate) fn tokens(&self) -> Vec<Token> {
        let run = |&(start, count): &(u32, u32)| (0..count).map(move |at| 10_000 * start + at);
        self.0.iter().flat_map(run).collect()
    }

    /// Its complete pages.
    pub(crate) fn pages(&self, page_size: u32) -> Vec<StoredBlock> {
        hash_blocks(&self.tokens(), page_size as usize, &HashSalt::default(), false)
    }
}

/// Numbers hashes in order of first sight.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<SequenceHash, usize>);

impl Names {
    pub(crate) fn name(&mut self, hash: SequenceHash) -> usize {
        let next = self.0.len();
        *self.0.entry(hash).or_insert(next)
    }

    pub(crate) fn event(&mut self, event: &KvEvent) -> Event {
        match event {
            KvEvent::Stored { parent, blocks } => {
                let parent = parent.map(|hash| self.name(hash));
                Event::Stored {
                    stored: blocks.iter().map(|block| self.name(block.block_hash)).collect(),
                    parent,
                }
            }
            KvEvent::Removed { block_hashes } => Event::Removed {
                removed: block_hashes.iter().map(|&hash| self.name(hash)).collect(),
            },
            KvEvent::Cleared => Event::Cleared { cleared: true },
        }
    }
}

/// One recorded event. Other keys repeat what the hashes say already.
#[derive(Debug, Clone, Deserialize, PartialEq)]
#[serde(untagged)]
pub(crate) enum Event {
    Stored { stored: Vec<usize>, parent: Option<usize> },
    Removed { removed: Vec<usize> },
    Cleared { cleared: bool },
}
