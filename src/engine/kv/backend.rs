//! Which pool an engine has, and the operations that its scheduler needs of it.

use serde::{Deserialize, Serialize};

use super::logical::{BlockIdentity, LogicalPool};
use super::pool::{BlockTable, CopyId, EventStyle, KvPool};
use super::tiers::TransferId;
use crate::types::{KvEvent, SequenceHash, StoredBlock};

/// Pool of KV blocks, and which inactive blocks leave it first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvictionBackend {
    /// The engine's own pool: physical copies, least recently used first.
    #[default]
    Native,
    /// Logical blocks; only those that no other inactive block hangs on, the longest inactive first.
    Lineage,
    /// As [`Self::Lineage`], but the first that came to be without children first.
    LineageFifo,
    /// Logical blocks; the longest inactive first.
    Lru,
    /// Logical blocks in four tiers by how often they were used; the longest inactive of the coldest tier first.
    MultiLru,
}

impl EvictionBackend {
    /// Every backend, for tests that run over all of them.
    pub const ALL: [Self; 5] = [
        Self::Native,
        Self::Lineage,
        Self::LineageFifo,
        Self::Lru,
        Self::MultiLru,
    ];

    /// Whether blocks of `block_size` tokens can be kept: the logical ones want a power of two in 1..=1024.
    pub fn accepts_block_size(self, block_size: u32) -> bool {
        match self {
            Self::Native => true,
            Self::Lineage | Self::LineageFifo | Self::Lru | Self::MultiLru => {
                block_size.is_power_of_two() && block_size <= 1024
            }
        }
    }
}

/// Dynamo 1.4.2's choice of pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum G1Backend {
    /// The engine's own.
    Native,
    /// That of kvbm-logical.
    Kvbm,
}

impl G1Backend {
    /// What it evicts by.
    pub fn eviction(self) -> EvictionBackend {
        match self {
            Self::Native => EvictionBackend::Native,
            Self::Kvbm => EvictionBackend::Lineage,
        }
    }
}

/// One rank's pool.
#[derive(Debug)]
pub(crate) enum BlockPool {
    Native(KvPool),
    Logical(LogicalPool),
}

impl BlockPool {
    /// `style` is that of the native pool.
    pub(crate) fn new(backend: EvictionBackend, capacity: u32, style: EventStyle) -> Self {
        match LogicalPool::new(capacity, backend) {
            None => Self::Native(KvPool::new(capacity, style)),
            Some(pool) => Self::Logical(pool),
        }
    }

    /// Whether full blocks are registered when they are taken (else when they are computed), and those that fill up while
    /// decoding when the next token is drawn (else when their last token is computed).
    pub(crate) fn is_eager(&self) -> bool {
        matches!(self, Self::Logical(_))
    }

    pub(crate) fn capacity(&self) -> u32 {
        match self {
            Self::Native(pool) => pool.capacity(),
            Self::Logical(pool) => pool.capacity(),
        }
    }

    /// Blocks that requests use.
    pub(crate) fn active(&self) -> u32 {
        match self {
            Self::Native(pool) => pool.active(),
            Self::Logical(pool) => pool.active(),
        }
    }

    /// Cached blocks that nobody uses.
    pub(crate) fn inactive(&self) -> u32 {
        match self {
            Self::Native(pool) => pool.inactive(),
            Self::Logical(pool) => pool.inactive(),
        }
    }

    /// Blocks that can be taken, evictions included.
    pub(crate) fn available(&self) -> u32 {
        match self {
            Self::Native(pool) => pool.available(),
            Self::Logical(pool) => pool.available(),
        }
    }

    /// Changes whenever an admission might be decided differently.
    pub(crate) fn version(&self) -> u64 {
        match self {
            Self::Native(pool) => pool.version(),
            Self::Logical(pool) => pool.version(),
        }
    }

    /// The block that answers for `hash`.
    pub(crate) fn lookup(&self, hash: SequenceHash) -> Option<CopyId> {
        match self {
            Self::Native(pool) => pool.lookup(hash),
            Self::Logical(pool) => pool.lookup(hash),
        }
    }

    pub(crate) fn is_referenced(&self, id: CopyId) -> bool {
        match self {
            Self::Native(pool) => pool.is_referenced(id),
            Self::Logical(pool) => pool.is_referenced(id),
        }
    }

    /// Puts cached blocks at the front of an empty table and takes a reference on each.
    pub(crate) fn adopt(&mut self, table: &mut BlockTable, hits: &[CopyId]) {
        match self {
            Self::Native(pool) => pool.adopt(table, hits),
            Self::Logical(pool) => pool.adopt(table, hits),
        }
    }

    /// Adds `blocks` blocks to a table, evicting as needed; `false` and nothing taken if there are not enough. An eager
    /// pool registers the first of them as `known`.
    pub(crate) fn take(
        &mut self,
        table: &mut BlockTable,
        known: &[BlockIdentity],
        blocks: u32,
        events: &mut Vec<KvEvent>,
    ) -> bool {
        match self {
            Self::Native(pool) => {
                let enough = blocks <= pool.available();
                if enough {
                    pool.take(table, blocks, events);
                }
                enough
            }
            Self::Logical(pool) => pool.take(table, known, blocks, events),
        }
    }

    /// Makes room for `blocks` more blocks, which are there to take, at once rather than one by one.
    pub(crate) fn make_room(&mut self, blocks: u32, events: &mut Vec<KvEvent>) {
        match self {
            Self::Native(pool) => pool.make_room(blocks, events),
            // Logical blocks are taken one by one.
            Self::Logical(_) => {}
        }
    }

    /// Makes the first private block of a table visible in the cache. Returns whether that is an event.
    pub(crate) fn publish(&mut self, table: &mut BlockTable, identity: BlockIdentity) -> bool {
        match self {
            Self::Native(pool) => pool.publish(table, identity.block, identity.parent),
            Self::Logical(pool) => pool.publish(table, identity),
        }
    }

    /// Gives all blocks of a table back, last to first.
    pub(crate) fn release(&mut self, table: &mut BlockTable) {
        match self {
            Self::Native(pool) => pool.release(table),
            Self::Logical(pool) => pool.release(table),
        }
    }

    /// Keeps what is evicted from now on for [`Self::take_lost`].
    pub(crate) fn keep_lost(&mut self) {
        match self {
            Self::Native(pool) => pool.keep_lost(),
            Self::Logical(pool) => pool.keep_lost(),
        }
    }

    /// Takes the content that was evicted, in order.
    pub(crate) fn take_lost(&mut self) -> Vec<BlockIdentity> {
        match self {
            Self::Native(pool) => pool.take_lost(),
            Self::Logical(pool) => pool.take_lost(),
        }
    }

    /// Blocks that a transfer reads stay in use until it is over. Only the native pool keeps a book of transfers.
    pub(crate) fn hold_read(&mut self) {
        if let Self::Native(pool) = self {
            pool.hold_read();
        }
    }

    /// Blocks that only transfers keep in use. O(blocks that are read).
    pub(crate) fn held(&self) -> u32 {
        match self {
            Self::Native(pool) => pool.held(),
            Self::Logical(_) => 0,
        }
    }

    /// A transfer begins to read these cached blocks. Only the native pool keeps a book of that.
    pub(crate) fn begin_reading(&mut self, id: TransferId, blocks: &[CopyId]) {
        if let Self::Native(pool) = self {
            let began = pool.begin_reading(id, blocks);
            debug_assert!(began, "nobody else reads what is about to be read");
        }
    }

    /// Whether a transfer reads a cached block.
    pub(crate) fn is_read(&self, id: CopyId) -> bool {
        match self {
            Self::Native(pool) => pool.is_read(id),
            Self::Logical(_) => false,
        }
    }

    /// A transfer is over.
    pub(crate) fn end_reading(&mut self, id: TransferId) {
        if let Self::Native(pool) = self {
            pool.end_reading(id);
        }
    }

    /// The transfers that still read blocks which were taken since the last call.
    pub(crate) fn take_readers(&mut self) -> Vec<TransferId> {
        match self {
            Self::Native(pool) => pool.take_readers(),
            Self::Logical(_) => Vec::new(),
        }
    }

    /// Drops every inactive block.
    pub(crate) fn clear(&mut self) -> Vec<KvEvent> {
        match self {
            Self::Native(pool) => pool.clear(),
            Self::Logical(pool) => pool.clear(),
        }
    }

    /// Content of the cache: each hash once, parents before children.
    pub(crate) fn cached_blocks(&self) -> Vec<(Option<SequenceHash>, StoredBlock)> {
        match self {
            Self::Native(pool) => pool.cached_blocks(),
            Self::Logical(pool) => pool.cached_blocks(),
        }
    }
}
