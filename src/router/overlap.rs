//! How much of a prompt each target has cached, and in which memory.
//!
//! Blocks behind those in GPU memory count where the target has them in host memory, each by a weight. Source: Dynamo 1.6.1
//! (`host_cache_hit_weight`); the replay of 1.4.2 knows GPU memory only.

use super::Index;
use crate::types::{KvEvent, LowerTier, SequenceHash, TierEvent};

/// Leading blocks of a prompt that a target holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Overlap {
    /// In GPU memory.
    pub(super) device: u32,
    /// Behind those, in host memory.
    pub(super) host: u32,
}

impl Overlap {
    /// Blocks, those in host memory by their weight.
    pub(super) fn blocks(self, host_weight: f64) -> f64 {
        f64::from(self.device) + f64::from(self.host) * host_weight
    }

    /// Whole blocks, as they are reported.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(super) fn whole_blocks(self, host_weight: f64) -> u32 {
        self.blocks(host_weight).round() as u32
    }

    /// Prompt tokens that count as computed already.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss
    )]
    pub(super) fn tokens(self, host_weight: f64, block_size: u64) -> u64 {
        if self.host == 0 {
            return u64::from(self.device) * block_size;
        }
        (self.blocks(host_weight) * block_size as f64).round() as u64
    }
}

/// What all targets hold.
#[derive(Debug)]
pub(super) struct Holdings {
    device: Index,
    /// Nothing there costs nothing.
    host: Index,
    depths: Vec<u32>,
    hits: Vec<u32>,
}

impl Holdings {
    pub(super) fn new() -> Self {
        Self {
            device: Index::new(1),
            host: Index::new(1),
            depths: Vec::new(),
            hits: Vec::new(),
        }
    }

    /// Makes room for `targets` targets.
    pub(super) fn grow(&mut self, targets: usize) {
        self.device.grow(targets);
        self.host.grow(targets);
        self.depths.resize(targets, 0);
        self.hits.resize(targets, 0);
    }

    /// Takes over a change of the GPU's cache of target number `target`.
    pub(super) fn apply(&mut self, target: usize, event: &KvEvent) {
        self.device.apply(target, event);
    }

    /// Takes over a change below the GPU; the host's only, as no other memory is told of.
    pub(super) fn apply_lower(&mut self, target: usize, change: &TierEvent) {
        match change.tier {
            LowerTier::Host => self.host.apply(target, &change.event),
            LowerTier::Disk | LowerTier::Storage => {}
        }
    }

    /// Drops everything that a target holds.
    pub(super) fn forget(&mut self, target: usize) {
        self.device.forget(target);
        self.host.forget(target);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.device.is_empty() && self.host.is_empty()
    }

    /// What each target holds of `prompt`, into `overlaps`.
    pub(super) fn of(&mut self, prompt: &[SequenceHash], overlaps: &mut Vec<Overlap>) {
        self.device.overlaps(prompt, &mut self.depths);
        self.host.continued(prompt, &self.depths, &mut self.hits);
        let found = self.depths.iter().zip(&self.hits);
        overlaps.clear();
        overlaps.extend(found.map(|(&device, &host)| Overlap { device, host }));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::types::{LocalHash, StoredBlock};

    pub(in crate::router) fn stored(blocks: std::ops::Range<u64>) -> KvEvent {
        let block = |hash| StoredBlock {
            block_hash: SequenceHash(hash),
            tokens_hash: LocalHash(hash),
        };
        KvEvent::Stored {
            parent: None,
            blocks: blocks.map(block).collect(),
        }
    }

    #[test]
    fn host_memory_goes_on_where_the_gpu_ends() {
        let mut holdings = Holdings::new();
        holdings.grow(5);
        let mut host = |target, blocks| {
            let change = TierEvent {
                tier: LowerTier::Host,
                event: stored(blocks),
            };
            holdings.apply_lower(target, &change);
        };
        host(0, 1..6);
        host(1, 1..3);
        host(2, 3..6);
        host(3, 5..6);
        holdings.apply(0, &stored(1..4));
        holdings.apply(2, &stored(1..3));
        holdings.apply(3, &stored(1..3));
        let prompt: Vec<SequenceHash> = (1..7).map(SequenceHash).collect();
        let mut found = Vec::new();
        holdings.of(&prompt, &mut found);
        let found: Vec<_> = found.iter().map(|overlap| (overlap.device, overlap.host)).collect();
        assert_eq!(found, [(3, 2), (0, 2), (2, 3), (2, 0), (0, 0)]);
    }

    #[test]
    fn other_memory_is_not_told_of_and_a_forgotten_target_has_none() {
        let mut holdings = Holdings::new();
        holdings.grow(1);
        let change = |tier| TierEvent {
            tier,
            event: stored(0..2),
        };
        holdings.apply_lower(0, &change(LowerTier::Disk));
        assert!(holdings.is_empty());
        holdings.apply_lower(0, &change(LowerTier::Host));
        assert!(!holdings.is_empty());
        holdings.forget(0);
        assert!(holdings.is_empty());
    }

    #[test]
    fn blocks_in_host_memory_count_by_their_weight() {
        let overlap = Overlap { device: 2, host: 3 };
        assert_eq!(overlap.whole_blocks(0.75), 4);
        assert_eq!(overlap.tokens(0.75, 16), 68);
        assert_eq!(overlap.whole_blocks(0.0), 2);
    }
}
