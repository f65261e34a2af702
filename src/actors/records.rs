//! Which records a worker puts into discovery, and under which endpoint paths it answers.

use std::net::SocketAddr;

use super::plan::WorkerPlan;
use crate::transport::discovery::Record;
use crate::transport::discovery::record::{
    DeviceType, EndpointInstance, EventAddress, EventStream, ModelEntry, RequestAddress,
};
use crate::transport::event_plane::PublisherId;
use crate::transport::event_plane::recovery::query_endpoint_name;
use crate::transport::event_plane::topic::Topic;
use crate::transport::request_plane::Codec;
use crate::types::{DpRank, InstanceId};

/// One incarnation of a worker, as discovery sees it.
pub(super) struct Records<'a> {
    pub(super) plan: &'a WorkerPlan,
    pub(super) instance: InstanceId,
    /// Advertised address of the request listener.
    pub(super) requests: SocketAddr,
}

/// One event stream, as discovery sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamAt {
    pub(super) publisher: PublisherId,
    /// Advertised address of the PUB socket.
    pub(super) address: SocketAddr,
}

impl Records<'_> {
    /// Path of `generate`.
    pub(super) fn generate_path(&self) -> String {
        self.plan.group.endpoint.request_path(self.instance)
    }

    /// Path of a rank's recovery endpoint.
    pub(super) fn query_path(&self, publisher: PublisherId) -> String {
        self.query_endpoint(publisher).name.request_path(self.instance)
    }

    /// The instance and the card: what makes a router send requests.
    pub(super) fn serving(&self) -> Vec<Record> {
        let group = &self.plan.group;
        let name = &group.endpoint;
        vec![
            Record::endpoint(&self.endpoint_at(name.clone(), &self.generate_path())),
            Record::model(&ModelEntry {
                name,
                instance: self.instance,
                lora_slug: None,
                card: &group.card,
            }),
        ]
    }

    /// Channel, recovery endpoint and source of one rank's KV stream, in the order in which routers expect them.
    pub(super) fn kv_stream(&self, rank: DpRank, stream: StreamAt) -> Vec<Record> {
        let query = self.query_endpoint(stream.publisher);
        let event_stream = self.event_stream(Topic::KvEvents, stream.publisher);
        vec![
            Record::event_channel(&event_stream, &zmq(stream.address)),
            Record::endpoint(&query),
            Record::event_source(&event_stream, self.instance, rank, Some(&query)),
        ]
    }

    /// Channel of the worker's load figures.
    pub(super) fn metrics_stream(&self, stream: StreamAt) -> Vec<Record> {
        vec![Record::event_channel(
            &self.event_stream(Topic::KvMetrics, stream.publisher),
            &zmq(stream.address),
        )]
    }

    fn event_stream(&self, topic: Topic, publisher: PublisherId) -> EventStream<'_> {
        EventStream {
            scope: &self.plan.group.endpoint,
            topic: topic.name(),
            publisher: publisher.get(),
        }
    }

    fn query_endpoint(&self, publisher: PublisherId) -> EndpointInstance {
        let name = self.plan.group.endpoint.sibling(query_endpoint_name(publisher));
        let name = name.expect("a query endpoint's name is made of letters, digits and underscores");
        let path = name.request_path(self.instance);
        self.endpoint_at(name, &path)
    }

    fn endpoint_at(&self, name: crate::transport::discovery::EndpointName, path: &str) -> EndpointInstance {
        EndpointInstance {
            name,
            instance: self.instance,
            address: RequestAddress::Tcp(format!("{}/{path}", self.requests)),
            device: Some(DeviceType::Cuda),
            codec: Some(Codec::Msgpack),
        }
    }
}

fn zmq(address: SocketAddr) -> EventAddress {
    EventAddress::Zmq {
        endpoint: format!("tcp://{address}"),
    }
}
