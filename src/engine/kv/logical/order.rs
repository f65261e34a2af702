//! In which order inactive blocks leave.

use super::identity::BlockIdentity;
use super::lineage::{Lineage, Ticks};
use super::sketch::Sketch;
use super::tiers::Tiers;
use crate::engine::kv::backend::EvictionBackend;

/// The inactive blocks of a pool, by slot.
#[derive(Debug)]
pub(super) enum Order {
    Lineage(Lineage),
    Lru(Tiers),
    MultiLru { tiers: Tiers, sketch: Sketch },
}

impl Order {
    /// The order of `backend`; `None` for the native pool, which has its own.
    pub(super) fn new(backend: EvictionBackend, capacity: u32) -> Option<Self> {
        match backend {
            EvictionBackend::Native => None,
            EvictionBackend::Lineage => Some(Self::Lineage(Lineage::new(Ticks::OnEntry))),
            EvictionBackend::LineageFifo => Some(Self::Lineage(Lineage::new(Ticks::OnLeaf))),
            EvictionBackend::Lru => Some(Self::Lru(Tiers::new())),
            EvictionBackend::MultiLru => Some(Self::MultiLru {
                tiers: Tiers::new(),
                sketch: Sketch::new(capacity),
            }),
        }
    }

    pub(super) fn len(&self) -> u32 {
        match self {
            Self::Lineage(lineage) => lineage.len(),
            Self::Lru(tiers) | Self::MultiLru { tiers, .. } => tiers.len(),
        }
    }

    /// Counts an access, where accesses count.
    pub(super) fn touch(&mut self, identity: &BlockIdentity) {
        match self {
            Self::Lineage(_) | Self::Lru(_) => {}
            Self::MultiLru { sketch, .. } => sketch.increment(identity.access_key()),
        }
    }

    /// The block in slot `at` has no owner any more.
    pub(super) fn enter(&mut self, at: u32, identity: &BlockIdentity) {
        match self {
            Self::Lineage(lineage) => lineage.enter(at, identity.block.block_hash, identity.parent),
            Self::Lru(tiers) => tiers.enter(at, 0),
            Self::MultiLru { tiers, sketch } => tiers.enter(at, sketch.estimate(identity.access_key())),
        }
    }

    /// The block in slot `at` is used again, or gone.
    pub(super) fn remove(&mut self, at: u32, identity: &BlockIdentity) {
        match self {
            Self::Lineage(lineage) => lineage.remove(identity.block.block_hash),
            Self::Lru(tiers) | Self::MultiLru { tiers, .. } => tiers.remove(at),
        }
    }

    /// Slot of the next block to evict.
    pub(super) fn victim(&self) -> Option<u32> {
        match self {
            Self::Lineage(lineage) => lineage.victim(),
            Self::Lru(tiers) | Self::MultiLru { tiers, .. } => tiers.victim(),
        }
    }
}
