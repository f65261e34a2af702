//! Request and ack frames on a request connection.
//!
//! | Request frame | | Ack frame | |
//! |---|---|---|---|
//! | u16 BE | path length | u32 BE | text length |
//! | .. | endpoint path, UTF-8 | .. | empty: accepted, else the refusal |
//! | u16 BE | header length | | |
//! | .. | headers, JSON object | | |
//! | u32 BE | payload length | | |
//! | .. | payload: a two-part frame | | |
//!
//! Acks carry no request number: they are sent in request order, one per request.
//! Source: Dynamo 1.6.1 and 1.4.2, golden vectors G1 and G3.

use bytes::{Buf, Bytes, BytesMut};
use tokio_util::sync::CancellationToken;

/// Dynamo's own limit of a whole request frame (`DYN_TCP_MAX_MESSAGE_SIZE`).
pub const DEFAULT_MAX_FRAME_BYTES: usize = 32 * 1024 * 1024;

/// One request frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestFrame {
    /// Endpoint path, as the worker advertised it.
    pub path: Bytes,
    /// Headers as JSON text.
    pub headers: Bytes,
    /// Two-part frame.
    pub payload: Bytes,
}

/// A frame over the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("request frame of {bytes} bytes exceeds the limit of {limit}; raise DYN_TCP_MAX_MESSAGE_SIZE")]
pub struct Oversized {
    /// Announced length.
    pub bytes: usize,
    /// Limit.
    pub limit: usize,
}

/// Takes one complete frame off the front of `buffer`; `None` when more bytes are needed.
///
/// # Errors
/// [`Oversized`]; the connection cannot be used any further then.
pub fn decode(buffer: &mut BytesMut, limit: usize) -> Result<Option<RequestFrame>, Oversized> {
    let Some([path_len, headers_len, payload_len]) = lengths(buffer) else {
        return Ok(None);
    };
    let total = 8 + path_len + headers_len + payload_len;
    if total > limit {
        return Err(Oversized { bytes: total, limit });
    }
    if buffer.len() < total {
        // Room for a while, not for the whole announced length: the sender has to prove it byte by byte.
        buffer.reserve((total - buffer.len()).min(256 * 1024));
        return Ok(None);
    }
    let mut frame = buffer.split_to(total).freeze();
    frame.advance(2);
    let path = frame.split_to(path_len);
    frame.advance(2);
    let headers = frame.split_to(headers_len);
    frame.advance(4);
    Ok(Some(RequestFrame {
        path,
        headers,
        payload: frame,
    }))
}

/// Whether [`decode`] would come to a result: the front frame is complete, or over the limit.
pub fn is_complete(buffer: &BytesMut, limit: usize) -> bool {
    lengths(buffer).is_some_and(|parts| {
        let total = 8 + parts.iter().sum::<usize>();
        total > limit || buffer.len() >= total
    })
}

/// Lengths of path, headers and payload, once all three have arrived.
fn lengths(buffer: &BytesMut) -> Option<[usize; 3]> {
    let path = length(buffer, 0, 2)?;
    let headers = length(buffer, 2 + path, 2)?;
    Some([path, headers, length(buffer, 4 + path + headers, 4)?])
}

fn length(buffer: &BytesMut, at: usize, bytes: usize) -> Option<usize> {
    let raw = buffer.get(at..at + bytes)?;
    Some(raw.iter().fold(0, |value, byte| value << 8 | usize::from(*byte)))
}

/// Writes a request frame (the caller's side, for load drivers and tests).
///
/// # Panics
/// When path or headers exceed 65,535 bytes or the payload 4 GiB.
pub fn encode(out: &mut Vec<u8>, path: &str, headers: &str, payload: &[u8]) {
    let short = |len: usize| u16::try_from(len).expect("path and headers are short").to_be_bytes();
    out.extend_from_slice(&short(path.len()));
    out.extend_from_slice(path.as_bytes());
    out.extend_from_slice(&short(headers.len()));
    out.extend_from_slice(headers.as_bytes());
    out.extend_from_slice(&u32::try_from(payload.len()).expect("payload below 4 GiB").to_be_bytes());
    out.extend_from_slice(payload);
}

/// The worker's answer on the request connection.
#[derive(Debug, Clone)]
pub enum Ack {
    /// Queued; the worker will dial back.
    Accepted,
    /// Too much to do already. 1.6.1 migrates at once, 1.4.2 answers 529.
    Overloaded(String),
    /// Not here, or not any more. 1.6.1 quarantines the worker for 5 s and migrates, 1.4.2 answers 503.
    Unavailable(String),
    /// Nothing is said, and nothing more on this connection: acks have no names, only an order. A fault. When the token is
    /// cancelled the connection is closed: nothing else puts it in order again.
    Withheld(CancellationToken),
    /// Nothing is said, and the connection is reset. A fault.
    Reset,
}

impl Ack {
    /// The words that travel: none for an accepted request.
    pub fn text(&self) -> String {
        match self {
            Self::Accepted | Self::Withheld(_) | Self::Reset => String::new(),
            Self::Overloaded(why) => format!("Server overloaded: {why}"),
            Self::Unavailable(why) => format!("Server unavailable: {why}"),
        }
    }

    /// Why the request is not taken; `None` when it is.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Accepted | Self::Withheld(_) | Self::Reset => None,
            Self::Overloaded(why) | Self::Unavailable(why) => Some(why),
        }
    }

    /// Appends the frame.
    pub fn write(&self, out: &mut Vec<u8>) {
        let text = self.text();
        out.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
        out.extend_from_slice(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "2a/dynamo/backend/generate";
    const HEADERS: &str = r#"{"x-endpoint-path":"2a/dynamo/backend/generate","request-id":"6b3df0a4-aeab-41aa-a556-fdf171182473","x-frontend-send-ts-ns":"1796011728951571801"}"#;

    #[test]
    fn the_recorded_prefix_is_read_and_written() {
        let mut frame = Vec::new();
        encode(&mut frame, PATH, HEADERS, &[7; 1018]);
        assert_eq!(frame[..2], [0x00, 0x1a]);
        assert_eq!(frame[2 + 26..4 + 26], [0x00, 0x92]);
        assert_eq!(frame[4 + 26 + 146..8 + 26 + 146], [0x00, 0x00, 0x03, 0xfa]);
        let mut buffer = BytesMut::from(&frame[..]);
        let read = decode(&mut buffer, DEFAULT_MAX_FRAME_BYTES).unwrap().unwrap();
        assert_eq!(
            (&read.path[..], &read.headers[..]),
            (PATH.as_bytes(), HEADERS.as_bytes())
        );
        assert_eq!(read.payload.len(), 1018);
        assert!(buffer.is_empty());
    }

    #[test]
    fn frames_arrive_in_any_pieces() {
        let mut bytes = Vec::new();
        encode(&mut bytes, "a/b", "{}", b"one");
        encode(&mut bytes, "c/d", "{}", b"");
        let mut buffer = BytesMut::new();
        let mut read = Vec::new();
        for byte in bytes {
            buffer.extend_from_slice(&[byte]);
            while let Some(frame) = decode(&mut buffer, 1024).unwrap() {
                read.push((frame.path, frame.payload));
            }
        }
        let bytes = Bytes::from_static;
        assert_eq!(read, [(bytes(b"a/b"), bytes(b"one")), (bytes(b"c/d"), bytes(b""))]);
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_before_it_is_read() {
        let mut buffer = BytesMut::from(&[0, 1, b'x', 0, 0, 0xff, 0xff, 0xff, 0xff][..]);
        let error = decode(&mut buffer, 1024).unwrap_err();
        assert_eq!(error.limit, 1024);
        assert!(buffer.capacity() < 1024 * 1024);
    }

    #[test]
    fn acks_match_the_recorded_bytes() {
        let bytes = |ack: Ack| {
            let mut out = Vec::new();
            ack.write(&mut out);
            out
        };
        assert_eq!(bytes(Ack::Accepted), [0, 0, 0, 0]);
        let overloaded = bytes(Ack::Overloaded("worker at capacity".into()));
        assert_eq!(overloaded, *b"\x00\x00\x00\x25Server overloaded: worker at capacity");
        let unavailable = bytes(Ack::Unavailable("unknown endpoint x".into()));
        assert_eq!(unavailable, *b"\x00\x00\x00\x26Server unavailable: unknown endpoint x");
    }
}
