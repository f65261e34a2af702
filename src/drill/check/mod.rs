//! Checks: what has to hold, in one line each.
//!
//! `<quantity> <relation> <value> [after <point>] [until <point>] [within <time> [of <point>] [over <time>]]`
//!
//! | Quantity | What | Unit |
//! |---|---|---|
//! | `requests`, `completed`, `failed`, `failed(<how>)` | requests sent in the window, and what became of them | count |
//! | `error_rate` | failed of those that are over | share |
//! | `p99 ttft`, `mean itl`, `max gap`, `p50 latency` | time to the first token; time per token of an answer; longest silence in an answer; whole answer. `p<N>`, `median`, `mean`, `max`, `min` | time |
//! | `throughput` | tokens per second that clients got | per second |
//! | `requests reaching <workers>` | requests that came to these workers, or to the address of one that is dead | count |
//! | `spread` | requests of the busiest worker against the mean of all | ratio |
//! | `migrations` | answers that were continued on another worker | count |
//! | `leaked streams`, `sequences`, `blocks`, `rooms`, `anything` | what is still held when the drill has settled | count |
//! | `time_to_detect` | from a disturbance to the last request that came to its victims | time |
//! | `time_to_recover` | from a disturbance until no request fails and `p99 ttft` is back under twice the baseline | time |
//! | `hit_rate`, `believed_hit_rate`, `overcredit` | share of prompt tokens found in caches; the share that the router counted on; how much more that is | share |
//! | `recoveries` | answers of workers to routers that ask for events that they missed | count |
//! | `index_drift` | blocks that an index, or a router by its choices, has wrong, of all | share |
//! | `victims` | workers that the disturbance has struck | count |
//! | `<program>.<key>.<key>..` | a number in the report that a load's program has left; a time below a key in `_ms`, `_us` or `_ns` | as reported |
//!
//! Values are numbers, `5%`, times (`20ms`, `3s`) or `2x`: that many times the quantity before the first disturbance.
//! Points are `start`, `end`, a mark, a time, or `3s after <mark>`. Workers are selectors that name them, or `victim`: those
//! struck at the mark that the check names, else at the first disturbance.
//!
//! Without `within` a check is decided once, over its whole window. With it there has to be a moment, early enough, from
//! which on every stretch of `over` (2 s) meets it. `no request reaches <workers> [3s after <mark>]` is short for
//! `requests reaching <workers> == 0 after ..`. A request belongs to the moment at which it was sent.

mod judge;
mod measure;
mod possible;
mod words;

use serde::Deserialize;

pub use self::judge::{Judgement, Status, judge};
pub(in crate::drill) use self::measure::quantile;
pub(in crate::drill) use self::possible::Plan;
use super::scenario::program::Program;
use super::scenario::span::Span;
use crate::faults::Selector;

/// One check.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// Its name in reports; the expression, if it has none.
    pub name: String,
    /// As written.
    pub expect: String,
    /// What it would mean if it failed.
    pub why: String,
    /// It is to be decided only where there is a router, whatever its quantity.
    pub needs_frontend: bool,
    /// Only requests of this load.
    pub load: Option<String>,
    /// The expression, read.
    pub condition: Condition,
}

/// An expression, read.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    /// What is looked at.
    pub quantity: Quantity,
    /// How it is compared.
    pub relation: Relation,
    /// With what.
    pub value: Value,
    /// Begin of the window; `None`: when the drill has warmed up.
    pub after: Option<Point>,
    /// End of the window; `None`: the end.
    pub until: Option<Point>,
    /// It has to hold from this long after the begin at the latest.
    pub within: Option<Span>,
    /// Length of the stretches that are looked at one by one.
    pub over: Span,
}

/// Stretches of a check that does not say how long they are.
const STRETCH: Span = Span(2.0);

/// What can be looked at.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Quantity {
    Requests,
    Completed,
    /// Of any kind, or of one.
    Failed(Option<String>),
    ErrorRate,
    Latency(Stat, Latency),
    Throughput,
    Reaching(Whom),
    Spread,
    Migrations,
    Leaked(Held),
    TimeToDetect,
    TimeToRecover,
    HitRate,
    BelievedHitRate,
    Overcredit,
    Recoveries,
    IndexDrift,
    Victims,
    /// A number in the report of a program.
    Figure(Figure),
}

/// Where a number stands in a program's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// The load whose program it is.
    pub program: String,
    /// Keys on the way to it.
    pub keys: Vec<String>,
}

impl Figure {
    /// What its numbers are multiplied with to be seconds, where a key says that it is a time.
    pub fn scale(&self) -> Option<f64> {
        let units = [("_ms", 1e-3), ("_us", 1e-6), ("_ns", 1e-9)];
        let mut keys = self.keys.iter().rev();
        keys.find_map(|key| units.iter().find(|(unit, _)| key.ends_with(unit)))
            .map(|(_, scale)| *scale)
    }
}

/// Which time of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Latency {
    /// From sending to the first token.
    Ttft,
    /// Mean time between tokens of one answer.
    Itl,
    /// Longest silence between two tokens of one answer.
    Gap,
    /// From sending to the end.
    Whole,
}

/// Which of many.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Stat {
    /// Share of the values that are not greater, from 0 to 1; 1 is the greatest.
    Quantile(f64),
    /// Mean.
    Mean,
}

/// What requests hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Held {
    Streams,
    Sequences,
    Blocks,
    Rooms,
    Anything,
}

/// Workers that a check names.
#[derive(Debug, Clone, PartialEq)]
pub enum Whom {
    /// By name.
    Named(Selector),
    /// Those struck at a mark; `None`: at the mark that the check's window begins with, else the first disturbance.
    Victims(Option<String>),
}

/// How two numbers are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Relation {
    Less,
    AtMost,
    Greater,
    AtLeast,
    Equal,
    NotEqual,
}

impl Relation {
    /// Its sign.
    pub const fn sign(self) -> &'static str {
        match self {
            Self::Less => "<",
            Self::AtMost => "<=",
            Self::Greater => ">",
            Self::AtLeast => ">=",
            Self::Equal => "==",
            Self::NotEqual => "!=",
        }
    }

    /// Whether `left` is so related to `right`.
    #[allow(clippy::float_cmp)]
    pub fn holds(self, left: f64, right: f64) -> bool {
        match self {
            Self::Less => left < right,
            Self::AtMost => left <= right,
            Self::Greater => left > right,
            Self::AtLeast => left >= right,
            Self::Equal => left == right,
            Self::NotEqual => left != right,
        }
    }
}

/// What a quantity is compared with. Times are in seconds, shares from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// A number.
    Number(f64),
    /// So many times the baseline.
    Baseline(f64),
}

/// A moment of a drill.
#[derive(Debug, Clone, PartialEq)]
pub enum Point {
    /// So many seconds after the start.
    At(f64),
    /// The end of the loads.
    End,
    /// So many seconds after a mark.
    After(String, f64),
}

/// What a quantity is measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Seconds.
    Time,
    /// 0 to 1.
    Share,
    /// Whole numbers.
    Count,
    /// Anything else.
    Number,
    /// What a program says, in its own unit.
    Plain,
}

/// What a quantity is, besides its name.
struct Nature {
    unit: Unit,
    /// It is one number for a whole drill, which no window of time cuts.
    is_of_the_whole: bool,
    /// It says something about a router and nothing without one.
    is_of_a_router: bool,
}

impl Nature {
    /// In a window of time, with or without a router.
    const fn of(unit: Unit) -> Self {
        Self {
            unit,
            is_of_the_whole: false,
            is_of_a_router: false,
        }
    }

    const fn of_the_whole(self) -> Self {
        Self {
            is_of_the_whole: true,
            ..self
        }
    }

    const fn of_a_router(self) -> Self {
        Self {
            is_of_a_router: true,
            ..self
        }
    }
}

impl Quantity {
    /// The one list of what is known of each.
    fn nature(&self) -> Nature {
        match self {
            Self::Requests | Self::Completed | Self::Failed(_) => Nature::of(Unit::Count),
            Self::ErrorRate | Self::HitRate => Nature::of(Unit::Share),
            Self::Latency(..) => Nature::of(Unit::Time),
            Self::Throughput => Nature::of(Unit::Number),
            Self::Reaching(_) | Self::Migrations | Self::Recoveries => Nature::of(Unit::Count).of_a_router(),
            Self::Spread => Nature::of(Unit::Number).of_a_router(),
            Self::BelievedHitRate | Self::Overcredit | Self::IndexDrift => Nature::of(Unit::Share).of_a_router(),
            Self::Leaked(_) | Self::Victims => Nature::of(Unit::Count).of_the_whole(),
            Self::TimeToDetect => Nature::of(Unit::Time).of_the_whole().of_a_router(),
            Self::TimeToRecover => Nature::of(Unit::Time).of_the_whole(),
            Self::Figure(figure) => Nature::of(figure.scale().map_or(Unit::Plain, |_| Unit::Time)).of_the_whole(),
        }
    }

    /// Its unit.
    pub fn unit(&self) -> Unit {
        self.nature().unit
    }

    /// Whether it is one number for a whole drill, which no window of time cuts.
    pub fn is_of_the_whole(&self) -> bool {
        self.nature().is_of_the_whole
    }

    /// Whether it says something about a router and nothing without one.
    pub fn is_of_a_router(&self) -> bool {
        self.nature().is_of_a_router
    }
}

/// What checks can name.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Names<'a> {
    /// Marks of the timeline.
    pub(super) marks: &'a [&'a str],
    /// Loads of the drill's own.
    pub(super) loads: &'a [&'a str],
    /// Loads that are programs.
    pub(super) programs: &'a [Program],
}

/// As it stands in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    expect: String,
    name: Option<String>,
    #[serde(default)]
    why: String,
    needs: Option<Needs>,
    load: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Needs {
    Frontend,
}

impl Written {
    /// Reads it against the marks and loads that there are.
    pub(super) fn read(self, names: Names<'_>) -> Result<Check, String> {
        let condition = words::read(&self.expect, names).map_err(|why| format!("{:?}: {why}", self.expect))?;
        if let Some(load) = &self.load
            && !names.loads.contains(&load.as_str())
        {
            if names.programs.iter().any(|program| program.name == *load) {
                return Err(format!(
                    "{load} is a program, whose requests only it knows; say {load}.<key in its report>"
                ));
            }
            return Err(format!("there is no load {load}; there are {}", names.loads.join(", ")));
        }
        Ok(Check {
            name: self.name.unwrap_or_else(|| self.expect.clone()),
            needs_frontend: self.needs.is_some(),
            expect: self.expect,
            why: self.why,
            load: self.load,
            condition,
        })
    }
}
