//! Files and table of a recommendation.

use std::fmt::Write as _;
use std::io::Write as _;

use serde_json::{Value, json};

use crate::predict::{self, PredictError, Results};

use super::objective::{Metrics, Target, recommended};
use super::plan::Plan;
use super::space::plain;
use super::trials::{Found, Outcome, Trial};

/// Rows of the table.
const SHOWN: usize = 20;

/// What a sweep came to.
pub(super) struct Recommendation<'a> {
    plan: &'a Plan,
    trials: &'a [Trial],
    /// Trials that were meant to be made, where a signal ended the search before that.
    partial_of: Option<u64>,
    /// Best first, with what they measured.
    best: Vec<(&'a Trial, Metrics)>,
}

impl<'a> Recommendation<'a> {
    pub(super) fn new(plan: &'a Plan, found: &'a Found) -> Self {
        let trials = &found.trials;
        let measured: Vec<(&Trial, Metrics)> = trials
            .iter()
            .filter_map(|trial| Some((trial, *trial.metrics()?)))
            .collect();
        let metrics: Vec<Metrics> = measured.iter().map(|(_, metrics)| *metrics).collect();
        let best = recommended(&metrics, plan.target);
        Self {
            plan,
            trials,
            partial_of: found.partial.then_some(found.planned),
            best: best.into_iter().map(|at| measured[at]).collect(),
        }
    }

    /// Whether any candidate can be recommended.
    pub(super) fn is_empty(&self) -> bool {
        self.best.is_empty()
    }

    /// Candidates that served a request within the bounds of good service; none where there are no bounds.
    fn within_sla(&self) -> Option<usize> {
        let measured = self.trials.iter().filter_map(Trial::metrics);
        let good: Vec<f64> = measured.filter_map(|metrics| metrics.goodput).collect();
        (!good.is_empty()).then(|| good.iter().filter(|goodput| **goodput > 0.0).count())
    }

    /// Whether there are bounds of good service that nothing keeps.
    pub(super) fn is_beyond_sla(&self) -> bool {
        self.within_sla() == Some(0)
    }

    /// Why the first candidate that failed did.
    pub(super) fn first_failure(&self) -> Option<&str> {
        self.trials.iter().find_map(|trial| match &trial.outcome {
            Outcome::Failed { reason } | Outcome::Infeasible { reason } => Some(reason.as_str()),
            Outcome::TimedOut => Some("the replay took longer than optimizer.candidate_timeout_seconds"),
            Outcome::Completed { .. } => None,
        })
    }

    fn count(&self, is: fn(&Outcome) -> bool) -> usize {
        self.trials.iter().filter(|trial| is(&trial.outcome)).count()
    }

    fn settings(&self, candidate: u64) -> Value {
        let settings = self.plan.space.settings(candidate);
        let pairs = settings
            .into_iter()
            .map(|(path, value)| (path.to_owned(), serde_json::to_value(value).unwrap_or(Value::Null)));
        Value::Object(pairs.collect())
    }

    /// The whole result.
    pub(super) fn to_json(&self) -> Value {
        let recommendation = |(at, (trial, metrics)): (usize, &(&Trial, Metrics))| {
            json!({
                "rank": at + 1,
                "config": config_file(at),
                "candidate": trial.candidate,
                "settings": self.settings(trial.candidate),
                "metrics": metrics,
            })
        };
        let failures = self.trials.iter().filter_map(|trial| {
            let (status, reason) = match &trial.outcome {
                Outcome::Completed { .. } => return None,
                Outcome::Infeasible { reason } => ("infeasible", reason.as_str()),
                Outcome::Failed { reason } => ("failed", reason.as_str()),
                Outcome::TimedOut => ("timed_out", ""),
            };
            let settings = self.settings(trial.candidate);
            Some(json!({"candidate": trial.candidate, "settings": settings, "status": status, "reason": reason}))
        });
        let mut whole = json!({
            "target": self.plan.target,
            "algorithm": self.plan.algorithm,
            "seed": self.plan.seed,
            "candidates": self.plan.space.len(),
            "trials": {
                "total": self.trials.len(),
                "completed": self.count(|outcome| matches!(outcome, Outcome::Completed { .. })),
                "infeasible": self.count(|outcome| matches!(outcome, Outcome::Infeasible { .. })),
                "failed": self.count(|outcome| matches!(outcome, Outcome::Failed { .. })),
                "timed_out": self.count(|outcome| matches!(outcome, Outcome::TimedOut)),
            },
            "recommendations": self.best.iter().enumerate().map(recommendation).collect::<Vec<_>>(),
            "not_completed": failures.collect::<Vec<_>>(),
        });
        if let Some(within) = self.within_sla() {
            whole["trials"]["within_sla"] = within.into();
        }
        if let Some(planned) = self.partial_of {
            whole["partial"] = true.into();
            whole["trials"]["planned"] = planned.into();
        }
        whole
    }

    /// Writes `recommendation.json`, `recommendation.csv` and one input of `predict` per recommendation.
    pub(super) fn write(&self, results: &Results, found: &Value) -> Result<(), PredictError> {
        results.clear("recommendations")?;
        for (at, (trial, _)) in self.best.iter().enumerate() {
            let document = predict::concrete(self.plan.space.document(trial.candidate))?;
            results.write(&config_file(at), |out| {
                serde_norway::to_writer(out, &document).map_err(std::io::Error::other)
            })?;
        }
        results.write_json("recommendation.json", found)?;
        results.write("recommendation.csv", |out| out.write_all(self.csv().as_bytes()))
    }

    fn csv(&self) -> String {
        let paths = self.plan.space.domains().iter().map(|domain| domain.path.clone());
        let numbers = [
            "gpus",
            "throughput",
            "throughput_per_gpu",
            "throughput_per_user",
            "goodput",
            "goodput_per_gpu",
            "mean_ttft_ms",
            "p99_ttft_ms",
            "mean_itl_ms",
            "mean_e2e_latency_ms",
            "completed_requests",
        ];
        let mut head = vec!["rank".to_owned(), "config".into()];
        head.extend(paths);
        head.extend(numbers.map(str::to_owned));
        let mut out = line(&head);
        for (at, (trial, metrics)) in self.best.iter().enumerate() {
            let mut row = vec![(at + 1).to_string(), config_file(at)];
            let settings = self.plan.space.settings(trial.candidate);
            row.extend(settings.into_iter().map(|(_, value)| plain(value)));
            let metrics = serde_json::to_value(metrics).unwrap_or(Value::Null);
            row.extend(numbers.map(|key| {
                let number = metrics[key].as_number();
                number.map_or_else(String::new, ToString::to_string)
            }));
            out.push_str(&line(&row));
        }
        out
    }

    /// The best candidates for the terminal.
    pub(super) fn table(&self) -> String {
        let names = short_names(self.plan);
        let mut head = vec!["rank".to_owned()];
        head.extend(names);
        head.extend(
            [
                "GPUs",
                "tok/s",
                "tok/s/GPU",
                "tok/s/user",
                "goodput/s",
                "TTFT ms",
                "ITL ms",
            ]
            .map(str::to_owned),
        );
        let mut rows = vec![head];
        for (at, (trial, metrics)) in self.best.iter().take(SHOWN).enumerate() {
            let mut row = vec![(at + 1).to_string()];
            let settings = self.plan.space.settings(trial.candidate);
            row.extend(settings.into_iter().map(|(_, value)| plain(value)));
            row.push(metrics.gpus.to_string());
            row.extend(
                [
                    metrics.throughput,
                    metrics.throughput_per_gpu,
                    metrics.throughput_per_user,
                ]
                .map(|v| format!("{v:.1}")),
            );
            row.push(
                metrics
                    .goodput
                    .map_or_else(|| "-".into(), |goodput| format!("{goodput:.2}")),
            );
            row.extend([metrics.mean_ttft_ms, metrics.mean_itl_ms].map(|v| format!("{v:.1}")));
            rows.push(row);
        }
        let title = match self.plan.target {
            Target::Pareto => "Pareto front: throughput per GPU against throughput per user\n".to_owned(),
            Target::Throughput
            | Target::ThroughputPerGpu
            | Target::ThroughputPerUser
            | Target::Goodput
            | Target::GoodputPerGpu
            | Target::Ttft
            | Target::E2eLatency => format!("Best by {}\n", plain_target(self.plan.target)),
        };
        let mut out = match self.partial_of {
            None => title,
            Some(planned) => format!(
                "Partial: interrupted after {} of {planned} trials\n{title}",
                self.trials.len()
            ),
        };
        let columns = rows[0].len();
        let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &rows {
            for (at, cell) in row.iter().enumerate() {
                let width = widths[at];
                // Writing to a string cannot fail.
                let _ = write!(out, "{}{cell:>width$}", if at == 0 { "" } else { "  " });
            }
            out.push('\n');
        }
        if self.best.len() > SHOWN {
            let _ = writeln!(out, "... and {} more", self.best.len() - SHOWN);
        }
        let _ = writeln!(
            out,
            "{} trials of {} candidates: {} completed, {} infeasible, {} failed, {} timed out",
            self.trials.len(),
            self.plan.space.len(),
            self.count(|outcome| matches!(outcome, Outcome::Completed { .. })),
            self.count(|outcome| matches!(outcome, Outcome::Infeasible { .. })),
            self.count(|outcome| matches!(outcome, Outcome::Failed { .. })),
            self.count(|outcome| matches!(outcome, Outcome::TimedOut)),
        );
        out
    }
}

fn plain_target(target: Target) -> String {
    serde_json::to_value(target)
        .ok()
        .and_then(|name| name.as_str().map(str::to_owned))
        .unwrap_or_default()
}

fn config_file(at: usize) -> String {
    format!("recommendations/{:04}.yaml", at + 1)
}

/// The ends of paths, as long as they tell the domains apart.
fn short_names(plan: &Plan) -> Vec<String> {
    let paths: Vec<&str> = plan.space.domains().iter().map(|domain| domain.path.as_str()).collect();
    let end = |path: &str, parts: usize| {
        let all: Vec<&str> = path.split('.').collect();
        all[all.len().saturating_sub(parts)..].join(".")
    };
    let unique = |path: &str, parts: usize| {
        let own = end(path, parts);
        paths.iter().filter(|other| end(other, parts) == own).count() == 1
    };
    let shortest = |path: &&str| {
        let parts = (1..8).find(|&parts| unique(path, parts)).unwrap_or(usize::MAX);
        end(path, parts)
    };
    paths.iter().map(shortest).collect()
}

/// A line of CSV.
fn line(cells: &[String]) -> String {
    let quoted = |cell: &String| {
        if cell.contains([',', '"', '\n']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell.clone()
        }
    };
    let cells: Vec<String> = cells.iter().map(quoted).collect();
    format!("{}\n", cells.join(","))
}

#[cfg(test)]
mod tests {
    #[test]
    fn cells_with_commas_and_quotes_are_quoted() {
        let cells = ["a", "b,c", "d\"e"].map(str::to_owned);
        assert_eq!(super::line(&cells), "a,\"b,c\",\"d\"\"e\"\n");
    }
}
