//! Looks at the fleet every so often during a drill, and reads its journal at the end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::record::{Arrival, Held, Record, Sample, State};
use crate::actors::control::Control;
use crate::actors::registry::{FleetSnapshot, WorkerState};
use crate::faults::journal::{Addressee, Entry, Event};
use crate::types::{SimTime, WorkerId};

/// Arrivals that a record keeps: more than any drill of minutes has.
const MAX_ARRIVALS: usize = 2_000_000;

/// Entries of the journal that are read at a time.
const PAGE: usize = 10_000;

/// Follows one fleet.
pub(super) struct Watcher {
    control: Control,
    /// The fleet's clock at the drill's start.
    epoch: SimTime,
    /// Position in the journal at that time.
    journal_from: u64,
    /// Who had which instance id.
    instances: BTreeMap<u64, u32>,
    /// HTTP faces of workers that live.
    faces: Arc<Mutex<Vec<SocketAddr>>>,
    pub(super) samples: Vec<Sample>,
    pub(super) arrivals: Vec<Arrival>,
    pub(super) arrivals_lost: u64,
}

impl Watcher {
    /// From now on requests are followed; what came before is none of the drill's.
    pub(super) fn begin(control: Control) -> Self {
        control.journal().follow_requests();
        let _ = control.journal().take_arrivals();
        let mut watcher = Self {
            epoch: control.now(),
            journal_from: control.journal().last(),
            control,
            instances: BTreeMap::new(),
            faces: Arc::default(),
            samples: Vec::new(),
            arrivals: Vec::new(),
            arrivals_lost: 0,
        };
        watcher.look();
        watcher
    }

    pub(super) fn faces(&self) -> Arc<Mutex<Vec<SocketAddr>>> {
        Arc::clone(&self.faces)
    }

    fn seconds(&self, at: SimTime) -> f64 {
        (at.as_ms() - self.epoch.as_ms()) / 1e3
    }

    /// Takes one look.
    pub(super) fn look(&mut self) {
        let snapshot = self.control.registry().snapshot();
        let at = self.seconds(self.control.now());
        for (worker, position) in snapshot.workers.iter().zip(0..) {
            self.instances.insert(worker.instance_id, position);
        }
        {
            let mut faces = self.faces.lock().unwrap_or_else(PoisonError::into_inner);
            let alive = snapshot
                .workers
                .iter()
                .filter(|worker| worker.state == WorkerState::Ready);
            *faces = alive.filter_map(|worker| worker.http).collect();
        }
        let rows = self.control.registry().rows(self.control.now());
        self.samples.push(Sample {
            at,
            ready: u32::try_from(
                snapshot
                    .workers
                    .iter()
                    .filter(|w| w.state == WorkerState::Ready)
                    .count(),
            )
            .unwrap_or(u32::MAX),
            held: held(&snapshot),
            prompt_tokens: rows.iter().map(|row| row.prompt_tokens_total).sum(),
            cached_tokens: rows.iter().map(|row| row.cached_tokens_total).sum(),
            recoveries: snapshot
                .workers
                .iter()
                .map(|worker| worker.recovery.answered_total)
                .sum(),
            tokens: rows.iter().map(|row| row.tokens_total).sum(),
            load: rows.iter().map(|row| row.running + row.waiting).collect(),
        });
        let (arrivals, lost) = self.control.journal().take_arrivals();
        self.arrivals_lost += lost;
        for arrival in arrivals {
            if self.arrivals.len() == MAX_ARRIVALS {
                self.arrivals_lost += 1;
                continue;
            }
            let (worker, alive) = match arrival.to {
                Addressee::Worker(WorkerId(worker)) => (Some(worker), true),
                Addressee::Gone(instance) => (self.instances.get(&instance).copied(), false),
            };
            self.arrivals.push(Arrival {
                at: self.seconds(arrival.at),
                worker,
                alive,
                request: arrival.request,
            });
        }
    }

    /// What requests hold now.
    pub(super) fn held(&self) -> Held {
        held(&self.control.registry().snapshot())
    }

    /// Puts what was seen, and the journal, into a record.
    pub(super) fn tell(mut self, record: &mut Record) {
        self.look();
        record.journal = self.journal();
        record.states = record
            .journal
            .iter()
            .filter_map(|entry| match &entry.event {
                Event::State { worker, state } => Some(State {
                    at: self.since(entry),
                    worker: worker.0,
                    state: (*state).to_owned(),
                }),
                Event::Added { .. }
                | Event::Removed { .. }
                | Event::Opened { .. }
                | Event::Closed { .. }
                | Event::Healed { .. }
                | Event::Drawn { .. }
                | Event::GaveUp { .. }
                | Event::Done { .. } => None,
            })
            .collect();
        for entry in &mut record.journal {
            entry.at_ms -= self.epoch.as_ms();
        }
        record.samples = self.samples;
        record.arrivals = self.arrivals;
        record.arrivals_lost = self.arrivals_lost;
        for request in &mut record.requests {
            if let Some(worker) = request.instance.and_then(|instance| self.instances.get(&instance)) {
                // What the fleet has noted is better; see `Record::join`.
                request.workers = vec![*worker];
            }
        }
    }

    fn since(&self, entry: &Entry) -> f64 {
        (entry.at_ms - self.epoch.as_ms()) / 1e3
    }

    fn journal(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        let mut after = self.journal_from;
        loop {
            let page = self.control.journal().page(after, PAGE, true);
            if page.entries.is_empty() {
                return entries;
            }
            after = page.next;
            entries.extend(page.entries);
        }
    }
}

fn held(snapshot: &FleetSnapshot) -> Held {
    let in_use = snapshot.in_use();
    Held {
        streams: in_use.open_streams,
        sequences: in_use.sequences,
        blocks: in_use.active_blocks,
        rooms: in_use.rooms,
    }
}
