//! Connections between two tiers and what is on its way over them.
//!
//! Times are fractions of a millisecond, as in the sums that they are compared with.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::types::SimTime;

/// One transfer over one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TransferId(pub(super) u64);

#[cfg(test)]
impl TransferId {
    pub(crate) const fn of_test(number: u64) -> Self {
        Self(number)
    }
}

/// Which way a transfer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    /// Away from the GPU.
    Down,
    /// Towards it.
    Up,
}

/// A rank that uses a connection.
pub(super) type ClientId = u32;

/// Speeds of a connection, GB/s (1 GB = 1e9 bytes; 0: instant), and the time before the first byte of each transfer, ms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Speed {
    pub(super) down: f64,
    pub(super) up: f64,
    pub(super) latency_ms: f64,
}

impl Speed {
    /// Everything takes no time.
    pub(super) const INSTANT: Self = Self {
        down: 0.0,
        up: 0.0,
        latency_ms: 0.0,
    };

    fn bytes_per_ms(&self, direction: Direction) -> f64 {
        let gb_s = match direction {
            Direction::Down => self.down,
            Direction::Up => self.up,
        };
        if gb_s > 0.0 { gb_s * 1e6 } else { f64::INFINITY }
    }
}

/// What is to be sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    pub(super) id: TransferId,
    pub(super) client: ClientId,
    pub(super) direction: Direction,
    /// When the bytes are there to be sent.
    pub(super) from: SimTime,
    pub(super) bytes: u64,
    /// What the client has to itself.
    pub(super) speed: Speed,
}

/// A connection that serves the transfers of a direction in turn or together.
#[derive(Debug)]
pub(super) enum Link {
    /// Of one client.
    InTurn(Lanes),
    Shared(Shared),
}

impl Link {
    /// Sends something, not before what was sent earlier.
    pub(super) fn send(&mut self, job: Job) {
        match self {
            Self::InTurn(lanes) => lanes.send(job),
            Self::Shared(shared) => shared.send(job),
        }
    }

    /// When something happens next.
    pub(super) fn next(&self) -> Option<SimTime> {
        match self {
            Self::InTurn(lanes) => lanes.next(),
            Self::Shared(shared) => shared.next(),
        }
    }

    /// Takes what is done by `now`, with the time of its end, in the order of the ends; of equal ones in turn what goes down
    /// first, together in the order of their sending.
    pub(super) fn settle(&mut self, now: SimTime) -> Vec<(SimTime, TransferId)> {
        match self {
            Self::InTurn(lanes) => lanes.settle(now),
            Self::Shared(shared) => shared.settle(now),
        }
    }

    /// When a transfer is done if nothing joins it; `None`: it is not on its way.
    pub(super) fn end_of(&self, id: TransferId) -> Option<SimTime> {
        match self {
            Self::InTurn(lanes) => lanes.end_of(id),
            Self::Shared(shared) => shared.end_of(id),
        }
    }

    /// Takes a transfer off the connection.
    pub(super) fn remove(&mut self, id: TransferId, now: SimTime) {
        match self {
            Self::InTurn(lanes) => lanes.moving.retain(|moving| moving.id != id),
            Self::Shared(shared) => shared.remove(id, now),
        }
    }
}

/// In turn: when a transfer is done is known when it is sent.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// When the last transfer of each direction is done.
    tails: [f64; 2],
    moving: Vec<InTurn>,
}

#[derive(Debug, Clone, Copy)]
struct InTurn {
    id: TransferId,
    direction: Direction,
    end: SimTime,
}

impl Lanes {
    /// Those behind a transfer that is taken off are not sooner for that. O(1).
    #[allow(clippy::cast_precision_loss)]
    fn send(&mut self, job: Job) {
        let Job { id, direction, .. } = job;
        let ready = job.from.as_ms() + job.speed.latency_ms;
        let tail = &mut self.tails[direction as usize];
        *tail = tail.max(ready) + job.bytes as f64 / job.speed.bytes_per_ms(direction);
        let end = SimTime::of_ms(*tail);
        self.moving.push(InTurn { id, direction, end });
    }

    fn next(&self) -> Option<SimTime> {
        self.moving.iter().map(|moving| moving.end).min()
    }

    fn settle(&mut self, now: SimTime) -> Vec<(SimTime, TransferId)> {
        let mut done: Vec<InTurn> = Vec::new();
        self.moving.retain(|moving| {
            let over = moving.end <= now;
            done.extend(over.then_some(*moving));
            !over
        });
        done.sort_by_key(|moving| (moving.end, moving.direction, moving.id));
        done.into_iter().map(|moving| (moving.end, moving.id)).collect()
    }

    fn end_of(&self, id: TransferId) -> Option<SimTime> {
        self.moving
            .iter()
            .find(|moving| moving.id == id)
            .map(|moving| moving.end)
    }
}

/// Together: of the transfers whose first byte is there, each has an equal share of its client's speed in its direction,
/// and no more than an equal share of the whole connection's; what one cannot use is not given to another. One that waits
/// for its first byte takes nothing from the others. Every operation is O(transfers on their way), for each event up to it.
///
/// Source: Dynamo 1.6.1 engine core (offload transfers).
#[derive(Debug)]
pub(super) struct Shared {
    /// Of the whole connection.
    cap: Speed,
    /// When the bytes that are left were right: at the last event.
    now: f64,
    /// In the order of their sending.
    moving: Vec<Moving>,
    /// What is done, in the order of the ends.
    ended: Vec<(SimTime, TransferId)>,
}

#[derive(Debug, Clone, Copy)]
struct Moving {
    id: TransferId,
    client: ClientId,
    direction: Direction,
    /// When its first byte is there.
    ready: f64,
    /// Bytes left.
    bytes: f64,
    /// Its client's bytes per millisecond.
    rate: f64,
}

/// Transfers that move.
#[derive(Debug, Default)]
struct Rivals {
    all: [u32; 2],
    of_client: HashMap<ClientId, [u32; 2], FxBuildHasher>,
}

impl Shared {
    /// A connection that all its clients together load no more than `cap`.
    pub(super) fn new(cap: Speed) -> Self {
        Self {
            cap,
            now: 0.0,
            moving: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// What is done by the time of the job is done before.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn send(&mut self, job: Job) {
        self.join_at(job.from);
        let ready = job.from.as_ms() + job.speed.latency_ms;
        self.moving.push(Moving {
            id: job.id,
            client: job.client,
            direction: job.direction,
            ready: ready.max(self.now),
            bytes: job.bytes as f64,
            rate: job.speed.bytes_per_ms(job.direction),
        });
    }

    /// When a first byte is there or a transfer is done next.
    pub(super) fn next(&self) -> Option<SimTime> {
        let ended = self.ended.first().map(|&(at, _)| at);
        ended.or_else(|| self.next_event().map(SimTime::of_ms))
    }

    /// Lets what happens by `until` happen. Bytes are counted at such events only, so that looking often changes no end.
    pub(super) fn advance(&mut self, until: SimTime) {
        while let Some(event) = self.next_event().filter(|&at| at <= until.as_ms()) {
            self.move_to(event);
        }
    }

    /// Counts the bytes that have moved by `next`, which is no later than the next event.
    fn move_to(&mut self, next: f64) {
        let (passed, rivals) = (next - self.now, self.rivals());
        for index in 0..self.moving.len() {
            let moving = self.moving[index];
            if moving.ready > self.now {
                continue;
            }
            // What is left of a byte by sums must not outlive the end that was computed.
            self.moving[index].bytes = if self.event(&moving, &rivals) <= next {
                0.0
            } else {
                (moving.bytes - passed * self.rate(&moving, &rivals)).max(0.0)
            };
        }
        self.now = next;
        let (at, ended) = (SimTime::of_ms(next), &mut self.ended);
        self.moving.retain(|moving| {
            let done = moving.ready <= next && moving.bytes == 0.0;
            ended.extend(done.then_some((at, moving.id)));
            !done
        });
    }

    /// Takes what is done by `now`, in the order of the ends; of equal ones in the order of their sending.
    pub(super) fn settle(&mut self, now: SimTime) -> Vec<(SimTime, TransferId)> {
        self.advance(now);
        std::mem::take(&mut self.ended)
    }

    /// Takes a transfer off the connection.
    pub(super) fn remove(&mut self, id: TransferId, now: SimTime) {
        self.join_at(now);
        self.moving.retain(|moving| moving.id != id);
        self.ended.retain(|&(_, ended)| ended != id);
    }

    /// The shares change at `now`.
    fn join_at(&mut self, now: SimTime) {
        self.advance(now);
        self.move_to(now.as_ms().max(self.now));
    }

    /// For the transfers of one client without others.
    fn end_of(&self, id: TransferId) -> Option<SimTime> {
        if let Some(&(at, _)) = self.ended.iter().find(|&&(_, ended)| ended == id) {
            return Some(at);
        }
        let own = self.moving.iter().find(|moving| moving.id == id)?;
        let start = own.ready.max(self.now);
        let rivals = self
            .moving
            .iter()
            .filter(|other| other.direction == own.direction && other.ready <= start);
        let ahead: f64 = rivals.map(|other| other.bytes.min(own.bytes)).sum();
        Some(SimTime::of_ms(start + ahead / own.rate))
    }

    /// Who moves now.
    fn rivals(&self) -> Rivals {
        let mut rivals = Rivals::default();
        for moving in self.moving.iter().filter(|moving| moving.ready <= self.now) {
            let direction = moving.direction as usize;
            rivals.all[direction] += 1;
            rivals.of_client.entry(moving.client).or_default()[direction] += 1;
        }
        rivals
    }

    /// Bytes per millisecond of a transfer that moves.
    fn rate(&self, moving: &Moving, rivals: &Rivals) -> f64 {
        let direction = moving.direction as usize;
        let own = rivals.of_client.get(&moving.client).map_or(0, |own| own[direction]);
        let share = |rate: f64, of: u32| rate / f64::from(of.max(1));
        let cap = self.cap.bytes_per_ms(moving.direction);
        share(moving.rate, own).min(share(cap, rivals.all[direction]))
    }

    fn event(&self, moving: &Moving, rivals: &Rivals) -> f64 {
        if moving.ready > self.now {
            moving.ready
        } else {
            self.now + moving.bytes / self.rate(moving, rivals)
        }
    }

    fn next_event(&self) -> Option<f64> {
        if self.moving.is_empty() {
            return None;
        }
        let rivals = self.rivals();
        let events = self.moving.iter().map(|moving| self.event(moving, &rivals));
        events.min_by(f64::total_cmp)
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

    fn speed(down: f64, latency_ms: f64) -> Speed {
        Speed {
            down,
            up: 1.0,
            latency_ms,
        }
    }

    fn job(id: TransferId, direction: Direction, from: SimTime, bytes: u64, speed: Speed) -> Job {
        Job {
            id,
            client: 0,
            direction,
            from,
            bytes,
            speed,
        }
    }

    #[test]
    fn transfers_in_turn_wait_for_those_before_them_even_if_one_is_called_off() {
        let mut link = Link::InTurn(Lanes::default());
        link.send(job(A, Direction::Down, ms(0), 4_000_000, speed(2.0, 1.0)));
        link.send(job(B, Direction::Down, ms(1), 2_000_000, speed(2.0, 1.0)));
        assert_eq!((link.end_of(A), link.end_of(B)), (Some(ms(3)), Some(ms(4))));
        link.remove(A, ms(1));
        assert_eq!(link.next(), Some(ms(4)));
        assert!(link.settle(ms(3)).is_empty());
        assert_eq!(link.settle(ms(9)), [(ms(4), B)]);
    }

    #[test]
    fn at_one_instant_what_goes_down_is_done_first() {
        let mut link = Link::InTurn(Lanes::default());
        link.send(job(A, Direction::Up, ms(0), 1_000_000, speed(1.0, 0.0)));
        link.send(job(B, Direction::Down, ms(0), 1_000_000, speed(1.0, 0.0)));
        assert_eq!(link.settle(ms(1)), [(ms(1), B), (ms(1), A)]);
    }

    #[test]
    fn transfers_that_share_a_link_slow_each_other_down() {
        let mut link = Link::Shared(Shared::new(Speed::INSTANT));
        link.send(job(A, Direction::Down, ms(0), 4_000_000, speed(1.0, 0.0)));
        link.send(job(B, Direction::Down, ms(2), 1_000_000, speed(1.0, 0.0)));
        assert_eq!(
            (link.next(), link.end_of(B), link.end_of(A)),
            (Some(ms(4)), Some(ms(4)), Some(ms(5)))
        );
        assert_eq!(link.settle(ms(4)), [(ms(4), B)]);
        assert_eq!(link.settle(ms(9)), [(ms(5), A)]);
    }

    #[test]
    fn what_waits_for_its_first_byte_and_what_goes_the_other_way_take_nothing_from_others() {
        let (mut link, speed) = (Shared::new(Speed::INSTANT), speed(1.0, 3.0));
        link.send(job(A, Direction::Down, ms(0), 2_000_000, speed));
        link.send(job(B, Direction::Down, ms(1), 2_000_000, speed));
        link.send(job(TransferId(3), Direction::Up, ms(1), 3_000_000, speed));
        assert_eq!(link.next(), Some(ms(3)), "the first byte");
        // From 4 ms on the first two share: 1 ms and 2 ms are left of them.
        assert_eq!(
            link.settle(ms(9)),
            [(ms(6), A), (ms(7), B), (ms(7), TransferId(3))],
            "at one instant in the order of their sending"
        );
    }

    #[test]
    fn nobody_gets_more_than_its_own_speed_nor_all_together_more_than_the_connection() {
        let cap = Speed {
            down: 3.0,
            ..Speed::INSTANT
        };
        let mut link = Shared::new(cap);
        let of = |client, sent: Job| Job { client, ..sent };
        // Client 0 has two transfers at 1 GB/s each, client 1 one at 1 GB/s of its 8.
        link.send(job(A, Direction::Down, ms(0), 2_000_000, speed(2.0, 0.0)));
        link.send(job(B, Direction::Down, ms(0), 3_000_000, speed(2.0, 0.0)));
        let other = job(TransferId(3), Direction::Down, ms(0), 4_000_000, speed(8.0, 0.0));
        link.send(of(1, other));
        assert_eq!(
            link.settle(ms(2)),
            [(ms(2), A)],
            "then 1.5 GB/s for each of the two that are left"
        );
        let left = 2.0 + 1.0 / 1.5;
        let own = left + (2.0 - 1.5 * (left - 2.0)) / 3.0;
        assert_eq!(
            link.settle(ms(9)),
            [(SimTime::of_ms(left), B), (SimTime::of_ms(own), TransferId(3))]
        );
    }

    #[test]
    fn looking_often_changes_no_end() {
        let ends = |look_every: Option<f64>| {
            let mut link = Shared::new(Speed::INSTANT);
            let mut ends = Vec::new();
            for number in 0..40_u32 {
                let from = f64::from(number) * 1.7;
                let id = TransferId(u64::from(number));
                let sent = job(id, Direction::Down, SimTime::of_ms(from), 1_600_001, speed(0.7, 0.3));
                link.send(sent);
                let mut at = from;
                while let Some(step) = look_every.filter(|step| at + step < from + 1.7) {
                    at += step;
                    ends.append(&mut link.settle(SimTime::of_ms(at)));
                }
            }
            ends.append(&mut link.settle(ms(900)));
            ends
        };
        assert_eq!(ends(None).len(), 40);
        for step in [0.1, 0.23, 0.7] {
            assert_eq!(ends(Some(step)), ends(None));
        }
    }

    #[test]
    fn an_instant_link_takes_no_time() {
        for mut link in [
            Link::InTurn(Lanes::default()),
            Link::Shared(Shared::new(Speed::INSTANT)),
        ] {
            link.send(job(A, Direction::Down, ms(5), u64::MAX, Speed::INSTANT));
            assert_eq!(link.next(), Some(ms(5)));
            assert_eq!(link.end_of(A), Some(ms(5)));
            assert_eq!(link.settle(ms(5)), [(ms(5), A)]);
        }
    }
}
