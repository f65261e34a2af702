//! The recovery endpoint of one rank: queries of routers that missed events, and the answers.
//!
//! Query, a map: `worker_id`, `dp_rank`, `start_event_id` (inclusive) and `end_event_id`, both nil or absent at will,
//! and `kind` ("recovery" when absent; other kinds belong to services that a worker does not have).
//!
//! Answer, a map with one key:
//!
//! | Key | Value |
//! |---|---|
//! | `Events` | `events` from the asked id to the newest, `last_event_id` |
//! | `TreeDump` | `events` that rebuild the cache, `last_event_id`, `reset_scope` ("all") |
//! | `TooNew` | `requested_start`, `requested_end`, `newest_available` |
//! | `InvalidRange` | `start_id`, `end_id` |
//! | `Error` | a string |
//!
//! Source: Dynamo 1.6.1; 1.4.2 sends no `kind`, always asks from nil and ignores `reset_scope`.

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::PublisherId;
use super::journal::Journal;
use super::msgpack::{put_array_len, put_optional_uint, put_str, put_uint};
use crate::transport::request_plane::{Codec, two_part};
use crate::types::{DpRank, InstanceId};

/// Name of the request-plane endpoint that answers for a publisher.
pub fn query_endpoint_name(publisher: PublisherId) -> String {
    format!("worker_kv_query_source_{publisher:x}")
}

/// Around the answer in a data item.
const ITEM_HEAD: &[u8] = b"\x82\xa4data";
const ITEM_TAIL: &[u8] = b"\xaecomplete_final\xc2";

/// Before the events of a dump.
const DUMP_HEAD: &[u8] = b"\x81\xa8TreeDump\x83\xa6events";

/// What a router asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    /// Whose cache.
    pub worker: InstanceId,
    /// Which rank.
    pub rank: DpRank,
    /// First event wanted; `None`: everything.
    pub start_event_id: Option<u64>,
    /// Last event wanted. Answers go on to the newest event all the same.
    pub end_event_id: Option<u64>,
}

/// Why a query was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// Not a query at all.
    #[error("recovery query not understood: {0}")]
    Malformed(String),
    /// Not a recovery of a worker's cache.
    #[error("query kind is not served by a worker; send \"recovery\"")]
    Kind,
}

impl Query {
    /// Reads a query; unknown keys are ignored.
    pub fn decode(codec: Codec, body: &[u8]) -> Result<Self, QueryError> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Kind {
            Name(String),
            Other(IgnoredAny),
        }
        #[derive(Deserialize)]
        struct Wire {
            worker_id: u64,
            dp_rank: u32,
            #[serde(default)]
            start_event_id: Option<u64>,
            #[serde(default)]
            end_event_id: Option<u64>,
            #[serde(default)]
            kind: Option<Kind>,
        }
        let wire: Wire = codec.decode(body).map_err(QueryError::Malformed)?;
        match wire.kind {
            None => {}
            Some(Kind::Name(name)) if name == "recovery" => {}
            Some(Kind::Name(_) | Kind::Other(IgnoredAny)) => return Err(QueryError::Kind),
        }
        Ok(Self {
            worker: InstanceId(wire.worker_id),
            rank: DpRank(wire.dp_rank),
            start_event_id: wire.start_event_id,
            end_event_id: wire.end_event_id,
        })
    }
}

/// What a worker answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// The missing events.
    Events {
        /// Encoded router events with their original ids, without gaps.
        events: Vec<Bytes>,
        /// Newest id.
        last_event_id: u64,
    },
    /// The whole cache.
    TreeDump {
        /// Encoded array of router events, parents before children, ids from 0.
        events: Bytes,
        /// Newest id that the dump contains, 0 when nothing was published.
        last_event_id: u64,
    },
    /// Nothing to send yet.
    TooNew {
        /// As asked.
        requested_start: u64,
        /// As asked.
        requested_end: Option<u64>,
        /// Newest id.
        newest_available: u64,
    },
    /// The range ends before it starts.
    InvalidRange {
        /// As asked.
        start_id: u64,
        /// As asked.
        end_id: u64,
    },
    /// Query for another rank, or not understood.
    Error(String),
}

impl Response {
    /// The answer alone.
    pub fn encode(&self, codec: Codec) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.size_hint());
        self.put(&mut out);
        in_codec(codec, out)
    }

    /// The answer as a data item of a response stream: `{"data": answer, "complete_final": false}`.
    pub fn encode_item(&self, codec: Codec) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.size_hint());
        out.extend_from_slice(ITEM_HEAD);
        self.put(&mut out);
        out.extend_from_slice(ITEM_TAIL);
        in_codec(codec, out)
    }

    /// The frame of that data item, as it goes on a response socket, in pieces: a dump is shared with all who ask for it,
    /// not copied.
    pub fn frame(&self, codec: Codec) -> Vec<Bytes> {
        let (Self::TreeDump { events, .. }, Codec::Msgpack) = (self, codec) else {
            let item = self.encode_item(codec);
            let mut frame = Vec::with_capacity(two_part::PREFIX_BYTES + item.len());
            two_part::write(&mut frame, b"", &item);
            return vec![Bytes::from(frame)];
        };
        let mut head = vec![0; two_part::PREFIX_BYTES];
        head.extend_from_slice(ITEM_HEAD);
        head.extend_from_slice(DUMP_HEAD);
        let mut tail = Vec::with_capacity(64);
        self.put_dump_tail(&mut tail);
        tail.extend_from_slice(ITEM_TAIL);
        let bytes = head.len() - two_part::PREFIX_BYTES + events.len() + tail.len();
        head[..two_part::PREFIX_BYTES].copy_from_slice(&two_part::prefix(0, bytes));
        vec![Bytes::from(head), events.clone(), Bytes::from(tail)]
    }

    fn put_dump_tail(&self, out: &mut Vec<u8>) {
        if let Self::TreeDump { last_event_id, .. } = self {
            out.extend_from_slice(b"\xadlast_event_id");
            put_uint(out, *last_event_id);
            out.extend_from_slice(b"\xabreset_scope\xa3all");
        }
    }

    fn size_hint(&self) -> usize {
        128 + match self {
            Self::Events { events, .. } => events.iter().map(Bytes::len).sum(),
            Self::TreeDump { events, .. } => events.len(),
            Self::Error(message) => message.len(),
            Self::TooNew { .. } | Self::InvalidRange { .. } => 0,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Events { events, last_event_id } => {
                out.extend_from_slice(b"\x81\xa6Events\x82\xa6events");
                put_array_len(out, events.len());
                for event in events {
                    out.extend_from_slice(event);
                }
                out.extend_from_slice(b"\xadlast_event_id");
                put_uint(out, *last_event_id);
            }
            Self::TreeDump { events, .. } => {
                out.extend_from_slice(DUMP_HEAD);
                out.extend_from_slice(events);
                self.put_dump_tail(out);
            }
            Self::TooNew {
                requested_start,
                requested_end,
                newest_available,
            } => {
                out.extend_from_slice(b"\x81\xa6TooNew\x83\xafrequested_start");
                put_uint(out, *requested_start);
                out.extend_from_slice(b"\xadrequested_end");
                put_optional_uint(out, *requested_end);
                out.extend_from_slice(b"\xb0newest_available");
                put_uint(out, *newest_available);
            }
            Self::InvalidRange { start_id, end_id } => {
                out.extend_from_slice(b"\x81\xacInvalidRange\x82\xa8start_id");
                put_uint(out, *start_id);
                out.extend_from_slice(b"\xa6end_id");
                put_uint(out, *end_id);
            }
            Self::Error(message) => {
                out.extend_from_slice(b"\x81\xa5Error");
                put_str(out, message);
            }
        }
    }
}

/// Recorded events are kept as msgpack; a JSON answer is made from the msgpack one.
fn in_codec(codec: Codec, msgpack: Vec<u8>) -> Vec<u8> {
    match codec {
        Codec::Msgpack => msgpack,
        Codec::Json => {
            let value: serde_json::Value =
                rmp_serde::from_slice(&msgpack).expect("an answer is msgpack of strings, integers, maps and arrays");
            value.to_string().into_bytes()
        }
    }
}

/// Answers an encoded query; one that is not understood gets [`Response::Error`].
pub fn answer(journal: &mut Journal, codec: Codec, body: &[u8]) -> Response {
    match Query::decode(codec, body) {
        Ok(query) => journal.answer(&query),
        Err(error) => Response::Error(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden::{EMPTY_DUMP_ITEM, RECOVERY_QUERY, unhex};
    use super::*;
    use serde_json::json;

    const QUERY: Query = Query {
        worker: InstanceId(0x694d_a22a_916b_0e67),
        rank: DpRank(0),
        start_event_id: Some(4),
        end_event_id: None,
    };

    fn json_query(query: &serde_json::Value) -> Result<Query, QueryError> {
        Query::decode(Codec::Json, query.to_string().as_bytes())
    }

    #[test]
    fn recorded_query_is_understood() {
        assert_eq!(Query::decode(Codec::Msgpack, &unhex(RECOVERY_QUERY)), Ok(QUERY));
    }

    #[test]
    fn json_query_may_leave_out_what_is_nil_and_add_what_is_unknown() {
        let query = json!({"worker_id": QUERY.worker.0, "dp_rank": 0, "start_event_id": 4, "later": [1]});
        assert_eq!(json_query(&query), Ok(QUERY));
    }

    #[test]
    fn other_kinds_and_other_shapes_are_refused_with_a_reason() {
        let kind = |kind| json_query(&json!({"worker_id": 1, "dp_rank": 0, "kind": kind}));
        assert!(kind(json!("recovery")).is_ok());
        assert!(kind(json!(null)).is_ok());
        assert_eq!(kind(json!("status")), Err(QueryError::Kind));
        assert_eq!(kind(json!({"status": {"a": 1}})), Err(QueryError::Kind));
        assert!(matches!(
            json_query(&json!({"dp_rank": 0})),
            Err(QueryError::Malformed(_))
        ));
        assert!(matches!(
            Query::decode(Codec::Msgpack, b"\xc1"),
            Err(QueryError::Malformed(_))
        ));
        assert!(matches!(
            Query::decode(Codec::Msgpack, b""),
            Err(QueryError::Malformed(_))
        ));
    }

    #[test]
    fn dump_of_an_empty_cache_equals_the_recorded_item() {
        let dump = Response::TreeDump {
            events: Bytes::from_static(b"\x90"),
            last_event_id: 0,
        };
        assert_eq!(dump.encode_item(Codec::Msgpack), unhex(EMPTY_DUMP_ITEM));
        let frame = dump.frame(Codec::Msgpack).concat();
        assert_eq!(two_part::split(&frame), Ok((&b""[..], &unhex(EMPTY_DUMP_ITEM)[..])));
    }

    #[test]
    fn answers_read_the_same_in_both_codecs() {
        let answers = [
            (
                Response::TooNew {
                    requested_start: 9,
                    requested_end: None,
                    newest_available: 3,
                },
                json!({"TooNew": {"requested_start": 9, "requested_end": null, "newest_available": 3}}),
            ),
            (
                Response::InvalidRange { start_id: 5, end_id: 4 },
                json!({"InvalidRange": {"start_id": 5, "end_id": 4}}),
            ),
            (Response::Error("no".to_owned()), json!({"Error": "no"})),
            (
                Response::Events {
                    events: vec![
                        Bytes::from_static(b"\x01"),
                        Bytes::from_static(b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff"),
                    ],
                    last_event_id: 2,
                },
                json!({"Events": {"events": [1, u64::MAX], "last_event_id": 2}}),
            ),
        ];
        for (answer, expected) in answers {
            let msgpack: serde_json::Value = rmp_serde::from_slice(&answer.encode(Codec::Msgpack)).expect("msgpack");
            let json: serde_json::Value = serde_json::from_slice(&answer.encode_item(Codec::Json)).expect("json");
            assert_eq!(msgpack, expected);
            assert_eq!(json, json!({"data": expected, "complete_final": false}));
        }
    }

    #[test]
    fn query_endpoint_carries_the_publisher_in_hex() {
        let publisher = PublisherId::new(0x0011_b9d3_5bbb_964b).expect("below 2^53");
        assert_eq!(query_endpoint_name(publisher), "worker_kv_query_source_11b9d35bbb964b");
    }
}
