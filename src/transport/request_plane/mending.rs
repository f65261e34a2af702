//! The end of what a fault has done to connections.
//!
//! Acks on a TCP request connection have no names, only an order: once one is missing, no later one can be told from it,
//! and a caller gives up one call after the other. Only a new connection helps. So whoever withholds an ack leaves a token
//! with the connection, and the connection is closed when the token is cancelled; the caller dials again.

use std::sync::{Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

/// One worker's way to end what it has spoiled.
#[derive(Debug, Default)]
pub struct Mending(Mutex<CancellationToken>);

impl Mending {
    /// Cancelled when what is spoiled from now on is to end.
    pub fn token(&self) -> CancellationToken {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends everything that has been spoiled so far.
    pub fn mend(&self) {
        let mut token = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *token).cancel();
    }
}
