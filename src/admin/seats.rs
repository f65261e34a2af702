//! Places of those who follow the fleet live. There are so many and no more, and nobody keeps one against newcomers for
//! ever: a reader that has stopped reading cannot be told from one with nothing to read until buffers on both sides are
//! full, so whoever has been there longest gives way, and comes back if it is still interested.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Readers at a time.
pub(super) const MAX_READERS: usize = 32;

/// So long a reader stays whoever else comes.
pub(super) const TENURE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Seats(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    /// In the order in which they were taken.
    seats: VecDeque<Place>,
    numbers: u64,
}

#[derive(Debug)]
struct Place {
    number: u64,
    since: Instant,
    leave: CancellationToken,
}

/// A place, free again when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Arc<Seats>,
    number: u64,
    leave: CancellationToken,
}

impl Seats {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Nothing in here panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place at `now`, be it that of the reader who has been there longest; `None`: all of them have just come.
    pub(super) fn take(self: &Arc<Self>, now: Instant) -> Option<Seat> {
        let mut taken = self.lock();
        if taken.seats.len() >= MAX_READERS {
            let longest = taken.seats.front()?;
            if now.saturating_duration_since(longest.since) < TENURE {
                return None;
            }
            longest.leave.cancel();
            taken.seats.pop_front();
        }
        taken.numbers += 1;
        let (number, leave) = (taken.numbers, CancellationToken::new());
        taken.seats.push_back(Place {
            number,
            since: now,
            leave: leave.clone(),
        });
        drop(taken);
        Some(Seat {
            seats: Arc::clone(self),
            number,
            leave,
        })
    }
}

impl Seat {
    /// Whether somebody else has it.
    pub(super) fn is_lost(&self) -> bool {
        self.leave.is_cancelled()
    }

    /// Waits until somebody else has it.
    pub(super) async fn lost(&self) {
        self.leave.cancelled().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.lock().seats.retain(|place| place.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_has_been_there_longest_gives_way_but_not_at_once() {
        let seats = Arc::<Seats>::default();
        let begin = Instant::now();
        let mut readers: VecDeque<_> = (0..MAX_READERS).map(|_| seats.take(begin).unwrap()).collect();
        assert!(seats.take(begin + TENURE / 2).is_none());
        let newcomer = seats.take(begin + TENURE).unwrap();
        let longest = readers.pop_front().unwrap();
        longest.lost().await;
        assert!(readers.iter().all(|seat| !seat.is_lost()));
        // Its connection ends later, which frees no second place.
        drop(longest);
        assert_eq!(seats.lock().seats.len(), MAX_READERS);
        // One that leaves does.
        drop(newcomer);
        assert!(seats.take(begin).is_some());
    }
}
