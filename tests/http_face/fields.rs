//! What a request may ask for, and what becomes of it.

use ghostfleet::types::{DpRank, FinishReason};
use serde_json::{Value, json};

use crate::client::Client;
use crate::worker::{Worker, ids, tell};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_to_one_prompt_run_on_one_rank() {
    let mut worker = Worker::start();
    let body = json!({ "prompt": ["the fox", "a dog"], "n": 2 });
    let _client = worker.ask("/v1/completions", &body).await;
    for _ in 0..4 {
        assert_eq!(worker.submitted().await.dp_rank, Some(DpRank(5)));
    }
    let _client = worker.ask("/v1/completions", &json!({ "prompt": "the fox" })).await;
    assert_eq!(
        worker.submitted().await.dp_rank,
        None,
        "a lone answer goes where the worker likes"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_probabilities_of_a_completion_go_with_its_tokens() {
    let mut worker = Worker::start();
    let body = json!({ "prompt": "the quick", "logprobs": 3, "prompt_logprobs": 1, "return_token_ids": true });
    let client = worker.ask("/v1/completions", &body).await;
    let submission = worker.submitted().await;
    tell(&submission, " once upon a time", FinishReason::Length);
    let choice = client.reply().await.json()["choices"][0].clone();
    let logprobs = &choice["logprobs"];
    let texts: Vec<&str> = logprobs["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t.as_str().unwrap())
        .collect();
    assert_eq!(texts.concat(), choice["text"].as_str().unwrap());
    let told = ids(" once upon a time");
    for (at, id) in told.iter().enumerate() {
        let sampled = logprobs["token_logprobs"][at].as_f64().unwrap();
        assert!((sampled + 0.1 * f64::from(id % 10 + 1)).abs() < 1e-9);
        let top = logprobs["top_logprobs"][at].as_object().unwrap();
        assert_eq!(top[texts[at]], sampled);
        assert!(top.values().all(|other| other.as_f64().unwrap() <= sampled) && top.len() <= 3);
        let before: usize = texts[..at].iter().map(|text| text.chars().count()).sum();
        assert_eq!(logprobs["text_offset"][at], before);
    }
    let of_prompt = choice["prompt_logprobs"].as_array().unwrap();
    let prompt = ids("the quick");
    assert_eq!((of_prompt.len(), &of_prompt[0]), (prompt.len(), &Value::Null));
    assert_eq!(of_prompt[1][prompt[1].to_string()]["rank"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_probabilities_of_a_chat_come_in_each_chunk() {
    let mut worker = Worker::start();
    let body = json!({ "messages": [{ "role": "user", "content": "x" }], "logprobs": true, "top_logprobs": 2, "stream": true });
    let client = worker.ask("/v1/chat/completions", &body).await;
    let submission = worker.submitted().await;
    tell(&submission, " once upon", FinishReason::Length);
    let events = client.reply().await.events();
    let content = |event: &Value| event["choices"][0]["logprobs"]["content"].as_array().cloned();
    let told: Vec<Value> = events.iter().filter_map(content).flatten().collect();
    let texts: String = told.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(texts, " once upon");
    for token in &told {
        assert_eq!(token["bytes"], json!(token["token"].as_str().unwrap().as_bytes()));
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2);
        assert_eq!(token["top_logprobs"][0]["token"], token["token"]);
    }
    // Without `top_logprobs` the token stands alone.
    let body = json!({ "messages": [{ "role": "user", "content": "x" }], "logprobs": true, "return_tokens_as_token_ids": true });
    let client = worker.ask("/v1/chat/completions", &body).await;
    tell(&worker.submitted().await, " once", FinishReason::Length);
    let token = client.reply().await.json()["choices"][0]["logprobs"]["content"][0].clone();
    assert_eq!(token["top_logprobs"], json!([]));
    assert_eq!(token["token"], format!("token_id:{}", ids(" once")[0]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adapter_is_a_model_of_its_own() {
    let mut worker = Worker::start();
    let list = worker.get("/v1/models").await.json();
    let entry = |name: &str| {
        let all = list["data"].as_array().unwrap();
        all.iter().find(|entry| entry["id"] == name).unwrap().clone()
    };
    assert_eq!(
        (&entry("poet")["parent"], &entry("poet")["root"]),
        (&json!("tiny"), &json!("/adapters/poet"))
    );
    assert_eq!(
        (&entry("clerk")["root"], &entry("tiny")["parent"]),
        (&json!("clerk"), &Value::Null)
    );
    let client = worker
        .ask("/v1/completions", &json!({ "model": "poet", "prompt": "x" }))
        .await;
    let submission = worker.submitted().await;
    assert_eq!(submission.request.salt.lora_name.as_deref(), Some("poet"));
    tell(&submission, " once", FinishReason::Length);
    assert_eq!(client.reply().await.json()["model"], "poet");
    let _client = worker
        .ask("/v1/completions", &json!({ "model": "tiny", "prompt": "x" }))
        .await;
    assert_eq!(worker.submitted().await.request.salt.lora_name, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorded_answer_is_asked_for_by_name() {
    let mut worker = Worker::start();
    let body = |name: &str| json!({ "prompt": "x", "nvext": { "annotations": [format!("output_replay_id:{name}")] } });
    let _first = worker.ask("/v1/completions", &body("monday")).await;
    assert_eq!(
        worker.submitted().await.request.planned.as_deref(),
        Some(&[300, 301][..])
    );
    let _second = worker.ask("/v1/completions", &body("tuesday")).await;
    assert_eq!(worker.submitted().await.request.planned, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_may_be_cut_at_its_start() {
    let mut worker = Worker::start();
    let _client = worker
        .ask(
            "/v1/completions",
            &json!({ "prompt": [300, 301, 302], "truncate_prompt_tokens": 2 }),
        )
        .await;
    assert_eq!(worker.submitted().await.request.prompt.to_vec(), [301, 302]);
    let long = vec![300; 600];
    let _client = worker
        .ask(
            "/v1/completions",
            &json!({ "prompt": long, "truncate_prompt_tokens": -1, "max_tokens": 1 }),
        )
        .await;
    assert_eq!(worker.submitted().await.request.prompt.len(), 511);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_seed_draws_the_same_tokens() {
    let mut worker = Worker::start();
    let (mut keys, mut clients) = (Vec::new(), Vec::new());
    for body in [
        json!({ "prompt": "x", "seed": 7 }),
        json!({ "prompt": "y", "seed": 7 }),
        json!({ "prompt": "x" }),
    ] {
        clients.push(worker.ask("/v1/completions", &body).await);
        keys.push(worker.submitted().await.request.key);
    }
    assert_eq!(keys[0], keys[1]);
    assert_ne!(keys[0], keys[2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_id_and_rank_come_from_headers() {
    let mut worker = Worker::start();
    let body = json!({ "prompt": "x" }).to_string();
    let headers = "x-request-id: abc\r\nx-data-parallel-rank: 1\r\n";
    let client = Client::send(&worker.face, "POST", "/v1/completions", headers, body.as_bytes()).await;
    let submission = worker.submitted().await;
    assert_eq!(submission.dp_rank.map(|rank| rank.0), Some(1));
    tell(&submission, " y", FinishReason::Length);
    assert_eq!(client.reply().await.json()["id"], "cmpl-abc");
    let headers = "x-data-parallel-rank: one\r\n";
    let client = Client::send(&worker.face, "POST", "/v1/completions", headers, body.as_bytes()).await;
    assert_eq!(client.reply().await.status, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_routing_key_comes_from_a_header_of_bounded_length() {
    let mut worker = Worker::start();
    let body = json!({ "prompt": "x" }).to_string();
    let headers = "X-SMG-Routing-Key: tenant-a\r\n";
    let client = Client::send(&worker.face, "POST", "/v1/completions", headers, body.as_bytes()).await;
    let submission = worker.submitted().await;
    assert_eq!(submission.request.routing_key.as_deref(), Some("tenant-a"));
    tell(&submission, " y", FinishReason::Length);
    assert_eq!(client.reply().await.status, 200);
    let headers = format!("x-smg-routing-key: {}\r\n", "k".repeat(257));
    let client = Client::send(&worker.face, "POST", "/v1/completions", &headers, body.as_bytes()).await;
    assert_eq!(client.reply().await.status, 400);
}
