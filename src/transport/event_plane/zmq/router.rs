//! A ROUTER socket of our own, for one use: a DEALER or REQ asks, and gets the messages of the answer on the same
//! connection. One answer at a time per connection; a peer that does not read holds up itself alone, and not for ever.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::door::{Door, Ended, accept, listen};
use super::session::{Heard, Role, Session};
use super::{Limits, ZmqStats, wire};

/// Bytes of an answer that are put together for one write.
const WRITE_BYTES: usize = 64 * 1024;

/// Longest time that a peer may take nothing of an answer.
const STALL: Duration = Duration::from_secs(10);

/// What answers requests.
pub trait Service: Send + Sync + 'static {
    /// Opens the answer to a request, whose frames are given as the peer sent them. `None`: it is not understood, and
    /// the peer gets nothing.
    fn open(&self, request: &[Vec<u8>]) -> Option<Box<dyn Answer>>;
}

/// An answer on its way.
pub trait Answer: Send {
    /// Frames of the next message, as the peer receives them; `None` after the last one.
    fn next_message(&mut self) -> Option<Vec<Bytes>>;
}

/// A ROUTER socket. Dropping it closes it.
pub struct ZmqRouter {
    door: Arc<Door>,
    local_addr: SocketAddr,
}

impl ZmqRouter {
    /// Listens on `addr` (port 0: any free one); its tasks run on `runtime`.
    ///
    /// # Errors
    /// The socket's.
    pub fn bind(addr: SocketAddr, limits: Limits, service: Arc<dyn Service>, runtime: &Handle) -> io::Result<Self> {
        let listener = listen(addr, runtime)?;
        let local_addr = listener.local_addr()?;
        let door = Arc::new(Door::new(limits));
        let serve = {
            let door = Arc::clone(&door);
            move |stream| serve(stream, Arc::clone(&door), Arc::clone(&service))
        };
        door.open(accept(listener, Arc::clone(&door), serve), runtime);
        Ok(Self { door, local_addr })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Counters of its connections; requests that are not understood count as malformed.
    pub fn stats(&self) -> ZmqStats {
        self.door.stats()
    }

    /// Stops listening and ends the connections.
    pub fn close(&self) {
        self.door.close();
    }

    /// Stops listening and resets the connections, as the death of a process does.
    pub fn crash(&self) {
        self.door.crash();
    }

    /// Waits, after `close` or `crash`, until port and connections are gone.
    pub async fn closed(&self) {
        self.door.closed().await;
    }
}

impl Drop for ZmqRouter {
    fn drop(&mut self) {
        self.close();
    }
}

async fn serve(stream: TcpStream, door: Arc<Door>, service: Arc<dyn Service>) {
    let talk = async |stream: &TcpStream| {
        tokio::select! {
            () = door.ended() => Ok(()),
            ended = talk(stream, &door, &*service) => ended,
        }
    };
    door.host(stream, talk).await;
}

async fn talk(stream: &TcpStream, door: &Door, service: &dyn Service) -> Result<(), Ended> {
    let mut session = Session::new(Role::Router, &door.limits);
    write(stream, &wire::greeting()).await?;
    let mut requests = Vec::new();
    let patience = door.limits.handshake_timeout;
    let handshake = async {
        while !hear(stream, &mut session, &mut requests).await? {}
        Ok::<_, Ended>(())
    };
    timeout(patience, handshake)
        .await
        .map_err(|_| Ended::Slow(patience))??;
    loop {
        for request in std::mem::take(&mut requests) {
            match service.open(&request) {
                Some(answer) => send(stream, answer).await?,
                None => door.count_malformed(),
            }
        }
        hear(stream, &mut session, &mut requests).await?;
    }
}

/// Reads once and answers what belongs to the protocol; whether the peer became ready.
async fn hear(stream: &TcpStream, session: &mut Session, requests: &mut Vec<Vec<Vec<u8>>>) -> Result<bool, Ended> {
    let mut bytes = [0; 1024];
    let read = loop {
        stream.readable().await?;
        match stream.try_read(&mut bytes) {
            Ok(0) => return Err(Ended::Left),
            Ok(read) => break read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    };
    let (mut reply, mut ready) = (Vec::new(), false);
    session.receive(&bytes[..read], |heard| match heard {
        Heard::Greeting => reply.extend_from_slice(&wire::ready(Role::Router)),
        Heard::Ready => ready = true,
        Heard::Message(frames) => requests.push(frames),
        Heard::Ping(context) => reply.extend_from_slice(&wire::pong(&context)),
        Heard::Subscribe(_) | Heard::Cancel(_) => {}
    })?;
    write(stream, &reply).await?;
    Ok(ready)
}

async fn send(stream: &TcpStream, mut answer: Box<dyn Answer>) -> Result<(), Ended> {
    let mut bytes = Vec::with_capacity(WRITE_BYTES);
    loop {
        let message = answer.next_message();
        if let Some(frames) = &message {
            wire::put_message(&mut bytes, frames);
        }
        if bytes.len() >= WRITE_BYTES || message.is_none() {
            write(stream, &bytes).await?;
            bytes.clear();
        }
        if message.is_none() {
            return Ok(());
        }
    }
}

async fn write(stream: &TcpStream, mut bytes: &[u8]) -> Result<(), Ended> {
    while !bytes.is_empty() {
        let ready = timeout(STALL, stream.ready(Interest::WRITABLE)).await;
        ready.map_err(|_| Ended::Stalled(STALL))??;
        match stream.try_write(bytes) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
