//! Faults as data: what goes wrong, where, for whom, when and how often.
//!
//! | Module | Job |
//! |---|---|
//! | [`kind`] | the catalogue: one file per layer, one enum per gate, one variant per kind |
//! | [`select`] | whom: ids, ranges, groups, labels, shares, rules |
//! | [`mod@line`] | the one-line form, as on a command line |
//! | [`table`] | what one worker's gates ask; one relaxed load while it is empty |
//! | [`ledger`] | all faults of a fleet: windows and choices |
//! | [`standing`] | one fault as a fleet has it |
//! | [`tally`] | what has come of all of them, also of those that are listed no more |
//! | [`agenda`] | what is to be done to workers because of them: crashes, restarts of one that flaps |
//! | [`journal`] | what happened and what was drawn, bounded |
//! | [`draw`] | the seeded dice |
//!
//! A [`Fault`] is the same object in a scenario file (TOML), in the admin API (JSON) and as one line. Everything here is
//! pure: who carries faults out tells the time and the state of the fleet, and is told what to do.

pub mod agenda;
pub mod draw;
pub mod journal;
pub mod kind;
pub mod ledger;
pub mod line;
pub mod select;
pub mod standing;
pub mod table;
pub mod tally;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use journal::Journal;
pub use kind::{Kind, KindError, Layer};
pub use ledger::Ledger;
pub use select::{Selector, SelectorError};
pub use table::WorkerFaults;

use crate::types::LONGEST_SPAN;

/// Number of a fault in its fleet, from 1; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FaultId(pub u64);

impl fmt::Display for FaultId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "f{}", self.0)
    }
}

impl std::str::FromStr for FaultId {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let digits = text.strip_prefix('f').unwrap_or(text);
        digits
            .parse()
            .map(Self)
            .map_err(|_| FaultError::Id(text.chars().take(40).collect()))
    }
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Fault {
    /// Whom.
    pub select: Selector,
    /// What, with its parameters.
    pub kind: Kind,
    /// Chance that it happens each time its gate asks, above 0 up to 1.
    pub probability: f64,
    /// Start, from the moment it is added.
    pub from: Duration,
    /// End, from the moment it is added; `None`: until it is removed.
    pub to: Option<Duration>,
    /// Seed of its dice and of the workers that a random selector picks.
    pub seed: u64,
}

/// A fault that cannot be.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FaultError {
    /// Layer, kind or parameters.
    #[error(transparent)]
    Kind(#[from] KindError),
    /// Selector.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// Probability.
    #[error("probability {0:?} must be between 0 and 1, and more than 0: without a chance it does nothing")]
    Probability(f64),
    /// A time that is no time.
    #[error("{0} {1:?} must be a number of seconds, 0 or greater and less than a year")]
    Time(&'static str, f64),
    /// Ends before it starts.
    #[error("to {to} s must be later than from {from} s")]
    Window {
        /// Start, seconds.
        from: f64,
        /// End, seconds.
        to: f64,
    },
    /// One-line form.
    #[error("{0}")]
    Line(String),
    /// Not a fault's number.
    #[error("{0:?} is no fault; use f<N> as the list of faults shows it")]
    Id(String),
    /// No such fault.
    #[error("there is no fault {0}; it may have been removed already")]
    Unknown(FaultId),
    /// The selector picks nobody, and never can.
    #[error("{0} selects no worker of this fleet")]
    Nobody(Selector),
    /// The selector picks nobody who has what the fault strikes.
    #[error("{0} selects no worker of this fleet that it does anything to: {1}")]
    Spared(Selector, &'static str),
    /// Too many.
    #[error("{0} faults are the most a fleet keeps; remove some first")]
    TooMany(usize),
}

/// How a fault is written in JSON and TOML.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    select: Selector,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layer: Option<Layer>,
    kind: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    params: Map<String, Value>,
    #[serde(default = "always")]
    probability: f64,
    #[serde(default)]
    from: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    to: Option<f64>,
    #[serde(default)]
    seed: u64,
}

fn always() -> f64 {
    1.0
}

fn span(name: &'static str, seconds: f64) -> Result<Duration, FaultError> {
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|span| *span < LONGEST_SPAN)
        .ok_or(FaultError::Time(name, seconds))
}

impl TryFrom<Written> for Fault {
    type Error = FaultError;

    fn try_from(written: Written) -> Result<Self, FaultError> {
        let kind = Kind::read(written.layer, &written.kind, written.params)?;
        if !(written.probability > 0.0 && written.probability <= 1.0) {
            return Err(FaultError::Probability(written.probability));
        }
        let from = span("from", written.from)?;
        let to = written.to.map(|to| span("to", to)).transpose()?;
        if let Some(to) = to
            && to <= from
        {
            return Err(FaultError::Window {
                from: from.as_secs_f64(),
                to: to.as_secs_f64(),
            });
        }
        Ok(Self {
            select: written.select,
            kind,
            probability: written.probability,
            from,
            to,
            seed: written.seed,
        })
    }
}

impl From<Fault> for Written {
    fn from(fault: Fault) -> Self {
        Self {
            layer: Some(fault.kind.layer()),
            kind: fault.kind.word().to_owned(),
            params: fault.kind.params(),
            select: fault.select,
            probability: fault.probability,
            from: fault.from.as_secs_f64(),
            to: fault.to.map(|to| to.as_secs_f64()),
            seed: fault.seed,
        }
    }
}

impl Fault {
    /// A fault that always happens, from now on until it is removed.
    pub fn new(select: Selector, kind: impl Into<Kind>) -> Self {
        Self {
            select,
            kind: kind.into(),
            probability: 1.0,
            from: Duration::ZERO,
            to: None,
            seed: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::kind::{PassFault, ResponseFault};
    use super::*;

    fn read(value: Value) -> Result<Fault, String> {
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    #[test]
    fn a_fault_reads_the_same_from_json_and_toml() {
        let json = read(json!({
            "select": "w3", "layer": "response", "kind": "latency", "params": {"ms": 20.0},
            "probability": 0.5, "from": 1.5, "to": 4, "seed": 7
        }));
        let toml: Fault = toml::from_str(
            "select = \"w3\"\nlayer = \"response\"\nkind = \"latency\"\nparams = { ms = 20 }\n\
             probability = 0.5\nfrom = 1.5\nto = 4\nseed = 7",
        )
        .unwrap();
        assert_eq!(json.as_ref(), Ok(&toml));
        assert_eq!(
            toml.kind,
            Kind::from(ResponseFault::Latency {
                ms: 20.0,
                jitter_ms: 0.0
            })
        );
        let again = serde_json::to_value(&toml).unwrap();
        assert_eq!(read(again), Ok(toml));
    }

    #[test]
    fn a_kind_of_one_layer_needs_no_layer() {
        let fault = read(json!({"select": "*", "kind": "slow", "params": {"factor": 3}})).unwrap();
        assert_eq!(fault, Fault::new(Selector::all(), PassFault::Slow { factor: 3.0 }));
        let error = read(json!({"select": "*", "kind": "latency", "params": {"ms": 1}})).unwrap_err();
        assert!(error.contains("request.latency or response.latency"), "{error}");
    }

    #[test]
    fn wrong_faults_are_refused_in_words() {
        for (fault, words) in [
            (json!({"select": "*", "kind": "slowly"}), "did you mean `slow`"),
            (
                json!({"select": "*", "kind": "slow", "params": {"faktor": 1}}),
                "`faktor`",
            ),
            (json!({"select": "*", "kind": "slow"}), "factor"),
            (
                json!({"select": "*", "kind": "slow", "params": {"factor": -1}}),
                "0 or greater",
            ),
            (json!({"select": "*", "kind": "crash", "params": {"x": 1}}), "`x`"),
            (
                json!({"select": "*", "kind": "crash", "probability": 1.5}),
                "between 0 and 1",
            ),
            (
                json!({"select": "*", "kind": "crash", "probability": 0}),
                "without a chance",
            ),
            (
                json!({"select": "*", "kind": "slow", "params": {"factor": 1}}),
                "factor 1 changes nothing",
            ),
            (
                json!({"select": "*", "kind": "crash", "params": {"same_id": true}}),
                "none without restart_after_ms",
            ),
            (json!({"select": "*", "kind": "crash", "from": -1}), "0 or greater"),
            (
                json!({"select": "*", "kind": "crash", "from": 5, "to": 5}),
                "later than from",
            ),
            (json!({"select": "x3", "kind": "crash"}), "selector"),
            (json!({"select": "*", "kind": "crash", "when": 1}), "unknown field"),
        ] {
            let error = read(fault.clone()).unwrap_err();
            assert!(error.contains(words), "{fault}: {error}");
        }
    }
}
