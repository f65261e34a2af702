//! What is to be done to workers because of faults, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::FaultId;
use super::kind::{Kind, LifeFault, PurgeFault, Told};
use crate::types::{SimTime, WorkerId, span_of_ms};

/// What is to be done to a worker.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Kill it, or one of its children.
    Crash {
        /// The child, as in an actor path without the worker.
        actor: Option<String>,
    },
    /// Let it, or one of its children, panic.
    Panic {
        /// The child.
        actor: Option<String>,
    },
    /// Let it leave in good order.
    Drain,
    /// Start it again when it is dead or has left.
    Restart {
        /// Under its former instance id.
        same_id: bool,
    },
    /// Drop every unreferenced block of its ranks.
    ClearCache {
        /// Whether routers are told.
        told: Told,
        /// How late.
        late: Duration,
    },
}

impl Act {
    /// A word for the journal.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Crash { .. } => "crash",
            Self::Panic { .. } => "panic",
            Self::Drain => "drain",
            Self::Restart { .. } => "restart",
            Self::ClearCache { .. } => "clear_cache",
        }
    }

    /// Whether a fault of this kind has happened with it; its other steps come before that, or make it good.
    pub const fn is_deed_of(&self, kind: &Kind) -> bool {
        match kind {
            Kind::Life(LifeFault::Crash { .. } | LifeFault::Flap { .. }) => matches!(self, Self::Crash { .. }),
            Kind::Life(LifeFault::Panic { .. }) => matches!(self, Self::Panic { .. }),
            Kind::Life(LifeFault::Drain { .. }) => matches!(self, Self::Drain),
            Kind::Life(LifeFault::Restart { .. }) => matches!(self, Self::Restart { .. }),
            Kind::Purge(PurgeFault::ClearCache { .. }) => matches!(self, Self::ClearCache { .. }),
            Kind::Condition(_)
            | Kind::Pass(_)
            | Kind::Door(_)
            | Kind::Admission(_)
            | Kind::Answer(_)
            | Kind::Capacity(_)
            | Kind::Request(_)
            | Kind::Response(_)
            | Kind::Event(_)
            | Kind::Storm(_)
            | Kind::Recovery(_)
            | Kind::Discovery(_)
            | Kind::Metrics(_)
            | Kind::Rendezvous(_) => false,
        }
    }
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Because of this fault.
    pub fault: FaultId,
    /// To whom.
    pub worker: WorkerId,
    /// What.
    pub act: Act,
}

/// Steps that are planned.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    /// By time, then in the order in which they were planned.
    steps: BTreeMap<(SimTime, u64), Step>,
    planned: u64,
}

impl Agenda {
    /// When the next step is due.
    pub(super) fn next_due(&self) -> Option<SimTime> {
        self.steps.keys().next().map(|(at, _)| *at)
    }

    /// Takes the next step, if it is due at `now`, with its time.
    pub(super) fn pop_due(&mut self, now: SimTime) -> Option<(SimTime, Step)> {
        let entry = self.steps.first_entry().filter(|entry| entry.key().0 <= now)?;
        let ((at, _), step) = entry.remove_entry();
        Some((at, step))
    }

    /// Gives up all other steps.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Step) -> bool) {
        self.steps.retain(|_, step| keep(step));
    }

    /// Gives up the steps of a fault, and says which workers were to be started again.
    pub(super) fn withdraw(&mut self, fault: FaultId) -> Vec<Step> {
        let mut restarts = Vec::new();
        self.steps.retain(|_, step| {
            let is_its = step.fault == fault;
            if is_its && matches!(step.act, Act::Restart { .. }) {
                restarts.push(step.clone());
            }
            !is_its
        });
        restarts
    }

    /// Faults that have steps to come.
    pub(super) fn faults(&self) -> BTreeSet<FaultId> {
        self.steps.values().map(|step| step.fault).collect()
    }

    fn plan(&mut self, at: SimTime, fault: FaultId, worker: WorkerId, act: Act) {
        self.planned += 1;
        self.steps.insert((at, self.planned), Step { fault, worker, act });
    }

    /// First steps of what is done once.
    pub(super) fn begin(&mut self, id: FaultId, kind: &Kind, worker: WorkerId, now: SimTime) {
        let mut plan = |after: Option<f64>, act| self.plan(now + span_of_ms(after.unwrap_or(0.0)), id, worker, act);
        match kind {
            Kind::Life(LifeFault::Crash {
                actor,
                restart_after_ms,
                same_id,
            }) => {
                plan(None, Act::Crash { actor: actor.clone() });
                if restart_after_ms.is_some() {
                    plan(*restart_after_ms, Act::Restart { same_id: *same_id });
                }
            }
            Kind::Life(LifeFault::Panic { actor }) => plan(None, Act::Panic { actor: actor.clone() }),
            Kind::Life(LifeFault::Drain {
                restart_after_ms,
                same_id,
            }) => {
                plan(None, Act::Drain);
                if restart_after_ms.is_some() {
                    plan(*restart_after_ms, Act::Restart { same_id: *same_id });
                }
            }
            Kind::Life(LifeFault::Restart { same_id }) => {
                plan(None, Act::Crash { actor: None });
                plan(None, Act::Restart { same_id: *same_id });
            }
            Kind::Life(LifeFault::Flap { .. }) => plan(None, Act::Crash { actor: None }),
            Kind::Purge(PurgeFault::ClearCache { event, late_ms }) => plan(
                None,
                Act::ClearCache {
                    told: *event,
                    late: span_of_ms(*late_ms),
                },
            ),
            Kind::Condition(_)
            | Kind::Pass(_)
            | Kind::Door(_)
            | Kind::Admission(_)
            | Kind::Answer(_)
            | Kind::Capacity(_)
            | Kind::Request(_)
            | Kind::Response(_)
            | Kind::Event(_)
            | Kind::Storm(_)
            | Kind::Recovery(_)
            | Kind::Discovery(_)
            | Kind::Metrics(_)
            | Kind::Rendezvous(_) => {}
        }
    }

    /// What comes after a step of a worker that flaps, planned for `at` and taken at `now`. Beats that have been missed are
    /// not made good: at most one step per worker follows at a time.
    pub(super) fn follow_up(&mut self, step: &Step, kind: &Kind, at: SimTime, now: SimTime) {
        let &Kind::Life(LifeFault::Flap {
            up_ms,
            down_ms,
            same_id,
        }) = kind
        else {
            return;
        };
        let after = |beat: Duration| if at + beat > now { at + beat } else { now + beat };
        match step.act {
            Act::Crash { .. } => self.plan(
                after(span_of_ms(down_ms)),
                step.fault,
                step.worker,
                Act::Restart { same_id },
            ),
            Act::Restart { .. } => self.plan(
                after(span_of_ms(up_ms)),
                step.fault,
                step.worker,
                Act::Crash { actor: None },
            ),
            Act::Panic { .. } | Act::Drain | Act::ClearCache { .. } => {}
        }
    }
}
