//! Why a drill has no verdict.

use std::path::PathBuf;

use super::record::Record;
use super::scenario::ScenarioError;
use crate::cluster::StartError;
use crate::config::ConfigError;

/// A drill that did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum DrillError {
    /// The scenario.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The fleet's settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Flags, or a scenario that does not fit the surroundings.
    #[error("{0}")]
    Input(String),
    /// The fleet.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The router does not do its part.
    #[error("{0}")]
    Frontend(String),
    /// Files, threads.
    #[error("cannot {0}: {1}")]
    Io(String, std::io::Error),
    /// Writing a report.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Where to.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// By the user: SIGINT.
    #[error("the drill was interrupted")]
    Interrupted,
    /// By another program: SIGTERM.
    #[error("the drill was told to end")]
    Terminated,
    /// Of several drills, those that did not run to their end.
    #[error("{problems}")]
    Unfinished {
        /// A line or more for each.
        problems: String,
        /// Process exit code.
        exit_code: u8,
    },
}

/// A drill that did not run to its end, and what was seen up to then.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unfinished {
    /// What ended it.
    pub error: DrillError,
    /// What was seen, when it had begun.
    pub record: Option<Box<Record>>,
}

impl<E: Into<DrillError>> From<E> for Unfinished {
    fn from(error: E) -> Self {
        Self {
            error: error.into(),
            record: None,
        }
    }
}

impl DrillError {
    /// Process exit code: 1 the run failed, 2 bad input, 130 the user has ended it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Scenario(_) | Self::Config(_) | Self::Input(_) => 2,
            Self::Start(error) if error.is_bad_input() => 2,
            Self::Interrupted => 130,
            Self::Unfinished { exit_code, .. } => *exit_code,
            Self::Start(_) | Self::Frontend(_) | Self::Io(..) | Self::Write { .. } | Self::Terminated => 1,
        }
    }
}
