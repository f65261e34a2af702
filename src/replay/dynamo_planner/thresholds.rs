//! Targets without a model of speed: a worker's load against fixed thresholds.
//!
//! | Load of a rank | is |
//! |---|---|
//! | prefill | queued prompt tokens, per token of the longest sequence unless the target is `load` |
//! | decode | KV tokens of running and queued requests per KV token of the worker |
//! | aggregated | the same, with queued prompt tokens |
//!
//! Any rank above the upper threshold adds one worker; all below the lower one take one away. Source: `load_scaling.py` of
//! Dynamo 1.4.2's planner.

use super::super::planner::ForwardMetrics;
use super::Capabilities;
use super::config::ThresholdTarget;

/// What a pool does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Prefill,
    Decode,
    Aggregated,
}

/// When to scale.
struct Bounds {
    up: f64,
    /// A load of exactly `up` is enough.
    up_at: bool,
    down: f64,
    /// And one of exactly `down`.
    down_at: bool,
}

impl Bounds {
    fn of(target: ThresholdTarget, role: Role) -> Self {
        let of = |up, up_at, down, down_at| Self {
            up,
            up_at,
            down,
            down_at,
        };
        match (target, role) {
            #[allow(clippy::cast_precision_loss)]
            (ThresholdTarget::Load(given), Role::Prefill) => {
                of(given.queue_tokens.0 as f64, true, given.queue_tokens.1 as f64, true)
            }
            (ThresholdTarget::Load(given), Role::Decode | Role::Aggregated) => {
                of(given.kv_share.0, true, given.kv_share.1, true)
            }
            (ThresholdTarget::Throughput, Role::Prefill) => of(1.0, true, 0.1, false),
            (ThresholdTarget::Latency, Role::Prefill) => of(0.1, true, 0.0, true),
            (ThresholdTarget::Throughput, Role::Decode | Role::Aggregated) => of(1.0, false, 0.6, false),
            (ThresholdTarget::Latency, Role::Decode | Role::Aggregated) => of(0.4, false, 0.1, false),
        }
    }

    fn wants_more(&self, load: f64) -> bool {
        load > self.up || (self.up_at && load >= self.up)
    }

    fn wants_less(&self, load: f64) -> bool {
        load < self.down || (self.down_at && load <= self.down)
    }
}

/// What loads are measured by; `None`: nothing is known to measure them by.
#[allow(clippy::cast_precision_loss)]
fn whole(target: ThresholdTarget, role: Role, engine: Capabilities) -> Option<f64> {
    let whole = match (role, target) {
        (Role::Prefill, ThresholdTarget::Load(_)) => 1.0,
        (Role::Prefill, ThresholdTarget::Throughput | ThresholdTarget::Latency) => f64::from(engine.context_length?),
        (Role::Decode | Role::Aggregated, _) => engine.max_kv_tokens as f64,
    };
    (whole > 0.0).then_some(whole)
}

#[allow(clippy::cast_precision_loss)]
fn load(role: Role, pass: &ForwardMetrics) -> f64 {
    let prompts = pass.sum_queued_prefill_tokens;
    let kv = pass.sum_decode_kv_tokens + pass.sum_queued_decode_kv_tokens;
    (match role {
        Role::Prefill => prompts,
        Role::Decode => kv,
        Role::Aggregated => kv + prompts,
    }) as f64
}

/// Workers that `passes`, the latest of every rank of `workers` workers, ask for; `None`: as many.
pub(super) fn wanted(
    target: ThresholdTarget,
    role: Role,
    engine: Capabilities,
    passes: &[ForwardMetrics],
    workers: u32,
    least: u32,
) -> Option<u32> {
    let whole = whole(target, role, engine)?;
    let bounds = Bounds::of(target, role);
    if workers == 0 || passes.is_empty() {
        return None;
    }
    let mut loads = passes.iter().map(|pass| load(role, pass) / whole);
    if loads.clone().any(|load| bounds.wants_more(load)) {
        return Some(workers + 1);
    }
    (workers > 1 && loads.all(|load| bounds.wants_less(load))).then(|| least.max(workers - 1))
}

#[cfg(test)]
mod tests {
    use super::super::config::Thresholds;
    use super::*;

    const ENGINE: Capabilities = Capabilities {
        gpus: 1,
        max_num_batched_tokens: None,
        max_num_seqs: None,
        context_length: Some(1000),
        max_kv_tokens: 1000,
        nextn: 0,
    };

    fn pass(prompts: u64, kv: u64) -> ForwardMetrics {
        ForwardMetrics {
            sum_queued_prefill_tokens: prompts,
            sum_decode_kv_tokens: kv,
            ..ForwardMetrics::default()
        }
    }

    #[test]
    fn one_rank_above_its_threshold_adds_a_worker_and_all_below_take_one_away() {
        let load = ThresholdTarget::Load(Thresholds {
            queue_tokens: (200, 50),
            kv_share: (0.9, 0.7),
        });
        for (target, role, passes, expected) in [
            (
                ThresholdTarget::Throughput,
                Role::Prefill,
                vec![pass(1000, 0), pass(0, 0)],
                Some(3),
            ),
            (
                ThresholdTarget::Throughput,
                Role::Prefill,
                vec![pass(99, 0), pass(0, 0)],
                Some(1),
            ),
            (
                ThresholdTarget::Throughput,
                Role::Prefill,
                vec![pass(100, 0), pass(0, 0)],
                None,
            ),
            (
                ThresholdTarget::Latency,
                Role::Prefill,
                vec![pass(100, 0), pass(0, 0)],
                Some(3),
            ),
            (
                ThresholdTarget::Latency,
                Role::Prefill,
                vec![pass(0, 900), pass(0, 0)],
                Some(1),
            ),
            (
                ThresholdTarget::Throughput,
                Role::Decode,
                vec![pass(5000, 1000); 2],
                None,
            ),
            (
                ThresholdTarget::Throughput,
                Role::Decode,
                vec![pass(0, 1001), pass(0, 1)],
                Some(3),
            ),
            (
                ThresholdTarget::Throughput,
                Role::Aggregated,
                vec![pass(500, 501); 2],
                Some(3),
            ),
            (
                ThresholdTarget::Throughput,
                Role::Aggregated,
                vec![pass(0, 599); 2],
                Some(1),
            ),
            (ThresholdTarget::Latency, Role::Aggregated, vec![pass(0, 100); 2], None),
            (load, Role::Prefill, vec![pass(200, 0), pass(0, 0)], Some(3)),
            (load, Role::Prefill, vec![pass(50, 0); 2], Some(1)),
            (load, Role::Decode, vec![pass(0, 900), pass(0, 0)], Some(3)),
            (load, Role::Decode, vec![pass(0, 700); 2], Some(1)),
        ] {
            assert_eq!(
                wanted(target, role, ENGINE, &passes, 2, 1),
                expected,
                "{target:?} {role:?} {passes:?}"
            );
        }
    }

    #[test]
    fn the_last_worker_and_the_floor_stay_and_the_unknown_decides_nothing() {
        let idle = [pass(0, 0), pass(0, 0)];
        assert_eq!(
            wanted(ThresholdTarget::Latency, Role::Decode, ENGINE, &idle[..1], 1, 1),
            None
        );
        assert_eq!(
            wanted(ThresholdTarget::Latency, Role::Decode, ENGINE, &idle, 2, 2),
            Some(2)
        );
        let endless = Capabilities {
            context_length: None,
            ..ENGINE
        };
        assert_eq!(
            wanted(ThresholdTarget::Latency, Role::Prefill, endless, &idle, 2, 1),
            None
        );
    }
}
