//! The other direction: a PUB socket that connects to a SUB socket which binds, again and again while that is away.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

use super::connection::serve;
use super::publisher::Shared;

/// Pause between attempts: libzmq's first reconnect interval is 100 ms, and a peer that is away costs nothing more.
const RETRY: Duration = Duration::from_millis(100);

/// Longest wait for one attempt.
const PATIENCE: Duration = Duration::from_secs(5);

/// Keeps one connection to `peer` until the publisher ends.
pub(super) async fn keep(peer: SocketAddr, shared: Arc<Shared>) {
    loop {
        let connected = tokio::select! {
            () = shared.door.ended() => return,
            connected = tokio::time::timeout(PATIENCE, TcpStream::connect(peer)) => connected,
        };
        // Until the peer is there, refusals are the normal case and not worth a line each.
        if let Ok(Ok(stream)) = connected {
            serve(stream, Arc::clone(&shared)).await;
        }
        tokio::select! {
            () = shared.door.ended() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}
