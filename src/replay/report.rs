//! The report: what was asked for, what came out, how long it took.

use serde_json::{Map, Value, json};

use crate::engine::{DiskUse, HostUse};
use crate::types::SimTime;

use super::agentic::GraphSummary;
use super::collector::Collector;
use super::curves::Curves;
use super::planner::ScalingLog;
use super::record::RequestRecord;
use super::source::Trajectory;
use super::stats::Summary;

/// Latency bounds of good service; those that are `None` do not count.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sla {
    /// Time to the first token, ms.
    pub ttft_ms: Option<f64>,
    /// Mean time between tokens, ms.
    pub itl_ms: Option<f64>,
    /// Arrival to last token, ms.
    pub e2e_ms: Option<f64>,
}

impl Sla {
    pub(crate) fn is_set(self) -> bool {
        self.ttft_ms.is_some() || self.itl_ms.is_some() || self.e2e_ms.is_some()
    }

    pub(crate) fn is_met(self, ttft: f64, e2e: f64, tokens: u32) -> bool {
        let within = |bound: Option<f64>, value: f64| bound.is_none_or(|bound| value <= bound);
        let itl = if tokens > 1 {
            (e2e - ttft) / f64::from(tokens - 1)
        } else {
            0.0
        };
        within(self.ttft_ms, ttft) && within(self.e2e_ms, e2e) && within(self.itl_ms, itl)
    }
}

/// Result of a replay.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Requests that arrived.
    pub num_requests: u64,
    /// Those that got all their tokens.
    pub completed_requests: u64,
    /// Those that no worker could ever take. Not part of the JSON report: the peer's has no such key.
    pub rejected_requests: u64,
    /// Prompt tokens of completed requests.
    pub total_input_tokens: u64,
    /// Tokens that they got.
    pub total_output_tokens: u64,
    /// First arrival to last completion, ms.
    pub duration_ms: f64,
    /// Time to the first token, ms.
    pub ttft: Summary,
    /// First to second token, ms.
    pub ttst: Summary,
    /// Mean time per token of each request, ms.
    pub tpot: Summary,
    /// Every gap between two tokens, ms.
    pub itl: Summary,
    /// Arrival to last token, ms.
    pub e2e: Summary,
    /// Tokens per second of one user, from every gap.
    pub per_user: Summary,
    /// Requests, tokens and bounds of good service.
    pub goodput: Option<Goodput>,
    /// Share of prompt tokens that came from the cache: best admission of each request, and first one.
    pub reused_ratio: (f64, f64),
    /// Prompt tokens computed, recomputed ones included.
    pub committed_prefill_tokens: u64,
    /// Prefill workers times their time, s.
    pub prefill_worker_seconds: f64,
    /// Decode or aggregated workers times their time, s.
    pub decode_worker_seconds: f64,
    /// Host memory that workers share.
    pub shared_host: Option<HostUse>,
    /// Disks, in sum.
    pub disk: Option<DiskUse>,
    /// GPUs of a prefill worker (0 without such a pool) and of a decode or aggregated one.
    pub gpus_per_worker: (u32, u32),
    /// Samples of ttft, tpot and e2e.
    pub samples: (u64, u64, u64),
    /// Plays of an agentic workload.
    pub trajectories: Option<Vec<Trajectory>>,
    /// Their graph.
    pub graph: Option<GraphSummary>,
    /// Curves, where wanted.
    pub curves: Option<Curves>,
    /// Gaps between tokens up to p99.9.
    pub token_gaps: TokenGaps,
    /// What a policy that scales did.
    pub scaling: Option<ScalingLog>,
    /// Whether the run was cut short before all requests had ended.
    pub partial: bool,
    /// One record per request, where wanted.
    pub records: Option<Vec<RequestRecord>>,
}

/// Every gap between two tokens of a request, ms. Tokens of one pass have gaps of 0.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TokenGaps {
    /// Gaps.
    pub count: u64,
    /// 99.9th percentile; the others are those of `itl`.
    pub p999: f64,
}

/// Good service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Goodput {
    /// Requests within all bounds.
    pub requests: u64,
    /// Their tokens.
    pub output_tokens: u64,
}

/// What each side of the fleet cost: worker time in s and GPUs of a worker; aggregated workers count as decode.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FleetUse {
    pub(crate) shared_host: Option<HostUse>,
    pub(crate) disk: Option<DiskUse>,
    pub(crate) prefill: (f64, u32),
    pub(crate) decode: (f64, u32),
}

#[allow(clippy::cast_precision_loss)]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl Report {
    pub(crate) fn new(
        mut collected: Collector,
        sla: Sla,
        used: FleetUse,
        trajectories: Option<Vec<Trajectory>>,
        scaling: Option<ScalingLog>,
        partial: bool,
    ) -> Self {
        let records = collected.take_records();
        let duration: SimTime = collected.last_completion;
        let samples = |values: &[f64]| values.len() as u64;
        let token_gaps = TokenGaps {
            count: collected.itl_ms.count(),
            p999: collected.itl_ms.at_percent(99.9),
        };
        let curves = collected
            .series
            .take()
            .map(|series| Curves::new(&series, &mut collected));
        Self {
            num_requests: collected.arrived,
            completed_requests: collected.completed,
            rejected_requests: collected.rejected,
            total_input_tokens: collected.input_tokens,
            total_output_tokens: collected.output_tokens,
            duration_ms: duration.as_ms(),
            samples: (
                samples(&collected.ttft_ms),
                samples(&collected.tpot_ms),
                samples(&collected.e2e_ms),
            ),
            ttft: Summary::of(&mut collected.ttft_ms),
            ttst: Summary::of(&mut collected.ttst_ms),
            tpot: Summary::of(&mut collected.tpot_ms),
            itl: Summary::of_sketch(&collected.itl_ms),
            e2e: Summary::of(&mut collected.e2e_ms),
            per_user: Summary::of_sketch(&collected.per_user),
            goodput: sla.is_set().then_some(Goodput {
                requests: collected.good,
                output_tokens: collected.good_output_tokens,
            }),
            reused_ratio: (
                ratio(collected.reused, collected.input_tokens),
                ratio(collected.first_reused, collected.input_tokens),
            ),
            committed_prefill_tokens: collected.prefilled,
            shared_host: used.shared_host,
            disk: used.disk,
            prefill_worker_seconds: used.prefill.0,
            decode_worker_seconds: used.decode.0,
            gpus_per_worker: (used.prefill.1, used.decode.1),
            trajectories,
            graph: None,
            curves,
            token_gaps,
            scaling,
            partial,
            records,
        }
    }

    /// The report with the key names of the peer. `wall_ms` is how long the replay took.
    #[allow(clippy::cast_precision_loss)]
    pub fn to_json(&self, wall_ms: f64) -> Value {
        let virtual_s = (self.duration_ms / 1e3).max(1e-9);
        let elapsed_s = (wall_ms / 1e3).max(1e-9);
        let per_second = |count: u64| count as f64 / virtual_s;
        let processed = self.total_input_tokens + self.total_output_tokens;
        let (prefill_gpus, decode_gpus) = self.gpus_per_worker;
        let Value::Object(mut report) = json!({
            "num_requests": self.num_requests,
            "completed_requests": self.completed_requests,
            "total_input_tokens": self.total_input_tokens,
            "total_output_tokens": self.total_output_tokens,
            "duration_ms": self.duration_ms,
            "wall_time_ms": wall_ms,
            "request_throughput_rps": per_second(self.completed_requests),
            "input_throughput_tok_s": per_second(self.total_input_tokens),
            "output_throughput_tok_s": per_second(self.total_output_tokens),
            "total_throughput_tok_s": per_second(processed),
            "prefill_worker_seconds": self.prefill_worker_seconds,
            "decode_worker_seconds": self.decode_worker_seconds,
            "prefill_gpus_per_worker": prefill_gpus,
            "decode_gpus_per_worker": decode_gpus,
            "gpu_hours": self.gpu_seconds() / 3600.0,
            "processed_tokens": processed,
            "processed_tokens_per_s": processed as f64 / elapsed_s,
            "processed_output_tokens_per_s": self.total_output_tokens as f64 / elapsed_s,
            "prefix_cache_reused_ratio": self.reused_ratio.0,
            "first_admission_prefix_cache_reused_ratio": self.reused_ratio.1,
            "num_ttft_samples": self.samples.0,
            "num_tpot_samples": self.samples.1,
            "num_e2e_latency_samples": self.samples.2,
            "committed_prefill_tokens": self.committed_prefill_tokens,
            "kv_eviction_policy": "lru",
            "power_w": null,
            "power_coverage": null,
        }) else {
            return Value::Null;
        };
        if let Some(host) = &self.shared_host {
            report.insert("g2_domains".into(), json!([host]));
        }
        if let Some(disk) = &self.disk {
            report.insert("g3_offload".into(), json!(disk));
        }
        if let Some(goodput) = self.goodput {
            report.insert("goodput_completed_requests".into(), goodput.requests.into());
            report.insert(
                "goodput_request_throughput_rps".into(),
                per_second(goodput.requests).into(),
            );
            let tokens = per_second(goodput.output_tokens);
            report.insert("goodput_output_throughput_tok_s".into(), tokens.into());
        }
        if self.partial {
            report.insert("partial".into(), true.into());
        }
        for (name, summary) in self.summaries() {
            add(&mut report, name, summary);
        }
        if let Some(trajectories) = &self.trajectories {
            add_trajectories(&mut report, trajectories);
        }
        // A pause of one user and the mean of a request tell different stories: both stand here under plain names.
        add(&mut report, "token_gap_ms", &self.itl);
        report.insert("p99_9_token_gap_ms".into(), self.token_gaps.p999.into());
        report.insert("num_token_gaps".into(), self.token_gaps.count.into());
        add(&mut report, "request_itl_ms", &self.tpot);
        if let Some(scaling) = &self.scaling {
            report.insert("planner".into(), scaling.to_json());
        }
        if let Some(curves) = &self.curves {
            report.insert("time_series".into(), curves.time_series.clone());
            report.insert("latency_cdf".into(), curves.latency_cdf.clone());
        }
        if let Some(graph) = &self.graph {
            add_graph(&mut report, graph);
        }
        // Sorted keys, whatever order the map of this build keeps.
        let mut entries: Vec<(String, Value)> = report.into_iter().collect();
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        Value::Object(entries.into_iter().collect())
    }

    fn summaries(&self) -> [(&'static str, &Summary); 6] {
        [
            ("ttft_ms", &self.ttft),
            ("ttst_ms", &self.ttst),
            ("tpot_ms", &self.tpot),
            ("itl_ms", &self.itl),
            ("e2e_latency_ms", &self.e2e),
            ("output_token_throughput_per_user", &self.per_user),
        ]
    }

    /// GPUs that the workers took, on average over the run.
    pub(crate) fn mean_gpus(&self) -> f64 {
        self.gpu_seconds() / (self.duration_ms / 1e3).max(1e-9)
    }

    fn gpu_seconds(&self) -> f64 {
        let (prefill, decode) = self.gpus_per_worker;
        self.prefill_worker_seconds * f64::from(prefill) + self.decode_worker_seconds * f64::from(decode)
    }

    /// Output tokens per virtual second.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn output_throughput(&self) -> f64 {
        self.total_output_tokens as f64 / (self.duration_ms / 1e3).max(1e-9)
    }

    /// Completed requests per virtual second.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn request_throughput(&self) -> f64 {
        self.completed_requests as f64 / (self.duration_ms / 1e3).max(1e-9)
    }
}

/// Plays, their outcomes and how long they took, which only completed ones tell.
fn add_trajectories(report: &mut Map<String, Value>, trajectories: &[Trajectory]) {
    let completed = trajectories.iter().filter(|play| play.over && play.failure.is_none());
    let spans = completed.filter_map(|play| Some(play.ended?.ms_since(play.started?)));
    let mut latencies: Vec<f64> = spans.collect();
    let outcomes: Vec<Value> = trajectories.iter().map(play_outcome).collect();
    report.insert("agentic_play_outcomes".into(), outcomes.into());
    report.insert("total_trajectories".into(), trajectories.len().into());
    report.insert("completed_trajectories".into(), latencies.len().into());
    let incomplete = trajectories.len() - latencies.len();
    report.insert("incomplete_trajectories".into(), incomplete.into());
    let summary = Summary::of(&mut latencies);
    report.insert("p50_trajectory_e2e_latency_ms".into(), summary.median.into());
    add(report, "trajectory_e2e_latency_ms", &summary);
}

/// How a play ended, if it did.
fn play_outcome(play: &Trajectory) -> Value {
    let status = match (play.over, &play.failure) {
        (false, _) => "incomplete",
        (true, Some(_)) => "failed",
        (true, None) => "completed",
    };
    let mut outcome = json!({"play_id": play.play, "status": status});
    let failure = play.failure.as_ref();
    let ended = play.ended.map(SimTime::as_ms);
    if let Some(at) = failure.map(|failure| failure.at.as_ms()).or(ended) {
        outcome["causal_terminal_ms"] = at.into();
    }
    if let Some(at) = ended.filter(|_| play.over) {
        outcome["settled_at_ms"] = at.into();
    }
    if let Some(failure) = failure {
        outcome["failure_request_id"] = failure.request_id.as_str().into();
        outcome["failure_status"] = json!(failure.status);
    }
    outcome
}

/// A graph, where it comes from, and a digest of what happened to it.
fn add_graph(report: &mut Map<String, Value>, graph: &GraphSummary) {
    let about = json!({
        "source": {"format": graph.origin.format, "digest": graph.origin.digest},
        "graph_digest": graph.digest,
        "block_size": graph.block_size,
        "node_count": graph.nodes,
        "play_count": graph.plays,
        "source_models": graph.origin.models,
    });
    report.insert("agentic_graph".into(), about);
    report.insert("agentic_lifecycle_digest".into(), graph.lifecycle_digest.clone().into());
    report.insert("agentic_lifecycle_event_count".into(), graph.lifecycle_events.into());
    if let Some(basis) = graph.origin.nested_times {
        report.insert("weka_nested_timestamp_basis".into(), basis.into());
    }
}

fn add(report: &mut Map<String, Value>, name: &str, summary: &Summary) {
    for (prefix, value) in summary.named() {
        report.insert(format!("{prefix}_{name}"), value.into());
    }
}
