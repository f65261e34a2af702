//! What is published waits here for the server: in order, within a bound, and counted when the bound is reached. It is
//! sent once, or until `JetStream` says that it is stored.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Client, Subject};
use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::tally::Tally;
use super::{JetStreamError, NatsLink, jetstream};

/// Bounds of an outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutboxLimits {
    /// Messages that may wait.
    pub messages: usize,
    /// Bytes of their bodies. The message that would exceed it is dropped.
    pub bytes: usize,
    /// Time that an outbox whose owner is gone gives the server to take what waits.
    pub linger: Duration,
}

impl OutboxLimits {
    /// For the events of one worker.
    pub const WORKER: Self = Self {
        messages: 100_000,
        bytes: 8 << 20,
        linger: Duration::from_secs(1),
    };

    /// For the events of a whole fleet.
    pub const FLEET: Self = Self {
        messages: 1_000_000,
        bytes: 64 << 20,
        linger: Duration::from_secs(1),
    };
}

/// Counters of an outbox since its start, and what waits in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutboxStats {
    /// Messages waiting.
    pub waiting: usize,
    /// Bytes of their bodies.
    pub waiting_bytes: usize,
    /// Messages handed to the connection.
    pub sent: u64,
    /// Messages dropped at the bound.
    pub dropped: u64,
    /// Messages that the server would not take, mostly for their size.
    pub refused: u64,
    /// Times that `JetStream` did not store what it was sent.
    pub repeated: u64,
}

/// Queue in front of a connection. Clones share it; when the last is gone, what waits still goes out as far as the
/// server takes it in time.
#[derive(Clone)]
pub struct NatsOutbox {
    owner: Arc<Owner>,
}

struct Owner {
    queue: Arc<Queue>,
    end: CancellationToken,
    pump: AbortHandle,
    comebacks: watch::Receiver<u64>,
}

struct Queue {
    limits: OutboxLimits,
    waiting: Mutex<Waiting>,
    wake: Notify,
    /// It died as its process would: what it had is gone, and nobody is told.
    crashed: AtomicBool,
    sent: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
    repeated: AtomicU64,
    tally: Arc<Tally>,
    stream_max_age: Duration,
}

#[derive(Default)]
struct Waiting {
    messages: VecDeque<(Subject, Bytes)>,
    bytes: usize,
}

/// Slots kept after a burst.
const KEPT_SLOTS: usize = 128;

/// Pause before `JetStream` is sent something again; it doubles from the first to the last.
const STORE_RETRIES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// Messages taken out at a time.
const BATCH: usize = 256;

/// How often an outbox whose server is away looks for it.
const LOOK: Duration = Duration::from_millis(50);

impl NatsOutbox {
    /// An outbox of `link`; its task runs on `runtime`.
    pub fn start(link: NatsLink, limits: OutboxLimits, runtime: &Handle) -> Self {
        Self::with(Delivery::Once, link, limits, runtime)
    }

    /// One whose messages are stored by `JetStream`, each under a subject `<stream>.<rest>`. What is not stored is sent
    /// again with all that follows it, so that the last of each kind is in order; a stream that has gone is made again.
    pub fn start_durable(link: NatsLink, limits: OutboxLimits, runtime: &Handle) -> Self {
        Self::with(Delivery::UntilStored, link, limits, runtime)
    }

    fn with(delivery: Delivery, link: NatsLink, limits: OutboxLimits, runtime: &Handle) -> Self {
        let queue = Arc::new(Queue {
            limits,
            waiting: Mutex::default(),
            wake: Notify::new(),
            crashed: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            tally: Arc::clone(link.tally()),
            stream_max_age: link.stream_max_age(),
        });
        let end = CancellationToken::new();
        let comebacks = link.comebacks();
        let pump = runtime
            .spawn(pump(delivery, link, Arc::clone(&queue), end.clone()))
            .abort_handle();
        Self {
            owner: Arc::new(Owner {
                queue,
                end,
                pump,
                comebacks,
            }),
        }
    }

    /// Queues a message; whether there was room. Callable from any thread; never waits. Dropped and counted when the
    /// outbox is full.
    pub fn send(&self, subject: &Subject, body: Bytes) -> bool {
        let queue = &self.owner.queue;
        let mut waiting = queue.lock();
        if waiting.messages.len() >= queue.limits.messages || waiting.bytes + body.len() > queue.limits.bytes {
            drop(waiting);
            metrics::counter!("ghostfleet_event_messages_dropped_total", "plane" => "nats").increment(1);
            queue.tally.dropped_at_bound();
            if queue.dropped.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!("events wait for NATS up to the bound; messages are dropped from now on");
            }
            return false;
        }
        waiting.bytes += body.len();
        waiting.messages.push_back((subject.clone(), body));
        queue.tally.queued();
        drop(waiting);
        queue.wake.notify_one();
        true
    }

    /// Changes whenever the server is back after it was lost. What waited is sent at once then, whether or not those whom
    /// it is for have come back, too.
    pub fn comebacks(&self) -> watch::Receiver<u64> {
        self.owner.comebacks.clone()
    }

    /// Whether less than half of what may wait does.
    pub fn has_room(&self) -> bool {
        let queue = &self.owner.queue;
        let waiting = queue.lock();
        waiting.messages.len() < queue.limits.messages / 2 && waiting.bytes < queue.limits.bytes / 2
    }

    /// Drops what waits, as the death of a process does.
    pub fn crash(&self) {
        let queue = &self.owner.queue;
        queue.crashed.store(true, Ordering::Relaxed);
        self.owner.pump.abort();
        queue.forget();
    }

    /// Counters and what waits now.
    pub fn stats(&self) -> OutboxStats {
        let queue = &self.owner.queue;
        let (waiting, waiting_bytes) = {
            let waiting = queue.lock();
            (waiting.messages.len(), waiting.bytes)
        };
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        OutboxStats {
            waiting,
            waiting_bytes,
            sent: count(&queue.sent),
            dropped: count(&queue.dropped),
            refused: count(&queue.refused),
            repeated: count(&queue.repeated),
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.end.cancel();
        if self.queue.crashed.load(Ordering::Relaxed) || self.pump.is_finished() {
            // Nobody else looks at what came after the pump's end.
            self.queue.forget();
        }
    }
}

impl Queue {
    /// A panic elsewhere leaves the plain queue whole.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Vec<(Subject, Bytes)> {
        let mut waiting = self.lock();
        let count = waiting.messages.len().min(BATCH);
        let batch: Vec<_> = waiting.messages.drain(..count).collect();
        waiting.bytes -= batch.iter().map(|(_, body)| body.len()).sum::<usize>();
        if waiting.messages.is_empty() {
            waiting.messages.shrink_to(KEPT_SLOTS);
        }
        batch
    }

    /// Drops what waits; it is lost unless the outbox has crashed.
    fn forget(&self) {
        let rest = std::mem::take(&mut *self.lock());
        self.ended_with(rest.messages.len());
    }

    fn ended_with(&self, count: usize) {
        let lost = !self.crashed.load(Ordering::Relaxed);
        self.tally.ended_with(count as u64, lost);
    }

    /// Sends until all of it is stored, however long that takes.
    async fn store(&self, client: &Client, mut batch: Vec<(Subject, Bytes)>) {
        let limit = client.server_info().max_payload;
        batch.retain(|(_, body)| {
            let fits = limit == 0 || body.len() <= limit;
            if !fits {
                self.refuse(body.len(), &"it exceeds the server's max_payload");
            }
            fits
        });
        let mut rest = &batch[..];
        let mut hand = Hand::new(self, rest.len());
        let mut wait = STORE_RETRIES[0];
        while !rest.is_empty() {
            let Err((stored, error)) = jetstream::store(client, rest).await else {
                return hand.delivered(rest.len());
            };
            hand.delivered(stored);
            rest = &rest[stored..];
            metrics::counter!("ghostfleet_durable_events_repeated_total").increment(1);
            if self.repeated.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!(%error, "JetStream has not stored an event; sending until it has");
            }
            if let (Some((subject, _)), JetStreamError::NoStream(_)) = (rest.first(), &error)
                && let Err(error) = jetstream::ensure(client, jetstream::stream_of(subject), self.stream_max_age).await
            {
                tracing::debug!(%error, "cannot make the stream again");
            }
            tokio::time::sleep(wait).await;
            wait = if stored > 0 {
                STORE_RETRIES[0]
            } else {
                (wait * 2).min(STORE_RETRIES[1])
            };
        }
    }

    fn refuse(&self, bytes: usize, error: &dyn std::fmt::Display) {
        metrics::counter!("ghostfleet_event_messages_dropped_total", "plane" => "nats").increment(1);
        self.tally.refused();
        if self.refused.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(bytes, %error, "NATS does not take a message");
        }
    }

    async fn publish(&self, client: &Client, batch: Vec<(Subject, Bytes)>) {
        let mut hand = Hand::new(self, batch.len());
        let mut taken = 0;
        for (subject, body) in batch {
            let bytes = body.len();
            // Waits while the server is away, once the client's own queue is full.
            match client.publish(subject, body).await {
                Ok(()) => taken += 1,
                Err(error) => {
                    hand.left -= 1;
                    self.refuse(bytes, &error);
                }
            }
        }
        // What the client has may still be in its own buffers.
        if client.flush().await.is_ok() {
            hand.delivered(taken);
        }
    }
}

/// Messages taken out of the queue that nobody has confirmed. Dropping it ends them: lost, or died with the outbox.
struct Hand<'a> {
    queue: &'a Queue,
    left: usize,
}

impl<'a> Hand<'a> {
    fn new(queue: &'a Queue, left: usize) -> Self {
        Self { queue, left }
    }

    fn delivered(&mut self, count: usize) {
        self.left -= count;
        self.queue.sent.fetch_add(count as u64, Ordering::Relaxed);
        self.queue.tally.delivered(count as u64);
    }
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        self.queue.ended_with(self.left);
    }
}

/// How often a message is sent.
#[derive(Debug, Clone, Copy)]
enum Delivery {
    /// Once: what the server does with it is its business.
    Once,
    /// Until `JetStream` has it.
    UntilStored,
}

async fn pump(delivery: Delivery, link: NatsLink, queue: Arc<Queue>, end: CancellationToken) {
    let Some(client) = (tokio::select! {
        client = link.client() => client,
        () = end.cancelled() => None,
    }) else {
        return queue.forget();
    };
    let running = async {
        loop {
            // Handed to the client now, it would wait there out of our bounds and counts.
            while !link.is_there() {
                tokio::time::sleep(LOOK).await;
            }
            let batch = queue.take();
            if !batch.is_empty() {
                match delivery {
                    Delivery::Once => queue.publish(&client, batch).await,
                    Delivery::UntilStored => queue.store(&client, batch).await,
                }
            } else if end.is_cancelled() {
                let _ = client.flush().await;
                return;
            } else {
                tokio::select! {
                    () = queue.wake.notified() => {}
                    () = end.cancelled() => {}
                }
            }
        }
    };
    let given_up = async {
        end.cancelled().await;
        tokio::time::sleep(queue.limits.linger).await;
    };
    tokio::select! {
        () = running => {}
        // What the server does not take in time is gone, as with any process that ends.
        () = given_up => {}
    }
    queue.forget();
}
