//! Answers that come piece by piece.

use ghostfleet::types::FinishReason;
use serde_json::{Value, json};

use crate::worker::{Worker, ids, tell, tiny};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_streamed_chat_has_the_bytes_of_a_vllm_server() {
    let mut worker = Worker::start();
    let body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "hi" }], "stream": true,
                       "max_completion_tokens": 3, "stream_options": { "include_usage": true } });
    let client = worker.ask("/v1/chat/completions", &body).await;
    let submission = worker.submitted().await;
    assert_eq!(submission.request.stop.max_tokens, Some(3));
    submission.sink.admitted(1);
    submission.sink.flush();
    tell(&submission, " once upon a", FinishReason::Length);
    let reply = client.reply().await;
    assert_eq!(reply.headers["x-ghostfleet-worker"], "w3");
    let mut events = reply.events();
    for event in &mut events {
        assert!(event["id"].take().as_str().unwrap().starts_with("chatcmpl-"));
        assert!(event["created"].take().is_u64());
        let kind = json!("chat.completion.chunk");
        assert_eq!((event["object"].take(), event["model"].take()), (kind, json!("tiny")));
    }
    let delta = |delta: Value, finish: Value| {
        let mut choice =
            json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish, "token_ids": null });
        if !finish.is_null() {
            choice["stop_reason"] = Value::Null;
        }
        choice
    };
    let mut opening = delta(json!({ "role": "assistant", "content": "" }), Value::Null);
    opening.as_object_mut().unwrap().remove("token_ids");
    let choices: Vec<_> = events.iter().map(|event| event["choices"].clone()).collect();
    assert_eq!(
        choices,
        [
            json!([opening]),
            json!([delta(json!({ "content": " once" }), Value::Null)]),
            json!([delta(json!({ "content": " upon" }), Value::Null)]),
            json!([delta(json!({ "content": " a" }), json!("length"))]),
            json!([]),
        ]
    );
    let prompt_tokens = submission.request.prompt.len();
    assert_eq!(
        events[4]["usage"],
        json!({ "prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + 3, "completion_tokens": 3,
                "prompt_tokens_details": { "cached_tokens": 1 } })
    );
    assert!(events[..4].iter().all(|event| event.get("usage").is_none()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_reach_the_client_as_they_come() {
    let mut worker = Worker::start();
    let mut client = worker
        .ask("/v1/completions", &json!({ "prompt": "x", "stream": true }))
        .await;
    let submission = worker.submitted().await;
    for (token, text) in ids(" once upon a time")
        .into_iter()
        .zip([" once", " upon", " a", " time"])
    {
        submission.sink.token(token, None);
        assert!(submission.sink.flush());
        client.read_until(&format!("\"text\":\"{text}\"")).await;
    }
    submission.sink.finished(FinishReason::Length);
    submission.sink.flush();
    client.read_until("[DONE]").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_character_of_several_tokens_comes_whole_with_an_empty_chunk_per_token() {
    let mut worker = Worker::start();
    let body = json!({ "prompt": "x", "stream": true, "return_token_ids": true,
                       "stream_options": { "include_usage": true, "continuous_usage_stats": true } });
    let client = worker.ask("/v1/completions", &body).await;
    let submission = worker.submitted().await;
    let tokens = ids("\u{1f389}");
    assert_eq!(tokens.len(), 4);
    tell(&submission, "\u{1f389}", FinishReason::Length);
    let events = client.reply().await.events();
    let texts: Vec<_> = events[..4]
        .iter()
        .map(|event| event["choices"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["", "", "", "\u{1f389}"]);
    let told: Vec<_> = events[..4]
        .iter()
        .map(|event| event["choices"][0]["token_ids"][0].clone())
        .collect();
    assert_eq!(json!(told), json!(tokens));
    assert!(events.iter().all(|event| event["usage"]["prompt_tokens"] == 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_is_answered_as_a_whole_and_its_content_may_come_in_parts() {
    let mut worker = Worker::start();
    let content = json!([{ "type": "text", "text": "hello" }, { "type": "text", "text": "world" }]);
    let body = json!({ "messages": [{ "role": "user", "content": content }] });
    let client = worker.ask("/v1/chat/completions", &body).await;
    let submission = worker.submitted().await;
    let prompt = tiny().1.decode(&submission.request.prompt.to_vec(), false).unwrap();
    assert_eq!(
        prompt,
        "<|im_start|>user\nhello\nworld<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(submission.request.stop.max_tokens, None, "the engine draws a length");
    tell(&submission, " good day", FinishReason::Length);
    let answer = client.reply().await.json();
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(answer["object"], "chat.completion");
    let message = &answer["choices"][0]["message"];
    assert_eq!(
        (&message["role"], &message["content"]),
        (&json!("assistant"), &json!(" good day"))
    );
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_choice_of_a_streamed_chat_is_opened() {
    let mut worker = Worker::start();
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }], "n": 2, "stream": true });
    let client = worker.ask("/v1/chat/completions", &body).await;
    let first = worker.submitted().await;
    let second = worker.submitted().await;
    tell(&second, " two", FinishReason::Eos);
    tell(&first, " one", FinishReason::Length);
    let events = client.reply().await.events();
    let opened: Vec<_> = events
        .iter()
        .filter(|event| event["choices"][0]["delta"]["role"] == "assistant")
        .map(|event| event["choices"][0]["index"].as_u64().unwrap())
        .collect();
    assert_eq!(opened, [0, 1]);
    let ends: Vec<_> = events[2..]
        .iter()
        .map(|event| event["choices"][0]["finish_reason"].clone())
        .collect();
    assert!(ends.contains(&json!("stop")) && ends.contains(&json!("length")));
}
