//! One block manager, the handles held on it, and the record of what was done.

use std::sync::Arc;

use kvbm_logical::blocks::BlockDuplicationPolicy;
use kvbm_logical::manager::LineageEviction;
use kvbm_logical::tinylfu::TinyLFUTracker;
use kvbm_logical::{BlockManager, BlockRegistry, ImmutableBlock, MutableBlock, SequenceHash};
use serde_json::{Value, json};

use crate::workload::Forest;

const BLOCK_SIZE: usize = 16;

/// Storage tier of the manager; only a marker for the crate.
#[derive(Clone)]
pub(crate) struct G1;

#[derive(Clone, Copy)]
pub(crate) enum Backend {
    Lineage,
    LineageFifo,
    Lru,
    MultiLru,
}

impl Backend {
    pub(crate) const ALL: [Self; 4] = [Self::Lineage, Self::LineageFifo, Self::Lru, Self::MultiLru];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lineage => "lineage",
            Self::LineageFifo => "lineage_fifo",
            Self::Lru => "lru",
            Self::MultiLru => "multi_lru",
        }
    }

    fn manager(self, capacity: usize) -> BlockManager<G1> {
        let registry = match self {
            Self::MultiLru => BlockRegistry::builder().frequency_tracker(Arc::new(TinyLFUTracker::new(capacity))),
            Self::Lineage | Self::LineageFifo | Self::Lru => BlockRegistry::builder(),
        };
        let builder = BlockManager::builder()
            .block_count(capacity)
            .block_size(BLOCK_SIZE)
            .registry(registry.build())
            .duplication_policy(BlockDuplicationPolicy::Reject);
        match self {
            Self::Lineage => builder.with_lineage_backend(),
            Self::LineageFifo => builder.with_lineage_backend_eviction(LineageEviction::Fifo),
            Self::Lru => builder.with_lru_backend(),
            Self::MultiLru => builder.with_multi_lru_backend(),
        }
        .build()
        .expect("a valid configuration")
    }
}

/// See the module's text. Operations are named as in the README of the recordings.
pub(crate) struct Driver<'a> {
    manager: BlockManager<G1>,
    forest: &'a Forest,
    mutable: Vec<MutableBlock<G1>>,
    held: Vec<(usize, ImmutableBlock<G1>)>,
    operations: Vec<Value>,
    evicted: usize,
}

impl<'a> Driver<'a> {
    pub(crate) fn new(backend: Backend, capacity: usize, forest: &'a Forest) -> Self {
        Self {
            manager: backend.manager(capacity),
            forest,
            mutable: Vec::new(),
            held: Vec::new(),
            operations: Vec::new(),
            evicted: 0,
        }
    }

    pub(crate) fn forest(&self) -> &'a Forest {
        self.forest
    }

    pub(crate) fn operations(&self) -> &[Value] {
        &self.operations
    }

    pub(crate) fn evicted(&self) -> usize {
        self.evicted
    }

    pub(crate) fn mutable(&self) -> usize {
        self.mutable.len()
    }

    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn available(&self) -> usize {
        self.manager.available_blocks()
    }

    /// Reset or evicted blocks become mutable.
    pub(crate) fn allocate(&mut self, blocks: usize) -> bool {
        let got = self.manager.allocate_blocks_with_evictions(blocks);
        let evicted = got.map(|(blocks, evicted)| {
            self.mutable.extend(blocks);
            evicted
                .into_iter()
                .map(|hash| self.forest.find(hash))
                .collect::<Vec<_>>()
        });
        self.evicted += evicted.as_ref().map_or(0, Vec::len);
        let done = evicted.is_some();
        self.note(json!(["allocate", blocks, evicted]));
        done
    }

    /// Mutable blocks are dropped unused, some of them after they were staged.
    pub(crate) fn discard(&mut self, blocks: usize) {
        for n in 0..blocks {
            let block = self.mutable.pop().expect("blocks were allocated");
            if n % 2 == 1 {
                drop(block.stage(self.forest.hash(0), BLOCK_SIZE).expect("the size fits"));
            }
        }
        self.note(json!(["discard", blocks]));
    }

    /// Mutable blocks get the identity of `nodes` and are registered in one batch, or one by one.
    pub(crate) fn register(&mut self, nodes: &[usize], batch: bool) {
        let mut candidates = Vec::new();
        let mut complete = Vec::new();
        for &node in nodes {
            let block = self.mutable.pop().expect("blocks were allocated");
            candidates.push(block.block_id());
            complete.push(block.stage(self.forest.hash(node), BLOCK_SIZE).expect("the size fits"));
        }
        let registered = if batch {
            self.manager.register_blocks(complete)
        } else {
            complete
                .into_iter()
                .map(|block| self.manager.register_block(block))
                .collect()
        };
        let fresh: Vec<u8> = registered
            .iter()
            .zip(candidates)
            .map(|(block, candidate)| u8::from(block.block_id() == candidate))
            .collect();
        self.held.extend(nodes.iter().copied().zip(registered));
        self.note(json!(["register", nodes, fresh]));
    }

    /// Handles on the blocks of `nodes` up to the first one that is not there.
    pub(crate) fn match_prefix(&mut self, nodes: &[usize]) -> usize {
        let hashes: Vec<SequenceHash> = nodes.iter().map(|&node| self.forest.hash(node)).collect();
        let found = self.manager.match_blocks(&hashes);
        let hits = found.len();
        self.held.extend(nodes.iter().copied().zip(found));
        self.note(json!(["match", nodes, hits]));
        hits
    }

    /// Handles on those blocks of `nodes` that are there.
    pub(crate) fn match_scattered(&mut self, nodes: &[usize]) {
        let hashes: Vec<SequenceHash> = nodes.iter().map(|&node| self.forest.hash(node)).collect();
        let found = self.manager.match_blocks_scattered(&hashes);
        let hits: Vec<u8> = found.iter().map(|block| u8::from(block.is_some())).collect();
        let pairs = nodes.iter().copied().zip(found);
        self.held.extend(pairs.filter_map(|(node, block)| Some((node, block?))));
        self.note(json!(["scatter", nodes, hits]));
    }

    /// Drops the handles at these places of the list of held ones, in the order given.
    pub(crate) fn release(&mut self, places: &[usize]) {
        let mut handles: Vec<Option<_>> = self.held.drain(..).map(Some).collect();
        let mut nodes = Vec::new();
        for &place in places {
            if let Some((node, block)) = handles[place].take() {
                nodes.push(node);
                drop(block);
            }
        }
        self.held.extend(handles.into_iter().flatten());
        self.note(json!(["release", nodes]));
    }

    /// Every inactive block is dropped. The crate reports an error while blocks are in use; they stay.
    pub(crate) fn clear(&mut self) {
        let all = self.manager.reset_inactive_pool().is_ok();
        self.note(json!(["clear", all]));
    }

    /// Adds an operation with the counts after it: available and inactive blocks.
    fn note(&mut self, mut operation: Value) {
        let inactive = self.manager.metrics().snapshot().inactive_pool_size;
        if let Value::Array(parts) = &mut operation {
            parts.push(self.manager.available_blocks().into());
            parts.push(inactive.into());
        }
        self.operations.push(operation);
    }
}
