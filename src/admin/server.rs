//! The admin server: its door. Loopback unless told otherwise; elsewhere every request has to show the token.
//!
//! Bounded: connections, size of heads and bodies and of all bodies together, time for both, and time for a reader to take
//! anything at all. Until a request is there as a whole, and while nobody reads its answer, its connection holds its place
//! on sufferance ([`super::places`]). [`super::guard`] says who is served.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use hyper::body::Frame;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioTimer;
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::answer::Problem;
use super::guard::Guard;
use super::places::{Place, Places};
use super::routes;
use crate::actors::control::Control;
use crate::config::AdminConfig;
use crate::patient_io::PatientIo;
use crate::whole_body::{Untaken, read_whole};

/// Connections at a time. A further one takes the place of one that has not sent a whole request, or does not read its
/// answer, and where there is none it waits.
const MAX_CONNECTIONS: usize = 128;

/// Longest body of a request.
const MAX_BODY_BYTES: usize = 1 << 20;

/// Bytes of all bodies that have come in part: what their connections may hold while they say no more.
const MAX_HELD_BYTES: usize = 8 << 20;

/// Longest head of a request.
const MAX_HEAD_BYTES: usize = 16 << 10;

/// Time for a head, and between two requests of a connection.
const HEAD_PATIENCE: Duration = Duration::from_secs(3);

/// Time for a head, and for a body, that nobody can cut short: in a crowd it is there, and only not read yet.
const GRACE: Duration = Duration::from_millis(250);

/// Time for a body, and for a reader to take anything at all.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes that the kernel keeps for a reader, about. Its own choice is millions, and one that never reads would look like one
/// that does until they are full.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// A server that cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for admin requests on {address}: {source}; choose another --admin-port (0: any free one)")]
pub struct AdminError {
    /// Wanted address.
    address: SocketAddr,
    /// Why not.
    source: io::Error,
}

/// A door with nothing behind it yet.
pub struct AdminDoor {
    listener: std::net::TcpListener,
    address: SocketAddr,
    token: Option<String>,
}

type Incoming = hyper::Request<hyper::body::Incoming>;

/// A running admin server. Dropping it ends it.
#[derive(Debug)]
pub struct AdminServer {
    end: CancellationToken,
}

impl AdminDoor {
    /// Listens; connections wait until [`Self::serve`].
    ///
    /// # Errors
    /// [`AdminError`] names the address.
    pub fn open(options: &AdminConfig) -> Result<Self, AdminError> {
        let open = || {
            let listener = std::net::TcpListener::bind(options.address)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) = open().map_err(|source| AdminError {
            address: options.address,
            source,
        })?;
        Ok(Self {
            listener,
            address,
            token: options.token.clone(),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves `control` on `pool`.
    pub fn serve(self, control: Control, pool: &Handle) -> AdminServer {
        let end = CancellationToken::new();
        let guard = Arc::new(Guard { token: self.token });
        let router = routes::router(control);
        let ended = end.clone();
        let listener = self.listener;
        pool.spawn(async move {
            let listener = match TcpListener::from_std(listener) {
                Ok(listener) => listener,
                Err(error) => return tracing::error!(%error, "the admin server cannot start"),
            };
            tokio::select! {
                () = ended.cancelled() => {}
                () = accept(listener, router, guard, (HEAD_PATIENCE, PATIENCE), &ended) => {}
            }
        });
        AdminServer { end }
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

/// Times are those for a head, and for a body or for a reader to take anything.
async fn accept(
    listener: TcpListener,
    router: Router,
    guard: Arc<Guard>,
    (head_patience, patience): (Duration, Duration),
    end: &CancellationToken,
) {
    let places = Places::new((MAX_CONNECTIONS, MAX_HELD_BYTES), GRACE);
    loop {
        places.room().await;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, mostly.
                tracing::warn!(%error, "cannot accept an admin connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        if let Err(error) = SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER_BYTES) {
            tracing::debug!(%error, "admin connection");
        }
        let place = places.take();
        let service = served(router.clone(), Arc::clone(&guard), Arc::clone(&place), patience);
        let ended = end.clone();
        let heard = Arc::clone(&place);
        let stream = PatientIo::new(stream, patience).heard_by(move |stalls| heard.stalls(stalls));
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(head_patience)
                .max_buf_size(MAX_HEAD_BYTES)
                .serve_connection(stream, service);
            tokio::select! {
                () = ended.cancelled() => {}
                () = place.lost() => {}
                served = connection => if let Err(error) = served {
                    tracing::debug!(%error, "admin connection lost");
                }
            }
        });
    }
}

/// The router behind the guard. `place` is kept from when a request is there as a whole to the end of its answer.
fn served(
    router: Router,
    guard: Arc<Guard>,
    place: Arc<Place>,
    patience: Duration,
) -> impl Service<Incoming, Response = Response, Error = Infallible, Future: Send> {
    let router = TowerToHyperService::new(router);
    service_fn(move |request: Incoming| {
        let (router, guard, place) = (router.clone(), Arc::clone(&guard), Arc::clone(&place));
        async move {
            let turn = place.speaks();
            let whole = match guard.check(request.uri().path(), request.headers()) {
                Ok(()) => whole(request, (&place, turn), patience).await,
                Err(problem) => Err(problem),
            };
            let busy = place.busy();
            let answer = match whole {
                Ok(request) => router.call(request).await?,
                Err(problem) => problem.into_response(),
            };
            let keep = move |frame| {
                let _ = &busy;
                frame
            };
            Ok(answer.map(|body| Body::new(body.map_frame(keep))))
        }
    })
}

/// The request with its body, as soon as that is there.
async fn whole(
    request: Incoming,
    (place, turn): (&Arc<Place>, Option<u64>),
    patience: Duration,
) -> Result<hyper::Request<Body>, Problem> {
    let (head, body) = request.into_parts();
    let reader = Arc::clone(place);
    let body = body.map_frame(move |frame: Frame<Bytes>| {
        if let Some(turn) = turn {
            reader.holds(turn, frame.data_ref().map_or(0, Bytes::len));
        }
        frame
    });
    match read_whole(body, MAX_BODY_BYTES, patience).await {
        Ok(body) => Ok(hyper::Request::from_parts(head, Body::from(body))),
        Err(untaken) => Err(refuse(untaken, patience)),
    }
}

fn refuse(untaken: Untaken, patience: Duration) -> Problem {
    match untaken {
        Untaken::TooLong => Problem(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("a body has at most {MAX_BODY_BYTES} bytes here"),
        ),
        Untaken::TooSlow => Problem(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not end within {} s", patience.as_secs()),
        ),
        Untaken::Broken(why) => Problem::bad(format!("the body broke off: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;
    use axum::routing::get;
    use futures::StreamExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::mpsc;

    use super::*;

    /// A server that lets a reader take nothing for so long. Its one path has a body without an end, which says when
    /// it is gone.
    async fn endless(patience: Duration) -> (SocketAddr, mpsc::UnboundedReceiver<()>) {
        struct Gone(mpsc::UnboundedSender<()>);
        impl Drop for Gone {
            fn drop(&mut self) {
                // The test may be over.
                let _ = self.0.send(());
            }
        }
        let (gone, is_gone) = mpsc::unbounded_channel();
        let body = async move || {
            let gone = Gone(gone.clone());
            let piece = move |()| {
                let _ = &gone;
                Ok::<_, Infallible>(Bytes::from_static(&[b'.'; 1024]))
            };
            Body::from_stream(futures::stream::repeat(()).map(piece))
        };
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let router = Router::new().route("/", get(body));
            accept(
                listener,
                router,
                open_guard(),
                (patience, patience),
                &CancellationToken::new(),
            )
            .await;
        });
        (address, is_gone)
    }

    #[tokio::test]
    async fn readers_that_never_read_lose_their_places() {
        let (address, mut gone) = endless(Duration::from_millis(50)).await;
        let mut readers = Vec::new();
        for _ in 0..2 * MAX_CONNECTIONS {
            let mut reader = TcpStream::connect(address).await.unwrap();
            reader
                .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
                .await
                .unwrap();
            readers.push(reader);
        }
        // Each of them has been there, which takes places that others have lost.
        for _ in &readers {
            gone.recv().await.unwrap();
        }
    }

    fn open_guard() -> Arc<Guard> {
        Arc::new(Guard { token: None })
    }

    /// A server whose patience ends for nobody while a test runs.
    async fn patient() -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let router = Router::new().route(
                "/",
                get(async || "here").post(async |body: Bytes| body.len().to_string()),
            );
            let ages = Duration::from_secs(3600);
            accept(listener, router, open_guard(), (ages, ages), &CancellationToken::new()).await;
        });
        address
    }

    /// So many connections that say `words` and no more.
    async fn crowd(address: SocketAddr, many: usize, words: &[u8]) -> Vec<TcpStream> {
        let mut crowd = Vec::new();
        for _ in 0..many {
            let mut slow = TcpStream::connect(address).await.unwrap();
            // One that has lost its place is told so.
            let _ = slow.write_all(words).await;
            crowd.push(slow);
        }
        crowd
    }

    /// All that comes until the connection is closed.
    async fn said(stream: &mut TcpStream) -> String {
        let mut said = String::new();
        stream.read_to_string(&mut said).await.unwrap();
        said
    }

    async fn is_shut_out(stream: &mut TcpStream) -> bool {
        !matches!(stream.read(&mut [0; 16]).await, Ok(1..))
    }

    #[tokio::test]
    async fn crowds_that_never_end_a_head_or_a_body_shut_nobody_out() {
        for words in [
            "GET / HTTP/1.1\r\nhost: local",
            "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{",
            "POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n",
        ] {
            let address = patient().await;
            let mut crowd = crowd(address, 4 * MAX_CONNECTIONS, words.as_bytes()).await;
            let mut newcomer = TcpStream::connect(address).await.unwrap();
            newcomer
                .write_all(
                    b"POST / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 7\r\n\r\n1234567",
                )
                .await
                .unwrap();
            let said_to_newcomer = said(&mut newcomer).await;
            assert!(said_to_newcomer.ends_with("\r\n\r\n7"), "{said_to_newcomer}");
            assert!(is_shut_out(&mut crowd.swap_remove(0)).await, "the first has given way");
        }
    }

    #[tokio::test]
    async fn crowds_that_never_read_shut_nobody_out() {
        let (address, _gone) = endless(Duration::from_secs(3600)).await;
        let crowd = crowd(
            address,
            2 * MAX_CONNECTIONS,
            b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        )
        .await;
        let mut newcomer = TcpStream::connect(address).await.unwrap();
        newcomer
            .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .await
            .unwrap();
        let mut head = [0; 15];
        newcomer.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200 OK");
        drop(crowd);
    }

    #[tokio::test]
    async fn whoever_is_served_keeps_its_place_however_often_it_asks() {
        let address = patient().await;
        let mut regular = TcpStream::connect(address).await.unwrap();
        for _ in 0..3 {
            let both = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\nHEAD / HTTP/1.1\r\nhost: localhost\r\n\r\n";
            regular.write_all(both).await.unwrap();
        }
        regular
            .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let said = said(&mut regular).await;
        assert_eq!(said.matches("200 OK").count(), 7, "{said}");
    }

    #[tokio::test]
    async fn bodies_that_never_end_hold_no_more_than_their_share_of_memory() {
        let address = patient().await;
        // Fewer than there are places, and together more than may be held.
        let many = MAX_HELD_BYTES / MAX_BODY_BYTES + 2;
        let mut words =
            format!("POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: {MAX_BODY_BYTES}\r\n\r\n").into_bytes();
        words.resize(words.len() + MAX_BODY_BYTES - 1, b' ');
        let mut crowd = crowd(address, many, &words).await;
        let mut last = crowd.pop().unwrap();
        assert!(is_shut_out(&mut crowd[0]).await, "the first has given way");
        last.write_all(b" GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let said = said(&mut last).await;
        assert!(said.contains(&format!("\r\n\r\n{MAX_BODY_BYTES}")), "{said}");
    }
}
