//! One rendezvous connection as a pair of bounded channels: what the other side says comes out of one, what is to be
//! said goes into the other.
//!
//! The task behind it ends, and the connection with it, when the user of the link lets go of it, when the peer closes, or
//! when a limit is broken; what was handed over before is still sent. A peer that talks faster than it is listened to is
//! read no further: the inbox is small.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Identity;
use super::wire::{self, Envelope, Message, WireError};

/// Messages that may wait in either direction; a handoff has less than ten.
const QUEUE: usize = 16;

/// Both ends of a connection's channels, as its user has them.
#[derive(Debug)]
pub struct Link {
    /// What the peer says; ends with the connection.
    pub inbox: mpsc::Receiver<Message>,
    /// What to say to it. Dropping it closes the connection after the last message.
    pub outbox: Outbox,
}

/// What is to be said on a connection, in order. When the last of its clones is dropped, the connection closes after the
/// last message.
#[derive(Debug, Clone)]
pub struct Outbox {
    identity: Identity,
    said: mpsc::Sender<Envelope>,
}

impl Outbox {
    /// Says something; `false`: the other side does not listen.
    pub fn say(&self, message: Message) -> bool {
        self.put(self.identity, message)
    }

    /// Says it for another room, which is a fault; `false`: the other side does not listen.
    pub fn say_astray(&self, message: Message) -> bool {
        let mut identity = self.identity;
        identity.bootstrap_room ^= 1;
        self.put(identity, message)
    }

    fn put(&self, identity: Identity, message: Message) -> bool {
        self.said.try_send(Envelope { identity, message }).is_ok()
    }
}

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The socket's.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Unreadable.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The peer said another identity than at first.
    #[error("a frame of another handoff")]
    Identity,
    /// Too slow.
    #[error("nothing within {0:?}")]
    Slow(Duration),
    /// The peer refused.
    #[error("{0}")]
    Refused(String),
}

/// A connection before its channels exist: frames are read and written one by one.
#[derive(Debug)]
pub(super) struct Framed {
    stream: TcpStream,
    buffer: BytesMut,
    patience: Duration,
}

impl Framed {
    pub(super) fn new(stream: TcpStream, patience: Duration) -> io::Result<Self> {
        // Without it the peer's delayed acknowledgement holds back every second frame for 40 ms.
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            buffer: BytesMut::with_capacity(1024),
            patience,
        })
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        within(self.patience, self.stream.write_all(bytes)).await
    }

    /// Reads the header.
    pub(super) async fn header(&mut self) -> Result<(), LinkError> {
        let mut header = [0; wire::HEADER.len()];
        let read = self.stream.read_exact(&mut header);
        within(self.patience, async { read.await.map(|_| ()) }).await?;
        if header == wire::HEADER {
            Ok(())
        } else {
            Err(WireError::Header.into())
        }
    }

    /// Reads one frame, for which the peer may take `patience`.
    pub(super) async fn frame(&mut self, patience: Duration) -> Result<Envelope, LinkError> {
        let (stream, buffer) = (&mut self.stream, &mut self.buffer);
        let read = async {
            loop {
                if let Some(envelope) = wire::decode(buffer)? {
                    return Ok(envelope);
                }
                if stream.read_buf(buffer).await? == 0 {
                    return Err(LinkError::Io(io::ErrorKind::UnexpectedEof.into()));
                }
            }
        };
        tokio::time::timeout(patience, read)
            .await
            .unwrap_or(Err(LinkError::Slow(patience)))
    }

    /// Says something and closes: the connection is given up either way.
    pub(super) async fn say_last(&mut self, identity: Identity, message: Message) {
        let mut bytes = Vec::new();
        wire::encode(&mut bytes, &Envelope { identity, message });
        if self.write(&bytes).await.is_ok() {
            self.close().await;
        }
    }

    /// Turns the connection into channels and the task behind them, which resets it when `reset` is cancelled.
    pub(super) fn link(self, identity: Identity, reset: CancellationToken) -> (Link, impl Future<Output = ()>) {
        let (say, said) = mpsc::channel(QUEUE);
        let (hear, inbox) = mpsc::channel(QUEUE);
        let task = async move {
            match self.carry(identity, hear, said, &reset).await {
                Ok(()) => {}
                Err(error) => tracing::debug!(handoff = %identity.handoff_id, %error, "rendezvous connection lost"),
            }
        };
        let link = Link {
            inbox,
            outbox: Outbox { identity, said: say },
        };
        (link, task)
    }

    async fn carry(
        mut self,
        identity: Identity,
        hear: mpsc::Sender<Message>,
        mut said: mpsc::Receiver<Envelope>,
        reset: &CancellationToken,
    ) -> Result<(), LinkError> {
        let mut heard = None;
        let mut bytes = Vec::with_capacity(512);
        loop {
            if heard.is_none() {
                heard = wire::decode(&mut self.buffer)?;
            }
            tokio::select! {
                () = reset.cancelled() => {
                    // Linger 0 makes the close a reset, as the death of a process does.
                    SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))?;
                    return Ok(());
                }
                envelope = said.recv() => {
                    let Some(envelope) = envelope else {
                        self.close().await;
                        return Ok(());
                    };
                    bytes.clear();
                    wire::encode(&mut bytes, &envelope);
                    self.write(&bytes).await?;
                }
                permit = hear.reserve(), if heard.is_some() => match (permit, heard.take()) {
                    (Ok(permit), Some(envelope)) if envelope.identity == identity => permit.send(envelope.message),
                    (Ok(_), Some(_)) => return Err(LinkError::Identity),
                    // Nobody listens any more; what is still to be said is said.
                    _ => {}
                },
                read = self.stream.read_buf(&mut self.buffer), if heard.is_none() && !hear.is_closed() => {
                    if read? == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Closes so that the last frame arrives: unread bytes would turn the close into a reset.
    async fn close(&mut self) {
        if self.stream.shutdown().await.is_err() {
            return;
        }
        let mut rest = [0; 256];
        let drain = async { while matches!(self.stream.read(&mut rest).await, Ok(n) if n > 0) {} };
        drop(tokio::time::timeout(CLOSE, drain).await);
    }
}

/// After the last frame: time for the peer to close.
const CLOSE: Duration = Duration::from_secs(1);

async fn within<T>(patience: Duration, doing: impl Future<Output = io::Result<T>>) -> Result<T, LinkError> {
    match tokio::time::timeout(patience, doing).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(LinkError::Slow(patience)),
    }
}
