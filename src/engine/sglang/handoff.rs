//! Both ends of a handoff in the SGLang scheduler.
//!
//! A source that has brought its token keeps its pages until it is released. A destination gets its pages when they are
//! there, the prompt's cached start included; once its KV has arrived it goes ahead of all prompts. In Dynamo's emulator
//! it decodes like any other request from then on; SGLang brings its first token, which the prefill side has computed,
//! with the next pass.

use crate::types::{EngineRequest, RequestId, SimTime};

use super::super::forward::Lengths;
use super::super::handoff::{Desk, Handoff, HandoffFact, HandoffRefused, Reserves};
use super::super::{Admission, Engine, PageChangeKind, Pass, Rejected};
use super::{Part, Phase, Sglang};

impl Handoff for Sglang {
    fn submit_source(&mut self, request: EngineRequest, now: SimTime) -> Result<(), HandoffRefused> {
        let id = request.id;
        Engine::submit(self, request, now)?;
        if let Some(&at) = self.ids.get(&id) {
            self.slots[at].keeps_pages = true;
        }
        Ok(())
    }

    fn reserve_destination(&mut self, request: EngineRequest, now: SimTime) -> Result<(), HandoffRefused> {
        let prompt_len = request.prompt.len();
        if self.rules.pages(prompt_len) > self.rules.pages {
            return Err(HandoffRefused::PromptTooLarge);
        }
        let at = self.enlist(request, now)?;
        if let Some(reason) = self.slots[at].refused.take() {
            self.forget(at);
            return Err(HandoffRefused::Rejected(reason));
        }
        self.slots[at].phase = Phase::Pending;
        self.queued_decode.add(prompt_len);
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
        slot.phase = Phase::Ready;
        let fresh = self.rules.pages(slot.sequence.prompt_len()) - slot.cached;
        if !self.rules.is_real() {
            let start = slot.cached * self.rules.page;
            let take = slot.sequence.prompt_len() - start;
            self.hold_pages(Part {
                at,
                start,
                take,
                whole: true,
            });
        }
        let free = self.free_pages;
        self.share(at);
        if self.free_pages > free {
            // Pages that are cached already are shared from now on.
            self.desk.room_came();
        }
        self.note_pages(PageChangeKind::ActivateDestination, fresh);
        self.desk.settled();
        self.ready.push_back(at);
        self.full = false;
        self.reserve_first();
        true
    }

    fn release_source(&mut self, id: RequestId) -> bool {
        let Some(&at) = self.ids.get(&id) else { return false };
        if self.slots[at].phase != Phase::Held {
            return false;
        }
        self.held -= 1;
        self.full = false;
        self.finish(at);
        self.desk.room_came();
        self.reserve_first();
        true
    }

    fn take_handoff_facts(&mut self, now: SimTime, facts: &mut Vec<HandoffFact>) {
        self.take_facts(now, facts);
    }
}

impl Reserves for Sglang {
    fn desk(&mut self) -> &mut Desk {
        &mut self.desk
    }

    fn reserve_first(&mut self) {
        let Some(at) = self.desk.first() else { return };
        let found = self.find_prefix(at, 0);
        // Pinned pages cannot be evicted for it.
        self.cache.lock(found.node);
        let prompt_len = self.slots[at].sequence.prompt_len();
        let fresh = self.rules.pages(prompt_len) - found.pages;
        if i64::from(fresh) * i64::from(self.rules.page) > self.obtainable() {
            self.cache.unlock(found.node);
            self.desk.missed();
            return;
        }
        self.take_pages_as(0, fresh, PageChangeKind::ReserveDestination);
        let slot = &mut self.slots[at];
        slot.node = found.node;
        slot.cached = found.pages;
        slot.sequence.computed = prompt_len;
        slot.phase = Phase::Reserved;
        self.desk.reserved(HandoffFact::DestinationReserved {
            id: slot.sequence.id,
            transferable_prompt_tokens: fresh * self.rules.page,
        });
    }
}

impl Sglang {
    /// Keeps the pages of a finished source.
    pub(super) fn hold(&mut self, at: u32) {
        let slot = &mut self.slots[at];
        slot.phase = Phase::Held;
        self.held += 1;
        self.desk.held(HandoffFact::SourceHeld {
            id: slot.sequence.id,
            prompt_tokens: slot.sequence.prompt_len(),
        });
    }

    /// Destinations with their KV start, as far as there are places.
    pub(super) fn start_ready(&mut self, pass: &mut Pass) {
        while self.running.len() + self.arrived.len() < self.rules.max_running
            && let Some(at) = self.ready.pop_front()
        {
            self.queued_decode.remove(self.slots[at].sequence.len());
            let slot = &mut self.slots[at];
            pass.admissions.push(Admission {
                id: slot.sequence.id,
                cached_tokens: 0,
                from_host: None,
                again: std::mem::replace(&mut slot.admitted_before, true),
            });
            if self.rules.is_real() {
                self.arrived.push(at);
            } else {
                self.join(at, true);
            }
        }
    }

    /// Hands out the first tokens that came with the KV; returns whether there were any.
    pub(super) fn bring_arrived(&mut self, pass: &mut Pass) -> bool {
        let arrived = std::mem::take(&mut self.arrived);
        for &at in &arrived {
            self.first_token(at, pass);
        }
        !arrived.is_empty()
    }

    /// Takes a request out of the handoff it is in, before it goes.
    pub(super) fn leave_handoff(&mut self, at: u32) {
        let length = self.slots[at].sequence.len();
        match self.slots[at].phase {
            Phase::Held => self.held -= 1,
            Phase::Pending => {
                self.desk.forget(at);
                self.queued_decode.remove(length);
            }
            Phase::Reserved => {
                self.desk.settled();
                self.queued_decode.remove(length);
            }
            Phase::Ready => {
                self.ready.retain(|&other| other != at);
                self.queued_decode.remove(length);
            }
            Phase::Waiting | Phase::Chunked | Phase::Prefilling | Phase::Decoding => {
                debug_assert!(false, "these phases are no part of a handoff");
            }
        }
        self.full = false;
        self.desk.room_came();
    }

    /// Takes a request in, on no list yet.
    pub(super) fn enlist(&mut self, request: EngineRequest, now: SimTime) -> Result<u32, Rejected> {
        if self.ids.contains_key(&request.id) {
            return Err(Rejected::Duplicate(request.id));
        }
        let (max_new, refused) = match self.rules.max_new(&request) {
            Ok(max_new) => (max_new, None),
            Err(reason @ Rejected::PromptTooLong { .. }) if !self.rules.is_real() => (0, Some(reason)),
            Err(reason) => return Err(reason),
        };
        let slot = self.slot(request, max_new, refused, now);
        let id = slot.sequence.id;
        let at = self.slots.insert(slot);
        self.ids.insert(id, at);
        Ok(at)
    }

    /// Requests of handoffs that will move when they are told to.
    pub(super) fn in_handoff(&self) -> usize {
        self.held + self.desk.waiting() + self.ready.len()
    }

    /// Whether handoffs hold memory that will come back or be decoded in.
    pub(super) fn handoffs_hold_memory(&self) -> bool {
        self.held > 0 || self.desk.has_reserved() || !self.ready.is_empty()
    }

    /// Adds a request to, or removes it from, the lengths of those that wait.
    pub(super) fn queued(&mut self, at: u32, change: fn(&mut Lengths, u32)) {
        let sequence = &self.slots[at].sequence;
        let lengths = if sequence.generated == 0 {
            &mut self.queued_prefill
        } else {
            &mut self.queued_decode
        };
        change(lengths, sequence.len());
    }
}
