//! A timing model that lives outside the engine and that many ranks ask.

use std::fmt;
use std::sync::Arc;

use super::PassTiming;

/// Gives each rank its view of one model.
pub trait TimingOfRanks: fmt::Debug + Send + Sync {
    /// What one rank asks.
    fn of_rank(&self) -> Arc<dyn PassTiming>;
}

/// Such a model in a configuration. Two are equal when they are the same one.
#[derive(Debug, Clone)]
pub struct SharedTiming(Arc<dyn TimingOfRanks>);

impl SharedTiming {
    /// The model in a configuration.
    pub fn new(model: Arc<dyn TimingOfRanks>) -> Self {
        Self(model)
    }

    /// What one rank asks.
    pub fn of_rank(&self) -> Arc<dyn PassTiming> {
        self.0.of_rank()
    }
}

impl PartialEq for SharedTiming {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
