//! Paths that need no engine.

use serde_json::{Value, json};

use crate::worker::{Worker, ids};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_small_paths_answer_as_a_vllm_server_does() {
    let worker = Worker::start();
    for path in ["/health", "/ping"] {
        let reply = worker.get(path).await;
        assert_eq!((reply.status, reply.text()), (200, ""), "{path}");
        assert_eq!(reply.headers["x-ghostfleet-worker"], "w3");
    }
    assert_eq!(worker.post("/ping", &json!({})).await.status, 200);
    assert_eq!(worker.get("/version").await.json(), json!({ "version": "0.32.0" }));
    assert_eq!(worker.get("/load").await.json(), json!({ "server_load": 0 }));
    let models = worker.get("/v1/models").await.json();
    assert_eq!(models["object"], "list");
    let model = &models["data"][0];
    assert_eq!(
        (&model["id"], &model["object"], &model["owned_by"]),
        (&json!("tiny"), &json!("model"), &json!("vllm"))
    );
    assert_eq!((&model["max_model_len"], &model["parent"]), (&json!(512), &Value::Null));
    assert!(model["root"].as_str().unwrap().ends_with("config/tiny-model"));
    assert!(model["created"].is_u64() && model["permission"][0]["object"] == "model_permission");
    assert_eq!(models["data"][1]["id"], "other-name");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_paths_and_methods_are_told() {
    let worker = Worker::start();
    let reply = worker.get("/v1/nothing").await;
    assert_eq!((reply.status, reply.json()), (404, json!({ "detail": "Not Found" })));
    assert_eq!(reply.headers["x-ghostfleet-worker"], "w3");
    let reply = worker.get("/v1/completions").await;
    assert_eq!(
        (reply.status, reply.json()),
        (405, json!({ "detail": "Method Not Allowed" }))
    );
    assert_eq!(reply.headers["allow"], "POST");
    assert_eq!(worker.post("/health", &json!({})).await.status, 405);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokenize_and_detokenize_agree_with_the_prompts_of_requests() {
    let mut worker = Worker::start();
    let reply = worker
        .post("/tokenize", &json!({ "model": "tiny", "prompt": "the quick fox" }))
        .await;
    let tokens = ids("the quick fox");
    assert_eq!(
        reply.json(),
        json!({ "count": tokens.len(), "max_model_len": 512, "tokens": tokens, "token_strs": null })
    );
    let reply = worker
        .post("/detokenize", &json!({ "model": "tiny", "tokens": tokens }))
        .await;
    assert_eq!(reply.json(), json!({ "prompt": "the quick fox" }));

    let messages = json!([{ "role": "user", "content": "hello world" }]);
    let body =
        json!({ "model": "tiny", "continue_final_message": false, "messages": messages, "return_token_strs": true });
    let reply = worker.post("/tokenize", &body).await.json();
    assert_eq!(reply["token_strs"][0], "<|im_start|>");
    let client = worker
        .ask(
            "/v1/chat/completions",
            &json!({ "model": "tiny", "messages": messages }),
        )
        .await;
    let submission = worker.submitted().await;
    assert_eq!(reply["tokens"], json!(submission.request.prompt.to_vec()));
    drop(client);
}
