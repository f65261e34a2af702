//! Engines' metrics in Prometheus' text form, under the names of the engine that is emulated, of one worker or of many.

mod sglang;
mod vllm;

use std::fmt::Write;
use std::sync::Arc;

use super::engine_metrics::EngineMetrics;
use super::gauge::{RankGauge, RankSnapshot};
use crate::engine::EngineKind;
use crate::types::Load;

/// One rank on the page.
pub(super) struct PageRank {
    pub(super) kind: EngineKind,
    /// Actor path of the worker; a label where a page has several.
    pub(super) worker: Option<String>,
    pub(super) rank: u32,
    /// Tokens per block.
    pub(super) block_size: u32,
    pub(super) model: Arc<str>,
    pub(super) gauge: Arc<RankGauge>,
    /// Load to tell in place of the true one.
    pub(super) told: Option<Load>,
    pub(super) metrics: Arc<EngineMetrics>,
}

impl PageRank {
    /// Whether it ever had a request.
    pub(super) fn has_served(&self) -> bool {
        self.gauge.requests() > 0
    }

    fn now(&self) -> RankSnapshot {
        let mut now = self.gauge.snapshot(String::new());
        now.load = self.told.unwrap_or(now.load);
        now
    }

    fn worker_label(&self) -> String {
        match &self.worker {
            Some(worker) => format!(",worker=\"{}\"", escape(worker)),
            None => String::new(),
        }
    }
}

/// The page of these ranks, those of a worker side by side.
pub(super) fn render(ranks: &[PageRank]) -> String {
    let mut text = String::new();
    for kind in EngineKind::ALL {
        let own: Vec<&PageRank> = ranks.iter().filter(|rank| rank.kind == kind).collect();
        if own.is_empty() {
            continue;
        }
        match kind {
            EngineKind::Vllm => vllm::render(&mut Page::new(&mut text, "vllm"), &own),
            EngineKind::Trtllm => vllm::render_common(&mut Page::new(&mut text, "trtllm"), &own),
            EngineKind::Sglang => sglang::render(&mut Page::new(&mut text, "sglang"), &own),
        }
    }
    text
}

/// Writes metrics with one prefix; the colon behind it is literal.
struct Page<'a> {
    text: &'a mut String,
    prefix: &'static str,
}

impl<'a> Page<'a> {
    fn new(text: &'a mut String, prefix: &'static str) -> Self {
        Self { text, prefix }
    }

    // Writing into a String cannot fail.

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let prefix = self.prefix;
        let _ = writeln!(
            self.text,
            "# HELP {prefix}:{name} {help}\n# TYPE {prefix}:{name} {kind}"
        );
    }

    fn line(&mut self, name: &str, labels: &str, more: &str, value: f64) {
        let _ = writeln!(self.text, "{}:{name}{{{labels}{more}}} {value:?}", self.prefix);
    }

    /// `buckets`: upper bound and number of observations up to it.
    fn histogram(&mut self, name: &str, labels: &str, buckets: &[(f64, u64)], count: u64, sum: f64) {
        let bucket = format!("{name}_bucket");
        for (bound, below) in buckets {
            self.line(&bucket, labels, &format!(",le=\"{bound:?}\""), float(*below));
        }
        self.line(&bucket, labels, ",le=\"+Inf\"", float(count));
        self.line(&format!("{name}_count"), labels, "", float(count));
        self.line(&format!("{name}_sum"), labels, "", sum);
    }
}

#[allow(clippy::cast_precision_loss)] // no counter gets near 2^53
fn float(count: u64) -> f64 {
    count as f64
}

/// Label values may hold anything; three characters have to be escaped.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
