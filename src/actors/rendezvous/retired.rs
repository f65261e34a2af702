//! Ids of handoffs that are over.

use std::collections::VecDeque;
use std::time::Duration;

use rustc_hash::FxHashSet;
use uuid::Uuid;

use crate::types::SimTime;

/// Most ids that are remembered; the oldest go first.
const MAX_IDS: usize = 65_536;

/// Remembers ids for a while.
#[derive(Debug)]
pub(super) struct Retired {
    span: Duration,
    ids: FxHashSet<Uuid>,
    by_age: VecDeque<(SimTime, Uuid)>,
}

impl Retired {
    /// Remembers each id for `span`.
    pub(super) fn new(span: Duration) -> Self {
        Self {
            span,
            ids: FxHashSet::default(),
            by_age: VecDeque::new(),
        }
    }

    /// Remembers an id from `now` on.
    pub(super) fn add(&mut self, id: Uuid, now: SimTime) {
        self.forget(now);
        if self.by_age.len() == MAX_IDS
            && let Some((_, oldest)) = self.by_age.pop_front()
        {
            self.ids.remove(&oldest);
        }
        if self.ids.insert(id) {
            self.by_age.push_back((now, id));
        }
    }

    /// Whether an id is remembered.
    pub(super) fn contains(&mut self, id: Uuid, now: SimTime) -> bool {
        self.forget(now);
        self.ids.contains(&id)
    }

    fn forget(&mut self, now: SimTime) {
        while let Some(&(since, id)) = self.by_age.front()
            && now.since(since) >= self.span
        {
            self.by_age.pop_front();
            self.ids.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SimTime {
        SimTime::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn an_id_is_remembered_for_its_time() {
        let mut retired = Retired::new(Duration::from_secs(300));
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        retired.add(one, at(0));
        retired.add(other, at(200));
        assert!(retired.contains(one, at(299)) && retired.contains(other, at(299)));
        assert!(!retired.contains(one, at(300)) && retired.contains(other, at(300)));
    }

    #[test]
    fn the_oldest_make_room() {
        let mut retired = Retired::new(Duration::from_secs(300));
        for id in 0..=MAX_IDS as u128 {
            retired.add(Uuid::from_u128(id), at(0));
        }
        assert!(!retired.contains(Uuid::from_u128(0), at(0)));
        assert!(retired.contains(Uuid::from_u128(1), at(0)));
        assert_eq!((retired.ids.len(), retired.by_age.len()), (MAX_IDS, MAX_IDS));
    }
}
