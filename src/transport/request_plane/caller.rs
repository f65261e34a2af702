//! The other side of the plane: one question to one TCP endpoint, as a router asks it.
//!
//! For looking into routers and in tests of our own endpoints; blocking, one answer at a time, no TLS. The worker side
//! is [`super::tcp`] and [`super::call_home`].

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::Value;

use super::tcp::frame;
use super::{Codec, control, two_part};

/// Longest acknowledgement.
const MAX_ACK_BYTES: u32 = 64 << 10;

/// Longest frame of an answer.
const MAX_FRAME_BYTES: u64 = 64 << 20;

/// Most items of an answer.
const MAX_ITEMS: usize = 4096;

/// How often the listener is looked at while nobody dials.
const GLANCE: Duration = Duration::from_millis(2);

/// A call without an answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Not `host:port/path`.
    #[error("{0:?} is no address of an endpoint; use <host>:<port>/<path> as discovery has it")]
    Address(String),
    /// A socket.
    #[error("cannot ask {address}: {source}")]
    Io {
        /// Whom.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// The call was not taken.
    #[error("{address} does not take the call: {refusal}")]
    Refused {
        /// Who.
        address: String,
        /// In its words.
        refusal: String,
    },
    /// The answer is none.
    #[error("{address} answers nothing that can be read: {reason}")]
    Answer {
        /// Who.
        address: String,
        /// Why not.
        reason: String,
    },
}

/// Asks an endpoint, by its `host:port/path`, and collects what it answers: the payload of each item. No single wait is
/// longer than `patience`.
///
/// # Errors
/// [`CallError`] names the address.
pub fn ask(address: &str, body: &Value, patience: Duration) -> Result<Vec<Value>, CallError> {
    let no_address = || CallError::Address(address.to_owned());
    let (host, path) = address.split_once('/').ok_or_else(no_address)?;
    let io = |source| CallError::Io {
        address: address.to_owned(),
        source,
    };
    let answer = |reason: String| CallError::Answer {
        address: address.to_owned(),
        reason,
    };
    let target = host
        .to_socket_addrs()
        .map_err(|_| no_address())?
        .next()
        .ok_or_else(no_address)?;
    let mut connection = TcpStream::connect_timeout(&target, patience).map_err(io)?;
    connection.set_read_timeout(Some(patience)).map_err(io)?;
    connection.set_write_timeout(Some(patience)).map_err(io)?;
    // Whoever is asked sees us at the address from which we ask.
    let ours = connection.local_addr().map_err(io)?.ip();
    let home = TcpListener::bind((
        if ours.is_loopback() {
            IpAddr::V4(Ipv4Addr::LOCALHOST)
        } else {
            ours
        },
        0,
    ))
    .map_err(io)?;
    let request = encode(path, home.local_addr().map_err(io)?, body).map_err(answer)?;
    connection.write_all(&request).map_err(io)?;
    let refusal = read_ack(&mut connection).map_err(io)?;
    if !refusal.is_empty() {
        return Err(CallError::Refused {
            address: address.to_owned(),
            refusal,
        });
    }
    let mut socket = accept(&home, patience).map_err(io)?;
    socket.set_read_timeout(Some(patience)).map_err(io)?;
    let mut items = Vec::new();
    while items.len() < MAX_ITEMS {
        match next_frame(&mut socket).map_err(io)? {
            Frame::Item(data) => {
                let item: Value = Codec::Msgpack.decode(&data).map_err(answer)?;
                let is_final = item["complete_final"] == true;
                if !item["data"].is_null() {
                    items.push(item["data"].clone());
                }
                if is_final {
                    break;
                }
            }
            Frame::End => break,
            Frame::Control(words) => {
                if let Ok(prologue) = serde_json::from_slice::<Value>(&words)
                    && let Some(error) = prologue["error"].as_str()
                {
                    return Err(CallError::Refused {
                        address: address.to_owned(),
                        refusal: error.to_owned(),
                    });
                }
            }
        }
    }
    Ok(items)
}

fn encode(path: &str, home: SocketAddr, body: &Value) -> Result<Vec<u8>, String> {
    let body = rmp_serde::to_vec_named(body).map_err(|error| error.to_string())?;
    let mut payload = Vec::new();
    let id = uuid::Uuid::new_v4().to_string();
    two_part::write(&mut payload, &control::encode(&id, Codec::Msgpack, home, &id), &body);
    let mut request = Vec::new();
    frame::encode(&mut request, path, "{}", &payload);
    Ok(request)
}

/// What speaks against the call; empty: nothing.
fn read_ack(connection: &mut TcpStream) -> io::Result<String> {
    let mut length = [0; 4];
    connection.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length).min(MAX_ACK_BYTES);
    let mut refusal = vec![0; length as usize];
    connection.read_exact(&mut refusal)?;
    Ok(String::from_utf8_lossy(&refusal).into_owned())
}

fn accept(home: &TcpListener, patience: Duration) -> io::Result<TcpStream> {
    home.set_nonblocking(true)?;
    let mut waited = Duration::ZERO;
    loop {
        match home.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(false)?;
                return Ok(socket);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && waited < patience => {
                std::thread::sleep(GLANCE);
                waited += GLANCE;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
        }
    }
}

enum Frame {
    /// Encoded.
    Item(Vec<u8>),
    /// JSON that is no item.
    Control(Vec<u8>),
    /// Nothing comes any more.
    End,
}

fn next_frame(socket: &mut TcpStream) -> io::Result<Frame> {
    let mut prefix = [0; two_part::PREFIX_BYTES];
    socket.read_exact(&mut prefix)?;
    let bad = |error: two_part::FrameError| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    let prefix = two_part::decode_prefix(&prefix, MAX_FRAME_BYTES).map_err(bad)?;
    let mut read = |bytes: u64| {
        let mut part = vec![0; usize::try_from(bytes).unwrap_or(0)];
        socket.read_exact(&mut part).map(|()| part)
    };
    let (header, data) = (read(prefix.header)?, read(prefix.data)?);
    Ok(match (header.as_slice(), data) {
        (b"\"sentinel\"", _) => Frame::End,
        ([], data) => Frame::Item(data),
        (_, _) => Frame::Control(header),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An endpoint that takes one call and answers with these frames.
    fn endpoint(frames: Vec<(Vec<u8>, Vec<u8>)>, refusal: &'static str) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = format!("{}/path", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let mut buffer = bytes::BytesMut::new();
            let request = loop {
                let mut chunk = [0; 4096];
                let read = connection.read(&mut chunk).unwrap();
                buffer.extend_from_slice(&chunk[..read]);
                if let Some(request) = frame::decode(&mut buffer, 1 << 20).unwrap() {
                    break request;
                }
            };
            let length = u32::try_from(refusal.len()).unwrap().to_be_bytes();
            connection.write_all(&[&length, refusal.as_bytes()].concat()).unwrap();
            if !refusal.is_empty() {
                return;
            }
            let (header, body) = two_part::split(&request.payload).unwrap();
            let control = control::decode(header).unwrap();
            let body: Value = control.codec.decode(body).unwrap();
            let mut home = TcpStream::connect(control.address).unwrap();
            for (header, data) in frames {
                let mut out = Vec::new();
                let data = if data == b"echo" {
                    rmp_serde::to_vec_named(&serde_json::json!({"data": body, "complete_final": false})).unwrap()
                } else {
                    data
                };
                two_part::write(&mut out, &header, &data);
                home.write_all(&out).unwrap();
            }
        });
        address
    }

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn an_answer_is_the_payloads_of_its_items() {
        let prologue = br#"{"error":null}"#.to_vec();
        let end = (b"\"sentinel\"".to_vec(), Vec::new());
        let address = endpoint(vec![(prologue, Vec::new()), (Vec::new(), b"echo".to_vec()), end], "");
        let body = serde_json::json!({"n": u64::MAX});
        assert_eq!(ask(&address, &body, PATIENCE).unwrap(), [body]);
    }

    #[test]
    fn refusals_garbage_and_closed_ports_are_errors_in_words() {
        let refused = ask(&endpoint(Vec::new(), "unknown endpoint"), &Value::Null, PATIENCE).unwrap_err();
        assert!(refused.to_string().contains("unknown endpoint"), "{refused}");
        let prologue = br#"{"error":"no"}"#.to_vec();
        let refused = ask(&endpoint(vec![(prologue, Vec::new())], ""), &Value::Null, PATIENCE).unwrap_err();
        assert!(matches!(refused, CallError::Refused { refusal, .. } if refusal == "no"));
        let garbage = ask(&endpoint(vec![(Vec::new(), vec![0xc1])], ""), &Value::Null, PATIENCE).unwrap_err();
        assert!(matches!(garbage, CallError::Answer { .. }), "{garbage}");
        let nobody = ask("127.0.0.1:1/x", &Value::Null, PATIENCE).unwrap_err();
        assert!(matches!(nobody, CallError::Io { .. }), "{nobody}");
        assert!(matches!(
            ask("nowhere", &Value::Null, PATIENCE),
            Err(CallError::Address(_))
        ));
    }
}
