//! SGLang's metrics. Figures of a worker are sums over its ranks, as its scheduler tells them.
//!
//! Left out is what an emulated engine cannot know. `cache_hit_rate` is that of all prompts so far.
//!
//! Source: SGLang 0.5.23, as Dynamo's mocker 1.6.1 shows them.

use super::super::engine_metrics::{EngineMetrics, Histogram};
use super::super::gauge::RankSnapshot;
use super::{Page, PageRank, escape, float};

/// One worker on the page.
struct Row {
    /// Model, engine and worker.
    labels: String,
    ranks: Vec<(RankSnapshot, std::sync::Arc<EngineMetrics>)>,
    block_size_tokens: f64,
}

type Figure = fn(&Row) -> f64;
type Spread = fn(&EngineMetrics) -> &Histogram;

/// Where the one scheduler of a worker sits.
const SCHEDULER: &str = ",tp_rank=\"0\",pp_rank=\"0\",moe_ep_rank=\"0\"";

const GAUGES: [(&str, &str, Figure); 5] = [
    ("num_running_reqs", "The number of running requests.", |row| {
        row.sum(|now, _| u64::from(now.load.running))
    }),
    (
        "num_queue_reqs",
        "The number of requests in the waiting queue.",
        |row| row.sum(|now, _| u64::from(now.load.waiting)),
    ),
    ("num_used_tokens", "The number of used tokens.", |row| {
        row.sum(|now, _| u64::from(now.load.active_blocks)) * row.block_size_tokens
    }),
    ("token_usage", "The token usage.", |row| {
        row.sum(|now, _| u64::from(now.load.active_blocks))
            / row.sum(|now, _| u64::from(now.load.total_blocks)).max(1.0)
    }),
    ("cache_hit_rate", "The prefix cache hit rate.", |row| {
        row.sum(|_, own| own.cached_tokens.get()) / row.sum(|_, own| own.prompt_tokens.get()).max(1.0)
    }),
];

const COUNTERS: [(&str, &str, Figure); 5] = [
    ("num_requests_total", "Number of requests processed.", |row| {
        row.sum(|_, own| own.stopped.get() + own.ran_out.get())
    }),
    ("num_aborted_requests_total", "Number of requests aborted.", |row| {
        row.sum(|_, own| own.aborted.get())
    }),
    ("prompt_tokens_total", "Number of prefill tokens processed.", |row| {
        row.sum(|_, own| own.prompt_tokens.get())
    }),
    ("cached_tokens_total", "Number of cached prompt tokens.", |row| {
        row.sum(|_, own| own.cached_tokens.get())
    }),
    (
        "generation_tokens_total",
        "Number of generation tokens processed.",
        |row| row.sum(|now, _| now.tokens_total),
    ),
];

const SPREADS: [(&str, &str, Spread); 3] = [
    (
        "time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        |m| &m.first_token,
    ),
    (
        "inter_token_latency_seconds",
        "Histogram of inter-token latency in seconds.",
        |m| &m.inter_token,
    ),
    (
        "e2e_request_latency_seconds",
        "Histogram of end-to-end request latency in seconds.",
        |m| &m.e2e,
    ),
];

/// The metrics of these ranks, those of a worker side by side.
pub(super) fn render(page: &mut Page<'_>, ranks: &[&PageRank]) {
    let rows: Vec<Row> = ranks.chunk_by(|a, b| a.worker == b.worker).map(Row::new).collect();
    for (name, help, figure) in GAUGES {
        page.head(name, "gauge", help);
        for row in &rows {
            page.line(name, &row.labels, SCHEDULER, figure(row));
        }
    }
    for (name, help, figure) in COUNTERS {
        page.head(name, "counter", help);
        for row in &rows {
            page.line(name, &row.labels, "", figure(row));
        }
    }
    for (name, help, spread) in SPREADS {
        page.head(name, "histogram", help);
        for row in &rows {
            let (buckets, count, sum) = row.spread(spread);
            page.histogram(name, &row.labels, &buckets, count, sum);
        }
    }
}

impl Row {
    /// `ranks` are those of one worker, at least one.
    fn new(ranks: &[&PageRank]) -> Self {
        let first = ranks[0];
        let model = escape(&first.model);
        Self {
            labels: format!("engine_type=\"sglang\",model_name=\"{model}\"{}", first.worker_label()),
            ranks: ranks
                .iter()
                .map(|rank| (rank.now(), std::sync::Arc::clone(&rank.metrics)))
                .collect(),
            block_size_tokens: f64::from(first.block_size),
        }
    }

    fn sum(&self, figure: impl Fn(&RankSnapshot, &EngineMetrics) -> u64) -> f64 {
        float(self.ranks.iter().map(|(now, metrics)| figure(now, metrics)).sum())
    }

    fn spread(&self, spread: Spread) -> (Vec<(f64, u64)>, u64, f64) {
        let mut all: (Vec<(f64, u64)>, u64, f64) = (Vec::new(), 0, 0.0);
        for (_, metrics) in &self.ranks {
            let (buckets, count, sum) = spread(metrics).read();
            if all.0.is_empty() {
                all.0 = buckets;
            } else {
                for (whole, own) in all.0.iter_mut().zip(buckets) {
                    whole.1 += own.1;
                }
            }
            all.1 += count;
            all.2 += sum;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::super::engine_metrics::Timeline;
    use super::super::render;
    use super::*;
    use crate::engine::EngineKind;
    use crate::types::{EngineRequest, FinishReason, HashSalt, Load, RequestId, SimTime, StopRule};

    fn rank(rank: u32) -> PageRank {
        PageRank {
            kind: EngineKind::Sglang,
            worker: Some("w1".to_owned()),
            rank,
            block_size: 4,
            model: Arc::from("mock"),
            gauge: Arc::default(),
            told: None,
            metrics: Arc::new(EngineMetrics::new(EngineKind::Sglang, 512)),
        }
    }

    fn serve(rank: &PageRank, first_token: Duration) {
        let request = EngineRequest {
            id: RequestId(1),
            key: 0,
            prompt: vec![0; 100].into(),
            stop: StopRule::default(),
            planned: None,
            priority: 0,
            salt: HashSalt::default(),
            routing_key: None,
        };
        let mut timeline = Timeline::new(&request, SimTime::of_nanos(0));
        timeline.admitted(25, SimTime::of_nanos(0), &rank.metrics);
        let first = SimTime::of_nanos(0) + first_token;
        timeline.token(first, &rank.metrics);
        timeline.token(first + Duration::from_millis(17), &rank.metrics);
        timeline.finished(FinishReason::Stop, first + Duration::from_millis(17), &rank.metrics);
        let load = Load {
            running: 2,
            active_blocks: 30,
            total_blocks: 60,
            ..Load::default()
        };
        rank.gauge.set_load(&load, 2);
    }

    #[test]
    fn figures_of_a_worker_are_sums_over_its_ranks_with_buckets_of_sglang() {
        let ranks = [rank(0), rank(1)];
        serve(&ranks[0], Duration::from_millis(150));
        serve(&ranks[1], Duration::from_millis(250));
        let page = render(&ranks);
        let labels = "engine_type=\"sglang\",model_name=\"mock\",worker=\"w1\"";
        for line in [
            "# TYPE sglang:num_running_reqs gauge".to_owned(),
            format!("sglang:num_running_reqs{{{labels},tp_rank=\"0\",pp_rank=\"0\",moe_ep_rank=\"0\"}} 4.0"),
            format!("sglang:token_usage{{{labels}{SCHEDULER}}} 0.5"),
            format!("sglang:num_used_tokens{{{labels}{SCHEDULER}}} 240.0"),
            format!("sglang:cache_hit_rate{{{labels}{SCHEDULER}}} 0.25"),
            format!("sglang:num_requests_total{{{labels}}} 2.0"),
            format!("sglang:prompt_tokens_total{{{labels}}} 200.0"),
            format!("sglang:time_to_first_token_seconds_bucket{{{labels},le=\"0.1\"}} 0.0"),
            format!("sglang:time_to_first_token_seconds_bucket{{{labels},le=\"0.2\"}} 1.0"),
            format!("sglang:time_to_first_token_seconds_bucket{{{labels},le=\"0.4\"}} 2.0"),
            format!("sglang:time_to_first_token_seconds_bucket{{{labels},le=\"+Inf\"}} 2.0"),
            format!("sglang:inter_token_latency_seconds_bucket{{{labels},le=\"0.015\"}} 0.0"),
            format!("sglang:inter_token_latency_seconds_bucket{{{labels},le=\"0.02\"}} 2.0"),
            format!("sglang:e2e_request_latency_seconds_count{{{labels}}} 2.0"),
        ] {
            assert!(page.lines().any(|own| own == line), "{line} is not on\n{page}");
        }
        assert!(!page.contains("vllm:"));
    }
}
