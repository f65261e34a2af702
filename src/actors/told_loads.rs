//! The load figures that a worker has told last, which are not the true ones while a fault makes something of them.
//!
//! Written by its reporter; its HTTP port shows them for as long as such a fault is in force.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::types::{DpRank, Load};

/// By rank; nothing of those of which nothing has been told.
#[derive(Debug, Default)]
pub(super) struct ToldLoads(Mutex<BTreeMap<DpRank, Load>>);

impl ToldLoads {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<DpRank, Load>> {
        // A panic elsewhere leaves the plain map whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new incarnation has told nothing.
    pub(super) fn forget(&self) {
        self.lock().clear();
    }

    /// This has been told of a rank.
    pub(super) fn set(&self, rank: DpRank, load: Load) {
        self.lock().insert(rank, load);
    }

    /// What has been told of a rank that truly has `load`: of one that nothing was told of only its size is known.
    pub(super) fn instead_of(&self, rank: DpRank, load: Load) -> Load {
        let told = self.lock().get(&rank).copied();
        told.unwrap_or(Load {
            total_blocks: load.total_blocks,
            ..Load::default()
        })
    }
}
