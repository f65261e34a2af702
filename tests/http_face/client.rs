//! A client of the face, down to the bytes.

use std::collections::BTreeMap;

use ghostfleet::transport::http::Face;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::within;

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Client {
    pub(crate) async fn send(face: &Face, method: &str, path: &str, headers: &str, body: &[u8]) -> Self {
        let mut stream = TcpStream::connect(face.address()).await.unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: worker\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        Self { stream }
    }

    /// The answer up to the end of the connection.
    pub(crate) async fn reply(mut self) -> Reply {
        let mut bytes = Vec::new();
        within(self.stream.read_to_end(&mut bytes)).await.unwrap();
        Reply::parse(&bytes)
    }

    /// Reads until the text has come by.
    pub(crate) async fn read_until(&mut self, text: &str) -> String {
        let mut seen = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let read = within(self.stream.read(&mut buffer)).await.unwrap();
            assert_ne!(
                read,
                0,
                "closed before {text:?} came: {}",
                String::from_utf8_lossy(&seen)
            );
            seen.extend_from_slice(&buffer[..read]);
            let so_far = String::from_utf8_lossy(&seen);
            if so_far.contains(text) {
                return so_far.into_owned();
            }
        }
    }
}

impl Reply {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let end = bytes
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .expect("a whole head");
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: BTreeMap<_, _> = lines
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let mut body = bytes[end + 4..].to_vec();
        if headers
            .get("transfer-encoding")
            .is_some_and(|encoding: &String| encoding == "chunked")
        {
            body = unchunk(&body);
        }
        Self { status, headers, body }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// Parsed events; the last must be `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.headers["content-type"], "text/event-stream; charset=utf-8");
        let mut events: Vec<_> = self.text().split_terminator("\n\n").collect();
        assert_eq!(events.pop(), Some("data: [DONE]"));
        let parse = |event: &str| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        events.into_iter().map(parse).collect()
    }

    pub(crate) fn error(&self) -> (u16, Value) {
        let error = self.json()["error"].clone();
        let keys: Vec<_> = error.as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys, ["code", "message", "param", "type"]);
        assert_eq!(error["code"], self.status);
        (self.status, error)
    }
}

pub(crate) fn unchunk(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let end = body.windows(2).position(|two| two == b"\r\n").expect("a chunk size");
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        whole.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 2 + size + 2..];
        if size == 0 {
            return whole;
        }
    }
}
