//! Whatever a peer sends, a decoder returns: it does not panic, overflow the stack, or read differently when the bytes
//! come in other pieces.

#![allow(clippy::unwrap_used)]

use bytes::BytesMut;
use ghostfleet::transport::discovery::EndpointName;
use ghostfleet::transport::discovery::record::EndpointInstance;
use ghostfleet::transport::event_plane::{envelope, recovery};
use ghostfleet::transport::request_plane::request::PreprocessedRequest;
use ghostfleet::transport::request_plane::tcp::frame;
use ghostfleet::transport::request_plane::{Codec, control, response, two_part};
use ghostfleet::types::RequestId;
use proptest::collection::vec;
use proptest::prelude::*;

const LIMIT: usize = 4096;

fn decode_everything(bytes: &[u8]) {
    let _ = frame::decode(&mut BytesMut::from(bytes), LIMIT);
    let _ = frame::is_complete(&BytesMut::from(bytes), LIMIT);
    if let Ok((header, data)) = two_part::split(bytes) {
        assert!(header.len() + data.len() <= bytes.len());
    }
    let _ = control::decode(bytes);
    let _ = response::decode_control(bytes);
    for codec in [Codec::Msgpack, Codec::Json] {
        if let Ok(request) = PreprocessedRequest::decode(codec, bytes) {
            let _ = request.into_engine_request(RequestId(1), "id");
        }
        let _ = recovery::Query::decode(codec, bytes);
    }
    let _ = envelope::decode(bytes);
    for parts in [0, 1, 4] {
        let frames: Vec<&[u8]> = bytes.chunks(bytes.len() / parts.max(1) + 1).collect();
        let _ = envelope::decode_frames(&frames);
    }
    let _ = EndpointInstance::decode(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = text.parse::<EndpointName>();
        let _ = control::parse_address(text);
    }
}

/// Well-formed input of every decoder.
fn samples() -> Vec<Vec<u8>> {
    let address = "127.0.0.1:37013".parse().unwrap();
    let control = control::encode("id-1", Codec::Msgpack, address, "subject-1");
    let json = serde_json::json!({
        "model": "m", "token_ids": [1, 2, 300, 70000], "eos_token_ids": [2], "annotations": [],
        "stop_conditions": {"max_tokens": 5, "min_tokens": null, "ignore_eos": true, "stop_token_ids_hidden": [2]},
        "routing": {"dp_rank": 1, "lora_name": "l", "cache_salt": "s", "priority": -3},
        "start_event_id": 1, "end_event_id": null, "worker_id": 1, "dp_rank": 0,
        "publisher_id": 7, "sequence": 1, "published_at": 2, "topic": "kv-events", "payload": [0],
    });
    let body = rmp_serde::to_vec_named(&json).unwrap();
    let mut payload = Vec::new();
    two_part::write(&mut payload, &control, &body);
    let mut request = Vec::new();
    frame::encode(&mut request, "2a/dynamo/backend/generate", "{}", &payload);
    let record = br#"{"type":"Endpoint","component":"backend","endpoint":"generate","namespace":"dynamo",
        "instance_id":42,"transport":{"tcp":"127.0.0.1:1/x"},"device_type":"cuda","request_plane_codec":"msgpack"}"#;
    vec![
        control,
        json.to_string().into_bytes(),
        body,
        payload,
        request,
        record.to_vec(),
    ]
}

/// One or more changes of a well-formed input: bytes replaced, put in, taken out, or the rest cut off.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), any::<u8>(), 0..4_u8);
    (prop::sample::select(samples()), vec(change, 1..8)).prop_map(|(mut bytes, changes)| {
        for (at, byte, kind) in changes {
            let at = at.index(bytes.len().max(1));
            match kind {
                _ if at >= bytes.len() => bytes.push(byte),
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 => drop(bytes.remove(at)),
                _ => bytes.truncate(at),
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_survived(bytes in vec(any::<u8>(), 0..600)) {
        decode_everything(&bytes);
    }

    #[test]
    fn damaged_messages_are_survived(bytes in mutated()) {
        decode_everything(&bytes);
    }

    #[test]
    fn frames_read_the_same_in_any_pieces(
        frames in vec((vec(any::<u8>(), 0..40), vec(any::<u8>(), 0..200)), 0..6),
        cuts in vec(any::<prop::sample::Index>(), 0..12),
        damage in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let mut stream = Vec::new();
        for (path, payload) in &frames {
            frame::encode(&mut stream, &String::from_utf8_lossy(path), "{}", payload);
        }
        if let Some((at, byte)) = damage.filter(|_| !stream.is_empty()) {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.sort_unstable();
        let whole = read_all([&stream[..]]);
        let pieces = (0..=cuts.len()).map(|piece| {
            let from = if piece == 0 { 0 } else { cuts[piece - 1] };
            &stream[from..cuts.get(piece).copied().unwrap_or(stream.len())]
        });
        prop_assert_eq!(read_all(pieces), whole);
    }
}

/// Frames read before the end or the first error, and that error.
fn read_all<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<frame::RequestFrame>, Option<frame::Oversized>) {
    let mut buffer = BytesMut::new();
    let mut frames = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let complete = frame::is_complete(&buffer, LIMIT);
            match frame::decode(&mut buffer, LIMIT) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => {
                    assert!(!complete);
                    break;
                }
                Err(error) => return (frames, Some(error)),
            }
            assert!(complete);
        }
    }
    (frames, None)
}

#[test]
fn nesting_without_end_is_survived_on_a_small_stack() {
    // A tokio thread has 2 MiB; a decoder that needs more than a quarter of it for one message is too hungry.
    let decode = || {
        let openings: [&[u8]; 8] = [
            b"[",
            b"{\"x\":",
            &[0x91],
            &[0x81, 0xa1, b'x'],
            &[0xdc, 0xff, 0xff],
            &[0xdd, 0xff, 0xff, 0xff, 0xff],
            &[0xdf, 0xff, 0xff, 0xff, 0xff, 0xa0],
            &[0xc7, 0xff, 0x01],
        ];
        for opening in openings {
            let nested = opening.repeat(100_000);
            decode_everything(&nested);
            decode_everything(&[&[0x82, 0xa1, b'x'], &nested[..]].concat());
            decode_everything(&[b"{\"x\":", &nested[..]].concat());
        }
    };
    let thread = std::thread::Builder::new()
        .stack_size(512 * 1024)
        .spawn(decode)
        .unwrap();
    thread.join().unwrap();
}
