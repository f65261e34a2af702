//! Event plane: what a worker tells routers without being asked, and the state behind it.
//!
//! | Module | Job |
//! |---|---|
//! | [`durable`] | KV events for routers of Dynamo 1.3, through `JetStream` |
//! | [`topic`] | what there is to publish |
//! | [`envelope`] | what surrounds every payload; ZMQ frames |
//! | [`kv_event`], [`kv_metrics`], [`forward_pass`] | payloads |
//! | [`journal`] | event ids, newest events and block tree of one rank |
//! | [`former`] | blocks that one rank has announced and has no more |
//! | [`recovery`] | queries of routers that missed events, and answers |
//! | [`native`] | the engine's own stream, as vLLM publishes it |
//! | [`zmq`] | PUB sockets, listening or connected to brokers; ROUTER sockets |

mod block_tree;
pub mod durable;
pub mod envelope;
pub mod former;
pub mod forward_pass;
#[cfg(test)]
mod golden;
pub mod journal;
pub mod kv_event;
pub mod kv_metrics;
mod lower_blocks;
mod msgpack;
pub mod native;
pub mod recovery;
pub mod topic;
pub mod zmq;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_nats::Subject;
use bytes::Bytes;
use tokio::sync::watch;

use super::discovery::EndpointName;
use super::discovery::record::EventAddress;
use super::nats::NatsOutbox;
use envelope::Envelope;
use topic::Topic;
use zmq::{ZmqBrokered, ZmqPublisher};

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

/// Where messages go. Clones share it.
#[derive(Clone)]
pub enum EventPlane {
    /// A PUB socket that routers connect to; the topics of one worker may share it.
    Zmq(Arc<ZmqPublisher>),
    /// A PUB socket connected to brokers; a whole fleet may share it.
    Brokered(Arc<ZmqBrokered>),
    /// NATS subjects; a whole fleet may share the connection.
    Nats(NatsOutbox),
    /// The same, but KV events go to `JetStream`.
    JetStream {
        /// Everything else.
        live: NatsOutbox,
        /// KV events.
        durable: NatsOutbox,
    },
}

impl EventPlane {
    /// Where routers get the messages of workers in `scope`: the address in channel records. `None`: the plane has no
    /// such records. A PUB socket is advertised under `host`.
    pub fn address(&self, scope: &EndpointName, host: IpAddr) -> Option<EventAddress> {
        match self {
            Self::Zmq(socket) => Some(EventAddress::Zmq {
                endpoint: format!("tcp://{}", SocketAddr::new(host, socket.local_addr().port())),
            }),
            Self::Brokered(_) => None,
            Self::Nats(_) | Self::JetStream { .. } => Some(EventAddress::Nats {
                subject_prefix: scope.event_subject_prefix(),
            }),
        }
    }

    /// Ends it in good order: what is queued goes out as far as it is taken in time.
    pub fn close(&self) {
        match self {
            Self::Zmq(socket) => socket.close(),
            Self::Brokered(socket) => socket.close(),
            // It sends on until its last clone is gone, and then closes by itself.
            Self::Nats(_) | Self::JetStream { .. } => {}
        }
    }

    /// Ends it as the death of its process does.
    pub fn crash(&self) {
        match self {
            Self::Zmq(socket) => socket.crash(),
            Self::Brokered(socket) => socket.close(),
            Self::Nats(outbox) => outbox.crash(),
            Self::JetStream { live, durable } => {
                live.crash();
                durable.crash();
            }
        }
    }
}

/// One topic of one worker.
pub struct EventPublisher {
    target: Target,
    topic: Topic,
    id: PublisherId,
    next_sequence: u64,
}

/// A plane, with the name under which it files the topic.
#[derive(Clone)]
enum Target {
    /// The bare topic: the socket belongs to one worker.
    Zmq(Arc<ZmqPublisher>, Bytes),
    /// The full subject.
    Brokered(Arc<ZmqBrokered>, Bytes),
    /// The full subject.
    Nats(NatsOutbox, Subject),
    /// The stream's subject, and whether events have been lost on the way there.
    JetStream {
        outbox: NatsOutbox,
        subject: Subject,
        lost: bool,
    },
}

impl EventPublisher {
    /// Publisher of `topic` for the workers of `scope`, under a fresh `id`.
    pub fn new(plane: EventPlane, scope: &EndpointName, topic: Topic, id: PublisherId) -> Self {
        let subject = || scope.event_subject(topic.name());
        Self {
            target: match plane {
                EventPlane::Zmq(socket) => Target::Zmq(socket, Bytes::from_static(topic.name().as_bytes())),
                EventPlane::Brokered(socket) => Target::Brokered(socket, subject().into()),
                EventPlane::JetStream { durable, .. } if topic == Topic::KvEvents => Target::JetStream {
                    outbox: durable,
                    subject: durable::subject(scope).into(),
                    lost: false,
                },
                EventPlane::JetStream { live, .. } => Target::Nats(live, durable::live_subject(scope, topic).into()),
                EventPlane::Nats(outbox) => Target::Nats(outbox, subject().into()),
            },
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

    /// The same topic on the same plane, from a publisher that discovery has never heard of.
    #[must_use]
    pub fn under_another_id(&self) -> Self {
        Self {
            target: self.target.clone(),
            topic: self.topic,
            id: PublisherId::random(),
            next_sequence: 0,
        }
    }

    /// Uses up a number: the message that has it is lost.
    pub fn skip(&mut self) {
        self.next_sequence += 1;
    }

    /// Whether anyone listens; callers may skip making a payload when not. On NATS nobody can tell, so: yes.
    pub fn has_subscribers(&self) -> bool {
        match &self.target {
            Target::Zmq(socket, topic) => socket.has_subscribers(topic),
            Target::Brokered(socket, subject) => socket.has_subscribers(subject),
            Target::Nats(..) | Target::JetStream { .. } => true,
        }
    }

    /// Changes whenever what carries the messages is back after it was lost; `None` where routers come to the worker's own
    /// socket, or where nothing is lost.
    pub fn comebacks(&self) -> Option<watch::Receiver<u64>> {
        match &self.target {
            Target::Zmq(..) | Target::JetStream { .. } => None,
            Target::Brokered(socket, _) => Some(socket.comebacks()),
            Target::Nats(outbox, _) => Some(outbox.comebacks()),
        }
    }

    /// Whether this is the only way to routers: nobody can ask for what they have missed.
    pub fn is_durable(&self) -> bool {
        matches!(self.target, Target::JetStream { .. })
    }

    /// Whether events of a durable stream were lost on the way and there is room again to say everything anew. Asking
    /// forgets the loss.
    pub fn is_to_restate(&mut self) -> bool {
        match &mut self.target {
            Target::JetStream { outbox, lost, .. } if *lost && outbox.has_room() => {
                *lost = false;
                true
            }
            Target::Zmq(..) | Target::Brokered(..) | Target::Nats(..) | Target::JetStream { .. } => false,
        }
    }

    /// Sends one payload; `now_ms` is Unix time in milliseconds. Never waits: without a subscriber the message is
    /// gone, as on any PUB socket, and its number is used.
    pub fn publish(&mut self, payload: &[u8], now_ms: u64) {
        if self.is_durable() {
            for message in durable::messages(payload) {
                self.store(message);
            }
        } else {
            self.envelop(payload, now_ms);
        }
    }

    /// The messages that say what a payload says: itself, but for a durable stream.
    pub fn messages(&self, payload: &Bytes) -> Vec<Bytes> {
        if self.is_durable() {
            durable::messages(payload)
        } else {
            vec![payload.clone()]
        }
    }

    /// Sends one of these messages.
    pub fn send(&mut self, message: &Bytes, now_ms: u64) {
        if self.is_durable() {
            self.store(message.clone());
        } else {
            self.envelop(message, now_ms);
        }
    }

    fn store(&mut self, message: Bytes) {
        if let Target::JetStream { outbox, subject, lost } = &mut self.target {
            *lost |= !outbox.send(subject, message);
        }
    }

    fn envelop(&mut self, payload: &[u8], now_ms: u64) {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        if !self.has_subscribers() {
            return;
        }
        let envelope = Envelope {
            publisher_id: self.id,
            sequence,
            published_at_ms: now_ms,
            topic: self.topic.name(),
            payload,
        };
        match &mut self.target {
            Target::Zmq(socket, topic) => socket.send(&envelope::encode_frames(topic.clone(), &envelope)),
            Target::Brokered(socket, subject) => socket.send(&envelope::encode_frames(subject.clone(), &envelope)),
            Target::Nats(outbox, subject) => {
                let mut body = Vec::new();
                envelope::encode(&mut body, &envelope);
                outbox.send(subject, body.into());
            }
            // Has no envelopes.
            Target::JetStream { .. } => {}
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
