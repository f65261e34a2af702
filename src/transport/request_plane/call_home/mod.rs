//! The response socket: for each request the worker dials the caller's response server and streams the answer there.
//!
//! | Module | What |
//! |---|---|
//! | [`sink`] | buffer and socket of one answer, written to straight from the rank's thread |
//! | [`stream`] | the task that minds the socket: cancellation, back-pressure, the closing handshake |
//! | [`generate`] | the `generate` endpoint: decode, dial, submit |
//!
//! One connection per request is the protocol; nothing is pooled.

pub mod generate;
pub mod sink;
pub mod stream;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::control::Control;
use super::response;

/// Bounds of one answer.
#[derive(Debug, Clone, Copy)]
pub struct AnswerLimits {
    /// Time to connect to the caller.
    pub connect: Duration,
    /// Bytes that may wait for a reader that does not keep up; more cancels the request.
    pub max_pending_bytes: usize,
    /// Longest time without any progress while bytes wait; longer cancels the request.
    pub stall: Duration,
    /// After the last frame: time for the caller to close.
    pub close: Duration,
}

impl Default for AnswerLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            max_pending_bytes: 1024 * 1024,
            stall: Duration::from_secs(30),
            close: Duration::from_secs(10),
        }
    }
}

/// Dials the caller's response server.
///
/// # Errors
/// The socket's, or `TimedOut`.
pub async fn dial(address: SocketAddr, limits: &AnswerLimits) -> io::Result<TcpStream> {
    let connected = tokio::time::timeout(limits.connect, TcpStream::connect(address)).await;
    let stream = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Answers a call with ready-made item frames (recovery queries): dials, sends all, waits for the caller to close.
///
/// # Errors
/// The socket's, or `TimedOut`.
pub async fn answer_once(control: &Control, items: &[u8], limits: &AnswerLimits) -> io::Result<()> {
    let mut stream = dial(control.address, limits).await?;
    let mut head = Vec::with_capacity(256);
    response::write_handshake(&mut head, &control.subject);
    response::write_prologue(&mut head);
    let mut tail = Vec::with_capacity(128);
    response::write_end(&mut tail, control.codec);
    let send = async {
        stream.write_all(&head).await?;
        stream.write_all(items).await?;
        stream.write_all(&tail).await
    };
    tokio::time::timeout(limits.stall, send)
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    // The caller closes, with a reset more often than not; nothing it says by now changes anything.
    let mut rest = [0; 64];
    let drain = async { while matches!(stream.read(&mut rest).await, Ok(n) if n > 0) {} };
    drop(tokio::time::timeout(limits.close, drain).await);
    Ok(())
}
