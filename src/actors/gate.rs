//! `Gate`: the door of one worker. Planes hand requests in here from any thread; it picks the rank and posts the
//! request to the rank's mailbox.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use actix::Addr;
use actix::dev::SendError;

use super::clock::Clock;
use super::gate_faults;
use super::gauge::RankGauge;
use super::plan::GroupPlan;
use super::rank::{Cancel, Rank, Submit};
use crate::engine::Fidelity;
use crate::faults::WorkerFaults;
use crate::transport::intake::{Intake, Refusal, Submission};
use crate::transport::recorded::RecordedAnswers;
use crate::types::{DpRank, RequestId, Tokens};

/// What a waiting request counts against a rank, in running ones. Source: the data-parallel balancer of vLLM 0.32.0.
const WAITING_WEIGHT: u64 = 4;

/// Way in to the ranks of one worker.
#[derive(Debug)]
pub struct Gate {
    clock: Clock,
    gauges: Vec<Arc<RankGauge>>,
    faults: Arc<WorkerFaults>,
    ranks: RwLock<Vec<Option<Addr<Rank>>>>,
    next_rank: AtomicU32,
    /// The least loaded rank is chosen; else they take turns.
    by_load: bool,
    recorded: Option<Arc<RecordedAnswers>>,
    /// LoRA adapters that are served; with none listed any name is.
    adapters: Vec<Arc<str>>,
}

impl Gate {
    /// A door without ranks behind it yet; those to come have these gauges. The real engine gives a request without a
    /// rank to the least loaded one, the peer's emulator turn by turn.
    pub(super) fn new(group: &GroupPlan, clock: Clock, gauges: Vec<Arc<RankGauge>>, faults: Arc<WorkerFaults>) -> Self {
        Self {
            clock,
            gauges,
            faults,
            ranks: RwLock::default(),
            next_rank: AtomicU32::new(0),
            by_load: group.engine.fidelity == Fidelity::Real,
            recorded: group.recorded.clone(),
            adapters: group.adapters.iter().map(|adapter| Arc::clone(&adapter.name)).collect(),
        }
    }

    /// The rank for a request, out of `size`, which is not 0.
    fn choose(&self, asked: Option<DpRank>, size: u32) -> Result<u32, Refusal> {
        match asked {
            Some(DpRank(rank)) if rank >= size => Err(Refusal::Invalid(format!(
                "dp_rank {rank} is out of bounds for dp_size {size}"
            ))),
            Some(DpRank(rank)) => Ok(rank),
            None => {
                let turn = self.next_rank.fetch_add(1, Ordering::Relaxed) % size;
                let load = |rank: &u32| match self.gauges.get(*rank as usize) {
                    Some(gauge) if self.by_load => gauge.pressure(WAITING_WEIGHT),
                    Some(_) | None => 0,
                };
                // Equal ranks take turns.
                let ranks = (0..size).map(|step| (turn + step) % size);
                Ok(ranks.min_by_key(load).unwrap_or(turn))
            }
        }
    }

    fn size(ranks: &[Option<Addr<Rank>>]) -> Result<u32, Refusal> {
        let size = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
        if size == 0 { Err(Refusal::Unavailable) } else { Ok(size) }
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
    fn knock(&self, client_id: &str) -> Result<(), Refusal> {
        self.faults.note_arrival(client_id);
        gate_faults::knock(&self.faults)
    }

    fn submit(&self, submission: Submission) -> Result<(), Refusal> {
        let ranks = self.ranks.read().unwrap_or_else(PoisonError::into_inner);
        let rank = self.choose(submission.dp_rank, Self::size(&ranks)?)?;
        if let Some(name) = &submission.request.salt.lora_name
            && !(self.adapters.is_empty() || self.adapters.contains(name))
        {
            return Err(Refusal::Invalid(format!(
                "the LoRA adapter {name:?} is not served here"
            )));
        }
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

    fn choose_rank(&self, asked: Option<DpRank>) -> Result<DpRank, Refusal> {
        let ranks = self.ranks.read().unwrap_or_else(PoisonError::into_inner);
        self.choose(asked, Self::size(&ranks)?).map(DpRank)
    }

    fn recorded(&self, name: &str) -> Option<Tokens> {
        let found = self.recorded.as_ref().and_then(|recorded| recorded.get(name));
        if found.is_none() {
            metrics::counter!("ghostfleet_unknown_recordings_total").increment(1);
            tracing::warn!(answer = name, "no such recorded answer; tokens are drawn instead");
        }
        found.cloned()
    }

    fn cancel(&self, id: RequestId) {
        let ranks = self.ranks.read().unwrap_or_else(PoisonError::into_inner);
        for address in ranks.iter().flatten() {
            // Past the mailbox's bound: a cancellation frees what the bound protects.
            address.do_send(Cancel(id));
        }
    }
}
