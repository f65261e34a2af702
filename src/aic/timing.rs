//! Pass times of a model that is deployed on measured GPUs.

use std::sync::Arc;

use super::{AicError, AicModel};
use crate::engine::TimingOfRanks;

/// Whether this build can evaluate plans.
pub const BUILT_IN: bool = cfg!(feature = "aic");

/// Why a build without the evaluator has none, and the way out.
pub const NOT_BUILT_IN: &str =
    "this build has no AIC support (feature `aic`): build it with `cargo build --release --features aic`";

/// How far a deployment's passes reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// Most tokens of a pass.
    pub max_num_batched_tokens: u32,
    /// Most sequences of a pass.
    pub max_num_seqs: u32,
    /// Longest sequence, tokens.
    pub max_model_len: u32,
}

/// Why passes cannot be timed.
#[derive(Debug, thiserror::Error)]
pub enum TimingError {
    /// The model cannot be planned.
    #[error(transparent)]
    Plan(#[from] AicError),
    /// The evaluator is not there.
    #[error("{NOT_BUILT_IN}")]
    NotBuiltIn,
    /// The evaluator cannot work with the plan and the measurements, or has no time for a pass of this deployment.
    #[error("no AIC pass times of {of}: {why}")]
    Evaluator {
        /// Model, GPU system, backend, version and directory of the measurements.
        of: String,
        /// What was asked and what the evaluator says, in one line.
        why: String,
    },
}

/// The pass times of `model`. Passes as far as `reach` goes are tried, so that what is missing is told now.
///
/// # Errors
/// [`TimingError`] names the model, the system and the measurements.
#[cfg(feature = "aic")]
pub fn timing(model: &AicModel, reach: Reach) -> Result<Arc<dyn TimingOfRanks>, TimingError> {
    Ok(super::evaluator::open(model, reach)?)
}

/// The pass times of `model`; this build has none.
///
/// # Errors
/// [`TimingError::NotBuiltIn`], or what is wrong with the model anyway.
#[cfg(not(feature = "aic"))]
pub fn timing(model: &AicModel, _reach: Reach) -> Result<Arc<dyn TimingOfRanks>, TimingError> {
    super::plan(model)?;
    Err(TimingError::NotBuiltIn)
}
