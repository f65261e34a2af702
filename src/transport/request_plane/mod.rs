//! The request plane: how a router calls an endpoint of a worker and how the answer travels back.
//!
//! | Module | What |
//! |---|---|
//! | [`two_part`] | header + data frame used in both directions |
//! | [`control`] | JSON control message in front of each request |
//! | [`request`] | the request itself, MessagePack or JSON |
//! | [`response`] | items of the answer |
//! | [`call_home`] | the response socket: one TCP connection per request, dialled by the worker |
//! | [`caller`] | the other side of all this: one question to one endpoint |
//! | [`endpoint`] | what stands behind a path: `generate`, or a KV recovery endpoint |
//! | [`figures`] | what Dynamo counts of an endpoint |
//! | [`mending`] | the end of what a fault has done to connections |
//! | [`plane`] | where a worker puts its endpoints, whatever brings the requests |
//! | [`tcp`] | the TCP listener side (frames, acks) |
//! | [`nats`] | subscriptions and replies |
//!
//! Source: Dynamo 1.6.1 and 1.4.2, observed on the wire.

pub mod call_home;
pub mod caller;
pub mod control;
pub mod endpoint;
pub mod figures;
pub mod mending;
pub mod nats;
pub mod plane;
pub mod request;
pub mod response;
pub mod tcp;
pub mod two_part;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Encoding of request and answer bodies, named by the caller in each request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Codec {
    /// MessagePack, maps with string keys.
    #[default]
    Msgpack,
    /// JSON text.
    Json,
}

/// Deepest nesting accepted in a body. The limit of `serde_json`; that of `rmp-serde` is 1,024, which is more than the
/// stack of a thread may hold.
const MAX_DEPTH: usize = 128;

impl Codec {
    /// Reads a body that a peer sent.
    ///
    /// # Errors
    /// The decoder's words, also for a body nested deeper than 128 levels.
    pub fn decode<T: DeserializeOwned>(self, body: &[u8]) -> Result<T, String> {
        match self {
            Self::Msgpack => {
                let mut deserializer = rmp_serde::Deserializer::from_read_ref(body);
                deserializer.set_max_depth(MAX_DEPTH);
                T::deserialize(&mut deserializer).map_err(|error| error.to_string())
            }
            Self::Json => serde_json::from_slice(body).map_err(|error| error.to_string()),
        }
    }
}
