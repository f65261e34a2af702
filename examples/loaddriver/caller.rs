//! The client side of the request plane: one connection per listener of workers, one connection back per answer.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use bytes::BytesMut;
use dashmap::DashMap;
use ghostfleet::transport::request_plane::tcp::frame;
use ghostfleet::transport::request_plane::{control, two_part};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::answer::{Answer, read_frame};
use super::targets::Target;

/// A thousand workers may dial back at once; each connection dropped here would come back a second later and look like
/// a slow first token.
const BACKLOG: u32 = 4096;

/// Longest wait for the handshake of a worker that has dialled back.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Longest refusal text worth reading.
const MAX_ACK_BYTES: u32 = 64 * 1024;

type Waiting = Arc<DashMap<String, oneshot::Sender<(TcpStream, BytesMut)>>>;
type Acks = Arc<Mutex<VecDeque<oneshot::Sender<String>>>>;

/// Sends requests and takes the answers' connections.
pub(crate) struct Caller {
    home: SocketAddr,
    waiting: Waiting,
    links: tokio::sync::Mutex<Vec<(SocketAddr, Arc<Link>)>>,
    calls: AtomicU64,
}

struct Link {
    writer: tokio::sync::Mutex<OwnedWriteHalf>,
    /// Requests whose ack is due, in order; an empty text is a yes.
    acks: Acks,
}

impl Caller {
    /// Opens the listener that workers dial back to.
    pub(crate) fn listen() -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let listener = socket.listen(BACKLOG)?;
        let home = listener.local_addr()?;
        let waiting = Waiting::default();
        tokio::spawn(welcome(listener, Arc::clone(&waiting)));
        Ok(Self {
            home,
            waiting,
            links: tokio::sync::Mutex::default(),
            calls: AtomicU64::new(0),
        })
    }

    /// Sends a request and waits for the worker to accept it.
    pub(crate) async fn call(&self, target: &Target, body: &[u8]) -> Result<Answer> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        // Dynamo writes UUIDs here; what counts is that no two are equal.
        let id = format!("{:08x}-0000-4000-8000-{call:012x}", std::process::id());
        let mut payload = Vec::with_capacity(body.len() + 512);
        two_part::write(&mut payload, &control::encode(&id, target.codec, self.home, &id), body);
        let headers = format!("{{\"x-endpoint-path\":\"{}\",\"request-id\":\"{id}\"}}", target.path);
        let mut request = Vec::with_capacity(payload.len() + headers.len() + target.path.len() + 8);
        frame::encode(&mut request, &target.path, &headers, &payload);

        let (dialled, dials) = oneshot::channel();
        self.waiting.insert(id.clone(), dialled);
        let answer = self.reach(target, &request, dials).await;
        self.waiting.remove(&id);
        let (stream, read) = answer?;
        Answer::open(stream, read, target.codec).await
    }

    async fn reach(
        &self,
        target: &Target,
        request: &[u8],
        mut dials: oneshot::Receiver<(TcpStream, BytesMut)>,
    ) -> Result<(TcpStream, BytesMut)> {
        let mut ack = self.link(target.address).await?.send(request).await?;
        tokio::select! {
            dialled = &mut dials => return dialled.context("no call back"),
            said = &mut ack => {
                let said = said.context("connection to the worker closed before the ack")?;
                if !said.is_empty() {
                    bail!("refused: {said}");
                }
            }
        }
        dials.await.context("no call back")
    }

    async fn link(&self, address: SocketAddr) -> Result<Arc<Link>> {
        let mut links = self.links.lock().await;
        links.retain(|(_, link)| !link.is_closed());
        if let Some((_, link)) = links.iter().find(|(known, _)| *known == address) {
            return Ok(Arc::clone(link));
        }
        let stream = TcpStream::connect(address)
            .await
            .with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        let link = Arc::new(Link {
            writer: tokio::sync::Mutex::new(writer),
            acks: Acks::default(),
        });
        tokio::spawn(hear_acks(reader, Arc::clone(&link.acks)));
        links.push((address, Arc::clone(&link)));
        Ok(link)
    }
}

impl Link {
    async fn send(&self, request: &[u8]) -> Result<oneshot::Receiver<String>> {
        let (said, ack) = oneshot::channel();
        // Held over the write, so that acks are due in the order of the requests.
        let mut writer = self.writer.lock().await;
        self.acks.lock().unwrap_or_else(PoisonError::into_inner).push_back(said);
        writer.write_all(request).await.context("sending the request")?;
        Ok(ack)
    }

    /// The reader holds the other reference to the acks as long as the connection lives.
    fn is_closed(&self) -> bool {
        Arc::strong_count(&self.acks) == 1
    }
}

async fn hear_acks(reader: OwnedReadHalf, acks: Acks) {
    let mut reader = BufReader::new(reader);
    while let Ok(len) = reader.read_u32().await {
        let mut text = vec![0; len.min(MAX_ACK_BYTES) as usize];
        if len > MAX_ACK_BYTES || reader.read_exact(&mut text).await.is_err() {
            break;
        }
        let due = acks.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(due) = due else { break };
        // The caller may have its answer already, or have given up.
        drop(due.send(String::from_utf8_lossy(&text).into_owned()));
    }
    acks.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

async fn welcome(listener: TcpListener, waiting: Waiting) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let waiting = Arc::clone(&waiting);
                tokio::spawn(async move {
                    if let Ok(Err(error)) = timeout(HANDSHAKE, introduce(stream, &waiting)).await {
                        tracing::warn!(%error, "a call back came to nothing");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a call back");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Hands a connection to the request that it names.
async fn introduce(
    mut stream: TcpStream,
    waiting: &DashMap<String, oneshot::Sender<(TcpStream, BytesMut)>>,
) -> Result<()> {
    #[derive(serde::Deserialize)]
    struct Handshake {
        subject: String,
    }
    stream.set_nodelay(true)?;
    let mut buffer = BytesMut::with_capacity(4096);
    let (header, _) = read_frame(&mut stream, &mut buffer)
        .await?
        .context("closed before its handshake")?;
    let Handshake { subject } = serde_json::from_slice(&header)?;
    let (_, request) = waiting
        .remove(&subject)
        .ok_or_else(|| anyhow!("nobody waits for {subject:?}"))?;
    // The request may have been given up in this moment.
    drop(request.send((stream, buffer)));
    Ok(())
}
