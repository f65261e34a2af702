//! What a publisher knows of one peer: its subscriptions and the bytes on their way to it.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Buf, Bytes};
use tokio::sync::Notify;

use super::Limits;

/// Most messages of one write; the kernel takes 1,024 pieces at most.
const WRITE_PIECES: usize = 128;

/// One peer. Locks are held for moments only: never over a write; topics before the queue.
pub(super) struct Subscriber {
    topics: Mutex<Topics>,
    queue: Mutex<Queue>,
    /// Tells the connection that the queue is no longer empty.
    pub(super) wake: Notify,
}

#[derive(Default)]
struct Topics {
    /// With the number of times that the peer has asked for each.
    asked: Vec<(Box<[u8]>, u32)>,
    /// What it had asked for over a connection that was lost; counts until it asks again.
    former: Vec<(Box<[u8]>, u32)>,
}

impl Topics {
    fn current(&self) -> &[(Box<[u8]>, u32)] {
        if self.asked.is_empty() {
            &self.former
        } else {
            &self.asked
        }
    }
}

#[derive(Default)]
struct Queue {
    /// Whole messages; the first may be written in part.
    messages: VecDeque<Bytes>,
    bytes: usize,
    /// Pieces at the front that nothing may overtake: our side of the handshake, a message written in part.
    fixed: usize,
    /// Messages stay until the peer has said what it wants: sent before, a broker would throw them away.
    held: bool,
    /// Goes out before the next whole message. One is enough: a peer that pings again has not read the first.
    pong: Option<Bytes>,
}

/// How far a write came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wrote {
    /// The queue is empty.
    All,
    /// The peer has to read first.
    Blocked,
    /// There is more, but others want their turn.
    Some,
}

/// Most writes in a row for one peer.
const WRITES: usize = 16;

impl Subscriber {
    pub(super) fn new() -> Self {
        Self {
            topics: Mutex::default(),
            queue: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// Adds a subscription. `None`: there are too many; else whether it is the first.
    pub(super) fn subscribe(&self, topic: Vec<u8>, limits: &Limits) -> Option<bool> {
        let mut topics = lock(&self.topics);
        let topics = &mut *topics;
        let first = topics.asked.is_empty();
        if let Some((_, times)) = topics.asked.iter_mut().find(|(known, _)| **known == *topic) {
            *times = times.saturating_add(1);
        } else if topics.asked.len() < limits.subscriptions {
            topics.asked.push((topic.into_boxed_slice(), 1));
        } else {
            return None;
        }
        if first {
            topics.former.clear();
            lock(&self.queue).held = false;
        }
        Some(first)
    }

    /// Takes a subscription back; whether it was the last. Unknown ones are ignored.
    pub(super) fn cancel(&self, topic: &[u8]) -> bool {
        let mut topics = lock(&self.topics);
        let asked = &mut topics.asked;
        let Some(index) = asked.iter().position(|(known, _)| **known == *topic) else {
            return false;
        };
        asked[index].1 -= 1;
        if asked[index].1 == 0 {
            asked.swap_remove(index);
        }
        asked.is_empty()
    }

    pub(super) fn has_topics(&self) -> bool {
        !lock(&self.topics).current().is_empty()
    }

    pub(super) fn wants(&self, topic: &[u8]) -> bool {
        let topics = lock(&self.topics);
        topics.current().iter().any(|(prefix, _)| topic.starts_with(prefix))
    }

    /// The connection is lost and another one will be made: what was asked for and what waits are kept, but for a
    /// message that has gone out in part.
    pub(super) fn detach(&self) {
        {
            let mut topics = lock(&self.topics);
            if !topics.asked.is_empty() {
                topics.former = std::mem::take(&mut topics.asked);
            }
        }
        let mut queue = lock(&self.queue);
        let unfinished = queue.fixed.min(queue.messages.len());
        let dropped: usize = queue.messages.drain(..unfinished).map(|piece| piece.len()).sum();
        queue.bytes -= dropped;
        queue.fixed = 0;
        queue.pong = None;
        queue.held = true;
    }

    /// Whole messages that wait.
    pub(super) fn waiting(&self) -> usize {
        let queue = lock(&self.queue);
        queue.messages.len() - queue.fixed.min(queue.messages.len())
    }

    /// Queues a message; false when the queue is full.
    pub(super) fn push(&self, message: Bytes, limits: &Limits) -> bool {
        let mut queue = lock(&self.queue);
        if queue.messages.len() >= limits.queue_messages || queue.bytes + message.len() > limits.queue_bytes {
            return false;
        }
        queue.bytes += message.len();
        queue.messages.push_back(message);
        drop(queue);
        self.wake.notify_one();
        true
    }

    /// Queues a part of the handshake; comes before any message.
    pub(super) fn push_handshake(&self, piece: Bytes) {
        let mut queue = lock(&self.queue);
        queue.bytes += piece.len();
        let at = queue.fixed;
        queue.messages.insert(at, piece);
        queue.fixed += 1;
    }

    /// Queues a PONG ahead of the messages.
    pub(super) fn pong(&self, pong: Bytes) {
        lock(&self.queue).pong = Some(pong);
    }

    /// Writes what is queued with as few calls as possible.
    pub(super) fn write(&self, mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>) -> io::Result<Wrote> {
        for _ in 0..WRITES {
            let pieces = self.next_pieces();
            if pieces.is_empty() {
                return Ok(Wrote::All);
            }
            let slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            match write(&slices) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Wrote::Blocked),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Wrote::Some)
    }

    fn next_pieces(&self) -> Vec<Bytes> {
        let mut queue = lock(&self.queue);
        if let Some(pong) = queue.pong.take() {
            let fixed = queue.fixed;
            queue.bytes += pong.len();
            queue.messages.insert(fixed, pong);
            queue.fixed += 1;
        }
        let pieces = if queue.held { queue.fixed } else { queue.messages.len() };
        queue.messages.iter().take(pieces.min(WRITE_PIECES)).cloned().collect()
    }

    fn advance(&self, mut written: usize) {
        let mut queue = lock(&self.queue);
        queue.bytes -= written;
        while written > 0 {
            let Some(front) = queue.messages.front_mut() else {
                return;
            };
            if written < front.len() {
                front.advance(written);
                queue.fixed = queue.fixed.max(1);
                return;
            }
            written -= front.len();
            queue.fixed = queue.fixed.saturating_sub(1);
            queue.messages.pop_front();
        }
        if queue.messages.is_empty() {
            // A burst is over: a queue of 100,000 slots is 3 MiB that the next thousand subscribers may need.
            queue.messages.shrink_to(WRITE_PIECES);
        }
    }
}

/// A panic elsewhere leaves these plain collections whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            queue_bytes: 10,
            queue_messages: 3,
            subscriptions: 2,
            ..Limits::default()
        }
    }

    fn push(subscriber: &Subscriber, text: &'static str) -> bool {
        subscriber.push(Bytes::from_static(text.as_bytes()), &limits())
    }

    /// Writes everything, at most `step` bytes a call.
    fn drain(subscriber: &Subscriber, step: usize) -> String {
        let mut out = Vec::new();
        while subscriber
            .write(|slices| {
                let all: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
                let taken = all.len().min(step);
                out.extend_from_slice(&all[..taken]);
                Ok(taken)
            })
            .expect("writes")
            == Wrote::Some
        {}
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_full_queue_drops_the_newest_message() {
        let subscriber = Subscriber::new();
        assert!(push(&subscriber, "aaaa"));
        assert!(push(&subscriber, "bbbb"));
        assert!(!push(&subscriber, "ccc"), "11 bytes");
        assert!(push(&subscriber, "d"));
        assert!(!push(&subscriber, "e"), "4 messages");
        assert_eq!(drain(&subscriber, 3), "aaaabbbbd");
        assert!(push(&subscriber, "ffffffffff"), "room again");
    }

    #[test]
    fn a_pong_overtakes_messages_but_does_not_cut_one_in_two() {
        let subscriber = Subscriber::new();
        push(&subscriber, "aaaa");
        push(&subscriber, "bbbb");
        let mut calls = 0;
        let wrote = subscriber.write(|_| {
            calls += 1;
            if calls == 1 {
                Ok(2)
            } else {
                Err(io::ErrorKind::WouldBlock.into())
            }
        });
        assert_eq!(wrote.expect("no error"), Wrote::Blocked);
        subscriber.pong(Bytes::from_static(b"PP"));
        subscriber.pong(Bytes::from_static(b"Q"));
        assert_eq!(drain(&subscriber, 2), "aaQbbbb");
    }

    #[test]
    fn after_a_lost_connection_whole_messages_wait_until_the_peer_asks_again() {
        let subscriber = Subscriber::new();
        subscriber.subscribe(b"a".to_vec(), &limits());
        push(&subscriber, "aaaa");
        push(&subscriber, "bb");
        let mut calls = 0;
        let cut = subscriber.write(|_| {
            calls += 1;
            if calls == 1 {
                Ok(1)
            } else {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        });
        assert!(cut.is_err());
        subscriber.detach();
        assert!(
            subscriber.wants(b"ab") && subscriber.has_topics(),
            "what was asked for still counts"
        );
        push(&subscriber, "cc");
        subscriber.push_handshake(Bytes::from_static(b"H"));
        subscriber.pong(Bytes::from_static(b"P"));
        assert_eq!(
            drain(&subscriber, 8),
            "HP",
            "the message sent in part is lost, the others wait"
        );
        subscriber.subscribe(b"x".to_vec(), &limits());
        assert!(
            subscriber.wants(b"x") && !subscriber.wants(b"ab"),
            "only the new wishes count"
        );
        assert_eq!(drain(&subscriber, 8), "bbcc");
        assert!(push(&subscriber, "dddddddddd"), "all room is free again");
    }

    #[test]
    fn subscriptions_are_counted_prefixes() {
        let subscriber = Subscriber::new();
        assert!(!subscriber.wants(b"kv-events"));
        assert_eq!(subscriber.subscribe(b"kv-".to_vec(), &limits()), Some(true));
        assert_eq!(subscriber.subscribe(b"kv-".to_vec(), &limits()), Some(false));
        assert_eq!(subscriber.subscribe(b"x".to_vec(), &limits()), Some(false));
        assert_eq!(subscriber.subscribe(b"y".to_vec(), &limits()), None, "third topic");
        assert!(subscriber.wants(b"kv-events") && !subscriber.wants(b"kv_metrics"));
        assert!(!subscriber.cancel(b"kv-"), "one of two");
        assert!(!subscriber.cancel(b"never"));
        assert!(subscriber.wants(b"kv-events"));
        assert!(!subscriber.cancel(b"x") && subscriber.cancel(b"kv-"), "the last one");
        assert!(!subscriber.has_topics());
    }
}
