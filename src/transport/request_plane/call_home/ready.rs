//! An answer that is known as a whole before its first byte is sent: shared pieces, written as the caller takes them.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Duration;

use bytes::{Buf, Bytes};

use super::{Dialer, ResponseSocket};
use crate::transport::request_plane::control::Control;
use crate::transport::request_plane::{Codec, response};

/// Most pieces of one write.
const WRITE_PIECES: usize = 16;

/// One answer on its way.
#[derive(Debug)]
pub struct ReadyAnswer {
    socket: ResponseSocket,
    codec: Codec,
    pieces: VecDeque<Bytes>,
    sent: u64,
}

/// How far a write came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// Everything is with the kernel.
    All,
    /// Something went out; the caller has to read before more does.
    Some,
    /// The caller has to read first.
    Nothing,
}

impl ReadyAnswer {
    /// Dials the caller; the opening frames are queued.
    ///
    /// # Errors
    /// The socket's, or `TimedOut`.
    pub async fn dial(control: &Control, dialer: &Dialer) -> io::Result<Self> {
        let socket = dialer.dial(control.address).await?;
        let mut head = Vec::with_capacity(256);
        response::write_handshake(&mut head, &control.subject);
        response::write_prologue(&mut head);
        Ok(Self {
            socket,
            codec: control.codec,
            pieces: VecDeque::from([Bytes::from(head)]),
            sent: 0,
        })
    }

    /// Queues the pieces of all item frames and the end.
    pub fn push(&mut self, items: Vec<Bytes>) {
        let mut tail = Vec::with_capacity(128);
        response::write_end(&mut tail, self.codec);
        let pieces = items.into_iter().chain([Bytes::from(tail)]);
        self.pieces.extend(pieces.filter(|piece| !piece.is_empty()));
    }

    /// Writes what the socket takes right now.
    ///
    /// # Errors
    /// The socket's, when the caller is gone.
    pub fn write(&mut self) -> io::Result<Written> {
        let mut written = Written::Nothing;
        while !self.pieces.is_empty() {
            let slices: Vec<_> = self
                .pieces
                .iter()
                .take(WRITE_PIECES)
                .map(|piece| IoSlice::new(piece))
                .collect();
            match self.socket.try_write_vectored(&slices) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    self.advance(bytes);
                    written = Written::Some;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        match self.socket.try_flush() {
            Ok(()) => Ok(Written::All),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(written),
            Err(error) => Err(error),
        }
    }

    /// Bytes that the socket has taken so far.
    pub fn sent_bytes(&self) -> u64 {
        self.sent
    }

    fn advance(&mut self, mut bytes: usize) {
        self.sent += bytes as u64;
        while let Some(front) = self.pieces.front_mut() {
            if bytes < front.len() {
                front.advance(bytes);
                return;
            }
            bytes -= front.len();
            self.pieces.pop_front();
        }
    }

    /// Resolves when the socket may take more.
    ///
    /// # Errors
    /// The socket's.
    pub async fn writable(&self) -> io::Result<()> {
        self.socket.writable().await
    }

    /// Waits for the caller to close, at most `limit`. It closes with a reset more often than not; nothing it says by
    /// now changes anything.
    pub async fn closed(&self, limit: Duration) {
        drop(tokio::time::timeout(limit, self.socket.read_to_close()).await);
    }
}
