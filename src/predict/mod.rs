//! `ghostfleet predict`: the YAML form of a replay.
//!
//! A document is lowered to the flags of [`crate::replay_run`], so both commands mean the same and grow together.

pub mod document;
mod lower;
mod measured;
mod names;
mod output;
mod planner;
pub mod yaml;

use serde_norway::value::{Tag, TaggedValue};
use serde_norway::{Mapping, Value};

use crate::replay::{Control, Progress, Report};
use crate::replay_run::{self, RunError};

pub(crate) use crate::replay_run::stop_flag;
use document::Document;
pub(crate) use lower::check_stack;
pub use lower::{Lowered, lower};
pub(crate) use output::print;
pub use output::{Results, run};

/// Why there is no prediction.
#[derive(Debug, thiserror::Error)]
pub enum PredictError {
    /// A file, a flag or a key that makes no sense.
    #[error("{0}")]
    Config(String),
    /// The replay.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A result could not be written.
    #[error("cannot write {0}: {1}")]
    Write(String, std::io::Error),
    /// Nothing to recommend.
    #[error("no candidate can be recommended; the first one: {0}")]
    NoCandidate(String),
    /// A signal ended a sweep; what it had is written and says so.
    #[error("interrupted: {path} is a partial result, of {done} of {planned} trials")]
    Interrupted {
        /// The file.
        path: String,
        /// Trials that had ended.
        done: usize,
        /// Trials that were meant to be made.
        planned: u64,
    },
}

impl PredictError {
    /// Process exit code: 2 for the configuration, 130 for a signal, else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) => 2,
            Self::Run(RunError::Interrupted(_)) | Self::Interrupted { .. } => 130,
            Self::Run(_) | Self::Write(..) | Self::NoCandidate(_) => 1,
        }
    }
}

/// Reads a document in which what may be left out is left out.
///
/// # Errors
/// [`PredictError::Config`] names the path of the key.
pub fn read(mut value: Value) -> Result<Document, PredictError> {
    for key in ["overlap_score_credit", "prefill_load_scale", "temperature"] {
        let path = format!("router.{key}");
        if yaml::get(&value, &path).is_some_and(Value::is_null) {
            let what = format!("{path} is null, expected a number; leave it out for its default");
            return Err(PredictError::Config(what));
        }
    }
    name_type(&mut value, "traffic.source", "synthetic")?;
    name_type(&mut value, "traffic.load", "concurrency")?;
    name_type(&mut value, "router.prefill_load_model", "none")?;
    for pool in ["aggregated", "prefill", "decode"] {
        let pool = format!("engine.workers.{pool}");
        name_type(&mut value, &format!("{pool}.timing"), "default")?;
        name_type(&mut value, &format!("{pool}.kv_cache.capacity"), "default")?;
    }
    yaml::read(value)
}

/// Makes the `type` of a mapping, or `name` where it has none, its tag: so serde knows which keys belong to it while it still
/// knows where it is.
fn name_type(document: &mut Value, path: &str, name: &str) -> Result<(), PredictError> {
    let wrong = |what: String| Err(PredictError::Config(what));
    let mut keys = match yaml::get(document, path) {
        None => return Ok(()),
        Some(Value::Mapping(keys)) => keys.clone(),
        Some(other) => return wrong(format!("{path} is {}, expected an object", yaml::shown(other))),
    };
    let tag = match keys.shift_remove("type") {
        None => name.to_owned(),
        // A tag is never empty, and serde takes a leading mark off.
        Some(Value::String(tag)) if tag.starts_with(|c: char| c.is_ascii_alphabetic()) => tag,
        Some(other) => {
            let found = yaml::shown(&other);
            return wrong(format!("{path}.type is {found}, expected the name of a type"));
        }
    };
    let tagged = TaggedValue {
        tag: Tag::new(tag),
        value: Value::Mapping(keys),
    };
    // Every part of the path is a mapping, as was just seen.
    let _ = yaml::set(document, path, Value::Tagged(Box::new(tagged)));
    Ok(())
}

/// A document whose load says a number, so that `predict` takes it, where it was a share of the cache.
///
/// # Errors
/// As [`read`].
pub(crate) fn concrete(mut value: Value) -> Result<Value, PredictError> {
    let document = read(value.clone())?;
    if let Some(concurrency) = lower::concurrency_of_fraction(&document)? {
        let load = Mapping::from_iter([
            ("type".into(), "concurrency".into()),
            ("concurrency".into(), concurrency.into()),
        ]);
        yaml::set(&mut value, "traffic.load", Value::Mapping(load)).map_err(PredictError::Config)?;
    }
    Ok(value)
}

/// Replays what a document was lowered to.
///
/// # Errors
/// [`PredictError::Run`]: what went wrong in the run.
pub fn predict(lowered: &Lowered, observe: impl FnMut(Progress) -> Control) -> Result<Report, PredictError> {
    let mut report = replay_run::execute(&lowered.args, observe)?;
    report.gpus_per_worker = lowered.gpus_per_worker;
    Ok(report)
}
