//! Listener and connections of the TCP request plane.
//!
//! Each connection is one task: it reads pipelined request frames, finds the endpoint by path, lets it take or refuse
//! the call, and writes the acks in request order. Nothing here waits for an engine. A peer is bounded in every way:
//! frame size, time to finish a frame it has begun, time to take its acks, number of connections. A connection on which a
//! fault has withheld an ack says nothing more and is closed when the fault is over ([`super::super::mending`]).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::frame::{self, Ack, RequestFrame};
use crate::transport::request_plane::endpoint::{self, EndpointTable};
use crate::transport::tls::ServerTls;

/// Bounds of one listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest request frame, bytes.
    pub max_frame_bytes: usize,
    /// Most open request connections; further ones are closed at once.
    pub max_connections: u32,
    /// A frame that has begun must be complete within this time, and acks must be taken within it.
    pub peer_patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_frame_bytes: frame::DEFAULT_MAX_FRAME_BYTES,
            max_connections: 16_384,
            peer_patience: Duration::from_secs(30),
        }
    }
}

/// How a listener and its connections end.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// No further connections are accepted; open ones live on.
    pub stop_accepting: CancellationToken,
    /// Open connections are reset (RST), as a dead process would leave them.
    pub reset: CancellationToken,
}

/// A running listener.
#[derive(Debug)]
pub struct TcpServer {
    address: SocketAddr,
    shutdown: Shutdown,
}

/// A listener that cannot be had.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address}: {source}; choose another port with --tcp-port or DYN_TCP_RPC_PORT (0: any free one), or host with --tcp-host or DYN_TCP_RPC_HOST"
)]
pub struct BindError {
    /// Wanted address.
    pub address: SocketAddr,
    /// Why not.
    pub source: io::Error,
}

impl TcpServer {
    /// Binds `host:port` (port 0: any) and serves `endpoints` on the current runtime until shut down, with TLS or
    /// without.
    ///
    /// # Errors
    /// [`BindError`] names the address.
    pub fn bind(
        host: IpAddr,
        port: u16,
        endpoints: EndpointTable,
        limits: Limits,
        tls: Option<ServerTls>,
    ) -> Result<Self, BindError> {
        let wanted = SocketAddr::new(host, port);
        let listener = listen(wanted).map_err(|source| BindError {
            address: wanted,
            source,
        })?;
        let address = listener.local_addr().map_err(|source| BindError {
            address: wanted,
            source,
        })?;
        let shutdown = Shutdown::default();
        tokio::spawn(accept(listener, endpoints, limits, tls, shutdown.clone()));
        Ok(Self { address, shutdown })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The handles to end it.
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.shutdown.stop_accepting.cancel();
    }
}

/// A burst of frontends may connect at once: the standard backlog of 128 would drop some of them.
const BACKLOG: i32 = 4096;

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

async fn accept(
    listener: TcpListener,
    endpoints: EndpointTable,
    limits: Limits,
    tls: Option<ServerTls>,
    shutdown: Shutdown,
) {
    let open = Arc::new(AtomicU32::new(0));
    loop {
        let accepted = tokio::select! {
            () = shutdown.stop_accepting.cancelled() => return,
            () = shutdown.reset.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                if open.load(Ordering::Relaxed) >= limits.max_connections {
                    metrics::counter!("ghostfleet_request_connections_refused_total").increment(1);
                    tracing::warn!(%peer, limit = limits.max_connections, "too many request connections; closed this one");
                    continue;
                }
                let guard = OpenGuard::new(&open);
                let connection = Connection {
                    peer,
                    endpoints: endpoints.clone(),
                    limits,
                    tls: tls.clone(),
                };
                let reset = shutdown.reset.clone();
                tokio::spawn(async move {
                    connection.run(stream, reset).await;
                    drop(guard);
                });
            }
            Err(error) => {
                // Out of descriptors, mostly: the backlog keeps the peer waiting while others finish.
                tracing::warn!(%error, "cannot accept a request connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Never without a token.
async fn cancelled(token: Option<&CancellationToken>) {
    match token {
        Some(token) => token.cancelled().await,
        None => std::future::pending().await,
    }
}

struct OpenGuard(Arc<AtomicU32>);

impl OpenGuard {
    fn new(open: &Arc<AtomicU32>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(open))
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Connection {
    peer: SocketAddr,
    endpoints: EndpointTable,
    limits: Limits,
    tls: Option<ServerTls>,
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("closed by the frontend")]
    Eof,
    #[error("closed by the frontend in the middle of a frame")]
    Truncated,
    #[error("{0}")]
    Oversized(#[from] frame::Oversized),
    #[error("a request frame was not completed within {0:?}")]
    SlowFrame(Duration),
    #[error("acks were not read within {0:?}")]
    SlowAcks(Duration),
    #[error("no TLS with this peer: {0}")]
    Handshake(io::Error),
    #[error("its acks were out of step, and the fault that withheld one is over")]
    Mended,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Connection {
    async fn run(self, stream: TcpStream, reset: CancellationToken) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(peer = %self.peer, %error, "request connection");
        }
        let ended = match &self.tls {
            None => self.serve_until(stream, |stream| stream, reset).await,
            Some(tls) => {
                let accepted = tokio::select! {
                    () = reset.cancelled() => return,
                    accepted = tls.accept(stream) => accepted,
                };
                match accepted {
                    Ok(stream) => self.serve_until(stream, |stream| stream.get_ref().0, reset).await,
                    Err(error) => Some(Ended::Handshake(error)),
                }
            }
        };
        match ended {
            None => tracing::debug!(peer = %self.peer, "request connection reset"),
            Some(Ended::Eof) => tracing::debug!(peer = %self.peer, "request connection closed"),
            Some(reason @ Ended::Mended) => tracing::debug!(peer = %self.peer, %reason, "closed a request connection"),
            Some(Ended::Io(error)) => tracing::debug!(peer = %self.peer, %error, "request connection lost"),
            Some(
                reason @ (Ended::Truncated
                | Ended::Oversized(_)
                | Ended::SlowFrame(_)
                | Ended::SlowAcks(_)
                | Ended::Handshake(_)),
            ) => {
                metrics::counter!("ghostfleet_request_connections_dropped_total").increment(1);
                tracing::warn!(peer = %self.peer, %reason, "dropped a request connection");
            }
        }
    }

    /// Serves until the connection ends, or is to end as with a dead process (`None`).
    async fn serve_until<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        mut stream: S,
        socket: fn(&S) -> &TcpStream,
        reset: CancellationToken,
    ) -> Option<Ended> {
        tokio::select! {
            () = reset.cancelled() => {}
            ended = self.serve(&mut stream) => {
                if ended.is_some() {
                    return ended;
                }
            }
        }
        // Linger 0 makes the close below a reset.
        if let Err(error) = SockRef::from(socket(&stream)).set_linger(Some(Duration::ZERO)) {
            tracing::debug!(peer = %self.peer, %error, "cannot reset a request connection");
        }
        None
    }

    /// `None`: a fault wants the connection reset.
    async fn serve<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: &mut S) -> Option<Ended> {
        // Starts small: a frontend keeps up to a hundred connections open, most of them idle.
        let mut buffer = BytesMut::with_capacity(4096);
        let mut acks = Vec::new();
        // Acks are missing on it until then.
        let mut spoiled: Option<CancellationToken> = None;
        loop {
            let oversized = loop {
                match frame::decode(&mut buffer, self.limits.max_frame_bytes) {
                    Ok(Some(frame)) => match self.dispatch(&frame, spoiled.is_some()) {
                        Ack::Withheld(mended) => drop(spoiled.get_or_insert(mended)),
                        Ack::Reset => return None,
                        Ack::Accepted | Ack::Overloaded(_) | Ack::Unavailable(_) if spoiled.is_some() => {}
                        ack @ (Ack::Accepted | Ack::Overloaded(_) | Ack::Unavailable(_)) => ack.write(&mut acks),
                    },
                    Ok(None) => break None,
                    Err(oversized) => {
                        if spoiled.is_none() {
                            Ack::Unavailable(oversized.to_string()).write(&mut acks);
                        }
                        break Some(oversized);
                    }
                }
            };
            if !acks.is_empty() {
                let send = async {
                    stream.write_all(&acks).await?;
                    stream.flush().await
                };
                match tokio::time::timeout(self.limits.peer_patience, send).await {
                    Ok(Ok(())) => acks.clear(),
                    Ok(Err(error)) => return Some(error.into()),
                    Err(_) => return Some(Ended::SlowAcks(self.limits.peer_patience)),
                }
            }
            if let Some(oversized) = oversized {
                return Some(oversized.into());
            }
            tokio::select! {
                () = cancelled(spoiled.as_ref()) => return Some(Ended::Mended),
                read = self.read(stream, &mut buffer) => {
                    if let Err(ended) = read {
                        return Some(ended);
                    }
                }
            }
        }
    }

    /// Reads what comes next, be it the rest of a frame.
    async fn read<S: AsyncRead + Unpin>(&self, stream: &mut S, buffer: &mut BytesMut) -> Result<(), Ended> {
        let patience = self.limits.peer_patience;
        let bytes = if buffer.is_empty() {
            // Between frames a connection may idle for ever; a large buffer is not kept for that.
            if buffer.capacity() > 64 * 1024 {
                *buffer = BytesMut::with_capacity(4096);
            }
            stream.read_buf(buffer).await?
        } else {
            let read = tokio::time::timeout(patience, self.read_more(stream, buffer)).await;
            read.map_err(|_| Ended::SlowFrame(patience))??
        };
        match bytes {
            0 if buffer.is_empty() => Err(Ended::Eof),
            0 => Err(Ended::Truncated),
            _ => Ok(()),
        }
    }

    /// Reads until the frame at the front of the buffer is complete, so that the time limit is one for the whole frame.
    async fn read_more<S: AsyncRead + Unpin>(&self, stream: &mut S, buffer: &mut BytesMut) -> io::Result<usize> {
        let before = buffer.len();
        loop {
            if stream.read_buf(buffer).await? == 0 {
                return Ok(0);
            }
            if frame::is_complete(buffer, self.limits.max_frame_bytes) {
                return Ok(buffer.len() - before);
            }
        }
    }

    fn dispatch(&self, frame: &RequestFrame, is_unacked: bool) -> Ack {
        let endpoint = self.endpoints.get(&frame.path);
        let ack = endpoint::dispatch(endpoint, &frame.path, &frame.payload, is_unacked);
        if let Some(why) = ack.refusal() {
            tracing::debug!(peer = %self.peer, %why, "refused a request");
        }
        ack
    }
}
