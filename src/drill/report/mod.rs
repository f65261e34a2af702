//! What a drill comes to, and its forms.

mod html;
mod json;
mod junit;
mod series;
mod text;

use std::time::Duration;

use serde::Serialize;

use super::check::{Judgement, Status};
use super::record::Record;
use super::scenario::Scenario;

pub use html::page;
pub use json::{document, documents};
pub use junit::junit;

/// How a drill ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every check that applies holds.
    Pass,
    /// One does not, or the program of a load failed.
    Fail,
    /// There is none: a step could not be done, or the drill did not run to its end.
    Error,
    /// There is none: the drill was never begun.
    NotRun,
}

impl Verdict {
    /// Its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Error => "error",
            Self::NotRun => "not run",
        }
    }

    /// Process exit code: 0 pass, 3 fail, 1 neither.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Fail => 3,
            Self::Error | Self::NotRun => 1,
        }
    }
}

/// A drill with its verdict.
#[derive(Debug, Clone)]
pub struct Report {
    /// Name of the scenario.
    pub name: String,
    /// What it shows.
    pub description: String,
    /// How it ended.
    pub verdict: Verdict,
    /// What ended it before its end, or kept it from beginning.
    pub error: Option<String>,
    /// Each check; none of a drill that did not run to its end.
    pub judgements: Vec<Judgement>,
    /// What was seen.
    pub record: Record,
    /// From the start of the fleet to its end.
    pub took: Duration,
}

impl Report {
    pub(super) fn new(scenario: &Scenario, record: Record, judgements: Vec<Judgement>, took: Duration) -> Self {
        let holds = judgements.iter().all(|judgement| judgement.status != Status::Fail);
        let done = record.moments.iter().all(|moment| moment.errors.is_empty());
        let ran = record.programs.iter().all(|program| !program.failed);
        Self {
            name: scenario.name.clone(),
            description: scenario.description.clone(),
            // What was not done to a router says nothing about it.
            verdict: match (done, holds && ran) {
                (false, _) => Verdict::Error,
                (true, true) => Verdict::Pass,
                (true, false) => Verdict::Fail,
            },
            error: None,
            judgements,
            record,
            took,
        }
    }

    /// One that did not run to its end: what was seen up to then.
    pub fn unfinished(scenario: &Scenario, record: Record, error: String, took: Duration) -> Self {
        Self {
            name: scenario.name.clone(),
            description: scenario.description.clone(),
            verdict: Verdict::Error,
            error: Some(error),
            judgements: Vec::new(),
            record,
            took,
        }
    }

    /// One that never began; `seed` is that which it would have had.
    pub fn not_run(scenario: &Scenario, seed: u64, why: &str) -> Self {
        Self {
            verdict: Verdict::NotRun,
            ..Self::unfinished(
                scenario,
                Record::unseen(seed),
                format!("not run: {why}"),
                Duration::ZERO,
            )
        }
    }

    /// Why there is no verdict.
    pub fn problem(&self) -> Option<String> {
        let steps = || {
            let steps: Vec<String> = self.errors().map(|(mark, why)| format!("step {mark}: {why}")).collect();
            (!steps.is_empty()).then(|| format!("not all steps could be carried out: {}", steps.join("; ")))
        };
        self.error.clone().or_else(steps)
    }

    /// The verdict as a table for a terminal.
    pub fn text(&self) -> String {
        text::table(self)
    }

    /// Steps that could not be done, by mark, and programs that failed, by load.
    pub fn errors(&self) -> impl Iterator<Item = (&str, &str)> {
        let moments = self.record.moments.iter();
        let steps = moments.flat_map(|moment| moment.errors.iter().map(|error| (moment.mark.as_str(), error.as_str())));
        let programs = self.record.programs.iter().filter(|program| program.failed);
        steps.chain(programs.map(|program| (program.name.as_str(), program.how.as_str())))
    }
}

/// A number that somebody reads.
fn short(value: f64) -> String {
    match value {
        value if value >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        value if value >= 1.0 => format!("{value:.1}"),
        value => format!("{value:.3}"),
    }
}
