//! The face that clients see: completions, models, health.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use ghostfleet::model::detokenize::Detokenizer;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::router::{Router, Step};

type Body = UnsyncBoxBody<Bytes, Infallible>;

fn whole(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(value.to_string())).boxed_unsync());
    *response.status_mut() = status;
    response
}

pub(crate) async fn serve(listener: TcpListener, router: Arc<Router>) {
    while let Ok((stream, _)) = listener.accept().await {
        let router = Arc::clone(&router);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(Arc::clone(&router), request));
            // A client that goes is no error.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(router: Arc<Router>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    Ok(match path.as_str() {
        "/v1/models" => whole(StatusCode::OK, &json!({"data": [{"id": router.model()}]})),
        "/health" => whole(StatusCode::OK, &json!({"instances": router.instances()})),
        "/v1/completions" => match request.into_body().collect().await {
            Ok(body) => complete(router, &body.to_bytes()).await,
            Err(_) => whole(StatusCode::BAD_REQUEST, &json!({"error": "no body"})),
        },
        _ => whole(StatusCode::NOT_FOUND, &json!({"error": "no such path"})),
    })
}

async fn complete(router: Arc<Router>, body: &[u8]) -> Response<Body> {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let prompt: Vec<u32> = serde_json::from_value(body["prompt"].clone()).unwrap_or_default();
    let max_tokens = u32::try_from(body["max_tokens"].as_u64().unwrap_or(16)).unwrap();
    let id = uuid::Uuid::new_v4().to_string();
    let (sender, mut steps) = mpsc::channel(64);
    let own = id.clone();
    let seed = body["seed"].as_i64();
    tokio::spawn(async move { router.run((&own, seed), prompt, max_tokens, sender).await });
    // The status depends on whether anybody takes the request at all.
    let first = match steps.recv().await {
        Some(Step::Failed(why)) => return whole(StatusCode::SERVICE_UNAVAILABLE, &json!({"error": {"message": why}})),
        Some(step) => step,
        None => {
            return whole(
                StatusCode::INTERNAL_SERVER_ERROR,
                &json!({"error": {"message": "gone"}}),
            );
        }
    };
    let mut detokenizer = Detokenizer::new(&[], true);
    let mut chunk = move |step: Step| step.chunk(&id, &mut detokenizer);
    if body["stream"] == true {
        let chunks = stream::unfold((Some(first), steps), |(first, mut steps)| async move {
            let step = match first {
                Some(step) => Some(step),
                None => steps.recv().await,
            };
            step.map(|step| (step, (None, steps)))
        });
        let frames = futures::StreamExt::map(chunks, move |step| {
            let is_last = step.is_last();
            let mut text = format!("data: {}\n\n", chunk(step));
            if is_last {
                text.push_str("data: [DONE]\n\n");
            }
            Ok(Frame::data(Bytes::from(text)))
        });
        return Response::new(StreamBody::new(frames).boxed_unsync());
    }
    let mut answer = chunk(first);
    while let Some(step) = steps.recv().await {
        if let Step::Failed(why) = &step {
            return whole(StatusCode::INTERNAL_SERVER_ERROR, &json!({"error": {"message": why}}));
        }
        let next = chunk(step);
        if next["choices"][0]["finish_reason"].is_string() {
            answer["choices"] = next["choices"].clone();
        }
    }
    whole(StatusCode::OK, &answer)
}
