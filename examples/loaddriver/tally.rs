//! What a run adds up to.

use std::collections::BTreeMap;
use std::time::Duration;

use ghostfleet::types::InstanceId;
use serde_json::{Value, json};

/// Different error texts kept.
const ERROR_TEXTS: usize = 16;

/// Sums and samples; one per request in flight, merged at the end.
#[derive(Default)]
pub(crate) struct Tally {
    ok: u64,
    failed: u64,
    short: u64,
    pub(crate) tokens: u64,
    ttft: Samples,
    itl: Samples,
    request_itl: Samples,
    latency: Samples,
    ends: BTreeMap<String, u64>,
    errors: BTreeMap<String, u64>,
    per_worker: BTreeMap<InstanceId, (u64, u64)>,
}

impl Tally {
    pub(crate) fn ttft(&mut self, time: Duration) {
        self.ttft.add(time, 1);
    }

    /// `tokens` came together, this long after the one before.
    pub(crate) fn itl(&mut self, time: Duration, tokens: u64) {
        self.itl.add(time, tokens);
    }

    /// Time from the first to the last token of one request, with this many gaps.
    pub(crate) fn request_itl(&mut self, time: Duration, gaps: u64) {
        self.request_itl.add(time / u32::try_from(gaps).unwrap_or(u32::MAX), 1);
    }

    pub(crate) fn requests_of(&mut self, worker: InstanceId, tokens: u64) {
        let (requests, sum) = self.per_worker.entry(worker).or_default();
        *requests += 1;
        *sum += tokens;
    }

    pub(crate) fn ended(&mut self, how: &str, short: bool, latency: Duration) {
        self.ok += 1;
        self.short += u64::from(short);
        self.latency.add(latency, 1);
        *self.ends.entry(how.to_owned()).or_default() += 1;
    }

    pub(crate) fn failed(&mut self, error: &anyhow::Error) {
        self.failed += 1;
        let text: String = format!("{error:#}").chars().take(200).collect();
        add_text(&mut self.errors, text, 1);
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.ok += other.ok;
        self.failed += other.failed;
        self.short += other.short;
        self.tokens += other.tokens;
        self.ttft.merge(other.ttft);
        self.itl.merge(other.itl);
        self.request_itl.merge(other.request_itl);
        self.latency.merge(other.latency);
        for (end, count) in other.ends {
            *self.ends.entry(end).or_default() += count;
        }
        for (text, count) in other.errors {
            add_text(&mut self.errors, text, count);
        }
        for (worker, (requests, tokens)) in other.per_worker {
            let sum = self.per_worker.entry(worker).or_default();
            sum.0 += requests;
            sum.1 += tokens;
        }
    }

    /// The report; `workers` are all that could have been asked. Times are in milliseconds.
    pub(crate) fn report(mut self, wall: Duration, workers: impl Iterator<Item = InstanceId>) -> Value {
        for worker in workers {
            self.per_worker.entry(worker).or_default();
        }
        let seconds = wall.as_secs_f64();
        let spread = |of: fn(&(u64, u64)) -> u64| {
            let values = || self.per_worker.values().map(of);
            json!({"min": values().min(), "max": values().max()})
        };
        json!({
            "ok": self.ok,
            "failed": self.failed,
            "short": self.short,
            "tokens": self.tokens,
            "wall_s": seconds,
            "requests_per_s": rate(self.ok + self.failed, seconds),
            "tokens_per_s": rate(self.tokens, seconds),
            "per_worker": {"requests": spread(|sum| sum.0), "tokens": spread(|sum| sum.1)},
            "ttft_ms": self.ttft.report(),
            "itl_ms": self.itl.report(),
            "request_itl_ms": self.request_itl.report(),
            "latency_ms": self.latency.report(),
            "ends": self.ends,
            "errors": self.errors,
        })
    }
}

fn add_text(texts: &mut BTreeMap<String, u64>, text: String, count: u64) {
    let text = if texts.len() < ERROR_TEXTS || texts.contains_key(&text) {
        text
    } else {
        "others".to_owned()
    };
    *texts.entry(text).or_default() += count;
}

#[allow(clippy::cast_precision_loss)]
fn rate(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds
}

/// Times with weights.
#[derive(Default)]
struct Samples {
    sum: Duration,
    count: u64,
    /// Microseconds and how many share them.
    times: Vec<(u32, u32)>,
}

impl Samples {
    /// One span that stands for `parts` equal ones.
    fn add(&mut self, span: Duration, parts: u64) {
        self.sum += span;
        self.count += parts;
        let weight = u32::try_from(parts).unwrap_or(u32::MAX).max(1);
        let micros = u32::try_from((span / weight).as_micros()).unwrap_or(u32::MAX);
        self.times.push((micros, weight));
    }

    fn merge(&mut self, other: Self) {
        self.sum += other.sum;
        self.count += other.count;
        self.times.extend(other.times);
    }

    fn report(mut self) -> Value {
        self.times.sort_unstable();
        let at = |share: f64| {
            #[allow(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss
            )]
            let rank = (share * self.count.saturating_sub(1) as f64).round() as u64;
            let mut seen = 0;
            let time = self.times.iter().find(|(_, weight)| {
                seen += u64::from(*weight);
                seen > rank
            });
            time.map(|(micros, _)| f64::from(*micros) / 1000.0)
        };
        let mean = (self.count > 0).then(|| self.sum.as_secs_f64() * 1000.0 / rate(self.count, 1.0));
        json!({"count": self.count, "mean": mean, "p50": at(0.5), "p99": at(0.99), "max": at(1.0)})
    }
}
