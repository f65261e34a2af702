//! KV events as Dynamo up to 1.3 took them from `JetStream`: one message per event, JSON, no envelope. There is no recovery
//! endpoint in that mode; a late router replays the stream, or begins with a snapshot that another one has left.
//!
//! | Thing | Form |
//! |---|---|
//! | stream | `namespace-<n>-component-<c>-kv-events`, lower case, everything but letters, digits and `-` as `-` |
//! | subject | `<stream>.kv-events` |
//! | message | one router event as in [`super::kv_event`], without `residency_domain` |
//!
//! What does not go through `JetStream` is published as later releases do it, in the scopes of 1.3: load figures under
//! `namespace.<n>`, forward passes under `namespace.<n>.component.<c>`, with channel records that have these scopes.
//!
//! Snapshots are the routers' own: they put them into the object store `namespace-<n>-component-<c>-radix-bucket` and
//! purge the stream up to there. Source: Dynamo 1.3.1, observed on the wire.

use bytes::Bytes;
use serde_json::Value;

use super::PublisherId;
use super::topic::Topic;
use crate::transport::discovery::record::{EVENT_CHANNELS, EventAddress};
use crate::transport::discovery::{EndpointName, Record};

/// Stream of the events of a component's workers.
pub fn stream_name(scope: &EndpointName) -> String {
    let name = format!(
        "namespace-{}-component-{}-{}",
        scope.namespace(),
        scope.component(),
        Topic::KvEvents.name()
    );
    let keep = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    name.to_lowercase().chars().map(keep).collect()
}

/// Subject of their messages.
pub fn subject(scope: &EndpointName) -> String {
    format!("{}.{}", stream_name(scope), Topic::KvEvents.name())
}

/// Component in whose scope a topic is published; empty: in that of the namespace.
fn component(scope: &EndpointName, topic: Topic) -> &str {
    match topic {
        Topic::KvMetrics => "",
        Topic::KvEvents | Topic::ForwardPasses => scope.component(),
    }
}

/// What subjects of a topic that does not go through `JetStream` begin with.
pub fn live_prefix(scope: &EndpointName, topic: Topic) -> String {
    match component(scope, topic) {
        "" => format!("namespace.{}", scope.namespace()),
        component => format!("namespace.{}.component.{component}", scope.namespace()),
    }
}

/// Subject of such a topic.
pub fn live_subject(scope: &EndpointName, topic: Topic) -> String {
    format!("{}.{}", live_prefix(scope, topic), topic.name())
}

/// Record that tells routers of Dynamo 1.3 where to get the messages of such a topic.
pub fn channel(scope: &EndpointName, topic: Topic, publisher: PublisherId) -> Record {
    let (namespace, component, name) = (scope.namespace(), component(scope, topic), topic.name());
    let address = EventAddress::Nats {
        subject_prefix: live_prefix(scope, topic),
    };
    let value = serde_json::json!({
        "type": "EventChannel", "namespace": namespace, "component": component, "topic": name,
        "instance_id": publisher.get(), "transport": address,
    });
    Record {
        key: format!("{EVENT_CHANNELS}{namespace}/{component}/{name}/{publisher:x}"),
        value: value.to_string().into(),
    }
}

/// The messages that say what a payload of topic `kv-events` says.
pub(super) fn messages(payload: &[u8]) -> Vec<Bytes> {
    // Our own encoder wrote it; what it cannot read is worth a line in the log all the same.
    let events: Vec<Value> = match rmp_serde::from_slice(payload) {
        Ok(events) => events,
        Err(error) => {
            tracing::error!(%error, "KV events that cannot be told to JetStream");
            return Vec::new();
        }
    };
    let told = events.into_iter().map(|mut event| {
        if let Some(event) = event.as_object_mut() {
            event.remove("residency_domain");
        }
        Bytes::from(event.to_string())
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use super::super::golden::{CLEARED_PAYLOAD, REMOVED_PAYLOAD, unhex};
    use super::super::kv_event::encode_batch;
    use super::*;
    use crate::types::{DpRank, InstanceId, KvEvent, LocalHash, SequenceHash, StoredBlock};

    /// Recorded from the stream of a Dynamo 1.3.1 worker.
    const RECORDED: &str = r#"{"worker_id":2228897169411639789,"storage_tier":"device","event":{"event_id":1,"data":{"stored":{"parent_hash":null,"start_position":null,"blocks":[{"block_hash":14643705804678351452,"tokens_hash":14643705804678351452,"mm_extra_info":null},{"block_hash":4945711292740353085,"tokens_hash":16777012769546811212,"mm_extra_info":null}]}},"dp_rank":0}}"#;

    fn read(message: &Bytes) -> Value {
        serde_json::from_slice(message).expect("JSON")
    }

    #[test]
    fn a_stored_event_says_what_the_recorded_one_says() {
        let blocks = [
            (14_643_705_804_678_351_452, 14_643_705_804_678_351_452),
            (4_945_711_292_740_353_085, 16_777_012_769_546_811_212),
        ];
        let event = KvEvent::Stored {
            parent: None,
            blocks: blocks
                .map(|(block, tokens)| StoredBlock {
                    block_hash: SequenceHash(block),
                    tokens_hash: LocalHash(tokens),
                })
                .to_vec(),
        };
        let mut payload = Vec::new();
        encode_batch(
            &mut payload,
            InstanceId(2_228_897_169_411_639_789),
            DpRank(0),
            1,
            &[event],
        );
        let recorded: Value = serde_json::from_str(RECORDED).expect("JSON");
        assert_eq!(messages(&payload).iter().map(read).collect::<Vec<_>>(), [recorded]);
    }

    #[test]
    fn every_event_of_a_payload_is_a_message_of_its_own() {
        for payload in [REMOVED_PAYLOAD, CLEARED_PAYLOAD] {
            let told = messages(&unhex(payload));
            assert_eq!(told.len(), 1);
            assert!(read(&told[0]).get("residency_domain").is_none());
        }
        let mut payload = Vec::new();
        let events = [KvEvent::Cleared, KvEvent::Cleared, KvEvent::Cleared];
        encode_batch(&mut payload, InstanceId(1), DpRank(2), 7, &events);
        let told = messages(&payload);
        let ids = told.iter().map(|told| read(told)["event"]["event_id"].as_u64());
        assert_eq!(ids.collect::<Option<Vec<_>>>().expect("ids"), [7, 8, 9]);
        assert!(messages(b"\xc1").is_empty());
    }

    /// Recorded from a Dynamo 1.3.1 worker: keys of its records, decoded, and their values.
    const CHANNELS: [(Topic, &str, &str); 2] = [
        (
            Topic::KvMetrics,
            "v1/event_channels/dynamo//kv_metrics/12e3a6fc46d5b563",
            r#"{"type":"EventChannel","namespace":"dynamo","component":"","topic":"kv_metrics","instance_id":1361115114846401891,"transport":{"kind":"Nats","config":{"subject_prefix":"namespace.dynamo"}}}"#,
        ),
        (
            Topic::ForwardPasses,
            "v1/event_channels/dynamo/backend/forward-pass-metrics/4606d72df2da35d0",
            r#"{"type":"EventChannel","namespace":"dynamo","component":"backend","topic":"forward-pass-metrics","instance_id":5045957024863106512,"transport":{"kind":"Nats","config":{"subject_prefix":"namespace.dynamo.component.backend"}}}"#,
        ),
    ];

    #[test]
    fn load_figures_and_forward_passes_have_the_scopes_that_dynamo_gives_them() {
        let scope: EndpointName = "dyn://dynamo.backend.generate".parse().expect("a name");
        assert_eq!(live_subject(&scope, Topic::KvMetrics), "namespace.dynamo.kv_metrics");
        assert_eq!(
            live_subject(&scope, Topic::ForwardPasses),
            "namespace.dynamo.component.backend.forward-pass-metrics"
        );
        for (topic, key, value) in CHANNELS {
            let recorded: Value = serde_json::from_str(value).expect("JSON");
            let id = recorded["instance_id"].as_u64().expect("an id");
            // Ids of 1.3 have 64 bits; ours have fewer.
            let publisher = PublisherId::new(id & ((1 << 53) - 1)).expect("53 bits");
            let record = channel(&scope, topic, publisher);
            let mut told = read(&record.value);
            assert_eq!(told["instance_id"], publisher.get());
            told["instance_id"] = id.into();
            assert_eq!(told, recorded);
            assert_eq!(
                record.key.rsplit_once('/').map(|(key, _)| key),
                key.rsplit_once('/').map(|(key, _)| key)
            );
        }
    }

    #[test]
    fn streams_are_named_as_dynamo_names_them() {
        let scope: EndpointName = "dyn://My_Space.back_end.generate".parse().expect("a name");
        assert_eq!(stream_name(&scope), "namespace-my-space-component-back-end-kv-events");
        assert_eq!(
            subject(&scope),
            "namespace-my-space-component-back-end-kv-events.kv-events"
        );
    }
}
