//! Does what the timeline says, and notes what became of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::load::Pace;
use super::record::{Moment, Tally};
use super::scenario::step::{Action, Change, Order, Step};
use crate::actors::control::Control;
use crate::actors::death::Death;
use crate::actors::path::ActorPath;
use crate::faults::journal::{Entry, Event};
use crate::faults::table::OpenFault;
use crate::faults::{FaultId, Layer, Selector};
use crate::types::WorkerId;

/// What the timeline acts on.
pub(super) struct Timeline {
    control: Control,
    seed: u64,
    paces: BTreeMap<String, watch::Sender<Pace>>,
    epoch: Instant,
    moments: Vec<Moment>,
    faults: BTreeMap<FaultId, Added>,
    /// What is counted of them, wherever they have struck. Kept: it is read when the drill is over, and by then they are
    /// removed.
    counters: BTreeMap<FaultId, Vec<Arc<OpenFault>>>,
}

/// A fault that a step has added.
struct Added {
    /// The moment that it belongs to.
    moment: usize,
    /// Its line there.
    line: String,
    needs_router: bool,
}

/// Whether faults of a layer happen with what a router does, and not by themselves or with any request.
fn happens_to_routers(layer: Layer) -> bool {
    match layer {
        Layer::Life | Layer::Engine | Layer::Response => false,
        Layer::Request | Layer::Events | Layer::Discovery | Layer::Metrics | Layer::Rendezvous => true,
    }
}

impl Timeline {
    pub(super) fn new(
        control: Control,
        seed: u64,
        paces: BTreeMap<String, watch::Sender<Pace>>,
        epoch: Instant,
    ) -> Self {
        Self {
            control,
            seed,
            paces,
            epoch,
            moments: Vec::new(),
            faults: BTreeMap::new(),
            counters: BTreeMap::new(),
        }
    }

    /// Runs to the last step.
    pub(super) async fn run(&mut self, steps: &[Step]) {
        for (index, step) in steps.iter().enumerate() {
            sleep_until(self.epoch + step.at.duration()).await;
            // Before faults that are over make way in the list for those of this step.
            self.keep_counters().await;
            let mut moment = Moment {
                mark: step.mark.clone(),
                at: self.epoch.elapsed().as_secs_f64(),
                lines: step.actions.iter().map(|(line, _)| line.clone()).collect(),
                disturbs: step.disturbs(),
                may_miss: step.may_miss,
                faults: Vec::new(),
                victims: Vec::new(),
                errors: Vec::new(),
            };
            for (line, action) in &step.actions {
                if let Err(error) = self.act((line, action), index, &mut moment).await {
                    tracing::warn!(mark = step.mark, line, error, "a step of the drill failed");
                    moment.errors.push(format!("{line}: {error}"));
                }
            }
            self.moments.push(moment);
        }
    }

    async fn act(&mut self, (line, action): (&str, &Action), index: usize, moment: &mut Moment) -> Result<(), String> {
        match action {
            Action::Fault(fault) => {
                let added = self.control.change_faults(Some(Vec::new()), vec![fault.clone()]).await;
                for id in added.map_err(|error| error.to_string())? {
                    let added = Added {
                        moment: index,
                        line: line.to_owned(),
                        needs_router: happens_to_routers(fault.kind.layer()),
                    };
                    self.faults.insert(id, added);
                }
                Ok(())
            }
            Action::ClearFaults => {
                self.keep_counters().await;
                let removed = self.control.change_faults(None, Vec::new()).await;
                removed.map(drop).map_err(|error| error.to_string())
            }
            Action::Order(order, select) => {
                let workers = self.choose(select, index).await?;
                if order.disturbs() {
                    moment.victims.extend(workers.iter().map(|worker| worker.0));
                }
                let calls = workers.iter().map(|worker| self.order(*order, *worker));
                let outcomes = futures::future::join_all(calls).await;
                let errors: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
                if errors.is_empty() {
                    Ok(())
                } else {
                    Err(errors.join("; "))
                }
            }
            Action::Load { name, change } => {
                let pace = self.paces.get(name).ok_or_else(|| format!("there is no load {name}"))?;
                pace.send_modify(|pace| match change {
                    Change::Rate(rate) => pace.rate = *rate,
                    Change::Concurrency(clients) => pace.concurrency = *clients,
                    Change::Stop => pace.running = false,
                    Change::Start => pace.running = true,
                });
                Ok(())
            }
        }
    }

    /// Keeps what is counted of the faults: one that is removed, or long over, is not on the list any more.
    pub(super) async fn keep_counters(&mut self) {
        if self.faults.is_empty() {
            return;
        }
        let own = self.control.fault_counters().await;
        self.counters
            .extend(own.into_iter().filter(|(id, _)| self.faults.contains_key(id)));
    }

    async fn choose(&self, select: &Selector, index: usize) -> Result<Vec<WorkerId>, String> {
        let workers = self
            .control
            .choose(select.clone(), self.seed ^ (index as u64 + 1))
            .await;
        if workers.is_empty() {
            return Err(format!("{select} selects no worker at that moment"));
        }
        Ok(workers)
    }

    async fn order(&self, order: Order, worker: WorkerId) -> Result<(), String> {
        let control = &self.control;
        let path = ActorPath { worker, child: None };
        let done = match order {
            Order::Kill => control.kill(path, Death::Crash).await,
            Order::Drain => control.drain(worker).await,
            Order::Restart { same_id } => control.restart(worker, same_id).await,
            Order::Heal { same_id } => control.heal(vec![worker], same_id).await,
            Order::ClearCache => control.clear_cache(path).await.map(drop),
        };
        done.map_err(|error| format!("{worker}: {error}"))
    }

    /// Ends every load: no further requests.
    pub(super) fn stop_loads(mut self) -> Self {
        for pace in std::mem::take(&mut self.paces).into_values() {
            pace.send_modify(|pace| pace.running = false);
        }
        self
    }

    /// The moments, with the workers that their faults have struck, how often these have happened up to now, and what they
    /// could not do.
    pub(super) fn tell(mut self, journal: &[Entry]) -> Vec<Moment> {
        for entry in journal {
            let (Event::Opened { id, .. } | Event::Done { id: Some(id), .. }) = &entry.event else {
                continue;
            };
            let Some(moment) = self.faults.get(id).and_then(|added| self.moments.get_mut(added.moment)) else {
                continue;
            };
            let struck = || self.counters.get(id).into_iter().flatten();
            if let Event::Opened { workers, .. } = &entry.event
                && struck().any(|open| open.happened() > 0)
            {
                moment.victims.extend(workers.iter().map(|worker| worker.0));
            }
            if let Event::Done {
                act,
                path,
                error: Some(error),
                ..
            } = &entry.event
            {
                moment.errors.push(format!("{act} {path}: {error}"));
            }
        }
        for (id, added) in self.faults {
            if let (Some(moment), Some(struck)) = (self.moments.get_mut(added.moment), self.counters.get(&id)) {
                moment.faults.push(Tally {
                    line: added.line,
                    needs_router: added.needs_router,
                    asked: struck.iter().map(|open| open.asked()).sum(),
                    happened: struck.iter().map(|open| open.happened()).sum(),
                });
            }
        }
        for moment in &mut self.moments {
            let once: BTreeSet<u32> = moment.victims.iter().copied().collect();
            moment.victims = once.into_iter().collect();
        }
        self.moments
    }
}
