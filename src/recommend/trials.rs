//! Trials: candidates replayed on all cores.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::predict::{self, PredictError};
use crate::replay::Control;

use super::objective::{Metrics, ranks};
use super::parts::as_read;
use super::plan::Plan;
use super::search::Algorithm;

/// What became of a candidate.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub(super) enum Outcome {
    /// It was replayed.
    Completed {
        /// What it measured.
        metrics: Metrics,
    },
    /// It may not be: too few or too many GPUs.
    Infeasible {
        /// Why.
        reason: String,
    },
    /// Its keys do not go together, or the replay failed.
    Failed {
        /// Why.
        reason: String,
    },
    /// The replay took too long.
    TimedOut,
}

/// One trial.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub(super) struct Trial {
    /// Number of the candidate.
    pub(super) candidate: u64,
    /// What became of it.
    #[serde(flatten)]
    pub(super) outcome: Outcome,
}

impl Trial {
    /// What it measured, if it did.
    pub(super) fn metrics(&self) -> Option<&Metrics> {
        match &self.outcome {
            Outcome::Completed { metrics } => Some(metrics),
            Outcome::Infeasible { .. } | Outcome::Failed { .. } | Outcome::TimedOut => None,
        }
    }
}

/// Trials that were made, perhaps not all.
#[derive(Debug)]
pub(super) struct Found {
    /// In the order of the search.
    pub(super) trials: Vec<Trial>,
    /// How many were meant to be made.
    pub(super) planned: u64,
    /// A signal ended the search before that.
    pub(super) partial: bool,
}

/// Tries what the search of part `part` proposes, `jobs` replays at a time. `show` is told how many of how many are done.
/// Ends early when `stop` is set; replays that were under way then are left out.
///
/// # Errors
/// [`PredictError::Config`] when a trial measured what cannot be written down.
pub(super) fn run(
    plan: &Plan,
    part: (u32, u32),
    jobs: usize,
    stop: &AtomicBool,
    mut show: impl FnMut(u64, u64),
) -> Result<Found, PredictError> {
    let mut search = plan.search(part);
    let planned = search.total();
    let mut trials: Vec<Trial> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let batch = search.next(&ranked(&trials, plan));
        if batch.is_empty() {
            break;
        }
        // A search that learns has to learn the same from the files of parts.
        trials.extend(as_read(replay_all(plan, &batch, jobs, stop))?);
        show(trials.len() as u64, planned);
    }
    Ok(Found {
        partial: (trials.len() as u64) < planned,
        trials,
        planned,
    })
}

/// Candidates with their ranks among those that have a result; nothing for a search that does not learn.
pub(super) fn ranked(trials: &[Trial], plan: &Plan) -> Vec<(u64, Option<usize>)> {
    if plan.algorithm != Algorithm::Bayesian {
        return Vec::new();
    }
    let measured: Vec<(u64, Metrics)> = trials
        .iter()
        .filter_map(|trial| Some((trial.candidate, *trial.metrics()?)))
        .collect();
    let metrics: Vec<Metrics> = measured.iter().map(|(_, metrics)| *metrics).collect();
    let ranks = ranks(&metrics, plan.target);
    let ranks: BTreeMap<u64, usize> = measured.iter().map(|(at, _)| *at).zip(ranks).collect();
    trials
        .iter()
        .map(|trial| (trial.candidate, ranks.get(&trial.candidate).copied()))
        .collect()
}

/// Results come in the order of the batch, whoever was done first.
fn replay_all(plan: &Plan, batch: &[u64], jobs: usize, stop: &AtomicBool) -> Vec<Trial> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Trial)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, batch.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&candidate) = batch.get(at) else { return };
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let Some(outcome) = replay(plan, candidate, stop) else {
                        return;
                    };
                    if let Ok(mut done) = done.lock() {
                        done.push((at, Trial { candidate, outcome }));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, trial)| trial).collect()
}

/// `None` when `stop` cut the replay off.
fn replay(plan: &Plan, candidate: u64, stop: &AtomicBool) -> Option<Outcome> {
    let failed = |reason: String| Some(Outcome::Failed { reason });
    let document = plan.space.document(candidate);
    let lowered = match predict::read(document).and_then(|document| predict::lower(&document, plan.stack)) {
        Ok(lowered) => lowered,
        Err(error) => return failed(error.to_string()),
    };
    if !plan.gpus.contains(&lowered.gpus) {
        let (gpus, least, most) = (lowered.gpus, plan.gpus.start(), plan.gpus.end());
        return Some(Outcome::Infeasible {
            reason: format!("{gpus} GPUs, expected {least} to {most}"),
        });
    }
    let limit = Duration::try_from_secs_f64(plan.timeout_seconds).unwrap_or(Duration::MAX);
    let started = Instant::now();
    let observe = |_| {
        if stop.load(Ordering::Relaxed) || started.elapsed() > limit {
            Control::Stop
        } else {
            Control::Continue
        }
    };
    match predict::predict(&lowered, observe) {
        Ok(report) if report.partial => (!stop.load(Ordering::Relaxed)).then_some(Outcome::TimedOut),
        Ok(report) => Some(Outcome::Completed {
            metrics: Metrics::of(&report, lowered.gpus),
        }),
        Err(error) => failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::Stack;

    use super::*;

    const SWEEP: &str = "
traffic: {load: {concurrency: {choices: [1, 2, 3, 4, 5, 6]}}, stop: {requests: 4}}
engine: {model: m, hardware: h, workers: {aggregated: {kv_cache: {capacity: {type: fixed, blocks: 64}}}}}
optimization: {target: ttft}
optimizer: {algorithm: grid, parallelism: 2}
";

    #[test]
    fn a_search_that_is_stopped_keeps_what_it_had_and_says_how_much_was_meant() {
        let plan = Plan::of(serde_norway::from_str(SWEEP).unwrap(), Stack::Engine).unwrap();
        let stop = AtomicBool::new(false);
        let found = run(&plan, (0, 1), 2, &stop, |done, _| {
            stop.store(done == 4, Ordering::Relaxed);
        })
        .unwrap();
        let tried: Vec<u64> = found.trials.iter().map(|trial| trial.candidate).collect();
        assert_eq!((tried, found.planned, found.partial), (vec![0, 1, 2, 3], 6, true));
        assert!(found.trials.iter().all(|trial| trial.metrics().is_some()));
        let whole = run(&plan, (0, 1), 2, &AtomicBool::new(false), |_, _| {}).unwrap();
        assert_eq!((whole.trials.len(), whole.partial), (6, false));
    }

    #[test]
    fn a_replay_that_is_cut_off_is_no_trial() {
        let plan = Plan::of(serde_norway::from_str(SWEEP).unwrap(), Stack::Engine).unwrap();
        let mut document: serde_norway::Value = serde_norway::from_str(SWEEP).unwrap();
        predict::yaml::set(&mut document, "traffic.stop.requests", 1_000_000.into()).unwrap();
        let large = Plan::of(document, Stack::Engine).unwrap();
        let stop = AtomicBool::new(true);
        assert_eq!(replay(&large, 0, &stop), None);
        // Too short to be asked on the way: it is done.
        assert!(matches!(replay(&plan, 0, &stop), Some(Outcome::Completed { .. })));
    }
}
