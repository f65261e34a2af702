//! `JetStream`, as much of it as a publisher needs: streams are made when they are missing, and messages are known to be
//! stored.
//!
//! Spoken by hand over plain requests, because that is little: a JSON request to `$JS.API.STREAM.CREATE.<name>`, and an
//! answer to each message published. Source: NATS `JetStream` API; the settings of the stream are those of Dynamo 1.3.1.

use std::time::Duration;

use async_nats::{Client, Request, RequestErrorKind, Subject};
use bytes::Bytes;
use futures::future::join_all;
use serde::Deserialize;

#[cfg(doc)]
use super::NatsOptions;
use super::{NatsError, NatsLink};

/// Time for one answer of the server.
const ANSWER: Duration = Duration::from_secs(5);

/// The stream exists with other settings: a router was here first, and its settings are as good as ours.
const EXISTS_DIFFERENTLY: u32 = 10_058;

/// A stream that cannot be had, or a message that is not stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JetStreamError {
    /// Nobody answers the `JetStream` API.
    #[error("the server has no JetStream; start it with nats-server -js, or drop --durable-kv-events")]
    Missing,
    /// Nobody stores messages of this subject.
    #[error("no stream takes messages of {0}")]
    NoStream(String),
    /// The server says no.
    #[error("JetStream refuses ({code}): {description}")]
    Refused {
        /// Its number for that.
        code: u32,
        /// Its words.
        description: String,
    },
    /// No answer, or none that can be read.
    #[error("JetStream does not answer: {0}")]
    NoAnswer(String),
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    error: Option<Refusal>,
    /// Of a stored message.
    #[serde(default)]
    seq: Option<u64>,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    err_code: u32,
    #[serde(default)]
    code: u32,
    #[serde(default)]
    description: String,
}

impl NatsLink {
    /// Makes a stream for the subjects `<name>.*` that keeps messages for [`NatsOptions::stream_max_age`], unless it is
    /// there.
    ///
    /// # Errors
    /// [`NatsError::JetStream`].
    pub async fn ensure_stream(&self, name: &str) -> Result<(), NatsError> {
        let gone = || JetStreamError::NoAnswer("the connection has ended".to_owned());
        let ensured = match self.client().await {
            Some(client) => ensure(&client, name, self.stream_max_age()).await,
            None => Err(gone()),
        };
        ensured.map_err(|reason| NatsError::JetStream {
            stream: name.to_owned(),
            reason,
        })
    }
}

/// The stream that a subject belongs to: all but the last of its parts.
pub(super) fn stream_of(subject: &str) -> &str {
    subject.rsplit_once('.').map_or(subject, |(stream, _)| stream)
}

/// Makes a stream for the subjects `<name>.*`, unless it is there.
pub(super) async fn ensure(client: &Client, name: &str, max_age: Duration) -> Result<(), JetStreamError> {
    let settings = serde_json::json!({
        "name": name,
        "subjects": [format!("{name}.*")],
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "max_age": u64::try_from(max_age.as_nanos()).unwrap_or(u64::MAX),
        "num_replicas": 1,
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
    });
    let subject = Subject::from(format!("$JS.API.STREAM.CREATE.{name}"));
    let answer = ask(client, subject, settings.to_string().into()).await;
    match answer {
        Err(JetStreamError::NoStream(_)) => Err(JetStreamError::Missing),
        Err(JetStreamError::Refused {
            code: EXISTS_DIFFERENTLY,
            ..
        }) => Ok(()),
        other => other.map(drop),
    }
}

/// Publishes messages in order and waits until each is stored; the first that is not, with the reason.
pub(super) async fn store(client: &Client, messages: &[(Subject, Bytes)]) -> Result<(), (usize, JetStreamError)> {
    // Asked for in this order, and the client has one queue: they reach the server in this order.
    let answers = messages
        .iter()
        .map(|(subject, body)| ask(client, subject.clone(), body.clone()));
    for (index, answer) in join_all(answers).await.into_iter().enumerate() {
        match answer {
            Ok(Answer { seq: Some(_), .. }) => {}
            Ok(_) => {
                let words = "an answer that names no message".to_owned();
                return Err((index, JetStreamError::NoAnswer(words)));
            }
            Err(error) => return Err((index, error)),
        }
    }
    Ok(())
}

async fn ask(client: &Client, subject: Subject, body: Bytes) -> Result<Answer, JetStreamError> {
    let request = Request::new().payload(body).timeout(Some(ANSWER));
    let name = subject.to_string();
    let reply = client.send_request(subject, request).await;
    let reply = reply.map_err(|error| match error.kind() {
        RequestErrorKind::NoResponders => JetStreamError::NoStream(name),
        RequestErrorKind::TimedOut
        | RequestErrorKind::InvalidSubject
        | RequestErrorKind::MaxPayloadExceeded
        | RequestErrorKind::Other => JetStreamError::NoAnswer(error.to_string()),
    })?;
    let read = serde_json::from_slice::<Answer>(&reply.payload);
    let answer = read.map_err(|error| JetStreamError::NoAnswer(error.to_string()))?;
    match answer.error {
        Some(Refusal {
            err_code,
            code,
            description,
        }) => Err(JetStreamError::Refused {
            code: if err_code == 0 { code } else { err_code },
            description,
        }),
        None => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_names_its_stream() {
        assert_eq!(
            stream_of("namespace-a-component-b-kv-events.kv-events"),
            "namespace-a-component-b-kv-events"
        );
    }
}
