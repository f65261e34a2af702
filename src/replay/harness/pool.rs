//! Workers of one kind behind one router: who is there, who may be sent to, who comes and goes.

use crate::engine::{self, DiskUse, SharedMemory};
use crate::router::RouterError;
use crate::types::{SimTime, Token};

use super::super::fleet::Worker;
use super::super::source::Turn;
use super::routing::{PoolRouter, Routed, Side};
use super::spec::{PoolSpec, RouterSpec};

/// See the module's text.
pub(super) struct Pool {
    pub(super) spec: PoolSpec,
    pub(super) router: PoolRouter,
    /// By number; numbers are never used twice.
    workers: Vec<Option<Box<Worker>>>,
    /// Numbers of those that take requests, ascending.
    active: Vec<u32>,
    /// Of those that are not ready yet.
    starting: Vec<u32>,
    /// Of those that only finish what they have.
    draining: Vec<u32>,
    watched: bool,
    memory: SharedMemory,
    /// Time of all workers up to `counted`, ms.
    worker_ms: f64,
    counted: SimTime,
}

impl Pool {
    /// A pool whose first workers are ready.
    pub(super) fn new(
        spec: PoolSpec,
        router: &RouterSpec,
        side: Side,
        memory: &SharedMemory,
    ) -> Result<Self, engine::ConfigError> {
        let mut pool = Self {
            router: PoolRouter::new(router, &spec, side),
            workers: Vec::new(),
            active: Vec::new(),
            starting: Vec::new(),
            draining: Vec::new(),
            watched: false,
            memory: memory.clone(),
            worker_ms: 0.0,
            counted: SimTime::ZERO,
            spec,
        };
        for _ in 0..pool.spec.workers {
            let number = pool.build(SimTime::ZERO)?;
            pool.activate(number);
        }
        Ok(pool)
    }

    /// Has every pass looked at, also of workers that come later. Only before the first pass.
    pub(super) fn watch(&mut self) {
        self.watched = true;
        for worker in self.workers.iter_mut().flatten() {
            worker.watch();
        }
    }

    fn build(&mut self, now: SimTime) -> Result<u32, engine::ConfigError> {
        let mut worker = Worker::new(
            &self.spec.engine,
            self.workers.len() as u64,
            self.spec.dp_size,
            &self.memory,
            now,
        )?;
        if self.watched {
            worker.watch();
        }
        if !self.router.hears_lower() {
            worker.mute_lower();
        }
        self.workers.push(Some(Box::new(worker)));
        Ok(u32::try_from(self.workers.len() - 1).unwrap_or(u32::MAX))
    }

    fn activate(&mut self, number: u32) {
        let at = self.active.partition_point(|&other| other < number);
        self.active.insert(at, number);
        self.router.add(number, self.spec.dp_size);
    }

    /// Worker `number`, which something still refers to: it has a pass, a request or an order.
    pub(super) fn worker(&mut self, number: u32) -> &mut Worker {
        self.workers[number as usize]
            .as_deref_mut()
            .expect("a worker leaves only when nothing refers to it")
    }

    /// Whether this worker is still there.
    pub(super) fn has(&self, number: u32) -> bool {
        self.workers[number as usize].is_some()
    }

    /// Asks the router about a request.
    pub(super) fn ask(&mut self, id: u64, turn: &Turn, prompt: &[Token], now: SimTime) -> Result<Routed, RouterError> {
        let places = (self.active.as_slice(), self.spec.dp_size);
        self.router.arrive(id, turn, prompt, places, now)
    }

    pub(super) fn active(&self) -> &[u32] {
        &self.active
    }

    pub(super) fn starting(&self) -> &[u32] {
        &self.starting
    }

    pub(super) fn draining(&self) -> &[u32] {
        &self.draining
    }

    /// Active and starting workers.
    pub(super) fn wanted(&self) -> u32 {
        u32::try_from(self.active.len() + self.starting.len()).unwrap_or(u32::MAX)
    }

    /// Adds a worker. `true`: it takes requests at once; `false`: from [`Self::ready`] on.
    pub(super) fn add(&mut self, now: SimTime) -> Result<(u32, bool), engine::ConfigError> {
        self.count(now);
        let number = self.build(now)?;
        let at_once = self.spec.startup.is_zero();
        if at_once {
            self.activate(number);
        } else {
            self.starting.push(number);
        }
        Ok((number, at_once))
    }

    /// A starting worker is ready; `false`: it was called off.
    pub(super) fn ready(&mut self, number: u32, now: SimTime) -> bool {
        let Some(at) = self.starting.iter().position(|&other| other == number) else {
            return false;
        };
        self.starting.remove(at);
        self.activate(number);
        for rank in &mut self.worker(number).ranks {
            rank.silent_since = now;
        }
        true
    }

    /// Takes one worker away: a starting one if there is one, else an active one, which drains; the highest number first.
    pub(super) fn take_one(&mut self, now: SimTime) {
        self.count(now);
        if let Some(number) = self.starting.pop() {
            self.workers[number as usize] = None;
        } else if let Some(number) = self.active.pop() {
            self.router.drain(number);
            self.draining.push(number);
        }
    }

    /// Draining workers that have nothing left go, each handed to `farewell`.
    pub(super) fn sweep(&mut self, now: SimTime, mut farewell: impl FnMut(Worker)) {
        if self.draining.is_empty() {
            return;
        }
        self.count(now);
        let workers = &mut self.workers;
        let router = &mut self.router;
        self.draining.retain(|&number| {
            let slot = &mut workers[number as usize];
            let rests = slot.as_ref().is_some_and(|worker| worker.is_at_rest());
            if rests && let Some(worker) = slot.take() {
                router.remove(number);
                farewell(*worker);
            }
            !rests
        });
    }

    /// Adds up worker time until `now`.
    #[allow(clippy::cast_precision_loss)]
    fn count(&mut self, now: SimTime) {
        let workers = self.active.len() + self.starting.len() + self.draining.len();
        self.worker_ms += now.ms_since(self.counted) * workers as f64;
        self.counted = now;
    }

    /// Time of all workers until `now`, seconds.
    pub(super) fn worker_seconds(&mut self, now: SimTime) -> f64 {
        self.count(now);
        self.worker_ms / 1e3
    }

    /// Whether its workers use memory that others use, too.
    pub(super) fn shares(&self) -> bool {
        self.spec.engine.tiers.is_some_and(|tiers| tiers.is_shared())
    }

    /// Of the workers without a pass that share memory: who has to look at it when, by number.
    pub(super) fn looks(&self) -> impl Iterator<Item = (u32, SimTime)> {
        let numbered = (0..).zip(&self.workers);
        let idle = numbered.filter_map(|(number, worker)| Some((number, worker.as_deref()?)));
        let idle = idle.filter(|(_, worker)| worker.shares() && !worker.busy);
        idle.filter_map(|(number, worker)| Some((number, worker.wakes_at(true)?)))
    }

    /// What disks of its workers have done.
    pub(super) fn disks(&self) -> impl Iterator<Item = DiskUse> {
        self.workers.iter().flatten().filter_map(|worker| worker.disk())
    }

    /// Every worker that is there, with its number.
    pub(super) fn workers(&mut self) -> impl Iterator<Item = (u32, &mut Worker)> {
        let numbered = (0..).zip(&mut self.workers);
        numbered.filter_map(|(number, worker)| Some((number, worker.as_deref_mut()?)))
    }
}
