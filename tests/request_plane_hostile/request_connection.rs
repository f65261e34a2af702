//! The connection that carries requests and acks.

use std::net::SocketAddr;
use std::time::Duration;

use ghostfleet::transport::request_plane::tcp::server::Limits;
use ghostfleet::transport::request_plane::{Codec, control};
use tokio::io::AsyncWriteExt;

use crate::scene::{PATH, Peer, ResponseServer, Setup, body, request, request_with_payload, run, until};

/// Long for a well-behaved peer on this machine, short for a test.
const SHORT: Duration = Duration::from_millis(300);

fn impatient() -> Setup {
    Setup {
        limits: Limits {
            peer_patience: SHORT,
            ..Limits::default()
        },
        ..Setup::default()
    }
}

fn nobody() -> Vec<u8> {
    control::encode("id", Codec::Json, SocketAddr::from(([127, 0, 0, 1], 1)), "subject")
}

async fn refused(peer: &mut Peer, bytes: &[u8], reason: &str) {
    peer.send(bytes).await;
    let ack = peer.ack().await.unwrap();
    assert!(ack.starts_with("Server unavailable: "), "{ack}");
    assert!(ack.contains(reason), "'{reason}' is missing in: {ack}");
}

#[test]
fn a_frame_that_cannot_be_served_is_refused_by_name_and_the_connection_goes_on() {
    run(Setup::default(), async |scene| {
        let mut peer = scene.connect().await;
        let two_part_of = |header: u64, data: u64| {
            let mut payload = [header.to_be_bytes(), data.to_be_bytes(), [0; 8]].concat();
            payload.extend_from_slice(b"{}");
            request_with_payload(PATH, &payload)
        };
        for (bytes, reason) in [
            (request_with_payload("nobody/here", b""), "unknown endpoint nobody/here"),
            (request_with_payload("", b""), "unknown endpoint"),
            (request_with_payload(&"p".repeat(65_535), b""), "unknown endpoint pppp"),
            (request_with_payload(PATH, b""), "truncated: 0 of 24 bytes"),
            (request_with_payload(PATH, &[0; 23]), "truncated: 23 of 24 bytes"),
            (two_part_of(2, 1), "truncated: 26 of 27 bytes"),
            (two_part_of(u64::MAX, 0), "header of 18446744073709551615 bytes exceeds"),
            (two_part_of(0, u64::MAX), "data of 18446744073709551615 bytes exceeds"),
            (two_part_of(u64::MAX, u64::MAX), "exceeds"),
            (two_part_of(2, u64::from(u32::MAX)), "truncated"),
            (request(b"", b""), "malformed control message"),
            (request(b"\xff\xfe\x00", b""), "malformed control message"),
            (
                request("[".repeat(100_000).as_bytes(), b""),
                "malformed control message",
            ),
            (request(br#"{"id":"a"}"#, b""), "missing field"),
        ] {
            refused(&mut peer, &bytes, reason).await;
        }
        assert_eq!(scene.counters.get("ghostfleet_requests_refused_total"), 14);

        let home = ResponseServer::start();
        peer.send(&request(&home.control(), &body(2))).await;
        assert_eq!(peer.ack().await.as_deref(), Some(""));
        home.accept().await.whole_answer(2).await;
        assert_eq!(scene.worker.submitted(), 1);
        assert_eq!(scene.dropped(), 0);
    });
}

#[test]
fn a_control_message_that_asks_for_the_impossible_is_refused_by_name() {
    run(Setup::default(), async |scene| {
        let mut peer = scene.connect().await;
        let good = String::from_utf8(nobody()).unwrap();
        for (from, to, reason) in [
            ("127.0.0.1:1", "localhost:1", "localhost:1"),
            ("127.0.0.1:1", "127.0.0.1", "not <ip>:<port>"),
            ("127.0.0.1:1", "127.0.0.1:99999", "127.0.0.1:99999"),
            ("127.0.0.1:1", "[::1:1", "[::1:1"),
            ("127.0.0.1:1", "", "not <ip>:<port>"),
            (
                "tcp_server",
                "quic-response",
                "response plane quic not supported; use tcp (DYN_RESPONSE_PLANE)",
            ),
            (
                "tcp_server",
                "carrier pigeon",
                "response plane carrier pigeon not supported",
            ),
            ("single_in", "many_in", "request type many_in not supported"),
            (r#""json""#, r#""cbor""#, "payload codec"),
        ] {
            assert!(good.contains(from), "{from}");
            refused(&mut peer, &request(good.replace(from, to).as_bytes(), b"{}"), reason).await;
        }
        assert_eq!(scene.worker.submitted(), 0);
    });
}

#[test]
fn acks_keep_the_order_of_good_and_bad_requests() {
    run(Setup::default(), async |scene| {
        let home = ResponseServer::start();
        let mut peer = scene.connect().await;
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for round in 0..100 {
            bytes.extend(request(&home.control(), &body(1)));
            expected.push(String::new());
            if round % 3 == 0 {
                bytes.extend(request_with_payload(&format!("no-{round}"), b"junk"));
                expected.push(format!("Server unavailable: unknown endpoint no-{round}"));
            }
        }
        // In pieces that end anywhere but at the end of a frame.
        for piece in bytes.chunks(997) {
            peer.send(piece).await;
            peer.0.flush().await.unwrap();
        }
        for expected in &expected {
            assert_eq!(peer.ack().await.as_ref(), Some(expected));
        }
        for _ in 0..100 {
            home.accept().await.whole_answer(1).await;
        }
    });
}

#[test]
fn an_absurd_length_ends_only_the_connection_that_announced_it() {
    run(Setup::default(), async |scene| {
        let (mut bystander, mut peer) = (scene.connect().await, scene.connect().await);
        let mut bytes = request_with_payload(PATH, b"");
        let length = bytes.len();
        bytes[length - 4..].fill(0xff);
        refused(
            &mut peer,
            &bytes,
            "exceeds the limit of 33554432; raise DYN_TCP_MAX_MESSAGE_SIZE",
        )
        .await;
        assert_eq!(peer.ack().await, None);
        assert_eq!(scene.dropped(), 1);
        refused(&mut bystander, &request_with_payload("x", b""), "unknown endpoint x").await;
        scene.serves().await;
    });
}

#[test]
fn the_answers_before_an_absurd_length_still_arrive() {
    run(Setup::default(), async |scene| {
        let home = ResponseServer::start();
        let mut peer = scene.connect().await;
        let mut bytes = request(&home.control(), &body(2));
        bytes.extend_from_slice(&[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        peer.send(&bytes).await;
        assert_eq!(peer.ack().await.as_deref(), Some(""));
        assert!(peer.ack().await.unwrap().contains("exceeds the limit"));
        assert_eq!(peer.ack().await, None);
        home.accept().await.whole_answer(2).await;
        assert_eq!(scene.dropped(), 1);
    });
}

#[test]
fn a_frame_cut_off_by_the_peer_reaches_nobody() {
    run(Setup::default(), async |scene| {
        let whole = request(&nobody(), &body(1));
        let cuts: Vec<usize> = (1..whole.len()).step_by(7).collect();
        for cut in &cuts {
            let mut peer = scene.connect().await;
            peer.send(&whole[..*cut]).await;
        }
        let mut lost = scene.connect().await;
        lost.send(b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n").await;
        drop(lost);
        let expected = u64::try_from(cuts.len()).unwrap() + 1;
        until("each cut is counted", || scene.dropped() == expected).await;
        assert_eq!(scene.worker.submitted(), 0);
        scene.serves().await;
    });
}

#[test]
fn a_frame_sent_drop_by_drop_is_given_up_and_idle_connections_are_not() {
    run(impatient(), async |scene| {
        let mut idle = scene.connect().await;
        let (mut peer, whole) = (scene.connect().await, request(&nobody(), &body(1)));
        let mut drops = tokio::time::interval(SHORT / 10);
        for byte in &whole {
            drops.tick().await;
            if scene.dropped() > 0 || peer.0.write_all(&[*byte]).await.is_err() {
                break;
            }
        }
        assert_eq!(peer.ack().await, None);
        assert_eq!(scene.dropped(), 1);
        assert_eq!(scene.worker.submitted(), 0);
        // This one has been silent for as long, but between frames.
        refused(&mut idle, &request_with_payload("x", b""), "unknown endpoint x").await;
    });
}

#[test]
fn a_peer_that_takes_no_acks_is_dropped_and_holds_nobody_up() {
    run(impatient(), async |scene| {
        let mut peer = scene.connect_with_small_buffer().await;
        // An ack names the path it does not know, so a few hundred of these are more than any buffer holds.
        let flood = request_with_payload(&"p".repeat(60_000), b"");
        let flooding = tokio::spawn(async move { while peer.0.write_all(&flood).await.is_ok() {} });
        while scene.dropped() == 0 {
            scene.serves().await;
        }
        assert_eq!(scene.dropped(), 1);
        flooding.await.unwrap();
        scene.serves().await;
    });
}

#[test]
fn thousands_of_pipelined_requests_are_taken_up_to_capacity_and_the_rest_refused() {
    const REQUESTS: usize = 5000;
    const CAPACITY: usize = 64;
    let setup = Setup {
        max_open: u32::try_from(CAPACITY).unwrap(),
        ..Setup::default()
    };
    run(setup, async |scene| {
        let home = ResponseServer::start();
        let mut peer = scene.connect().await;
        // Endless answers, so that none makes room for another.
        peer.send(&request(&home.control(), &body(0)).repeat(REQUESTS)).await;
        let mut acks = Vec::new();
        for _ in 0..REQUESTS {
            acks.push(peer.ack().await.unwrap());
        }
        assert!(acks[..CAPACITY].iter().all(String::is_empty));
        assert!(
            acks[CAPACITY..]
                .iter()
                .all(|ack| ack == "Server overloaded: worker at capacity")
        );
        let mut answers = Vec::new();
        for _ in 0..CAPACITY {
            answers.push(home.accept().await);
        }
        until("all have been submitted", || {
            scene.worker.submitted() == CAPACITY as u64
        })
        .await;
        assert_eq!(scene.open() as usize, CAPACITY);
        drop(answers);
        scene.settled().await;
        scene.serves().await;
    });
}

#[test]
fn a_frontend_that_leaves_after_the_ack_still_gets_its_answer() {
    run(Setup::default(), async |scene| {
        let home = ResponseServer::start();
        let mut peer = scene.connect().await;
        peer.send(&request(&home.control(), &body(20))).await;
        assert_eq!(peer.ack().await.as_deref(), Some(""));
        drop(peer);
        home.accept().await.whole_answer(20).await;
        until("it counts as completed", || scene.completed() == 1).await;
        assert_eq!(scene.dropped(), 0);
    });
}

#[test]
fn connections_over_the_limit_are_closed_until_others_go() {
    let limits = Limits {
        max_connections: 4,
        ..Limits::default()
    };
    run(
        Setup {
            limits,
            ..Setup::default()
        },
        async |scene| {
            let mut peers = Vec::new();
            for _ in 0..4 {
                let mut peer = scene.connect().await;
                refused(&mut peer, &request_with_payload("x", b""), "unknown endpoint x").await;
                peers.push(peer);
            }
            assert_eq!(scene.connect().await.ack().await, None);
            let turned_away = || scene.counters.get("ghostfleet_request_connections_refused_total");
            assert_eq!(turned_away(), 1);
            for peer in &mut peers {
                refused(peer, &request_with_payload("x", b""), "unknown endpoint x").await;
            }
            drop(peers);
            // The listener notices the free places in its own time: until then it turns peers away as above.
            loop {
                let mut peer = scene.connect().await;
                let sent = peer.0.write_all(&request_with_payload("x", b"")).await;
                if sent.is_ok() && peer.ack().await.is_some() {
                    break;
                }
            }
        },
    );
}
