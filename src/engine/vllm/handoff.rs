//! Both ends of a handoff in the vLLM scheduler.
//!
//! A source that has brought its token keeps its blocks in use until it is released. Destinations get blocks in the order
//! of their requests, the first only, whenever capacity changes; an activated one is admitted like any other request,
//! with its prompt computed.

use crate::types::{EngineRequest, RequestId, SimTime};

use super::super::Pass;
use super::super::config::{Semantics, WorkerRole};
use super::super::handoff::{Desk, Handoff, HandoffFact, HandoffRefused, Reserves};
use super::{Phase, Vllm};

impl Handoff for Vllm {
    fn submit_source(&mut self, request: EngineRequest, now: SimTime) -> Result<(), HandoffRefused> {
        let id = request.id;
        self.refuse_reserving()?;
        super::Engine::submit(self, request, now)?;
        if let Some(&at) = self.ids.get(&id) {
            self.slots[at].keeps_blocks = true;
        }
        Ok(())
    }

    fn reserve_destination(&mut self, request: EngineRequest, now: SimTime) -> Result<(), HandoffRefused> {
        self.refuse_reserving()?;
        let prompt_len = request.prompt.len();
        if self.rules.blocks(prompt_len) > self.pool.capacity() {
            return Err(HandoffRefused::PromptTooLarge);
        }
        self.rules.fits(prompt_len).map_err(HandoffRefused::Rejected)?;
        let at = self.enlist(request)?;
        let slot = &mut self.slots[at];
        slot.sequence.arrival = now;
        slot.phase = Phase::Pending;
        slot.place = self.waiting.place(slot.sequence.priority, now);
        slot.destination = true;
        self.queued_decode.add(slot.sequence.len());
        self.desk.line_up(at);
        self.after_command(now);
        Ok(())
    }

    fn activate_destination(&mut self, id: RequestId) -> bool {
        let Some(&at) = self.ids.get(&id) else { return false };
        if self.slots[at].phase != Phase::Reserved {
            return false;
        }
        let slot = &mut self.slots[at];
        slot.phase = Phase::Waiting;
        slot.resident = true;
        let prompt_len = slot.sequence.prompt_len();
        slot.sequence.computed = prompt_len;
        match self.rules.semantics {
            Semantics::V1_6_1 => slot.place = self.waiting.put(slot.place, at),
            Semantics::V1_4_2 => slot.place = self.waiting.push(at, slot.sequence.priority, slot.sequence.arrival),
        }
        self.waiting.note_resident(slot.place, at);
        self.desk.settled();
        if self.rules.prefix_caching {
            let free = self.pool.available();
            let mut unheard = std::mem::take(&mut self.unheard);
            self.register(at, prompt_len / self.rules.block_size, &mut unheard);
            self.unheard = unheard;
            if self.pool.available() > free {
                // Blocks that others have, too, are shared from now on.
                self.desk.room_came();
            }
        }
        self.blocked_at = None;
        self.reserve_first();
        true
    }

    fn release_source(&mut self, id: RequestId) -> bool {
        let Some(&at) = self.ids.get(&id) else { return false };
        if self.slots[at].phase != Phase::Held {
            return false;
        }
        self.ids.remove(&id);
        if let Some(mut slot) = self.slots.remove(at) {
            self.pool.release(&mut slot.sequence.table);
        }
        self.room_came();
        self.reserve_first();
        true
    }

    fn take_handoff_facts(&mut self, now: SimTime, facts: &mut Vec<HandoffFact>) {
        self.take_facts(now, facts);
    }
}

impl Reserves for Vllm {
    fn desk(&mut self) -> &mut Desk {
        &mut self.desk
    }

    fn reserve_first(&mut self) {
        self.below.over = false;
        let Some(at) = self.desk.first() else { return };
        if self.lanes.len() >= self.rules.max_num_seqs {
            self.desk.missed();
            return;
        }
        let referenced = self.find_whole_prefix(at);
        let sequence = &self.slots[at].sequence;
        let hits = u32::try_from(self.scratch.hits.len()).unwrap_or(u32::MAX);
        let (id, wanted) = (sequence.id, self.rules.blocks(sequence.len()));
        if wanted - referenced > self.pool.available() {
            self.desk.missed();
            return;
        }
        if !self.take_for_kv(at, wanted - hits) {
            self.desk.missed();
            return;
        }
        self.slots[at].phase = Phase::Reserved;
        self.desk.reserved(HandoffFact::DestinationReserved {
            id,
            transferable_prompt_tokens: (wanted - hits) * self.rules.block_size,
        });
    }
}

impl Vllm {
    /// Nothing can run: tries the first destination once more; returns whether there is something to tell.
    pub(super) fn end_idle(&mut self, pass: &mut Pass) -> bool {
        let told = self.tell_lower(pass);
        let silent = self.rules.role == WorkerRole::Decode;
        if told && !silent {
            self.tell_earlier(pass);
        }
        let waits = !(self.waiting.is_empty() && self.below.parked.head().is_none());
        let tries = (waits && self.rules.semantics == Semantics::V1_6_1) || self.below.over;
        let told = (tries && self.reserve_idle()) || told;
        if told && !silent {
            // What was evicted for the destination comes last.
            pass.kv_events.append(&mut self.unheard.kv_events);
            pass.cache_changes.append(&mut self.unheard.cache_changes);
            pass.stored.append(&mut self.unheard.stored);
        }
        told
    }

    /// What commands have changed comes before what a pass does.
    pub(super) fn tell_earlier(&mut self, pass: &mut Pass) {
        if self.unheard.kv_events.is_empty() {
            return;
        }
        pass.kv_events.splice(0..0, self.unheard.kv_events.drain(..));
        pass.cache_changes.splice(0..0, self.unheard.cache_changes.drain(..));
        pass.stored.splice(0..0, self.unheard.stored.drain(..));
    }

    /// Keeps the blocks of a finished source.
    pub(super) fn hold(&mut self, at: u32) {
        let slot = &mut self.slots[at];
        slot.phase = Phase::Held;
        self.desk.held(HandoffFact::SourceHeld {
            id: slot.sequence.id,
            prompt_tokens: slot.sequence.prompt_len(),
        });
    }

    /// Gives a destination its blocks: those of `scratch.hits` and `fresh` more. KV that arrives writes at once, so `false`,
    /// and nothing is taken but what was evicted, if some of them are still read by a transfer.
    fn take_for_kv(&mut self, at: u32, fresh: u32) -> bool {
        let earlier = self.pool.take_readers();
        let table = &mut self.slots[at].sequence.table;
        self.pool.adopt(table, &self.scratch.hits);
        // Not named before the KV is there.
        let taken = self.pool.take(table, &[], fresh, &mut self.unheard.kv_events);
        debug_assert!(taken, "a destination is reserved when its blocks fit");
        let is_read = !self.pool.take_readers().is_empty();
        if is_read {
            self.pool.release(table);
        }
        if let Some(tiers) = &mut self.tiers {
            self.below.taken = true;
            for id in earlier {
                tiers.wait_for(id);
            }
        }
        let mut unheard = std::mem::take(&mut self.unheard);
        self.note_changes(at, &mut unheard);
        self.unheard = unheard;
        !is_read
    }

    /// A destination that has not started leaves.
    pub(super) fn forget_destination(&mut self, at: u32) {
        if self.slots[at].phase == Phase::Reserved {
            self.desk.settled();
        }
        self.desk.forget(at);
        self.queued_decode.remove(self.slots[at].sequence.len());
    }

    fn refuse_reserving(&self) -> Result<(), HandoffRefused> {
        if self.rules.keeps_last_token {
            Ok(())
        } else {
            Err(HandoffRefused::Unsupported("trtllm"))
        }
    }
}
