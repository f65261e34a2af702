//! What the pages of `Stored` events contain, when somebody asks for it.

use std::ops::Range;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::super::{Pass, StoredContent};
use super::Sglang;
use crate::types::{HashSalt, KvEvent, SequenceHash, Token};

/// Pages that the cache may have spoken of since its events were taken last. Its log merges neighbours, also of several
/// requests, so that contents are put together only when the events are taken.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pages: HashMap<SequenceHash, Page, FxBuildHasher>,
}

#[derive(Debug)]
struct Page {
    tokens: Box<[Token]>,
    salt: HashSalt,
}

impl Sglang {
    /// Notes what these pages of a request contain; they have been hashed.
    pub(super) fn note_contents(&mut self, at: u32, pages: Range<u32>) {
        let Some(contents) = &mut self.contents else { return };
        let slot = &self.slots[at];
        for (page, index) in slot.sequence.hashed(pages.end)[pages.start as usize..]
            .iter()
            .zip(pages)
        {
            contents.pages.entry(page.block_hash).or_insert_with(|| {
                let mut tokens = Vec::with_capacity(self.rules.page as usize);
                self.hasher.put_tokens(&slot.sequence, index, &mut tokens);
                Page {
                    tokens: tokens.into(),
                    salt: slot.salt.clone(),
                }
            });
        }
    }

    /// Gives the contents of a pass's events and forgets the noted pages.
    pub(super) fn put_contents(&mut self, pass: &mut Pass) {
        let Some(contents) = &mut self.contents else { return };
        for event in &pass.kv_events {
            let KvEvent::Stored { blocks, .. } = event else {
                continue;
            };
            let mut content = StoredContent::default();
            for page in blocks.iter().filter_map(|block| contents.pages.get(&block.block_hash)) {
                content.tokens.extend_from_slice(&page.tokens);
                content.salt = page.salt.clone();
            }
            debug_assert_eq!(
                content.tokens.len(),
                blocks.len() * self.rules.page as usize,
                "every page is noted"
            );
            pass.stored.push(content);
        }
        contents.pages.clear();
    }
}
