//! Connections that have carried an answer to its end and can carry another: HTTP keep-alive.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::client::failure;
use super::record::Failure;

/// One of them.
pub(super) type Connection = SendRequest<Full<Bytes>>;

/// Servers close connections that rest for long, and may do so just when the next request is sent. Most wait for 5 s.
const REST: Duration = Duration::from_secs(2);

/// Those that are kept for one address.
const KEPT: usize = 1024;

/// Connections at rest, by address.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// `None`: none are kept.
    resting: Option<Mutex<ByAddress>>,
}

/// With the time since when each rests, the last one last.
type ByAddress = BTreeMap<String, Vec<(Instant, Connection)>>;

impl Connections {
    /// A connection of its own for each request, or as few as are needed.
    pub(super) fn new(keep_alive: bool) -> Self {
        Self {
            resting: keep_alive.then(Mutex::default),
        }
    }

    /// One that rests, or a new one.
    pub(super) async fn get(&self, authority: &str) -> Result<Connection, Failure> {
        while let Some(mut connection) = self.take(authority) {
            // Fails when the server has closed it meanwhile.
            if connection.ready().await.is_ok() {
                return Ok(connection);
            }
        }
        connect(authority).await
    }

    fn take(&self, authority: &str) -> Option<Connection> {
        let mut resting = self.resting.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let of_address = resting.get_mut(authority)?;
        // The last one has rested for the shortest time.
        let (since, connection) = of_address.pop()?;
        if since.elapsed() < REST {
            return Some(connection);
        }
        of_address.clear();
        None
    }

    /// Takes one back whose answer has been read to its end.
    pub(super) fn put_back(&self, authority: &str, connection: Connection) {
        let Some(resting) = &self.resting else { return };
        if connection.is_closed() {
            return;
        }
        let mut resting = resting.lock().unwrap_or_else(PoisonError::into_inner);
        let of_address = match resting.get_mut(authority) {
            Some(of_address) => of_address,
            None => resting.entry(authority.to_owned()).or_default(),
        };
        if of_address.len() < KEPT {
            of_address.push((Instant::now(), connection));
        }
    }
}

async fn connect(authority: &str) -> Result<Connection, Failure> {
    let stream = TcpStream::connect(authority).await;
    let stream = stream.map_err(|error| failure("connect", format!("{authority}: {error}")))?;
    // Small requests must not wait for each other; a socket that cannot be told so works all the same.
    let _ = stream.set_nodelay(true);
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (connection, io) = handshake.map_err(|error| failure("reset", error.to_string()))?;
    // Ends when nobody has the connection any more; its errors come out of the body as well.
    tokio::spawn(io);
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::super::client::{Answer, Ask, ask};
    use super::*;

    const ANSWER: &str = r#"{"choices":[{"text":"a","finish_reason":"length"}]}"#;

    /// A server that counts its connections and closes each after so many answers.
    async fn server(answers: usize) -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Relaxed);
                for _ in 0..answers {
                    let mut said = Vec::new();
                    while !said.ends_with(b"{}") {
                        let Ok(byte) = stream.read_u8().await else { break };
                        said.push(byte);
                    }
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{ANSWER}", ANSWER.len());
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        break;
                    }
                }
            }
        });
        (address, count)
    }

    async fn asked(connections: &Connections, authority: &str) -> Option<Failure> {
        let mut answer = Answer::default();
        let request = Ask {
            authority: authority.to_owned(),
            body: "{}".into(),
            stream: false,
            tokens: None,
            first_token_timeout: Duration::from_secs(10),
            timeout: Duration::from_secs(10),
        };
        ask(request, connections, &mut answer).await;
        answer.failure
    }

    #[tokio::test]
    async fn a_connection_is_used_again_until_the_server_closes_it() {
        let (authority, count) = server(3).await;
        let connections = Connections::new(true);
        for asked_before in 0..7 {
            assert_eq!(asked(&connections, &authority).await, None);
            assert_eq!(count.load(Relaxed), asked_before / 3 + 1);
            if asked_before % 3 == 2 {
                // The server's goodbye is on its way.
                let mut resting = connections.take(&authority);
                while resting.as_ref().is_some_and(|connection| !connection.is_closed()) {
                    tokio::task::yield_now().await;
                }
                resting.take();
            }
        }
        let (authority, count) = server(3).await;
        let connections = Connections::new(false);
        for _ in 0..3 {
            assert_eq!(asked(&connections, &authority).await, None);
        }
        assert_eq!(count.load(Relaxed), 3);
    }

    #[tokio::test]
    async fn one_that_the_server_has_closed_is_not_used() {
        let (authority, count) = server(1).await;
        let connections = Connections::new(true);
        for n in 1..4 {
            assert_eq!(asked(&connections, &authority).await, None);
            assert_eq!(count.load(Relaxed), n);
            let closed = || {
                let resting = connections.resting.as_ref().unwrap().lock().unwrap();
                let mut resting = resting.values().flatten();
                resting.all(|(_, connection)| connection.is_closed())
            };
            while !closed() {
                tokio::task::yield_now().await;
            }
        }
    }
}
