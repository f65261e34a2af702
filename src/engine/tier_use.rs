//! What tiers below the GPU hold and have done, for reports. Source: Dynamo 1.6.1 (`g2_domains`, `g3_offload`).

use serde::Serialize;

/// Host memory that ranks share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct HostUse {
    /// Blocks that it can hold.
    pub capacity_blocks: u64,
    /// Blocks that can be read.
    pub resident_blocks: u64,
    /// Those and the ones on their way in.
    pub used_blocks: u64,
}

/// Transfers of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct TransferUse {
    /// Begun.
    pub submitted_jobs: u64,
    /// Done.
    pub completed_jobs: u64,
    /// Called off.
    pub cancelled_jobs: u64,
    /// Bytes of those that are done.
    pub completed_bytes: u64,
    /// Time that those took, ms, in sum.
    pub transfer_ms: f64,
}

/// A disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct DiskUse {
    /// Blocks looked up, again and again while a request waits.
    pub lookup_probes: u64,
    /// Of these, blocks that were there.
    pub lookup_hits: u64,
    /// Of these, blocks that were on their way in.
    pub lookup_pending: u64,
    /// From the disk to the host.
    pub read: TransferUse,
    /// From the host to the disk.
    pub write: TransferUse,
    /// Blocks that made room for others.
    pub evictions: u64,
    /// Blocks that another worker read than had written them.
    pub cross_worker_read_blocks: u64,
    /// Blocks that can be read.
    pub resident_blocks: u64,
    /// Blocks on their way in.
    pub pending_blocks: u64,
    /// How often a request went on without blocks that it had sent for again and again.
    #[serde(skip_serializing_if = "is_zero")]
    pub bypassed_restores: u64,
}

impl TransferUse {
    fn add(&mut self, other: &Self) {
        self.submitted_jobs += other.submitted_jobs;
        self.completed_jobs += other.completed_jobs;
        self.cancelled_jobs += other.cancelled_jobs;
        self.completed_bytes = self.completed_bytes.saturating_add(other.completed_bytes);
        self.transfer_ms += other.transfer_ms;
    }
}

impl DiskUse {
    /// Counts another disk in.
    pub fn add(&mut self, other: &Self) {
        self.lookup_probes += other.lookup_probes;
        self.lookup_hits += other.lookup_hits;
        self.lookup_pending += other.lookup_pending;
        self.read.add(&other.read);
        self.write.add(&other.write);
        self.evictions += other.evictions;
        self.cross_worker_read_blocks += other.cross_worker_read_blocks;
        self.resident_blocks += other.resident_blocks;
        self.pending_blocks += other.pending_blocks;
        self.bypassed_restores += other.bypassed_restores;
    }

    /// What it has done, without what it holds: it is gone.
    #[must_use]
    pub fn gone(self) -> Self {
        Self {
            resident_blocks: 0,
            pending_blocks: 0,
            ..self
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's shape
fn is_zero(count: &u64) -> bool {
    *count == 0
}
