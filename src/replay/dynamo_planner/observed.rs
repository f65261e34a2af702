//! What a planner has seen of its fleet.

use std::collections::{BTreeMap, BTreeSet};

use super::super::planner::ForwardMetrics;

/// Latest pass of every rank of a pool, however long ago it was.
#[derive(Debug, Clone, Default)]
pub(super) struct Passes(BTreeMap<(u32, u32), ForwardMetrics>);

impl Passes {
    /// Takes in what is new and forgets workers that are no longer active.
    pub(super) fn update(&mut self, new: &[ForwardMetrics], active: &[u32]) {
        for pass in new {
            self.0.insert((pass.worker_id, pass.dp_rank), *pass);
        }
        let active: BTreeSet<u32> = active.iter().copied().collect();
        self.0.retain(|(worker, _), _| active.contains(worker));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One per rank, in the peer's order: workers by their numbers as texts.
    pub(super) fn all(&self) -> Vec<ForwardMetrics> {
        let mut passes: Vec<_> = self.0.values().copied().collect();
        passes.sort_by_key(|pass| (pass.worker_id.to_string(), pass.dp_rank));
        passes
    }

    /// Whether every rank of exactly `workers` workers was seen.
    pub(super) fn cover(&self, workers: u32) -> bool {
        let mut ranks: BTreeMap<u32, u32> = BTreeMap::new();
        for (worker, _) in self.0.keys() {
            *ranks.entry(*worker).or_default() += 1;
        }
        let sizes: BTreeSet<u32> = ranks.values().copied().collect();
        ranks.len() == workers as usize && sizes.len() <= 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(worker_id: u32, dp_rank: u32) -> ForwardMetrics {
        ForwardMetrics {
            worker_id,
            dp_rank,
            ..ForwardMetrics::default()
        }
    }

    #[test]
    fn workers_count_once_all_their_ranks_were_seen_and_until_they_leave() {
        let mut passes = Passes::default();
        passes.update(&[pass(2, 0), pass(2, 1), pass(10, 0)], &[2, 10]);
        assert!(!passes.cover(2));
        passes.update(&[pass(10, 1)], &[2, 10]);
        assert!(passes.cover(2) && !passes.cover(3));
        let order: Vec<u32> = passes.all().iter().map(|pass| pass.worker_id).collect();
        assert_eq!(order, [10, 10, 2, 2]);
        passes.update(&[pass(10, 0)], &[2]);
        assert!(passes.cover(1));
    }
}
