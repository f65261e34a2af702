//! All faults of a fleet: which windows are open, whom they strike, which steps are due.
//!
//! Pure: [`Ledger::turn`] is told the time and the fleet, and says whose tables have changed and what has to be done to
//! whom. [`Ledger::next_due`] says when to come again.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::agenda::{Act, Agenda, Step, is_done_once};
use super::draw::Dice;
use super::journal::{Event, Journal};
use super::kind::Kind;
use super::select::Candidate;
use super::standing::{Listed, Phase, Standing};
use super::table::OpenFault;
use super::tally::{Bygone, Sums};
use super::{Fault, FaultError, FaultId};
use crate::types::{SimTime, WorkerId};

#[cfg(test)]
mod tests;

/// Faults kept at most, those that are over included.
pub const MAX_FAULTS: usize = 4096;

/// Faults that are over and still listed, besides those that the last turn has ended.
const KEPT_OVER: usize = 256;

/// What follows from a change or from time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turn {
    /// Workers whose tables have changed.
    pub touched: BTreeSet<WorkerId>,
    /// What to do, in order.
    pub steps: Vec<Step>,
}

/// All faults of a fleet.
pub struct Ledger {
    seed: u64,
    journal: Arc<Journal>,
    last_id: u64,
    standing: BTreeMap<FaultId, Standing>,
    bygone: Bygone,
    agenda: Agenda,
}

impl Ledger {
    /// No faults; `seed` goes into every choice.
    pub fn new(seed: u64, journal: Arc<Journal>) -> Self {
        Self {
            seed,
            journal,
            last_id: 0,
            standing: BTreeMap::new(),
            bygone: Bygone::default(),
            agenda: Agenda::default(),
        }
    }

    /// Removes and adds faults, all of them or none. Their windows count from `now`; [`Ledger::turn`] opens them.
    ///
    /// # Errors
    /// The first fault that cannot be removed or added; nothing has changed then.
    pub fn change(
        &mut self,
        remove: &[FaultId],
        add: Vec<Fault>,
        now: SimTime,
        fleet: &[Candidate],
    ) -> Result<(Vec<FaultId>, Turn), FaultError> {
        if let Some(unknown) = remove.iter().find(|id| !self.standing.contains_key(id)) {
            return Err(FaultError::Unknown(*unknown));
        }
        add.iter().try_for_each(|fault| fault.check(fleet))?;
        let live = self
            .standing
            .values()
            .filter(|fault| fault.phase != Phase::Over)
            .count();
        if live + add.len() > MAX_FAULTS {
            return Err(FaultError::TooMany(MAX_FAULTS));
        }
        let mut turn = Turn::default();
        for &id in remove {
            self.remove(id, &mut turn);
        }
        let ids = add.into_iter().map(|fault| self.add(fault, now)).collect();
        Ok((ids, turn))
    }

    fn add(&mut self, fault: Fault, now: SimTime) -> FaultId {
        self.last_id += 1;
        let id = FaultId(self.last_id);
        self.journal.note(Event::Added {
            id,
            fault: fault.clone(),
        });
        self.standing.insert(id, Standing::new(fault, now));
        id
    }

    fn remove(&mut self, id: FaultId, turn: &mut Turn) {
        let Some(standing) = self.standing.remove(&id) else {
            return;
        };
        turn.touched.extend(standing.workers.keys());
        self.bygone.remove(standing.into_struck());
        self.journal.note(Event::Removed { id });
        // Whom it has taken down and would have brought back is brought back now: nobody else will.
        turn.steps.extend(self.agenda.withdraw(id));
    }

    /// Takes every fault off the workers; faults that only come later may still strike them.
    pub fn heal(&mut self, workers: &[WorkerId]) -> Turn {
        let mut turn = Turn::default();
        self.agenda.retain(|step| !workers.contains(&step.worker));
        let mut emptied = Vec::new();
        for (&id, standing) in &mut self.standing {
            let before = standing.workers.len();
            for worker in workers {
                if let Some(open) = standing.workers.remove(worker) {
                    standing.healed.push(open);
                    turn.touched.insert(*worker);
                }
            }
            if before > 0 && standing.workers.is_empty() && standing.phase == Phase::Open {
                standing.phase = Phase::Over;
                emptied.push(id);
            }
        }
        self.journal.note(Event::Healed {
            workers: workers.to_vec(),
        });
        for id in emptied {
            self.journal.note(Event::Closed { id });
        }
        turn
    }

    /// When something is due next.
    pub fn next_due(&self) -> Option<SimTime> {
        let windows = self.standing.values().filter_map(|standing| match standing.phase {
            Phase::Waiting => Some(standing.opens),
            Phase::Open => standing.closes,
            Phase::Over => None,
        });
        windows.chain(self.agenda.next_due()).min()
    }

    /// Everything that is due at `now`.
    pub fn turn(&mut self, now: SimTime, fleet: &[Candidate]) -> Turn {
        let mut turn = Turn::default();
        self.forget();
        let ids: Vec<FaultId> = self.standing.keys().copied().collect();
        for id in &ids {
            let closes = self
                .standing
                .get(id)
                .filter(|s| s.phase != Phase::Over)
                .and_then(|s| s.closes);
            if closes.is_some_and(|at| at <= now) {
                self.close(*id, &mut turn);
            }
        }
        for id in ids {
            if self
                .standing
                .get(&id)
                .is_some_and(|s| s.phase == Phase::Waiting && s.opens <= now)
            {
                self.open(id, now, fleet, &mut turn);
            }
        }
        while let Some((at, step)) = self.agenda.pop_due(now) {
            let standing = self.standing.get(&step.fault);
            if let Some(standing) = standing.filter(|standing| standing.phase != Phase::Over) {
                self.agenda.follow_up(&step, &standing.fault.kind, at, now);
            }
            turn.steps.push(step);
        }
        self.retire();
        turn
    }

    fn dice(&self, id: FaultId, fault: &Fault) -> Dice {
        // By content, not by number alone: the same drill draws the same although other faults came before.
        Dice::new(
            self.seed ^ fault.seed.rotate_left(32),
            if fault.seed == 0 { id.0 } else { 0 },
        )
    }

    fn open(&mut self, id: FaultId, now: SimTime, fleet: &[Candidate], turn: &mut Turn) {
        let Some(standing) = self.standing.get(&id) else { return };
        let fault = standing.fault.clone();
        let dice = self.dice(id, &fault);
        let mut chosen = fault.select.choose(&concerned(fleet, &fault.kind), dice);
        if fault.kind.is_drawn_once() && fault.probability < 1.0 {
            chosen.retain(|worker| {
                let hit = Dice::new(dice.bits(0), u64::from(worker.0) + 1).unit(0) < fault.probability;
                self.journal.note(Event::Drawn {
                    id,
                    worker: *worker,
                    draw: 0,
                    hit,
                });
                hit
            });
        }
        self.journal.note(Event::Opened {
            id,
            workers: chosen.clone(),
        });
        for &worker in &chosen {
            self.agenda.begin(id, &fault.kind, worker, now);
        }
        let Some(standing) = self.standing.get_mut(&id) else {
            return;
        };
        standing.phase = Phase::Open;
        standing.workers = chosen
            .iter()
            .map(|&worker| {
                let own = Dice::new(dice.bits(0), u64::from(worker.0) + 1);
                (worker, Arc::new(OpenFault::new(id, &fault, own)))
            })
            .collect();
        turn.touched.extend(chosen);
    }

    fn close(&mut self, id: FaultId, turn: &mut Turn) {
        let Some(standing) = self.standing.get_mut(&id) else {
            return;
        };
        standing.phase = Phase::Over;
        turn.touched.extend(standing.workers.keys());
        self.journal.note(Event::Closed { id });
        // A worker that flaps is not left dead; whoever waits for a restart still gets it.
        self.agenda
            .retain(|step| step.fault != id || matches!(step.act, Act::Restart { .. }));
    }

    /// What is done once is over when its last step is taken.
    fn retire(&mut self) {
        let busy = self.agenda.faults();
        for (id, standing) in &mut self.standing {
            let once = || is_done_once(&standing.fault.kind);
            if standing.phase == Phase::Open && !busy.contains(id) && once() {
                standing.phase = Phase::Over;
                self.journal.note(Event::Closed { id: *id });
            }
        }
    }

    /// Of those that were over already only the newest stay in the list.
    fn forget(&mut self) {
        let busy = self.agenda.faults();
        let over = |(id, standing): &(&FaultId, &Standing)| standing.phase == Phase::Over && !busy.contains(id);
        let ids: Vec<FaultId> = self.standing.iter().filter(over).map(|(id, _)| *id).collect();
        for id in &ids[..ids.len().saturating_sub(KEPT_OVER)] {
            if let Some(standing) = self.standing.remove(id) {
                self.bygone.forget(standing.into_struck());
            }
        }
        self.bygone.settle();
    }

    /// The faults in a worker's table.
    pub fn table(&self, worker: WorkerId) -> Vec<Arc<OpenFault>> {
        let open = self.standing.values().filter(|standing| standing.phase == Phase::Open);
        open.filter_map(|standing| standing.workers.get(&worker).cloned())
            .collect()
    }

    /// What is counted of a fault at a worker, if the fault is listed and has struck there.
    pub fn struck(&self, id: FaultId, worker: WorkerId) -> Option<Arc<OpenFault>> {
        self.standing.get(&id)?.workers.get(&worker).cloned()
    }

    /// What is counted of each fault that is listed, wherever it is or was in force: whoever keeps it goes on reading when
    /// the fault is listed no more.
    pub fn counters(&self) -> Vec<(FaultId, Vec<Arc<OpenFault>>)> {
        let counters = self.standing.iter();
        counters
            .map(|(id, standing)| (*id, standing.struck().cloned().collect()))
            .collect()
    }

    /// All faults, by number.
    pub fn list(&self) -> Vec<Listed> {
        self.standing
            .iter()
            .map(|(&id, standing)| standing.listed(id))
            .collect()
    }

    /// What has come of all faults since the fleet's start, those that are not listed any more included.
    pub fn sums(&self) -> Sums {
        let struck = self.standing.values().flat_map(Standing::struck);
        self.bygone.sums(self.last_id, struck.map(AsRef::as_ref))
    }
}

impl Fault {
    /// Whether it could strike anybody of the fleet.
    ///
    /// # Errors
    /// Whom of those that it names there is not, or why none of them has what it strikes.
    pub fn check(&self, fleet: &[Candidate]) -> Result<(), FaultError> {
        if let Some(nobody) = self.select.unmatched(fleet) {
            return Err(FaultError::Nobody(nobody));
        }
        if self.select.can_match(&concerned(fleet, &self.kind)) {
            return Ok(());
        }
        let why = fleet.iter().find_map(|worker| self.kind.spares(worker));
        Err(FaultError::Spared(self.select.clone(), why.unwrap_or_default()))
    }
}

/// Those of the fleet that have what a kind strikes.
fn concerned<'a>(fleet: &'a [Candidate], kind: &Kind) -> Cow<'a, [Candidate]> {
    let concerns = |worker: &&Candidate| kind.spares(worker).is_none();
    if fleet.iter().all(|worker| concerns(&worker)) {
        return fleet.into();
    }
    fleet.iter().filter(concerns).cloned().collect()
}
