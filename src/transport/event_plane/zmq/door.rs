//! The way in that every socket of this plane has: a listener, its connections, their counters and their end.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::session::Violation;
use super::{Limits, ZmqStats};

/// Connections that wait to be accepted; all routers of a cluster may arrive at once.
const BACKLOG: i32 = 256;

/// Pause after a failed accept: descriptors come back when others close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a connection ended before the socket did.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error("peer left")]
    Left,
    #[error(transparent)]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("no handshake within {0:?}")]
    Slow(Duration),
    #[error("peer took nothing for {0:?}")]
    Stalled(Duration),
}

/// Connections of one socket.
pub(super) struct Door {
    pub(super) limits: Limits,
    connections: AtomicUsize,
    end: CancellationToken,
    crashed: AtomicBool,
    tasks: TaskTracker,
    accepted: AtomicU64,
    refused: AtomicU64,
    accept_errors: AtomicU64,
    malformed: AtomicU64,
    slow_handshakes: AtomicU64,
}

impl Door {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            connections: AtomicUsize::new(0),
            end: CancellationToken::new(),
            crashed: AtomicBool::new(false),
            tasks: TaskTracker::new(),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            accept_errors: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
            slow_handshakes: AtomicU64::new(0),
        }
    }

    /// Runs the one task that brings connections in.
    pub(super) fn open(&self, task: impl Future<Output = ()> + Send + 'static, runtime: &Handle) {
        self.tasks.spawn_on(task, runtime);
        self.tasks.close();
    }

    pub(super) async fn ended(&self) {
        self.end.cancelled().await;
    }

    pub(super) fn is_crashed(&self) -> bool {
        self.crashed.load(Ordering::Acquire)
    }

    pub(super) fn close(&self) {
        self.end.cancel();
    }

    pub(super) fn crash(&self) {
        self.crashed.store(true, Ordering::Release);
        self.end.cancel();
    }

    pub(super) async fn closed(&self) {
        self.tasks.wait().await;
    }

    pub(super) fn count_malformed(&self) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counters of the connections; those of messages stay zero.
    pub(super) fn stats(&self) -> ZmqStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ZmqStats {
            connections: self.connections.load(Ordering::Relaxed),
            accepted: count(&self.accepted),
            refused: count(&self.refused),
            accept_errors: count(&self.accept_errors),
            malformed: count(&self.malformed),
            handshake_timeouts: count(&self.slow_handshakes),
            ..ZmqStats::default()
        }
    }

    /// Counts a connection that we made.
    pub(super) fn count_dialled(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs one connection to its end and logs how it ended.
    pub(super) async fn host(&self, stream: TcpStream, talk: impl AsyncFnOnce(&TcpStream) -> Result<(), Ended>) {
        if let Err(ended) = self.carry(&stream, talk).await {
            debug!(peer = ?stream.peer_addr().ok(), reason = %ended, "event peer gone");
        }
    }

    /// Runs one connection to its end and counts how it ended. `Ok`: the socket has ended.
    pub(super) async fn carry(
        &self,
        stream: &TcpStream,
        talk: impl AsyncFnOnce(&TcpStream) -> Result<(), Ended>,
    ) -> Result<(), Ended> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let _open = Open(self);
        let ended = match prepare(stream) {
            Ok(()) => talk(stream).await,
            Err(error) => Err(error.into()),
        };
        if self.is_crashed() {
            // Closing sends a reset, as the end of a killed process with unread data does.
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
            return Ok(());
        }
        match ended {
            Err(Ended::Violation(_)) => self.count_malformed(),
            Err(Ended::Slow(_)) => {
                self.slow_handshakes.fetch_add(1, Ordering::Relaxed);
            }
            Ok(()) | Err(Ended::Left | Ended::Socket(_) | Ended::Stalled(_)) => {}
        }
        ended
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // A peer whose machine is gone would hold its queue for ever.
    SockRef::from(stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(60)))
}

/// Counts a connection as long as it is served.
struct Open<'a>(&'a Door);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A listener on `addr` that belongs to `runtime`.
pub(super) fn listen(addr: SocketAddr, runtime: &Handle) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    // A port asked for by number may still be in TIME_WAIT from the incarnation before.
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    let _entered = runtime.enter();
    TcpListener::from_std(socket.into())
}

/// Accepts until the door closes; each connection is a task of its own.
pub(super) async fn accept<F>(listener: TcpListener, door: Arc<Door>, serve: impl Fn(TcpStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let accepted = tokio::select! {
            () = door.ended() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) if door.tasks.len() <= door.limits.connections => {
                door.accepted.fetch_add(1, Ordering::Relaxed);
                door.tasks.spawn(serve(stream));
            }
            Ok(_) => {
                door.refused.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                if door.accept_errors.fetch_add(1, Ordering::Relaxed) == 0 {
                    warn!(%error, "event socket cannot accept a peer; it goes on trying");
                }
                tokio::select! {
                    () = door.ended() => return,
                    () = tokio::time::sleep(ACCEPT_PAUSE) => {}
                }
            }
        }
    }
}
