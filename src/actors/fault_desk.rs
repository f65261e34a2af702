//! `FaultDesk`: keeps the ledger of faults, opens and closes their windows, and has done what they ask for.
//!
//! Started by the cluster beside the fleet. It alone writes the workers' fault tables; everything that happens to a worker
//! because of a fault goes through the same commands that a person has.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;

use super::clock::Clock;
use super::death::Death;
use super::fleet::{CommandError, DrainWorker, FindRanks, Fleet, Kill, Restart};
use super::path::ActorPath;
use super::rank::DropCache;
use super::registry::Registry;
use crate::faults::agenda::{Act, Step};
use crate::faults::draw::Dice;
use crate::faults::journal::Event;
use crate::faults::kind::LifeFault;
use crate::faults::ledger::Turn;
use crate::faults::select::Candidate;
use crate::faults::standing::Listed;
use crate::faults::table::OpenFault;
use crate::faults::tally::Sums;
use crate::faults::{Fault, FaultError, FaultId, Journal, Kind, Ledger, Selector};
use crate::types::WorkerId;

/// How long a restart waits for the worker to be gone: a drain may have streams to finish.
const GONE_LIMIT: Duration = Duration::from_secs(60);

/// How long it waits for a port that the fleet's own former listener, or another program, still has.
const PORT_LIMIT: Duration = Duration::from_secs(3);

/// How often it looks.
const GONE_CHECK: Duration = Duration::from_millis(5);

/// The keeper of faults.
pub struct FaultDesk {
    ledger: Ledger,
    registry: Arc<Registry>,
    journal: Arc<Journal>,
    fleet: Addr<Fleet>,
    clock: Clock,
    timer: Option<SpawnHandle>,
}

/// A step, and what counts it, if its fault has happened with it.
type Counted = (Step, Option<Arc<OpenFault>>);

/// Removes and adds faults, all of them or none. The answer has the numbers of the new ones.
#[derive(Message)]
#[rtype(result = "Result<Vec<FaultId>, FaultError>")]
pub struct ChangeFaults {
    /// Faults to remove; `None`: all.
    pub remove: Option<Vec<FaultId>>,
    /// Faults to add.
    pub add: Vec<Fault>,
}

/// Asks for all faults.
#[derive(Message)]
#[rtype(result = "Vec<Listed>")]
pub struct ListFaults;

/// What is counted of each fault, as [`Ledger::counters`] has it.
pub type Counters = Vec<(FaultId, Vec<Arc<OpenFault>>)>;

/// Asks for what is counted of each fault that is listed.
#[derive(Message)]
#[rtype(result = "Counters")]
pub struct FaultCounters;

/// Asks for what has come of all faults, also of those that are listed no more.
#[derive(Message)]
#[rtype(result = "Sums")]
pub struct FaultSums;

/// Takes every fault off these workers.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Heal(pub Vec<WorkerId>);

/// Asks whom a selector means now.
#[derive(Message)]
#[rtype(result = "Vec<WorkerId>")]
pub struct Choose {
    /// The selector.
    pub select: Selector,
    /// Seed of its dice.
    pub seed: u64,
}

impl FaultDesk {
    /// A desk without faults; `seed` goes into every choice.
    pub fn new(seed: u64, registry: Arc<Registry>, journal: Arc<Journal>, fleet: Addr<Fleet>, clock: Clock) -> Self {
        Self {
            ledger: Ledger::new(seed, Arc::clone(&journal)),
            registry,
            journal,
            fleet,
            clock,
            timer: None,
        }
    }

    /// Does what is due and sets the timer for what comes next.
    fn advance(&mut self, ctx: &mut Context<Self>) {
        let turn = self.ledger.turn(self.clock.now(), &self.registry.candidates());
        self.carry_out(turn, ctx);
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        if let Some(due) = self.ledger.next_due() {
            let wait = due.since(self.clock.now());
            self.timer = Some(ctx.run_later(wait, |desk, ctx| {
                desk.timer = None;
                desk.advance(ctx);
            }));
        }
    }

    fn carry_out(&mut self, turn: Turn, ctx: &mut Context<Self>) {
        for worker in turn.touched {
            if let Some(entry) = self.registry.get(worker) {
                entry.faults.set(self.ledger.table(worker));
            }
        }
        // One after the other for each worker, all workers at once.
        let mut by_worker: BTreeMap<WorkerId, Vec<Counted>> = BTreeMap::new();
        for step in turn.steps {
            let fault = self.ledger.struck(step.fault, step.worker);
            let counted = fault.filter(|_| step.is_deed);
            by_worker.entry(step.worker).or_default().push((step, counted));
        }
        for steps in by_worker.into_values() {
            let (fleet, journal) = (self.fleet.clone(), Arc::clone(&self.journal));
            ctx.spawn(
                async move {
                    for (step, counted) in steps {
                        let (path, outcome) = perform(&fleet, &step).await;
                        if let Some(fault) = counted {
                            fault.note(outcome.is_ok());
                        }
                        let outcome = match (&step.act, outcome) {
                            // What it was for is so already: other faults and commands strike, too.
                            (
                                Act::Crash { actor: None } | Act::Panic { actor: None },
                                Err(CommandError::NotAlive(_)),
                            )
                            | (Act::Restart { .. }, Err(CommandError::Alive(_))) => Ok(()),
                            // Nobody is left to be struck.
                            (_, Err(CommandError::Stopped)) => return,
                            (_, outcome) => outcome,
                        };
                        journal.note(Event::Done {
                            id: Some(step.fault),
                            path,
                            act: step.act.word(),
                            error: outcome.err().map(|error| error.to_string()),
                        });
                    }
                }
                .into_actor(self),
            );
        }
    }
}

fn child_path(worker: WorkerId, child: Option<&str>) -> String {
    match child {
        Some(child) => format!("{worker}/{child}"),
        None => worker.to_string(),
    }
}

/// Carries a step out; the answer names the actor.
async fn perform(fleet: &Addr<Fleet>, step: &Step) -> (String, Result<(), CommandError>) {
    let worker = step.worker;
    let kill = async |actor: Option<&str>, death| {
        let text = child_path(worker, actor);
        let Ok(path) = text.parse() else {
            // Checked when the fault was added.
            return (text, Ok(()));
        };
        (text, answer(fleet.send(Kill { path, death }).await))
    };
    let whole = worker.to_string();
    match &step.act {
        Act::Crash { actor } => kill(actor.as_deref(), Death::Crash).await,
        Act::Panic { actor } => kill(actor.as_deref(), Death::Panic).await,
        Act::Drain => (whole, answer(fleet.send(DrainWorker(worker)).await)),
        Act::Restart { same_id } => (whole, restart_when_gone(fleet, worker, *same_id).await),
        Act::ClearCache { told, late } => {
            let path = ActorPath { worker, child: None };
            let ranks = match answer(fleet.send(FindRanks { path }).await) {
                Ok(ranks) => ranks,
                Err(error) => return (whole, Err(error)),
            };
            for rank in ranks {
                rank.do_send(DropCache {
                    told: *told,
                    late: *late,
                });
            }
            (whole, Ok(()))
        }
    }
}

fn answer<T>(sent: Result<Result<T, CommandError>, MailboxError>) -> Result<T, CommandError> {
    sent.unwrap_or(Err(CommandError::Stopped))
}

/// Restarts a worker as soon as its former incarnation is gone and its ports are free. One that lives and has not been told to go is left alone:
/// an order that waited for its end would pull it up again after a death that is not its business.
pub(super) async fn restart_when_gone(
    fleet: &Addr<Fleet>,
    worker: WorkerId,
    same_id: bool,
) -> Result<(), CommandError> {
    let mut waited = Duration::ZERO;
    loop {
        let outcome = answer(fleet.send(Restart { worker, same_id }).await);
        let limit = match outcome {
            Err(CommandError::Going(_)) => GONE_LIMIT,
            Err(CommandError::PortHeld { .. }) => PORT_LIMIT,
            _ => return outcome,
        };
        if waited >= limit {
            return outcome;
        }
        tokio::time::sleep(GONE_CHECK).await;
        waited += GONE_CHECK;
    }
}

/// What cannot be carried out is refused when the fault is added: children that none of those that it may strike has.
pub(super) fn check(fault: &Fault, registry: &Registry) -> Result<(), FaultError> {
    let Kind::Life(LifeFault::Crash { actor, .. } | LifeFault::Panic { actor }) = &fault.kind else {
        return Ok(());
    };
    let Some(actor) = actor.as_deref() else { return Ok(()) };
    let path: Result<ActorPath, _> = format!("w0/{actor}").parse();
    let child = path.ok().and_then(|path| path.child).ok_or_else(|| {
        FaultError::Line(format!(
            "actor={actor} is no child of a worker; use r<N>, kv, r<N>/kv, r<N>/native, metrics, lease or rendezvous"
        ))
    })?;
    let select = &fault.select;
    let meant = |candidate: &Candidate| select.can_match(std::slice::from_ref(candidate));
    let candidates = registry.candidates();
    let meant = candidates.iter().filter(|candidate| meant(candidate));
    let mut shapes = meant.filter_map(|candidate| registry.get(candidate.id).map(|entry| entry.shape));
    // Whoever selects nobody is told so.
    let Some(first) = shapes.next() else { return Ok(()) };
    if first.has(child) || shapes.any(|shape| shape.has(child)) {
        return Ok(());
    }
    Err(FaultError::Line(format!(
        "actor={actor}: no worker that {select} selects has it; the first of them has {}",
        first.says()
    )))
}

impl Actor for FaultDesk {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(1024);
    }
}

impl Handler<ChangeFaults> for FaultDesk {
    type Result = Result<Vec<FaultId>, FaultError>;

    fn handle(&mut self, ChangeFaults { remove, add }: ChangeFaults, ctx: &mut Self::Context) -> Self::Result {
        add.iter().try_for_each(|fault| check(fault, &self.registry))?;
        let remove = remove.unwrap_or_else(|| self.ledger.list().iter().map(|listed| listed.id).collect());
        let fleet = self.registry.candidates();
        let (ids, turn) = self.ledger.change(&remove, add, self.clock.now(), &fleet)?;
        self.carry_out(turn, ctx);
        self.advance(ctx);
        Ok(ids)
    }
}

impl Handler<ListFaults> for FaultDesk {
    type Result = MessageResult<ListFaults>;

    fn handle(&mut self, _: ListFaults, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.ledger.list())
    }
}

impl Handler<FaultCounters> for FaultDesk {
    type Result = MessageResult<FaultCounters>;

    fn handle(&mut self, _: FaultCounters, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.ledger.counters())
    }
}

impl Handler<FaultSums> for FaultDesk {
    type Result = MessageResult<FaultSums>;

    fn handle(&mut self, _: FaultSums, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.ledger.sums())
    }
}

impl Handler<Heal> for FaultDesk {
    type Result = ();

    fn handle(&mut self, Heal(workers): Heal, ctx: &mut Self::Context) {
        let turn = self.ledger.heal(&workers);
        self.carry_out(turn, ctx);
        self.advance(ctx);
    }
}

impl Handler<Choose> for FaultDesk {
    type Result = MessageResult<Choose>;

    fn handle(&mut self, Choose { select, seed }: Choose, _: &mut Self::Context) -> Self::Result {
        MessageResult(select.choose(&self.registry.candidates(), Dice::new(seed, 0)))
    }
}
