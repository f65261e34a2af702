//! A one-way connection between two tiers and what is on its way over it.

use crate::types::SimTime;

/// One transfer of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TransferId(pub(super) u64);

#[cfg(test)]
impl TransferId {
    pub(crate) const fn of_test(number: u64) -> Self {
        Self(number)
    }
}

/// How a link serves several transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    /// One after the other, in the order of their submission.
    InTurn,
    /// All at once, each at an equal share of the speed.
    Shared,
}

/// A transfer that is on its way.
#[derive(Debug, Clone, Copy)]
struct Moving {
    id: TransferId,
    /// In turn: when it is done, ns. Shared: bytes left at [`Link::updated`].
    rest: f64,
}

/// A connection. Times are kept in fractions of a nanosecond, so that long queues do not drift. Every operation is
/// O(transfers on their way).
#[derive(Debug)]
pub(super) struct Link {
    service: Service,
    /// 0: no time.
    bytes_per_ns: f64,
    /// Before the first byte of each transfer.
    latency_ns: f64,
    /// In turn: when the last transfer is done. Shared: when the rests were right.
    updated: f64,
    moving: Vec<Moving>,
}

impl Link {
    /// `gb_s` GB/s, 1 GB = 1e9 bytes; 0: instant. What is waited for before the first byte takes a share of a shared link
    /// like the bytes do.
    pub(super) fn new(service: Service, gb_s: f64, latency_ms: f64) -> Self {
        Self {
            service: if gb_s > 0.0 { service } else { Service::InTurn },
            bytes_per_ns: gb_s,
            latency_ns: latency_ms * 1e6,
            updated: 0.0,
            moving: Vec::new(),
        }
    }

    /// Sends `bytes` that are there at `from`. A shared link has been brought up to `from` before.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn send(&mut self, id: TransferId, from: SimTime, bytes: u64) {
        let (from, bytes) = (from.as_ms() * 1e6, bytes as f64);
        let rest = match self.service {
            Service::InTurn => {
                self.updated = self.updated.max(from + self.latency_ns) + self.time(bytes);
                self.updated
            }
            Service::Shared => {
                self.updated = self.updated.max(from);
                bytes + self.latency_ns * self.bytes_per_ns
            }
        };
        self.moving.push(Moving { id, rest });
    }

    /// The transfer that is done first, and when.
    pub(super) fn next(&self) -> Option<(SimTime, TransferId)> {
        let mut first: Option<Moving> = None;
        for moving in &self.moving {
            if first.is_none_or(|first| moving.rest < first.rest) {
                first = Some(*moving);
            }
        }
        first.map(|first| (self.end(first), first.id))
    }

    /// When a transfer is done if nothing joins it; `None`: it is not on its way.
    pub(super) fn end_of(&self, id: TransferId) -> Option<SimTime> {
        let moving = self.moving.iter().find(|moving| moving.id == id)?;
        Some(self.end(*moving))
    }

    /// Brings a shared link up to `now`, before which nothing is done.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn advance(&mut self, now: SimTime) {
        let now = now.as_ms() * 1e6;
        let passed = now - self.updated;
        if self.service == Service::InTurn || passed <= 0.0 {
            return;
        }
        let share = passed * self.bytes_per_ns / self.moving.len().max(1) as f64;
        for moving in &mut self.moving {
            moving.rest = (moving.rest - share).max(0.0);
        }
        self.updated = now;
    }

    /// Takes a transfer off the link; those behind it in turn are not sooner for that. Returns whether it was there.
    pub(super) fn remove(&mut self, id: TransferId) -> bool {
        let before = self.moving.len();
        self.moving.retain(|moving| moving.id != id);
        self.moving.len() < before
    }

    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    fn end(&self, moving: Moving) -> SimTime {
        match self.service {
            Service::InTurn => SimTime::of_ms(moving.rest / 1e6),
            Service::Shared => {
                let ahead = self.moving.iter().map(|other| other.rest.min(moving.rest)).sum();
                // Whole nanoseconds: the rest of a byte that sums leave behind is no time.
                SimTime::of_nanos((self.updated + self.time(ahead)).round() as u64)
            }
        }
    }

    fn time(&self, bytes: f64) -> f64 {
        if self.bytes_per_ns > 0.0 {
            bytes / self.bytes_per_ns
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> SimTime {
        SimTime::of_nanos(ms * 1_000_000)
    }

    const A: TransferId = TransferId(1);
    const B: TransferId = TransferId(2);

    #[test]
    fn transfers_in_turn_wait_for_those_before_them_even_if_one_is_called_off() {
        let mut link = Link::new(Service::InTurn, 2.0, 1.0);
        link.send(A, ms(0), 4_000_000);
        link.send(B, ms(1), 2_000_000);
        assert_eq!((link.end_of(A), link.end_of(B)), (Some(ms(3)), Some(ms(4))));
        assert!(link.remove(A));
        assert!(!link.remove(A));
        assert_eq!(link.next(), Some((ms(4), B)));
    }

    #[test]
    fn transfers_that_share_a_link_slow_each_other_down() {
        let mut link = Link::new(Service::Shared, 1.0, 0.0);
        link.send(A, ms(0), 4_000_000);
        link.advance(ms(2));
        link.send(B, ms(2), 1_000_000);
        assert_eq!(link.next(), Some((ms(4), B)));
        assert_eq!(link.end_of(A), Some(ms(5)));
        link.advance(ms(4));
        assert!(link.remove(B));
        assert_eq!(link.next(), Some((ms(5), A)));
    }

    #[test]
    fn an_instant_link_takes_no_time() {
        for service in [Service::InTurn, Service::Shared] {
            let mut link = Link::new(service, 0.0, 0.0);
            link.send(A, ms(5), u64::MAX);
            assert_eq!(link.next(), Some((ms(5), A)));
        }
    }
}
