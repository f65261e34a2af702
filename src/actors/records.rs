//! Which records a worker puts into discovery, and under which endpoint names it answers.

use serde_json::value::RawValue;

use super::plan::WorkerPlan;
use crate::transport::discovery::record::{DeviceType, EndpointInstance, EventAddress, EventStream, ModelEntry};
use crate::transport::discovery::{EndpointName, Record};
use crate::transport::event_plane::recovery::query_endpoint_name;
use crate::transport::event_plane::topic::Topic;
use crate::transport::event_plane::{PublisherId, durable};
use crate::transport::request_plane::plane::RequestPlane;
use crate::types::{DpRank, InstanceId};

/// One incarnation of a worker, as discovery sees it.
pub(super) struct Records<'a> {
    pub(super) plan: &'a WorkerPlan,
    pub(super) instance: InstanceId,
    /// What its endpoints are reached by.
    pub(super) requests: &'a RequestPlane,
    /// What it says of itself.
    pub(super) card: &'a RawValue,
}

/// One event stream, as discovery sees it.
#[derive(Debug, Clone)]
pub(super) struct StreamAt {
    pub(super) publisher: PublisherId,
    /// Where routers get it; `None`: they know without a record.
    pub(super) address: Option<EventAddress>,
}

impl Records<'_> {
    /// The instance and the cards of the model and its adapters: what makes a router send requests.
    pub(super) fn serving(&self) -> Vec<Record> {
        let group = &self.plan.group;
        let name = &group.endpoint;
        let model = |lora_slug, card| {
            Record::model(&ModelEntry {
                name,
                instance: self.instance,
                lora_slug,
                card,
            })
        };
        let mut records = vec![
            Record::endpoint(&self.endpoint_at(name.clone())),
            model(None, self.card),
        ];
        let adapters = group.adapters.iter();
        records.extend(adapters.map(|adapter| model(Some(adapter.slug.as_str()), &*adapter.card)));
        records
    }

    /// Channel, recovery endpoint and source of one rank's KV stream, in the order in which routers expect them.
    pub(super) fn kv_stream(&self, rank: DpRank, stream: &StreamAt) -> Vec<Record> {
        let query = self.endpoint_at(self.query_name(stream.publisher));
        let event_stream = self.event_stream(Topic::KvEvents, stream.publisher);
        let mut records = self.channel(Topic::KvEvents, stream);
        records.push(Record::endpoint(&query));
        records.push(Record::event_source(&event_stream, self.instance, rank, Some(&query)));
        records
    }

    /// Channel of the worker's forward passes.
    pub(super) fn forward_stream(&self, stream: &StreamAt) -> Vec<Record> {
        self.channel(Topic::ForwardPasses, stream)
    }

    /// Channel of the worker's load figures.
    pub(super) fn metrics_stream(&self, stream: &StreamAt) -> Vec<Record> {
        self.channel(Topic::KvMetrics, stream)
    }

    fn channel(&self, topic: Topic, stream: &StreamAt) -> Vec<Record> {
        if self.plan.group.durable_kv_events {
            return vec![durable::channel(&self.plan.group.endpoint, topic, stream.publisher)];
        }
        let event_stream = self.event_stream(topic, stream.publisher);
        let channel = stream.address.iter().map(|at| Record::event_channel(&event_stream, at));
        channel.collect()
    }

    /// Name of a rank's recovery endpoint.
    pub(super) fn query_name(&self, publisher: PublisherId) -> EndpointName {
        let name = self.plan.group.endpoint.sibling(query_endpoint_name(publisher));
        name.expect("a query endpoint's name is made of letters, digits and underscores")
    }

    fn event_stream(&self, topic: Topic, publisher: PublisherId) -> EventStream<'_> {
        EventStream {
            scope: &self.plan.group.endpoint,
            topic: topic.name(),
            publisher: publisher.get(),
        }
    }

    fn endpoint_at(&self, name: EndpointName) -> EndpointInstance {
        EndpointInstance {
            address: self.requests.address(&name, self.instance),
            name,
            instance: self.instance,
            device: Some(DeviceType::Cuda),
            codec: Some(self.plan.group.codec),
        }
    }
}
