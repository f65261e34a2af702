//! What becomes of event messages under faults, whatever they say and whatever plane they are for: lost, sent again, held
//! back, shuffled, late, under another name.

use std::time::Duration;

use bytes::Bytes;

use crate::faults::draw::Dice;
use crate::faults::kind::{EventFault, OnTheWay};
use crate::faults::table::Due;
use crate::types::span_of_ms;

/// Messages that a fault may hold back; further ones are lost.
const MAX_HELD: usize = 4096;

/// Bytes that are flipped in a corrupt message, at most.
const FLIPPED: u64 = 8;

/// What becomes of a message.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Sent<M> {
    /// On the wire, now.
    Now(M),
    /// On the wire, later.
    Later(M, Duration),
    /// On the wire, under another publisher's id.
    Stale(M),
    /// Lost on the way: its number is used.
    Lost,
}

/// One publisher's messages on their way.
#[derive(Debug)]
pub(super) struct Ways<M> {
    /// Until the fault ends.
    held: Vec<M>,
    /// Until the window is full.
    window: Vec<M>,
    messages: u64,
}

impl<M> Default for Ways<M> {
    fn default() -> Self {
        Self {
            held: Vec::new(),
            window: Vec::new(),
            messages: 0,
        }
    }
}

impl<M: Clone> Ways<M> {
    /// Messages that are held back.
    pub(super) fn held(&self) -> usize {
        self.held.len() + self.window.len()
    }

    /// Dice of the next message, out of those of its publisher.
    pub(super) fn next_dice(&mut self, dice: Dice) -> Dice {
        self.messages += 1;
        Dice::new(dice.bits(self.messages), 0)
    }

    /// Passes a message through the faults; what goes out, in order.
    pub(super) fn pass(&mut self, message: M, faults: &[Due<EventFault>], dice: Dice) -> Vec<Sent<M>> {
        if let Some(drop) = dropping(faults) {
            drop.happened();
            return vec![Sent::Lost];
        }
        let on_the_way = || faults.iter().filter_map(|due| Some((due, due.on_the_way()?)));
        if let Some((hold, _)) = on_the_way().find(|(_, way)| *way == OnTheWay::Hold) {
            if self.held.len() >= MAX_HELD {
                return vec![Sent::Lost];
            }
            hold.happened();
            self.held.push(message);
            return Vec::new();
        }
        let mut ready = vec![message];
        for (due, way) in on_the_way() {
            if let OnTheWay::Reorder(window) = way {
                due.happened();
                self.window.append(&mut ready);
                if self.window.len() >= window as usize {
                    ready = std::mem::take(&mut self.window);
                    dice.shuffle(&mut ready);
                }
            }
        }
        if ready.is_empty() {
            return Vec::new();
        }
        let (mut copies, mut wait, mut stale) = (1, None, false);
        for (due, way) in on_the_way() {
            match way {
                OnTheWay::Duplicate(extra) => copies += extra,
                OnTheWay::Delay(ms, jitter_ms) => {
                    let ms = ms + jitter_ms * dice.unit(1);
                    wait = Some(span_of_ms(ms));
                }
                OnTheWay::StaleEpoch => stale = true,
                // They have been seen to.
                OnTheWay::Drop | OnTheWay::Hold | OnTheWay::Reorder(_) => continue,
            }
            due.happened();
        }
        let mut sent = Vec::new();
        for message in ready {
            for _ in 0..copies {
                sent.push(match (stale, wait) {
                    (true, _) => Sent::Stale(message.clone()),
                    (false, Some(wait)) => Sent::Later(message.clone(), wait),
                    (false, None) => Sent::Now(message.clone()),
                });
            }
        }
        sent
    }

    /// What was held back goes out when its fault has ended.
    pub(super) fn release(&mut self, in_force: &[EventFault]) -> Vec<M> {
        let has = |wanted: fn(OnTheWay) -> bool| in_force.iter().filter_map(EventFault::on_the_way).any(wanted);
        let mut out = Vec::new();
        if !has(|way| way == OnTheWay::Hold) {
            out.append(&mut self.held);
        }
        if !has(|way| matches!(way, OnTheWay::Reorder(_))) {
            out.append(&mut self.window);
        }
        out
    }
}

/// The fault because of which a message is lost, if there is one.
pub(super) fn dropping(faults: &[Due<EventFault>]) -> Option<&Due<EventFault>> {
    faults.iter().find(|due| due.on_the_way() == Some(OnTheWay::Drop))
}

/// The same bytes, some of them flipped.
pub(super) fn corrupt(bytes: &Bytes, dice: Dice) -> Bytes {
    let mut bytes = bytes.to_vec();
    for n in 0..FLIPPED {
        let at = usize::try_from(dice.bits(n)).unwrap_or(0) % bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 0xa5;
        }
    }
    bytes.into()
}
