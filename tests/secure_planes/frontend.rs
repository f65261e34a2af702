//! A frontend in miniature that speaks TLS both ways.

use std::sync::Arc;
use std::time::Duration;

use ghostfleet::transport::request_plane::tcp::frame;
use ghostfleet::transport::request_plane::{Codec, control, two_part};
use ghostfleet::transport::tls::{self, Identity, Pem, ServerTls, Trust};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::certificates::{Authority, Pair};
use crate::fleet::PATIENCE;

/// What it trusts and shows.
pub(crate) struct Frontend {
    authority: Pem,
    /// Shown to workers.
    pub(crate) identity: Option<Pair>,
    /// Shown to those who dial its response server; `None`: that has no TLS.
    pub(crate) server: Option<Pair>,
}

/// An answer as it arrives.
pub(crate) struct Answer(Box<dyn Socket>);

pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

fn identity(pair: &Pair) -> Identity {
    Identity {
        chain: Pem::file("certificate", &pair.certificate),
        key: Pem::file("key", &pair.key),
    }
}

impl Frontend {
    /// One that trusts `authority` and whose response server has a certificate of it.
    pub(crate) fn new(authority: &Authority) -> Self {
        Self {
            authority: Pem::file("authority", authority.path()),
            identity: None,
            server: Some(authority.loopback("frontend")),
        }
    }

    /// A request connection to a worker.
    pub(crate) async fn connect(&self, address: &str) -> Result<Box<dyn Socket>, String> {
        let (host, _) = address.split_once('/').unwrap();
        let trust = Trust::Authorities(self.authority.clone());
        let config = tls::client_config(&trust, self.identity.as_ref().map(identity).as_ref()).unwrap();
        let stream = TcpStream::connect(host).await.map_err(|error| error.to_string())?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        Ok(Box::new(connected.map_err(|error| error.to_string())?))
    }

    /// Calls; the answer, or why there is none.
    pub(crate) async fn call(&self, address: &str, max_tokens: u32) -> Result<Answer, String> {
        let home = small_listener();
        let mut connection = self.connect(address).await?;
        let (_, path) = address.split_once('/').unwrap();
        let body = json!({"token_ids": [1, 2, 3], "stop_conditions": {"max_tokens": max_tokens, "ignore_eos": true}});
        let ack = ask(&mut connection, path, &home, &body).await?;
        if !ack.is_empty() {
            return Err(ack);
        }
        self.answer(&home).await
    }

    async fn answer(&self, home: &TcpListener) -> Result<Answer, String> {
        let (stream, _) = tokio::time::timeout(PATIENCE, home.accept()).await.unwrap().unwrap();
        match &self.server {
            None => Ok(Answer(Box::new(stream))),
            Some(pair) => {
                let tls = ServerTls::new(&identity(pair), Some(&self.authority), PATIENCE).unwrap();
                let accepted = tls.accept(stream).await.map_err(|error| error.to_string())?;
                Ok(Answer(Box::new(accepted)))
            }
        }
    }
}

/// Sends a request and reads the ack.
pub(crate) async fn ask<S: Socket>(
    connection: &mut S,
    path: &str,
    home: &TcpListener,
    body: &Value,
) -> Result<String, String> {
    let control = control::encode("id", Codec::Json, home.local_addr().unwrap(), "subject");
    let mut payload = Vec::new();
    two_part::write(&mut payload, &control, body.to_string().as_bytes());
    let mut bytes = Vec::new();
    frame::encode(&mut bytes, path, "{}", &payload);
    connection.write_all(&bytes).await.map_err(|error| error.to_string())?;
    let read = async {
        let length = connection.read_u32().await?;
        let mut text = vec![0; usize::try_from(length).unwrap()];
        connection.read_exact(&mut text).await.map(|_| text)
    };
    let text = tokio::time::timeout(PATIENCE, read).await.unwrap();
    text.map(|text| String::from_utf8(text).unwrap())
        .map_err(|error| error.to_string())
}

/// A listener whose connections take hardly any bytes that are not read.
pub(crate) fn small_listener() -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    socket.listen(16).unwrap()
}

impl Answer {
    /// The next frame: header and data; `None` at the end.
    async fn frame(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let read = async {
            let mut prefix = [0; two_part::PREFIX_BYTES];
            self.0.read_exact(&mut prefix).await.ok()?;
            let prefix = two_part::decode_prefix(&prefix, 1 << 20).unwrap();
            let mut parts = [prefix.header, prefix.data].map(|length| vec![0; usize::try_from(length).unwrap()]);
            for part in &mut parts {
                self.0.read_exact(part).await.ok()?;
            }
            let [header, data] = parts;
            Some((header, data))
        };
        tokio::time::timeout(PATIENCE, read).await.unwrap()
    }

    /// Reads `count` tokens.
    pub(crate) async fn tokens(&mut self, count: usize) {
        let mut read = 0;
        while read < count {
            let (_, data) = self.frame().await.unwrap();
            read += tokens(&data);
        }
    }

    /// Reads to the end mark; how many tokens there were.
    pub(crate) async fn finish(&mut self) -> usize {
        let mut read = 0;
        loop {
            let (header, data) = self.frame().await.expect("an end mark");
            if header == b"\"sentinel\"" {
                return read;
            }
            read += tokens(&data);
        }
    }

    /// Takes nothing for a while: what is sent has to wait.
    pub(crate) async fn dawdle(&mut self, span: Duration) {
        tokio::time::sleep(span).await;
    }

    pub(crate) async fn kill(&mut self) {
        let mut frame = Vec::new();
        two_part::write(&mut frame, b"\"kill\"", b"");
        self.0.write_all(&frame).await.unwrap();
        self.0.flush().await.unwrap();
    }
}

fn tokens(data: &[u8]) -> usize {
    let item: Value = serde_json::from_slice(data).unwrap_or_default();
    item["data"]["data"]["token_ids"].as_array().map_or(0, Vec::len)
}
