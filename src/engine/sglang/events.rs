//! KV events of a radix cache.
//!
//! SGLang speaks of tree nodes: a page is stored when its node is made and removed when the node goes, and neighbours in
//! the queue are merged until it is taken. The reference emulator counts the owners of each page, requests and tree, and
//! speaks of the first and the last.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::types::{KvEvent, SequenceHash, StoredBlock};

/// What makes a page exist.
#[derive(Debug)]
pub(super) enum Identity {
    /// Its node.
    Node,
    /// Its owners, by page.
    Owners(HashMap<SequenceHash, u32, FxBuildHasher>),
}

/// Events that nobody has taken yet.
#[derive(Debug)]
pub(super) struct EventLog {
    identity: Identity,
    queue: Vec<KvEvent>,
}

impl EventLog {
    pub(super) fn new(identity: Identity) -> Self {
        Self {
            identity,
            queue: Vec::new(),
        }
    }

    /// A leaf was made of these pages.
    pub(super) fn inserted(&mut self, parent: Option<SequenceHash>, pages: &[StoredBlock]) {
        match self.identity {
            Identity::Node => self.stored(parent, pages),
            // The tree becomes their owner in place of the request.
            Identity::Owners(_) => {}
        }
    }

    /// A request filled these pages.
    pub(super) fn held(&mut self, mut parent: Option<SequenceHash>, pages: &[StoredBlock]) {
        let Identity::Owners(owners) = &mut self.identity else {
            return;
        };
        let is_new: Vec<bool> = pages
            .iter()
            .map(|page| {
                let count = owners.entry(page.block_hash).or_insert(0);
                *count += 1;
                *count == 1
            })
            .collect();
        let mut from = 0;
        for run in is_new.chunk_by(|a, b| a == b) {
            let to = from + run.len();
            if run[0] {
                self.queue.push(KvEvent::Stored {
                    parent,
                    blocks: pages[from..to].to_vec(),
                });
            }
            parent = pages.get(to - 1).map(|page| page.block_hash);
            from = to;
        }
    }

    /// A request gave up its own copies of these pages.
    pub(super) fn dropped(&mut self, pages: &[StoredBlock]) {
        if matches!(self.identity, Identity::Owners(_)) {
            let gone = pages.iter().map(|page| page.block_hash).collect();
            self.evicted(gone);
        }
    }

    /// The tree gave up these pages.
    pub(super) fn evicted(&mut self, mut pages: Vec<SequenceHash>) {
        match &mut self.identity {
            Identity::Node => {
                if let Some(KvEvent::Removed { block_hashes }) = self.queue.last_mut() {
                    block_hashes.append(&mut pages);
                    return;
                }
            }
            Identity::Owners(owners) => pages.retain(|page| {
                let count = owners.get_mut(page);
                let last = count.as_ref().is_none_or(|count| **count <= 1);
                if last {
                    owners.remove(page);
                } else if let Some(count) = count {
                    *count -= 1;
                }
                last
            }),
        }
        if !pages.is_empty() {
            self.queue.push(KvEvent::Removed { block_hashes: pages });
        }
    }

    /// The tree was dropped.
    pub(super) fn cleared(&mut self) {
        if let Identity::Owners(owners) = &mut self.identity {
            owners.clear();
        }
        self.queue.push(KvEvent::Cleared);
    }

    /// Moves everything to the end of `into`.
    pub(super) fn take(&mut self, into: &mut Vec<KvEvent>) {
        into.append(&mut self.queue);
    }

    fn stored(&mut self, parent: Option<SequenceHash>, pages: &[StoredBlock]) {
        if let Some(KvEvent::Stored { blocks, .. }) = self.queue.last_mut()
            && let Some(last) = blocks.last()
            && parent == Some(last.block_hash)
        {
            blocks.extend_from_slice(pages);
            return;
        }
        self.queue.push(KvEvent::Stored {
            parent,
            blocks: pages.to_vec(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::LocalHash;

    fn page(number: u64) -> StoredBlock {
        StoredBlock {
            block_hash: SequenceHash(number),
            tokens_hash: LocalHash(number),
        }
    }

    fn pages(numbers: std::ops::Range<u64>) -> Vec<StoredBlock> {
        numbers.map(page).collect()
    }

    fn taken(log: &mut EventLog) -> Vec<KvEvent> {
        let mut events = Vec::new();
        log.take(&mut events);
        events
    }

    fn stored(parent: Option<u64>, numbers: std::ops::Range<u64>) -> KvEvent {
        KvEvent::Stored {
            parent: parent.map(SequenceHash),
            blocks: pages(numbers),
        }
    }

    fn removed(numbers: std::ops::Range<u64>) -> KvEvent {
        KvEvent::Removed {
            block_hashes: numbers.map(SequenceHash).collect(),
        }
    }

    #[test]
    fn neighbours_are_merged_until_the_queue_is_taken() {
        let mut log = EventLog::new(Identity::Node);
        log.inserted(None, &pages(0..2));
        log.inserted(Some(SequenceHash(1)), &pages(2..4));
        log.inserted(Some(SequenceHash(1)), &pages(4..5));
        log.evicted(vec![SequenceHash(7)]);
        log.evicted(vec![SequenceHash(8)]);
        assert_eq!(
            taken(&mut log),
            [stored(None, 0..4), stored(Some(1), 4..5), removed(7..9)]
        );
        log.evicted(vec![SequenceHash(9)]);
        assert_eq!(taken(&mut log), [removed(9..10)]);
    }

    #[test]
    fn the_emulator_tells_of_the_first_owner_and_the_last() {
        let mut log = EventLog::new(Identity::Owners(HashMap::default()));
        log.held(None, &pages(0..3));
        log.inserted(None, &pages(0..3));
        assert_eq!(taken(&mut log), [stored(None, 0..3)]);
        log.held(None, &pages(0..2));
        log.held(Some(SequenceHash(1)), &[page(5), page(2), page(6)]);
        assert_eq!(taken(&mut log), [stored(Some(1), 5..6), stored(Some(2), 6..7)]);
        log.dropped(&pages(0..2));
        assert_eq!(taken(&mut log), []);
        log.evicted(vec![SequenceHash(0), SequenceHash(1), SequenceHash(2)]);
        assert_eq!(taken(&mut log), [removed(0..2)]);
        log.cleared();
        log.held(None, &pages(2..3));
        assert_eq!(taken(&mut log), [KvEvent::Cleared, stored(None, 2..3)]);
    }
}
