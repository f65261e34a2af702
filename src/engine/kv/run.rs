//! Blocks that become visible one after the other, gathered into one event.

use super::logical::BlockIdentity;
use crate::types::{KvEvent, SequenceHash, StoredBlock};

/// A chain of newly visible blocks of one request; a block that was visible already ends it.
#[derive(Debug, Default)]
pub(crate) struct StoredRun {
    parent: Option<SequenceHash>,
    blocks: Vec<StoredBlock>,
}

impl StoredRun {
    /// Adds the block behind the last one.
    pub(crate) fn push(&mut self, identity: &BlockIdentity) {
        if self.blocks.is_empty() {
            self.parent = identity.parent;
        }
        self.blocks.push(identity.block);
    }

    /// Ends the chain, with an event if there is any block in it.
    pub(crate) fn flush(&mut self, events: &mut Vec<KvEvent>) {
        if self.blocks.is_empty() {
            return;
        }
        let blocks = self.blocks.as_slice().to_vec();
        self.blocks.clear();
        events.push(KvEvent::Stored {
            parent: self.parent,
            blocks,
        });
    }
}
