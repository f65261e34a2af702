//! Event plane: what a worker tells routers without being asked, and the state behind it.
//!
//! | Module | Job |
//! |---|---|
//! | [`topic`] | what there is to publish |
//! | [`envelope`] | what surrounds every payload; ZMQ frames |
//! | [`kv_event`], [`kv_metrics`] | payloads |
//! | [`journal`] | event ids, newest events and block tree of one rank |
//! | [`recovery`] | queries of routers that missed events, and answers |
//! | [`zmq`] | the PUB socket |

mod block_tree;
pub mod envelope;
#[cfg(test)]
mod golden;
pub mod journal;
pub mod kv_event;
pub mod kv_metrics;
mod msgpack;
pub mod recovery;
pub mod topic;
pub mod zmq;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::discovery::record::EventAddress;
use envelope::Envelope;
use topic::Topic;
use zmq::ZmqPublisher;

/// One incarnation of a publisher's stream; below 2^53 so that JSON tools do not round it. Never used again after a
/// restart. Written in hex in keys and endpoint names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublisherId(u64);

impl PublisherId {
    const BITS: u32 = 53;

    /// The id, unless it is 2^53 or more.
    pub const fn new(id: u64) -> Option<Self> {
        if id >> Self::BITS == 0 { Some(Self(id)) } else { None }
    }

    /// A fresh random id.
    pub fn random() -> Self {
        // The second half of a version 4 UUID is random below its two highest bits.
        let (_, random) = uuid::Uuid::new_v4().as_u64_pair();
        Self(random & ((1 << Self::BITS) - 1))
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::LowerHex for PublisherId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// Where messages go.
#[derive(Clone)]
pub enum EventPlane {
    /// A PUB socket that routers connect to; the topics of one worker may share it.
    Zmq(Arc<ZmqPublisher>),
}

/// One topic of one worker.
pub struct EventPublisher {
    plane: EventPlane,
    topic: Topic,
    id: PublisherId,
    next_sequence: u64,
}

impl EventPublisher {
    /// Publisher under a fresh `id`.
    pub fn new(plane: EventPlane, topic: Topic, id: PublisherId) -> Self {
        Self {
            plane,
            topic,
            id,
            next_sequence: 0,
        }
    }

    /// The id in envelopes and discovery records.
    pub fn id(&self) -> PublisherId {
        self.id
    }

    /// What it publishes.
    pub fn topic(&self) -> Topic {
        self.topic
    }

    /// Whether anyone listens; callers may skip making a payload when not.
    pub fn has_subscribers(&self) -> bool {
        match &self.plane {
            EventPlane::Zmq(socket) => socket.has_subscribers(self.topic.name().as_bytes()),
        }
    }

    /// Sends one payload; `now_ms` is Unix time in milliseconds. Never waits: without a subscriber the message is
    /// gone, as on any PUB socket, and its number is used.
    pub fn publish(&mut self, payload: &[u8], now_ms: u64) {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        if !self.has_subscribers() {
            return;
        }
        let topic = self.topic.name();
        let envelope = Envelope {
            publisher_id: self.id,
            sequence,
            published_at_ms: now_ms,
            topic,
            payload,
        };
        match &self.plane {
            EventPlane::Zmq(socket) => {
                socket.send(&envelope::encode_frames(
                    Bytes::from_static(topic.as_bytes()),
                    &envelope,
                ));
            }
        }
    }

    /// Where routers get the messages: the address in the channel record.
    pub fn address(&self) -> EventAddress {
        match &self.plane {
            EventPlane::Zmq(socket) => EventAddress::Zmq {
                endpoint: format!("tcp://{}", socket.local_addr()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publisher_ids_stay_below_2_to_the_53() {
        assert!(PublisherId::new(1 << 53).is_none());
        assert!(PublisherId::new((1 << 53) - 1).is_some());
        let ids: Vec<u64> = (0..64).map(|_| PublisherId::random().get()).collect();
        assert!(ids.iter().all(|id| id >> 53 == 0));
        let seen_set = ids.iter().fold(0, |bits, id| bits | id);
        let seen_clear = ids.iter().fold(0, |bits, id| bits | !id);
        let all = (1 << 53) - 1;
        assert_eq!((seen_set & all, seen_clear & all), (all, all), "every bit varies");
    }
}
