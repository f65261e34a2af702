//! `ghostfleet predict`: the YAML form of a replay.
//!
//! A document is lowered to the flags of [`crate::replay_run`], so both commands mean the same and grow together.

pub mod document;
mod lower;
mod output;
mod planner;
pub mod yaml;

use serde_norway::Value;

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
    default_type(&mut value, "traffic.source", "synthetic");
    default_type(&mut value, "traffic.load", "concurrency");
    default_type(&mut value, "router.prefill_load_model", "none");
    for pool in ["aggregated", "prefill", "decode"] {
        default_type(&mut value, &format!("engine.workers.{pool}.timing"), "default");
        default_type(
            &mut value,
            &format!("engine.workers.{pool}.kv_cache.capacity"),
            "default",
        );
    }
    yaml::read(value)
}

/// Where a mapping that has to say its type does not, says it.
fn default_type(document: &mut Value, path: &str, name: &str) {
    let open = yaml::get(document, path).is_some_and(|found| found.is_mapping() && found.get("type").is_none());
    if open {
        // Every part of the path is a mapping, as was just seen.
        let _ = yaml::set(document, &format!("{path}.type"), name.into());
    }
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
