//! The PUB socket that connects to brokers, against a raw XSUB peer that comes and goes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use ghostfleet::transport::discovery::EndpointName;
use ghostfleet::transport::event_plane::topic::Topic;
use ghostfleet::transport::event_plane::zmq::{BrokerAddresses, Limits, ZmqBrokered};
use ghostfleet::transport::event_plane::{EventPlane, EventPublisher, PublisherId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Handle;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const READY: &[u8] = b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04XSUB";

/// The XSUB side of a broker.
struct Xsub(TcpListener);

impl Xsub {
    async fn bind() -> Self {
        Self(TcpListener::bind((LOOPBACK, 0)).await.expect("binds"))
    }

    /// Binds an address that was bound before.
    fn rebind(address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("an option");
        socket.bind(address).expect("binds");
        Self(socket.listen(8).expect("listens"))
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("bound")
    }

    /// Takes a publisher and finishes the handshake.
    async fn accept(&self) -> TcpStream {
        let (mut stream, _) = self.0.accept().await.expect("accepts");
        let mut greeting = vec![0; 64];
        (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
        greeting[12..16].copy_from_slice(b"NULL");
        greeting.extend_from_slice(READY);
        stream.write_all(&greeting).await.expect("writes");
        // Greeting, and READY with its two-byte header.
        let mut theirs = [0; 64 + 27];
        stream.read_exact(&mut theirs).await.expect("reads");
        assert_eq!(&theirs[64 + 24..], b"PUB");
        stream
    }
}

async fn subscribe(stream: &mut TcpStream, subject: &str) {
    let mut frame = vec![0, u8::try_from(subject.len() + 1).expect("short"), 1];
    frame.extend_from_slice(subject.as_bytes());
    stream.write_all(&frame).await.expect("writes");
}

/// The last of the four frames of the next message.
async fn next_body(stream: &mut TcpStream) -> Vec<u8> {
    loop {
        let flags = stream.read_u8().await.expect("reads");
        let size = match flags & 2 {
            0 => u64::from(stream.read_u8().await.expect("reads")),
            _ => stream.read_u64().await.expect("reads"),
        };
        let mut body = vec![0; usize::try_from(size).expect("small")];
        stream.read_exact(&mut body).await.expect("reads");
        if flags & 1 == 0 {
            return body;
        }
    }
}

fn connect(brokers: &[&Xsub], limits: Limits) -> ZmqBrokered {
    let urls: Vec<String> = brokers
        .iter()
        .map(|broker| format!("tcp://{}", broker.address()))
        .collect();
    let addresses = BrokerAddresses::new(urls.iter().map(String::as_str)).expect("valid");
    ZmqBrokered::connect(&addresses, limits, &Handle::current())
}

fn frames(subject: &'static str, body: &[u8]) -> [Bytes; 4] {
    [
        Bytes::from_static(subject.as_bytes()),
        Bytes::from_static(&[1; 8]),
        Bytes::from_static(&[2; 8]),
        Bytes::copy_from_slice(body),
    ]
}

#[tokio::test]
async fn every_broker_gets_what_it_asked_for_under_the_full_subject() {
    let (one, other) = (Xsub::bind().await, Xsub::bind().await);
    let publisher = Arc::new(connect(&[&one, &other], Limits::default()));
    let (mut first, mut second) = (one.accept().await, other.accept().await);
    let scope = EndpointName::new("n", "c", "e").expect("a valid name");
    let subject = scope.event_subject("kv-events");
    subscribe(&mut first, &subject).await;
    subscribe(&mut second, "namespace.n.").await;
    publisher.subscribed(subject.as_bytes(), 2).await;
    let plane = EventPlane::Brokered(Arc::clone(&publisher));
    assert_eq!(
        plane.address(&scope, LOOPBACK),
        None,
        "a publisher has no record of its own"
    );
    let mut events = EventPublisher::new(plane.clone(), &scope, Topic::KvEvents, PublisherId::random());
    let mut metrics = EventPublisher::new(plane, &scope, Topic::KvMetrics, PublisherId::random());
    metrics.publish(b"\x80", 1);
    events.publish(b"\x90", 2);
    let read = |body: &[u8]| {
        let envelope = ghostfleet::transport::event_plane::envelope::decode(&body[5..]).expect("an envelope");
        envelope.topic.to_owned()
    };
    assert_eq!(read(&next_body(&mut first).await), "kv-events");
    assert_eq!(read(&next_body(&mut second).await), "kv_metrics");
    assert_eq!(read(&next_body(&mut second).await), "kv-events");
}

#[tokio::test]
async fn what_a_lost_broker_had_asked_for_waits_until_it_asks_again() {
    let broker = Xsub::bind().await;
    let address = broker.address();
    let publisher = connect(&[&broker], Limits::default());
    let mut comebacks = publisher.comebacks();
    let mut stream = broker.accept().await;
    subscribe(&mut stream, "s").await;
    publisher.subscribed(b"s", 1).await;
    assert!(!comebacks.has_changed().expect("the socket lives"));
    publisher.send(&frames("s", b"before"));
    assert_eq!(next_body(&mut stream).await, b"before");
    drop((stream, broker));
    // The end of the connection is seen some time later; until then a message may be lost with it.
    while publisher.stats().connections > 0 {
        tokio::task::yield_now().await;
    }
    for number in 0..5_u8 {
        publisher.send(&frames("s", &[number]));
        publisher.send(&frames("unwanted", &[number]));
    }
    let broker = Xsub::rebind(address);
    let mut stream = broker.accept().await;
    comebacks.changed().await.expect("the return is told");
    // A PONG proves that the connection works while the messages are held.
    stream.write_all(b"\x04\x07\x04PING\0\0").await.expect("writes");
    let mut pong = [0; 7];
    stream.read_exact(&mut pong).await.expect("reads");
    assert_eq!(&pong, b"\x04\x05\x04PONG");
    subscribe(&mut stream, "s").await;
    for number in 0..5_u8 {
        assert_eq!(next_body(&mut stream).await, [number]);
    }
    publisher.send(&frames("s", b"after"));
    assert_eq!(next_body(&mut stream).await, b"after");
}

#[tokio::test]
async fn a_lost_broker_costs_no_more_than_its_bound_and_the_newest_messages() {
    let limits = Limits {
        queue_messages: 3,
        ..Limits::default()
    };
    let broker = Xsub::bind().await;
    let address = broker.address();
    let publisher = connect(&[&broker], limits);
    let mut stream = broker.accept().await;
    subscribe(&mut stream, "s").await;
    publisher.subscribed(b"s", 1).await;
    drop((stream, broker));
    while publisher.stats().connections > 0 {
        tokio::task::yield_now().await;
    }
    for number in 0..10_u8 {
        publisher.send(&frames("s", &[number]));
    }
    assert_eq!((publisher.stats().queued, publisher.stats().dropped), (3, 7));
    let broker = Xsub::rebind(address);
    let mut stream = broker.accept().await;
    subscribe(&mut stream, "s").await;
    for number in 0..3_u8 {
        assert_eq!(next_body(&mut stream).await, [number]);
    }
}

#[tokio::test]
async fn what_a_lost_broker_has_not_taken_by_the_end_is_counted() {
    let broker = Xsub::bind().await;
    let publisher = connect(&[&broker], Limits::default());
    let mut stream = broker.accept().await;
    subscribe(&mut stream, "s").await;
    publisher.subscribed(b"s", 1).await;
    publisher.send(&frames("s", b"taken"));
    assert_eq!(next_body(&mut stream).await, b"taken");
    drop((stream, broker));
    while publisher.stats().connections > 0 {
        tokio::task::yield_now().await;
    }
    for number in 0..5_u8 {
        publisher.send(&frames("s", &[number]));
    }
    assert_eq!(publisher.stats().undelivered, 0, "they wait");
    publisher.close();
    publisher.closed().await;
    assert_eq!(publisher.stats().undelivered, 5);
}

#[tokio::test]
async fn nothing_is_kept_for_a_broker_that_never_asked() {
    let broker = Xsub::bind().await;
    let publisher = connect(&[&broker], Limits::default());
    assert!(!publisher.has_subscribers(b"s"));
    publisher.send(&frames("s", b"nobody"));
    let mut stream = broker.accept().await;
    subscribe(&mut stream, "s").await;
    publisher.subscribed(b"s", 1).await;
    publisher.send(&frames("s", b"somebody"));
    assert_eq!(next_body(&mut stream).await, b"somebody");
    publisher.close();
    publisher.closed().await;
}
