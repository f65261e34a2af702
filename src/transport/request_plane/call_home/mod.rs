//! The response socket: for each request the worker dials the caller's response server and streams the answer there.
//!
//! | Module | What |
//! |---|---|
//! | [`sink`] | buffer and socket of one answer, written to straight from the rank's thread |
//! | [`stream`] | the task that minds the socket: cancellation, back-pressure, the closing handshake |
//! | [`open`] | answers under way |
//! | [`generate`] | the `generate` endpoint: decode, dial, submit |
//! | [`ready`] | answers that are known as a whole: recovery queries |
//!
//! One connection per request is the protocol; nothing is pooled.

mod content;
pub mod generate;
pub mod open;
pub mod ready;
pub mod sink;
pub mod stream;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::faults::draw::Dice;
use crate::transport::toxic::Toxics;
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
    dial_by(address, limits, None).await
}

/// The same, by a detour if there is one.
///
/// # Errors
/// As [`dial`].
pub async fn dial_by(
    address: SocketAddr,
    limits: &AnswerLimits,
    detour: Option<(Toxics, Dice)>,
) -> io::Result<TcpStream> {
    let connected = tokio::time::timeout(limits.connect, TcpStream::connect(address)).await;
    let stream = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    stream.set_nodelay(true)?;
    match detour {
        None => Ok(stream),
        Some((toxics, dice)) => toxics.detour(stream, dice).await,
    }
}
