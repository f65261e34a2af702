//! What one worker's gates ask.
//!
//! A table holds the faults whose window is open. While a gate has none, asking costs one relaxed load. A gate asks with
//! the type of its faults, so it only sees its own. It also says what has come of it: dice alone make nothing happen.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
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

    /// It was to be done out of turn, without dice; and it was, or was not.
    pub fn note(&self, done: bool) {
        self.asked.fetch_add(1, Relaxed);
        self.happened.fetch_add(u64::from(done), Relaxed);
    }

    pub(super) fn is_closer_than(&self, other: &Self) -> std::cmp::Ordering {
        (other.level, other.id).cmp(&(self.level, self.id))
    }
}

/// A fault whose dice say that it happens this time. Whether it does is up to what it strikes: a stream that ends before
/// it would have been cut was not cut.
#[derive(Debug)]
pub struct Due<F> {
    fault: F,
    open: Arc<OpenFault>,
    counted: AtomicBool,
}

impl<F> Due<F> {
    fn new(fault: F, open: Arc<OpenFault>) -> Self {
        Self {
            fault,
            open,
            counted: AtomicBool::new(false),
        }
    }

    /// Its number.
    pub fn id(&self) -> FaultId {
        self.open.id
    }

    /// It has happened. Counts once, however often it is said.
    pub fn happened(&self) {
        if !self.counted.swap(true, Relaxed) {
            self.open.happened.fetch_add(1, Relaxed);
        }
    }

    /// It happens here and now.
    pub fn done(self) -> F {
        self.happened();
        self.fault
    }
}

impl<F: GateFault> Due<F> {
    /// One that belongs to no table.
    #[cfg(test)]
    pub(crate) fn alone(fault: F) -> Self {
        let whole = Fault::new(super::Selector::all(), fault.clone());
        Self::new(fault, Arc::new(OpenFault::new(FaultId(1), &whole, Dice::new(0, 0))))
    }

    /// How often it has happened.
    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        self.open.happened()
    }
}

impl<F> Deref for Due<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.fault
    }
}

/// A fault that is in force, for whoever makes it happen without being asked.
#[derive(Debug, Clone)]
pub struct InForce<F> {
    fault: F,
    open: Arc<OpenFault>,
}

impl<F> InForce<F> {
    /// Its number.
    pub fn id(&self) -> FaultId {
        self.open.id
    }

    /// It has happened, once more.
    pub fn happened(&self) {
        self.open.note(true);
    }

    /// Itself.
    pub fn into_fault(self) -> F {
        self.fault
    }
}

impl<F> Deref for InForce<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.fault
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

    /// What happens this time: of each kind the closest aimed fault, if its dice say so. For gates at which it happens with
    /// that.
    #[inline]
    pub fn ask<F: GateFault>(&self) -> Vec<F> {
        if self.is_quiet::<F>() {
            return Vec::new();
        }
        self.throw(|_| true).into_iter().map(Due::done).collect()
    }

    /// As [`Self::ask`], where it turns out later what has happened.
    #[inline]
    pub fn draw<F: GateFault>(&self) -> Vec<Due<F>> {
        self.draw_of(|_| true)
    }

    /// As [`Self::draw`], at a gate where only `these` can happen; the others are not asked for.
    #[inline]
    pub fn draw_of<F: GateFault>(&self, these: impl Fn(&F) -> bool) -> Vec<Due<F>> {
        if self.is_quiet::<F>() {
            return Vec::new();
        }
        self.throw(these)
    }

    /// What is in force; no dice are thrown. For gates that ask when faults change.
    #[inline]
    pub fn in_force<F: GateFault>(&self) -> Vec<InForce<F>> {
        if self.is_quiet::<F>() {
            return Vec::new();
        }
        self.look()
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

    /// The closest aimed fault of each kind of a gate.
    #[cold]
    fn look<F: GateFault>(&self) -> Vec<InForce<F>> {
        self.looked.fetch_add(1, Relaxed);
        let open = Arc::clone(&self.open.read().unwrap_or_else(PoisonError::into_inner));
        let mut words: Vec<&str> = Vec::new();
        let mut found = Vec::new();
        for open in &*open {
            let Some(fault) = F::of(&open.kind) else { continue };
            let word = open.kind.word();
            if words.contains(&word) {
                continue;
            }
            words.push(word);
            found.push(InForce {
                fault: fault.clone(),
                open: Arc::clone(open),
            });
        }
        found
    }

    #[cold]
    fn throw<F: GateFault>(&self, these: impl Fn(&F) -> bool) -> Vec<Due<F>> {
        let found = self.look::<F>().into_iter().filter(|found| these(&found.fault));
        let hits = found.filter(|found| self.hits(&found.open));
        hits.map(|found| Due::new(found.fault, found.open)).collect()
    }

    fn hits(&self, fault: &OpenFault) -> bool {
        let draw = fault.asked.fetch_add(1, Relaxed);
        let hit = fault.probability >= 1.0 || fault.dice.unit(draw) < fault.probability;
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

    #[test]
    fn what_is_due_counts_once_and_only_when_it_has_happened() {
        let table = table();
        let stall = open(1, "*", PassFault::Stall { ms: 1.0 }, 1.0);
        table.set(vec![Arc::clone(&stall)]);
        let due = table.draw::<PassFault>();
        assert_eq!((stall.asked(), stall.happened()), (1, 0), "dice alone are no deed");
        due[0].happened();
        due[0].happened();
        assert_eq!((stall.asked(), stall.happened()), (1, 1));
        let others = |fault: &PassFault| !matches!(fault, PassFault::Stall { .. });
        assert!(table.draw_of::<PassFault>(others).is_empty());
        assert_eq!(stall.asked(), 1, "a kind that cannot happen at a gate is not asked for");
        let in_force = table.in_force::<PassFault>();
        in_force[0].happened();
        in_force[0].happened();
        assert_eq!((stall.asked(), stall.happened()), (3, 3));
    }
}
