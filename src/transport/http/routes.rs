//! Paths of the face and their small answers.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::answer::{Envelope, Finished};
use super::body::{ChatBody, CompletionBody, Conversation, DetokenizeBody, TokenizeBody, Tokenized};
use super::error::ApiError;
use super::faults::{self, Detour, Garbage};
use super::generation::{Generation, Interrupted};
use super::open::Caller;
use super::plan::{self, Api, Plan};
use super::stream::{EventStream, FaceBody};

use super::{FaceModel, FaceState};
use crate::types::DpRank;
use crate::whole_body::{Untaken, read_whole};

const WORKER_HEADER: HeaderName = HeaderName::from_static("x-ghostfleet-worker");
/// Texts above this size are tokenized off the socket threads.
const LONG_TEXT_BYTES: usize = 32 * 1024;

/// Longest key of the `routing-key` order.
const MAX_ROUTING_KEY_BYTES: usize = 256;

type Answer = Response<FaceBody>;

/// Answers one request, whose extensions have the client's address. `reset` ends its connection as a dead process would.
pub(super) async fn answer(
    state: Arc<FaceState>,
    reset: CancellationToken,
    detour: Detour,
    request: Request<Incoming>,
) -> Result<Answer, Infallible> {
    let mut answer = match route(&state, reset, request).await {
        Ok(answer) => answer,
        Err(error) => {
            let mut answer = json_answer(error.status, &error.body());
            if matches!(
                error.status,
                StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT
            ) {
                // The rest of the body is still on its way.
                answer
                    .headers_mut()
                    .insert(CONNECTION, HeaderValue::from_static("close"));
            }
            answer
        }
    };
    answer.headers_mut().insert(WORKER_HEADER, state.worker_header.clone());
    if detour.is_due(&state) {
        answer
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(answer)
}

async fn route(
    state: &Arc<FaceState>,
    reset: CancellationToken,
    request: Request<Incoming>,
) -> Result<Answer, ApiError> {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    let peer = head.extensions.get::<SocketAddr>().copied();
    let Some(method) = method_of(path) else {
        return Ok(json_answer(StatusCode::NOT_FOUND, &json!({ "detail": "Not Found" })));
    };
    if head.method != method && !(path == "/ping" && head.method == Method::POST) {
        let mut answer = json_answer(
            StatusCode::METHOD_NOT_ALLOWED,
            &json!({ "detail": "Method Not Allowed" }),
        );
        let allowed = if method == Method::GET { "GET" } else { "POST" };
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
        return Ok(answer);
    }
    let model = &state.model;
    match path {
        "/version" => Ok(ok(&json!({ "version": model.version }))),
        "/load" => Ok(ok(&json!({ "server_load": state.open.active() }))),
        "/v1/models" => Ok(ok(&models(model))),
        "/metrics" => {
            let mut answer = Response::new(FaceBody::text((state.metrics)()));
            let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            answer.headers_mut().insert(CONTENT_TYPE, kind);
            Ok(answer)
        }
        "/v1/completions" => {
            let body: CompletionBody = read(state, body).await?;
            let plan = off_thread(model, body, Plan::completion).await?;
            generate(state, plan, &head.headers, peer, reset).await
        }
        "/v1/chat/completions" => {
            let body: ChatBody = read(state, body).await?;
            let plan = off_thread(model, body, Plan::chat).await?;
            generate(state, plan, &head.headers, peer, reset).await
        }
        "/tokenize" => {
            let body = collect(state, body).await?;
            let tokenized = off_thread(model, body, |model, body| tokenize(model, &body)).await?;
            Ok(ok(&json!(tokenized)))
        }
        "/detokenize" => {
            let body: DetokenizeBody = read(state, body).await?;
            model.resolve_name(body.model)?;
            let text = model.tokenizer.decode(&body.tokens, false);
            Ok(ok(
                &json!({ "prompt": text.map_err(|error| ApiError::internal(error.to_string()))? }),
            ))
        }
        // `/health` and `/ping`.
        _ => Ok(Response::new(FaceBody::empty())),
    }
}

/// The one method that a path takes.
fn method_of(path: &str) -> Option<Method> {
    match path {
        "/health" | "/ping" | "/version" | "/load" | "/metrics" | "/v1/models" => Some(Method::GET),
        "/v1/completions" | "/v1/chat/completions" | "/tokenize" | "/detokenize" => Some(Method::POST),
        _ => None,
    }
}

async fn collect(state: &FaceState, body: Incoming) -> Result<Bytes, ApiError> {
    let limit = state.limits.max_body_bytes;
    read_whole(body, limit, state.limits.patience)
        .await
        .map_err(|untaken| match untaken {
            Untaken::TooLong => ApiError::body_too_large(limit),
            Untaken::TooSlow => ApiError::body_too_slow(),
            Untaken::Broken(why) => ApiError::bad_body(format!("the body broke off: {why}")),
        })
}

async fn read<T: DeserializeOwned>(state: &FaceState, body: Incoming) -> Result<T, ApiError> {
    parse(&collect(state, body).await?)
}

pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::bad_body(error.to_string()))
}

/// How much text there is to tokenize.
trait TextSize {
    fn text_bytes(&self) -> usize;
}

impl TextSize for CompletionBody {
    fn text_bytes(&self) -> usize {
        let texts = self.prompt.0.iter();
        texts
            .map(|prompt| {
                if let super::body::Prompt::Text(text) = prompt {
                    text.len()
                } else {
                    0
                }
            })
            .sum()
    }
}

impl TextSize for ChatBody {
    fn text_bytes(&self) -> usize {
        let contents = self
            .conversation
            .messages
            .iter()
            .filter_map(|message| message.get("content"));
        contents
            .map(|content| match content {
                Value::String(text) => text.len(),
                Value::Array(parts) => parts
                    .iter()
                    .filter_map(|part| Some(part.get("text")?.as_str()?.len()))
                    .sum(),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => 0,
            })
            .sum()
    }
}

impl TextSize for Bytes {
    fn text_bytes(&self) -> usize {
        self.len()
    }
}

/// Runs `work` here when it is short, else on a thread for blocking work.
async fn off_thread<B, T>(
    model: &Arc<FaceModel>,
    body: B,
    work: fn(&FaceModel, B) -> Result<T, ApiError>,
) -> Result<T, ApiError>
where
    B: TextSize + Send + 'static,
    T: Send + 'static,
{
    if body.text_bytes() <= LONG_TEXT_BYTES {
        return work(model, body);
    }
    let model = Arc::clone(model);
    let done = tokio::task::spawn_blocking(move || work(&model, body)).await;
    done.unwrap_or_else(|_| Err(ApiError::internal("the tokenizer failed")))
}

fn tokenize(model: &FaceModel, body: &Bytes) -> Result<Tokenized, ApiError> {
    let request: TokenizeBody = parse(body)?;
    model.resolve_name(request.model)?;
    let tokens = match request.prompt {
        Some(text) => plan::encode(&model.tokenizer, &text, request.add_special_tokens != Some(false))?,
        None => plan::chat_tokens(&model.tokenizer, &parse::<Conversation>(body)?)?,
    };
    let texts = |tokens: &[u32]| {
        tokens
            .iter()
            .map(|id| model.tokenizer.token_text(*id).unwrap_or_default())
            .collect()
    };
    Ok(Tokenized {
        count: tokens.len(),
        max_model_len: model.max_model_len,
        token_strs: (request.return_token_strs == Some(true)).then(|| texts(&tokens)),
        tokens,
    })
}

async fn generate(
    state: &FaceState,
    mut plan: Plan,
    headers: &HeaderMap,
    peer: Option<SocketAddr>,
    reset: CancellationToken,
) -> Result<Answer, ApiError> {
    let client_id = match header(headers, "x-request-id") {
        Some(id) if id.len() <= 256 => id.to_owned(),
        Some(_) | None => uuid::Uuid::new_v4().simple().to_string()[..16].to_owned(),
    };
    let dp_rank = header(headers, "x-data-parallel-rank");
    let dp_rank = dp_rank.map(|rank| {
        let rank = rank.parse().map(DpRank);
        rank.map_err(|_| {
            ApiError::bad_value(
                "X-data-parallel-rank",
                "the header X-data-parallel-rank is no rank number",
            )
        })
    });
    plan.routing_key = match header(headers, "x-smg-routing-key") {
        Some(key) if key.len() > MAX_ROUTING_KEY_BYTES => {
            let message = format!("the header X-SMG-Routing-Key has more than {MAX_ROUTING_KEY_BYTES} bytes");
            return Err(ApiError::bad_value("X-SMG-Routing-Key", message));
        }
        key => key.map(Arc::from),
    };
    let prefix = match plan.api {
        Api::Completion => "cmpl",
        Api::Chat => "chatcmpl",
    };
    let caller = Caller {
        answer: format!("{prefix}-{client_id}"),
        id: client_id,
        address: peer,
    };
    faults::arrive(state, &caller, &reset).await;
    let garbage = Garbage::of(state);
    state.intake.knock(&caller.id)?;
    let limit = state.limits.max_pending_tokens;
    let answer_id = caller.answer.clone();
    let mut generation = Generation::start(
        &plan,
        caller,
        dp_rank.transpose()?,
        &state.intake,
        &state.model.tokenizer,
        &state.open,
        limit,
    )?;
    let envelope = Envelope {
        api: plan.api,
        id: answer_id,
        created: unix_seconds(),
        model: plan.model.clone(),
        token_ids: plan.return_token_ids,
        logprobs: plan.logprobs,
        tokenizer: Arc::clone(&state.model.tokenizer),
        vocab_size: state.model.vocab_size,
    };
    if let Some(told) = plan.stream {
        let stream = EventStream::new(generation, plan, told, envelope, garbage, reset);
        let mut answer = Response::new(FaceBody::Events(Box::new(stream)));
        let event_stream = HeaderValue::from_static("text/event-stream; charset=utf-8");
        answer.headers_mut().insert(CONTENT_TYPE, event_stream);
        return Ok(answer);
    }
    let whole = whole(&mut generation, &plan, &envelope, &reset).await?.to_string();
    let body = match garbage {
        Some(garbage) => garbage.in_body(generation.usage().completion, whole),
        None => whole,
    };
    Ok(json_text(StatusCode::OK, body))
}

async fn whole(
    generation: &mut Generation,
    plan: &Plan,
    envelope: &Envelope,
    reset: &CancellationToken,
) -> Result<Value, ApiError> {
    let echoes = plan
        .prompts
        .iter()
        .flat_map(|(_, echo)| std::iter::repeat_n(echo, plan.n));
    let mut choices: Vec<_> = echoes
        .map(|echo| Finished {
            text: echo.clone(),
            ..Finished::default()
        })
        .collect();
    while !generation.is_done() {
        match poll_fn(|cx| generation.poll_deltas(cx)).await {
            Ok(deltas) => {
                for delta in deltas {
                    choices[delta.choice].add(delta);
                }
            }
            Err(Interrupted::Failed(failure)) => return Err(failure.into()),
            Err(Interrupted::Broken) => {
                // The connection's task drops this one.
                reset.cancel();
                std::future::pending::<()>().await;
            }
        }
    }
    Ok(envelope.whole(plan, choices, generation.usage()))
}

fn models(model: &FaceModel) -> Value {
    let entry = |name: &str, root: &str, parent: Option<&str>| {
        json!({
            "id": name,
            "object": "model",
            "created": model.created,
            "owned_by": "vllm",
            "root": root,
            "parent": parent,
            "max_model_len": model.max_model_len,
            "permission": [{
                "id": format!("modelperm-{:016x}", xxhash_rust::xxh3::xxh3_64(name.as_bytes())),
                "object": "model_permission",
                "created": model.created,
                "allow_create_engine": false,
                "allow_sampling": true,
                "allow_logprobs": false,
                "allow_search_indices": false,
                "allow_view": true,
                "allow_fine_tuning": false,
                "organization": "*",
                "group": null,
                "is_blocking": false,
            }],
        })
    };
    let names = model.names.iter().map(|name| entry(name, &model.root, None));
    let base = model.names.first().map(String::as_str);
    let adapters = model.adapters.iter();
    let adapters = adapters.map(|(name, path)| entry(name, path.as_deref().unwrap_or(name), base));
    json!({ "object": "list", "data": names.chain(adapters).collect::<Vec<_>>() })
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .filter(|value| !value.is_empty())
}

fn ok(value: &Value) -> Answer {
    json_answer(StatusCode::OK, value)
}

fn json_answer(status: StatusCode, value: &Value) -> Answer {
    json_text(status, value.to_string())
}

fn json_text(status: StatusCode, text: String) -> Answer {
    let mut answer = Response::new(FaceBody::text(text));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// Now, as the API tells times.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |span| span.as_secs())
}
