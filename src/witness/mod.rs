//! Asking routers and indexes what they believe. What they say is held against the truth by [`crate::truth`].
//!
//! | Module | Whom |
//! |---|---|
//! | [`indexer`] | Dynamo's standalone indexer: it shows all that it believes in |
//! | [`served`] | a frontend's own index, where the frontend serves it to others (`--serve-indexer`): it answers questions |
//! | [`choices`] | any frontend: it routes, and says where to |
//!
//! Blocking, one question after the other; every wait and every answer is bounded.

pub mod choices;
pub mod indexer;
pub mod served;

use std::time::Duration;

use ureq::Agent;

use crate::transport::request_plane::caller::CallError;
use crate::truth::dump::DumpError;

/// Longest answer.
const MAX_ANSWER_BYTES: u64 = 512 << 20;

/// No wait for a router is longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Headers by which servers take a request's id from its client: others, and Dynamo.
const REQUEST_ID: [&str; 2] = ["x-request-id", "x-dynamo-request-id"];

/// A router that cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum WitnessError {
    /// Not an address.
    #[error("{0:?} is no address of a router; use http://host:port")]
    Url(String),
    /// Nobody answers.
    #[error("cannot reach {url}: {reason}")]
    Unreachable {
        /// Where.
        url: String,
        /// Why not.
        reason: String,
    },
    /// It says no.
    #[error("{url} answers with status {status}: {text}")]
    Refused {
        /// Where.
        url: String,
        /// HTTP status.
        status: u16,
        /// In its words.
        text: String,
    },
    /// It shows something else.
    #[error("{url}: {source}")]
    Dump {
        /// Where.
        url: String,
        /// What is wrong.
        source: DumpError,
    },
    /// By the request plane.
    #[error(transparent)]
    Call(#[from] CallError),
    /// No frontend serves its index.
    #[error("no frontend serves its index {0}")]
    NotServed(&'static str),
    /// It answers in another form.
    #[error("{whom} does not answer as its like do: {reason}")]
    Form {
        /// Who.
        whom: String,
        /// What is wrong.
        reason: String,
    },
}

/// An HTTP server that is asked.
struct Server {
    agent: Agent,
    url: String,
}

impl Server {
    fn new(url: &str) -> Result<Self, WitnessError> {
        Self::with_patience(url, PATIENCE)
    }

    /// No answer is waited for longer.
    fn with_patience(url: &str, patience: Duration) -> Result<Self, WitnessError> {
        let url = url.trim_end_matches('/');
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(WitnessError::Url(url.to_owned()));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(5)))
            .timeout_global(Some(patience))
            .proxy(None)
            .build();
        Ok(Self {
            agent: config.into(),
            url: url.to_owned(),
        })
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    fn get(&self, path: &str) -> Result<String, WitnessError> {
        self.read(path, self.agent.get(self.at(path)).call())
    }

    fn post(&self, path: &str, body: &serde_json::Value) -> Result<String, WitnessError> {
        self.post_as(None, path, body)
    }

    /// As a request with this id, where the server takes one from its clients.
    fn post_as(&self, id: Option<&str>, path: &str, body: &serde_json::Value) -> Result<String, WitnessError> {
        let mut request = self
            .agent
            .post(self.at(path))
            .header("content-type", "application/json");
        for name in REQUEST_ID {
            if let Some(id) = id {
                request = request.header(name, id);
            }
        }
        self.read(path, request.send(body.to_string()))
    }

    fn read(
        &self,
        path: &str,
        sent: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<String, WitnessError> {
        let unreachable = |error: ureq::Error| WitnessError::Unreachable {
            url: self.at(path),
            reason: error.to_string(),
        };
        let mut response = sent.map_err(unreachable)?;
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(MAX_ANSWER_BYTES);
        let text = body.read_to_string().map_err(unreachable)?;
        if status >= 300 {
            return Err(WitnessError::Refused {
                url: self.at(path),
                status,
                text: text.chars().take(200).collect(),
            });
        }
        Ok(text)
    }
}
