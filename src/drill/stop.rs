//! The wish of a user that drills end before they are over.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

use super::error::DrillError;

/// How often it is looked whether a signal has come.
const LOOK: Duration = Duration::from_millis(50);

const INTERRUPTED: usize = 1;
const TERMINATED: usize = 2;

/// Tells drills to end. It stays told: a signal between two drills is heard by the next one. Clones hear the same.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// One that SIGINT and SIGTERM tell, from now on and for the whole process.
    ///
    /// # Errors
    /// The system takes no handler.
    pub fn on_signals() -> io::Result<Self> {
        let stop = Self::default();
        for (signal, mark) in [(SIGINT, INTERRUPTED), (SIGTERM, TERMINATED)] {
            signal_hook::flag::register_usize(signal, Arc::clone(&stop.0), mark)?;
        }
        Ok(stop)
    }

    /// What ends the drill, once something does.
    pub(super) fn reason(&self) -> Option<DrillError> {
        match self.0.load(Relaxed) {
            INTERRUPTED => Some(DrillError::Interrupted),
            TERMINATED => Some(DrillError::Terminated),
            _ => None,
        }
    }

    /// Waits for it.
    pub(super) async fn wait(&self) -> DrillError {
        loop {
            if let Some(reason) = self.reason() {
                return reason;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
