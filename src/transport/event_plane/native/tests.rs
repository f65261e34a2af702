//! Bytes against those of a real server; see `tests/golden/vllm-server/README.md`.

use std::sync::Arc;

use serde_json::Value;

use super::*;

const RECORDED: &str = include_str!("../../../../tests/golden/vllm-server/kv-events-0.32.0.json");

fn recorded() -> Value {
    serde_json::from_str(RECORDED).expect("JSON")
}

fn unhex(text: &Value) -> Vec<u8> {
    crate::transport::event_plane::golden::unhex(text.as_str().expect("hex"))
}

fn hashes(event: &Value) -> Vec<SequenceHash> {
    let hashes = event["block_hashes"].as_array().expect("hashes");
    hashes
        .iter()
        .map(|hash| SequenceHash(hash.as_u64().expect("u64")))
        .collect()
}

/// The event that a recorded one describes.
fn event(recorded: &Value) -> NativeEvent {
    match recorded["type"].as_str() {
        Some("BlockStored") => NativeEvent::Stored {
            parent: recorded["parent_block_hash"].as_u64().map(SequenceHash),
            hashes: hashes(recorded),
            tokens: serde_json::from_value(recorded["token_ids"].clone()).expect("ids"),
            salt: HashSalt::default(),
        },
        Some("BlockRemoved") => NativeEvent::Removed {
            hashes: hashes(recorded),
        },
        other => panic!("unknown event {other:?}"),
    }
}

fn encoder(encoding: Encoding) -> BatchEncoder {
    BatchEncoder {
        encoding,
        block_size: 32,
        rank: DpRank(0),
    }
}

#[test]
fn batches_are_those_of_a_real_server_byte_for_byte() {
    let recorded = recorded();
    let mut kinds = [0, 0];
    for batch in recorded["batches"].as_array().expect("batches") {
        let decoded = &batch["decoded"];
        let events: Vec<_> = decoded[1].as_array().expect("events").iter().map(event).collect();
        for event in &events {
            kinds[usize::from(matches!(event, NativeEvent::Removed { .. }))] += 1;
        }
        let payload = unhex(&batch["frames_hex"][3]);
        // The JSON text of the time is rounded.
        let seconds = f64::from_be_bytes(payload[2..10].try_into().expect("8 bytes"));
        assert_eq!(encoder(Encoding::Map).batch(seconds, &events), payload);
    }
    assert!(kinds[0] > 4 && kinds[1] > 4, "{kinds:?}");
}

#[test]
fn replies_are_framed_like_those_of_a_real_server() {
    use super::replay::{Replay, ReplayRing};
    use crate::transport::event_plane::zmq::Service;

    let recorded = recorded();
    let ring = Arc::new(ReplayRing::new(Some(Bytes::from_static(b"kv-events"))));
    let batches: Vec<Vec<Vec<u8>>> = recorded["batches"]
        .as_array()
        .expect("batches")
        .iter()
        .map(|batch| {
            batch["frames_hex"]
                .as_array()
                .expect("frames")
                .iter()
                .map(unhex)
                .collect()
        })
        .collect();
    // The recording has the first batches without a hole.
    let first: Vec<_> = batches
        .iter()
        .zip(0_u64..)
        .take_while(|(frames, index)| frames[2] == index.to_be_bytes())
        .map(|(frames, _)| frames.clone())
        .collect();
    assert!(first.len() >= 4);
    for (frames, sequence) in first.iter().zip(0..) {
        ring.push(sequence, Bytes::copy_from_slice(&frames[3]));
    }
    let mut answer = Replay(ring).open(&[Vec::new(), vec![0; 8]]).expect("a request");
    for frames in first {
        assert_eq!(answer.next_message().expect("a batch"), frames);
    }
    let end: Vec<Vec<u8>> = recorded["end_marker_frames_hex"]
        .as_array()
        .expect("frames")
        .iter()
        .map(unhex)
        .collect();
    assert_eq!(answer.next_message().expect("the end"), end);
    assert_eq!(answer.next_message(), None);
}

#[test]
fn array_events_have_the_fields_of_map_events_in_order() {
    let stored = NativeEvent::Stored {
        parent: None,
        hashes: vec![SequenceHash(7), SequenceHash(8)],
        tokens: vec![1, 2, 3, 4],
        salt: HashSalt {
            lora_name: Some(Arc::from("l")),
            cache_salt: Some(Arc::from("t")),
        },
    };
    let removed = NativeEvent::Removed {
        hashes: vec![SequenceHash(8)],
    };
    let events = [removed, stored, NativeEvent::Cleared];
    let array: Value = rmp_serde::from_slice(&encoder(Encoding::Array).batch(1.5, &events)).expect("msgpack");
    assert_eq!(
        array,
        serde_json::json!([
            1.5,
            [
                ["BlockRemoved", [8], "GPU"],
                [
                    "BlockStored",
                    [7, 8],
                    null,
                    [1, 2, 3, 4],
                    32,
                    null,
                    "GPU",
                    "l",
                    [["l", "dynamo-cache-salt:t"], ["l"]]
                ],
                ["AllBlocksCleared"],
            ],
            0
        ])
    );
    let map: Value = rmp_serde::from_slice(&encoder(Encoding::Map).batch(1.5, &events)).expect("msgpack");
    assert_eq!(map[1][1]["extra_keys"], array[1][1][8]);
    assert_eq!(map[1][1]["lora_name"], "l");
    assert_eq!(map[1][2], serde_json::json!({"type": "AllBlocksCleared"}));
}

#[test]
fn sglang_events_are_positional_with_signed_hashes() {
    let stored = |parent, salt: HashSalt| NativeEvent::Stored {
        parent,
        hashes: vec![SequenceHash(u64::MAX - 4), SequenceHash(7)],
        tokens: vec![1, 2, 3, 4],
        salt,
    };
    let salted = HashSalt {
        cache_salt: Some("tenant-1".into()),
        ..HashSalt::default()
    };
    let removed = NativeEvent::Removed {
        hashes: vec![SequenceHash(u64::MAX)],
    };
    let events = [
        NativeEvent::Cleared,
        stored(None, HashSalt::default()),
        stored(Some(SequenceHash(1 << 63)), salted),
        removed,
    ];
    let encoder = BatchEncoder {
        block_size: 2,
        rank: DpRank(3),
        ..encoder(Encoding::Sglang)
    };
    let batch: Value = rmp_serde::from_slice(&encoder.batch(1.5, &events)).expect("msgpack");
    assert_eq!(
        batch,
        serde_json::json!([
            1.5,
            [
                ["AllBlocksCleared"],
                ["BlockStored", [-5, 7], null, [1, 2, 3, 4], 2, null, "GPU"],
                ["BlockStored", [-5, 7], i64::MIN, [1, 2, 3, 4], 2, null, "GPU", {"cache_salt": "tenant-1"}],
                ["BlockRemoved", [-1], "GPU"]
            ],
            3
        ])
    );
}
