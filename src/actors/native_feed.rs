//! What a rank tells its [`NativeStream`]: cache changes with the token ids of the blocks.
//!
//! An engine forgets a block's tokens when its sequence is gone, but a stream that starts anew has to tell them again.
//! So the ids of cached blocks are kept here, at 4 bytes per cached token, and only while somebody wants the stream.

use actix::Addr;
use rustc_hash::FxHashMap;

use super::native_stream::{NativeStream, PublishNative};
use crate::engine::StoredContent;
use crate::transport::event_plane::native::NativeEvent;
use crate::types::{HashSalt, KvEvent, SequenceHash, StoredBlock, Token};

/// Cached blocks, parents first.
type Cache = Vec<(Option<SequenceHash>, StoredBlock)>;

/// The rank's end of its native stream.
#[derive(Default)]
pub(super) struct NativeFeed {
    contents: Contents,
    stream: Option<Addr<NativeStream>>,
    /// The stream missed events and has to take over the whole cache with the next ones.
    resync: bool,
}

/// Tokens of the blocks that are cached.
#[derive(Default)]
struct Contents {
    blocks: FxHashMap<SequenceHash, Content>,
}

struct Content {
    tokens: Box<[Token]>,
    salt: HashSalt,
    /// Copies that the engine has announced and not withdrawn.
    copies: u32,
}

impl NativeFeed {
    /// A new incarnation of the stream, which starts with the whole cache.
    pub(super) fn connect(&mut self, stream: Addr<NativeStream>, cache: &Cache) {
        self.resync = stream
            .try_send(PublishNative::Replace(self.contents.whole(cache)))
            .is_err();
        self.stream = Some(stream);
    }

    /// Tells the changes of one pass; `stored` has the content of each `Stored` event. `cache` is asked only when the
    /// stream missed something before.
    pub(super) fn publish(&mut self, events: &[KvEvent], stored: Vec<StoredContent>, cache: impl FnOnce() -> Cache) {
        let native = self.contents.apply(events, stored);
        let Some(stream) = &self.stream else { return };
        if native.is_empty() {
            return;
        }
        let message = if self.resync {
            PublishNative::Replace(self.contents.whole(&cache()))
        } else {
            PublishNative::Events(native)
        };
        // A stream that hangs must not make the rank hoard events: it is told the whole truth later instead.
        self.resync = stream.try_send(message).is_err();
        if self.resync {
            metrics::counter!("ghostfleet_native_event_batches_held_total").increment(1);
        }
    }
}

impl Contents {
    fn apply(&mut self, events: &[KvEvent], stored: Vec<StoredContent>) -> Vec<NativeEvent> {
        let mut stored = stored.into_iter();
        let native = events.iter().filter_map(|event| match event {
            KvEvent::Stored { parent, blocks } => {
                let content = stored.next()?;
                self.store(blocks, &content);
                Some(NativeEvent::Stored {
                    parent: *parent,
                    hashes: blocks.iter().map(|block| block.block_hash).collect(),
                    tokens: content.tokens,
                    salt: content.salt,
                })
            }
            KvEvent::Removed { block_hashes } => {
                for hash in block_hashes {
                    self.remove(*hash);
                }
                Some(NativeEvent::Removed {
                    hashes: block_hashes.clone(),
                })
            }
            KvEvent::Cleared => {
                self.blocks = FxHashMap::default();
                Some(NativeEvent::Cleared)
            }
        });
        native.collect()
    }

    fn store(&mut self, blocks: &[StoredBlock], content: &StoredContent) {
        let block_tokens = content.tokens.len() / blocks.len().max(1);
        for (block, tokens) in blocks.iter().zip(content.tokens.chunks(block_tokens.max(1))) {
            let entry = self.blocks.entry(block.block_hash).or_insert_with(|| Content {
                tokens: tokens.into(),
                salt: content.salt.clone(),
                copies: 0,
            });
            entry.copies = entry.copies.saturating_add(1);
        }
    }

    fn remove(&mut self, hash: SequenceHash) {
        if let Some(content) = self.blocks.get_mut(&hash) {
            content.copies -= 1;
            if content.copies == 0 {
                self.blocks.remove(&hash);
            }
        }
    }

    /// Events that build the whole cache from nothing: each block as often as it has copies, as their removals come one
    /// by one too.
    fn whole(&self, cache: &Cache) -> Vec<NativeEvent> {
        let known = cache
            .iter()
            .filter_map(|(parent, block)| Some((parent, block.block_hash, self.blocks.get(&block.block_hash)?)));
        let events = known.flat_map(|(parent, hash, content)| {
            let event = NativeEvent::Stored {
                parent: *parent,
                hashes: vec![hash],
                tokens: content.tokens.to_vec(),
                salt: content.salt.clone(),
            };
            std::iter::repeat_n(event, content.copies as usize)
        });
        events.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::LocalHash;

    fn block(hash: u64) -> StoredBlock {
        StoredBlock {
            block_hash: SequenceHash(hash),
            tokens_hash: LocalHash(hash),
        }
    }

    fn stored(parent: Option<u64>, hashes: &[u64]) -> KvEvent {
        KvEvent::Stored {
            parent: parent.map(SequenceHash),
            blocks: hashes.iter().copied().map(block).collect(),
        }
    }

    fn removed(hash: u64) -> KvEvent {
        KvEvent::Removed {
            block_hashes: vec![SequenceHash(hash)],
        }
    }

    fn content(tokens: &[Token]) -> StoredContent {
        StoredContent {
            tokens: tokens.to_vec(),
            salt: HashSalt::default(),
        }
    }

    fn native(parent: Option<u64>, hashes: &[u64], tokens: &[Token]) -> NativeEvent {
        NativeEvent::Stored {
            parent: parent.map(SequenceHash),
            hashes: hashes.iter().copied().map(SequenceHash).collect(),
            tokens: tokens.to_vec(),
            salt: HashSalt::default(),
        }
    }

    #[test]
    fn each_stored_event_carries_its_own_tokens() {
        let mut contents = Contents::default();
        let events = [removed(9), stored(None, &[1, 2]), removed(8), stored(Some(2), &[3])];
        let told = contents.apply(&events, vec![content(&[10, 11, 12, 13]), content(&[14, 15])]);
        assert_eq!(told.len(), 4);
        assert_eq!(told[1], native(None, &[1, 2], &[10, 11, 12, 13]));
        assert_eq!(told[3], native(Some(2), &[3], &[14, 15]));
    }

    #[test]
    fn the_whole_cache_is_told_with_every_copy_and_without_what_left() {
        let mut contents = Contents::default();
        let events = [
            stored(None, &[1, 2]),
            stored(None, &[1]),
            stored(Some(2), &[3]),
            removed(3),
        ];
        let stored = vec![content(&[10, 11, 12, 13]), content(&[10, 11]), content(&[14, 15])];
        contents.apply(&events, stored);
        let cache = vec![(None, block(1)), (Some(SequenceHash(1)), block(2))];
        let root = native(None, &[1], &[10, 11]);
        assert_eq!(
            contents.whole(&cache),
            [root.clone(), root, native(Some(1), &[2], &[12, 13])]
        );
        contents.apply(&[removed(1)], Vec::new());
        assert_eq!(contents.whole(&cache).len(), 2, "one copy is left");
        contents.apply(&[KvEvent::Cleared], Vec::new());
        assert!(contents.blocks.is_empty());
    }
}
