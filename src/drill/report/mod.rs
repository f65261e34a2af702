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
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Every check that applies holds.
    Pass,
    /// One does not, a step could not be done, or the program of a load failed.
    Fail,
}

impl Verdict {
    /// Its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
        }
    }

    /// Process exit code: 0 pass, 3 fail.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Fail => 3,
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
    /// Each check.
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
            verdict: if holds && done && ran {
                Verdict::Pass
            } else {
                Verdict::Fail
            },
            judgements,
            record,
            took,
        }
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
