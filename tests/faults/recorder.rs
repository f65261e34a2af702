//! Stands between a client and an admin server, passes everything on, and keeps what was asked.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Lower case.
    pub(crate) method: String,
    /// Without its query.
    pub(crate) path: String,
    /// Names of the query's parameters.
    pub(crate) query: Vec<String>,
    pub(crate) body: Value,
}

pub(crate) struct Recorder {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Recorder {
    /// In front of `server`, as `http://host:port`.
    pub(crate) fn before(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = server.trim_start_matches("http://").to_owned();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let kept = Arc::clone(&asked);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(&server)) else {
                    return;
                };
                let kept = Arc::clone(&kept);
                thread::spawn(move || pass_on(client, server, &kept));
            }
        });
        Self { url, asked }
    }

    /// What was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

/// One connection: requests one way, bytes the other way. It ends when either side does.
fn pass_on(client: TcpStream, mut server: TcpStream, kept: &Mutex<Vec<Asked>>) -> Option<()> {
    let (mut back, mut from) = (client.try_clone().ok()?, server.try_clone().ok()?);
    thread::spawn(move || {
        // Either side may go at any time.
        let _ = std::io::copy(&mut from, &mut back);
        let _ = back.shutdown(Shutdown::Both);
    });
    let mut reader = BufReader::new(client);
    while let Some((head, body)) = read(&mut reader) {
        let mut words = head.split_whitespace();
        let (method, target) = (words.next()?, words.next()?);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let names = query.split('&').filter_map(|pair| pair.split('=').next());
        kept.lock().unwrap().push(Asked {
            method: method.to_lowercase(),
            path: path.to_owned(),
            query: names.filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            body: serde_json::from_slice(&body).unwrap_or_default(),
        });
        server.write_all(head.as_bytes()).ok()?;
        server.write_all(&body).ok()?;
    }
    let _ = server.shutdown(Shutdown::Both);
    None
}

/// One request: its head as it came, and its body.
fn read(reader: &mut impl BufRead) -> Option<(String, Vec<u8>)> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let begun = head.len();
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
        let line = head[begun..].trim().to_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(many) = line.strip_prefix("content-length:") {
            length = many.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head, body))
}
