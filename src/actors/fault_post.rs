//! Where a worker's actors learn of faults: the table that gates ask, and a bell for those that have to act when it
//! changes.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use actix::prelude::*;

use crate::faults::kind::{ConditionFault, RequestFault};
use crate::faults::table::{InForce, OpenFault};
use crate::faults::{Journal, WorkerFaults};
use crate::transport::request_plane::mending::Mending;
use crate::types::WorkerId;

/// The faults of a worker have changed.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct FaultsChanged;

/// One worker's post; outlives its incarnations.
pub struct FaultPost {
    table: Arc<WorkerFaults>,
    mending: Arc<Mending>,
    listeners: Mutex<Vec<Recipient<FaultsChanged>>>,
}

impl FaultPost {
    pub(super) fn new(worker: WorkerId, journal: Arc<Journal>) -> Self {
        Self {
            table: Arc::new(WorkerFaults::new(worker, journal)),
            mending: Arc::default(),
            listeners: Mutex::default(),
        }
    }

    /// What gates ask.
    pub fn table(&self) -> &Arc<WorkerFaults> {
        &self.table
    }

    /// What ends when the faults that did it do.
    pub(super) fn mending(&self) -> &Arc<Mending> {
        &self.mending
    }

    /// Whether a fault keeps the worker's ranks from starting and ending passes.
    pub(super) fn hangs(&self) -> bool {
        self.hang().is_some()
    }

    /// That fault.
    pub(super) fn hang(&self) -> Option<InForce<ConditionFault>> {
        let mut standing = self.table.in_force::<ConditionFault>().into_iter();
        standing.find(|fault| matches!(**fault, ConditionFault::Hang {}))
    }

    /// Tells `listener` of every change until it is gone.
    pub(super) fn attach(&self, listener: Recipient<FaultsChanged>) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(Recipient::connected);
        listeners.push(listener);
    }

    /// Replaces the faults and rings.
    pub(super) fn set(&self, faults: Vec<Arc<OpenFault>>) {
        self.table.set(faults);
        let mut in_force = self.table.in_force::<RequestFault>().into_iter();
        if !in_force.any(|fault| fault.withholds_acks()) {
            self.mending.mend();
        }
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        for listener in &*listeners {
            // Past the mailbox's bound: a change of faults is rare and must not be missed.
            listener.do_send(FaultsChanged);
        }
    }
}

impl fmt::Debug for FaultPost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table.fmt(f)
    }
}
