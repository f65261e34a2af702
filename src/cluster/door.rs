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

    /// Port at which a prefill worker (`w3`) is met; `None` when it has no rendezvous.
    ///
    /// # Errors
    /// [`ControlError`] names the path.
    pub fn rendezvous_port(&self, worker: &str) -> Result<Option<u16>, ControlError> {
        let path: ActorPath = format!("{worker}/rendezvous").parse()?;
        let look = self.wait_for(self.control().inspect(path))?;
        let port = look["said"]["port"].as_u64();
        Ok(port.and_then(|port| u16::try_from(port).ok()))
    }
}
