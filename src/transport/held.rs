//! Requests of one worker that a fault keeps from being served, for whoever asks why nothing comes.
//!
//! Some are *held*: somebody waits on a connection for them, and a seat says for how long. Others are *lost*: the worker
//! does nothing more about them and cannot know whether anybody still waits, so they are listed while their fault stands.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::faults::FaultId;

/// What keeps a request from being served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// It is looked at later.
    Delayed {
        /// When.
        until: Instant,
    },
    /// Nothing is said to its caller.
    Swallowed,
    /// Its caller was told that it is taken, and nobody dials back.
    NotDialled,
}

/// A request that is not served because of a fault.
#[derive(Debug, Clone)]
pub struct HeldRequest {
    /// Id that its caller gave it; of an HTTP request, the id that its answer would have.
    pub request: String,
    /// The other id of an HTTP request: its own.
    pub alias: Option<String>,
    /// Where its answer would go.
    pub address: String,
    /// What keeps it.
    pub hold: Hold,
    /// Because of this fault.
    pub fault: FaultId,
    /// When it came.
    pub since: Instant,
}

impl HeldRequest {
    /// One that has just come.
    pub fn new(request: &str, address: String, hold: Hold, fault: FaultId) -> Self {
        Self {
            request: request.to_owned(),
            alias: None,
            address,
            hold,
            fault,
            since: Instant::now(),
        }
    }

    /// Since it came.
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Whether it has this id.
    pub fn is(&self, id: &str) -> bool {
        self.request == id || self.alias.as_deref() == Some(id)
    }
}

/// Lost requests that are listed, the newest; a fault may take thousands a second.
pub const MAX_LOST: usize = 1024;

#[derive(Debug, Default)]
struct Requests {
    held: BTreeMap<u64, HeldRequest>,
    next: u64,
    lost: VecDeque<HeldRequest>,
    /// Lost ones that have made way for newer ones.
    not_listed: u64,
}

/// Those of one worker.
#[derive(Debug, Default)]
pub struct HeldRequests(Mutex<Requests>);

/// Held as long as somebody waits for a request.
#[derive(Debug)]
pub struct Seat {
    requests: Arc<HeldRequests>,
    number: u64,
}

impl HeldRequests {
    fn lock(&self) -> MutexGuard<'_, Requests> {
        // Nothing in here panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is held until the seat is dropped.
    pub fn hold(self: &Arc<Self>, request: HeldRequest) -> Seat {
        let mut requests = self.lock();
        let number = requests.next;
        requests.next += 1;
        requests.held.insert(number, request);
        Seat {
            requests: Arc::clone(self),
            number,
        }
    }

    /// A request is lost.
    pub fn lose(&self, request: HeldRequest) {
        let mut requests = self.lock();
        if requests.lost.len() == MAX_LOST {
            requests.lost.pop_front();
            requests.not_listed += 1;
        }
        requests.lost.push_back(request);
    }

    /// The worker is dead: what it has lost is nobody's any more.
    pub fn forget_lost(&self) {
        let mut requests = self.lock();
        requests.lost = VecDeque::new();
        requests.not_listed = 0;
    }

    /// How many are held.
    pub fn waiting(&self) -> u32 {
        u32::try_from(self.lock().held.len()).unwrap_or(u32::MAX)
    }

    /// Those held and those lost to a fault that is `in_force`, oldest first within each; and how many more are lost.
    pub fn list(&self, in_force: &[FaultId]) -> (Vec<HeldRequest>, u64) {
        let mut requests = self.lock();
        requests.lost.retain(|lost| in_force.contains(&lost.fault));
        if requests.lost.is_empty() {
            requests.lost = VecDeque::new();
            requests.not_listed = 0;
        }
        let listed = requests.held.values().chain(&requests.lost).cloned();
        (listed.collect(), requests.not_listed)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.requests.lock().held.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: &str, fault: u64) -> HeldRequest {
        HeldRequest::new(id, "somewhere".to_owned(), Hold::Swallowed, FaultId(fault))
    }

    fn ids(requests: &HeldRequests, in_force: &[FaultId]) -> Vec<String> {
        requests.list(in_force).0.into_iter().map(|held| held.request).collect()
    }

    #[test]
    fn held_requests_are_there_as_long_as_their_seat_and_lost_ones_as_long_as_their_fault() {
        let requests = Arc::new(HeldRequests::default());
        let seat = requests.hold(request("held", 1));
        requests.lose(request("first", 1));
        requests.lose(request("second", 2));
        let both = [FaultId(1), FaultId(2)];
        assert_eq!(ids(&requests, &both), ["held", "first", "second"]);
        assert_eq!(requests.waiting(), 1, "nobody is known to wait for the others");
        assert_eq!(ids(&requests, &both[1..]), ["held", "second"]);
        drop(seat);
        assert_eq!(
            (ids(&requests, &both), requests.waiting()),
            (vec!["second".to_owned()], 0)
        );
        requests.forget_lost();
        assert!(ids(&requests, &both).is_empty());
    }

    #[test]
    fn of_many_lost_ones_the_newest_are_listed_and_the_others_counted() {
        let requests = HeldRequests::default();
        for n in 0..MAX_LOST + 3 {
            requests.lose(request(&n.to_string(), 1));
        }
        let (listed, more) = requests.list(&[FaultId(1)]);
        assert_eq!((listed.len(), more, listed[0].request.as_str()), (MAX_LOST, 3, "3"));
        assert_eq!(requests.list(&[]).1, 0, "none of them is of interest any more");
    }

    #[test]
    fn an_http_request_has_two_ids() {
        let mut held = request("cmpl-a", 1);
        held.alias = Some("a".to_owned());
        assert!(held.is("a") && held.is("cmpl-a") && !held.is("cmpl"));
    }
}
