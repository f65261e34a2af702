//! Trials: candidates replayed on all cores.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::predict;
use crate::replay::Control;

use super::objective::{Metrics, ranks};
use super::plan::Plan;
use super::search::{Algorithm, Search};

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

/// Tries what the search of part `part` proposes, `jobs` replays at a time. `show` is told how many of how many are done.
/// `None` when `stop` was set on the way.
pub(super) fn run(
    plan: &Plan,
    part: (u32, u32),
    jobs: usize,
    stop: &AtomicBool,
    mut show: impl FnMut(u64, u64),
) -> Option<Vec<Trial>> {
    let mut search = Search::new(&plan.space, plan.algorithm, (plan.trials, plan.batch), plan.seed, part);
    let total = search.total();
    let mut trials: Vec<Trial> = Vec::new();
    loop {
        let batch = search.next(&ranked(&trials, plan));
        if batch.is_empty() {
            return Some(trials);
        }
        trials.extend(replay_all(plan, &batch, jobs, stop));
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        show(trials.len() as u64, total);
    }
}

/// Candidates with their ranks among those that have a result; nothing for a search that does not learn.
fn ranked(trials: &[Trial], plan: &Plan) -> Vec<(u64, Option<usize>)> {
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
                    let trial = Trial {
                        candidate,
                        outcome: replay(plan, candidate, stop),
                    };
                    if let Ok(mut done) = done.lock() {
                        done.push((at, trial));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, trial)| trial).collect()
}

fn replay(plan: &Plan, candidate: u64, stop: &AtomicBool) -> Outcome {
    let failed = |reason: String| Outcome::Failed { reason };
    let document = plan.space.document(candidate);
    let lowered = match predict::read(document.clone()).and_then(|document| predict::lower(&document, plan.stack)) {
        Ok(lowered) => lowered,
        Err(error) => return failed(error.to_string()),
    };
    if !plan.gpus.contains(&lowered.gpus) {
        let (gpus, least, most) = (lowered.gpus, plan.gpus.start(), plan.gpus.end());
        return Outcome::Infeasible {
            reason: format!("{gpus} GPUs, expected {least} to {most}"),
        };
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
    match predict::predict(document, plan.stack, |_| {}, observe) {
        Ok((_, report)) if report.partial => Outcome::TimedOut,
        Ok((lowered, report)) => Outcome::Completed {
            metrics: Metrics::of(&report, lowered.gpus),
        },
        Err(error) => failed(error.to_string()),
    }
}
