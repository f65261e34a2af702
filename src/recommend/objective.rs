//! What is best: targets, what a trial measured, order and Pareto front.

use serde::{Deserialize, Serialize};

use crate::replay::Report;

/// What to optimize.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Target {
    /// Output tokens per second.
    #[default]
    Throughput,
    ThroughputPerGpu,
    /// Output tokens per second of one user.
    ThroughputPerUser,
    /// Requests per second within the bounds of `evaluation.sla`.
    Goodput,
    GoodputPerGpu,
    /// Mean time to the first token.
    Ttft,
    /// Mean request latency.
    E2eLatency,
    /// Front of throughput per GPU against throughput per user.
    Pareto,
}

impl Target {
    /// Whether it needs bounds of good service.
    pub(super) fn needs_sla(self) -> bool {
        matches!(self, Self::Goodput | Self::GoodputPerGpu)
    }
}

/// What a trial measured.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
pub(super) struct Metrics {
    pub(super) gpus: u32,
    /// Output tokens per second.
    pub(super) throughput: f64,
    pub(super) throughput_per_gpu: f64,
    pub(super) throughput_per_user: f64,
    /// Requests per second within the bounds; absent without bounds.
    pub(super) goodput: Option<f64>,
    pub(super) goodput_per_gpu: Option<f64>,
    pub(super) mean_ttft_ms: f64,
    pub p99_ttft_ms: f64,
    pub(super) mean_itl_ms: f64,
    pub mean_e2e_latency_ms: f64,
    pub(super) completed_requests: u64,
}

impl Metrics {
    /// Of a finished run on so many GPUs.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn of(report: &Report, gpus: u32) -> Self {
        let seconds = (report.duration_ms / 1e3).max(1e-9);
        let throughput = report.total_output_tokens as f64 / seconds;
        let goodput = report.goodput.map(|good| good.requests as f64 / seconds);
        // Where a planner scales, what counts is what was there, not what it began with.
        let each = if report.scaling.is_some() {
            report.mean_gpus()
        } else {
            f64::from(gpus)
        };
        let each = each.max(1.0);
        Self {
            gpus,
            throughput,
            throughput_per_gpu: throughput / each,
            throughput_per_user: report.per_user.mean,
            goodput,
            goodput_per_gpu: goodput.map(|goodput| goodput / each),
            mean_ttft_ms: report.ttft.mean,
            p99_ttft_ms: report.ttft.p99,
            mean_itl_ms: report.itl.mean,
            mean_e2e_latency_ms: report.e2e.mean,
            completed_requests: report.completed_requests,
        }
    }

    /// What a target makes of it: more is better. For the front, what both axes are.
    fn axes(&self, target: Target) -> (f64, f64) {
        let one = |value: f64| (value, value);
        match target {
            Target::Throughput => one(self.throughput),
            Target::ThroughputPerGpu => one(self.throughput_per_gpu),
            Target::ThroughputPerUser => one(self.throughput_per_user),
            Target::Goodput => one(self.goodput.unwrap_or(0.0)),
            Target::GoodputPerGpu => one(self.goodput_per_gpu.unwrap_or(0.0)),
            Target::Ttft => one(-self.mean_ttft_ms),
            Target::E2eLatency => one(-self.mean_e2e_latency_ms),
            Target::Pareto => (self.throughput_per_gpu, self.throughput_per_user),
        }
    }
}

/// Whether `one` is at least as good as `other` on both axes and better on one.
fn dominates(one: (f64, f64), other: (f64, f64)) -> bool {
    one.0 >= other.0 && one.1 >= other.1 && (one.0 > other.0 || one.1 > other.1)
}

/// How many of all trials are better than each: 0 for the best, and for each point of a front.
pub(super) fn ranks(metrics: &[Metrics], target: Target) -> Vec<usize> {
    let axes: Vec<_> = metrics.iter().map(|metrics| metrics.axes(target)).collect();
    if target == Target::Pareto {
        let better = |own| axes.iter().filter(|&&other| dominates(other, own)).count();
        return axes.iter().map(|&own| better(own)).collect();
    }
    let mut sorted: Vec<f64> = axes.iter().map(|axes| axes.0).collect();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let better = |own: f64| sorted.partition_point(|other| other.total_cmp(&own).is_gt());
    axes.iter().map(|axes| better(axes.0)).collect()
}

/// Indices of what is recommended, best first: every trial for a scalar target, the front (most throughput per GPU first)
/// for a Pareto target. Equal ones stay in order.
pub(super) fn recommended(metrics: &[Metrics], target: Target) -> Vec<usize> {
    let axes = |at: usize| metrics[at].axes(target);
    let mut order: Vec<usize> = (0..metrics.len()).collect();
    order.sort_by(|&a, &b| {
        let ((x, y), (other_x, other_y)) = (axes(a), axes(b));
        other_x.total_cmp(&x).then(other_y.total_cmp(&y))
    });
    if target == Target::Pareto {
        // Whoever comes later has no more of the first axis, so it is on the front if it has more of the second than all
        // before it, or is equal to the last of them.
        let mut best: Option<(f64, f64)> = None;
        order.retain(|&at| {
            let own = axes(at);
            let kept = best.is_none_or(|best| own.1 > best.1 || (own.0 >= best.0 && own.1 >= best.1));
            if kept {
                best = Some(own);
            }
            kept
        });
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(per_gpu: f64, per_user: f64, ttft: f64) -> Metrics {
        Metrics {
            gpus: 2,
            throughput: per_gpu * 2.0,
            throughput_per_gpu: per_gpu,
            throughput_per_user: per_user,
            goodput: None,
            goodput_per_gpu: None,
            mean_ttft_ms: ttft,
            p99_ttft_ms: ttft,
            mean_itl_ms: 1.0,
            mean_e2e_latency_ms: ttft * 2.0,
            completed_requests: 1,
        }
    }

    #[test]
    fn the_front_holds_what_nothing_beats_on_both_axes() {
        let all = [
            metrics(1.0, 9.0, 3.0),
            metrics(5.0, 5.0, 1.0),
            metrics(4.0, 4.0, 2.0),
            metrics(9.0, 1.0, 4.0),
            metrics(5.0, 2.0, 5.0),
        ];
        assert_eq!(recommended(&all, Target::Pareto), [3, 1, 0]);
        assert_eq!(ranks(&all, Target::Pareto), [0, 0, 1, 0, 1]);
        // Every point of the front, and nothing else, is beaten by nobody.
        let many: Vec<Metrics> = (0..400_u32)
            .map(|at| metrics(f64::from(at * 7919 % 23), f64::from(at * 104_729 % 29), 1.0))
            .collect();
        let ranks_of_many = ranks(&many, Target::Pareto);
        let mut front = recommended(&many, Target::Pareto);
        front.sort_unstable();
        let unbeaten: Vec<usize> = (0..many.len()).filter(|&at| ranks_of_many[at] == 0).collect();
        assert_eq!(front, unbeaten);
        assert_eq!(ranks(&all, Target::Ttft), [2, 0, 1, 3, 4]);
        assert_eq!(recommended(&all, Target::Throughput), [3, 1, 4, 2, 0]);
        assert_eq!(recommended(&all, Target::Ttft), [1, 2, 0, 3, 4]);
    }
}
