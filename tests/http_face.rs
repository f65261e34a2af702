//! A worker's HTTP face, asked over real sockets, with a worker behind it that the test plays.

#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use ghostfleet::model::tokenizer::ModelTokenizer;
use ghostfleet::model::{HubOptions, Model};
use ghostfleet::transport::http::{Face, FaceConfig, FaceLimits, FaceModel};
use ghostfleet::transport::intake::{Failure, Intake, Refusal, Submission};
use ghostfleet::types::{DpRank, FinishReason, RequestId, Token, Tokens};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// Limit of every wait: a failing test ends instead of hanging.
const PATIENCE: Duration = Duration::from_secs(20);

// ---------------------------------------------------------------- the worker

/// Hands submissions to the test.
struct Played {
    submissions: mpsc::UnboundedSender<Submission>,
    cancelled: mpsc::UnboundedSender<RequestId>,
    refusal: Mutex<Option<Refusal>>,
}

impl Intake for Played {
    fn submit(&self, submission: Submission) -> Result<(), Refusal> {
        if let Some(refusal) = self.refusal.lock().unwrap().clone() {
            return Err(refusal);
        }
        self.submissions.send(submission).ok();
        Ok(())
    }

    fn choose_rank(&self, asked: Option<DpRank>) -> Result<DpRank, Refusal> {
        Ok(asked.unwrap_or(DpRank(5)))
    }

    fn recorded(&self, name: &str) -> Option<Tokens> {
        (name == "monday").then(|| [300, 301].into())
    }

    fn cancel(&self, id: RequestId) {
        self.cancelled.send(id).ok();
    }
}

struct Worker {
    face: Face,
    intake: Arc<Played>,
    submissions: mpsc::UnboundedReceiver<Submission>,
    cancelled: mpsc::UnboundedReceiver<RequestId>,
}

fn tiny() -> &'static (Arc<FaceModel>, ModelTokenizer) {
    static TINY: OnceLock<(Arc<FaceModel>, ModelTokenizer)> = OnceLock::new();
    TINY.get_or_init(|| {
        let model = Model::resolve("config/tiny-model", &HubOptions::default()).unwrap();
        let names = vec!["tiny".to_owned(), "other-name".to_owned()];
        let adapters = vec![
            ("poet".into(), Some("/adapters/poet".to_owned())),
            ("clerk".into(), None),
        ];
        (
            FaceModel::load(&model, names, adapters, Some(512)).unwrap(),
            ModelTokenizer::load(&model).unwrap(),
        )
    })
}

fn ids(text: &str) -> Vec<Token> {
    tiny().1.encode(text, false).unwrap()
}

impl Worker {
    fn start() -> Self {
        Self::with_limits(FaceLimits::default())
    }

    fn with_limits(limits: FaceLimits) -> Self {
        let (submissions, submitted) = mpsc::unbounded_channel();
        let (cancels, cancelled) = mpsc::unbounded_channel();
        let intake = Arc::new(Played {
            submissions,
            cancelled: cancels,
            refusal: Mutex::new(None),
        });
        let config = FaceConfig {
            worker: "w3".to_owned(),
            intake: Arc::clone(&intake) as Arc<dyn Intake>,
            model: Arc::clone(&tiny().0),
            limits,
            open: Arc::default(),
            metrics: Arc::new(|| "vllm:num_requests_running 0.0\n".to_owned()),
            faults: None,
        };
        let face = Face::bind(SocketAddr::from(([127, 0, 0, 1], 0)), config).unwrap();
        Self {
            face,
            intake,
            submissions: submitted,
            cancelled,
        }
    }

    async fn submitted(&mut self) -> Submission {
        within(self.submissions.recv()).await.unwrap()
    }

    async fn cancelled(&mut self) -> RequestId {
        within(self.cancelled.recv()).await.unwrap()
    }

    fn refuse(&self, refusal: Refusal) {
        *self.intake.refusal.lock().unwrap() = Some(refusal);
    }

    async fn get(&self, path: &str) -> Reply {
        Client::send(&self.face, "GET", path, "", b"").await.reply().await
    }

    async fn post(&self, path: &str, body: &Value) -> Reply {
        self.ask(path, body).await.reply().await
    }

    /// Sends a request without waiting for its answer.
    async fn ask(&self, path: &str, body: &Value) -> Client {
        Client::send(&self.face, "POST", path, "", body.to_string().as_bytes()).await
    }

    /// Everything that was taken is given back.
    async fn is_idle(&self) {
        within(async {
            while self.face.active_requests() > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

/// Answers with the tokens of `text` and ends after `max_tokens`.
fn tell(submission: &Submission, text: &str, finish: FinishReason) {
    let tokens = ids(text);
    for (index, token) in tokens.iter().enumerate() {
        submission
            .sink
            .token(*token, (index + 1 == tokens.len()).then_some(finish));
        submission.sink.flush();
    }
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it takes too long")
}

// ---------------------------------------------------------------- the client

struct Client {
    stream: TcpStream,
}

#[derive(Debug)]
struct Reply {
    status: u16,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Client {
    async fn send(face: &Face, method: &str, path: &str, headers: &str, body: &[u8]) -> Self {
        let mut stream = TcpStream::connect(face.address()).await.unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: worker\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        Self { stream }
    }

    /// The answer up to the end of the connection.
    async fn reply(mut self) -> Reply {
        let mut bytes = Vec::new();
        within(self.stream.read_to_end(&mut bytes)).await.unwrap();
        Reply::parse(&bytes)
    }

    /// Reads until the text has come by.
    async fn read_until(&mut self, text: &str) -> String {
        let mut seen = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let read = within(self.stream.read(&mut buffer)).await.unwrap();
            assert_ne!(
                read,
                0,
                "closed before {text:?} came: {}",
                String::from_utf8_lossy(&seen)
            );
            seen.extend_from_slice(&buffer[..read]);
            let so_far = String::from_utf8_lossy(&seen);
            if so_far.contains(text) {
                return so_far.into_owned();
            }
        }
    }
}

impl Reply {
    fn parse(bytes: &[u8]) -> Self {
        let end = bytes
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .expect("a whole head");
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: BTreeMap<_, _> = lines
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let mut body = bytes[end + 4..].to_vec();
        if headers
            .get("transfer-encoding")
            .is_some_and(|encoding: &String| encoding == "chunked")
        {
            body = unchunk(&body);
        }
        Self { status, headers, body }
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// Parsed events; the last must be `[DONE]`.
    fn events(&self) -> Vec<Value> {
        assert_eq!(self.headers["content-type"], "text/event-stream; charset=utf-8");
        let mut events: Vec<_> = self.text().split_terminator("\n\n").collect();
        assert_eq!(events.pop(), Some("data: [DONE]"));
        let parse = |event: &str| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        events.into_iter().map(parse).collect()
    }

    fn error(&self) -> (u16, Value) {
        let error = self.json()["error"].clone();
        let keys: Vec<_> = error.as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys, ["code", "message", "param", "type"]);
        assert_eq!(error["code"], self.status);
        (self.status, error)
    }
}

fn unchunk(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let end = body.windows(2).position(|two| two == b"\r\n").expect("a chunk size");
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        whole.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 2 + size + 2..];
        if size == 0 {
            return whole;
        }
    }
}

// ---------------------------------------------------------------- small answers

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

// ---------------------------------------------------------------- completions

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

// ---------------------------------------------------------------- streams

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

// ---------------------------------------------------------------- refusals

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

// ---------------------------------------------------------------- connections

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
    let mut idle = TcpStream::connect(worker.face.address()).await.unwrap();
    idle.write_all(b"GET /health HTTP/1.1\r\nhost: w\r\n\r\n")
        .await
        .unwrap();
    let mut idle = Client { stream: idle };
    idle.read_until("200 OK").await;
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
    let mut idle = TcpStream::connect(worker.face.address()).await.unwrap();
    idle.write_all(b"GET /health HTTP/1.1\r\nhost: w\r\n\r\n")
        .await
        .unwrap();
    let mut idle = Client { stream: idle };
    idle.read_until("200 OK").await;
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
    let mut client = Client {
        stream: TcpStream::connect(worker.face.address()).await.unwrap(),
    };
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
        let mut stream = TcpStream::connect(worker.face.address()).await.unwrap();
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
    let config = FaceConfig {
        worker: "w4".to_owned(),
        intake: Arc::clone(&worker.intake) as Arc<dyn Intake>,
        model: Arc::clone(&tiny().0),
        limits: FaceLimits::default(),
        open: Arc::default(),
        metrics: Arc::new(String::new),
        faults: None,
    };
    let error = Face::bind(worker.face.address(), config).unwrap_err().to_string();
    assert!(
        error.contains(&worker.face.address().to_string()) && error.contains("another port"),
        "{error}"
    );
}
