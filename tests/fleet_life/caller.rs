//! A frontend in miniature: sends a request to an endpoint address and reads the answer on a socket that the worker
//! dials.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

use ghostfleet::transport::request_plane::tcp::frame;
use ghostfleet::transport::request_plane::{Codec, control, two_part};
use serde_json::{Value, json};

use crate::scene::PATIENCE;

/// What a worker says on the response socket.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Said {
    Header(String),
    Item(Value),
}

/// A request that a worker has taken.
pub(crate) struct Answer {
    socket: TcpStream,
    _request: TcpStream,
}

/// How an answer went.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) tokens: Vec<u64>,
    pub(crate) finish: Option<String>,
    pub(crate) usage: Option<Value>,
    pub(crate) error: Option<Value>,
    pub(crate) complete: bool,
}

pub(crate) fn chat(prompt: &[u32], max_tokens: u32) -> Value {
    json!({"token_ids": prompt, "stop_conditions": {"max_tokens": max_tokens, "ignore_eos": true}})
}

/// Sends a request; the refusal when it is not taken.
pub(crate) fn call(address: &str, id: &str, request: &Value) -> Result<Answer, String> {
    let home = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let (host, path) = address.split_once('/').unwrap();
    let mut connection = TcpStream::connect(host).map_err(|error| error.to_string())?;
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut payload = Vec::new();
    let control = control::encode(id, Codec::Json, home.local_addr().unwrap(), "subject");
    two_part::write(&mut payload, &control, request.to_string().as_bytes());
    let mut bytes = Vec::new();
    frame::encode(&mut bytes, path, "{}", &payload);
    connection.write_all(&bytes).map_err(|error| error.to_string())?;
    let mut length = [0; 4];
    connection.read_exact(&mut length).map_err(|error| error.to_string())?;
    let mut refusal = vec![0; u32::from_be_bytes(length) as usize];
    connection.read_exact(&mut refusal).map_err(|error| error.to_string())?;
    if !refusal.is_empty() {
        return Err(String::from_utf8(refusal).unwrap());
    }
    let (socket, _) = home.accept().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    Ok(Answer {
        socket,
        _request: connection,
    })
}

impl Answer {
    pub(crate) fn next(&mut self) -> io::Result<Said> {
        let mut prefix = [0; two_part::PREFIX_BYTES];
        self.socket.read_exact(&mut prefix)?;
        let prefix = two_part::decode_prefix(&prefix, 1 << 24).unwrap();
        let mut read = |bytes: u64| {
            let mut part = vec![0; usize::try_from(bytes).unwrap()];
            self.socket.read_exact(&mut part).map(|()| part)
        };
        let (header, data) = (read(prefix.header)?, read(prefix.data)?);
        if header.is_empty() {
            return Ok(Said::Item(serde_json::from_slice(&data).unwrap()));
        }
        assert!(data.is_empty(), "control and payload in one frame");
        Ok(Said::Header(String::from_utf8(header).unwrap()))
    }

    /// Reads the opening frames and `tokens` tokens.
    pub(crate) fn read_tokens(&mut self, tokens: usize) -> Vec<u64> {
        let mut read = Vec::new();
        while read.len() < tokens {
            if let Said::Item(item) = self.next().unwrap() {
                read.push(item["data"]["data"]["token_ids"][0].as_u64().unwrap());
            }
        }
        read
    }

    /// Reads to the sentinel.
    ///
    /// # Errors
    /// The socket's, when it breaks off before.
    pub(crate) fn finish(&mut self) -> io::Result<Outcome> {
        let mut outcome = Outcome::default();
        loop {
            match self.next()? {
                Said::Header(text) if text == "\"sentinel\"" => return Ok(outcome),
                Said::Header(_) => {}
                Said::Item(item) => {
                    assert!(!outcome.complete, "an item after the final one: {item}");
                    outcome.complete = item["complete_final"] == true;
                    if let Some(error) = item["data"].get("error") {
                        outcome.error = Some(error.clone());
                    }
                    let output = &item["data"]["data"];
                    let ids = output["token_ids"].as_array().into_iter().flatten();
                    outcome.tokens.extend(ids.map(|id| id.as_u64().unwrap()));
                    outcome.finish = output["finish_reason"].as_str().map(str::to_owned).or(outcome.finish);
                    outcome.usage = output.get("completion_usage").cloned().or(outcome.usage);
                }
            }
        }
    }

    /// Says `kill` or `stop` on the response socket.
    pub(crate) fn say(&mut self, word: &str) {
        let mut frame = Vec::new();
        two_part::write(&mut frame, format!("\"{word}\"").as_bytes(), b"");
        self.socket.write_all(&frame).unwrap();
    }

    /// Asserts that the connection was reset, not closed in order.
    pub(crate) fn assert_reset(&mut self) {
        let error = loop {
            match self.next() {
                Ok(Said::Header(text)) => assert_ne!(text, "\"sentinel\"", "the answer came to an end"),
                Ok(Said::Item(item)) => assert_ne!(item["complete_final"], true, "the answer came to an end"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
    }
}
