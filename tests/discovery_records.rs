//! Discovery records are, byte for byte, those that Dynamo's own workers write.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use ghostfleet::transport::discovery::record::{
    DecodeError, DeviceType, EndpointInstance, EventAddress, EventStream, ModelEntry, RequestAddress,
};
use ghostfleet::transport::discovery::{EndpointName, Record};
use ghostfleet::transport::request_plane::Codec;
use ghostfleet::types::{DpRank, InstanceId};
use serde_json::value::RawValue;

#[derive(serde::Deserialize)]
struct Golden {
    key: String,
    value: String,
}

const WORKER: InstanceId = InstanceId(14_410_689_732_063_098_232);
const RANK_PUBLISHERS: [u64; 2] = [689_804_392_468_843, 6_518_454_023_868_400];

fn golden() -> BTreeMap<String, String> {
    let text = include_str!("golden/discovery/mocker-1.4.2.json");
    let records: Vec<Golden> = serde_json::from_str(text).unwrap();
    records.into_iter().map(|record| (record.key, record.value)).collect()
}

fn generate() -> EndpointName {
    "dyn://dynamo.backend.generate".parse().unwrap()
}

/// An endpoint of the recorded worker, with the two-part path that Dynamo 1.4.2 uses.
fn endpoint(name: &EndpointName) -> EndpointInstance {
    let address = format!("127.0.0.1:39527/{WORKER:x}/{}", name.endpoint());
    EndpointInstance {
        name: name.clone(),
        instance: WORKER,
        address: RequestAddress::Tcp(address),
        device: Some(DeviceType::Cuda),
        codec: Some(Codec::Msgpack),
    }
}

fn check(record: &Record) {
    let golden = golden();
    let expected = golden.get(&record.key);
    let expected = expected.unwrap_or_else(|| panic!("no recorded key {}, only {:#?}", record.key, golden.keys()));
    assert_eq!(std::str::from_utf8(&record.value).unwrap(), expected);
}

#[test]
fn endpoint_records_match_the_recorded_ones() {
    check(&Record::endpoint(&endpoint(&generate())));
    for publisher in RANK_PUBLISHERS {
        let query = generate()
            .sibling(format!("worker_kv_query_source_{publisher:x}"))
            .unwrap();
        check(&Record::endpoint(&endpoint(&query)));
    }
}

#[test]
fn the_model_record_wraps_the_card_unchanged() {
    #[derive(serde::Deserialize)]
    struct Model {
        card_json: Box<RawValue>,
    }
    let golden = golden();
    let recorded = golden.values().find(|value| value.contains("\"Model\"")).unwrap();
    let card = serde_json::from_str::<Model>(recorded).unwrap().card_json;
    let name = generate();
    let entry = ModelEntry {
        name: &name,
        instance: WORKER,
        lora_slug: None,
        card: &card,
    };
    check(&Record::model(&entry));

    let adapter = Record::model(&ModelEntry {
        lora_slug: Some("my-lora"),
        ..entry
    });
    assert_eq!(
        adapter.key,
        format!("v1/mdc/dynamo/backend/generate/{WORKER:x}/my-lora")
    );
    assert!(adapter.value.ends_with(br#","model_suffix":"my-lora"}"#));
}

#[test]
fn event_channel_records_match_the_recorded_ones() {
    let name = generate();
    let channels = [
        ("kv-events", RANK_PUBLISHERS[0], 39681),
        ("kv-events", RANK_PUBLISHERS[1], 43897),
        ("kv_metrics", 7_607_490_600_224_794, 40387),
        ("forward-pass-metrics", 3_733_275_499_028_269, 41523),
    ];
    for (topic, publisher, port) in channels {
        let stream = EventStream {
            scope: &name,
            topic,
            publisher,
        };
        let address = EventAddress::Zmq {
            endpoint: format!("tcp://192.0.2.2:{port}"),
        };
        check(&Record::event_channel(&stream, &address));
    }
}

#[test]
fn a_nats_channel_names_its_subject_prefix() {
    let name = generate();
    let stream = EventStream {
        scope: &name,
        topic: "kv-events",
        publisher: 1,
    };
    let address = EventAddress::Nats {
        subject_prefix: name.event_subject_prefix(),
    };
    let value: serde_json::Value = serde_json::from_slice(&Record::event_channel(&stream, &address).value).unwrap();
    let expected = serde_json::json!({
        "kind": "Nats",
        "config": {"subject_prefix": "namespace.dynamo.component.backend.endpoint.generate"},
    });
    assert_eq!(value["transport"], expected);
}

#[test]
fn event_source_records_match_the_recorded_ones() {
    let name = generate();
    for (rank, publisher) in (0..).zip(RANK_PUBLISHERS) {
        let stream = EventStream {
            scope: &name,
            topic: "kv-events",
            publisher,
        };
        let query = endpoint(&name.sibling(format!("worker_kv_query_source_{publisher:x}")).unwrap());
        check(&Record::event_source(&stream, WORKER, DpRank(rank), Some(&query)));

        let live_only = Record::event_source(&stream, WORKER, DpRank(rank), None);
        assert!(!live_only.value.windows(8).any(|text| text == b"recovery"));
    }
}

#[test]
fn recorded_endpoint_records_read_back() {
    let mut read = 0;
    for value in golden().values() {
        match EndpointInstance::decode(value.as_bytes()) {
            Ok(decoded) => {
                assert_eq!(Record::endpoint(&decoded).value, value.as_bytes());
                read += 1;
            }
            Err(DecodeError::Type(kind)) => assert_ne!(kind, "Endpoint"),
            Err(error) => panic!("{value}: {error}"),
        }
    }
    assert_eq!(read, 3);
}

#[test]
fn an_endpoint_record_may_lack_device_and_codec_and_have_more_than_we_know() {
    let value = br#"{"added":[1],"instance_id":18446744073709551600,"namespace":"n","component":"c","endpoint":"e",
        "type":"Endpoint","transport":{"nats_tcp":"n_c.e-fffffffffffffff0"}}"#;
    let decoded = EndpointInstance::decode(value).unwrap();
    assert_eq!(decoded.instance, InstanceId(u64::MAX - 15));
    assert_eq!(decoded.address, RequestAddress::Nats("n_c.e-fffffffffffffff0".into()));
    assert_eq!((decoded.device, decoded.codec), (None, None));
    let again = Record::endpoint(&decoded);
    assert_eq!(again.key, "v1/instances/n/c/e/fffffffffffffff0");
    assert!(!again.value.windows(4).any(|text| text == b"null"));
}

#[test]
fn what_is_no_endpoint_record_is_refused_with_a_reason() {
    for (value, reason) in [
        ("", "EOF"),
        ("[]", "invalid"),
        (r#"{"type":"Model"}"#, "record of type 'Model'"),
        (r#"{"type":"Endpoint"}"#, "missing field"),
        (
            r#"{"type":"Endpoint","namespace":"a/b","component":"c","endpoint":"e","instance_id":1,"transport":{"tcp":"x"}}"#,
            "namespace 'a/b'",
        ),
        (
            r#"{"type":"Endpoint","namespace":"n","component":"c","endpoint":"e","instance_id":-1,"transport":{"tcp":"x"}}"#,
            "invalid value",
        ),
        (
            r#"{"type":"Endpoint","namespace":"n","component":"c","endpoint":"e","instance_id":1,"transport":{"udp":"x"}}"#,
            "unknown variant",
        ),
    ] {
        let error = EndpointInstance::decode(value.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(reason), "{value}: {error}");
    }
}
