//! A client as users have it: tokens as they come, a limit on every wait.

use std::cmp::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use tokio::time::{Instant, timeout, timeout_at};

use super::connections::{Connection, Connections};
use super::content::Content;
use super::record::Failure;
use super::sse::{Heard, Lines, kept};

/// Longest answer that is not streamed.
const MAX_BODY: usize = 16 << 20;

/// Path of completions, which take prompts as token ids.
pub(super) const COMPLETIONS: &str = "/v1/completions";

/// One request on its way.
pub(super) struct Ask {
    /// `host:port`.
    pub(super) authority: String,
    /// JSON.
    pub(super) body: Bytes,
    /// Whether the body asks for a stream.
    pub(super) stream: bool,
    /// Length of the answer that the body insists on, in tokens.
    pub(super) tokens: Option<u32>,
    pub(super) first_token_timeout: Duration,
    pub(super) timeout: Duration,
}

/// What came of it. Times are since it was sent.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) first: Option<Duration>,
    pub(super) last: Option<Duration>,
    pub(super) gap: Duration,
    pub(super) heard: Heard,
    /// What it ought to consist of, held against what has come.
    pub(super) content: Option<Content>,
    /// That could be told.
    pub(super) is_judged: bool,
    pub(super) failure: Option<Failure>,
}

pub(super) fn failure(kind: impl Into<String>, detail: impl Into<String>) -> Failure {
    Failure {
        kind: kind.into(),
        detail: detail.into(),
    }
}

/// Sends a request and reads its answer to the end. `answer` is kept up to date, so that whoever gives up on it knows how
/// far it came.
pub(super) async fn ask(ask: Ask, connections: &Connections, answer: &mut Answer) {
    let begun = Instant::now();
    let deadline = begun + ask.timeout;
    let first_deadline = deadline.min(begun + ask.first_token_timeout);
    let outcome = exchange(ask, connections, begun, (first_deadline, deadline), answer).await;
    if let Err(failure) = outcome {
        // Silence up to the failure is silence too.
        answer.give_up(begun.elapsed());
        answer.failure = Some(failure);
    }
}

async fn exchange(
    ask: Ask,
    connections: &Connections,
    begun: Instant,
    (first_deadline, deadline): (Instant, Instant),
    answer: &mut Answer,
) -> Result<(), Failure> {
    let (stream, tokens, authority) = (ask.stream, ask.tokens, ask.authority);
    let sent = async {
        let mut connection = connections.get(&authority).await?;
        let response = send(&mut connection, Method::POST, &authority, COMPLETIONS, ask.body).await?;
        Ok((connection, response))
    };
    let sent = timeout_at(first_deadline, sent).await;
    let (connection, response) = sent.map_err(|_| failure("first_token_timeout", "no answer began in time"))??;
    let status = response.status();
    let mut body = response.into_body();
    if !status.is_success() {
        let text = timeout_at(deadline, collect(&mut body)).await;
        if matches!(text, Ok(Ok(_))) {
            connections.put_back(&authority, connection);
        }
        let text = text.map_or_else(|_| Vec::new(), Result::unwrap_or_default);
        return Err(failure(
            format!("http_{}", status.as_u16()),
            kept(&String::from_utf8_lossy(&text)),
        ));
    }
    if !stream {
        let text = timeout_at(deadline, collect(&mut body)).await;
        let text = text.map_err(|_| failure("timeout", "the answer did not come in time"))??;
        connections.put_back(&authority, connection);
        answer.heard.event(&text);
        answer.heard.done = true;
        answer.compare();
        let now = begun.elapsed();
        (answer.first, answer.last) = (Some(now), Some(now));
        return answer.verdict(tokens);
    }
    let mut lines = Lines::default();
    loop {
        let (until, kind, words) = match answer.first {
            None => (first_deadline, "first_token_timeout", "no token came in time"),
            Some(_) => (deadline, "timeout", "the answer did not end in time"),
        };
        let frame = timeout_at(until, body.frame())
            .await
            .map_err(|_| failure(kind, words))?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| failure("reset", error.to_string()))?;
        let Some(data) = frame.data_ref() else { continue };
        let now = begun.elapsed();
        let (first, last, gap, heard) = (&mut answer.first, &mut answer.last, &mut answer.gap, &mut answer.heard);
        let pushed = lines.push(data, |event| {
            if heard.event(event) {
                first.get_or_insert(now);
                if let Some(last) = last {
                    *gap = (*gap).max(now.saturating_sub(*last));
                }
                *last = Some(now);
            }
        });
        pushed.map_err(|_| failure("malformed", "a line does not end"))?;
        answer.compare();
    }
    connections.put_back(&authority, connection);
    answer.verdict(tokens)
}

impl Answer {
    /// Holds what has come against what it ought to be.
    fn compare(&mut self) {
        let ids = self.heard.ids.drain(..);
        if let Some(content) = &mut self.content {
            content.take(ids);
            content.read(&self.heard.text);
        }
        self.heard.text.clear();
    }

    /// How many tokens it has: as its usage says, or as many ids as have come.
    pub(super) fn counted(&self) -> Option<u32> {
        let told = self.content.as_ref().and_then(Content::told);
        self.heard.usage_tokens.or(told)
    }

    /// Whether it is whole, as long as `asked`, and what was given.
    fn verdict(&mut self, asked: Option<u32>) -> Result<(), Failure> {
        verdict(&self.heard, self.counted(), asked)?;
        let content = self.content.as_ref();
        let judged = content.map_or(Ok(false), |content| content.verdict(self.heard.usage_tokens));
        self.is_judged = judged.map_err(|why| failure("wrong_content", why))?;
        Ok(())
    }

    /// Its client gives up on it after `waited`: what it has waited in vain since the last token is silence.
    pub(super) fn give_up(&mut self, waited: Duration) {
        if let Some(last) = self.last {
            self.gap = self.gap.max(waited.saturating_sub(last));
        }
    }
}

/// Whether an answer that has ended is whole, and no longer than that. Its length is what it tells itself: a piece may hold
/// several tokens, or none that can be shown yet.
fn verdict(heard: &Heard, counted: Option<u32>, asked: Option<u32>) -> Result<(), Failure> {
    if let Some(error) = &heard.error {
        return Err(failure("error_event", error));
    }
    if let Some(text) = &heard.malformed {
        return Err(failure("malformed", text));
    }
    let missing = match (heard.finished, heard.done) {
        (true, true) => None,
        (false, true) => Some("a finish reason"),
        (true, false) => Some("[DONE]"),
        (false, false) => Some("a finish reason or [DONE]"),
    };
    if let Some(missing) = missing {
        let texts = heard.texts;
        return Err(failure(
            "truncated",
            format!("ended after {texts} pieces without {missing}"),
        ));
    }
    let Some((given, asked)) = counted.zip(asked) else {
        return Ok(());
    };
    let kind = match given.cmp(&asked) {
        Ordering::Equal => return Ok(()),
        Ordering::Less => "short_answer",
        Ordering::Greater => "long_answer",
    };
    Err(failure(
        kind,
        format!("it has {given} tokens, and {asked} were asked for"),
    ))
}

async fn send(
    connection: &mut Connection,
    method: Method,
    authority: &str,
    path: &str,
    body: Bytes,
) -> Result<Response<Incoming>, Failure> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, authority)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(body))
        .map_err(|error| failure("malformed", error.to_string()))?;
    let sent = connection.send_request(request).await;
    sent.map_err(|error| failure("reset", error.to_string()))
}

async fn collect(body: &mut Incoming) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| failure("reset", error.to_string()))?;
        if let Some(data) = frame.data_ref() {
            if text.len() + data.len() > MAX_BODY {
                return Err(failure("malformed", "the answer is too long"));
            }
            text.extend_from_slice(data);
        }
    }
    Ok(text)
}

/// A small page; `None` when there is none in time.
pub(super) async fn get(authority: &str, path: &str, limit: Duration) -> Option<(u16, Vec<u8>)> {
    let page = async {
        let mut connection = Connections::default().get(authority).await.ok()?;
        let response = send(&mut connection, Method::GET, authority, path, Bytes::new())
            .await
            .ok()?;
        let status = response.status().as_u16();
        let text = collect(&mut response.into_body()).await.ok()?;
        Some((status, text))
    };
    timeout(limit, page).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drill::content::tests::{content, tokens};

    fn kind(heard: &Heard, asked: Option<u32>) -> Option<String> {
        verdict(heard, heard.usage_tokens, asked)
            .err()
            .map(|failure| failure.kind)
    }

    #[test]
    fn an_answer_of_another_length_than_asked_is_no_answer() {
        let ended = |usage_tokens| Heard {
            finished: true,
            done: true,
            texts: 3,
            usage_tokens,
            ..Heard::default()
        };
        for (usage, asked, wanted) in [
            (Some(10), Some(10), None),
            (Some(9), Some(10), Some("short_answer")),
            (Some(0), Some(10), Some("short_answer")),
            (Some(11), Some(10), Some("long_answer")),
            // Pieces are not tokens, and who asks for no length gets what there is.
            (None, Some(10), None),
            (Some(9), None, None),
        ] {
            assert_eq!(kind(&ended(usage), asked).as_deref(), wanted, "{usage:?} of {asked:?}");
            assert!(wanted.is_none_or(|kind| Failure::KINDS.contains(&kind)));
        }
        // An error is one, however long the answer was.
        let error = Heard {
            error: Some("no".into()),
            ..ended(Some(3))
        };
        assert_eq!(kind(&error, Some(10)).as_deref(), Some("error_event"));
    }

    #[test]
    fn an_answer_of_other_tokens_than_the_workers_gave_is_no_answer() {
        let told = |ids: Vec<u32>, usage_tokens| {
            let mut answer = Answer {
                content: Some(content()),
                heard: Heard {
                    finished: true,
                    done: true,
                    usage_tokens,
                    ids,
                    ..Heard::default()
                },
                ..Answer::default()
            };
            answer.compare();
            answer.verdict(Some(10)).err().map(|failure| failure.kind)
        };
        assert_eq!(told(tokens(0..10), Some(10)), None);
        assert_eq!(told(tokens(0..10), None), None);
        assert_eq!(
            told(tokens(0..7), None).as_deref(),
            Some("short_answer"),
            "ids tell a length, too"
        );
        let repeated = told([tokens(0..6), tokens(0..4)].concat(), Some(10));
        assert_eq!(repeated.as_deref(), Some("wrong_content"));
        assert!(Failure::KINDS.contains(&"wrong_content"));
    }

    #[test]
    fn a_truncated_answer_is_told_by_what_it_lacks() {
        for (finished, done, lacks) in [
            (false, true, "without a finish reason"),
            (true, false, "without [DONE]"),
            (false, false, "without a finish reason or [DONE]"),
        ] {
            let heard = Heard {
                finished,
                done,
                ..Heard::default()
            };
            let failure = verdict(&heard, None, None).unwrap_err();
            assert_eq!(failure.kind, "truncated");
            assert!(failure.detail.ends_with(lacks), "{}", failure.detail);
        }
    }
}
