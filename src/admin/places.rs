//! Places of connections. There are so many and no more. Those that have not sent a whole request, head and body, hold
//! theirs on sufferance: where all are taken, the one that has been waited for longest gives way to the newcomer, so nobody
//! is shut out by connections that say nothing, or speak slowly. It gives way no sooner than after a moment of grace: in a
//! crowd that comes at once, requests are there and only not read yet. The wait begins anew when a head is whole. What is
//! held of bodies is bounded by the same rule: beyond it whoever has been waited for longest and holds any gives way. Those
//! that do not take their answers are waited for, too.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::{Duration, Instant, sleep_until};
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    most_held: usize,
    grace: Duration,
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    /// Connections whose request is awaited, or that do not read, by their turn.
    waiting: BTreeMap<u64, Waiting>,
    /// Connections with a request under way.
    busy: usize,
    turns: u64,
    /// Bytes of bodies that have come in part.
    held: usize,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    leave: CancellationToken,
    /// Bytes of a body that have come.
    held: usize,
}

/// A connection's place, free again when dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    leave: CancellationToken,
    stand: Mutex<Stand>,
}

/// How a connection has its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stand {
    /// On sufferance, with its turn among those that are waited for: its request is not there as a whole.
    Awaited(u64),
    /// A request is under way.
    Busy,
    /// The same, but nobody reads its answer: on sufferance.
    Stalled(u64),
}

/// A request under way: until it is dropped, nobody takes the place.
#[derive(Debug)]
pub(super) struct Busy(Arc<Place>);

impl Places {
    /// So many places, and so many bytes of bodies that have come in part; whoever sends a head or a body keeps its own for
    /// `grace`, at least.
    pub(super) fn new((most, most_held): (usize, usize), grace: Duration) -> Arc<Self> {
        Arc::new(Self {
            most,
            most_held,
            grace,
            taken: Mutex::default(),
            freed: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        lock(&self.taken)
    }

    /// Waits until there is a place, or one that can be had from another.
    pub(super) async fn room(&self) {
        loop {
            let freed = self.freed.notified();
            match self.room_from() {
                None => freed.await,
                Some(then) if then <= Instant::now() => return,
                Some(then) => tokio::select! {
                    () = freed => {}
                    () = sleep_until(then) => {}
                },
            }
        }
    }

    /// When there is one if nothing changes; `None`: never, all are busy.
    fn room_from(&self) -> Option<Instant> {
        let taken = self.lock();
        if taken.waiting.len() + taken.busy < self.most {
            return Some(Instant::now());
        }
        let (_, longest) = taken.waiting.first_key_value()?;
        Some(longest.since + self.grace)
    }

    /// A place for a connection that has just come.
    pub(super) fn take(self: &Arc<Self>) -> Arc<Place> {
        let leave = CancellationToken::new();
        let mut taken = self.lock();
        if taken.waiting.len() + taken.busy >= self.most
            && let Some(longest) = taken.waiting.first_key_value().map(|(turn, _)| *turn)
            && let Some(longest) = taken.forget(longest)
        {
            longest.cancel();
        }
        let turn = taken.wait(leave.clone());
        drop(taken);
        Arc::new(Place {
            places: Arc::clone(self),
            leave,
            stand: Mutex::new(Stand::Awaited(turn)),
        })
    }
}

impl Taken {
    fn wait(&mut self, leave: CancellationToken) -> u64 {
        self.turns += 1;
        let waiting = Waiting {
            since: Instant::now(),
            leave,
            held: 0,
        };
        self.waiting.insert(self.turns, waiting);
        self.turns
    }

    /// Waits for it no longer; `None`: nobody did.
    fn forget(&mut self, turn: u64) -> Option<CancellationToken> {
        let waiting = self.waiting.remove(&turn)?;
        self.held -= waiting.held;
        Some(waiting.leave)
    }
}

impl Place {
    /// Comes when somebody else has it.
    pub(super) async fn lost(&self) {
        self.leave.cancelled().await;
    }

    /// The head of a request is there, and its body is awaited from now on: its turn for that, unless its place is lost.
    pub(super) fn speaks(&self) -> Option<u64> {
        let mut stand = lock(&self.stand);
        let Stand::Awaited(turn) = *stand else { return None };
        let mut taken = self.places.lock();
        // One that was lost a moment ago has been removed.
        let leave = taken.forget(turn)?;
        let turn = taken.wait(leave);
        *stand = Stand::Awaited(turn);
        Some(turn)
    }

    /// So many more bytes of the body that is awaited in this turn are there. When the turn is over they are no more held
    /// here.
    pub(super) fn holds(&self, turn: u64, bytes: usize) {
        let mut taken = self.places.lock();
        let Some(waiting) = taken.waiting.get_mut(&turn) else {
            return;
        };
        waiting.held += bytes;
        taken.held += bytes;
        while taken.held > self.places.most_held {
            let holder = taken.waiting.iter().find(|(_, waiting)| waiting.held > 0);
            let Some(holder) = holder.map(|(turn, _)| *turn) else {
                return;
            };
            if let Some(leave) = taken.forget(holder) {
                leave.cancel();
            }
        }
    }

    /// A request is there as a whole.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        self.become_busy(|stand| matches!(stand, Stand::Awaited(_)));
        Busy(Arc::clone(self))
    }

    /// Nobody reads the answer, or somebody does again.
    pub(super) fn stalls(&self, stalls: bool) {
        if !stalls {
            return self.become_busy(|stand| matches!(stand, Stand::Stalled(_)));
        }
        let mut stand = lock(&self.stand);
        if *stand != Stand::Busy || self.leave.is_cancelled() {
            return;
        }
        let mut taken = self.places.lock();
        taken.busy -= 1;
        *stand = Stand::Stalled(taken.wait(self.leave.clone()));
        drop((taken, stand));
        self.places.freed.notify_one();
    }

    /// Keeps its place from now on, if it stands like this.
    fn become_busy(&self, from: impl Fn(Stand) -> bool) {
        let mut stand = lock(&self.stand);
        let (Stand::Awaited(turn) | Stand::Stalled(turn)) = *stand else {
            return;
        };
        if !from(*stand) {
            return;
        }
        let mut taken = self.places.lock();
        *stand = Stand::Busy;
        // One that was lost a moment ago has been removed; it is not counted any more.
        if taken.forget(turn).is_some() {
            taken.busy += 1;
        } else {
            self.leave.cancel();
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let place = &self.0;
        if place.leave.is_cancelled() {
            return;
        }
        let mut stand = lock(&place.stand);
        *stand = match *stand {
            Stand::Busy => {
                let mut taken = place.places.lock();
                taken.busy -= 1;
                Stand::Awaited(taken.wait(place.leave.clone()))
            }
            Stand::Stalled(turn) | Stand::Awaited(turn) => Stand::Awaited(turn),
        };
        drop(stand);
        place.places.freed.notify_one();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A busy one is kept by its request.
        if let Stand::Awaited(turn) | Stand::Stalled(turn) = *lock(&self.stand) {
            self.places.lock().forget(turn);
            self.places.freed.notify_one();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in here panics while a lock is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn is_lost(place: &Place) -> bool {
        place.lost().now_or_never().is_some()
    }

    fn counts(places: &Places) -> (usize, usize) {
        let taken = places.lock();
        (taken.waiting.len(), taken.busy)
    }

    #[tokio::test]
    async fn a_head_that_has_only_just_been_waited_for_keeps_its_place() {
        let places = Places::new((2, 100), Duration::from_secs(3600));
        let [early, late] = [(); 2].map(|()| places.take());
        assert!(places.room().now_or_never().is_none());
        drop(late);
        assert!(places.room().now_or_never().is_some() && !is_lost(&early));
    }

    #[test]
    fn whoever_has_been_waited_for_longest_gives_way_and_a_busy_one_never() {
        let places = Places::new((3, 100), Duration::ZERO);
        let [slow, busy, newer] = [(); 3].map(|()| places.take());
        let request = busy.busy();
        let newest = places.take();
        assert!(is_lost(&slow) && !is_lost(&busy) && !is_lost(&newer) && !is_lost(&newest));
        drop(slow);
        // Its turn to wait begins when it has been served.
        drop(request);
        let last = places.take();
        assert!(is_lost(&newer) && !is_lost(&newest) && !is_lost(&busy));
        drop(places.take());
        assert!(is_lost(&newest) && !is_lost(&busy) && !is_lost(&last));
        drop(places.take());
        assert!(!is_lost(&busy), "there was a free place");
    }

    #[test]
    fn where_all_are_busy_newcomers_wait_until_one_is_not() {
        let places = Places::new((2, 100), Duration::ZERO);
        let [one, other] = [(); 2].map(|()| places.take());
        let (request, ended) = (one.busy(), other.busy());
        assert!(places.room().now_or_never().is_none());
        drop(ended);
        assert!(places.room().now_or_never().is_some());
        let again = other.busy();
        assert!(places.room().now_or_never().is_none());
        drop((request, one));
        assert!(places.room().now_or_never().is_some());
        drop((again, other));
        assert_eq!(counts(&places), (0, 0));
    }

    #[test]
    fn a_head_that_ends_when_its_place_is_lost_takes_none() {
        let places = Places::new((1, 100), Duration::ZERO);
        let late = places.take();
        let newcomer = places.take();
        drop(late.busy());
        assert!(is_lost(&late) && !is_lost(&newcomer));
        assert_eq!(counts(&places), (1, 0));
    }

    #[test]
    fn whoever_speaks_is_waited_for_anew() {
        let places = Places::new((2, 100), Duration::ZERO);
        let [first, second] = [(); 2].map(|()| places.take());
        assert!(first.speaks().is_some());
        drop(places.take());
        assert!(is_lost(&second) && !is_lost(&first));
        assert!(second.speaks().is_none());
        let request = first.busy();
        assert!(first.speaks().is_none());
        assert_eq!(counts(&places), (0, 1), "a busy one does not wait");
        drop(request);
    }

    #[test]
    fn who_does_not_read_gives_way_like_one_that_does_not_speak() {
        let places = Places::new((2, 100), Duration::ZERO);
        let [deaf, reader] = [(); 2].map(|()| places.take());
        let (told, read) = (deaf.busy(), reader.busy());
        for place in [&deaf, &reader] {
            place.stalls(true);
        }
        reader.stalls(false);
        assert_eq!(counts(&places), (1, 1));
        assert!(places.room().now_or_never().is_some());
        let newcomer = places.take();
        assert!(is_lost(&deaf) && !is_lost(&reader) && !is_lost(&newcomer));
        deaf.stalls(false);
        drop((told, deaf));
        assert_eq!(counts(&places), (1, 1));
        // Whoever still has the end of an answer to read when it is over waits on.
        reader.stalls(true);
        drop(read);
        reader.stalls(false);
        assert_eq!(counts(&places), (2, 0));
        drop((reader, newcomer));
        assert_eq!(counts(&places), (0, 0));
    }

    #[test]
    fn bodies_that_hold_too_much_together_give_way_one_after_the_other() {
        let places = Places::new((4, 100), Duration::ZERO);
        let [silent, first, second, third] = [(); 4].map(|()| places.take());
        for place in [&first, &second] {
            place.holds(place.speaks().unwrap(), 45);
        }
        let turn = third.speaks().unwrap();
        third.holds(turn, 10);
        assert!(
            [&silent, &first, &second, &third]
                .into_iter()
                .all(|place| !is_lost(place))
        );
        third.holds(turn, 1);
        assert!(is_lost(&first) && !is_lost(&second) && !is_lost(&third));
        assert!(!is_lost(&silent), "it holds nothing");
        // What is whole has had its turn, and is the business of who takes it.
        let request = second.busy();
        third.holds(turn, 89);
        assert!(!is_lost(&third));
        third.holds(turn, 1);
        assert!(is_lost(&third));
        third.holds(turn, 1);
        drop((request, first, second, third, silent));
        assert_eq!((counts(&places), places.lock().held), ((0, 0), 0));
    }
}
