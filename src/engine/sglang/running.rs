//! The running batch: who decodes, without touching anybody in a step that changes nothing.
//!
//! Every decode step gives every running request one token, so the tokens that a request has in the pool are
//! `step + offset` and nobody has to count them up. How many need a new page in a step is kept by remainder.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::types::{FinishReason, RequestId};

use super::super::calendar::Calendar;
use super::super::forward::Lengths;
use super::super::totals::Totals;

/// One running request.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    /// Number of its admission; ascending along the list.
    pub(super) ordinal: u64,
    pub(super) slot: u32,
    pub(super) id: RequestId,
    /// Stream of a request whose tokens are drawn without masks.
    pub(super) plain: Option<u64>,
    /// Tokens in the pool before decode step `s` are `s + offset`.
    pub(super) offset: i64,
    /// Its next token is its first.
    pub(super) first: bool,
    /// Tokens of the step; more than one only with speculative decoding.
    pub(super) burst: u32,
    /// Set in the step that brings the last token.
    pub(super) finish: Option<FinishReason>,
}

/// Running requests in admission order. Finding one is O(log n), adding O(1), removing moves the entries behind.
#[derive(Debug)]
pub(super) struct Running {
    lanes: Vec<Lane>,
    next_ordinal: u64,
    /// Number of the next decode step.
    pub(super) step: i64,
    /// When something happens to whom.
    pub(super) calendar: Calendar,
    totals: Totals,
    /// Tokens of a request without a place in the pool.
    lag: i64,
    /// Requests by `offset` modulo the page size.
    remainders: HashMap<i64, u32, FxBuildHasher>,
    page: i64,
}

impl Running {
    /// Requests know `lag` tokens more than they have in the pool.
    pub(super) fn new(page: u32, lag: u32) -> Self {
        Self {
            lanes: Vec::new(),
            next_ordinal: 0,
            step: 0,
            calendar: Calendar::default(),
            totals: Totals::default(),
            lag: i64::from(lag),
            remainders: HashMap::default(),
            page: i64::from(page),
        }
    }

    /// Adds a request with `held` tokens in the pool, without its `ordinal`, which it returns.
    pub(super) fn push(&mut self, held: u32, mut lane: Lane) -> u64 {
        lane.ordinal = self.next_ordinal;
        lane.offset = i64::from(held) - self.step;
        self.next_ordinal += 1;
        self.totals.add(lane.offset + self.lag);
        *self.remainders.entry(lane.offset.rem_euclid(self.page)).or_insert(0) += 1;
        self.lanes.push(lane);
        self.next_ordinal - 1
    }

    /// The request at list position `index` got `extra` tokens more than one in the last step.
    pub(super) fn extend(&mut self, index: usize, extra: u32) {
        let lane = &mut self.lanes[index];
        self.totals.remove(lane.offset + self.lag);
        let before = lane.offset.rem_euclid(self.page);
        lane.offset += i64::from(extra);
        self.totals.add(lane.offset + self.lag);
        let after = lane.offset.rem_euclid(self.page);
        self.uncount(before);
        *self.remainders.entry(after).or_insert(0) += 1;
    }

    fn uncount(&mut self, remainder: i64) {
        match self.remainders.get_mut(&remainder) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) | None => drop(self.remainders.remove(&remainder)),
        }
    }

    /// Takes out the request at list position `index`; returns it with its tokens in the pool.
    pub(super) fn remove(&mut self, index: usize) -> (Lane, u32) {
        let lane = self.lanes.remove(index);
        self.totals.remove(lane.offset + self.lag);
        self.uncount(lane.offset.rem_euclid(self.page));
        let held = self.held(&lane);
        (lane, held)
    }

    /// Puts the requests with these ordinals into this order, with new ordinals.
    pub(super) fn reorder(&mut self, order: impl Iterator<Item = u64>) {
        let mut lanes = Vec::with_capacity(self.lanes.len());
        for ordinal in order {
            let Some(index) = self.find(ordinal) else { continue };
            let mut lane = self.lanes[index].clone();
            lane.ordinal = self.next_ordinal;
            self.next_ordinal += 1;
            lanes.push(lane);
        }
        debug_assert_eq!(lanes.len(), self.lanes.len(), "an order names everybody");
        self.lanes = lanes;
    }

    pub(super) fn find(&self, ordinal: u64) -> Option<usize> {
        self.lanes.binary_search_by_key(&ordinal, |lane| lane.ordinal).ok()
    }

    /// Tokens of a running request in the pool before the next step.
    pub(super) fn held(&self, lane: &Lane) -> u32 {
        u32::try_from(self.step + lane.offset).unwrap_or(0)
    }

    /// Pages that the next step takes.
    pub(super) fn pages_due(&self) -> u32 {
        let remainder = (-self.step).rem_euclid(self.page);
        self.remainders.get(&remainder).copied().unwrap_or(0)
    }

    /// Lengths of all before the next step.
    pub(super) fn lengths(&self) -> Lengths {
        self.totals.lengths(self.step)
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.lanes.len()).unwrap_or(u32::MAX)
    }
}

impl std::ops::Deref for Running {
    type Target = [Lane];
    fn deref(&self) -> &[Lane] {
        &self.lanes
    }
}

impl std::ops::DerefMut for Running {
    fn deref_mut(&mut self) -> &mut [Lane] {
        &mut self.lanes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(slot: u32) -> Lane {
        Lane {
            ordinal: 0,
            slot,
            id: RequestId(u64::from(slot)),
            plain: None,
            offset: 0,
            first: false,
            burst: 1,
            finish: None,
        }
    }

    #[test]
    fn lengths_and_pages_follow_the_steps_without_touching_anybody() {
        let mut running = Running::new(4, 1);
        for (slot, held) in [(0, 8), (1, 5), (2, 7), (3, 12)] {
            running.push(held, lane(slot));
        }
        let mut expected = vec![8_u32, 5, 7, 12];
        for _ in 0..20 {
            let due = expected.iter().filter(|held| held.is_multiple_of(4)).count();
            assert_eq!(running.pages_due() as usize, due);
            assert_eq!(
                running.lengths().tokens,
                expected.iter().map(|&held| u64::from(held) + 1).sum::<u64>()
            );
            running.step += 1;
            for held in &mut expected {
                *held += 1;
            }
            if expected.len() > 2 {
                let (_, held) = running.remove(1);
                assert_eq!(held, expected.remove(1));
            }
        }
    }

    #[test]
    fn a_new_order_gives_new_ordinals() {
        let mut running = Running::new(1, 0);
        let ordinals: Vec<u64> = (0..3).map(|slot| running.push(10 + slot, lane(slot))).collect();
        running.reorder([ordinals[2], ordinals[0], ordinals[1]].into_iter());
        let order: Vec<(u32, u32)> = running.iter().map(|lane| (lane.slot, running.held(lane))).collect();
        assert_eq!(order, [(2, 12), (0, 10), (1, 11)]);
        assert!(ordinals.iter().all(|&ordinal| running.find(ordinal).is_none()));
        assert_eq!(running.find(running[1].ordinal), Some(1));
    }
}
