//! Memory that workers share: what one does to it, others see at once.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::super::source::Source;
use super::pool::Pool;
use super::{Harness, Place};
use crate::engine::{DiskUse, SharedMemory};
use crate::types::SimTime;

/// Looks at one instant after which something is wrong: transfers that take no time and never end.
const MOST_LOOKS: u32 = 100_000;

/// What workers share.
pub(super) struct Sharing {
    pub(super) memory: SharedMemory,
    /// Some workers use memory that others use, too.
    pub(super) any: bool,
    /// Of these, idle ones that could not start a pass: each look of theirs is a use of what they share.
    pub(super) stuck: BTreeSet<Place>,
}

impl Sharing {
    pub(super) fn new(memory: SharedMemory, pools: &[Pool]) -> Self {
        Self {
            memory,
            any: pools.iter().any(Pool::shares),
            stuck: BTreeSet::new(),
        }
    }
}

impl Harness {
    /// When a worker without a pass has to look at memory that it shares.
    pub(super) fn next_look(&self) -> Option<SimTime> {
        if !self.sharing.any {
            return None;
        }
        let looks = self.pools.iter().flat_map(Pool::looks);
        looks.map(|(_, at)| at).min()
    }

    /// Workers without a pass look at memory that they share, the lowest number first, until nobody sees anything new.
    pub(super) fn look_at_shared(&mut self) {
        if !self.sharing.any {
            return;
        }
        for _ in 0..MOST_LOOKS {
            let mut any = false;
            for pool in 0..self.pools.len() {
                let mut next = 0;
                while let Some(worker) = self.first_look(pool, next) {
                    any = true;
                    next = worker + 1;
                    let pool = u8::try_from(pool).unwrap_or(u8::MAX);
                    self.wake(Place { pool, worker });
                }
            }
            if !any {
                return;
            }
        }
        let at_ms = self.now.as_ms();
        self.fail(super::ReplayError::EndlessTransfers(at_ms));
    }

    /// The first worker from `next` on that has to look now.
    fn first_look(&self, pool: usize, next: u32) -> Option<u32> {
        let due = |&(number, at): &(u32, SimTime)| number >= next && at <= self.now;
        self.pools[pool].looks().find(due).map(|(number, _)| number)
    }

    /// [`Harness::start_ready`] for workers that share memory: those that could not start are tried again whenever another
    /// one has started. Source: Dynamo 1.6.1 offline replay.
    pub(super) fn start_sharers(&mut self, source: &mut dyn Source) {
        loop {
            let mut ready: BTreeSet<Place> = std::mem::take(&mut self.sharing.stuck);
            for place in std::mem::take(&mut self.ready) {
                self.pools[place.pool as usize].worker(place.worker).listed = false;
                ready.insert(place);
            }
            let mut started = false;
            while let Some(place) = ready.pop_first() {
                let pool = &mut self.pools[place.pool as usize];
                // A look alone is no step.
                if !pool.has(place.worker) || pool.worker(place.worker).busy || !pool.worker(place.worker).is_ready() {
                    continue;
                }
                self.start(place);
                let worker = self.pools[place.pool as usize].worker(place.worker);
                if worker.busy {
                    started = true;
                    break;
                }
                if worker.is_ready() {
                    self.sharing.stuck.insert(place);
                }
            }
            // The others have their turn in the next round.
            for place in ready {
                self.list(place);
            }
            if !started {
                return;
            }
            if let Some(&Reverse((at, place))) = self.passes.peek()
                && at <= self.now
            {
                self.passes.pop();
                self.finish_pass(place, source);
            }
        }
    }

    /// What disks have done: the one that workers share, or those of all workers.
    pub(super) fn disk(&self) -> Option<DiskUse> {
        let mut all = self.sharing.memory.disk();
        if let Some(gone) = &self.disk_of_gone {
            all.get_or_insert_default().add(gone);
        }
        for own in self.pools.iter().flat_map(Pool::disks) {
            all.get_or_insert_default().add(&own);
        }
        all
    }

    /// Nobody has a request any more: what is on its way arrives.
    pub(super) fn rest_shared(&mut self) {
        while self.fault.is_none()
            && let Some(at) = self.next_look()
        {
            self.now = self.now.max(at);
            self.look_at_shared();
        }
    }
}
