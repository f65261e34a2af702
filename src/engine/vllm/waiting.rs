//! Requests that wait for admission, in the order in which they will be tried.

use std::collections::BTreeMap;

use crate::types::SimTime;

/// Place of a request in the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    priority: i32,
    arrival: SimTime,
    order: i64,
}

/// The waiting queue: first come first served, or by (priority, arrival, submission). O(log n) per operation.
#[derive(Debug)]
pub(super) struct Waiting {
    by_priority: bool,
    queue: BTreeMap<Place, u32>,
    front: i64,
    back: i64,
}

impl Waiting {
    pub(super) fn new(by_priority: bool) -> Self {
        Self {
            by_priority,
            queue: BTreeMap::new(),
            front: 0,
            back: 0,
        }
    }

    /// Queues a new request.
    pub(super) fn push(&mut self, sequence: u32, priority: i32, arrival: SimTime) -> Place {
        let place = self.place(priority, arrival);
        self.put(place, sequence);
        place
    }

    /// The place that a request has which arrives now.
    pub(super) fn place(&mut self, priority: i32, arrival: SimTime) -> Place {
        self.back += 1;
        let (priority, arrival) = if self.by_priority {
            (priority, arrival)
        } else {
            (0, SimTime::ZERO)
        };
        Place {
            priority,
            arrival,
            order: self.back,
        }
    }

    /// Queues a request at the place that it was given.
    pub(super) fn put(&mut self, place: Place, sequence: u32) {
        self.queue.insert(place, sequence);
    }

    /// Takes a preempted request back: to the front, or to its `former` place in the priority order.
    pub(super) fn push_again(&mut self, sequence: u32, former: Place) -> Place {
        let place = if self.by_priority {
            former
        } else {
            let order = self.front;
            self.front -= 1;
            Place { order, ..former }
        };
        self.queue.insert(place, sequence);
        place
    }

    pub(super) fn head(&self) -> Option<u32> {
        self.queue.first_key_value().map(|(_, &sequence)| sequence)
    }

    pub(super) fn remove(&mut self, place: Place) {
        self.queue.remove(&place);
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// Requests that wait for blocks from below the GPU, first come first served; those that have nothing to do before some
/// transfer is over sleep. They are tried before the waiting queue. O(log n) per operation, waking everybody O(n log n).
#[derive(Debug, Default)]
pub(super) struct Parked {
    /// By whether they sleep and by place.
    requests: BTreeMap<(bool, u64), u32>,
}

impl Parked {
    /// Lines a request up, asleep; returns its place.
    pub(super) fn push(&mut self, sequence: u32) -> u64 {
        let awake = self.requests.range(..(true, 0)).next_back();
        let last = awake.into_iter().chain(self.requests.last_key_value());
        let place = last.map(|(&(_, place), _)| place + 1).max().unwrap_or(0);
        self.requests.insert((true, place), sequence);
        place
    }

    /// The request at this place sleeps.
    pub(super) fn sleep(&mut self, place: u64) {
        if let Some(sequence) = self.requests.remove(&(false, place)) {
            self.requests.insert((true, place), sequence);
        }
    }

    /// Some transfer is over: everybody is to be tried.
    pub(super) fn wake(&mut self) {
        let asleep = self.requests.split_off(&(true, 0));
        let awake = asleep
            .into_iter()
            .map(|((_, place), sequence)| ((false, place), sequence));
        self.requests.extend(awake);
    }

    /// The first that does not sleep.
    pub(super) fn head(&self) -> Option<u32> {
        let (&(asleep, _), &sequence) = self.requests.first_key_value()?;
        (!asleep).then_some(sequence)
    }

    pub(super) fn remove(&mut self, place: u64) {
        self.requests.remove(&(false, place));
        self.requests.remove(&(true, place));
    }

    /// All of them, those that do not sleep first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = u32> {
        self.requests.values().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parked_requests_keep_their_places_however_often_they_sleep() {
        let mut parked = Parked::default();
        let places: Vec<u64> = [10, 11, 12].map(|sequence| parked.push(sequence)).into();
        assert_eq!(parked.head(), None, "they sleep");
        parked.wake();
        assert_eq!(parked.head(), Some(10));
        parked.sleep(places[0]);
        assert_eq!(parked.head(), Some(11));
        parked.remove(places[2]);
        parked.push(13);
        parked.wake();
        parked.sleep(places[1]);
        assert_eq!(parked.iter().collect::<Vec<_>>(), [10, 13, 11]);
        assert_eq!(parked.len(), 3);
    }
}
