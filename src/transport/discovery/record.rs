//! The four records of a worker: discovery keys and their JSON values.
//!
//! | Record | Key |
//! |---|---|
//! | `Endpoint` | `v1/instances/<ns>/<comp>/<ep>/<instance id>` |
//! | `Model` | `v1/mdc/<ns>/<comp>/<ep>/<instance id>[/<lora slug>]` |
//! | `EventChannel` | `v1/event_channels/<scope path>/topic/<topic>/<publisher id>` |
//! | `EventSource` | `v1/event_sources/<scope path>/topic/<topic>/<publisher id>` |
//!
//! Ids are lower-case hex without padding in keys and paths, decimal in JSON. A value is one compact JSON object with a
//! `type` tag; the order of its members is the one Dynamo writes. Put the endpoint before the card: a card without an
//! instance is not listed.
//!
//! Source: Dynamo 1.6.1 and 1.4.2, observed in their stores.

#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::name::{EndpointName, NameError, encode_segment};
use crate::transport::request_plane::Codec;
use crate::types::{DpRank, InstanceId};

/// Keys of endpoint records start with this.
pub const INSTANCES: &str = "v1/instances/";
/// Keys of model records start with this.
pub const MODELS: &str = "v1/mdc/";
/// Keys of event channel records start with this.
pub const EVENT_CHANNELS: &str = "v1/event_channels/";
/// Keys of event source records start with this.
pub const EVENT_SOURCES: &str = "v1/event_sources/";

/// One entry of a discovery store. Build it, publish it, drop it: a card makes it several KiB large.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Key, `v1/...`.
    pub key: String,
    /// JSON text.
    pub value: Bytes,
}

/// Where requests to an instance go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestAddress {
    /// `<ip>:<port>/<path>`, an IPv6 address in brackets.
    #[serde(rename = "tcp")]
    Tcp(String),
    /// NATS subject.
    #[serde(rename = "nats_tcp")]
    Nats(String),
}

/// What an instance claims to run on; only a device-aware router looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceType {
    /// A GPU.
    Cuda,
    /// A CPU.
    Cpu,
}

/// A callable endpoint of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointInstance {
    /// Endpoint.
    pub name: EndpointName,
    /// Worker.
    pub instance: InstanceId,
    /// Where to send requests.
    pub address: RequestAddress,
    /// Device, if claimed.
    pub device: Option<DeviceType>,
    /// Codec; `None` means JSON.
    pub codec: Option<Codec>,
}

/// The card of one worker.
#[derive(Debug, Clone)]
pub struct ModelEntry<'a> {
    /// Endpoint that serves the model.
    pub name: &'a EndpointName,
    /// Worker.
    pub instance: InstanceId,
    /// Slug of the `LoRA` adapter the card describes; `None`: the base model.
    pub lora_slug: Option<&'a str>,
    /// Card as JSON text, written as it is; all workers of a model share one.
    pub card: &'a RawValue,
}

/// How the events of one publisher can be had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "config")]
pub enum EventAddress {
    /// A PUB socket of the publisher.
    Zmq {
        /// `tcp://<ip>:<port>`.
        endpoint: String,
    },
    /// NATS subjects below a prefix.
    Nats {
        /// [`EndpointName::event_subject_prefix`].
        subject_prefix: String,
    },
    /// A broker between publishers and routers. Only brokers have such records, under [`broker_prefix`].
    ZmqBroker {
        /// `tcp://<host>:<port>` that publishers connect to.
        xsub_endpoints: Vec<String>,
        /// `tcp://<host>:<port>` that routers connect to.
        xpub_endpoints: Vec<String>,
    },
}

/// Keys of the records of a namespace's brokers start with this.
pub fn broker_prefix(namespace: &str) -> String {
    format!(
        "{EVENT_CHANNELS}namespace/{}/component/zmq_broker/",
        encode_segment(namespace)
    )
}

/// One incarnation of one event stream of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventStream<'a> {
    /// Endpoint that serves the model: the scope of all worker topics.
    pub scope: &'a EndpointName,
    /// Topic, as in `kv-events`.
    pub topic: &'a str,
    /// Random id below 2^53; never that of the worker, never used again after a restart.
    pub publisher: u64,
}

/// Why bytes are not the record that they should be.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not the JSON expected.
    #[error("not the record expected: {0}")]
    Json(#[from] serde_json::Error),
    /// A record of another type.
    #[error("record of type '{0}' is not an endpoint record; list the keys below v1/instances/")]
    Type(String),
    /// A name that cannot be part of a key.
    #[error("endpoint record with a bad name: {0}")]
    Name(#[from] NameError),
}

impl Record {
    /// Record that makes an endpoint callable.
    pub fn endpoint(endpoint: &EndpointInstance) -> Self {
        Self {
            key: format!("{INSTANCES}{}/{:x}", endpoint.name.key_part(), endpoint.instance),
            value: json(&Body::Endpoint(endpoint.into())),
        }
    }

    /// Record that makes a worker serve a model.
    pub fn model(entry: &ModelEntry<'_>) -> Self {
        let mut key = format!("{MODELS}{}/{:x}", entry.name.key_part(), entry.instance);
        if let Some(slug) = entry.lora_slug {
            key.push('/');
            key.push_str(slug);
        }
        let body = ModelBody {
            namespace: entry.name.namespace(),
            component: entry.name.component(),
            endpoint: entry.name.endpoint(),
            instance_id: entry.instance,
            card_json: entry.card,
            model_suffix: entry.lora_slug,
        };
        Self {
            key,
            value: json(&Body::Model(body)),
        }
    }

    /// Record that tells routers where to get a stream's events.
    pub fn event_channel(stream: &EventStream<'_>, address: &EventAddress) -> Self {
        let body = EventChannelBody {
            scope: Scope::of(stream.scope),
            topic: stream.topic,
            instance_id: stream.publisher,
            transport: address,
        };
        Self {
            key: stream.key(EVENT_CHANNELS),
            value: json(&Body::EventChannel(body)),
        }
    }

    /// Record that tells routers whose KV cache a stream describes, and where to ask for what they missed.
    pub fn event_source(
        stream: &EventStream<'_>,
        worker: InstanceId,
        rank: DpRank,
        recovery: Option<&EndpointInstance>,
    ) -> Self {
        let body = EventSourceBody {
            scope: Scope::of(stream.scope),
            topic: stream.topic,
            publisher_id: stream.publisher,
            metadata: SourceMetadata {
                kv_state_endpoint: ScopeName::of(stream.scope),
                worker: SourceWorker {
                    worker_id: worker,
                    dp_rank: rank,
                },
                publisher_id: stream.publisher,
                recovery_target: recovery.map(EndpointBody::from),
            },
        };
        Self {
            key: stream.key(EVENT_SOURCES),
            value: json(&Body::EventSource(body)),
        }
    }
}

impl EventAddress {
    /// Reads the address out of the value of an event channel record; unknown members are ignored.
    ///
    /// # Errors
    /// [`DecodeError::Json`] when the bytes are no such record.
    pub fn decode(value: &[u8]) -> Result<Self, DecodeError> {
        #[derive(Deserialize)]
        struct Channel {
            transport: EventAddress,
        }
        let Channel { transport } = serde_json::from_slice(value)?;
        Ok(transport)
    }
}

impl EventStream<'_> {
    fn key(&self, bucket: &str) -> String {
        let Self {
            scope,
            topic,
            publisher,
        } = self;
        format!(
            "{bucket}{}/topic/{}/{publisher:x}",
            scope.event_scope_path(),
            encode_segment(topic)
        )
    }
}

impl EndpointInstance {
    /// Reads the value of an endpoint record; unknown members are ignored.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are no such record.
    pub fn decode(value: &[u8]) -> Result<Self, DecodeError> {
        #[derive(Deserialize)]
        struct Tag {
            r#type: String,
        }
        let Tag { r#type } = serde_json::from_slice(value)?;
        if r#type != "Endpoint" {
            return Err(DecodeError::Type(r#type));
        }
        let body: EndpointBody<'_> = serde_json::from_slice(value)?;
        Ok(Self {
            name: EndpointName::new(body.namespace, body.component, body.endpoint)?,
            instance: body.instance_id,
            address: body.transport.into_owned(),
            device: body.device_type,
            codec: body.request_plane_codec,
        })
    }
}

fn json(body: &Body<'_>) -> Bytes {
    let text = serde_json::to_vec(body).expect("records hold only strings, integers and JSON text");
    Bytes::from(text)
}

#[derive(Serialize)]
#[serde(tag = "type")]
enum Body<'a> {
    Endpoint(EndpointBody<'a>),
    Model(ModelBody<'a>),
    EventChannel(EventChannelBody<'a>),
    EventSource(EventSourceBody<'a>),
}

#[derive(Serialize, Deserialize)]
struct EndpointBody<'a> {
    component: Cow<'a, str>,
    endpoint: Cow<'a, str>,
    namespace: Cow<'a, str>,
    instance_id: InstanceId,
    transport: Cow<'a, RequestAddress>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device_type: Option<DeviceType>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request_plane_codec: Option<Codec>,
}

impl<'a> From<&'a EndpointInstance> for EndpointBody<'a> {
    fn from(endpoint: &'a EndpointInstance) -> Self {
        Self {
            component: endpoint.name.component().into(),
            endpoint: endpoint.name.endpoint().into(),
            namespace: endpoint.name.namespace().into(),
            instance_id: endpoint.instance,
            transport: Cow::Borrowed(&endpoint.address),
            device_type: endpoint.device,
            request_plane_codec: endpoint.codec,
        }
    }
}

#[derive(Serialize)]
struct ModelBody<'a> {
    namespace: &'a str,
    component: &'a str,
    endpoint: &'a str,
    instance_id: InstanceId,
    card_json: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_suffix: Option<&'a str>,
}

#[derive(Serialize)]
struct EventChannelBody<'a> {
    scope: Scope<'a>,
    topic: &'a str,
    instance_id: u64,
    transport: &'a EventAddress,
}

#[derive(Serialize)]
struct EventSourceBody<'a> {
    scope: Scope<'a>,
    topic: &'a str,
    publisher_id: u64,
    metadata: SourceMetadata<'a>,
}

#[derive(Serialize)]
struct Scope<'a> {
    kind: &'static str,
    endpoint: ScopeName<'a>,
}

impl<'a> Scope<'a> {
    fn of(name: &'a EndpointName) -> Self {
        Self {
            kind: "endpoint",
            endpoint: ScopeName::of(name),
        }
    }
}

/// A name as event records write it: the third part is called `name`, not `endpoint`.
#[derive(Serialize)]
struct ScopeName<'a> {
    namespace: &'a str,
    component: &'a str,
    name: &'a str,
}

impl<'a> ScopeName<'a> {
    fn of(name: &'a EndpointName) -> Self {
        Self {
            namespace: name.namespace(),
            component: name.component(),
            name: name.endpoint(),
        }
    }
}

#[derive(Serialize)]
struct SourceMetadata<'a> {
    kv_state_endpoint: ScopeName<'a>,
    worker: SourceWorker,
    publisher_id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    recovery_target: Option<EndpointBody<'a>>,
}

#[derive(Serialize)]
struct SourceWorker {
    worker_id: InstanceId,
    dp_rank: DpRank,
}
