//! `ghostfleet replay`: from flags to a report.
//!
//! [`execute`] runs what the flags say and returns the report; [`run`] adds the terminal and the files.

mod decisions;
pub(crate) mod destination;
mod files;
mod graphs;
mod idle;
mod inputs;
mod interrupt;
mod memory;
mod mooncake;
mod output;
mod outside;
mod plan;
mod planner;
mod pools;
mod prefill_model;
mod progress;
mod sizes;
mod weka;
mod workload;

use crate::cli::ReplayArgs;
use crate::replay::trace::TraceError;
use crate::replay::{Control, Progress, ReplayError, Report};
use crate::replay::{GraphError, SyntheticError};
use crate::router;

pub(crate) use inputs::inputs;
pub(crate) use interrupt::{Interrupt, stop_flag};
pub(crate) use output::{planner_ticks, scaling_events, tell_rejections};
pub use output::{run, run_with};
pub use plan::RealTimePlan;
pub use workload::{Workload, workload};

/// Why a replay did not happen or did not end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Flags that do not go together.
    #[error("{0}")]
    Usage(String),
    /// A value that cannot be used.
    #[error("{0}")]
    Invalid(String),
    /// The trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The graph of an agentic trace.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The synthetic load.
    #[error(transparent)]
    Synthetic(#[from] SyntheticError),
    /// The router's configuration.
    #[error(transparent)]
    Router(#[from] router::ConfigError),
    /// Workers in real time.
    #[error("{0}")]
    Online(String),
    /// The run itself.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// A signal ended the run; the report is written and says so.
    #[error("interrupted: {0} is a partial report, of the requests that had ended")]
    Interrupted(String),
    /// A result could not be written.
    #[error("cannot write {0}: {1}")]
    Write(String, std::io::Error),
}

impl RunError {
    /// Process exit code: 2 for flags that do not go together, 130 for a signal, else 1, as the peer's.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Interrupted(_) => 130,
            Self::Invalid(_)
            | Self::Trace(_)
            | Self::Graph(_)
            | Self::Synthetic(_)
            | Self::Router(_)
            | Self::Replay(_)
            | Self::Online(_)
            | Self::Write(..) => 1,
        }
    }
}

/// Checks flags without a run; what a trace says is not looked at.
///
/// # Errors
/// [`RunError`] names the flag or the value at fault.
pub(crate) fn check(args: &ReplayArgs) -> Result<(), RunError> {
    plan::Plan::new(args)?.check_load(args)
}

/// Runs a replay. `observe` is asked now and then and can end it early.
///
/// # Errors
/// [`RunError`] names the flag, the line or the value at fault.
pub fn execute(args: &ReplayArgs, observe: impl FnMut(Progress) -> Control) -> Result<Report, RunError> {
    let plan = plan::Plan::new(args)?;
    let mut source = plan.source(args)?;
    let played = plan.harness(args)?.run(source.as_mut(), observe);
    // A file that cannot be read on explains everything else.
    if let Some(error) = source.failure() {
        return Err(error.into());
    }
    let mut report = played?;
    report.graph = source.graph();
    Ok(report)
}
