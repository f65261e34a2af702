//! What happened to the faults of a fleet, in order: added, opened, drawn, carried out; and what became of the workers.
//!
//! Bounded: draws have a ring of their own, so that a busy gate does not push out the rest. Whoever wants to know which
//! requests came to whom asks for it first ([`Journal::follow_requests`]); until then that costs one relaxed load each.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::types::{SimTime, WorkerId};

mod event;

pub use event::Event;

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

/// A request that came to the fleet, whether it was taken or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Arrival {
    /// Since the fleet started.
    pub at: SimTime,
    /// To whom.
    pub to: Addressee,
    /// Id that the caller gave it; empty where nobody was there to read it.
    pub request: String,
}

/// To whom a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Addressee {
    /// A worker that is alive.
    Worker(WorkerId),
    /// An instance id that nobody has any more.
    Gone(u64),
}

/// Requests kept until they are taken: minutes of a busy fleet.
const KEPT_ARRIVALS: usize = 262_144;

/// Longest request id that is kept whole, bytes.
const MAX_REQUEST_ID: usize = 128;

/// The journal of a fleet.
pub struct Journal {
    now: Box<dyn Fn() -> SimTime + Send + Sync>,
    follows_requests: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    last: u64,
    arrivals: VecDeque<Arrival>,
    dropped_arrivals: u64,
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
    /// There are entries after these that are wanted too: ask again from `next`.
    pub more: bool,
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
            follows_requests: AtomicBool::new(false),
            inner: Mutex::default(),
        }
    }

    /// From now on requests are noted as they come, until [`Self::take_arrivals`] takes them.
    pub fn follow_requests(&self) {
        self.follows_requests.store(true, Relaxed);
    }

    /// A request has come; nothing is noted unless somebody wants to know.
    #[inline]
    pub fn note_arrival(&self, to: Addressee, request: &str) {
        if self.follows_requests.load(Relaxed) {
            self.keep_arrival(to, request);
        }
    }

    fn keep_arrival(&self, to: Addressee, request: &str) {
        let at = (self.now)();
        let request = request.chars().take(MAX_REQUEST_ID).collect();
        let mut inner = self.lock();
        if inner.arrivals.len() == KEPT_ARRIVALS {
            inner.arrivals.pop_front();
            inner.dropped_arrivals += 1;
        }
        inner.arrivals.push_back(Arrival { at, to, request });
    }

    /// The requests that have come since the last call, in order, and how many more there were than are kept.
    pub fn take_arrivals(&self) -> (Vec<Arrival>, u64) {
        let mut inner = self.lock();
        let dropped = std::mem::take(&mut inner.dropped_arrivals);
        (std::mem::take(&mut inner.arrivals).into(), dropped)
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
            // One more than wanted tells whether there are more.
            ring.iter()
                .skip(skip)
                .take(limit.saturating_add(1))
                .cloned()
                .collect::<Vec<_>>()
        };
        let mut entries = newer(&inner.news);
        if draws {
            entries.extend(newer(&inner.draws));
            entries.sort_by_key(|entry| entry.seq);
        }
        let more = entries.len() > limit;
        entries.truncate(limit);
        let next = match entries.last() {
            Some(entry) if more => entry.seq,
            None if more => after,
            Some(_) | None => inner.last,
        };
        Page {
            entries,
            next,
            last: inner.last,
            lost: inner.dropped_news > after || (draws && inner.dropped_draws > after),
            more,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::FaultId;

    #[test]
    fn requests_are_noted_once_somebody_wants_to_know() {
        let journal = Journal::new(|| SimTime::of_nanos(7));
        let worker = Addressee::Worker(WorkerId(3));
        journal.note_arrival(worker, "early");
        journal.follow_requests();
        journal.note_arrival(worker, "r1");
        journal.note_arrival(Addressee::Gone(9), "");
        let (arrivals, dropped) = journal.take_arrivals();
        assert_eq!((arrivals.len(), dropped), (2, 0));
        assert_eq!((arrivals[0].to, arrivals[0].request.as_str()), (worker, "r1"));
        for _ in 0..KEPT_ARRIVALS + 2 {
            journal.note_arrival(worker, "r");
        }
        let (arrivals, dropped) = journal.take_arrivals();
        assert_eq!((arrivals.len(), dropped), (KEPT_ARRIVALS, 2));
        assert_eq!(journal.take_arrivals(), (Vec::new(), 0));
    }

    #[test]
    fn draws_do_not_push_out_news_and_pages_follow_on() {
        let journal = Journal::new(|| SimTime::of_nanos(5_000_000));
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
        assert!(!news.more && !journal.page(0, 2, false).more);
        let first = journal.page(0, 1, false);
        assert_eq!((first.entries.len(), first.next, first.more), (1, 1, true));
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
