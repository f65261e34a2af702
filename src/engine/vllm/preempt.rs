//! Making room: a running request gives its blocks back and starts over.

use super::super::Pass;
use super::rules::Victim;
use super::{Phase, Visit, Vllm, Work};

/// Setbacks after which a request is spared while others are left. Without that, requests that recompute over several
/// passes can take each other's blocks for ever when the oldest one, or the oldest of equally urgent ones, gives way.
const MOST_SETBACKS: u32 = 16;

impl Vllm {
    /// List position of the next victim.
    pub(super) fn victim(&self) -> usize {
        let sequence = |index: usize| &self.slots[self.lanes[index].sequence].sequence;
        let urgency = |index: usize| (sequence(index).priority, sequence(index).arrival);
        match self.rules.victim {
            Victim::Newest => self.lanes.len() - 1,
            Victim::Oldest => self.first_unspared(0..self.lanes.len()),
            Victim::LeastUrgent => {
                let worst = (0..self.lanes.len()).map(urgency).max();
                self.first_unspared((0..self.lanes.len()).filter(|&index| Some(urgency(index)) == worst))
            }
        }
    }

    /// Whether a request has given way so often without getting anywhere that others do before it does again.
    pub(super) fn is_spared(&self, at: u32) -> bool {
        self.slots[at].setbacks.count >= MOST_SETBACKS
    }

    /// The first candidate that may be preempted once more, else the last one.
    fn first_unspared(&self, candidates: impl Iterator<Item = usize> + Clone) -> usize {
        let first = candidates
            .clone()
            .find(|&index| !self.is_spared(self.lanes[index].sequence));
        first.or_else(|| candidates.last()).unwrap_or(0)
    }

    /// Takes the request at list position `index` out of this pass and puts it back into the queue. Generated tokens
    /// stay, everything has to be computed again.
    pub(super) fn preempt(&mut self, index: usize, work: &mut Work, pass: &mut Pass) {
        let at = self.leave(index);
        self.wait_for_stores(at);
        let slot = &mut self.slots[at];
        slot.phase = Phase::Waiting;
        slot.sequence.computed = 0;
        slot.resident = false;
        let generated = slot.sequence.generated;
        let fruitless = generated == std::mem::replace(&mut slot.setbacks.generated, generated);
        slot.setbacks.count = if fruitless { slot.setbacks.count + 1 } else { 0 };
        self.pool.release(&mut slot.sequence.table);
        let visit = std::mem::take(&mut slot.visit);
        if visit.pass == self.pass {
            work.visited_tokens -= i64::from(visit.tokens);
            work.visited_lanes -= 1;
            if let Some(len) = visit.recomputed {
                work.recomputed.remove(len);
            }
            if let Some((isl, prefix)) = visit.prompt {
                work.prefill.lengths.remove(slot.sequence.prompt_len());
                work.prefill.tokens -= u64::from(visit.tokens);
                work.prefill.isl -= u64::from(isl);
                work.prefill.prefix -= u64::from(prefix);
            }
        }
        // A second look at a request that was visited and preempted in one pass must not happen: it is off the list.
        slot.visit = Visit::default();
        self.scratch.joined.retain(|&other| other != at);
        self.scratch.finishing.retain(|&other| other != at);
        self.scratch.filled.retain(|&(_, other, _)| other != at);
        self.queued_decode.add(slot.queued_len());
        slot.place = self.waiting.push_again(at, slot.place);
        work.preempted = true;
        pass.preempted.push(slot.sequence.id);
        self.preemptions += 1;
        self.room_came();
    }
}
