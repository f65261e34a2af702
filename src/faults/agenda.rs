//! What is to be done to workers because of faults, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
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
    /// Whether the fault has happened with it; its other steps come before that, or make it good.
    pub is_deed: bool,
}

/// A first step, before it is known whose.
struct First {
    /// Time from the fault's start.
    after: Duration,
    act: Act,
    is_deed: bool,
}

impl First {
    /// What the fault is for, at once.
    fn deed(act: Act) -> Self {
        Self {
            after: Duration::ZERO,
            act,
            is_deed: true,
        }
    }

    /// What makes it good, after so many ms.
    fn mend(after_ms: f64, same_id: bool) -> Self {
        Self {
            after: span_of_ms(after_ms),
            act: Act::Restart { same_id },
            is_deed: false,
        }
    }
}

/// First steps of what is done once, and does not stay in force; `None`: it is no such kind.
fn first_steps(kind: &Kind) -> Option<Vec<First>> {
    let life = match kind {
        Kind::Life(life) => life,
        Kind::Purge(PurgeFault::ClearCache { event, late_ms }) => {
            return Some(vec![First::deed(Act::ClearCache {
                told: *event,
                late: span_of_ms(*late_ms),
            })]);
        }
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
        | Kind::Rendezvous(_) => return None,
    };
    let (deed, mend) = match life {
        LifeFault::Crash {
            actor,
            restart_after_ms,
            same_id,
        } => (
            First::deed(Act::Crash { actor: actor.clone() }),
            restart_after_ms.map(|after| First::mend(after, *same_id)),
        ),
        LifeFault::Panic { actor } => (First::deed(Act::Panic { actor: actor.clone() }), None),
        LifeFault::Drain {
            restart_after_ms,
            same_id,
        } => (
            First::deed(Act::Drain),
            restart_after_ms.map(|after| First::mend(after, *same_id)),
        ),
        LifeFault::Restart { same_id } => {
            let crash = First {
                is_deed: false,
                ..First::deed(Act::Crash { actor: None })
            };
            return Some(vec![crash, First::deed(Act::Restart { same_id: *same_id })]);
        }
        LifeFault::Flap { .. } => (First::deed(Act::Crash { actor: None }), None),
    };
    Some(iter::once(deed).chain(mend).collect())
}

/// Whether a fault of this kind is over with its last step.
pub(super) fn is_done_once(kind: &Kind) -> bool {
    first_steps(kind).is_some()
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

    fn plan(&mut self, at: SimTime, step: Step) {
        self.planned += 1;
        self.steps.insert((at, self.planned), step);
    }

    /// First steps of what is done once.
    pub(super) fn begin(&mut self, fault: FaultId, kind: &Kind, worker: WorkerId, now: SimTime) {
        for First { after, act, is_deed } in first_steps(kind).unwrap_or_default() {
            let step = Step {
                fault,
                worker,
                act,
                is_deed,
            };
            self.plan(now + after, step);
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
        let (beat, act, is_deed) = match step.act {
            Act::Crash { .. } => (down_ms, Act::Restart { same_id }, false),
            Act::Restart { .. } => (up_ms, Act::Crash { actor: None }, true),
            Act::Panic { .. } | Act::Drain | Act::ClearCache { .. } => return,
        };
        let beat = span_of_ms(beat);
        let at = if at + beat > now { at + beat } else { now + beat };
        let step = Step {
            act,
            is_deed,
            ..step.clone()
        };
        self.plan(at, step);
    }
}
