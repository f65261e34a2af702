//! `Gate`: the door of one worker. Planes hand requests in here from any thread; it picks the rank and posts the
//! request to the rank's mailbox.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use actix::Addr;
use actix::dev::SendError;

use super::clock::Clock;
use super::gate_faults;
use super::gauge::RankGauge;
use super::rank::{Cancel, Rank, Submit};
use crate::faults::WorkerFaults;
use crate::transport::intake::{Intake, Refusal, Submission};
use crate::types::{DpRank, RequestId};

/// Way in to the ranks of one worker.
#[derive(Debug)]
pub struct Gate {
    clock: Clock,
    gauges: Vec<Arc<RankGauge>>,
    faults: Arc<WorkerFaults>,
    ranks: RwLock<Vec<Option<Addr<Rank>>>>,
    next_rank: AtomicU32,
}

impl Gate {
    /// Nobody is behind the door yet; the ranks to come have these gauges.
    pub(super) fn new(clock: Clock, gauges: Vec<Arc<RankGauge>>, faults: Arc<WorkerFaults>) -> Self {
        Self {
            clock,
            gauges,
            faults,
            ranks: RwLock::default(),
            next_rank: AtomicU32::new(0),
        }
    }

    /// Puts a (new) rank behind the door, or takes it away.
    pub(super) fn set_rank(&self, rank: u32, address: Option<Addr<Rank>>) {
        let mut ranks = self.ranks.write().unwrap_or_else(PoisonError::into_inner);
        let index = rank as usize;
        if ranks.len() <= index {
            ranks.resize(index + 1, None);
        }
        if let (Some(_), Some(gauge)) = (&address, self.gauges.get(index)) {
            gauge.begin();
        }
        ranks[index] = address;
    }

    /// Closes the door for good.
    pub(super) fn close(&self) {
        self.ranks.write().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Intake for Gate {
    fn knock(&self) -> Result<(), Refusal> {
        gate_faults::knock(&self.faults)
    }

    fn submit(&self, submission: Submission) -> Result<(), Refusal> {
        let ranks = self.ranks.read().unwrap_or_else(PoisonError::into_inner);
        let size = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
        if size == 0 {
            return Err(Refusal::Unavailable);
        }
        let rank = match submission.dp_rank {
            Some(DpRank(rank)) if rank >= size => {
                return Err(Refusal::Invalid(format!(
                    "dp_rank {rank} is out of bounds for dp_size {size}"
                )));
            }
            Some(DpRank(rank)) => rank,
            // Turn by turn, as the peer does.
            None => self.next_rank.fetch_add(1, Ordering::Relaxed) % size,
        };
        let Some(address) = &ranks[rank as usize] else {
            return Err(Refusal::Unavailable);
        };
        let Some(submission) = gate_faults::admit(&self.faults, submission) else {
            return Ok(());
        };
        address.try_send(Submit(submission)).map_err(|error| match error {
            SendError::Full(_) => Refusal::Overloaded,
            SendError::Closed(_) => Refusal::Unavailable,
        })?;
        if let Some(gauge) = self.gauges.get(rank as usize) {
            gauge.count_posted(self.clock.now());
        }
        Ok(())
    }

    fn cancel(&self, id: RequestId) {
        let ranks = self.ranks.read().unwrap_or_else(PoisonError::into_inner);
        for address in ranks.iter().flatten() {
            // Past the mailbox's bound: a cancellation frees what the bound protects.
            address.do_send(Cancel(id));
        }
    }
}
