//! Connections that break off, stand still, end, or speak something else.

use std::time::Duration;

use ghostfleet::transport::http::FaceLimits;
use ghostfleet::types::FinishReason;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::within;
use crate::worker::{Worker, bind, tell};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_frees_its_requests() {
    for stream in [false, true] {
        let mut worker = Worker::start();
        let body = json!({ "prompt": "x", "n": 2, "stream": stream });
        let client = worker.ask("/v1/completions", &body).await;
        let (first, second) = (worker.submitted().await, worker.submitted().await);
        first.sink.token(400, Some(FinishReason::Length));
        first.sink.flush();
        second.sink.token(400, None);
        second.sink.flush();
        if stream {
            let mut client = client;
            client.read_until("\"index\":1").await;
        } else {
            drop(client);
        }
        // The first answer's end may still lie unread when the client leaves; cancelling it then is in order.
        let mut cancelled = worker.cancelled().await;
        if cancelled == first.request.id {
            cancelled = worker.cancelled().await;
        }
        assert_eq!(cancelled, second.request.id);
        worker.is_idle().await;
        assert!(!second.sink.flush());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stops_reading_is_given_up() {
    let limits = FaceLimits {
        patience: Duration::from_millis(300),
        ..FaceLimits::default()
    };
    let mut worker = Worker::with_limits(limits);
    let client = worker
        .ask("/v1/completions", &json!({ "prompt": "x", "stream": true }))
        .await;
    let submission = worker.submitted().await;
    // Some 15 MB of events: more than sockets and buffers hold, and fewer tokens than may wait.
    let tokens = 60_000;
    assert!(tokens < limits.max_pending_tokens);
    for _ in 0..tokens {
        submission.sink.token(400, None);
    }
    assert!(submission.sink.flush());
    assert_eq!(worker.cancelled().await, submission.request.id);
    worker.is_idle().await;
    assert!(!submission.sink.flush());
    drop(client);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_nobody_takes_do_not_pile_up() {
    let limits = FaceLimits {
        max_pending_tokens: 1000,
        ..FaceLimits::default()
    };
    let mut worker = Worker::with_limits(limits);
    let mut client = worker
        .ask("/v1/completions", &json!({ "prompt": "x", "stream": true }))
        .await;
    let submission = worker.submitted().await;
    for _ in 0..2000 {
        submission.sink.token(400, None);
    }
    assert!(!submission.sink.flush());
    worker.cancelled().await;
    let mut rest = Vec::new();
    let end = within(client.stream.read_to_end(&mut rest)).await;
    assert!(!String::from_utf8_lossy(&rest).contains("[DONE]"));
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_dies_resets_its_answers() {
    for stream in [false, true] {
        let mut worker = Worker::start();
        let mut client = worker
            .ask("/v1/completions", &json!({ "prompt": "x", "stream": stream }))
            .await;
        let submission = worker.submitted().await;
        submission.sink.token(400, None);
        submission.sink.flush();
        if stream {
            client.read_until("data: ").await;
        }
        submission.sink.broken();
        let mut rest = Vec::new();
        let end = within(client.stream.read_to_end(&mut rest)).await;
        assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
        assert!(!String::from_utf8_lossy(&rest).contains("[DONE]"));
        worker.is_idle().await;
        assert_eq!(worker.get("/health").await.status, 200, "only that connection is gone");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_resets_every_connection_and_closes_the_port() {
    let mut worker = Worker::start();
    let mut busy = worker
        .ask("/v1/completions", &json!({ "prompt": "x", "stream": true }))
        .await;
    let submission = worker.submitted().await;
    submission.sink.token(400, None);
    submission.sink.flush();
    busy.read_until("data: ").await;
    let mut idle = worker.idle_client().await;
    worker.face.shutdown().reset.cancel();
    for client in [&mut busy, &mut idle] {
        let end = within(client.stream.read_to_end(&mut Vec::new())).await;
        assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    }
    worker.face.shutdown().stop_accepting.cancel();
    within(worker.face.closed()).await;
    assert!(TcpStream::connect(worker.face.address()).await.is_err());
    assert_eq!((worker.face.active_requests(), worker.face.open_connections()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graceful_stop_finishes_answers_and_closes_idle_connections() {
    let mut worker = Worker::start();
    let client = worker
        .ask("/v1/completions", &json!({ "prompt": "x", "stream": true }))
        .await;
    let submission = worker.submitted().await;
    let mut idle = worker.idle_client().await;
    worker.face.shutdown().stop_accepting.cancel();
    assert_eq!(within(idle.stream.read_to_end(&mut Vec::new())).await.unwrap(), 0);
    tell(&submission, " to the end", FinishReason::Length);
    let events = client.reply().await.events();
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
    within(worker.face.closed()).await;
    assert!(TcpStream::connect(worker.face.address()).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_serves_one_request_after_another() {
    let mut worker = Worker::start();
    let mut client = worker.connect().await;
    for _ in 0..3 {
        let body = json!({ "prompt": "x", "stream": true }).to_string();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: w\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        client.stream.write_all((head + &body).as_bytes()).await.unwrap();
        tell(&worker.submitted().await, " yes", FinishReason::Length);
        client.read_until("[DONE]\n\n\r\n0\r\n\r\n").await;
    }
    assert_eq!(worker.face.open_connections(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_protocols_are_closed_and_never_hang() {
    let worker = Worker::start();
    for bytes in [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"nonsense\r\n\r\n",
    ] {
        let mut stream = worker.connect().await.stream;
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        // A reset is as good as a close.
        let _ = within(stream.read_to_end(&mut answer)).await;
        assert!(
            !answer.starts_with(b"HTTP/1.1 200"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    assert_eq!(worker.get("/health").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_taken_port_is_named() {
    let worker = Worker::start();
    let again = bind(worker.face.address(), &worker.intake, FaceLimits::default());
    let error = again.unwrap_err().to_string();
    assert!(
        error.contains(&worker.face.address().to_string()) && error.contains("another port"),
        "{error}"
    );
}
