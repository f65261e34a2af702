//! The recovery endpoint of a rank's KV stream: a router asks here for what it missed.
//!
//! A starting router asks every rank at once, so publishers are asked in turns. Once an answer is there it costs a socket
//! and shared bytes; when sockets run short, the reader that has stood still longest is given up, so that readers which
//! never read hold up nobody but themselves.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use actix::Addr;
use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use super::kv_publisher::{KvPublisher, Recover};
use crate::faults::WorkerFaults;
use crate::faults::kind::RecoveryFault;
use crate::faults::table::Due;
use crate::transport::event_plane::journal::Journal;
use crate::transport::event_plane::recovery::Query;
use crate::transport::held::{HeldRequest, HeldRequests, Hold};
use crate::transport::request_plane::call_home::Dialer;
use crate::transport::request_plane::call_home::ready::{ReadyAnswer, Written};
use crate::transport::request_plane::control::Control;
use crate::transport::request_plane::endpoint::{Call, Endpoint};
use crate::transport::request_plane::figures::{CallError, EndpointFigures};
use crate::transport::request_plane::tcp::frame::Ack;
use crate::types::{DpRank, InstanceId, KvEvent, LocalHash, SequenceHash, StoredBlock};

/// Queries that may be under way in the whole process; a starting router asks all ranks at once.
pub(super) const MAX_QUERIES: usize = 4096;

/// Publishers that are asked at a time: each may have to encode its whole cache, on a thread that runs passes too.
pub(super) const MAX_TURNS: usize = 8;

/// Longest turn.
const TURN: Duration = Duration::from_millis(100);

/// Response sockets that may be open at a time, so that a dump storm does not take every descriptor.
pub(super) const MAX_SOCKETS: usize = 256;

/// Time for the publisher to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A reader that has taken nothing for this long may be given up for the sake of others.
const GRACE: Duration = Duration::from_millis(500);

/// Bounds shared by all recovery endpoints of the process.
#[derive(Debug, Clone)]
pub(super) struct RecoveryLimits(Arc<Bounds>);

#[derive(Debug)]
struct Bounds {
    queries: Arc<Semaphore>,
    turns: Semaphore,
    sockets: Semaphore,
    /// Answers that wait for a socket.
    waiting: AtomicUsize,
    /// Wakes the answer that has stood still longest: waiters are woken in the order in which they came.
    make_room: Notify,
    dialer: Dialer,
}

impl RecoveryLimits {
    /// The usual bounds; answers go out through `dialer`.
    pub(super) fn new(dialer: Dialer) -> Self {
        Self(Arc::new(Bounds {
            queries: Arc::new(Semaphore::new(MAX_QUERIES)),
            turns: Semaphore::new(MAX_TURNS),
            sockets: Semaphore::new(MAX_SOCKETS),
            waiting: AtomicUsize::new(0),
            make_room: Notify::new(),
            dialer,
        }))
    }
}

impl Bounds {
    /// A socket to answer on; when there is none, a reader that has stood still makes room.
    async fn socket(&self) -> Option<SemaphorePermit<'_>> {
        if let Ok(socket) = self.sockets.try_acquire() {
            return Some(socket);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        let mut socket = std::pin::pin!(self.sockets.acquire());
        loop {
            self.make_room.notify_one();
            // Nobody may have stood still for long enough yet, so ask again.
            if let Ok(socket) = timeout(GRACE, &mut socket).await {
                return socket.ok();
            }
        }
    }

    /// Resolves when somebody else needs the socket of a reader that has stood still since `since`.
    async fn room_is_wanted(&self, since: Instant) {
        tokio::time::sleep_until(since + GRACE).await;
        loop {
            self.make_room.notified().await;
            if self.waiting.load(Ordering::Relaxed) > 0 {
                return;
            }
        }
    }
}

struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What became of the recovery queries of one worker.
#[derive(Debug, Default)]
pub struct RecoveryCounts {
    answered: AtomicU64,
    given_up: AtomicU64,
    dumps_built: AtomicU64,
}

impl RecoveryCounts {
    pub(super) fn count_dumps(&self, built: u64) {
        self.dumps_built.fetch_add(built, Ordering::Relaxed);
    }

    /// Answers that were written to their end.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Answers whose reader was gone, or stood still for too long.
    pub fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Times that a whole cache was encoded.
    pub fn dumps_built(&self) -> u64 {
        self.dumps_built.load(Ordering::Relaxed)
    }
}

/// One rank's recovery endpoint.
pub(super) struct RecoveryEndpoint {
    pub(super) publisher: Addr<KvPublisher>,
    pub(super) limits: RecoveryLimits,
    pub(super) counts: Arc<RecoveryCounts>,
    pub(super) held: Arc<HeldRequests>,
    pub(super) faults: Arc<WorkerFaults>,
    pub(super) figures: Arc<EndpointFigures>,
}

/// How an answer ended without having been written.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error(transparent)]
    Socket(#[from] io::Error),
    #[error("the reader took nothing for {0:?}")]
    Stalled(Duration),
    #[error("the reader stood still while others waited for a socket")]
    MadeRoom,
    #[error("the publisher did not answer")]
    Publisher,
}

impl RecoveryEndpoint {
    async fn answer(&self, Call { control, body, .. }: Call, wrong: Option<&Due<RecoveryFault>>) {
        let bounds = &self.limits.0;
        let Some(_socket) = bounds.socket().await else { return };
        match self.write(&control, body, wrong).await {
            Ok(answer) => {
                self.figures.count_sent(answer.sent_bytes());
                self.counts.answered.fetch_add(1, Ordering::Relaxed);
                // The caller has it all; its close is waited for out of courtesy, for as long as nobody else waits.
                tokio::select! {
                    () = answer.closed(bounds.dialer.limits.close) => {}
                    () = bounds.room_is_wanted(Instant::now()) => {}
                }
            }
            // The router sees a broken stream and asks again.
            Err(error) => {
                self.counts.given_up.fetch_add(1, Ordering::Relaxed);
                self.figures.count_error(CallError::PublishResponse);
                metrics::counter!("ghostfleet_recovery_answers_given_up_total").increment(1);
                tracing::debug!(address = %control.address, %error, "recovery answer was not taken");
            }
        }
    }

    async fn write(
        &self,
        control: &Control,
        body: Bytes,
        wrong: Option<&Due<RecoveryFault>>,
    ) -> Result<ReadyAnswer, Lost> {
        let dialer = &self.limits.0.dialer;
        let limits = &dialer.limits;
        let mut answer = ReadyAnswer::dial(control, dialer).await?;
        answer.push(if let Some(wrong) = wrong {
            wrong.happened();
            wrong_answer(control)
        } else {
            self.ask(control, body).await.ok_or(Lost::Publisher)?
        });
        let mut progress = Instant::now();
        loop {
            match answer.write()? {
                Written::All => return Ok(answer),
                Written::Some => progress = Instant::now(),
                Written::Nothing => {}
            }
            tokio::select! {
                writable = answer.writable() => writable?,
                () = tokio::time::sleep_until(progress + limits.stall) => return Err(Lost::Stalled(limits.stall)),
                () = self.limits.0.room_is_wanted(progress) => return Err(Lost::MadeRoom),
            }
        }
    }

    /// The publisher's answer. Few ask at a time, so that the ranks on the publisher's thread get their turns; one that
    /// is busy or hangs is not waited for at the expense of the others.
    async fn ask(&self, control: &Control, body: Bytes) -> Option<Vec<Bytes>> {
        let turn = self.limits.0.turns.acquire().await.ok()?;
        let codec = control.codec;
        let mut query = std::pin::pin!(self.publisher.send(Recover { codec, body }));
        if let Ok(answer) = timeout(TURN, &mut query).await {
            return answer.ok();
        }
        drop(turn);
        timeout(PATIENCE, query).await.ok()?.ok()
    }
}

/// The tree of another worker, with an event id from the future.
fn wrong_answer(control: &Control) -> Vec<Bytes> {
    let (worker, rank) = (InstanceId(1), DpRank(0));
    let mut journal = Journal::new(worker, rank);
    journal.skip(1 << 40);
    journal.record(vec![KvEvent::Stored {
        parent: None,
        blocks: vec![StoredBlock {
            block_hash: SequenceHash(1),
            tokens_hash: LocalHash(1),
        }],
    }]);
    let query = Query {
        worker,
        rank,
        start_event_id: None,
        end_event_id: None,
    };
    journal.answer(&query).frame(control.codec)
}

impl Endpoint for RecoveryEndpoint {
    fn accept(self: Arc<Self>, call: Call) -> Ack {
        let fault = self.faults.draw::<RecoveryFault>().pop();
        let wrong = match fault.as_deref() {
            None => None,
            Some(RecoveryFault::Wrong {}) => fault,
            Some(RecoveryFault::Missing {}) => {
                fault.iter().for_each(Due::happened);
                return Ack::Unavailable("unknown endpoint".to_owned());
            }
            Some(RecoveryFault::Hanging {}) => {
                if let Some(fault) = &fault {
                    fault.happened();
                    let address = call.control.address.to_string();
                    let query = HeldRequest::new(&call.control.id, address, Hold::NotDialled, fault.id());
                    self.held.lose(query);
                }
                return Ack::Accepted;
            }
        };
        let Ok(permit) = Arc::clone(&self.limits.0.queries).try_acquire_owned() else {
            return Ack::Overloaded("too many recovery queries".to_owned());
        };
        let in_flight = self.figures.begin(call.body.len());
        tokio::spawn(async move {
            self.answer(call, wrong.as_ref()).await;
            drop((permit, in_flight));
        });
        Ack::Accepted
    }

    fn count_invalid(&self) {
        self.figures.count_error(CallError::InvalidMessage);
    }
}
