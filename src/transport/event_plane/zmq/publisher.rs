//! The publisher: members, queues and counters.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tracing::warn;

use super::connection::serve;
use super::dial;
use super::door::{Door, accept, listen};
use super::subscriber::{Subscriber, lock};
use super::{Limits, ZmqStats, wire};

/// A PUB socket. Dropping it closes it.
pub struct ZmqPublisher {
    shared: Arc<Shared>,
    local_addr: SocketAddr,
}

impl ZmqPublisher {
    /// Listens on a free port of `ip`; its tasks run on `runtime`.
    pub fn bind(ip: IpAddr, runtime: &Handle) -> io::Result<Self> {
        Self::bind_with(SocketAddr::new(ip, 0), Limits::default(), runtime)
    }

    /// Listens on `addr` with these limits.
    pub fn bind_with(addr: SocketAddr, limits: Limits, runtime: &Handle) -> io::Result<Self> {
        let listener = listen(addr, runtime)?;
        let local_addr = listener.local_addr()?;
        let shared = Arc::new(Shared::new(limits));
        let door = Arc::clone(&shared.door);
        let serve = {
            let shared = Arc::clone(&shared);
            move |stream| serve(stream, Arc::clone(&shared))
        };
        shared.door.open(accept(listener, door, serve), runtime);
        Ok(Self { shared, local_addr })
    }

    /// Connects to a SUB socket that binds `peer`, and again whenever it comes back; tasks run on `runtime`.
    pub fn connect(peer: SocketAddr, limits: Limits, runtime: &Handle) -> Self {
        let shared = Arc::new(Shared::new(limits));
        shared.door.open(dial::keep(peer, Arc::clone(&shared)), runtime);
        Self {
            shared,
            local_addr: peer,
        }
    }

    /// Where it listens, or whom it connects to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Whether anyone subscribes to this topic.
    pub fn has_subscribers(&self, topic: &[u8]) -> bool {
        self.shared.subscribers(topic) > 0
    }

    /// Queues a message for every subscriber of its first frame. Callable from any thread; never waits. A subscriber
    /// whose queue is full misses it.
    pub fn send(&self, frames: &[Bytes]) {
        self.shared.send(frames);
    }

    /// Waits until at least `count` connections subscribe to this topic, or the publisher ends.
    pub async fn subscribed(&self, topic: &[u8], count: usize) {
        self.shared.subscribed(topic, count).await;
    }

    /// Counters and what is held now.
    pub fn stats(&self) -> ZmqStats {
        self.shared.stats()
    }

    /// Messages dropped at a full queue, in a count that outlives the socket.
    pub fn drops(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.shared.dropped)
    }

    /// Stops listening and ends the connections; what is queued goes out as far as subscribers take it in time.
    pub fn close(&self) {
        self.shared.door.close();
    }

    /// Stops listening and resets the connections, as the death of a process does.
    pub fn crash(&self) {
        self.shared.door.crash();
    }

    /// Waits, after `close` or `crash`, until port and connections are gone.
    pub async fn closed(&self) {
        self.shared.door.closed().await;
    }
}

impl Drop for ZmqPublisher {
    fn drop(&mut self) {
        self.close();
    }
}

/// What publisher and connections have in common.
pub(super) struct Shared {
    pub(super) door: Arc<Door>,
    /// Peers past their handshake.
    members: Mutex<Vec<Arc<Subscriber>>>,
    /// Members with a subscription: all that `send` looks at when nobody listens.
    subscribers: AtomicUsize,
    membership: Notify,
    queued: AtomicU64,
    dropped: Arc<AtomicU64>,
    undelivered: AtomicU64,
    /// Times that a broker was back after it was lost.
    pub(super) comebacks: watch::Sender<u64>,
}

impl Shared {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            door: Arc::new(Door::new(limits)),
            members: Mutex::default(),
            subscribers: AtomicUsize::new(0),
            membership: Notify::new(),
            queued: AtomicU64::new(0),
            dropped: Arc::default(),
            undelivered: AtomicU64::new(0),
            comebacks: watch::Sender::default(),
        }
    }

    /// What a peer that would have come back has not taken by the end of the socket.
    pub(super) fn count_undelivered(&self, messages: usize) {
        self.undelivered.fetch_add(messages as u64, Ordering::Relaxed);
    }

    pub(super) fn send(&self, frames: &[Bytes]) {
        let Some(topic) = frames.first() else { return };
        if self.subscribers.load(Ordering::Relaxed) == 0 {
            return;
        }
        let (mut queued, mut dropped) = (0, 0);
        let mut message = None;
        for member in lock(&self.members).iter().filter(|member| member.wants(topic)) {
            let message: &Bytes = message.get_or_insert_with(|| wire::message(frames));
            if member.push(message.clone(), &self.door.limits) {
                queued += 1;
            } else {
                dropped += 1;
            }
        }
        self.queued.fetch_add(queued, Ordering::Relaxed);
        if dropped > 0 {
            metrics::counter!("ghostfleet_event_messages_dropped_total", "plane" => "zmq").increment(dropped);
            if self.dropped.fetch_add(dropped, Ordering::Relaxed) == 0 {
                warn!("an event subscriber or broker does not take messages fast enough; they are dropped from now on");
            }
        }
    }

    pub(super) fn subscribers(&self, topic: &[u8]) -> usize {
        if self.subscribers.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        lock(&self.members).iter().filter(|member| member.wants(topic)).count()
    }

    pub(super) async fn subscribed(&self, topic: &[u8], count: usize) {
        loop {
            let changed = self.membership.notified();
            tokio::pin!(changed);
            // From here on a change is not missed.
            changed.as_mut().enable();
            if self.subscribers(topic) >= count {
                return;
            }
            tokio::select! {
                () = changed => {}
                () = self.door.ended() => return,
            }
        }
    }

    pub(super) fn stats(&self) -> ZmqStats {
        ZmqStats {
            subscribers: self.subscribers.load(Ordering::Relaxed),
            queued: self.queued.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            undelivered: self.undelivered.load(Ordering::Relaxed),
            ..self.door.stats()
        }
    }
}

/// A connection's place among the members, given up when the connection ends in whatever way.
pub(super) struct Member<'a> {
    shared: &'a Shared,
    subscriber: Arc<Subscriber>,
    joined: bool,
    subscribes: bool,
}

impl<'a> Member<'a> {
    pub(super) fn new(shared: &'a Shared, subscriber: Arc<Subscriber>) -> Self {
        Self {
            shared,
            subscriber,
            joined: false,
            subscribes: false,
        }
    }

    /// Joins, unless it has joined over an earlier connection.
    pub(super) fn join(&mut self) {
        if !std::mem::replace(&mut self.joined, true) {
            lock(&self.shared.members).push(Arc::clone(&self.subscriber));
        }
    }

    pub(super) fn topics_changed(&mut self) {
        self.set_subscribes(self.subscriber.has_topics());
        self.shared.membership.notify_waiters();
    }

    fn set_subscribes(&mut self, subscribes: bool) {
        match (self.subscribes, subscribes) {
            (false, true) => self.shared.subscribers.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.shared.subscribers.fetch_sub(1, Ordering::Relaxed),
            (true, true) | (false, false) => 0,
        };
        self.subscribes = subscribes;
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        lock(&self.shared.members).retain(|member| !Arc::ptr_eq(member, &self.subscriber));
        self.set_subscribes(false);
        self.shared.membership.notify_waiters();
    }
}
