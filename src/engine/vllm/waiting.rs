//! Requests that wait for admission, in the order in which they will be tried.

use std::collections::BTreeMap;

use crate::types::SimTime;

/// Room between two places, so that others can come between them.
const GAP: i128 = 1 << 64;

/// Place of a request in the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    priority: i32,
    arrival: SimTime,
    order: i128,
    /// Number in the order of coming, which stays.
    number: i128,
}

impl Place {
    /// The same, wherever the request is in the queue.
    fn of_coming(self) -> Self {
        Self {
            order: self.number,
            ..self
        }
    }
}

/// The waiting queue: first come first served, or by (priority, arrival, submission). O(log n) per operation.
#[derive(Debug)]
pub(super) struct Waiting {
    by_priority: bool,
    queue: BTreeMap<Place, u32>,
    /// Those of the queue whose KV is in place, in the order of coming.
    residents: BTreeMap<Place, u32>,
    front: i128,
    back: i128,
}

impl Waiting {
    pub(super) fn new(by_priority: bool) -> Self {
        Self {
            by_priority,
            queue: BTreeMap::new(),
            residents: BTreeMap::new(),
            front: 0,
            back: 0,
        }
    }

    /// Queues a new request.
    pub(super) fn push(&mut self, sequence: u32, priority: i32, arrival: SimTime) -> Place {
        let place = self.place(priority, arrival);
        self.queue.insert(place, sequence);
        place
    }

    /// The place that a request has which arrives now.
    pub(super) fn place(&mut self, priority: i32, arrival: SimTime) -> Place {
        self.back += GAP;
        let (priority, arrival) = if self.by_priority {
            (priority, arrival)
        } else {
            (0, SimTime::ZERO)
        };
        Place {
            priority,
            arrival,
            order: self.back,
            number: self.back,
        }
    }

    /// Queues a request that was given its place before, but ahead of all that came later and were taken back to the front
    /// meanwhile; returns the place that it has. O(those taken back).
    pub(super) fn put(&mut self, place: Place, sequence: u32) -> Place {
        let taken_back = Place {
            order: GAP,
            ..Place::default()
        };
        let later = (!self.by_priority)
            .then(|| self.queue.range(..taken_back).map(|(other, _)| *other))
            .and_then(|mut others| others.find(|other| other.number > place.number));
        let order = later.and_then(|later| {
            let before = self.queue.range(..later).next_back();
            let before = before.map_or(later.order - 2 * GAP, |(place, _)| place.order);
            let between = i128::midpoint(before, later.order);
            (between > before && between < later.order).then_some(between)
        });
        let place = Place {
            order: order.unwrap_or(place.order),
            ..place
        };
        self.front = self.front.min(place.order - GAP);
        self.queue.insert(place, sequence);
        place
    }

    /// The KV of the queued request at this place is there.
    pub(super) fn note_resident(&mut self, place: Place, sequence: u32) {
        self.residents.insert(place.of_coming(), sequence);
    }

    /// Takes a preempted request back: to the front, or to its `former` place in the priority order.
    pub(super) fn push_again(&mut self, sequence: u32, former: Place) -> Place {
        let place = if self.by_priority {
            former
        } else {
            let order = self.front;
            self.front -= GAP;
            Place { order, ..former }
        };
        self.queue.insert(place, sequence);
        place
    }

    pub(super) fn head(&self) -> Option<u32> {
        self.queue.first_key_value().map(|(_, &sequence)| sequence)
    }

    /// The first whose KV is in place.
    pub(super) fn resident_head(&self) -> Option<u32> {
        self.residents.first_key_value().map(|(_, &sequence)| sequence)
    }

    pub(super) fn remove(&mut self, place: Place) {
        self.queue.remove(&place);
        self.residents.remove(&place.of_coming());
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
        self.awake().next()
    }

    /// Those that do not sleep, in order.
    pub(super) fn awake(&self) -> impl Iterator<Item = u32> {
        self.requests.range(..(true, 0)).map(|(_, &sequence)| sequence)
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
    fn who_comes_back_to_an_earlier_place_stays_ahead_of_later_ones_that_were_taken_back() {
        let mut waiting = Waiting::new(false);
        let places: Vec<Place> = (0..6).map(|_| waiting.place(0, SimTime::ZERO)).collect();
        waiting.push(99, 0, SimTime::ZERO);
        waiting.push_again(5, places[5]);
        waiting.push_again(2, places[2]);
        let third = waiting.put(places[3], 3);
        let first = waiting.put(places[1], 1);
        waiting.note_resident(third, 3);
        waiting.note_resident(first, 1);
        assert_eq!(waiting.queue.values().copied().collect::<Vec<_>>(), [1, 2, 3, 5, 99]);
        assert_eq!(waiting.resident_head(), Some(1));
        waiting.remove(first);
        assert_eq!((waiting.head(), waiting.resident_head()), (Some(2), Some(3)));
    }

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
