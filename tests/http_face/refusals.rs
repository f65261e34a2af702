//! What is refused, by the face or by the worker, and how it is told.

use std::time::Duration;

use ghostfleet::transport::http::FaceLimits;
use ghostfleet::transport::intake::{Failure, Refusal};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::Client;
use crate::worker::Worker;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_model_is_a_404_of_its_own_form() {
    let worker = Worker::start();
    for (path, body) in [
        ("/v1/completions", json!({ "model": "nope", "prompt": "x" })),
        (
            "/v1/chat/completions",
            json!({ "model": "nope", "messages": [{ "role": "user", "content": "x" }] }),
        ),
        ("/tokenize", json!({ "model": "nope", "prompt": "x" })),
        ("/detokenize", json!({ "model": "nope", "tokens": [1] })),
    ] {
        let (status, error) = worker.post(path, &body).await.error();
        assert_eq!(
            (status, &error["type"], &error["param"]),
            (404, &json!("NotFoundError"), &json!("model"))
        );
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .starts_with("The model `nope` does not exist."),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_bodies_are_told_as_such() {
    let worker = Worker::start();
    for body in [
        "",
        "{",
        "[]",
        "{}",
        r#"{"prompt": {}}"#,
        r#"{"prompt": "x", "n": "two"}"#,
        "\u{0}",
    ] {
        let reply = Client::send(&worker.face, "POST", "/v1/completions", "", body.as_bytes())
            .await
            .reply()
            .await;
        let (status, error) = reply.error();
        assert_eq!((status, &error["type"]), (400, &json!("Bad Request")), "{body}");
    }
    let unclear = json!({ "prompt": "x", "stop": 5 });
    let (status, error) = worker.post("/v1/completions", &unclear).await.error();
    assert_eq!(status, 400);
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .starts_with("`stop` must be a string or a list"),
        "{error}"
    );
    for body in [r#"{"messages": "x"}"#, r#"{"messages": [1]}"#, "{}"] {
        let reply = Client::send(&worker.face, "POST", "/v1/chat/completions", "", body.as_bytes())
            .await
            .reply()
            .await;
        assert_eq!(reply.error().1["type"], "Bad Request", "{body}");
    }
    assert_eq!(worker.post("/tokenize", &json!({})).await.error().0, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_make_no_sense_are_refused_before_the_worker_hears_of_them() {
    let mut worker = Worker::start();
    let many = vec![1; 512];
    for (body, param, words) in [
        (
            json!({ "prompt": [1, 2], "max_tokens": 600 }),
            "max_tokens",
            &["600", "512", "510"][..],
        ),
        (
            json!({ "prompt": [1, 2], "max_tokens": 0 }),
            "max_tokens",
            &["at least 1"],
        ),
        (json!({ "prompt": [1, 2], "max_tokens": -4 }), "max_tokens", &["-4"]),
        (
            json!({ "prompt": [1, 2], "max_tokens": 4, "min_tokens": 5 }),
            "min_tokens",
            &["max_tokens"],
        ),
        (json!({ "prompt": many }), "prompt", &["512", "shorten"]),
        (json!({ "prompt": "" }), "prompt", &["empty"]),
        (json!({ "prompt": [1, 99999] }), "prompt", &["99999"]),
        (json!({ "prompt": "x", "n": 0 }), "n", &["at least 1"]),
        (json!({ "prompt": ["x", "y"], "n": 1000 }), "n", &["1024"]),
        (json!({ "prompt": "x", "stop": "" }), "stop", &["empty"]),
        (json!({ "prompt": "x", "stop": vec!["y"; 300] }), "stop", &["256"]),
        (
            json!({ "prompt": "x", "logprobs": 21 }),
            "logprobs",
            &["logprobs of 21", "max allowed: 20"],
        ),
        (json!({ "prompt": "x", "logprobs": -1 }), "logprobs", &["non-negative"]),
        (
            json!({ "prompt": "x", "logprobs": 1, "echo": true }),
            "logprobs",
            &["echo", "prompt_logprobs"],
        ),
        (
            json!({ "prompt": "x", "prompt_logprobs": 0, "stream": true }),
            "prompt_logprobs",
            &["stream=True"],
        ),
        (
            json!({ "prompt": "x", "use_beam_search": true }),
            "use_beam_search",
            &["beams"],
        ),
        (json!({ "prompt": "x", "n": 2, "best_of": 3 }), "best_of", &["above n"]),
        (
            json!({ "prompt": "x", "truncate_prompt_tokens": 0 }),
            "truncate_prompt_tokens",
            &["between 1 and 512"],
        ),
        (json!({ "prompt": "x", "suffix": "y" }), "suffix", &["suffix"]),
    ] {
        let (status, error) = worker.post("/v1/completions", &body).await.error();
        assert_eq!((status, &error["type"]), (400, &json!("BadRequestError")), "{body}");
        assert_eq!(error["param"], param, "{body}");
        let message = error["message"].as_str().unwrap();
        assert!(words.iter().all(|word| message.contains(word)), "{body}: {message}");
    }
    let image = json!([{ "type": "image_url", "image_url": { "url": "data:" } }]);
    for (messages, word) in [
        (json!([]), "empty"),
        (json!([{ "content": "x" }]), "role"),
        (json!([{ "role": "user", "content": image }]), "image_url"),
        (json!([{ "role": "user", "content": 5 }]), "content"),
    ] {
        let (status, error) = worker
            .post("/v1/chat/completions", &json!({ "messages": messages }))
            .await
            .error();
        assert!(
            status == 400 && error["message"].as_str().unwrap().contains(word),
            "{error}"
        );
    }
    let body = json!({ "messages": [{ "role": "user", "content": "x" }], "top_logprobs": 2 });
    let (status, error) = worker.post("/v1/chat/completions", &body).await.error();
    assert_eq!((status, &error["param"]), (400, &json!("top_logprobs")));
    let body = json!({ "messages": [{ "role": "user", "content": "x" }], "echo": true });
    assert_eq!(
        worker.post("/v1/chat/completions", &body).await.error().1["param"],
        "echo"
    );
    assert!(worker.submissions.try_recv().is_err());
    worker.is_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_worker_refuses_is_told() {
    let worker = Worker::start();
    for (refusal, status) in [
        (Refusal::Overloaded, 503),
        (Refusal::Unavailable, 503),
        (Refusal::Invalid("too odd".to_owned()), 400),
    ] {
        worker.refuse(refusal.clone());
        for stream in [false, true] {
            let reply = worker
                .post("/v1/completions", &json!({ "prompt": "x", "stream": stream }))
                .await;
            let (got, error) = reply.error();
            assert_eq!(
                (got, error["message"].as_str().unwrap()),
                (status, refusal.to_string().as_str())
            );
        }
    }
    worker.is_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_later_on_is_an_error_or_the_last_event() {
    let mut worker = Worker::start();
    for (failure, status) in [
        (Failure::InvalidRequest("odd".to_owned()), 400),
        (Failure::ShuttingDown, 503),
        (Failure::Internal("broken".to_owned()), 500),
    ] {
        let client = worker.ask("/v1/completions", &json!({ "prompt": "x" })).await;
        let submission = worker.submitted().await;
        submission.sink.token(400, None);
        submission.sink.failed(&failure);
        submission.sink.flush();
        assert_eq!(client.reply().await.error().0, status);

        let client = worker
            .ask("/v1/completions", &json!({ "prompt": "x", "stream": true }))
            .await;
        worker.submitted().await.sink.failed(&failure);
        let events = client.reply().await.events();
        assert_eq!(events.last().unwrap()["error"]["code"], status);
    }
    worker.is_idle().await;
    assert!(
        worker.cancelled.try_recv().is_err(),
        "a failed request is not cancelled"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_too_long_or_never_ends_is_refused() {
    let limits = FaceLimits {
        max_body_bytes: 1000,
        patience: Duration::from_millis(300),
        ..FaceLimits::default()
    };
    let worker = Worker::with_limits(limits);
    let long = json!({ "prompt": "x".repeat(2000) }).to_string();
    let reply = Client::send(&worker.face, "POST", "/v1/completions", "", long.as_bytes())
        .await
        .reply()
        .await;
    assert_eq!(reply.error().0, 413);

    // Larger than the sockets' buffers: the client is still writing when the answer is due.
    let huge = json!({ "prompt": "x".repeat(8 << 20) }).to_string();
    let reply = Client::send(&worker.face, "POST", "/v1/completions", "", huge.as_bytes())
        .await
        .reply()
        .await;
    assert_eq!(reply.error().0, 413);

    let mut stream = TcpStream::connect(worker.face.address()).await.unwrap();
    let head = b"POST /v1/completions HTTP/1.1\r\nhost: w\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head).await.unwrap();
    for _ in 0..3 {
        stream
            .write_all(format!("190\r\n{}\r\n", "y".repeat(400)).as_bytes())
            .await
            .unwrap();
    }
    assert_eq!(Client { stream }.reply().await.error().0, 413);

    let mut stream = TcpStream::connect(worker.face.address()).await.unwrap();
    stream
        .write_all(b"POST /v1/completions HTTP/1.1\r\nhost: w\r\ncontent-length: 50\r\n\r\n{")
        .await
        .unwrap();
    assert_eq!(Client { stream }.reply().await.error().0, 408);
}
