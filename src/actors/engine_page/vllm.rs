//! vLLM's metrics, and the part of them that Dynamo shows for TensorRT-LLM under that engine's prefix.
//!
//! Names, labels and buckets are those of a vLLM 0.32.0 server. Left out is what an emulated engine cannot know
//! (estimated FLOPs and bytes, cache configuration), what it has not got (multi-modal and external caches, sleep), and the
//! `_created` times.

use std::sync::Arc;

use super::super::engine_metrics::{Counter, EngineMetrics, Histogram};
use super::super::gauge::RankSnapshot;
use super::{Page, PageRank, escape, float};

struct Row {
    labels: String,
    now: RankSnapshot,
    metrics: Arc<EngineMetrics>,
}

type Figure = fn(&Row) -> f64;
type Count = fn(&EngineMetrics) -> &Counter;
type Spread = fn(&EngineMetrics) -> &Histogram;

const FIGURES: [(&str, &str, &str, Figure); 8] = [
    (
        "num_requests_running",
        "gauge",
        "Number of requests in model execution batches.",
        |row| f64::from(row.now.load.running),
    ),
    (
        "num_requests_waiting",
        "gauge",
        "Number of requests waiting to be processed.",
        |row| f64::from(row.now.load.waiting),
    ),
    (
        "kv_cache_usage_perc",
        "gauge",
        "KV-cache usage. 1 means 100 percent usage.",
        Row::cache_usage,
    ),
    (
        "num_preemptions_total",
        "counter",
        "Cumulative number of preemptions.",
        |row| float(row.now.load.preemptions),
    ),
    (
        "prefix_cache_queries_total",
        "counter",
        "Tokens looked up in the prefix cache.",
        |row| float(row.metrics.prompt_tokens.get()),
    ),
    (
        "prefix_cache_hits_total",
        "counter",
        "Tokens found in the prefix cache.",
        |row| float(row.metrics.cached_tokens.get()),
    ),
    (
        "prompt_tokens_total",
        "counter",
        "Number of prefill tokens processed.",
        |row| float(row.metrics.prompt_tokens.get()),
    ),
    (
        "generation_tokens_total",
        "counter",
        "Number of generation tokens processed.",
        |row| float(row.now.tokens_total),
    ),
];

const FINISHED: [(&str, Count); 4] = [
    ("stop", |m| &m.stopped),
    ("length", |m| &m.ran_out),
    ("abort", |m| &m.aborted),
    ("error", |m| &m.failed),
];

const SPREADS: [(&str, &str, Spread); 15] = [
    ("time_to_first_token_seconds", "Time to first token in seconds.", |m| {
        &m.first_token
    }),
    ("inter_token_latency_seconds", "Inter-token latency in seconds.", |m| {
        &m.inter_token
    }),
    (
        "request_time_per_output_token_seconds",
        "Time per output token of a request in seconds.",
        |m| &m.time_per_output_token,
    ),
    (
        "e2e_request_latency_seconds",
        "Latency of a request from end to end in seconds.",
        |m| &m.e2e,
    ),
    (
        "request_queue_time_seconds",
        "Time of a request in the waiting queue.",
        |m| &m.queued,
    ),
    (
        "request_inference_time_seconds",
        "Time of a request in the running batch.",
        |m| &m.inference,
    ),
    ("request_prefill_time_seconds", "Time of a request in prefill.", |m| {
        &m.prefill
    }),
    ("request_decode_time_seconds", "Time of a request in decode.", |m| {
        &m.decode
    }),
    ("request_prompt_tokens", "Prompt length of a request in tokens.", |m| {
        &m.prompt_lengths
    }),
    (
        "request_generation_tokens",
        "Answer length of a request in tokens.",
        |m| &m.answer_lengths,
    ),
    (
        "request_max_num_generation_tokens",
        "Longest answer of a request in tokens.",
        |m| &m.max_answer_lengths,
    ),
    (
        "request_params_max_tokens",
        "The max_tokens parameter of a request.",
        |m| &m.max_tokens,
    ),
    ("request_params_n", "The n parameter of a request.", |m| &m.choices),
    (
        "request_prefill_kv_computed_tokens",
        "Prompt tokens of a request that were not cached.",
        |m| &m.computed,
    ),
    ("request_num_preemptions", "Preemptions of a request.", |m| {
        &m.preemptions
    }),
];

/// What TensorRT-LLM's page has of the above, beside `gpu_cache_usage_perc`.
const COMMON: [&str; 7] = [
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "num_preemptions_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
];

/// Everything that vLLM tells of these ranks.
pub(super) fn render(page: &mut Page<'_>, ranks: &[&PageRank]) {
    let rows: Vec<Row> = ranks.iter().map(|rank| Row::new(rank)).collect();
    figures(page, &rows, |_| true);
    let name = "prompt_tokens_by_source_total";
    page.head(name, "counter", "Number of prompt tokens by source.");
    for row in &rows {
        let (all, cached) = (row.metrics.prompt_tokens.get(), row.metrics.cached_tokens.get());
        let computed = float(all.saturating_sub(cached));
        let external = ("external_kv_transfer", 0.0);
        for (source, tokens) in [
            ("local_compute", computed),
            ("local_cache_hit", float(cached)),
            external,
        ] {
            page.line(name, &row.labels, &format!(",source=\"{source}\""), tokens);
        }
    }
    let name = "request_success_total";
    page.head(name, "counter", "Count of processed requests by how they ended.");
    for row in &rows {
        for (reason, count) in FINISHED {
            let reason = format!(",finished_reason=\"{reason}\"");
            page.line(name, &row.labels, &reason, float(count(&row.metrics).get()));
        }
    }
    spreads(page, &rows, |_| true);
}

/// The part that Dynamo shows for other engines with the same names.
pub(super) fn render_common(page: &mut Page<'_>, ranks: &[&PageRank]) {
    let rows: Vec<Row> = ranks.iter().map(|rank| Row::new(rank)).collect();
    figures(page, &rows, |name| COMMON.contains(&name));
    let name = "gpu_cache_usage_perc";
    page.head(name, "gauge", "GPU KV-cache usage. 1 means 100 percent usage.");
    for row in &rows {
        page.line(name, &row.labels, "", row.cache_usage());
    }
    spreads(page, &rows, |name| COMMON.contains(&name));
}

fn figures(page: &mut Page<'_>, rows: &[Row], wanted: impl Fn(&str) -> bool) {
    for (name, kind, help, figure) in FIGURES.into_iter().filter(|(name, ..)| wanted(name)) {
        page.head(name, kind, help);
        for row in rows {
            page.line(name, &row.labels, "", figure(row));
        }
    }
}

fn spreads(page: &mut Page<'_>, rows: &[Row], wanted: impl Fn(&str) -> bool) {
    for (name, help, spread) in SPREADS.into_iter().filter(|(name, ..)| wanted(name)) {
        page.head(name, "histogram", help);
        for row in rows {
            let (buckets, count, sum) = spread(&row.metrics).read();
            page.histogram(name, &row.labels, &buckets, count, sum);
        }
    }
}

impl Row {
    fn new(rank: &PageRank) -> Self {
        let model = escape(&rank.model);
        Self {
            labels: format!("engine=\"{}\",model_name=\"{model}\"{}", rank.rank, rank.worker_label()),
            now: rank.now(),
            metrics: Arc::clone(&rank.metrics),
        }
    }

    fn cache_usage(&self) -> f64 {
        f64::from(self.now.load.active_blocks) / f64::from(self.now.load.total_blocks.max(1))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::super::super::engine_metrics::Timeline;
    use super::super::render;
    use super::*;
    use crate::engine::EngineKind;
    use crate::types::{EngineRequest, FinishReason, HashSalt, RequestId, SimTime, StopRule};

    /// Recorded from a real server; see `tests/golden/vllm-server/README.md`.
    const RECORDED: &str = include_str!("../../../tests/golden/vllm-server/metrics-0.32.0.txt");

    /// Per metric: type, names of labels, bucket bounds.
    fn shape(page: &str) -> BTreeMap<String, (String, BTreeSet<String>, Vec<String>)> {
        let mut shapes: BTreeMap<String, (String, BTreeSet<String>, Vec<String>)> = BTreeMap::new();
        for text in page.lines().filter_map(|line| line.strip_prefix("# TYPE vllm:")) {
            let (name, kind) = text.split_once(' ').unwrap();
            shapes.entry(name.to_owned()).or_default().0 = kind.to_owned();
        }
        for text in page.lines().filter_map(|line| line.strip_prefix("vllm:")) {
            let (series, labels) = text.split_once('{').unwrap();
            let (labels, value) = labels.rsplit_once("} ").unwrap();
            assert!(value.parse::<f64>().is_ok(), "{text}");
            let base = ["_bucket", "_count", "_sum"]
                .iter()
                .find_map(|end| series.strip_suffix(end));
            let name = base.filter(|base| shapes.contains_key(*base)).unwrap_or(series);
            let shape = shapes.get_mut(name).unwrap_or_else(|| panic!("{series} has no type"));
            for label in labels.split("\",") {
                let (label, value) = label.split_once("=\"").unwrap();
                match label {
                    "le" => {
                        let bound = value.trim_end_matches('"').to_owned();
                        if !shape.2.contains(&bound) {
                            shape.2.push(bound);
                        }
                    }
                    other => {
                        shape.1.insert(other.to_owned());
                    }
                }
            }
        }
        shapes
    }

    fn rank(worker: Option<&str>) -> PageRank {
        PageRank {
            kind: EngineKind::Vllm,
            worker: worker.map(str::to_owned),
            rank: 0,
            block_size: 16,
            model: Arc::from("mock"),
            gauge: Arc::default(),
            told: None,
            // As the recorded server's.
            metrics: Arc::new(EngineMetrics::new(EngineKind::Vllm, 512)),
        }
    }

    #[test]
    fn names_types_labels_and_buckets_are_those_of_a_real_server() {
        let (recorded, ours) = (shape(RECORDED), shape(&render(&[rank(None)])));
        for (name, shape) in &ours {
            assert_eq!(recorded.get(name), Some(shape), "{name}");
        }
        let left_out: Vec<_> = recorded
            .keys()
            .filter(|name| !ours.contains_key(*name) && !name.ends_with("_created"))
            .map(String::as_str)
            .collect();
        assert_eq!(
            left_out,
            [
                "admission_rejections_total",
                "cache_config_info",
                "engine_sleep_state",
                "estimated_flops_per_gpu_total",
                "estimated_read_bytes_per_gpu_total",
                "estimated_write_bytes_per_gpu_total",
                "external_prefix_cache_hits_total",
                "external_prefix_cache_queries_total",
                "iteration_tokens_total",
                "mm_cache_hits_total",
                "mm_cache_queries_total",
                "num_requests_waiting_by_reason",
                "prompt_tokens_cached_by_source_total",
                "prompt_tokens_cached_total",
            ]
        );
    }

    #[test]
    fn a_request_is_counted_once_in_everything_that_concerns_it() {
        let rank = rank(Some("w3"));
        let at = |ms: u64| SimTime::of_nanos(ms * 1_000_000);
        let request = EngineRequest {
            id: RequestId(1),
            key: 0,
            prompt: vec![0; 130].into(),
            stop: StopRule {
                max_tokens: Some(3),
                ..StopRule::default()
            },
            planned: None,
            priority: 0,
            salt: HashSalt::default(),
            routing_key: None,
        };
        let mut timeline = Timeline::new(&request, at(0));
        timeline.admitted(100, at(20), &rank.metrics);
        for ms in [70, 100, 120] {
            timeline.token(at(ms), &rank.metrics);
        }
        timeline.finished(FinishReason::Length, at(120), &rank.metrics);
        let page = render(&[rank]);
        let labels = "engine=\"0\",model_name=\"mock\",worker=\"w3\"";
        for line in [
            format!("vllm:prompt_tokens_total{{{labels}}} 130.0"),
            format!("vllm:prefix_cache_hits_total{{{labels}}} 100.0"),
            format!("vllm:time_to_first_token_seconds_bucket{{{labels},le=\"0.06\"}} 0.0"),
            format!("vllm:time_to_first_token_seconds_bucket{{{labels},le=\"0.08\"}} 1.0"),
            format!("vllm:inter_token_latency_seconds_bucket{{{labels},le=\"0.025\"}} 1.0"),
            format!("vllm:inter_token_latency_seconds_count{{{labels}}} 2.0"),
            format!("vllm:request_time_per_output_token_seconds_sum{{{labels}}} 0.025"),
            format!("vllm:request_queue_time_seconds_sum{{{labels}}} 0.02"),
            format!("vllm:request_prefill_time_seconds_sum{{{labels}}} 0.05"),
            format!("vllm:e2e_request_latency_seconds_sum{{{labels}}} 0.12"),
            format!("vllm:request_prefill_kv_computed_tokens_sum{{{labels}}} 30.0"),
            format!("vllm:request_success_total{{{labels},finished_reason=\"length\"}} 1.0"),
        ] {
            assert!(page.lines().any(|own| own == line), "{line} is not on\n{page}");
        }
    }

    #[test]
    fn tensorrt_llm_has_the_common_part_under_its_own_prefix() {
        let page = render(&[PageRank {
            kind: EngineKind::Trtllm,
            ..rank(None)
        }]);
        let labels = "engine=\"0\",model_name=\"mock\"";
        for line in [
            format!("trtllm:num_requests_running{{{labels}}} 0.0"),
            format!("trtllm:gpu_cache_usage_perc{{{labels}}} 0.0"),
            format!("trtllm:e2e_request_latency_seconds_count{{{labels}}} 0.0"),
        ] {
            assert!(page.lines().any(|own| own == line), "{line} is not on\n{page}");
        }
        assert!(!page.contains("vllm:") && !page.contains("prompt_tokens"));
    }
}
