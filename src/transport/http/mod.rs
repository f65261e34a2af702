//! The HTTP face: a worker that looks like a vLLM server, for routers outside Dynamo, load generators and `curl`.
//!
//! | Module | What |
//! |---|---|
//! | `listener` | accept loop and connections; one listener per worker |
//! | `routes` | paths, bodies, small answers |
//! | `body` -> `plan` | what was sent -> what is to be generated, all checks made |
//! | `mailbox` -> `generation` | tokens from the rank -> text per choice, stop strings |
//! | [`open`] | which requests are under way |
//! | `faults` | requests and connections that go wrong on purpose |
//! | `answer`, `stream` | shapes of answers and chunks, server-sent events |
//!
//! Endpoints: `GET /health`, `/ping`, `/version`, `/load`, `/metrics`, `/v1/models`; `POST /v1/completions`, `/v1/chat/completions`,
//! `/tokenize`, `/detokenize`. Every answer carries `x-ghostfleet-worker: <actor path>`. LoRA adapters are models of their
//! own. `nvext.annotations` may name a recorded answer (`output_replay_id:<name>`), as through a Dynamo frontend.
//!
//! Emulated tokens are drawn at random, so whatever only makes one token likelier than another is accepted and changes
//! nothing: `temperature`, `top_p`, `top_k`, `min_p`, the penalties, `logit_bias`, `bad_words`, `allowed_token_ids`,
//! `response_format`, `structured_outputs`, `tool_choice`. What would change the shape of an answer and cannot be had is
//! refused: `suffix`, `use_beam_search`, `best_of` above `n`, `logprobs` together with `echo`.
//!
//! Source: vLLM 0.32.0, observed on the wire.

mod answer;
mod body;
mod error;
mod faults;
mod generation;
mod listener;
mod logprobs;
mod mailbox;
pub mod open;
mod plan;
mod routes;
mod stop;
mod stream;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use hyper::header::HeaderValue;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::error::ApiError;
use self::open::OpenRequests;
use self::plan::Plan;
use crate::faults::WorkerFaults;
use crate::model::tokenizer::ModelTokenizer;
use crate::model::{Model, ModelError};
use crate::transport::intake::Intake;
use crate::transport::request_plane::tcp::server::Shutdown;
use crate::types::Token;

/// Release whose answers are imitated.
const VLLM_VERSION: &str = "0.32.0";

/// What all faces of a fleet share: the tokenizer and what is told of the model.
pub struct FaceModel {
    names: Vec<String>,
    /// LoRA adapters and where they are said to be.
    adapters: Vec<(Arc<str>, Option<String>)>,
    root: String,
    max_model_len: u32,
    vocab_size: u32,
    eos_token_ids: Vec<Token>,
    tokenizer: Arc<ModelTokenizer>,
    version: &'static str,
    created: u64,
}

impl FaceModel {
    /// Loads the tokenizer. `names`: what clients may call the model, the first being its name; when empty, the model's
    /// own. `adapters`: names of LoRA adapters, and the paths to tell of them. `max_model_len` in tokens; `None`: the
    /// model's context length.
    ///
    /// # Errors
    /// [`ModelError`] for a tokenizer or chat template that is not usable.
    pub fn load(
        model: &Model,
        mut names: Vec<String>,
        adapters: Vec<(Arc<str>, Option<String>)>,
        max_model_len: Option<u32>,
    ) -> Result<Arc<Self>, ModelError> {
        if names.is_empty() {
            names.push(model.name());
        }
        Ok(Arc::new(Self {
            names,
            adapters,
            root: model.name(),
            max_model_len: max_model_len.or(model.info.context_length).unwrap_or(u32::MAX),
            vocab_size: model.info.vocab_size,
            eos_token_ids: model.info.eos_token_ids.clone(),
            tokenizer: Arc::new(ModelTokenizer::load(model)?),
            version: VLLM_VERSION,
            created: routes::unix_seconds(),
        }))
    }

    /// What a body would ask of the worker, without asking it: the number of answers, or why it is refused.
    ///
    /// # Errors
    /// The message that a client would get.
    pub fn dry_run(&self, chat: bool, body: &[u8]) -> Result<usize, String> {
        let plan = if chat {
            routes::parse(body).and_then(|body| Plan::chat(self, body))
        } else {
            routes::parse(body).and_then(|body| Plan::completion(self, body))
        };
        let plan = plan.map_err(|error| error.body()["error"]["message"].to_string())?;
        Ok(plan.engine_requests("dry run", None).len())
    }

    /// The name to answer with, and the adapter that it means; a missing one means the model.
    fn resolve_name(&self, name: Option<String>) -> Result<(String, Option<Arc<str>>), ApiError> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Ok((self.names[0].clone(), None));
        };
        if self.names.contains(&name) {
            return Ok((name, None));
        }
        match self.adapters.iter().find(|(adapter, _)| **adapter == *name) {
            Some((adapter, _)) => Ok((name, Some(Arc::clone(adapter)))),
            None => Err(ApiError::unknown_model(&name, &self.names[0])),
        }
    }
}

/// Bounds of one face.
#[derive(Debug, Clone, Copy)]
pub struct FaceLimits {
    /// Longest request body, bytes.
    pub max_body_bytes: usize,
    /// Most open connections; further ones are closed at once.
    pub max_connections: usize,
    /// Most generated tokens of one request that wait for its reader; then it is given up.
    pub max_pending_tokens: usize,
    /// Longest time for a request's head, for its body, and for a reader to take anything at all.
    pub patience: Duration,
}

impl Default for FaceLimits {
    fn default() -> Self {
        Self {
            max_body_bytes: 16 << 20,
            max_connections: 4096,
            max_pending_tokens: 1 << 16,
            patience: Duration::from_secs(30),
        }
    }
}

/// Makes a page of metrics in Prometheus' text form.
pub type MetricsPage = Arc<dyn Fn() -> String + Send + Sync>;

/// One worker's face.
pub struct FaceConfig {
    /// Actor path of the worker, as in `w3`.
    pub worker: String,
    /// Takes the requests.
    pub intake: Arc<dyn Intake>,
    /// Shared by all faces.
    pub model: Arc<FaceModel>,
    /// Bounds.
    pub limits: FaceLimits,
    /// Has the requests in generation.
    pub open: Arc<OpenRequests>,
    /// The worker's metrics.
    pub metrics: MetricsPage,
    /// What may go wrong; `None`: nothing.
    pub faults: Option<Arc<WorkerFaults>>,
}

struct FaceState {
    worker: String,
    worker_header: HeaderValue,
    intake: Arc<dyn Intake>,
    model: Arc<FaceModel>,
    limits: FaceLimits,
    /// Requests in generation.
    open: Arc<OpenRequests>,
    metrics: MetricsPage,
    faults: Option<Arc<WorkerFaults>>,
    /// Connections and requests so far, for the dice of faults.
    draws: AtomicU64,
    /// Told when the face is to end.
    leaving: CancellationToken,
}

/// A face that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum FaceError {
    /// The address is taken or not ours.
    #[error("cannot listen for HTTP on {address}: {source}; choose another port (0: any free one) or host")]
    Bind {
        /// Wanted address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The worker's name does not fit in a header.
    #[error("worker name {0:?} is no valid header value")]
    WorkerName(String),
}

/// A running face. Dropping it stops accepting; open connections finish what they are at.
#[derive(Debug)]
pub struct Face {
    address: SocketAddr,
    shutdown: Shutdown,
    connections: TaskTracker,
    open: Arc<OpenRequests>,
}

impl Face {
    /// Listens on `address` (port 0: any) and serves on the current tokio runtime.
    ///
    /// # Errors
    /// [`FaceError`] names the address.
    pub fn bind(address: SocketAddr, config: FaceConfig) -> Result<Self, FaceError> {
        let failed = |source| FaceError::Bind { address, source };
        let worker_header = HeaderValue::from_str(&config.worker);
        let worker_header = worker_header.map_err(|_| FaceError::WorkerName(config.worker.clone()))?;
        let listener = listener::listen(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let open = config.open;
        let shutdown = Shutdown::default();
        let state = Arc::new(FaceState {
            worker: config.worker,
            worker_header,
            intake: config.intake,
            model: config.model,
            limits: config.limits,
            open: Arc::clone(&open),
            metrics: config.metrics,
            faults: config.faults,
            draws: AtomicU64::new(0),
            leaving: shutdown.stop_accepting.clone(),
        });
        let connections = TaskTracker::new();
        tokio::spawn(listener::accept(listener, state, shutdown.clone(), connections.clone()));
        Ok(Self {
            address,
            shutdown,
            connections,
            open,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The handles to end it: `stop_accepting` closes the listener and idle connections and lets answers finish; `reset`
    /// resets every connection, as a dead process would.
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Resolves once it has been told to end and every connection is gone.
    pub async fn closed(&self) {
        self.shutdown.stop_accepting.cancelled().await;
        self.connections.close();
        self.connections.wait().await;
    }

    /// Requests in generation.
    pub fn active_requests(&self) -> u32 {
        self.open.active()
    }

    /// Open connections.
    pub fn open_connections(&self) -> usize {
        self.connections.len()
    }
}

impl Drop for Face {
    fn drop(&mut self) {
        self.shutdown.stop_accepting.cancel();
    }
}
