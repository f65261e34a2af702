//! Memory below the GPU that ranks of the fleet share, and how they hear that another one has done something to it.

use std::sync::Arc;

use futures::Stream;
use tokio::sync::watch;

use crate::engine::SharedMemory;

/// The fleet's shared memory with a bell. Copies are the same.
#[derive(Debug, Clone)]
pub(super) struct CommonMemory {
    memory: SharedMemory,
    bell: Arc<watch::Sender<u64>>,
}

/// Something has happened to the shared memory: a rank that waits may have to look earlier than it meant to.
pub(super) struct Rung;

impl CommonMemory {
    /// Nobody's yet.
    pub(super) fn new() -> Self {
        Self {
            memory: SharedMemory::new(),
            bell: Arc::new(watch::Sender::new(0)),
        }
    }

    /// For the engines of ranks.
    pub(super) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Tells everybody, if anything has happened since the last time.
    pub(super) fn ring(&self) {
        let changes = self.memory.changes();
        self.bell
            .send_if_modified(|heard| std::mem::replace(heard, changes) != changes);
    }

    /// What happens from now on; several changes may be one.
    pub(super) fn listen(&self) -> impl Stream<Item = Rung> + use<> {
        let heard = self.bell.subscribe();
        futures::stream::unfold(heard, |mut heard| async {
            heard.changed().await.ok()?;
            Some((Rung, heard))
        })
    }
}

/// A rank's hold on the memory; rings when it is let go, which is after its engine has.
#[derive(Debug)]
pub(super) struct CommonMemoryOfRank(pub(super) CommonMemory);

impl Drop for CommonMemoryOfRank {
    fn drop(&mut self) {
        self.0.ring();
    }
}
