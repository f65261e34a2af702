//! Transfers that read GPU blocks which may be given away meanwhile.
//!
//! A reader follows the memory that it reads: through the release of the block, its eviction, and its next owner, who is
//! told of it. Blocks without content are one stack, and what is released last is taken first. Nothing is kept before
//! there is a reader. Source: Dynamo 1.6.1 engine core (source reuse of the native G1).

use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;

use super::pool::CopyId;
use super::tiers::TransferId;

/// Who reads what.
#[derive(Debug)]
pub(super) struct Readers {
    pending: HashSet<TransferId, FxBuildHasher>,
    /// By cached block.
    blocks: HashMap<u32, TransferId, FxBuildHasher>,
    /// Unused blocks in runs of the same reader, the top last.
    unused: Vec<(Option<TransferId>, u32)>,
    /// Readers of blocks that were taken, until they are asked for.
    taken: Vec<TransferId>,
}

impl Readers {
    /// Of a pool with so many unused blocks.
    pub(super) fn new(unused: u32) -> Self {
        Self {
            pending: HashSet::default(),
            blocks: HashMap::default(),
            unused: vec![(None, unused)],
            taken: Vec::new(),
        }
    }

    /// A transfer begins to read these blocks. `false`: another one still reads some of them; nothing is changed then.
    pub(super) fn begin(&mut self, id: TransferId, blocks: &[u32]) -> bool {
        if blocks.iter().any(|&at| self.of_block(at).is_some()) {
            return false;
        }
        self.pending.insert(id);
        self.blocks.extend(blocks.iter().map(|&at| (at, id)));
        true
    }

    /// A transfer is over.
    pub(super) fn end(&mut self, id: TransferId) {
        self.pending.remove(&id);
    }

    /// Who reads a cached block.
    pub(super) fn of_block(&self, at: u32) -> Option<TransferId> {
        self.still(self.blocks.get(&at).copied())
    }

    /// A block gets content while `reader` may read what was there before.
    pub(super) fn fill(&mut self, at: u32, reader: Option<TransferId>) {
        if let Some(reader) = self.still(reader) {
            self.blocks.insert(at, reader);
        }
    }

    /// A cached block is evicted: its memory is on top of the unused ones.
    pub(super) fn evict(&mut self, at: u32) {
        let reader = self.blocks.remove(&at);
        self.put_back(reader, 1);
    }

    /// Blocks without content, of one reader, are unused again.
    pub(super) fn put_back(&mut self, reader: Option<TransferId>, blocks: u32) {
        if blocks == 0 {
            return;
        }
        let reader = self.still(reader);
        match self.unused.last_mut() {
            Some((last, count)) if *last == reader => *count += blocks,
            _ => self.unused.push((reader, blocks)),
        }
    }

    /// Takes `blocks` unused blocks from the top; `read` gets the number, from 0 in the order in which they are taken, and
    /// the reader of those that are read. Readers of blocks that are taken are to be waited for.
    pub(super) fn take(&mut self, blocks: u32, mut read: impl FnMut(u32, TransferId)) {
        let mut taken = 0;
        while taken < blocks
            && let Some((reader, count)) = self.unused.last_mut()
        {
            let part = (*count).min(blocks - taken);
            *count -= part;
            let (reader, empty) = (*reader, *count == 0);
            if empty {
                self.unused.pop();
            }
            if let Some(reader) = self.still(reader) {
                (taken..taken + part).for_each(|number| read(number, reader));
                if !self.taken.contains(&reader) {
                    self.taken.push(reader);
                }
            }
            taken += part;
        }
    }

    /// The readers of blocks that were taken since the last call.
    pub(super) fn take_readers(&mut self) -> Vec<TransferId> {
        std::mem::take(&mut self.taken)
    }

    fn still(&self, reader: Option<TransferId>) -> Option<TransferId> {
        reader.filter(|reader| self.pending.contains(reader))
    }
}

/// Blocks that stay in use while they are read.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) blocks: HashSet<u32, FxBuildHasher>,
    by_reader: HashMap<TransferId, Vec<u32>, FxBuildHasher>,
}

impl Held {
    /// A transfer begins to read these blocks. `false`: another one still reads some of them; nothing is changed then.
    pub(super) fn begin(&mut self, id: TransferId, blocks: &[CopyId]) -> bool {
        if blocks.iter().any(|CopyId(at)| self.blocks.contains(at)) {
            return false;
        }
        let blocks: Vec<u32> = blocks.iter().map(|&CopyId(at)| at).collect();
        self.blocks.extend(&blocks);
        self.by_reader.insert(id, blocks);
        true
    }

    /// A transfer is over; what it read.
    pub(super) fn end(&mut self, id: TransferId) -> Vec<u32> {
        let blocks = self.by_reader.remove(&id).unwrap_or_default();
        for at in &blocks {
            self.blocks.remove(at);
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TransferId = TransferId::of_test(1);
    const B: TransferId = TransferId::of_test(2);

    #[test]
    fn a_reader_follows_the_memory_until_it_is_done() {
        let mut readers = Readers::new(2);
        assert!(readers.begin(A, &[7, 8]));
        assert!(!readers.begin(B, &[8, 9]), "one reader at a time");
        readers.evict(8);
        readers.evict(9);
        let mut read = Vec::new();
        readers.take(3, |number, id| read.push((number, id)));
        assert_eq!(read, [(1, A)], "the block that was evicted last is taken first");
        assert_eq!(readers.take_readers(), [A]);
        readers.put_back(Some(A), 1);
        readers.end(A);
        readers.take(2, |_, id| panic!("{id:?} is over"));
        assert!(readers.take_readers().is_empty());
        assert!(readers.begin(B, &[7]));
    }

    #[test]
    fn content_keeps_the_reader_of_what_was_there_before() {
        let mut readers = Readers::new(0);
        assert!(readers.begin(A, &[1]));
        readers.evict(1);
        readers.take(1, |_, _| ());
        readers.fill(4, Some(A));
        assert_eq!(readers.of_block(4), Some(A));
        assert!(!readers.begin(B, &[4]));
        readers.end(A);
        assert!(readers.begin(B, &[4]));
    }
}
