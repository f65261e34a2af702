//! One answer: frames on a connection that the worker has opened.

use anyhow::{Result, anyhow, bail, ensure};
use bytes::{Buf, Bytes, BytesMut};
use ghostfleet::transport::request_plane::{Codec, two_part};
use serde::Deserialize;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Largest item accepted; tokens are tens of bytes.
const MAX_ITEM_BYTES: u64 = 16 << 20;

/// What one item brings.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) tokens: u64,
    pub(crate) finish_reason: Option<String>,
}

/// An answer that is being read.
pub(crate) struct Answer {
    stream: TcpStream,
    buffer: BytesMut,
    codec: Codec,
    /// The worker has said that nothing is missing.
    complete: bool,
}

#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    data: Option<Annotated>,
    #[serde(default)]
    complete_final: bool,
}

#[derive(Deserialize)]
struct Annotated {
    #[serde(default)]
    data: Option<Output>,
    #[serde(default)]
    event: Option<String>,
    #[serde(default)]
    comment: Option<serde_json::Value>,
    #[serde(default)]
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Output {
    #[serde(default)]
    token_ids: Length,
    #[serde(default)]
    finish_reason: Option<serde_json::Value>,
}

/// Length of a list whose elements do not matter.
#[derive(Default)]
struct Length(u64);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Counter;
        impl<'de> Visitor<'de> for Counter {
            type Value = Length;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of token ids")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Length, A::Error> {
                let mut length = 0;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    length += 1;
                }
                Ok(Length(length))
            }
        }
        deserializer.deserialize_seq(Counter)
    }
}

impl Answer {
    /// Reads the prologue of a connection whose handshake has been read.
    pub(crate) async fn open(mut stream: TcpStream, mut buffer: BytesMut, codec: Codec) -> Result<Self> {
        #[derive(Deserialize)]
        struct Prologue {
            error: Option<String>,
        }
        let Some((header, _)) = read_frame(&mut stream, &mut buffer).await? else {
            bail!("closed before the prologue");
        };
        let Prologue { error } = serde_json::from_slice(&header)?;
        if let Some(error) = error {
            bail!("refused in the prologue: {error}");
        }
        Ok(Self {
            stream,
            buffer,
            codec,
            complete: false,
        })
    }

    /// The next item with a meaning; `None` at an orderly end.
    pub(crate) async fn next(&mut self) -> Result<Option<Item>> {
        loop {
            let Some((header, data)) = read_frame(&mut self.stream, &mut self.buffer).await? else {
                ensure!(self.complete, "stream broke off");
                return Ok(None);
            };
            if !header.is_empty() {
                ensure!(header == b"\"sentinel\""[..], "unknown control frame");
                ensure!(self.complete, "stream ended without its final item");
                return Ok(None);
            }
            let wire: Wire = match self.codec {
                Codec::Msgpack => rmp_serde::from_slice(&data)?,
                Codec::Json => serde_json::from_slice(&data)?,
            };
            self.complete |= wire.complete_final;
            if let Some(annotated) = wire.data {
                return item(annotated).map(Some);
            }
        }
    }

    /// Asks the worker to end the stream.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        let mut frame = Vec::new();
        two_part::write(&mut frame, b"\"stop\"", b"");
        Ok(self.stream.write_all(&frame).await?)
    }
}

fn item(annotated: Annotated) -> Result<Item> {
    if let Some(error) = annotated.error {
        bail!("error item: {error}");
    }
    if annotated.event.as_deref() == Some("error") {
        bail!("error item: {}", annotated.comment.unwrap_or_default());
    }
    let Some(output) = annotated.data else {
        return Ok(Item::default());
    };
    let finish_reason = output.finish_reason.map(|reason| match reason {
        serde_json::Value::String(text) => Ok(text),
        serde_json::Value::Object(map) => Err(anyhow!("finish reason {map:?}")),
        other @ (serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::Array(_)) => Ok(other.to_string()),
    });
    Ok(Item {
        tokens: output.token_ids.0,
        finish_reason: finish_reason.transpose()?,
    })
}

/// Reads one two-part frame; `None` when the connection ends before its first byte.
pub(crate) async fn read_frame(stream: &mut TcpStream, buffer: &mut BytesMut) -> Result<Option<(Bytes, Bytes)>> {
    loop {
        if let Some(prefix) = buffer.first_chunk::<{ two_part::PREFIX_BYTES }>() {
            let prefix = two_part::decode_prefix(prefix, MAX_ITEM_BYTES)?;
            let (header, data) = (usize::try_from(prefix.header)?, usize::try_from(prefix.data)?);
            if buffer.len() >= two_part::PREFIX_BYTES + header + data {
                buffer.advance(two_part::PREFIX_BYTES);
                let header = buffer.split_to(header).freeze();
                return Ok(Some((header, buffer.split_to(data).freeze())));
            }
        }
        buffer.reserve(4096);
        if stream.read_buf(buffer).await? == 0 {
            ensure!(buffer.is_empty(), "stream broke off inside a frame");
            return Ok(None);
        }
    }
}
