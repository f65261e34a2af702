//! One listener with one worker behind it, and the raw sockets of peers that follow no protocol.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ghostfleet::transport::request_plane::call_home::generate::{GenerateEndpoint, StreamCounts};
use ghostfleet::transport::request_plane::call_home::{AnswerLimits, Dialer};
use ghostfleet::transport::request_plane::endpoint::EndpointTable;
use ghostfleet::transport::request_plane::tcp::frame;
use ghostfleet::transport::request_plane::tcp::server::{Limits, TcpServer};
use ghostfleet::transport::request_plane::{Codec, control, two_part};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::counters::Counters;
use crate::worker::TestWorker;

/// Path of the worker.
pub(crate) const PATH: &str = "2a/dynamo/backend/generate";

/// Longest wait for anything; reached only when the test fails.
const PATIENCE: Duration = Duration::from_secs(25);

/// Bounds of one test.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) limits: Limits,
    pub(crate) answers: AnswerLimits,
    pub(crate) max_open: u32,
    pub(crate) tokens_per_pass: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            answers: AnswerLimits::default(),
            max_open: 1024,
            tokens_per_pass: 1,
        }
    }
}

impl Setup {
    fn dialer(&self) -> Dialer {
        Dialer {
            limits: self.answers,
            tls: None,
        }
    }
}

pub(crate) struct Scene {
    server: TcpServer,
    pub(crate) worker: TestWorker,
    pub(crate) streams: Arc<StreamCounts>,
    pub(crate) counters: Counters,
}

/// Runs a test against a fresh listener, then checks that nothing is left of it.
pub(crate) fn run(setup: Setup, test: impl AsyncFnOnce(&Scene)) {
    let counters = Counters::default();
    // One thread, so that the recorder of this thread sees what every task counts.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    metrics::with_local_recorder(&counters, || {
        runtime.block_on(async {
            let scene = Scene::start(setup, counters.clone());
            test(&scene).await;
            scene.settled().await;
        });
    });
}

impl Scene {
    fn start(setup: Setup, counters: Counters) -> Self {
        let worker = TestWorker::new(setup.tokens_per_pass);
        let streams = Arc::new(StreamCounts::default());
        let endpoint = GenerateEndpoint::new(
            Arc::new(worker.clone()),
            Arc::clone(&streams),
            setup.max_open,
            setup.dialer(),
        );
        let endpoints = EndpointTable::default();
        endpoints.insert(PATH, Arc::new(endpoint));
        let server = TcpServer::bind([127, 0, 0, 1].into(), 0, endpoints, setup.limits, None).unwrap();
        Self {
            server,
            worker,
            streams,
            counters,
        }
    }

    pub(crate) async fn connect(&self) -> Peer {
        Peer(TcpStream::connect(self.server.address()).await.unwrap())
    }

    /// A connection that takes hardly any bytes it does not read.
    pub(crate) async fn connect_with_small_buffer(&self) -> Peer {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        Peer(socket.connect(self.server.address()).await.unwrap())
    }

    /// A well-behaved frontend gets a whole answer, on a connection of its own.
    pub(crate) async fn serves(&self) {
        let home = ResponseServer::start();
        let mut peer = self.connect().await;
        peer.send(&request(&home.control(), &body(3))).await;
        assert_eq!(peer.ack().await.as_deref(), Some(""));
        home.accept().await.whole_answer(3).await;
    }

    pub(crate) fn open(&self) -> u32 {
        self.streams.open.load(Ordering::Relaxed)
    }

    /// Connections dropped because of what their peer did.
    pub(crate) fn dropped(&self) -> u64 {
        self.counters.get("ghostfleet_request_connections_dropped_total")
    }

    pub(crate) fn call_home_failures(&self) -> u64 {
        self.counters.get("ghostfleet_call_home_failures_total")
    }

    pub(crate) fn given_up(&self, reason: &str) -> u64 {
        self.counters
            .get(&format!("ghostfleet_streams_cancelled_total{{{reason}}}"))
    }

    /// Streams that ended otherwise than they should.
    pub(crate) fn cancelled(&self) -> u64 {
        self.streams.cancelled.load(Ordering::Relaxed)
    }

    pub(crate) fn completed(&self) -> u64 {
        self.streams.completed.load(Ordering::Relaxed)
    }

    /// Streams that ended with an error.
    pub(crate) fn failed(&self) -> u64 {
        self.streams.failed.load(Ordering::Relaxed)
    }

    /// Waits for every stream and sequence to be gone, then checks the books.
    pub(crate) async fn settled(&self) {
        until("no stream is open", || self.open() == 0).await;
        until("no sequence is alive", || self.worker.sequences() == 0).await;
        let accepted = self.streams.accepted.load(Ordering::Relaxed);
        assert_eq!(
            accepted,
            self.completed() + self.failed() + self.cancelled(),
            "every accepted call ends in one way"
        );
    }
}

/// A peer on the request plane.
pub(crate) struct Peer(pub(crate) TcpStream);

impl Peer {
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// Text of the next ack; `None` when the connection has ended.
    pub(crate) async fn ack(&mut self) -> Option<String> {
        let text = async {
            let length = self.0.read_u32().await.ok()?;
            let mut text = vec![0; length.try_into().unwrap()];
            self.0.read_exact(&mut text).await.ok()?;
            Some(String::from_utf8(text).unwrap())
        };
        tokio::time::timeout(PATIENCE, text)
            .await
            .expect("an ack or the end of the connection")
    }
}

/// Where a frontend takes its answers.
pub(crate) struct ResponseServer(TcpListener);

impl ResponseServer {
    pub(crate) fn start() -> Self {
        Self::with_buffer(None)
    }

    fn with_buffer(receive_bytes: Option<u32>) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        if let Some(bytes) = receive_bytes {
            socket.set_recv_buffer_size(bytes).unwrap();
        }
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        // The backlog of a frontend.
        Self(socket.listen(4096).unwrap())
    }

    /// One whose connections take hardly any bytes that are not read.
    pub(crate) fn with_small_buffer() -> Self {
        Self::with_buffer(Some(4096))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    /// A control message that asks to be answered here.
    pub(crate) fn control(&self) -> Vec<u8> {
        control::encode("request-1", Codec::Json, self.address(), "subject-1")
    }

    pub(crate) async fn accept(&self) -> Answer {
        let accepted = tokio::time::timeout(PATIENCE, self.0.accept()).await;
        Answer(accepted.expect("the worker dials").unwrap().0)
    }
}

/// One answer as it arrives.
pub(crate) struct Answer(pub(crate) TcpStream);

impl Answer {
    /// The next frame, header and data as text; `None` when the stream has ended.
    pub(crate) async fn frame(&mut self) -> Option<(String, String)> {
        let frame = async {
            let mut prefix = [0; two_part::PREFIX_BYTES];
            self.0.read_exact(&mut prefix).await.ok()?;
            let prefix = two_part::decode_prefix(&prefix, 1 << 20).unwrap();
            let mut parts = [prefix.header, prefix.data].map(|length| vec![0; length.try_into().unwrap()]);
            for part in &mut parts {
                self.0.read_exact(part).await.ok()?;
            }
            let [header, data] = parts.map(|part| String::from_utf8(part).unwrap());
            Some((header, data))
        };
        tokio::time::timeout(PATIENCE, frame)
            .await
            .expect("a frame or the end of the stream")
    }

    /// All frames up to the end mark (included) or the end of the stream.
    pub(crate) async fn frames(&mut self) -> Vec<(String, String)> {
        let mut frames = Vec::new();
        while let Some(frame) = self.frame().await {
            let last = frame.0 == SENTINEL;
            frames.push(frame);
            if last {
                break;
            }
        }
        frames
    }

    /// Reads handshake, prologue, `tokens` tokens, final item and end mark, and nothing else.
    pub(crate) async fn whole_answer(mut self, tokens: usize) {
        let frames = self.frames().await;
        assert_eq!(frames[0].0, r#"{"subject":"subject-1","stream_type":"response"}"#);
        assert_eq!(frames[1].0, r#"{"error":null}"#);
        let items: Vec<&str> = frames[2..].iter().map(|(_, data)| data.as_str()).collect();
        assert_eq!(items.len(), tokens + 2, "{items:?}");
        assert!(
            items[..tokens].iter().all(|item| item.contains(r#""token_ids":["#)),
            "{items:?}"
        );
        assert_eq!(items[tokens], r#"{"data":null,"complete_final":true}"#);
        assert_eq!(frames[tokens + 3].0, SENTINEL);
    }

    /// Reads up to the end mark, whatever is in the items (codec, contents).
    pub(crate) async fn ends_properly(&mut self) {
        let read = async {
            let mut bytes = Vec::new();
            while !bytes.ends_with(SENTINEL.as_bytes()) {
                assert_ne!(self.0.read_buf(&mut bytes).await.unwrap(), 0, "no end mark: {bytes:?}");
            }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("an end mark");
    }

    /// Reads on to the end of the stream, which must not be the end of an answer.
    pub(crate) async fn breaks_off(mut self) {
        let frames = self.frames().await;
        let ended = |(header, data): &(String, String)| header == SENTINEL || data.contains("\"complete_final\":true");
        assert!(!frames.iter().any(ended), "{frames:?}");
    }

    /// Closes as a dead process does.
    pub(crate) fn reset(self) {
        SockRef::from(&self.0).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

const SENTINEL: &str = "\"sentinel\"";

/// A request frame for the worker.
pub(crate) fn request(control: &[u8], body: &[u8]) -> Vec<u8> {
    request_to(PATH, control, body)
}

pub(crate) fn request_to(path: &str, control: &[u8], body: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    two_part::write(&mut payload, control, body);
    request_with_payload(path, &payload)
}

pub(crate) fn request_with_payload(path: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode(&mut bytes, path, "{}", payload);
    bytes
}

/// A request body for so many tokens; 0: it never ends by itself.
pub(crate) fn body(max_tokens: u32) -> Vec<u8> {
    let max_tokens = (max_tokens > 0).then_some(max_tokens);
    serde_json::json!({"token_ids": [1, 2, 3], "stop_conditions": {"max_tokens": max_tokens}})
        .to_string()
        .into_bytes()
}

/// Waits for something that only a counter tells.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let watch = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, watch)
        .await
        .unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"));
}
