//! GPUs that a fleet may and must have.
//!
//! The ceiling is never passed. With both bounds the floor may be missed by one worker's GPUs, because whole workers
//! cannot always meet it. Source: `budget.py` of Dynamo 1.4.2's planner; floors per role as in 1.6.1.

use super::config::Sides;

/// Bounds in GPUs; `None`: none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Budget {
    pub(super) min: Option<u32>,
    pub(super) max: Option<u32>,
}

fn up(value: f64) -> u32 {
    whole(value.ceil())
}

fn down(value: f64) -> u32 {
    whole(value.floor())
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(value: f64) -> u32 {
    value as u32
}

impl Budget {
    /// Whether `total` GPUs are within the bounds.
    fn holds(self, total: u64, tolerance: u32) -> bool {
        let slack = if self.min.is_some() && self.max.is_some() {
            u64::from(tolerance)
        } else {
            0
        };
        self.max.is_none_or(|max| total <= u64::from(max)) && self.min.is_none_or(|min| total + slack >= u64::from(min))
    }

    /// Workers of one kind that come closest to `wanted`; 0 where even `least` would pass the ceiling.
    pub(super) fn single(self, wanted: u32, gpus: u32, least: u32) -> u32 {
        let each = u64::from(gpus);
        let total = u64::from(wanted) * each;
        if gpus == 0 || self.holds(total, gpus) {
            return wanted;
        }
        if let Some(max) = self.max.filter(|&max| total > u64::from(max)) {
            if u64::from(max) < u64::from(least) * each {
                return 0;
            }
            return least.max(max / gpus);
        }
        least.max(self.min.unwrap_or(0).div_ceil(gpus))
    }

    /// Workers of two kinds that come closest to `wanted`, both shrunk or grown by the same share.
    pub(super) fn pair(self, wanted: Sides<u32>, gpus: Sides<u32>, least: Sides<u32>) -> Sides<u32> {
        let sum = |workers: Sides<u32>| {
            u64::from(workers.prefill) * u64::from(gpus.prefill) + u64::from(workers.serving) * u64::from(gpus.serving)
        };
        let total = sum(wanted);
        let unknown = gpus.prefill == 0 || gpus.serving == 0;
        if unknown || self.holds(total, gpus.prefill.max(gpus.serving)) {
            return wanted;
        }
        let (of_prefill, of_serving) = (f64::from(gpus.prefill), f64::from(gpus.serving));
        #[allow(clippy::cast_precision_loss)]
        let scaled = |bound: u32, workers: u32| f64::from(workers) * (f64::from(bound) / total as f64);
        if let Some(max) = self.max.filter(|&max| total > u64::from(max)) {
            if u64::from(max) < sum(least) {
                return Sides::default();
            }
            let room = (f64::from(max) - f64::from(least.serving) * of_serving) / of_prefill;
            let prefill = least.prefill.max(down(room).min(down(scaled(max, wanted.prefill))));
            let rest = f64::from(max) - f64::from(prefill) * of_prefill;
            return Sides {
                prefill,
                serving: least.serving.max(down(rest / of_serving)),
            };
        }
        let min = self.min.unwrap_or(0);
        let share = if total == 0 {
            f64::from(min) / 2.0 / of_prefill
        } else {
            scaled(min, wanted.prefill)
        };
        let prefill = least.prefill.max(up(share));
        let rest = (f64::from(min) - f64::from(prefill) * of_prefill).max(0.0);
        let grown = Sides {
            prefill,
            serving: least.serving.max(up(rest / of_serving)),
        };
        if self.max.is_some_and(|max| sum(grown) > u64::from(max)) {
            return wanted;
        }
        grown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sides(prefill: u32, serving: u32) -> Sides<u32> {
        Sides { prefill, serving }
    }

    #[test]
    fn one_kind_of_workers_stays_between_floor_and_ceiling() {
        let budget = |min, max| Budget { min, max };
        for (bounds, wanted, gpus, expected) in [
            (budget(None, Some(8)), 9, 1, 8),
            (budget(None, Some(8)), 3, 4, 2),
            (budget(None, Some(3)), 2, 4, 0),
            (budget(Some(6), None), 2, 2, 3),
            // One worker short is near enough when both bounds are given.
            (budget(Some(6), Some(6)), 2, 2, 2),
            (budget(Some(6), Some(6)), 1, 2, 3),
            (budget(None, None), 1000, 4, 1000),
        ] {
            assert_eq!(bounds.single(wanted, gpus, 1), expected, "{bounds:?} {wanted} x {gpus}");
        }
    }

    #[test]
    fn two_kinds_of_workers_shrink_and_grow_alike() {
        let least = sides(1, 1);
        let ceiling = |max| Budget {
            min: None,
            max: Some(max),
        };
        assert_eq!(ceiling(8).pair(sides(6, 6), sides(1, 1), least), sides(4, 4));
        assert_eq!(ceiling(8).pair(sides(1, 9), sides(2, 1), least), sides(1, 6));
        assert_eq!(ceiling(2).pair(sides(2, 2), sides(2, 1), least), sides(0, 0));
        assert_eq!(ceiling(8).pair(sides(7, 3), sides(1, 1), sides(1, 4)), sides(4, 4));
        let floor = Budget {
            min: Some(9),
            max: None,
        };
        assert_eq!(floor.pair(sides(1, 2), sides(1, 1), least), sides(3, 6));
        assert_eq!(floor.pair(sides(0, 0), sides(1, 1), least), sides(5, 4));
        let pinned = Budget {
            min: Some(5),
            max: Some(5),
        };
        assert_eq!(pinned.pair(sides(1, 1), sides(2, 2), least), sides(1, 1));
    }
}
