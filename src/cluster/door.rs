//! Requests to ranks from inside the process.

use super::{Cluster, ControlError};
use crate::actors::fleet::FindRanks;
use crate::actors::path::ActorPath;

pub use crate::actors::door::RankDoor;

impl Cluster {
    /// The doors of a worker's ranks (`w3`) or of one rank (`w3/r0`).
    ///
    /// # Errors
    /// [`ControlError`] names the path.
    pub fn doors(&self, path: &str) -> Result<Vec<RankDoor>, ControlError> {
        let path: ActorPath = path.parse()?;
        let ranks = self.command(FindRanks { path })?;
        Ok(ranks.into_iter().map(RankDoor::new).collect())
    }
}
