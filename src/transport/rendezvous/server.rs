//! The prefill side: listens, reads the opening of each connection, and hands those that say who they are to a [`Host`].

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::link::{Framed, Link, LinkError};
use super::wire::{Envelope, Message, Register};
use super::{Identity, RendezvousLimits};

/// A decode worker that has said who it is.
#[derive(Debug)]
pub struct Arrival {
    /// Which handoff it came for.
    pub identity: Identity,
    /// What it said of itself.
    pub register: Register,
    /// Its connection. [`Message::Registered`] is still to be said.
    pub link: Link,
}

/// Takes decode workers in. Called from the sockets' threads; never blocks.
pub trait Host: Send + Sync + 'static {
    /// Takes one in; `false`: there is no room for it.
    fn receive(&self, arrival: Arrival) -> bool;
}

/// A running listener; dropping it stops the listening, and open connections live on.
#[derive(Debug)]
pub struct RendezvousServer {
    address: SocketAddr,
    stop: CancellationToken,
    reset: CancellationToken,
}

/// A port that cannot be had.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address} for handoffs: {source}; choose another port with --bootstrap-ports (0: any free one), or host with --tcp-host"
)]
pub struct BindError {
    /// Wanted address.
    pub address: SocketAddr,
    /// Why not.
    pub source: io::Error,
}

/// After a failed accept (out of descriptors, mostly): the backlog keeps the peer waiting meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

impl RendezvousServer {
    /// Binds `wanted` (port 0: any) and serves on `pool`.
    ///
    /// # Errors
    /// [`BindError`] names the address.
    pub fn bind(
        wanted: SocketAddr,
        receiver: Arc<dyn Host>,
        limits: RendezvousLimits,
        pool: &Handle,
    ) -> Result<Self, BindError> {
        let failed = |source| BindError {
            address: wanted,
            source,
        };
        let _pool = pool.enter();
        let listener = std::net::TcpListener::bind(wanted).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        let (stop, reset) = (CancellationToken::new(), CancellationToken::new());
        pool.spawn(accept(listener, receiver, limits, stop.clone(), reset.clone()));
        Ok(Self { address, stop, reset })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends as a dead process does: the port is closed, open connections are reset.
    pub fn crash(&self) {
        self.stop.cancel();
        self.reset.cancel();
    }
}

impl Drop for RendezvousServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn accept(
    listener: TcpListener,
    host: Arc<dyn Host>,
    limits: RendezvousLimits,
    stop: CancellationToken,
    reset: CancellationToken,
) {
    let open = Arc::new(AtomicU32::new(0));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((_, peer)) if open.load(Ordering::Relaxed) >= limits.max_connections => {
                tracing::warn!(%peer, limit = limits.max_connections, "too many rendezvous connections; closed this one");
            }
            Ok((stream, peer)) => {
                open.fetch_add(1, Ordering::Relaxed);
                let (host, open, reset) = (Arc::clone(&host), Arc::clone(&open), reset.clone());
                tokio::spawn(async move {
                    if let Err(error) = serve(stream, &*host, limits, reset).await {
                        tracing::debug!(%peer, %error, "dropped a rendezvous connection");
                    }
                    open.fetch_sub(1, Ordering::Relaxed);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a rendezvous connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(
    stream: TcpStream,
    host: &dyn Host,
    limits: RendezvousLimits,
    reset: CancellationToken,
) -> Result<(), LinkError> {
    let mut framed = Framed::new(stream, limits.patience)?;
    let opening = async {
        framed.header().await?;
        framed.frame(limits.patience).await
    };
    let Envelope { identity, message } = tokio::select! {
        () = reset.cancelled() => return Ok(()),
        opening = opening => opening?,
    };
    let Message::Register(register) = message else {
        let message = "the first message must be a registration".to_owned();
        framed.say_last(identity, Message::ProtocolError { message }).await;
        return Ok(());
    };
    let (link, carry) = framed.link(identity, reset);
    let outbox = link.outbox.clone();
    let arrival = Arrival {
        identity,
        register,
        link,
    };
    if !host.receive(arrival) {
        // The queue of a fresh connection has room.
        outbox.say(Message::Overloaded);
    }
    drop(outbox);
    carry.await;
    Ok(())
}
