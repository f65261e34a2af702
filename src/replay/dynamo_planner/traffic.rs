//! Traffic over several ticks.

use super::super::planner::Traffic;

#[allow(clippy::cast_precision_loss)]
fn mean((a, of_a): (f64, u64), (b, of_b): (f64, u64)) -> f64 {
    if of_a + of_b == 0 {
        return 0.0;
    }
    (a * of_a as f64 + b * of_b as f64) / (of_a + of_b) as f64
}

impl Traffic {
    /// This and what followed, as if it had been one window: every mean keeps its own number of samples.
    pub(super) fn joined(&self, next: &Self) -> Self {
        let of = |value: fn(&Self) -> f64, count: fn(&Self) -> u64| {
            mean((value(self), count(self)), (value(next), count(next)))
        };
        let forwards = |traffic: &Self| traffic.accept_length_forward_count;
        let accepted = match (self.avg_accept_length, next.avg_accept_length) {
            (Some(a), Some(b)) => Some(mean((a, forwards(self)), (b, forwards(next)))),
            (a, b) => a.or(b),
        };
        Self {
            duration_s: self.duration_s + next.duration_s,
            num_req: self.num_req + next.num_req,
            avg_isl: of(|traffic| traffic.avg_isl, |traffic| traffic.shape_count),
            avg_osl: of(|traffic| traffic.avg_osl, |traffic| traffic.shape_count),
            avg_ttft_ms: of(|traffic| traffic.avg_ttft_ms, |traffic| traffic.ttft_count),
            avg_itl_ms: of(|traffic| traffic.avg_itl_ms, |traffic| traffic.itl_count),
            shape_count: self.shape_count + next.shape_count,
            ttft_count: self.ttft_count + next.ttft_count,
            itl_count: self.itl_count + next.itl_count,
            avg_kv_hit_rate: of(|traffic| traffic.avg_kv_hit_rate, |traffic| traffic.hit_rate_count),
            hit_rate_count: self.hit_rate_count + next.hit_rate_count,
            avg_accept_length: accepted,
            accept_length_forward_count: forwards(self) + forwards(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_join_by_the_samples_of_each_mean() {
        let first = Traffic {
            duration_s: 1.0,
            num_req: 9,
            avg_isl: 100.0,
            shape_count: 1,
            avg_kv_hit_rate: 0.5,
            hit_rate_count: 2,
            avg_accept_length: Some(2.0),
            accept_length_forward_count: 10,
            ..Traffic::default()
        };
        let second = Traffic {
            duration_s: 2.0,
            num_req: 1,
            avg_isl: 400.0,
            shape_count: 2,
            ..Traffic::default()
        };
        let joined = first.joined(&second);
        assert!((joined.duration_s - 3.0).abs() < 1e-12);
        assert_eq!((joined.num_req, joined.shape_count), (10, 3));
        assert!((joined.avg_isl - 300.0).abs() < 1e-9);
        assert!((joined.avg_kv_hit_rate - 0.5).abs() < 1e-12);
        assert_eq!(joined.avg_accept_length, Some(2.0));
    }
}
