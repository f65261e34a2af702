//! Round robin over workers, and over the ranks of each.

use std::collections::BTreeMap;

use super::Target;

/// A cursor over the active workers in ascending order and one per worker over its ranks. The position survives a change
/// of the set.
#[derive(Debug, Clone, Default)]
pub struct RoundRobin {
    cursor: usize,
    ranks: BTreeMap<u32, u32>,
}

impl RoundRobin {
    /// The next target among `workers` (ascending) with `ranks` ranks each; `None` without workers.
    pub fn pick(&mut self, workers: &[u32], ranks: u32) -> Option<Target> {
        let index = self.cursor.checked_rem(workers.len())?;
        self.cursor = index + 1;
        let worker = workers[index];
        let next = self.ranks.entry(worker).or_default();
        let rank = *next % ranks.max(1);
        *next = rank + 1;
        Some(Target { worker, rank })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cursor_keeps_its_place_when_workers_come_and_go() {
        let mut cursor = RoundRobin::default();
        let mut pick = |workers: &[u32]| cursor.pick(workers, 1).map(|target| target.worker);
        assert_eq!([pick(&[0, 1, 2]), pick(&[0, 1, 2])], [Some(0), Some(1)]);
        assert_eq!([pick(&[0, 1, 2, 3]), pick(&[0, 1])], [Some(2), Some(1)]);
        assert_eq!(pick(&[]), None);
    }

    #[test]
    fn each_worker_goes_through_its_own_ranks() {
        let mut cursor = RoundRobin::default();
        let picks: Vec<_> = (0..5).filter_map(|_| cursor.pick(&[4, 7], 2)).collect();
        let pairs: Vec<_> = picks.iter().map(|target| (target.worker, target.rank)).collect();
        assert_eq!(pairs, [(4, 0), (7, 0), (4, 1), (7, 1), (4, 0)]);
    }
}
