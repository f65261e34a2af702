//! ZMQ sockets of our own, PUB and ROUTER: one descriptor and a few KiB while nobody listens.
//!
//! They speak ZMTP 3.0 with the NULL mechanism. A listener accepts connections; each one is a task
//! that feeds what the peer says to a [`session`] and writes what its queue holds. Sending puts one shared copy of the
//! message into the queue of every subscriber that wants it and never waits: a subscriber that does not read fills its
//! own queue, then loses the newest messages, and nobody else notices. [`ZmqRouter`] answers requests, one at a time per
//! connection.
//!
//! [`ZmqBrokered`] is the same socket turned round: it connects to the XSUB sides of brokers.
//!
//! Source: ZMTP 3.0 (RFC 23) and 3.1 (RFC 37); checked against libzmq 4.3.

mod brokered;
mod connection;
mod dial;
mod door;
mod publisher;
mod router;
mod session;
mod subscriber;
mod wire;

use std::time::Duration;

pub use brokered::{BrokerAddresses, BrokerUrlError, MAX_BROKERS, ZmqBrokered};
pub use publisher::ZmqPublisher;
pub use router::{Answer, Service, ZmqRouter};

/// What a publisher grants its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes queued for one subscriber, framing included; the message that would exceed them is dropped.
    pub queue_bytes: usize,
    /// Messages queued for one subscriber.
    pub queue_messages: usize,
    /// Time from connection to READY.
    pub handshake_timeout: Duration,
    /// Largest frame that a peer may send: a topic or a command.
    pub peer_frame_bytes: usize,
    /// Topics of one subscriber.
    pub subscriptions: usize,
    /// Connections of one publisher.
    pub connections: usize,
    /// Time that `close` gives a subscriber to take what is queued.
    pub linger: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_bytes: 8 << 20,
            queue_messages: 100_000,
            handshake_timeout: Duration::from_secs(10),
            peer_frame_bytes: 1024,
            subscriptions: 128,
            connections: 1024,
            linger: Duration::from_secs(1),
        }
    }
}

/// Counters of one publisher since its start, and what it holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ZmqStats {
    /// Open connections.
    pub connections: usize,
    /// Connections that subscribe to anything.
    pub subscribers: usize,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections turned away because there were too many.
    pub refused: u64,
    /// Times that accepting failed, for example for want of descriptors.
    pub accept_errors: u64,
    /// Peers dropped for breaking the protocol.
    pub malformed: u64,
    /// Peers dropped for a slow handshake.
    pub handshake_timeouts: u64,
    /// Messages queued, once per subscriber.
    pub queued: u64,
    /// Messages dropped at a full queue, once per subscriber.
    pub dropped: u64,
    /// Messages that a broker had not taken when the socket was closed.
    pub undelivered: u64,
}
