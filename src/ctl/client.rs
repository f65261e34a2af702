//! A client of the admin API.

use std::io::{self, Read};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use ureq::http::Response;
use ureq::typestate::WithBody;
use ureq::{Agent, RequestBuilder};

use crate::admin::HEARTBEAT;

/// A call that brought no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is none.
    #[error("{0:?} is no address of a fleet; use http://host:port")]
    Url(String),
    /// Nobody answers.
    #[error("cannot reach the fleet at {url}: {reason}; start it with --admin-port, or name it with --url")]
    Unreachable {
        /// Where.
        url: String,
        /// Why not.
        reason: String,
    },
    /// Somebody is there and says nothing.
    #[error(
        "the fleet at {url} does not answer within {seconds} s; look whether its process is stopped or starved, or wait \
         longer with --timeout"
    )]
    Silent {
        /// Where.
        url: String,
        /// For how long.
        seconds: f64,
    },
    /// The fleet says no.
    #[error("{error}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// In the fleet's words.
        error: String,
    },
    /// Not an answer of a fleet.
    #[error("{url} does not answer as a fleet does: {reason}")]
    NotAFleet {
        /// Where.
        url: String,
        /// Why not.
        reason: String,
    },
}

impl ClientError {
    /// Whether the input is at fault rather than the fleet.
    pub fn is_bad_input(&self) -> bool {
        matches!(self, Self::Url(_) | Self::Refused { status: 400, .. })
    }
}

/// Longest answer: a snapshot of tens of thousands of workers.
const MAX_ANSWER_BYTES: u64 = 256 << 20;

/// Longest time for a whole answer, however steadily it comes.
const WHOLE_ANSWER: Duration = Duration::from_secs(90);

/// Heartbeats that a stream may miss before its fleet counts as silent, whatever the time-out.
const MISSED_HEARTBEATS: u32 = 3;

/// One fleet.
#[derive(Clone)]
pub(super) struct Client {
    agent: Agent,
    url: String,
    token: Option<String>,
    /// Longest silence.
    patience: Duration,
}

type Sent = Result<Response<ureq::Body>, ureq::Error>;

impl Client {
    /// A client that waits for `patience` at a time, as long as nothing comes.
    pub(super) fn new(url: &str, patience: Duration) -> Result<Self, ClientError> {
        let url = url.trim_end_matches('/');
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(ClientError::Url(url.to_owned()));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(patience))
            .timeout_per_read(Some(patience))
            .timeout_per_write(Some(patience))
            .timeout_global(Some(WHOLE_ANSWER.max(patience)))
            .proxy(None)
            .build();
        Ok(Self {
            agent: config.into(),
            url: url.to_owned(),
            token: std::env::var("GHOSTFLEET_ADMIN_TOKEN")
                .ok()
                .filter(|token| !token.is_empty()),
            patience,
        })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// It answers, but not as a fleet does.
    pub(super) fn not_a_fleet(&self, reason: String) -> ClientError {
        ClientError::NotAFleet {
            url: self.url.clone(),
            reason,
        }
    }

    fn bearer(&self) -> String {
        self.token
            .as_ref()
            .map_or_else(String::new, |token| format!("Bearer {token}"))
    }

    pub(super) fn get(&self, path: &str, query: &[(&str, String)]) -> Result<Value, ClientError> {
        let mut request = self.agent.get(self.to(path));
        for (name, value) in query {
            request = request.query(name, value);
        }
        self.read(request.header("authorization", self.bearer()).call(), false)
            .map(|(_, answer)| answer)
    }

    /// An answer that goes on for as long as the fleet does.
    pub(super) fn stream(&self, path: &str, query: &[(&str, String)]) -> Result<impl Read + use<>, ClientError> {
        let mut request = self.agent.get(self.to(path));
        for (name, value) in query {
            request = request.query(name, value);
        }
        let request = request
            .config()
            .timeout_global(None)
            .timeout_per_read(Some(self.stream_patience()))
            .build();
        let response = request.header("authorization", self.bearer()).call();
        if response.as_ref().is_ok_and(|response| response.status().is_success()) {
            // The limit of whole answers is not for streams; their reader has one per event.
            return match response {
                Ok(response) => Ok(response.into_body().into_with_config().limit(u64::MAX).reader()),
                Err(error) => Err(self.unreachable(&error)),
            };
        }
        if let Err(error) = &response
            && let Some(silent) = self.silent(error, self.stream_patience())
        {
            return Err(silent);
        }
        self.read(response, false).and_then(|_| {
            Err(ClientError::NotAFleet {
                url: self.url.clone(),
                reason: "no stream of events".to_owned(),
            })
        })
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        self.read(self.send(self.agent.post(self.to(path)), body), false)
            .map(|(_, answer)| answer)
    }

    pub(super) fn put(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        self.read(self.send(self.agent.put(self.to(path)), body), false)
            .map(|(_, answer)| answer)
    }

    /// An order; answers that tell of failures are answers too, and have the status of the worst.
    ///
    /// A fleet may answer late: who heals a worker that drains waits for its streams. So silence alone says nothing, and
    /// when it lasts the fleet is asked for something else; the order is given up when that has no answer either.
    pub(super) fn command(&self, order: &Value) -> Result<(u16, Value), ClientError> {
        let (done, outcome) = mpsc::channel();
        let (client, order) = (self.clone(), order.clone());
        thread::spawn(move || {
            let request = client.agent.post(client.to("/v1/commands"));
            let request = request.config().timeout_per_read(None).build();
            // Whoever has given up does not listen.
            let _ = done.send(client.read(client.send(request, &order), true));
        });
        loop {
            match outcome.recv_timeout(self.patience) {
                Ok(outcome) => return outcome,
                Err(RecvTimeoutError::Timeout) => drop(self.get("/v1/fleet", &[])?),
                Err(RecvTimeoutError::Disconnected) => return Err(self.not_a_fleet("the order was lost".to_owned())),
            }
        }
    }

    pub(super) fn delete(&self, path: &str) -> Result<Value, ClientError> {
        let request = self.agent.delete(self.to(path));
        self.read(request.header("authorization", self.bearer()).call(), false)
            .map(|(_, answer)| answer)
    }

    fn to(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    fn send(&self, request: RequestBuilder<WithBody>, body: &Value) -> Sent {
        let request = request.header("authorization", self.bearer());
        request
            .header("content-type", "application/json")
            .send(body.to_string())
    }

    fn unreachable(&self, error: &ureq::Error) -> ClientError {
        self.silent(error, self.patience)
            .unwrap_or_else(|| ClientError::Unreachable {
                url: self.url.clone(),
                reason: match error.to_string() {
                    // What a TLS client makes of an answer in plain HTTP.
                    text if text.contains("InvalidContentType") => {
                        "it does not speak TLS there; use http://".to_owned()
                    }
                    text => text,
                },
            })
    }

    fn silent(&self, error: &ureq::Error, patience: Duration) -> Option<ClientError> {
        let ureq::Error::Timeout(which) = error else {
            return None;
        };
        let span = if *which == ureq::Timeout::Global {
            WHOLE_ANSWER.max(patience)
        } else {
            patience
        };
        Some(ClientError::Silent {
            url: self.url.clone(),
            seconds: span.as_secs_f64(),
        })
    }

    /// A stream has broken off.
    pub(super) fn broken(&self, error: io::Error) -> ClientError {
        let error = ureq::Error::from(error);
        self.silent(&error, self.stream_patience())
            .unwrap_or_else(|| self.not_a_fleet(error.to_string()))
    }

    fn stream_patience(&self) -> Duration {
        self.patience.max(HEARTBEAT * MISSED_HEARTBEATS)
    }

    fn read(&self, sent: Sent, with_results: bool) -> Result<(u16, Value), ClientError> {
        let mut response = sent.map_err(|error| self.unreachable(&error))?;
        let status = response.status().as_u16();
        let not_a_fleet = |reason: String| self.not_a_fleet(reason);
        let text = response
            .body_mut()
            .with_config()
            .limit(MAX_ANSWER_BYTES)
            .read_to_string();
        let silent = |error: &_| self.silent(error, self.patience);
        let text = text.map_err(|error| silent(&error).unwrap_or_else(|| not_a_fleet(error.to_string())))?;
        let value: Value =
            serde_json::from_str(&text).map_err(|error| not_a_fleet(format!("status {status}, {error}")))?;
        if status < 300 || (with_results && value.get("results").is_some()) {
            return Ok((status, value));
        }
        match value["error"].as_str() {
            Some(error) => Err(ClientError::Refused {
                status,
                error: error.to_owned(),
            }),
            None => Err(not_a_fleet(format!("status {status}"))),
        }
    }
}
