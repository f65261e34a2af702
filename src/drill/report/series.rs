//! A drill over time, in equal slices.

use serde::Serialize;

use crate::drill::check::quantile;
use crate::drill::record::{Record, Request};

/// Slices of a drill at most.
const SLICES: usize = 240;

/// Shortest slice, seconds.
const SHORTEST: f64 = 0.25;

/// A drill over time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Series {
    /// Length of a slice, seconds.
    pub(super) slice: f64,
    pub(super) slices: Vec<Slice>,
    /// Requests that came to each worker in each slice.
    pub(super) arrivals: Vec<Vec<u32>>,
}

/// Requests that were sent in one slice.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Slice {
    pub(super) sent: u32,
    pub(super) failed: u32,
    pub(super) ttft_p50_ms: Option<f64>,
    pub(super) ttft_p99_ms: Option<f64>,
    pub(super) itl_p50_ms: Option<f64>,
    pub(super) gap_max_ms: Option<f64>,
}

/// A summary of one load.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) load: String,
    pub(super) requests: usize,
    pub(super) completed: usize,
    pub(super) failed: std::collections::BTreeMap<String, usize>,
    pub(super) migrated: usize,
    pub(super) ttft_p50_ms: Option<f64>,
    pub(super) ttft_p99_ms: Option<f64>,
    pub(super) itl_p50_ms: Option<f64>,
    pub(super) itl_p99_ms: Option<f64>,
    pub(super) gap_max_ms: Option<f64>,
}

fn ms(values: impl Iterator<Item = f64>, share: f64) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    (!values.is_empty()).then(|| (quantile(&values, share) * 1e6).round() / 1e3)
}

fn gaps<'a>(requests: &'a [&Request]) -> impl Iterator<Item = f64> + 'a {
    requests
        .iter()
        .filter(|request| request.first.is_some())
        .map(|request| request.gap)
}

impl Series {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    pub(super) fn of(record: &Record) -> Self {
        let slice = (record.duration / SLICES as f64).max(SHORTEST);
        let many = (record.duration / slice).ceil().max(1.0) as usize;
        let index = |at: f64| (at >= 0.0).then(|| (at / slice) as usize).filter(|index| *index < many);
        let mut requests: Vec<Vec<&Request>> = vec![Vec::new(); many];
        for request in &record.requests {
            if let Some(index) = index(request.sent) {
                requests[index].push(request);
            }
        }
        let mut arrivals = vec![vec![0; many]; record.workers.len()];
        for arrival in &record.arrivals {
            if let (Some(worker), Some(index)) = (arrival.worker, index(arrival.at))
                && let Some(row) = arrivals.get_mut(worker as usize)
            {
                row[index] += 1;
            }
        }
        let slices = requests.iter().map(|requests| Slice {
            sent: count(requests.len()),
            failed: count(requests.iter().filter(|request| request.failure.is_some()).count()),
            ttft_p50_ms: ms(requests.iter().filter_map(|request| request.ttft()), 0.5),
            ttft_p99_ms: ms(requests.iter().filter_map(|request| request.ttft()), 0.99),
            itl_p50_ms: ms(requests.iter().filter_map(|request| request.itl()), 0.5),
            gap_max_ms: ms(gaps(requests), 1.0),
        });
        Self {
            slice,
            slices: slices.collect(),
            arrivals,
        }
    }
}

fn count(many: usize) -> u32 {
    u32::try_from(many).unwrap_or(u32::MAX)
}

/// Each load in figures; what was sent during the warm-up does not count.
pub(super) fn summaries(record: &Record) -> Vec<Summary> {
    let of = |(position, load): (usize, &String)| {
        let requests = record.requests.iter();
        let requests: Vec<&Request> = requests
            .filter(|request| request.load == position && request.sent >= record.warmup)
            .collect();
        let mut summary = Summary {
            load: load.clone(),
            requests: requests.len(),
            completed: requests.iter().filter(|request| request.failure.is_none()).count(),
            migrated: requests.iter().filter(|request| request.workers.len() > 1).count(),
            ttft_p50_ms: ms(requests.iter().filter_map(|request| request.ttft()), 0.5),
            ttft_p99_ms: ms(requests.iter().filter_map(|request| request.ttft()), 0.99),
            itl_p50_ms: ms(requests.iter().filter_map(|request| request.itl()), 0.5),
            itl_p99_ms: ms(requests.iter().filter_map(|request| request.itl()), 0.99),
            gap_max_ms: ms(gaps(&requests), 1.0),
            ..Summary::default()
        };
        for failure in requests.iter().filter_map(|request| request.failure.as_ref()) {
            *summary.failed.entry(failure.kind.clone()).or_default() += 1;
        }
        summary
    };
    record.loads.iter().enumerate().map(of).collect()
}
