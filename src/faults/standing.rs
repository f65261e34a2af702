//! One fault as a fleet has it: where it is, whom it strikes, what has come of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::table::OpenFault;
use super::{Fault, FaultId};
use crate::types::{SimTime, WorkerId};

/// Where a fault is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Before its window.
    Waiting,
    /// In force.
    Open,
    /// After its window, or done.
    Over,
}

/// A fault in the list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listed {
    /// Its number.
    pub id: FaultId,
    /// Where it is.
    pub phase: Phase,
    /// The fault.
    #[serde(flatten)]
    pub fault: Fault,
    /// The fault in one line.
    pub line: String,
    /// When its window opens, ms since the fleet started.
    pub opens_ms: f64,
    /// When it closes.
    pub closes_ms: Option<f64>,
    /// Whom it strikes; empty before its window.
    pub workers: Vec<WorkerId>,
    /// How often gates have asked for it.
    pub asked: u64,
    /// How often it has happened.
    pub happened: u64,
}

/// A fault that is listed.
pub(super) struct Standing {
    pub(super) fault: Fault,
    pub(super) opens: SimTime,
    pub(super) closes: Option<SimTime>,
    pub(super) phase: Phase,
    pub(super) workers: BTreeMap<WorkerId, Arc<OpenFault>>,
    /// It was taken off their workers; what it had done there stays done.
    pub(super) healed: Vec<Arc<OpenFault>>,
}

impl Standing {
    /// A fault whose window counts from `now`.
    pub(super) fn new(fault: Fault, now: SimTime) -> Self {
        Self {
            opens: now + fault.from,
            closes: fault.to.map(|to| now + to),
            fault,
            phase: Phase::Waiting,
            workers: BTreeMap::new(),
            healed: Vec::new(),
        }
    }

    /// Wherever it is or was in force.
    pub(super) fn struck(&self) -> impl Iterator<Item = &Arc<OpenFault>> {
        self.workers.values().chain(&self.healed)
    }

    /// The same, when it is listed no more.
    pub(super) fn into_struck(self) -> impl Iterator<Item = Arc<OpenFault>> {
        self.workers.into_values().chain(self.healed)
    }

    /// It in the list.
    pub(super) fn listed(&self, id: FaultId) -> Listed {
        Listed {
            id,
            phase: self.phase,
            fault: self.fault.clone(),
            line: self.fault.to_string(),
            opens_ms: self.opens.as_ms(),
            closes_ms: self.closes.map(SimTime::as_ms),
            workers: self.workers.keys().copied().collect(),
            asked: self.struck().map(|open| open.asked()).sum(),
            happened: self.struck().map(|open| open.happened()).sum(),
        }
    }
}
