//! Which children a worker has, in every incarnation: what its settings say, whether they are alive or not.

use super::liveness::Child;
use super::plan::WorkerPlan;

/// The children of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    ranks: u32,
    /// Ranks announce their caches.
    announces: bool,
    /// Ranks have native event streams.
    is_native: bool,
    /// It meets decode workers.
    has_rendezvous: bool,
}

impl Shape {
    pub(super) fn of(plan: &WorkerPlan) -> Self {
        Self {
            ranks: plan.group.data_parallel_size,
            announces: plan.group.engine.publishes_kv_events(),
            is_native: plan.native.is_some(),
            has_rendezvous: plan.rendezvous.is_some(),
        }
    }

    /// Whether there is such a child.
    pub(super) fn has(self, child: Child) -> bool {
        match child {
            Child::Rank(rank) => rank < self.ranks,
            Child::Kv(rank) => self.announces && rank < self.ranks,
            Child::Native(rank) => self.is_native && rank < self.ranks,
            Child::Metrics | Child::Lease => true,
            Child::Rendezvous => self.has_rendezvous,
            Child::Worker(_) => false,
        }
    }

    /// What there is, in words.
    pub(super) fn says(self) -> String {
        let last = self.ranks.saturating_sub(1);
        let ranks = |end: &str| match last {
            0 => format!("r0{end}"),
            _ => format!("r0{end} to r{last}{end}"),
        };
        let mut parts = vec![ranks("")];
        parts.extend(self.announces.then(|| ranks("/kv")));
        parts.extend(self.is_native.then(|| ranks("/native")));
        parts.extend(["metrics", "lease"].map(str::to_owned));
        parts.extend(self.has_rendezvous.then(|| "rendezvous".to_owned()));
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_has_what_its_settings_say_and_tells_it() {
        let shape = Shape {
            ranks: 2,
            announces: true,
            is_native: false,
            has_rendezvous: true,
        };
        for (child, has) in [
            (Child::Rank(1), true),
            (Child::Rank(2), false),
            (Child::Kv(1), true),
            (Child::Native(0), false),
            (Child::Lease, true),
            (Child::Rendezvous, true),
            (Child::Worker(0), false),
        ] {
            assert_eq!(shape.has(child), has, "{child:?}");
        }
        assert_eq!(shape.says(), "r0 to r1, r0/kv to r1/kv, metrics, lease, rendezvous");
        let small = Shape {
            ranks: 1,
            announces: false,
            has_rendezvous: false,
            ..shape
        };
        assert!(!small.has(Child::Kv(0)) && !small.has(Child::Rendezvous));
        assert_eq!(small.says(), "r0, metrics, lease");
    }
}
