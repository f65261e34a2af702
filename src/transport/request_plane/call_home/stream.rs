//! The task that minds one response socket.
//!
//! It sleeps until the frontend says something (stop, kill, close), the socket takes more bytes after it was full, the
//! answer ends, or a time limit passes. Tokens do not wake it.

use std::io;
use tokio::time::Instant;

use super::AnswerLimits;
use super::sink::{Phase, SocketSink};
use super::socket::ResponseSocket;
use crate::transport::request_plane::response::{self, StreamControl};
use crate::transport::request_plane::two_part;

/// How a stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Everything was sent and the frontend closed (or had its time to).
    Complete,
    /// The frontend said stop or kill, or closed before the end.
    Cancelled,
    /// Bytes waited too long for the reader.
    Stalled,
    /// The worker died; the connection is reset.
    Broken,
    /// The reader was given up by the sink; the connection is reset.
    GivenUp,
    /// The frontend's TLS turned the connection down, which it may say after the handshake has ended here.
    Refused(String),
}

/// Minds the socket to its end. On every result but `Complete` the caller has to cancel the request.
pub async fn mind(stream: &ResponseSocket, sink: &SocketSink, limits: &AnswerLimits) -> Ended {
    let ended = watch(stream, sink, limits).await;
    let ended = stream.refusal().map_or(ended, Ended::Refused);
    match ended {
        Ended::Complete | Ended::Cancelled | Ended::Refused(_) => {}
        // The last reference that closes the socket sends a reset.
        Ended::Stalled | Ended::Broken | Ended::GivenUp => stream.reset_on_close(),
    }
    if ended != Ended::Complete {
        sink.give_up();
    }
    ended
}

async fn watch(stream: &ResponseSocket, sink: &SocketSink, limits: &AnswerLimits) -> Ended {
    let mut inbox = Inbox::default();
    // While bytes wait: when the reader is given up. After the last byte: when the close is no longer waited for.
    let mut deadline: Option<Instant> = None;
    loop {
        let pending = match sink.phase() {
            Phase::Broken => return Ended::Broken,
            Phase::GivenUp => return Ended::GivenUp,
            Phase::Ended { flushed: true } => {
                deadline.get_or_insert_with(|| Instant::now() + limits.close);
                false
            }
            Phase::Open | Phase::Ended { flushed: false } => {
                let pending = sink.pending_bytes() > 0;
                if pending {
                    deadline.get_or_insert_with(|| Instant::now() + limits.stall);
                } else {
                    deadline = None;
                }
                pending
            }
        };
        tokio::select! {
            said = inbox.next(stream) => {
                return match said {
                    // Asked only now: the last byte may have left, and the frontend closed upon it, while this slept.
                    _ if is_done(sink) => Ended::Complete,
                    Ok(StreamControl::Stop | StreamControl::Kill) => Ended::Cancelled,
                    Err(error) => {
                        tracing::debug!(%error, "response socket closed before the end of the answer");
                        Ended::Cancelled
                    }
                };
            }
            () = sink.woken() => {}
            writable = stream.writable(), if pending => match writable.and_then(|()| sink.drain()) {
                // Progress earns the reader a new deadline.
                Ok(true) => deadline = None,
                Ok(false) => {}
                Err(_) => return Ended::Cancelled,
            },
            () = sleep_until(deadline), if deadline.is_some() => {
                return if is_done(sink) { Ended::Complete } else { Ended::Stalled };
            }
        }
    }
}

fn is_done(sink: &SocketSink) -> bool {
    matches!(sink.phase(), Phase::Ended { flushed: true })
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Control frames are a prefix and at most a few header bytes; anything longer is not one.
const MAX_CONTROL_BYTES: usize = two_part::PREFIX_BYTES + 32;

struct Inbox {
    bytes: [u8; MAX_CONTROL_BYTES],
    len: usize,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            bytes: [0; MAX_CONTROL_BYTES],
            len: 0,
        }
    }
}

impl Inbox {
    /// The next control frame. An error is the end of the socket or a frame that is no control frame. Cancel-safe.
    async fn next(&mut self, stream: &ResponseSocket) -> io::Result<StreamControl> {
        loop {
            if let Some(control) = self.decode()? {
                return Ok(control);
            }
            match stream.try_read(&mut self.bytes[self.len..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => self.len += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
                Err(error) => return Err(error),
            }
        }
    }

    fn decode(&self) -> io::Result<Option<StreamControl>> {
        let Some((prefix, rest)) = self.bytes[..self.len].split_first_chunk::<{ two_part::PREFIX_BYTES }>() else {
            return Ok(None);
        };
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let prefix = two_part::decode_prefix(prefix, 0).map_err(|error| invalid(error.to_string()))?;
        let header_len = usize::try_from(prefix.header).unwrap_or(usize::MAX);
        if header_len > MAX_CONTROL_BYTES - two_part::PREFIX_BYTES {
            return Err(invalid(format!("control frame with a header of {header_len} bytes")));
        }
        let Some(header) = rest.get(..header_len) else {
            return Ok(None);
        };
        response::decode_control(header)
            .map(Some)
            .ok_or_else(|| invalid(format!("unknown control frame {:?}", String::from_utf8_lossy(header))))
    }
}
