//! The control message in front of each request: who asks, in which codec, and where to dial back.
//!
//! `connection_info.info` is JSON inside a JSON string. Source: Dynamo 1.6.1 and 1.4.2, golden vector G2.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;

use super::Codec;

/// What the worker needs of a control message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// Request id as the client side knows it.
    pub id: String,
    /// Codec of the request body and of every answer item.
    pub codec: Codec,
    /// Response server of the caller.
    pub address: SocketAddr,
    /// Stream name to announce there.
    pub subject: String,
}

/// A control message that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// Not the expected JSON.
    #[error("malformed control message: {0}")]
    Malformed(String),
    /// An unknown response plane.
    #[error("response plane {0} not supported; use tcp (DYN_RESPONSE_PLANE)")]
    ResponsePlane(String),
    /// An unknown kind of call.
    #[error("request type {0} not supported")]
    RequestType(String),
    /// The response address is no IP address and port.
    #[error("response address {0:?} is not <ip>:<port>")]
    Address(String),
    /// An unknown body codec.
    #[error("payload codec {0:?} not supported; use msgpack or json")]
    Codec(String),
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow, default)]
    request_type: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    payload_codec: Option<Cow<'a, str>>,
    #[serde(borrow)]
    connection_info: Connection<'a>,
}

#[derive(Deserialize)]
struct Connection<'a> {
    #[serde(borrow)]
    transport: Cow<'a, str>,
    #[serde(borrow)]
    info: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Info<'a> {
    #[serde(borrow)]
    address: Cow<'a, str>,
    #[serde(borrow)]
    subject: Cow<'a, str>,
}

/// Reads a control message.
///
/// # Errors
/// [`ControlError`]; the text is fit for an ack.
pub fn decode(header: &[u8]) -> Result<Control, ControlError> {
    let wire: Wire<'_> = serde_json::from_slice(header).map_err(|e| ControlError::Malformed(e.to_string()))?;
    match wire.request_type.as_deref() {
        None | Some("single_in") => {}
        Some(other) => return Err(ControlError::RequestType(other.to_owned())),
    }
    let transport = wire.connection_info.transport.as_ref();
    if transport != "tcp_server" {
        let plane = transport.strip_suffix("-response").unwrap_or(transport);
        return Err(ControlError::ResponsePlane(plane.to_owned()));
    }
    let codec = match wire.payload_codec.as_deref() {
        None | Some("json") => Codec::Json,
        Some("msgpack") => Codec::Msgpack,
        Some(other) => return Err(ControlError::Codec(other.to_owned())),
    };
    let info: Info<'_> = serde_json::from_str(&wire.connection_info.info)
        .map_err(|e| ControlError::Malformed(format!("connection_info.info: {e}")))?;
    Ok(Control {
        id: wire.id.into_owned(),
        codec,
        address: parse_address(&info.address)?,
        subject: info.subject.into_owned(),
    })
}

/// Parses `<ip>:<port>`. A 1.4.2 frontend writes IPv6 addresses without brackets, so the last colon separates the port.
///
/// # Errors
/// [`ControlError::Address`].
pub fn parse_address(text: &str) -> Result<SocketAddr, ControlError> {
    let bad = || ControlError::Address(text.to_owned());
    let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let ip: IpAddr = host.parse().map_err(|_| bad())?;
    Ok(SocketAddr::new(ip, port.parse().map_err(|_| bad())?))
}

/// Writes the control message of a single-input call (the caller's side, for load drivers and tests).
pub fn encode(id: &str, codec: Codec, address: SocketAddr, subject: &str) -> Vec<u8> {
    let info = serde_json::json!({
        "address": address.to_string(), "subject": subject, "context": id, "stream_type": "response",
    });
    let control = serde_json::json!({
        "id": id, "request_type": "single_in", "response_type": "many_out", "payload_codec": codec,
        "connection_info": { "transport": "tcp_server", "info": info.to_string() },
    });
    control.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let address = "127.0.0.1:37013".parse().unwrap();
        let control = decode(&encode("id-1", Codec::Msgpack, address, "subject-1")).unwrap();
        let want = Control {
            id: "id-1".into(),
            codec: Codec::Msgpack,
            address,
            subject: "subject-1".into(),
        };
        assert_eq!(control, want);
    }

    #[test]
    fn addresses_of_both_versions_are_understood() {
        for (text, ip, port) in [
            ("127.0.0.1:7", "127.0.0.1", 7),
            ("[::1]:40305", "::1", 40305),
            ("::1:40305", "::1", 40305),
        ] {
            assert_eq!(
                parse_address(text),
                Ok(SocketAddr::new(ip.parse().unwrap(), port)),
                "{text}"
            );
        }
        for text in [
            "",
            "x",
            "localhost:1",
            "127.0.0.1",
            "127.0.0.1:",
            "127.0.0.1:70000",
            ":1",
        ] {
            assert!(parse_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_quic_response_plane_is_refused_by_name() {
        let header =
            br#"{"id":"a","payload_codec":"json","connection_info":{"transport":"quic-response","info":"{}"}}"#;
        assert_eq!(
            decode(header).unwrap_err().to_string(),
            "response plane quic not supported; use tcp (DYN_RESPONSE_PLANE)"
        );
    }

    #[test]
    fn garbage_is_an_error() {
        for header in [
            &b""[..],
            b"{}",
            b"[]",
            b"{\"id\":1}",
            b"\xff\xff",
            br#"{"id":"a","connection_info":{"transport":"tcp_server","info":"x"}}"#,
        ] {
            assert!(decode(header).is_err());
        }
    }
}
