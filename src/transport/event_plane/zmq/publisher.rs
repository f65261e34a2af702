//! The publisher: listener, members and counters.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use super::connection::serve;
use super::subscriber::{Subscriber, lock};
use super::{Limits, ZmqStats, wire};

/// Connections that wait to be accepted; all routers of a cluster may arrive at once.
const BACKLOG: i32 = 256;

/// Pause after a failed accept: descriptors come back when others close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        // A port asked for by number may still be in TIME_WAIT from the incarnation before.
        socket.set_reuse_address(true)?;
        socket.bind(&addr.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let entered = runtime.enter();
        let listener = TcpListener::from_std(socket.into())?;
        drop(entered);
        let local_addr = listener.local_addr()?;
        let shared = Arc::new(Shared::new(limits));
        shared.tasks.spawn_on(accept(listener, Arc::clone(&shared)), runtime);
        shared.tasks.close();
        Ok(Self { shared, local_addr })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Whether anyone subscribes to this topic.
    pub fn has_subscribers(&self, topic: &[u8]) -> bool {
        self.shared.subscribers(topic) > 0
    }

    /// Queues a message for every subscriber of its first frame. Callable from any thread; never waits. A subscriber
    /// whose queue is full misses it.
    pub fn send(&self, frames: &[Bytes; 4]) {
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

    /// Stops listening and ends the connections; what is queued goes out as far as subscribers take it in time.
    pub fn close(&self) {
        self.shared.end.cancel();
    }

    /// Stops listening and resets the connections, as the death of a process does.
    pub fn crash(&self) {
        self.shared.crashed.store(true, Ordering::Release);
        self.shared.end.cancel();
    }

    /// Waits, after `close` or `crash`, until port and connections are gone.
    pub async fn closed(&self) {
        self.shared.tasks.wait().await;
    }
}

impl Drop for ZmqPublisher {
    fn drop(&mut self) {
        self.close();
    }
}

/// What publisher, listener and connections have in common.
pub(super) struct Shared {
    pub(super) limits: Limits,
    /// Peers past their handshake.
    members: Mutex<Vec<Arc<Subscriber>>>,
    /// Members with a subscription: all that `send` looks at when nobody listens.
    subscribers: AtomicUsize,
    connections: AtomicUsize,
    membership: Notify,
    end: CancellationToken,
    crashed: AtomicBool,
    tasks: TaskTracker,
    accepted: AtomicU64,
    refused: AtomicU64,
    accept_errors: AtomicU64,
    malformed: AtomicU64,
    slow_handshakes: AtomicU64,
    queued: AtomicU64,
    dropped: AtomicU64,
}

impl Shared {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            members: Mutex::default(),
            subscribers: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            membership: Notify::new(),
            end: CancellationToken::new(),
            crashed: AtomicBool::new(false),
            tasks: TaskTracker::new(),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            accept_errors: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
            slow_handshakes: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    pub(super) fn send(&self, frames: &[Bytes; 4]) {
        if self.subscribers.load(Ordering::Relaxed) == 0 {
            return;
        }
        let (mut queued, mut dropped) = (0, 0);
        let mut message = None;
        for member in lock(&self.members).iter().filter(|member| member.wants(&frames[0])) {
            let message: &Bytes = message.get_or_insert_with(|| wire::message(frames));
            if member.push(message.clone(), &self.limits) {
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
                () = self.ended() => return,
            }
        }
    }

    pub(super) fn stats(&self) -> ZmqStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ZmqStats {
            connections: self.connections.load(Ordering::Relaxed),
            subscribers: self.subscribers.load(Ordering::Relaxed),
            accepted: count(&self.accepted),
            refused: count(&self.refused),
            accept_errors: count(&self.accept_errors),
            malformed: count(&self.malformed),
            handshake_timeouts: count(&self.slow_handshakes),
            queued: count(&self.queued),
            dropped: count(&self.dropped),
        }
    }

    pub(super) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    pub(super) fn end(&self) {
        self.end.cancel();
    }

    /// Counts a connection that we made, as long as the result lives.
    pub(super) fn count_dialled(&self) -> impl Drop {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.connections.fetch_add(1, Ordering::Relaxed);
        Open(self)
    }

    pub(super) async fn ended(&self) {
        self.end.cancelled().await;
    }

    pub(super) fn is_crashed(&self) -> bool {
        self.crashed.load(Ordering::Acquire)
    }

    pub(super) fn count_malformed(&self) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_slow_handshake(&self) {
        self.slow_handshakes.fetch_add(1, Ordering::Relaxed);
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

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let accepted = tokio::select! {
            () = shared.ended() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) if shared.connections.load(Ordering::Relaxed) < shared.limits.connections => {
                shared.accepted.fetch_add(1, Ordering::Relaxed);
                shared.connections.fetch_add(1, Ordering::Relaxed);
                let owner = Arc::clone(&shared);
                shared.tasks.spawn(async move {
                    let _open = Open(&owner);
                    serve(stream, Arc::clone(&owner)).await;
                });
            }
            Ok(_) => {
                shared.refused.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                if shared.accept_errors.fetch_add(1, Ordering::Relaxed) == 0 {
                    warn!(%error, "event publisher cannot accept a subscriber; it goes on trying");
                }
                tokio::select! {
                    () = shared.ended() => return,
                    () = tokio::time::sleep(ACCEPT_PAUSE) => {}
                }
            }
        }
    }
}

/// Counts a connection as long as its task lives.
struct Open<'a>(&'a Shared);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
