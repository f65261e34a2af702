//! Accept loop and connections of one face.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::FaceState;
use super::faults;
use super::routes;
use crate::patient_io::PatientIo;
use crate::transport::request_plane::tcp::server::Shutdown;

/// A load generator opens its connections all at once.
const BACKLOG: u32 = 1024;
/// Bytes that one connection buffers for a request's head, or for a reader.
const BUFFER_BYTES: usize = 64 * 1024;

pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

pub(super) async fn accept(listener: TcpListener, state: Arc<FaceState>, shutdown: Shutdown, connections: TaskTracker) {
    loop {
        let accepted = tokio::select! {
            () = shutdown.stop_accepting.cancelled() => return,
            () = shutdown.reset.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((_, peer)) if connections.len() >= state.limits.max_connections => {
                metrics::counter!("ghostfleet_http_connections_refused_total").increment(1);
                tracing::warn!(worker = %state.worker, %peer, "too many HTTP connections; closed this one");
            }
            Ok((stream, peer)) => {
                connections.spawn(serve(stream, peer, Arc::clone(&state), shutdown.clone()));
            }
            Err(error) => {
                // Out of descriptors, mostly: the backlog keeps the peer waiting while others finish.
                tracing::warn!(worker = %state.worker, %error, "cannot accept an HTTP connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, state: Arc<FaceState>, shutdown: Shutdown) {
    let (stream, detour) = match faults::detour(&state, stream).await {
        Ok(stream) => stream,
        Err(error) => {
            tracing::warn!(worker = %state.worker, %peer, %error, "no detour for an HTTP connection; closed it");
            return;
        }
    };
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "HTTP connection");
    }
    let patience = state.limits.patience;
    // A worker that dies in the middle of an answer resets this one connection; a crash of the worker resets all.
    let reset: CancellationToken = shutdown.reset.child_token();
    let service = {
        let (state, reset) = (Arc::clone(&state), reset.clone());
        service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            routes::answer(Arc::clone(&state), reset.clone(), detour, request)
        })
    };
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(PatientIo::new(stream, patience), service);
    let mut stopping = false;
    let broken = loop {
        tokio::select! {
            biased;
            () = reset.cancelled() => break true,
            () = shutdown.stop_accepting.cancelled(), if !stopping => {
                stopping = true;
                std::pin::Pin::new(&mut connection).graceful_shutdown();
            }
            ended = &mut connection => {
                if let Err(error) = &ended {
                    tracing::debug!(worker = %state.worker, %peer, %error, "HTTP connection lost");
                }
                break ended.is_err_and(|error| !error.is_parse());
            }
        }
    };
    if broken {
        // The close below is a reset, and the kernel keeps nothing for a peer that does not read.
        let parts = connection.into_parts();
        if let Err(error) = parts.io.stream().set_zero_linger() {
            tracing::debug!(%peer, %error, "cannot reset an HTTP connection");
        }
    }
}
