//! The connection that carries the answer.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use ghostfleet::transport::request_plane::call_home::AnswerLimits;
use ghostfleet::transport::request_plane::{Codec, control, two_part};
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::scene::{Answer, ResponseServer, Scene, Setup, body, request, run, until};

/// Long for this machine, short for a test.
const SHORT: Duration = Duration::from_millis(300);

fn setup(answers: AnswerLimits) -> Setup {
    Setup {
        answers,
        ..Setup::default()
    }
}

/// Has a request accepted that is answered at `address`.
async fn accepted(scene: &Scene, address: SocketAddr, body: &[u8]) {
    let mut peer = scene.connect().await;
    let control = control::encode("request-1", Codec::Json, address, "subject-1");
    peer.send(&request(&control, body)).await;
    assert_eq!(peer.ack().await.as_deref(), Some(""));
}

/// An answer that has begun: handshake and prologue are read.
async fn begun(scene: &Scene, home: &ResponseServer, max_tokens: u32) -> Answer {
    accepted(scene, home.address(), &body(max_tokens)).await;
    let mut answer = home.accept().await;
    for _ in 0..2 {
        answer.frame().await.unwrap();
    }
    answer
}

#[test]
fn an_address_that_refuses_costs_one_failure_and_no_sequence() {
    run(Setup::default(), async |scene| {
        let home = ResponseServer::start();
        let address = home.address();
        drop(home);
        accepted(scene, address, &body(1)).await;
        until("the failure is counted", || scene.call_home_failures() == 1).await;
        until("the call has ended", || scene.cancelled() == 1).await;
        assert_eq!(scene.worker.submitted(), 0);
        scene.serves().await;
    });
}

#[test]
fn an_address_that_swallows_everything_is_given_up_in_time() {
    run(
        setup(AnswerLimits {
            connect: SHORT,
            ..AnswerLimits::default()
        }),
        async |scene| {
            // A listener with a full backlog: the system drops further attempts to connect without a word.
            let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
            listener.listen(0).unwrap();
            let address = listener.local_addr().unwrap().as_socket().unwrap();
            let mut fillers = Vec::new();
            while let Ok(filler) = tokio::time::timeout(SHORT, TcpStream::connect(address)).await {
                fillers.push(filler.unwrap());
            }
            accepted(scene, address, &body(1)).await;
            assert_eq!(scene.open(), 1);
            scene.serves().await;
            until("the failure is counted", || scene.call_home_failures() == 1).await;
            assert_eq!(scene.worker.submitted(), 1, "that of the good frontend");
        },
    );
}

#[test]
fn a_bare_ipv6_address_as_1_4_2_writes_it_is_dialled() {
    run(Setup::default(), async |scene| {
        let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0))
            .await
            .expect("IPv6 on the loopback interface");
        let port = listener.local_addr().unwrap().port();
        let bracketed = control::encode("request-1", Codec::Json, listener.local_addr().unwrap(), "subject-1");
        let bracketed = String::from_utf8(bracketed).unwrap();
        assert!(bracketed.contains("[::1]"));
        for control in [bracketed.replace("[::1]", "::1"), bracketed] {
            let mut peer = scene.connect().await;
            peer.send(&request(control.as_bytes(), &body(3))).await;
            assert_eq!(peer.ack().await.as_deref(), Some(""), "{control} port {port}");
            Answer(listener.accept().await.unwrap().0).whole_answer(3).await;
        }
    });
}

#[test]
fn a_body_that_is_no_request_is_answered_with_an_error_item() {
    let nested = |opening: &str| format!("{{\"token_ids\":[1],\"x\":{}", opening.repeat(200_000)).into_bytes();
    run(Setup::default(), async |scene| {
        let home = ResponseServer::start();
        for body in [
            b"".to_vec(),
            b"null".to_vec(),
            b"{}".to_vec(),
            br#"{"token_ids":"x"}"#.to_vec(),
            br#"{"token_ids":[-1]}"#.to_vec(),
            br#"{"token_ids":[4294967296]}"#.to_vec(),
            br#"{"token_ids":[1]"#.to_vec(),
            vec![0xff; 10_000],
            nested("["),
            nested("{\"x\":"),
        ] {
            accepted(scene, home.address(), &body).await;
            let frames = home.accept().await.frames().await;
            let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
            assert_eq!(frames.len(), 5, "{shown}: {frames:?}");
            assert!(
                frames[2].1.contains(r#""error_type":"InvalidArgument""#),
                "{shown}: {frames:?}"
            );
            assert!(frames[2].1.contains("malformed request"), "{shown}: {frames:?}");
            assert!(frames[3].1.contains(r#""complete_final":true"#), "{shown}: {frames:?}");
        }
        assert_eq!(scene.worker.submitted(), 0);
    });
}

#[test]
fn a_messagepack_body_nested_without_end_is_answered_with_an_error_item() {
    run(Setup::default(), async |scene| {
        let home = ResponseServer::start();
        let control = control::encode("request-1", Codec::Msgpack, home.address(), "subject-1");
        for opening in [
            &[0x91][..],
            &[0x81, 0xa1, b'x'],
            &[0xdc, 0xff, 0xff],
            &[0xdf, 0xff, 0xff, 0xff, 0xff, 0xa0],
        ] {
            let body = [&[0x82, 0xa1, b'x'], &opening.repeat(200_000)[..]].concat();
            let mut peer = scene.connect().await;
            peer.send(&request(&control, &body)).await;
            assert_eq!(peer.ack().await.as_deref(), Some(""));
            let mut answer = home.accept().await.0;
            let mut bytes = Vec::new();
            let sentinel = b"\"sentinel\"";
            while !bytes.ends_with(sentinel) {
                assert_ne!(
                    answer.read_buf(&mut bytes).await.unwrap(),
                    0,
                    "the end mark comes before the end"
                );
            }
            let text = String::from_utf8_lossy(&bytes);
            assert!(
                text.contains("InvalidArgument") && text.contains("malformed request"),
                "{text}"
            );
        }
        assert_eq!(scene.worker.submitted(), 0);
    });
}

#[test]
fn a_frontend_that_vanishes_frees_its_sequence() {
    run(Setup::default(), async |scene| {
        let home = ResponseServer::start();
        let bystander = begun(scene, &home, 400).await;
        let reset = begun(scene, &home, 0).await;
        let closed = begun(scene, &home, 0).await;
        let mut half_closed = begun(scene, &home, 0).await;
        assert_eq!(scene.worker.sequences(), 4);
        let mut streaming = begun(scene, &home, 1_000_000).await;
        assert!(streaming.frame().await.unwrap().1.contains("token_ids"));

        // Says nothing more and is gone.
        assert!(reset.0.try_read(&mut [0; 64]).is_err());
        reset.reset();
        streaming.reset();
        drop(closed);
        half_closed.0.shutdown().await.unwrap();
        until("four are cancelled", || scene.cancelled() == 4).await;
        half_closed.breaks_off().await;

        let mut bystander = bystander;
        let frames = bystander.frames().await;
        assert_eq!(frames.len(), 402, "400 tokens, final item and end mark");
    });
}

#[test]
fn what_is_no_control_frame_ends_the_stream_as_a_lost_frontend_does() {
    let frame = |header: &[u8], data: &[u8]| {
        let mut bytes = Vec::new();
        two_part::write(&mut bytes, header, data);
        bytes
    };
    run(Setup::default(), async |scene| {
        let home = ResponseServer::start();
        for (ended, said) in (1..).zip([
            frame(b"\"pause\"", b""),
            frame(b"", b""),
            frame(b"\"kill\"", b"and data"),
            frame(&[b'x'; 1000], b""),
            vec![0xff; two_part::PREFIX_BYTES],
            b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n".to_vec(),
            vec![0; 100_000],
            frame(b"\"kill\"", b""),
            frame(b"\"stop\"", b""),
        ]) {
            let mut answer = begun(scene, &home, 0).await;
            // The worker may close while the rest of it is on its way.
            let _ = answer.0.write_all(&said).await;
            answer.breaks_off().await;
            until("the stream is cancelled", || scene.cancelled() == ended).await;
        }
        assert_eq!(scene.worker.sequences(), 0);
        scene.serves().await;
    });
}

#[test]
fn a_control_frame_that_comes_byte_by_byte_is_understood() {
    run(Setup::default(), async |scene| {
        let home = ResponseServer::start();
        let mut answer = begun(scene, &home, 0).await;
        let mut kill = Vec::new();
        two_part::write(&mut kill, b"\"kill\"", b"");
        for byte in kill {
            assert_eq!(scene.worker.sequences(), 1);
            answer.0.write_all(&[byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        answer.breaks_off().await;
    });
}

#[test]
fn a_reader_that_falls_behind_is_given_up_while_others_are_served() {
    let answers = AnswerLimits {
        max_pending_bytes: 64 * 1024,
        ..AnswerLimits::default()
    };
    run(
        Setup {
            tokens_per_pass: 500,
            ..setup(answers)
        },
        async |scene| {
            let home = ResponseServer::with_small_buffer();
            accepted(scene, home.address(), &body(10_000_000)).await;
            let unread = home.accept().await;
            while scene.given_up("slow_reader") == 0 {
                scene.serves().await;
            }
            until("it is cancelled", || scene.cancelled() == 1).await;
            assert_eq!(scene.given_up("stalled_reader"), 0);
            unread.breaks_off().await;
        },
    );
}

#[test]
fn a_reader_that_stops_is_given_up_after_a_while() {
    let answers = AnswerLimits {
        max_pending_bytes: 1 << 30,
        stall: SHORT,
        ..AnswerLimits::default()
    };
    run(
        Setup {
            tokens_per_pass: 20_000,
            ..setup(answers)
        },
        async |scene| {
            let home = ResponseServer::with_small_buffer();
            // More than the system's buffers hold, and then nothing that would fill the worker's own.
            accepted(scene, home.address(), &body(200_000)).await;
            let unread = home.accept().await;
            until("the stream is given up", || scene.given_up("stalled_reader") == 1).await;
            assert_eq!(scene.given_up("slow_reader"), 0);
            until("it is cancelled", || scene.cancelled() == 1).await;
            unread.breaks_off().await;
        },
    );
}

#[test]
fn a_frontend_that_never_closes_is_not_waited_for() {
    run(
        setup(AnswerLimits {
            close: SHORT,
            ..AnswerLimits::default()
        }),
        async |scene| {
            let home = ResponseServer::start();
            accepted(scene, home.address(), &body(3)).await;
            let mut held = home.accept().await;
            let frames = held.frames().await;
            assert_eq!(frames.len(), 7);
            until("the answer counts as complete", || scene.completed() == 1).await;
            until("the stream is closed", || scene.open() == 0).await;
            assert_eq!(held.frame().await, None);
        },
    );
}

#[test]
fn hundreds_of_frontends_that_vanish_at_any_moment_leave_nothing_behind() {
    const REQUESTS: usize = 400;
    run(Setup::default(), async |scene| {
        let home = ResponseServer::start();
        let mut peer = scene.connect().await;
        peer.send(&request(&home.control(), &body(50)).repeat(REQUESTS)).await;
        for round in 0..REQUESTS {
            let mut answer = home.accept().await;
            // Some vanish before the first byte, some in the middle, some after the end.
            for _ in 0..round % 54 {
                if answer.frame().await.is_none() {
                    break;
                }
            }
            match round % 3 {
                0 => answer.reset(),
                1 => drop(answer),
                _ => {
                    let _ = answer.0.write_all(&[0; 64]).await;
                }
            }
        }
        for _ in 0..REQUESTS {
            assert_eq!(peer.ack().await.as_deref(), Some(""));
        }
        scene.settled().await;
        assert!(scene.cancelled() > 0);
    });
}
