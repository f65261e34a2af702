//! Completions that are answered as a whole.

use ghostfleet::types::FinishReason;
use serde_json::json;

use crate::worker::{Worker, ids, tell};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_is_answered_as_a_whole() {
    let mut worker = Worker::start();
    let body = json!({ "model": "tiny", "prompt": [300, 301, 302], "max_tokens": 4, "min_tokens": 2, "ignore_eos": true,
                       "stop_token_ids": [7], "temperature": 0.5, "priority": 3, "cache_salt": "s", "unknown": [1] });
    let client = worker.ask("/v1/completions", &body).await;
    let submission = worker.submitted().await;
    let request = &submission.request;
    assert_eq!(request.prompt.to_vec(), [300, 301, 302]);
    assert_eq!(
        (
            request.stop.max_tokens,
            request.stop.min_tokens,
            request.stop.ignore_eos
        ),
        (Some(4), 2, true)
    );
    assert_eq!(
        (&request.stop.stop_token_ids[..], &request.stop.eos_token_ids[..]),
        (&[7][..], &[0, 2][..])
    );
    assert_eq!(
        (request.priority, request.salt.cache_salt.as_deref(), submission.dp_rank),
        (3, Some("s"), None)
    );
    assert_eq!(worker.get("/load").await.json(), json!({ "server_load": 1 }));
    submission.sink.admitted(2);
    tell(&submission, " once upon a time", FinishReason::Length);
    let reply = client.reply().await;
    assert_eq!(
        (reply.status, reply.headers["content-type"].as_str()),
        (200, "application/json")
    );
    assert_eq!(reply.headers["x-ghostfleet-worker"], "w3");
    let mut answer = reply.json();
    let id = answer["id"].take();
    let id = id.as_str().unwrap().strip_prefix("cmpl-").unwrap();
    assert!(
        id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{id}"
    );
    assert!(answer["created"].take().is_u64());
    let expected = json!({
        "id": null, "object": "text_completion", "created": null, "model": "tiny",
        "choices": [{ "index": 0, "text": " once upon a time", "logprobs": null, "finish_reason": "length",
                      "stop_reason": null, "token_ids": null, "prompt_logprobs": null, "prompt_token_ids": null }],
        "service_tier": null, "system_fingerprint": null, "kv_transfer_params": null,
        "usage": { "prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4,
                   "prompt_tokens_details": { "cached_tokens": 2 } },
    });
    assert_eq!(answer, expected);
    worker.is_idle().await;
    assert!(
        worker.cancelled.try_recv().is_err(),
        "a finished request is not cancelled"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_prompts_and_several_answers_each_are_choices_in_order() {
    let mut worker = Worker::start();
    let body = json!({ "prompt": ["the fox", "a dog"], "n": 2, "return_token_ids": true });
    let client = worker.ask("/v1/completions", &body).await;
    let mut keys = Vec::new();
    for (index, text) in [" one", " two", " three", " four"].iter().enumerate() {
        let submission = worker.submitted().await;
        let prompt = if index < 2 { "the fox" } else { "a dog" };
        assert_eq!(submission.request.prompt.to_vec(), ids(prompt));
        assert_eq!(
            submission.request.stop.max_tokens,
            Some(16),
            "what a completion gets when it does not say"
        );
        keys.push(submission.request.key);
        submission.sink.admitted(u32::try_from(index).unwrap());
        tell(&submission, text, FinishReason::Eos);
    }
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 4, "each answer draws its own tokens");
    let answer = client.reply().await.json();
    let choices = answer["choices"].as_array().unwrap();
    let indexes: Vec<_> = choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect();
    assert_eq!(indexes, [0, 1, 2, 3]);
    assert_eq!(choices[3]["finish_reason"], "stop");
    assert_eq!(choices[2]["prompt_token_ids"], json!(ids("a dog")));
    assert_eq!(choices[1]["token_ids"], json!(ids(" two")));
    let prompt_tokens = ids("the fox").len() + ids("a dog").len();
    assert_eq!(answer["usage"]["prompt_tokens"], prompt_tokens);
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    assert_eq!(
        answer["usage"]["prompt_tokens_details"]["cached_tokens"], 2,
        "0 of the first, 2 of the second prompt"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_id_that_ends_an_answer_is_counted_and_not_told() {
    let mut worker = Worker::start();
    let client = worker
        .ask(
            "/v1/completions",
            &json!({ "prompt": "x", "stop_token_ids": ids(" king") }),
        )
        .await;
    let submission = worker.submitted().await;
    tell(&submission, " the quick king", FinishReason::Stop);
    let answer = client.reply().await.json();
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&json!(" the quick"), &json!("stop"))
    );
    assert_eq!(choice["stop_reason"], ids(" king")[0]);
    assert_eq!(answer["usage"]["completion_tokens"], 3);

    let client = worker.ask("/v1/completions", &json!({ "prompt": "x" })).await;
    let submission = worker.submitted().await;
    submission.sink.finished(FinishReason::Eos);
    submission.sink.flush();
    let choice = client.reply().await.json()["choices"][0].clone();
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&json!(""), &json!("stop"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_string_cuts_the_text_and_frees_the_request() {
    for (include, expected) in [(false, " once upon"), (true, " once upon a time")] {
        let mut worker = Worker::start();
        let body = json!({ "prompt": "x", "stop": [" a time", "never"], "include_stop_str_in_output": include });
        let client = worker.ask("/v1/completions", &body).await;
        let submission = worker.submitted().await;
        for token in ids(" once upon a time there was") {
            submission.sink.token(token, None);
        }
        submission.sink.flush();
        let choice = client.reply().await.json()["choices"][0].clone();
        assert_eq!(
            (&choice["text"], &choice["finish_reason"]),
            (&json!(expected), &json!("stop"))
        );
        assert_eq!(choice["stop_reason"], " a time");
        assert_eq!(worker.cancelled().await, submission.request.id);
        worker.is_idle().await;
        assert!(!submission.sink.flush(), "nobody listens any more");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_string_does_not_count_before_min_tokens() {
    let mut worker = Worker::start();
    let client = worker
        .ask(
            "/v1/completions",
            &json!({ "prompt": "x", "stop": " king", "min_tokens": 3 }),
        )
        .await;
    let submission = worker.submitted().await;
    tell(&submission, " king and fish and king and", FinishReason::Length);
    let choice = client.reply().await.json()["choices"][0].clone();
    assert_eq!(
        (&choice["text"], &choice["stop_reason"]),
        (&json!(" king and fish and"), &json!(" king"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn echo_puts_the_prompt_in_front() {
    let mut worker = Worker::start();
    for (prompt, stream) in [
        (json!("the fox"), false),
        (json!(ids("the fox")), false),
        (json!("the fox"), true),
    ] {
        let body = json!({ "prompt": prompt, "echo": true, "stream": stream });
        let client = worker.ask("/v1/completions", &body).await;
        tell(&worker.submitted().await, " runs", FinishReason::Length);
        let reply = client.reply().await;
        let parts = if stream { reply.events() } else { vec![reply.json()] };
        let text: String = parts
            .iter()
            .map(|part| part["choices"][0]["text"].as_str().unwrap())
            .collect();
        assert_eq!(text, "the fox runs");
    }
}
