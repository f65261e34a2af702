//! What happened to the faults of a fleet, in order: added, opened, drawn, carried out; and what became of the workers.
//!
//! Bounded: draws have a ring of their own, so that a busy gate does not push out the rest.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::{Fault, FaultId};
use crate::types::{SimTime, WorkerId};

/// Entries kept of each sort.
const KEPT: usize = 16_384;

/// One entry.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// Position, from 1, without gaps.
    pub seq: u64,
    /// Since the fleet started, ms.
    pub at_ms: f64,
    /// What.
    #[serde(flatten)]
    pub event: Event,
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A fault was added.
    Added {
        /// Its number.
        id: FaultId,
        /// The fault.
        fault: Fault,
    },
    /// A fault was removed.
    Removed {
        /// Its number.
        id: FaultId,
    },
    /// Its window opened.
    Opened {
        /// Its number.
        id: FaultId,
        /// Whom it strikes.
        workers: Vec<WorkerId>,
    },
    /// Its window closed, or what it was for is done.
    Closed {
        /// Its number.
        id: FaultId,
    },
    /// It was taken off some workers.
    Healed {
        /// Whose.
        workers: Vec<WorkerId>,
    },
    /// Dice were thrown at a gate.
    Drawn {
        /// The fault.
        id: FaultId,
        /// Whose gate.
        worker: WorkerId,
        /// How often this gate of this worker had thrown for this fault before.
        draw: u64,
        /// Whether it happens.
        hit: bool,
    },
    /// Something was done to an actor.
    Done {
        /// Because of this fault; `None`: by command.
        id: Option<FaultId>,
        /// Actor path.
        path: String,
        /// What.
        act: &'static str,
        /// Why it could not be done.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// A worker is somewhere else in its life.
    State {
        /// Which one.
        worker: WorkerId,
        /// Where.
        state: &'static str,
    },
}

/// The journal of a fleet.
pub struct Journal {
    now: Box<dyn Fn() -> SimTime + Send + Sync>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    last: u64,
    news: VecDeque<Entry>,
    draws: VecDeque<Entry>,
    /// Newest position that each ring has dropped.
    dropped_news: u64,
    dropped_draws: u64,
}

/// A part of the journal.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Page {
    /// In order.
    pub entries: Vec<Entry>,
    /// Position to go on from.
    pub next: u64,
    /// Newest position in the journal.
    pub last: u64,
    /// Entries after the position asked for are no longer kept.
    pub lost: bool,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Journal(last {})", self.last())
    }
}

impl Journal {
    /// An empty one; `now` tells the time of entries.
    pub fn new(now: impl Fn() -> SimTime + Send + Sync + 'static) -> Self {
        Self {
            now: Box::new(now),
            inner: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing in here panics while the lock is held.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends an entry.
    pub fn note(&self, event: Event) {
        let at_ms = (self.now)().as_ms();
        let mut inner = self.lock();
        inner.last += 1;
        let seq = inner.last;
        let is_draw = matches!(event, Event::Drawn { .. });
        let Inner {
            news,
            draws,
            dropped_news,
            dropped_draws,
            ..
        } = &mut *inner;
        let (ring, dropped) = if is_draw {
            (draws, dropped_draws)
        } else {
            (news, dropped_news)
        };
        if ring.len() == KEPT
            && let Some(oldest) = ring.pop_front()
        {
            *dropped = oldest.seq;
        }
        ring.push_back(Entry { seq, at_ms, event });
    }

    /// Newest position.
    pub fn last(&self) -> u64 {
        self.lock().last
    }

    /// At most `limit` entries after position `after`, those that are still kept; `draws`: with the dice.
    pub fn page(&self, after: u64, limit: usize, draws: bool) -> Page {
        let inner = self.lock();
        let newer = |ring: &VecDeque<Entry>| {
            let skip = ring.partition_point(|entry| entry.seq <= after);
            ring.iter().skip(skip).take(limit).cloned().collect::<Vec<_>>()
        };
        let mut entries = newer(&inner.news);
        if draws {
            entries.extend(newer(&inner.draws));
            entries.sort_by_key(|entry| entry.seq);
            entries.truncate(limit);
        }
        let next = if entries.len() < limit {
            inner.last
        } else {
            entries.last().map_or(inner.last, |entry| entry.seq)
        };
        Page {
            entries,
            next,
            last: inner.last,
            lost: inner.dropped_news > after || (draws && inner.dropped_draws > after),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_do_not_push_out_news_and_pages_follow_on() {
        let journal = Journal::new(|| SimTime(5_000_000));
        journal.note(Event::Removed { id: FaultId(1) });
        for draw in 0..2 * KEPT as u64 {
            journal.note(Event::Drawn {
                id: FaultId(1),
                worker: WorkerId(0),
                draw,
                hit: true,
            });
        }
        journal.note(Event::Closed { id: FaultId(1) });
        let news = journal.page(0, 10, false);
        assert_eq!(
            news.entries.iter().map(|e| e.seq).collect::<Vec<_>>(),
            [1, 2 * KEPT as u64 + 2]
        );
        assert_eq!(news.entries[0].at_ms.to_bits(), 5.0f64.to_bits());
        assert_eq!((news.next, news.lost), (journal.last(), false));
        assert!(journal.page(0, 10, true).lost);
        let mut after = 0;
        let mut seen = 0;
        loop {
            let page = journal.page(after, 1000, true);
            if page.entries.is_empty() {
                break;
            }
            assert!(page.entries.windows(2).all(|pair| pair[0].seq < pair[1].seq));
            seen += page.entries.len();
            after = page.next;
        }
        assert_eq!(seen, KEPT + 2);
    }
}
