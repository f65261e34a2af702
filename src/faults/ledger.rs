//! All faults of a fleet: which windows are open, whom they strike, which steps are due.
//!
//! Pure: [`Ledger::turn`] is told the time and the fleet, and says whose tables have changed and what has to be done to
//! whom. [`Ledger::next_due`] says when to come again.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use super::agenda::{Act, Agenda, Step};
use super::draw::Dice;
use super::journal::{Event, Journal};
use super::kind::Kind;
use super::select::Candidate;
use super::table::OpenFault;
use super::{Fault, FaultError, FaultId};
use crate::types::{SimTime, WorkerId};

/// Faults kept at most, those that are over included.
pub const MAX_FAULTS: usize = 4096;

/// Faults that are over and still listed.
const KEPT_OVER: usize = 256;

/// What follows from a change or from time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turn {
    /// Workers whose tables have changed.
    pub touched: BTreeSet<WorkerId>,
    /// What to do, in order.
    pub steps: Vec<Step>,
}

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

struct Standing {
    fault: Fault,
    opens: SimTime,
    closes: Option<SimTime>,
    phase: Phase,
    workers: BTreeMap<WorkerId, Arc<OpenFault>>,
    /// It was taken off their workers; what it had done there stays done.
    healed: Vec<Arc<OpenFault>>,
}

impl Standing {
    /// Wherever it is or was in force.
    fn struck(&self) -> impl Iterator<Item = &OpenFault> {
        self.workers.values().chain(&self.healed).map(AsRef::as_ref)
    }
}

/// All faults of a fleet.
pub struct Ledger {
    seed: u64,
    journal: Arc<Journal>,
    last_id: u64,
    standing: BTreeMap<FaultId, Standing>,
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
        if let Some(nobody) = add.iter().find(|fault| !fault.select.can_match(fleet)) {
            return Err(FaultError::Nobody(nobody.select.clone()));
        }
        let strikes = |fault: &Fault| fault.select.can_match(&concerned(fleet, &fault.kind));
        if let Some(idle) = add.iter().find(|fault| !strikes(fault)) {
            let why = fleet
                .iter()
                .find_map(|worker| idle.kind.spares(worker))
                .unwrap_or_default();
            return Err(FaultError::Spared(idle.select.clone(), why));
        }
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
        let standing = Standing {
            opens: now + fault.from,
            closes: fault.to.map(|to| now + to),
            fault,
            phase: Phase::Waiting,
            workers: BTreeMap::new(),
            healed: Vec::new(),
        };
        self.standing.insert(id, standing);
        id
    }

    fn remove(&mut self, id: FaultId, turn: &mut Turn) {
        let Some(standing) = self.standing.remove(&id) else {
            return;
        };
        turn.touched.extend(standing.workers.keys());
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

    /// What is done once is over when its last step is taken; of those that are over only the newest stay.
    fn retire(&mut self) {
        let busy = self.agenda.faults();
        for (id, standing) in &mut self.standing {
            let once = matches!(standing.fault.kind, Kind::Life(_) | Kind::Purge(_));
            if once && standing.phase == Phase::Open && !busy.contains(id) {
                standing.phase = Phase::Over;
                self.journal.note(Event::Closed { id: *id });
            }
        }
        let over = |standing: &Standing| standing.phase == Phase::Over;
        let mut surplus = self
            .standing
            .values()
            .filter(|s| over(s))
            .count()
            .saturating_sub(KEPT_OVER);
        self.standing.retain(|id, standing| {
            let drop = surplus > 0 && over(standing) && !busy.contains(id);
            surplus -= usize::from(drop);
            !drop
        });
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

    /// All faults, by number.
    pub fn list(&self) -> Vec<Listed> {
        let listed = self.standing.iter().map(|(&id, standing)| Listed {
            id,
            phase: standing.phase,
            fault: standing.fault.clone(),
            line: standing.fault.to_string(),
            opens_ms: standing.opens.as_ms(),
            closes_ms: standing.closes.map(SimTime::as_ms),
            workers: standing.workers.keys().copied().collect(),
            asked: standing.struck().map(OpenFault::asked).sum(),
            happened: standing.struck().map(OpenFault::happened).sum(),
        });
        listed.collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet() -> Vec<Candidate> {
        (0..4)
            .map(|id| Candidate {
                id: WorkerId(id),
                group: "a".to_owned(),
                labels: Vec::new(),
                alive: true,
                requests: u64::from(id),
                cached_blocks: 0,
                durable_events: false,
            })
            .collect()
    }

    fn ledger() -> Ledger {
        Ledger::new(1, Arc::new(Journal::new(|| SimTime::ZERO)))
    }

    fn at(ms: u64) -> SimTime {
        SimTime::of_nanos(ms * 1_000_000)
    }

    fn add(ledger: &mut Ledger, lines: &[&str], now: SimTime) -> Vec<FaultId> {
        let faults = lines.iter().map(|line| line.parse().unwrap()).collect();
        ledger.change(&[], faults, now, &fleet()).unwrap().0
    }

    fn phases(ledger: &Ledger) -> Vec<Phase> {
        ledger.list().iter().map(|listed| listed.phase).collect()
    }

    #[test]
    fn a_fault_is_in_tables_for_its_window_only() {
        let mut ledger = ledger();
        add(&mut ledger, &["w1-w2 slow factor=2 from=1 to=3"], at(500));
        assert_eq!(ledger.next_due(), Some(at(1500)));
        assert_eq!(ledger.turn(at(1499), &fleet()), Turn::default());
        let turn = ledger.turn(at(1500), &fleet());
        assert_eq!(turn.touched, [WorkerId(1), WorkerId(2)].into());
        assert_eq!(
            (ledger.table(WorkerId(1)).len(), ledger.table(WorkerId(0)).len()),
            (1, 0)
        );
        assert_eq!(ledger.next_due(), Some(at(3500)));
        let turn = ledger.turn(at(3500), &fleet());
        assert_eq!(turn.touched.len(), 2);
        assert!(ledger.table(WorkerId(1)).is_empty());
        assert_eq!((phases(&ledger), ledger.next_due()), (vec![Phase::Over], None));
    }

    #[test]
    fn the_hottest_worker_is_chosen_when_the_window_opens() {
        let mut ledger = ledger();
        add(&mut ledger, &["hottest crash from=1"], at(0));
        let mut later = fleet();
        later[0].requests = 100;
        let turn = ledger.turn(at(1000), &later);
        assert_eq!(turn.steps.len(), 1);
        assert_eq!(turn.steps[0].worker, WorkerId(0));
        assert_eq!(phases(&ledger), [Phase::Over]);
    }

    #[test]
    fn changes_are_made_together_or_not_at_all() {
        let mut ledger = ledger();
        let [first] = add(&mut ledger, &["* slow factor=2"], at(0))[..] else {
            panic!()
        };
        let good = "w1 slow factor=3".parse::<Fault>().unwrap();
        let nobody = "w9 slow factor=3".parse::<Fault>().unwrap();
        let error = ledger.change(&[first], vec![good.clone(), nobody], at(0), &fleet());
        assert!(matches!(error, Err(FaultError::Nobody(_))));
        let error = ledger.change(&[first, FaultId(9)], vec![good.clone()], at(0), &fleet());
        assert_eq!(error, Err(FaultError::Unknown(FaultId(9))));
        assert_eq!(ledger.list().len(), 1);
        let (ids, _) = ledger.change(&[first], vec![good], at(0), &fleet()).unwrap();
        assert_eq!(ledger.list().iter().map(|l| l.id).collect::<Vec<_>>(), ids);
    }

    #[test]
    fn handoffs_are_disturbed_where_they_are() {
        let mut ledger = ledger();
        let mut fleet = fleet();
        let never_ready = |line: &str| vec![line.parse::<Fault>().unwrap()];
        let error = ledger.change(&[], never_ready("* never_ready"), at(0), &fleet);
        assert!(matches!(error, Err(FaultError::Spared(..))), "{error:?}");
        fleet[1].labels.push(("role".to_owned(), "prefill".to_owned()));
        let error = ledger.change(&[], never_ready("w2 never_ready"), at(0), &fleet);
        assert!(matches!(error, Err(FaultError::Spared(..))), "{error:?}");
        // w3 is hotter, and has none.
        ledger
            .change(&[], never_ready("hottest never_ready"), at(0), &fleet)
            .unwrap();
        assert_eq!(ledger.turn(at(0), &fleet).touched, [WorkerId(1)].into());
    }

    #[test]
    fn what_a_durable_stream_does_not_have_is_not_disturbed() {
        let mut ledger = ledger();
        let mut fleet = fleet();
        fleet[0].durable_events = true;
        let add = |ledger: &mut Ledger, line: &str, fleet: &[Candidate]| {
            ledger.change(&[], vec![line.parse().unwrap()], at(0), fleet)
        };
        for kind in ["stale_epoch", "recovery_hanging", "duplicate_source"] {
            let error = add(&mut ledger, &format!("w0 {kind}"), &fleet).unwrap_err().to_string();
            assert!(
                error.contains("w0 selects no worker") && error.contains("JetStream"),
                "{error}"
            );
            add(&mut ledger, &format!("* {kind}"), &fleet).unwrap();
        }
        assert!(!ledger.turn(at(0), &fleet).touched.contains(&WorkerId(0)));
        add(&mut ledger, "w0 silent", &fleet).unwrap();
        assert_eq!(ledger.turn(at(0), &fleet).touched, [WorkerId(0)].into());
    }

    #[test]
    fn a_flapping_worker_crashes_and_returns_until_its_window_closes_and_is_left_alive() {
        let mut ledger = ledger();
        add(&mut ledger, &["w1 flap up_ms=300 down_ms=100 to=1"], at(0));
        let mut seen = Vec::new();
        let mut now = at(0);
        loop {
            for step in ledger.turn(now, &fleet()).steps {
                seen.push((now.as_nanos() / 1_000_000, step.act.word()));
            }
            match ledger.next_due() {
                Some(next) => now = next,
                None => break,
            }
        }
        let expected = [
            (0, "crash"),
            (100, "restart"),
            (400, "crash"),
            (500, "restart"),
            (800, "crash"),
            (900, "restart"),
        ];
        assert_eq!(seen, expected);
        let mut ledger = self::ledger();
        add(&mut ledger, &["w1 flap up_ms=300 down_ms=500 to=0.2"], at(0));
        ledger.turn(at(0), &fleet());
        ledger.turn(at(200), &fleet());
        assert_eq!(
            ledger.turn(at(500), &fleet()).steps[0].act,
            Act::Restart { same_id: false }
        );
    }

    #[test]
    fn a_fault_that_is_removed_brings_back_whom_it_has_taken_down() {
        for line in [
            "w1 flap up_ms=300 down_ms=500 same_id=true",
            "w1 crash restart_after_ms=500 same_id=true",
        ] {
            let mut ledger = ledger();
            let ids = add(&mut ledger, &[line, "w2 crash"], at(0));
            assert_eq!(ledger.turn(at(0), &fleet()).steps.len(), 2, "{line}");
            let (_, turn) = ledger.change(&ids, Vec::new(), at(100), &fleet()).unwrap();
            let restart = Step {
                fault: ids[0],
                worker: WorkerId(1),
                act: Act::Restart { same_id: true },
            };
            assert_eq!(turn.steps, [restart], "{line}: w2 was to stay dead");
            assert_eq!(ledger.next_due(), None, "{line}");
        }
        // One that is up when its flap is removed stays up.
        let mut ledger = ledger();
        let ids = add(&mut ledger, &["w1 flap up_ms=300 down_ms=100"], at(0));
        ledger.turn(at(0), &fleet());
        ledger.turn(at(100), &fleet());
        let (_, turn) = ledger.change(&ids, Vec::new(), at(200), &fleet()).unwrap();
        assert_eq!((turn.steps, ledger.next_due()), (Vec::new(), None));
    }

    #[test]
    fn a_flap_that_was_looked_at_late_does_not_make_good_for_the_beats_it_missed() {
        let mut ledger = ledger();
        add(&mut ledger, &["w1 flap up_ms=50 down_ms=50 to=60"], at(0));
        let words = |turn: Turn| turn.steps.iter().map(|step| step.act.word()).collect::<Vec<_>>();
        assert_eq!(words(ledger.turn(at(0), &fleet())), ["crash"]);
        assert_eq!(words(ledger.turn(at(30_000), &fleet())), ["restart"]);
        assert_eq!(ledger.next_due(), Some(at(30_050)));
        // When the window has closed nothing is left over.
        assert_eq!(words(ledger.turn(at(61_000), &fleet())), Vec::<&str>::new());
        assert_eq!((phases(&ledger), ledger.next_due()), (vec![Phase::Over], None));
        let error = "w1 flap up_ms=1 down_ms=50".parse::<Fault>().unwrap_err().to_string();
        assert!(error.contains("up_ms 1 must be at least 50"), "{error}");
    }

    #[test]
    fn healing_takes_faults_off_a_worker_and_leaves_its_neighbours() {
        let mut ledger = ledger();
        add(&mut ledger, &["* slow factor=2", "w1 hang"], at(0));
        ledger.turn(at(0), &fleet());
        let turn = ledger.heal(&[WorkerId(1)]);
        assert_eq!(turn.touched, [WorkerId(1)].into());
        assert_eq!(ledger.table(WorkerId(1)).len(), 0);
        assert_eq!(ledger.table(WorkerId(2)).len(), 1);
        assert_eq!(phases(&ledger), [Phase::Open, Phase::Over]);
    }

    #[test]
    fn what_strikes_by_chance_strikes_the_same_workers_again() {
        let struck = |seed: u64| {
            let mut ledger = ledger();
            let many: Vec<Candidate> = (0..100)
                .map(|id| Candidate {
                    id: WorkerId(id),
                    ..fleet().remove(0)
                })
                .collect();
            let fault = format!("* crash p=0.2 seed={seed}").parse().unwrap();
            ledger.change(&[], vec![fault], at(0), &many).unwrap();
            let steps = ledger.turn(at(0), &many).steps;
            steps.iter().map(|step| step.worker.0).collect::<Vec<_>>()
        };
        let first = struck(7);
        assert_eq!(first, struck(7));
        assert_ne!(first, struck(8));
        assert!((8..35).contains(&first.len()), "{first:?}");
    }
}
