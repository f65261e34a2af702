//! A request to a worker, as a Dynamo frontend makes it: over the TCP request plane, the answer on a socket that the
//! worker dials.

use std::io;
use std::time::Duration;

use ghostfleet::transport::request_plane::tcp::frame;
use ghostfleet::transport::request_plane::{Codec, control, two_part};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Longest wait for a connection, an ack, a worker that dials.
const PATIENCE: Duration = Duration::from_secs(1);

/// A call that a worker has taken.
pub(crate) struct Call {
    socket: TcpStream,
    _request: TcpStream,
}

/// What comes on the way.
pub(crate) enum Said {
    Item(Value),
    End,
}

fn lost(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, what.to_owned())
}

/// Sends a request to `host:port/path` and waits until the worker dials.
pub(crate) async fn call(address: &str, id: &str, body: &Value) -> io::Result<Call> {
    let (host, path) = address.split_once('/').ok_or_else(|| lost("no address"))?;
    let home = TcpListener::bind(("127.0.0.1", 0)).await?;
    let request = timeout(PATIENCE, TcpStream::connect(host)).await;
    let mut request = request.map_err(|_| lost("no connection"))??;
    let mut payload = Vec::new();
    let control = control::encode(id, Codec::Json, home.local_addr()?, id);
    two_part::write(&mut payload, &control, body.to_string().as_bytes());
    let mut bytes = Vec::new();
    frame::encode(&mut bytes, path, "{}", &payload);
    request.write_all(&bytes).await?;
    let ack = async {
        let length = request.read_u32().await?;
        let mut refusal = vec![0; length.min(4096) as usize];
        request.read_exact(&mut refusal).await.map(|_| refusal)
    };
    let refusal = timeout(PATIENCE, ack).await.map_err(|_| lost("no ack"))??;
    if !refusal.is_empty() {
        return Err(lost(&String::from_utf8_lossy(&refusal)));
    }
    let dialled = timeout(PATIENCE, home.accept()).await;
    let (socket, _) = dialled.map_err(|_| lost("nobody dials"))??;
    Ok(Call {
        socket,
        _request: request,
    })
}

impl Call {
    /// The next item or the end.
    pub(crate) async fn next(&mut self) -> io::Result<Said> {
        loop {
            let mut prefix = [0; two_part::PREFIX_BYTES];
            self.socket.read_exact(&mut prefix).await?;
            let prefix = two_part::decode_prefix(&prefix, 1 << 26).map_err(|error| lost(&error.to_string()))?;
            let mut header = vec![0; usize::try_from(prefix.header).unwrap()];
            self.socket.read_exact(&mut header).await?;
            let mut data = vec![0; usize::try_from(prefix.data).unwrap()];
            self.socket.read_exact(&mut data).await?;
            if header == b"\"sentinel\"" {
                return Ok(Said::End);
            }
            if header.is_empty() {
                return Ok(Said::Item(serde_json::from_slice(&data)?));
            }
        }
    }

    /// Tells the worker that nobody wants the rest.
    pub(crate) async fn kill(&mut self) {
        let mut bytes = Vec::new();
        two_part::write(&mut bytes, b"\"kill\"", b"");
        // A worker that is gone needs no telling.
        let _ = self.socket.write_all(&bytes).await;
    }
}
