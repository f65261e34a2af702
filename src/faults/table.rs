//! What one worker's gates ask.
//!
//! A table holds the faults whose window is open. While a gate has none, asking costs one relaxed load. A gate asks with
//! the type of its faults, so it only sees its own.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use super::draw::Dice;
use super::journal::{Addressee, Event, Journal};
use super::kind::{GateFault, Kind};
use super::select::Level;
use super::{Fault, FaultId};
use crate::types::WorkerId;

/// A fault in one worker's table.
#[derive(Debug)]
pub struct OpenFault {
    id: FaultId,
    level: Level,
    kind: Kind,
    probability: f64,
    dice: Dice,
    asked: AtomicU64,
    happened: AtomicU64,
}

impl OpenFault {
    /// `fault` under its number, with dice of its own.
    pub fn new(id: FaultId, fault: &Fault, dice: Dice) -> Self {
        Self {
            id,
            level: fault.select.level(),
            kind: fault.kind.clone(),
            probability: if fault.kind.is_drawn_once() {
                1.0
            } else {
                fault.probability
            },
            dice,
            asked: AtomicU64::new(0),
            happened: AtomicU64::new(0),
        }
    }

    /// How often its gate has asked.
    pub fn asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }

    /// How often it has happened.
    pub fn happened(&self) -> u64 {
        self.happened.load(Relaxed)
    }

    pub(super) fn is_closer_than(&self, other: &Self) -> std::cmp::Ordering {
        (other.level, other.id).cmp(&(self.level, self.id))
    }
}

/// One worker's table.
#[derive(Debug)]
pub struct WorkerFaults {
    worker: WorkerId,
    /// Bits of the gates that have something.
    gates: AtomicU32,
    open: RwLock<Arc<[Arc<OpenFault>]>>,
    looked: AtomicU64,
    journal: Arc<Journal>,
}

impl WorkerFaults {
    /// An empty table.
    pub fn new(worker: WorkerId, journal: Arc<Journal>) -> Self {
        Self {
            worker,
            gates: AtomicU32::new(0),
            open: RwLock::new(Arc::new([])),
            looked: AtomicU64::new(0),
            journal,
        }
    }

    /// Where choices are noted.
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// A request has come to the worker.
    #[inline]
    pub fn note_arrival(&self, request: &str) {
        self.journal.note_arrival(Addressee::Worker(self.worker), request);
    }

    /// Replaces the content; the closest aimed first.
    pub fn set(&self, mut open: Vec<Arc<OpenFault>>) {
        open.sort_by(|a, b| a.is_closer_than(b));
        let gates = open.iter().fold(0, |bits, fault| bits | fault.kind.bit());
        let mut slot = self.open.write().unwrap_or_else(PoisonError::into_inner);
        *slot = open.into();
        drop(slot);
        self.gates.store(gates, Relaxed);
    }

    /// Whether this gate has nothing to fear: one relaxed load.
    #[inline]
    pub fn is_quiet<F: GateFault>(&self) -> bool {
        self.gates.load(Relaxed) & F::BIT == 0
    }

    /// What happens this time: of each kind the closest aimed fault, if its dice say so.
    #[inline]
    pub fn ask<F: GateFault>(&self) -> Vec<F> {
        if self.is_quiet::<F>() {
            return Vec::new();
        }
        self.look(true).into_iter().map(|(_, fault)| fault).collect()
    }

    /// What is in force, with its number; no dice are thrown. For gates that ask when faults change.
    #[inline]
    pub fn in_force<F: GateFault>(&self) -> Vec<(FaultId, F)> {
        if self.is_quiet::<F>() {
            return Vec::new();
        }
        self.look(false)
    }

    /// Numbers of all faults whose window is open.
    pub fn ids(&self) -> Vec<FaultId> {
        if self.gates.load(Relaxed) == 0 {
            return Vec::new();
        }
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.iter().map(|fault| fault.id).collect()
    }

    /// Dice of their own for what a fault has to choose once it happens; `n` tells one choice from another.
    pub fn dice(&self, salt: u64) -> Dice {
        Dice::new(u64::from(self.worker.0), salt)
    }

    /// How often a gate had to look into the table.
    pub fn looked(&self) -> u64 {
        self.looked.load(Relaxed)
    }

    #[cold]
    fn look<F: GateFault>(&self, throw: bool) -> Vec<(FaultId, F)> {
        self.looked.fetch_add(1, Relaxed);
        let open = Arc::clone(&self.open.read().unwrap_or_else(PoisonError::into_inner));
        let mut words: Vec<&str> = Vec::new();
        let mut found = Vec::new();
        for fault in &*open {
            let Some(kind) = F::of(&fault.kind) else { continue };
            let word = fault.kind.word();
            if words.contains(&word) {
                continue;
            }
            words.push(word);
            if !throw || self.throw(fault) {
                found.push((fault.id, kind.clone()));
            }
        }
        found
    }

    fn throw(&self, fault: &OpenFault) -> bool {
        let draw = fault.asked.fetch_add(1, Relaxed);
        let hit = fault.probability >= 1.0 || fault.dice.unit(draw) < fault.probability;
        if hit {
            fault.happened.fetch_add(1, Relaxed);
        }
        if fault.probability < 1.0 {
            self.journal.note(Event::Drawn {
                id: fault.id,
                worker: self.worker,
                draw,
                hit,
            });
        }
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Selector;
    use crate::faults::kind::{DoorFault, PassFault};
    use crate::types::SimTime;

    fn table() -> WorkerFaults {
        WorkerFaults::new(WorkerId(3), Arc::new(Journal::new(|| SimTime::ZERO)))
    }

    fn open(id: u64, select: &str, kind: impl Into<Kind>, probability: f64) -> Arc<OpenFault> {
        let mut fault = Fault::new(select.parse::<Selector>().unwrap(), kind);
        fault.probability = probability;
        Arc::new(OpenFault::new(FaultId(id), &fault, Dice::new(7, id)))
    }

    #[test]
    fn an_empty_table_and_a_gate_without_faults_are_never_looked_into() {
        let table = table();
        for _ in 0..1000 {
            assert!(table.ask::<PassFault>().is_empty());
        }
        table.set(vec![open(1, "*", DoorFault::Refuse {}, 1.0)]);
        for _ in 0..1000 {
            assert!(table.ask::<PassFault>().is_empty());
        }
        assert_eq!(table.looked(), 0);
        assert_eq!(table.ask::<DoorFault>(), [DoorFault::Refuse {}]);
        assert_eq!(table.looked(), 1);
        table.set(Vec::new());
        assert!(table.ask::<DoorFault>().is_empty());
        assert_eq!(table.looked(), 1);
    }

    #[test]
    fn the_closest_aimed_fault_of_a_kind_counts_and_kinds_add_up() {
        let table = table();
        let slow = |factor| PassFault::Slow { factor };
        table.set(vec![
            open(3, "*", slow(2.0), 1.0),
            open(1, "group:a", slow(3.0), 1.0),
            open(2, "*", PassFault::Stall { ms: 1.0 }, 1.0),
        ]);
        assert_eq!(table.ask::<PassFault>(), [slow(3.0), PassFault::Stall { ms: 1.0 }]);
        table.set(vec![open(1, "w3", slow(4.0), 1.0), open(2, "w3", slow(5.0), 1.0)]);
        assert_eq!(table.ask::<PassFault>(), [slow(5.0)], "of two alike the later");
    }

    #[test]
    fn dice_repeat_and_each_throw_is_in_the_journal() {
        let draw = || {
            let table = table();
            let stall = open(1, "*", PassFault::Stall { ms: 1.0 }, 0.3);
            table.set(vec![Arc::clone(&stall)]);
            let hits: Vec<bool> = (0..1000).map(|_| !table.ask::<PassFault>().is_empty()).collect();
            assert_eq!(stall.asked(), 1000);
            assert_eq!(stall.happened(), hits.iter().filter(|hit| **hit).count() as u64);
            let page = table.journal().page(0, 2000, true);
            let noted: Vec<bool> = page
                .entries
                .iter()
                .map(|entry| matches!(entry.event, Event::Drawn { hit: true, .. }))
                .collect();
            assert_eq!(noted, hits);
            hits
        };
        let hits = draw();
        assert_eq!(hits, draw());
        let many = hits.iter().filter(|hit| **hit).count();
        assert!((200..400).contains(&many), "{many}");
    }
}
