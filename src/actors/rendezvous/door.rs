//! Where decode workers knock: the listener outlives the actor behind it.

use std::sync::{PoisonError, RwLock};

use actix::Addr;

use super::{Arrived, Rendezvous};
use crate::transport::rendezvous::server::{Arrival, Host};

/// Way in to a worker's rendezvous.
#[derive(Debug, Default)]
pub(in super::super) struct Door(RwLock<Option<Addr<Rendezvous>>>);

impl Door {
    /// Puts a (new) rendezvous behind the door, or takes it away.
    pub(in super::super) fn set(&self, rendezvous: Option<Addr<Rendezvous>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = rendezvous;
    }
}

impl Host for Door {
    fn receive(&self, arrival: Arrival) -> bool {
        let rendezvous = self.0.read().unwrap_or_else(PoisonError::into_inner);
        rendezvous
            .as_ref()
            .is_some_and(|rendezvous| rendezvous.try_send(Arrived(arrival)).is_ok())
    }
}
