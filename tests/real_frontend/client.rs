//! An HTTP client as users have it: JSON answers and server-sent events.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use ureq::{Agent, Body, BodyReader};

use crate::ask::{CHAT, COMPLETIONS};
use crate::wait::eventually;

/// Longer than any test takes: a request that hangs fails the test instead of hanging it.
const REQUEST_LIMIT: Duration = Duration::from_secs(90);

/// A client of one frontend. Connections are not shared between clones of a stream, so dropping one closes it.
#[derive(Clone)]
pub(crate) struct Client {
    agent: Agent,
    base: String,
}

/// A page of Prometheus metrics.
pub(crate) struct Metrics(String);

impl Metrics {
    /// Sum over the series of a metric whose labels include all of `labels`, each written `name="value"`.
    pub(crate) fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let series = self
            .0
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once("} "));
        let wanted = series.filter(|(found, _)| labels.iter().all(|label| found.contains(label)));
        wanted.filter_map(|(_, value)| value.trim().parse::<f64>().ok()).sum()
    }
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Reply {
    /// HTTP status.
    pub(crate) status: u16,
    /// JSON body; a string when it is something else.
    pub(crate) body: Value,
}

/// Which worker served a request, as the frontend says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Served {
    /// Instance id.
    pub(crate) instance_id: u64,
    /// Rank; only in KV mode.
    pub(crate) dp_rank: Option<u64>,
}

impl Client {
    /// Where it is.
    pub(crate) fn url(&self) -> &str {
        &self.base
    }

    /// A client of the server on this loopback port.
    pub(crate) fn new(port: u16) -> Self {
        let config = Agent::config_builder()
            .proxy(None)
            .timeout_global(Some(REQUEST_LIMIT))
            .http_status_as_error(false)
            // One connection per request: closing a stream early must reach the frontend as a closed connection.
            .max_idle_connections(0)
            .build();
        Self {
            agent: config.into(),
            base: format!("http://127.0.0.1:{port}"),
        }
    }

    /// Whether the server answers at all.
    pub(crate) fn is_live(&self) -> bool {
        self.agent
            .get(format!("{}/live", self.base))
            .call()
            .is_ok_and(|answer| answer.status() == 200)
    }

    /// The names in `/v1/models`.
    pub(crate) fn models(&self) -> Vec<String> {
        let Ok(mut answer) = self.agent.get(format!("{}/v1/models", self.base)).call() else {
            return Vec::new();
        };
        let body: Value = answer.body_mut().read_json().unwrap_or_default();
        let data = body["data"].as_array().cloned().unwrap_or_default();
        data.iter()
            .filter_map(|model| model["id"].as_str().map(str::to_owned))
            .collect()
    }

    /// Instance ids of `/health` that serve `endpoint`.
    pub(crate) fn instances(&self, endpoint: &str) -> Vec<u64> {
        let Ok(mut answer) = self.agent.get(format!("{}/health", self.base)).call() else {
            return Vec::new();
        };
        let body: Value = answer.body_mut().read_json().unwrap_or_default();
        let all = body["instances"].as_array().cloned().unwrap_or_default();
        let wanted = all.iter().filter(|instance| instance["endpoint"] == endpoint);
        wanted.filter_map(|instance| instance["instance_id"].as_u64()).collect()
    }

    /// All metrics of the server at one moment.
    pub(crate) fn metrics(&self) -> Metrics {
        let answer = self.agent.get(format!("{}/metrics", self.base)).call();
        let text = answer
            .ok()
            .and_then(|mut answer| answer.body_mut().read_to_string().ok());
        Metrics(text.unwrap_or_default())
    }

    /// Waits until the model is listed and the paths for it are open, which a frontend does one after the other.
    #[track_caller]
    pub(crate) fn wait_serving(&self, model: &str, limit: Duration) {
        eventually(limit, &format!("model {model} is served"), || {
            let listed = self.models().iter().any(|name| name == model);
            // An empty request is refused where there is somebody to refuse it.
            let open = |path| self.post(path, &json!({})).status != 404;
            (listed && open(CHAT) && open(COMPLETIONS)).then_some(())
        });
    }

    /// Waits until the model is no longer listed.
    #[track_caller]
    pub(crate) fn wait_unlisted(&self, model: &str, limit: Duration) {
        eventually(limit, &format!("model {model} is unlisted"), || {
            (!self.models().iter().any(|name| name == model)).then_some(())
        });
    }

    /// Waits until `/health` names exactly `count` instances of `endpoint`.
    #[track_caller]
    pub(crate) fn wait_instances(&self, endpoint: &str, count: usize, limit: Duration) {
        eventually(limit, &format!("{count} instances of {endpoint} are known"), || {
            (self.instances(endpoint).len() == count).then_some(())
        });
    }

    /// Sends a request and waits for the whole answer.
    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        let mut answer = self.send(path, body);
        let status = answer.status().as_u16();
        let text = answer.body_mut().read_to_string().expect("an answer arrives whole");
        Reply {
            status,
            body: serde_json::from_str(&text).unwrap_or(Value::String(text)),
        }
    }

    /// The same for one that may never be answered; `None` after `limit`.
    pub(crate) fn try_post(&self, path: &str, body: &Value, limit: Duration) -> Option<Reply> {
        let request = self.agent.post(format!("{}{path}", self.base));
        let request = request.config().timeout_global(Some(limit)).build();
        let mut answer = request.send_json(body).ok()?;
        let status = answer.status().as_u16();
        let text = answer.body_mut().read_to_string().ok()?;
        Some(Reply {
            status,
            body: serde_json::from_str(&text).unwrap_or(Value::String(text)),
        })
    }

    /// Sends a request and reads its events one by one.
    #[track_caller]
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Stream {
        let mut body = body.clone();
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let answer = self.send(path, &body);
        let status = answer.status().as_u16();
        assert_eq!(status, 200, "{path}: {:?}", answer.into_body().read_to_string());
        Stream {
            lines: BufReader::new(answer.into_body().into_reader()),
            ended: false,
        }
    }

    /// A completion whose first text has come.
    #[track_caller]
    pub(crate) fn stream_begun(&self, body: &Value) -> Stream {
        let mut stream = self.stream(COMPLETIONS, body);
        stream.read_texts(1);
        stream
    }

    /// Sends a request and closes the connection without reading when `until` returns.
    pub(crate) fn abandon(&self, path: &str, body: &Value, until: impl FnOnce()) {
        let address = self.base.trim_start_matches("http://");
        let body = body.to_string();
        let mut socket = TcpStream::connect(address).expect("the frontend listens");
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(request.as_bytes()).expect("the frontend reads");
        until();
    }

    #[track_caller]
    fn send(&self, path: &str, body: &Value) -> ureq::http::Response<Body> {
        match self.agent.post(format!("{}{path}", self.base)).send_json(body) {
            Ok(answer) => answer,
            Err(error) => panic!("POST {path}: {error}"),
        }
    }
}

impl Reply {
    /// The worker that served it.
    ///
    /// # Panics
    /// When the request did not ask for it or failed.
    #[track_caller]
    pub(crate) fn served(&self) -> Served {
        served(&self.body).unwrap_or_else(|| panic!("no worker id in {self:?}"))
    }
}

fn served(body: &Value) -> Option<Served> {
    let worker = &body["nvext"]["worker_id"];
    Some(Served {
        instance_id: worker["decode_worker_id"].as_u64()?,
        dp_rank: worker["decode_dp_rank"].as_u64(),
    })
}

/// An answer that arrives bit by bit. Dropping it closes the connection.
pub(crate) struct Stream {
    lines: BufReader<BodyReader<'static>>,
    ended: bool,
}

/// One event of a stream.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    /// Its data.
    pub(crate) data: Value,
}

impl Event {
    /// Whether it carries text (also an empty one), as opposed to usage or a role only.
    pub(crate) fn has_text(&self) -> bool {
        let choice = &self.data["choices"][0];
        choice["text"].is_string() || choice["delta"]["content"].is_string()
    }
}

/// A stream read to its end.
#[derive(Debug)]
pub(crate) struct Transcript {
    /// All events but `[DONE]`.
    pub(crate) events: Vec<Event>,
    /// Whether `[DONE]` came last.
    pub(crate) done: bool,
}

impl Stream {
    /// The next event; `None` at the end, whether it came with `[DONE]` or not.
    pub(crate) fn next(&mut self) -> Option<Event> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.lines.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let Some(data) = line.trim().strip_prefix("data:") else {
                continue;
            };
            if data.trim() == "[DONE]" {
                self.ended = true;
                return None;
            }
            let data = serde_json::from_str(data).unwrap_or_else(|e| panic!("event is not JSON ({e}): {data}"));
            return Some(Event { data });
        }
    }

    /// Reads until `count` events with text have come.
    #[track_caller]
    pub(crate) fn read_texts(&mut self, count: usize) -> Vec<Event> {
        let mut events = Vec::new();
        while events.iter().filter(|e: &&Event| e.has_text()).count() < count {
            match self.next() {
                Some(event) => events.push(event),
                None => panic!("the stream ended before {count} texts; it had {events:?}"),
            }
        }
        events
    }

    /// Reads the rest.
    pub(crate) fn finish(mut self) -> Transcript {
        let events = std::iter::from_fn(|| self.next()).collect();
        Transcript {
            events,
            done: self.ended,
        }
    }
}

impl Transcript {
    /// All text.
    pub(crate) fn text(&self) -> String {
        let choices = self.events.iter().map(|event| &event.data["choices"][0]);
        choices
            .filter_map(|c| c["text"].as_str().or_else(|| c["delta"]["content"].as_str()))
            .collect()
    }

    /// The finish reason, which exactly one event carries.
    #[track_caller]
    pub(crate) fn finish_reason(&self) -> String {
        let reasons = self
            .events
            .iter()
            .filter_map(|event| event.data["choices"][0]["finish_reason"].as_str());
        let reasons: Vec<_> = reasons.collect();
        assert_eq!(reasons.len(), 1, "one finish reason in {self:?}");
        reasons[0].to_owned()
    }

    /// `usage` of the last event.
    #[track_caller]
    pub(crate) fn usage(&self) -> &Value {
        let usage = self.events.last().map(|event| &event.data["usage"]);
        usage
            .filter(|usage| usage.is_object())
            .unwrap_or_else(|| panic!("no usage at the end of {self:?}"))
    }

    /// The error that an event carries, if one does.
    pub(crate) fn error(&self) -> Option<&Value> {
        self.events
            .iter()
            .map(|event| &event.data["error"])
            .find(|error| !error.is_null())
    }

    /// The worker that served it, as the first event says.
    #[track_caller]
    pub(crate) fn served(&self) -> Served {
        let found = self.events.iter().find_map(|event| served(&event.data));
        found.unwrap_or_else(|| panic!("no worker id in {self:?}"))
    }
}
