//! Use of the memory below the GPU.

use super::super::Pass;
use super::super::config::WorkerRole;
use super::{Vllm, Work};

impl Vllm {
    /// Fills `scratch.lower` with the blocks behind the cached ones, at most up to block `most`, that some lower tier
    /// holds; returns how many.
    pub(super) fn find_lower(&mut self, at: u32, most: u32) -> u32 {
        self.scratch.lower.clear();
        let Some(tiers) = &self.tiers else { return 0 };
        let hits = u32::try_from(self.scratch.hits.len()).unwrap_or(u32::MAX);
        let sequence = &mut self.slots[at].sequence;
        for index in hits..most {
            let identity = self.hasher.identity(sequence, index);
            if !tiers.holds(identity.block.block_hash) {
                break;
            }
            self.scratch.lower.push(identity);
        }
        u32::try_from(self.scratch.lower.len()).unwrap_or(u32::MAX)
    }

    /// The pass reads the blocks of `scratch.lower`.
    pub(super) fn read_lower(&mut self, work: &mut Work) {
        if let Some(tiers) = &mut self.tiers
            && !self.scratch.lower.is_empty()
        {
            work.starts_at = work.starts_at.max(tiers.read(&self.scratch.lower, work.now));
        }
    }

    /// Writes down what the pass has computed and tells of what has arrived.
    pub(super) fn write_lower(&mut self, pass: &mut Pass) {
        if let Some(tiers) = &mut self.tiers {
            tiers.write_offered(pass.ends_at);
        }
        self.take_tier_events(pass);
    }

    /// Moves the changes of the lower tiers into `pass`; returns whether there are any.
    pub(super) fn take_tier_events(&mut self, pass: &mut Pass) -> bool {
        if let Some(tiers) = &mut self.tiers {
            tiers.take_events(&mut pass.tier_events);
        }
        if self.rules.role == WorkerRole::Decode {
            pass.tier_events.clear();
        }
        !pass.tier_events.is_empty()
    }
}
