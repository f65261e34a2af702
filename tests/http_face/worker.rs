//! The worker behind the face, played by the test.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};

use ghostfleet::model::tokenizer::ModelTokenizer;
use ghostfleet::model::{HubOptions, Model};
use ghostfleet::transport::http::{Face, FaceConfig, FaceError, FaceLimits, FaceModel};
use ghostfleet::transport::intake::{Intake, Refusal, Submission};
use ghostfleet::types::{DpRank, FinishReason, RequestId, Token, Tokens};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::client::{Client, Reply};
use crate::within;

/// Hands submissions to the test.
pub(crate) struct Played {
    pub(crate) submissions: mpsc::UnboundedSender<Submission>,
    pub(crate) cancelled: mpsc::UnboundedSender<RequestId>,
    pub(crate) refusal: Mutex<Option<Refusal>>,
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

pub(crate) struct Worker {
    pub(crate) face: Face,
    pub(crate) intake: Arc<Played>,
    pub(crate) submissions: mpsc::UnboundedReceiver<Submission>,
    pub(crate) cancelled: mpsc::UnboundedReceiver<RequestId>,
}

pub(crate) fn tiny() -> &'static (Arc<FaceModel>, ModelTokenizer) {
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

pub(crate) fn ids(text: &str) -> Vec<Token> {
    tiny().1.encode(text, false).unwrap()
}

/// A face at `address` for what the test plays.
pub(crate) fn bind(address: SocketAddr, intake: &Arc<Played>, limits: FaceLimits) -> Result<Face, FaceError> {
    let config = FaceConfig {
        worker: "w3".to_owned(),
        intake: Arc::clone(intake) as Arc<dyn Intake>,
        model: Arc::clone(&tiny().0),
        limits,
        open: Arc::default(),
        metrics: Arc::new(|| "vllm:num_requests_running 0.0\n".to_owned()),
        faults: None,
    };
    Face::bind(address, config)
}

impl Worker {
    pub(crate) fn start() -> Self {
        Self::with_limits(FaceLimits::default())
    }

    pub(crate) fn with_limits(limits: FaceLimits) -> Self {
        let (submissions, submitted) = mpsc::unbounded_channel();
        let (cancels, cancelled) = mpsc::unbounded_channel();
        let intake = Arc::new(Played {
            submissions,
            cancelled: cancels,
            refusal: Mutex::new(None),
        });
        let face = bind(SocketAddr::from(([127, 0, 0, 1], 0)), &intake, limits).unwrap();
        Self {
            face,
            intake,
            submissions: submitted,
            cancelled,
        }
    }

    pub(crate) async fn submitted(&mut self) -> Submission {
        within(self.submissions.recv()).await.unwrap()
    }

    pub(crate) async fn cancelled(&mut self) -> RequestId {
        within(self.cancelled.recv()).await.unwrap()
    }

    pub(crate) fn refuse(&self, refusal: Refusal) {
        *self.intake.refusal.lock().unwrap() = Some(refusal);
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        Client::send(&self.face, "GET", path, "", b"").await.reply().await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.ask(path, body).await.reply().await
    }

    /// Sends a request without waiting for its answer.
    pub(crate) async fn ask(&self, path: &str, body: &Value) -> Client {
        Client::send(&self.face, "POST", path, "", body.to_string().as_bytes()).await
    }

    /// A client whose connection has been used once and stays open.
    pub(crate) async fn idle_client(&self) -> Client {
        let mut client = self.connect().await;
        let request = b"GET /health HTTP/1.1\r\nhost: w\r\n\r\n";
        client.stream.write_all(request).await.unwrap();
        client.read_until("200 OK").await;
        client
    }

    pub(crate) async fn connect(&self) -> Client {
        Client {
            stream: TcpStream::connect(self.face.address()).await.unwrap(),
        }
    }

    /// Everything that was taken is given back.
    pub(crate) async fn is_idle(&self) {
        within(async {
            while self.face.active_requests() > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

/// Answers with the tokens of `text` and ends after `max_tokens`.
pub(crate) fn tell(submission: &Submission, text: &str, finish: FinishReason) {
    let tokens = ids(text);
    for (index, token) in tokens.iter().enumerate() {
        submission
            .sink
            .token(*token, (index + 1 == tokens.len()).then_some(finish));
        submission.sink.flush();
    }
}
