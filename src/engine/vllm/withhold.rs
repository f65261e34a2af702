//! A pool that has lost blocks.

use crate::types::KvEvent;

use super::super::config::WorkerRole;
use super::Vllm;

impl Vllm {
    /// Blocks that requests use.
    pub(super) fn used_blocks(&self) -> u32 {
        self.pool.active() - self.withheld.len()
    }

    /// Keeps `blocks` blocks from requests, or as many of them as nobody uses or was promised.
    pub(super) fn withhold(&mut self, blocks: u32) -> Vec<KvEvent> {
        if blocks < self.withheld.len() {
            self.pool.release(&mut self.withheld);
            self.room_came();
        }
        let free = self.pool.available().saturating_sub(self.promised);
        let wanted = blocks.saturating_sub(self.withheld.len()).min(free);
        self.below.taken = self.tiers.is_some();
        let mut events = std::mem::take(&mut self.unheard.kv_events);
        let untold = events.len();
        let taken = self.pool.take(&mut self.withheld, &[], wanted, &mut events);
        debug_assert!(taken, "no more are taken than there are");
        if untold > 0 {
            // Told with the next pass, after what was there before.
            self.unheard.kv_events = events;
            return Vec::new();
        }
        match self.rules.role {
            WorkerRole::Aggregated | WorkerRole::Prefill => events,
            WorkerRole::Decode => Vec::new(),
        }
    }
}
