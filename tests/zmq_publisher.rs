//! The PUB socket against real SUB sockets and against raw peers that misbehave.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use ghostfleet::transport::discovery::EndpointName;
use ghostfleet::transport::discovery::record::EventAddress;
use ghostfleet::transport::event_plane::envelope::decode_frames;
use ghostfleet::transport::event_plane::topic::Topic;
use ghostfleet::transport::event_plane::zmq::{Limits, ZmqPublisher};
use ghostfleet::transport::event_plane::{EventPlane, EventPublisher, PublisherId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use zeromq::{Socket, SocketRecv, SubSocket};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const READY: &[u8] = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB";

fn publisher() -> ZmqPublisher {
    ZmqPublisher::bind(LOOPBACK, &Handle::current()).expect("binds")
}

fn limited(change: impl FnOnce(&mut Limits)) -> ZmqPublisher {
    let mut limits = Limits::default();
    change(&mut limits);
    ZmqPublisher::bind_with(SocketAddr::new(LOOPBACK, 0), limits, &Handle::current()).expect("binds")
}

fn frames(topic: &'static str, body: &[u8]) -> [Bytes; 4] {
    [
        Bytes::from_static(topic.as_bytes()),
        Bytes::from_static(&[1; 8]),
        Bytes::from_static(&[2; 8]),
        Bytes::copy_from_slice(body),
    ]
}

async fn subscribe(publisher: &ZmqPublisher, topic: &str) -> SubSocket {
    let mut socket = SubSocket::new();
    socket
        .connect(&format!("tcp://{}", publisher.local_addr()))
        .await
        .expect("connects");
    socket.subscribe(topic).await.expect("subscribes");
    socket
}

async fn body(socket: &mut SubSocket) -> Vec<u8> {
    let message = socket.recv().await.expect("receives");
    assert_eq!(message.len(), 4);
    message.get(3).expect("four frames").to_vec()
}

fn greeting() -> Vec<u8> {
    let mut bytes = vec![0; 64];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// Connects without a library and says `words`.
async fn raw(publisher: &ZmqPublisher, words: &[&[u8]]) -> TcpStream {
    let mut stream = TcpStream::connect(publisher.local_addr()).await.expect("connects");
    stream.write_all(&words.concat()).await.expect("writes");
    stream
}

/// Reads until the publisher ends the connection.
async fn until_closed(mut stream: TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await?;
    Ok(bytes)
}

#[tokio::test]
async fn each_subscriber_gets_the_topics_it_asked_for() {
    let publisher = publisher();
    assert!(!publisher.has_subscribers(b"kv-events"));
    let mut events = subscribe(&publisher, "kv-events").await;
    let mut all = subscribe(&publisher, "").await;
    publisher.subscribed(b"kv-events", 2).await;
    publisher.subscribed(b"kv_metrics", 1).await;
    assert!(publisher.has_subscribers(b"kv_metrics"));
    publisher.send(&frames("kv_metrics", b"load"));
    publisher.send(&frames("kv-events", b"one"));
    publisher.send(&frames("kv-events", &[7; 1000]));
    assert_eq!(body(&mut events).await, b"one");
    assert_eq!(body(&mut events).await, [7; 1000]);
    assert_eq!(body(&mut all).await, b"load");
    assert_eq!(body(&mut all).await, b"one");
    assert_eq!(body(&mut all).await, [7; 1000]);
    let stats = publisher.stats();
    assert_eq!((stats.subscribers, stats.queued, stats.dropped), (2, 5, 0));
}

#[tokio::test]
async fn a_late_joiner_gets_what_is_sent_from_then_on() {
    let publisher = publisher();
    publisher.send(&frames("t", b"before"));
    let mut socket = subscribe(&publisher, "t").await;
    publisher.subscribed(b"t", 1).await;
    publisher.send(&frames("t", b"after"));
    assert_eq!(body(&mut socket).await, b"after");
}

#[tokio::test]
async fn unsubscribing_and_leaving_are_noticed() {
    let publisher = publisher();
    let mut peer = raw(&publisher, &[&greeting(), READY, b"\0\x02\x01a", b"\0\x02\x01b"]).await;
    publisher.subscribed(b"a", 1).await;
    publisher.subscribed(b"b", 1).await;
    peer.write_all(b"\0\x02\0a\0\x02\x01c").await.expect("writes");
    publisher.subscribed(b"c", 1).await;
    assert!(!publisher.has_subscribers(b"a"));
    drop(peer);
    let gone = raw(&publisher, &[&greeting(), READY, b"\0\x02\x01d"]).await;
    publisher.subscribed(b"d", 1).await;
    drop(gone);
    publisher.close();
    publisher.closed().await;
    assert_eq!(publisher.stats().subscribers, 0);
    assert_eq!(publisher.stats().connections, 0);
}

#[tokio::test]
async fn a_stalled_subscriber_loses_messages_and_stops_nobody() {
    let publisher = limited(|limits| limits.queue_bytes = 64 << 10);
    let stalled = raw(&publisher, &[&greeting(), READY, b"\0\x02\x01t"]).await;
    let mut reader = subscribe(&publisher, "t").await;
    publisher.subscribed(b"t", 2).await;
    let large = vec![9; 16 << 10];
    let mut sent = 0_u64;
    // The kernel takes a few MiB for the stalled peer before its queue fills.
    while publisher.stats().dropped == 0 {
        publisher.send(&frames("t", &large));
        sent += 1;
        assert_eq!(body(&mut reader).await, large);
    }
    assert_eq!(publisher.stats().queued + publisher.stats().dropped, 2 * sent);
    drop(stalled);
}

#[tokio::test]
async fn a_stalled_subscriber_that_reads_again_gets_whole_messages() {
    let publisher = limited(|limits| limits.queue_bytes = 64 << 10);
    let mut stalled = raw(&publisher, &[&greeting(), READY, b"\0\x02\x01t"]).await;
    publisher.subscribed(b"t", 1).await;
    while publisher.stats().dropped == 0 {
        publisher.send(&frames("t", &[9; 5000]));
        tokio::task::yield_now().await;
    }
    let queued = publisher.stats().queued;
    publisher.close();
    let mut bytes = Vec::new();
    stalled.read_to_end(&mut bytes).await.expect("an orderly end");
    let message = [
        &b"\x01\x01t\x01\x08"[..],
        &[1; 8],
        b"\x01\x08",
        &[2; 8],
        b"\x02\0\0\0\0\0\0\x13\x88",
        &[9; 5000],
    ]
    .concat();
    let messages = &bytes[64 + 27..];
    assert!(messages.chunks(message.len()).all(|chunk| chunk == message));
    assert_eq!((messages.len() / message.len()) as u64, queued);
}

#[tokio::test]
async fn pings_are_answered_with_their_context() {
    let publisher = publisher();
    let mut peer = raw(&publisher, &[&greeting(), READY, b"\x04\x0a\x04PING\0\x0aabc"]).await;
    let mut bytes = [0; 64 + 27 + 10];
    peer.read_exact(&mut bytes).await.expect("greeting, READY and PONG");
    assert_eq!(bytes[64..91], *b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB");
    assert_eq!(bytes[91..], *b"\x04\x08\x04PONGabc");
}

#[tokio::test]
async fn malformed_peers_are_dropped_and_counted() {
    let publisher = publisher();
    let mut old = greeting();
    old[10] = 1;
    let cases: [&[&[u8]]; 6] = [
        &[b"GET / HTTP/1.1\r\n\r\n"],
        &[&old],
        &[&greeting(), b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03REP"],
        &[&greeting(), b"\0\x02\x01t"],
        &[&greeting(), READY, b"\x02\0\0\0\x01\0\0\0\0"],
        &[&greeting(), READY, b"\xff"],
    ];
    for (index, words) in cases.iter().enumerate() {
        let peer = raw(&publisher, words).await;
        // The end may come as a reset: the publisher has not read all.
        let _ = until_closed(peer).await;
        let good = subscribe(&publisher, "t").await;
        publisher.subscribed(b"t", 1).await;
        assert_eq!(publisher.stats().malformed, index as u64 + 1, "case {index}");
        drop(good);
        while publisher.has_subscribers(b"t") {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_peer_with_too_many_topics_is_dropped() {
    let publisher = limited(|limits| limits.subscriptions = 2);
    let words: [&[u8]; 5] = [&greeting(), READY, b"\0\x02\x01a", b"\0\x02\x01b", b"\0\x02\x01c"];
    let _ = until_closed(raw(&publisher, &words).await).await;
    assert_eq!(publisher.stats().malformed, 1);
    assert_eq!(publisher.stats().subscribers, 0);
}

#[tokio::test]
async fn a_peer_that_never_finishes_its_handshake_is_dropped() {
    let publisher = limited(|limits| limits.handshake_timeout = Duration::from_millis(20));
    let silent = raw(&publisher, &[&greeting()[..11]]).await;
    let heard = until_closed(silent).await.expect("an orderly end");
    assert_eq!(heard.len(), 64, "our greeting");
    assert_eq!(publisher.stats().handshake_timeouts, 1);
}

#[tokio::test]
async fn connections_over_the_limit_are_turned_away() {
    let publisher = limited(|limits| limits.connections = 1);
    let mut first = subscribe(&publisher, "t").await;
    publisher.subscribed(b"t", 1).await;
    let _ = until_closed(raw(&publisher, &[]).await).await;
    assert_eq!(publisher.stats().refused, 1);
    publisher.send(&frames("t", b"still here"));
    assert_eq!(body(&mut first).await, b"still here");
}

#[tokio::test]
async fn a_crash_resets_connections_and_frees_the_port() {
    let publisher = publisher();
    let mut peer = raw(&publisher, &[&greeting(), READY, b"\0\x02\x01t"]).await;
    publisher.subscribed(b"t", 1).await;
    let mut hello = [0; 64 + 27];
    peer.read_exact(&mut hello).await.expect("greeting and READY");
    publisher.crash();
    publisher.closed().await;
    let error = until_closed(peer).await.expect_err("no orderly end");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let refused = TcpStream::connect(publisher.local_addr())
        .await
        .expect_err("nobody listens");
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn a_dropped_publisher_frees_its_port() {
    let publisher = publisher();
    let peer = raw(&publisher, &[&greeting(), READY, b"\0\x02\x01t"]).await;
    publisher.subscribed(b"t", 1).await;
    let addr = publisher.local_addr();
    drop(publisher);
    assert_eq!(until_closed(peer).await.expect("an orderly end").len(), 64 + 27);
    let again = ZmqPublisher::bind_with(addr, Limits::default(), &Handle::current()).expect("the port is free");
    assert_eq!(again.local_addr(), addr);
}

#[tokio::test]
async fn messages_may_be_sent_from_threads_outside_the_runtime() {
    let publisher = publisher();
    let mut socket = subscribe(&publisher, "t").await;
    publisher.subscribed(b"t", 1).await;
    std::thread::scope(|scope| {
        scope.spawn(|| (0..100_u8).for_each(|number| publisher.send(&frames("t", &[number]))));
    });
    for number in 0..100_u8 {
        assert_eq!(body(&mut socket).await, [number]);
    }
}

#[tokio::test]
async fn topics_of_a_worker_share_a_socket_and_count_their_own_messages() {
    let socket = std::sync::Arc::new(publisher());
    let plane = EventPlane::Zmq(std::sync::Arc::clone(&socket));
    let scope = EndpointName::new("n", "c", "e").expect("a valid name");
    let mut events = EventPublisher::new(plane.clone(), &scope, Topic::KvEvents, PublisherId::random());
    let mut metrics = EventPublisher::new(plane.clone(), &scope, Topic::KvMetrics, PublisherId::random());
    let endpoint = format!("tcp://{}", socket.local_addr());
    assert_eq!(plane.address(&scope, LOOPBACK), Some(EventAddress::Zmq { endpoint }));
    events.publish(b"\x90", 1);
    let mut reader = subscribe(&socket, "kv").await;
    socket.subscribed(b"kv-events", 1).await;
    events.publish(b"\x91\x01", 2);
    metrics.publish(b"\x80", 3);
    for (publisher, sequence, published_at_ms, payload) in
        [(&events, 1, 2, &b"\x91\x01"[..]), (&metrics, 0, 3, &b"\x80"[..])]
    {
        let message = reader.recv().await.expect("receives").into_vec();
        let (topic, envelope) = decode_frames(&message).expect("valid frames");
        assert_eq!(topic, publisher.topic().name().as_bytes());
        assert_eq!(envelope.publisher_id, publisher.id());
        assert_eq!(envelope.topic, publisher.topic().name());
        assert_eq!(
            (envelope.sequence, envelope.published_at_ms, envelope.payload),
            (sequence, published_at_ms, payload)
        );
    }
}
