//! What surrounds every payload: the msgpack envelope and the four ZMQ frames that carry it.
//!
//! Envelope, a map of five keys:
//!
//! | Key | Type | Meaning |
//! |---|---|---|
//! | `publisher_id` | uint | one incarnation of a stream |
//! | `sequence` | uint | per publisher, from 0, one per message |
//! | `published_at` | uint | Unix time, milliseconds |
//! | `topic` | str | bare topic |
//! | `payload` | bin | msgpack of the payload |
//!
//! Frames of a ZMQ message:
//!
//! | Frame | Bytes |
//! |---|---|
//! | 0 | direct: bare topic; brokered: full subject |
//! | 1 | publisher id, u64 big-endian |
//! | 2 | sequence, u64 big-endian |
//! | 3 | `01`, u32 big-endian length of the envelope, envelope |
//!
//! Source: Dynamo 1.4.2 and 1.6.1.

use bytes::Bytes;
use rmp::decode;

use super::PublisherId;
use super::msgpack::{put_bin, put_str, put_uint};

const VERSION: u8 = 1;
const HEADER_BYTES: usize = 5;

/// One message of a publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// Which incarnation of the stream.
    pub publisher_id: PublisherId,
    /// Position in the stream, from 0.
    pub sequence: u64,
    /// Unix time in milliseconds.
    pub published_at_ms: u64,
    /// Bare topic.
    pub topic: &'a str,
    /// Encoded payload.
    pub payload: &'a [u8],
}

/// Why a message was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Not four frames.
    #[error("message of {0} frames, expected 4")]
    FrameCount(usize),
    /// An id frame of the wrong size.
    #[error("{name} frame of {len} bytes, expected 8")]
    IdFrame {
        /// Which one.
        name: &'static str,
        /// Its size in bytes.
        len: usize,
    },
    /// Frame 3 is shorter than its header.
    #[error("envelope frame of {0} bytes is shorter than its 5-byte header")]
    Header(usize),
    /// Unknown frame version.
    #[error("envelope frame version {0}, expected 1")]
    Version(u8),
    /// The announced length exceeds the frame.
    #[error("envelope of {announced} bytes announced, {available} present")]
    Length {
        /// Length in the header.
        announced: u32,
        /// Bytes after the header.
        available: usize,
    },
    /// Frame and envelope name different messages.
    #[error("frame says {name} {frame}, envelope says {envelope}")]
    Identity {
        /// Which field.
        name: &'static str,
        /// Value in the frame.
        frame: u64,
        /// Value in the envelope.
        envelope: u64,
    },
    /// The envelope is not the expected map.
    #[error("envelope {0}")]
    Malformed(&'static str),
}

/// Appends the envelope to `out`.
pub fn encode(out: &mut Vec<u8>, envelope: &Envelope<'_>) {
    // 66 bytes of keys and markers, three integers of at most 9 bytes.
    out.reserve(100 + envelope.topic.len() + envelope.payload.len());
    out.extend_from_slice(b"\x85\xacpublisher_id");
    put_uint(out, envelope.publisher_id.get());
    out.extend_from_slice(b"\xa8sequence");
    put_uint(out, envelope.sequence);
    out.extend_from_slice(b"\xacpublished_at");
    put_uint(out, envelope.published_at_ms);
    out.extend_from_slice(b"\xa5topic");
    put_str(out, envelope.topic);
    out.extend_from_slice(b"\xa7payload");
    put_bin(out, envelope.payload);
}

/// Reads an envelope. Keys may come in any order; each must be there once, others may not be there.
pub fn decode(bytes: &[u8]) -> Result<Envelope<'_>, EnvelopeError> {
    let mut rest = bytes;
    let entries = decode::read_map_len(&mut rest).map_err(|_| EnvelopeError::Malformed("is not a map"))?;
    if entries != 5 {
        return Err(EnvelopeError::Malformed("does not have exactly 5 keys"));
    }
    let (mut publisher_id, mut sequence, mut published_at_ms, mut topic, mut payload) = (None, None, None, None, None);
    for _ in 0..entries {
        match take_str(&mut rest)? {
            "publisher_id" => publisher_id = Some(take_uint(&mut rest)?),
            "sequence" => sequence = Some(take_uint(&mut rest)?),
            "published_at" => published_at_ms = Some(take_uint(&mut rest)?),
            "topic" => topic = Some(take_str(&mut rest)?),
            "payload" => payload = Some(take_bin(&mut rest)?),
            _ => return Err(EnvelopeError::Malformed("has an unknown key")),
        }
    }
    if !rest.is_empty() {
        return Err(EnvelopeError::Malformed("is followed by stray bytes"));
    }
    let (Some(publisher_id), Some(sequence), Some(published_at_ms), Some(topic), Some(payload)) =
        (publisher_id, sequence, published_at_ms, topic, payload)
    else {
        return Err(EnvelopeError::Malformed("repeats a key"));
    };
    Ok(Envelope {
        publisher_id: PublisherId::new(publisher_id)
            .ok_or(EnvelopeError::Malformed("has a publisher_id of 2^53 or more"))?,
        sequence,
        published_at_ms,
        topic,
        payload,
    })
}

fn take_str<'a>(rest: &mut &'a [u8]) -> Result<&'a str, EnvelopeError> {
    let (text, after) =
        decode::read_str_from_slice(*rest).map_err(|_| EnvelopeError::Malformed("has no string where one belongs"))?;
    *rest = after;
    Ok(text)
}

fn take_uint(rest: &mut &[u8]) -> Result<u64, EnvelopeError> {
    decode::read_int(rest).map_err(|_| EnvelopeError::Malformed("has no unsigned integer where one belongs"))
}

fn take_bin<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], EnvelopeError> {
    let len = decode::read_bin_len(rest).map_err(|_| EnvelopeError::Malformed("has a payload that is not bin"))?;
    let (payload, after) = usize::try_from(len)
        .ok()
        .and_then(|len| rest.split_at_checked(len))
        .ok_or(EnvelopeError::Malformed("has a truncated payload"))?;
    *rest = after;
    Ok(payload)
}

/// Makes the four frames; `topic_frame` is the bare topic on direct ZMQ and the subject at a broker.
///
/// # Panics
/// When the envelope is 4 GiB or larger; payloads are bounded far below.
pub fn encode_frames(topic_frame: Bytes, envelope: &Envelope<'_>) -> [Bytes; 4] {
    let mut body = Vec::with_capacity(HEADER_BYTES + 100 + envelope.topic.len() + envelope.payload.len());
    body.extend_from_slice(&[VERSION, 0, 0, 0, 0]);
    encode(&mut body, envelope);
    let len = u32::try_from(body.len() - HEADER_BYTES).expect("an envelope is smaller than 4 GiB");
    body[1..HEADER_BYTES].copy_from_slice(&len.to_be_bytes());
    [
        topic_frame,
        Bytes::copy_from_slice(&envelope.publisher_id.get().to_be_bytes()),
        Bytes::copy_from_slice(&envelope.sequence.to_be_bytes()),
        Bytes::from(body),
    ]
}

/// Reads the frames of one ZMQ message: the topic frame and the envelope, whose ids agree with the frames. Bytes after
/// the envelope are ignored, as routers do.
pub fn decode_frames<F: AsRef<[u8]>>(frames: &[F]) -> Result<(&[u8], Envelope<'_>), EnvelopeError> {
    let [topic_frame, publisher_frame, sequence_frame, body] = frames else {
        return Err(EnvelopeError::FrameCount(frames.len()));
    };
    let publisher_id = id_frame("publisher id", publisher_frame.as_ref())?;
    let sequence = id_frame("sequence", sequence_frame.as_ref())?;
    let body = body.as_ref();
    let Some((&[version, l0, l1, l2, l3], rest)) = body.split_first_chunk::<HEADER_BYTES>() else {
        return Err(EnvelopeError::Header(body.len()));
    };
    if version != VERSION {
        return Err(EnvelopeError::Version(version));
    }
    let announced = u32::from_be_bytes([l0, l1, l2, l3]);
    let encoded = usize::try_from(announced)
        .ok()
        .and_then(|len| rest.get(..len))
        .ok_or(EnvelopeError::Length {
            announced,
            available: rest.len(),
        })?;
    let envelope = decode(encoded)?;
    for (name, frame, inner) in [
        ("publisher id", publisher_id, envelope.publisher_id.get()),
        ("sequence", sequence, envelope.sequence),
    ] {
        if frame != inner {
            return Err(EnvelopeError::Identity {
                name,
                frame,
                envelope: inner,
            });
        }
    }
    Ok((topic_frame.as_ref(), envelope))
}

fn id_frame(name: &'static str, frame: &[u8]) -> Result<u64, EnvelopeError> {
    frame
        .try_into()
        .map(u64::from_be_bytes)
        .map_err(|_| EnvelopeError::IdFrame { name, len: frame.len() })
}

#[cfg(test)]
mod tests {
    use super::super::golden::{STORED_FRAME, STORED_PAYLOAD, unhex};
    use super::*;

    fn recorded(payload: &[u8]) -> Envelope<'_> {
        Envelope {
            publisher_id: PublisherId::new(0x0012_a48c_263d_cd7e).expect("below 2^53"),
            sequence: 0,
            published_at_ms: 0x0000_01a2_2a99_543b,
            topic: "kv-events",
            payload,
        }
    }

    fn frames() -> Vec<Vec<u8>> {
        vec![
            b"kv-events".to_vec(),
            unhex("0012a48c263dcd7e"),
            vec![0; 8],
            unhex(STORED_FRAME),
        ]
    }

    #[test]
    fn frames_equal_those_recorded_from_a_real_publisher() {
        let payload = unhex(STORED_PAYLOAD);
        let made = encode_frames(Bytes::from_static(b"kv-events"), &recorded(&payload));
        assert_eq!(made.to_vec(), frames());
    }

    #[test]
    fn recorded_frames_decode_to_the_envelope() {
        let payload = unhex(STORED_PAYLOAD);
        let frames = frames();
        assert_eq!(decode_frames(&frames), Ok((&b"kv-events"[..], recorded(&payload))));
    }

    #[test]
    fn bytes_after_the_envelope_are_ignored() {
        let mut frames = frames();
        frames[3].push(7);
        assert!(decode_frames(&frames).is_ok());
    }

    #[test]
    fn wrong_frames_are_told_apart() {
        let with = |index: usize, bytes: Vec<u8>| {
            let mut frames = frames();
            frames[index] = bytes;
            decode_frames(&frames).expect_err("broken")
        };
        let good = unhex(STORED_FRAME);
        assert_eq!(decode_frames(&frames()[..3]), Err(EnvelopeError::FrameCount(3)));
        assert_eq!(
            with(1, vec![0; 7]),
            EnvelopeError::IdFrame {
                name: "publisher id",
                len: 7
            }
        );
        assert_eq!(
            with(2, vec![]),
            EnvelopeError::IdFrame {
                name: "sequence",
                len: 0
            }
        );
        assert_eq!(with(3, good[..4].to_vec()), EnvelopeError::Header(4));
        assert_eq!(with(3, [&[2], &good[1..]].concat()), EnvelopeError::Version(2));
        assert_eq!(
            with(3, good[..good.len() - 1].to_vec()),
            EnvelopeError::Length {
                announced: 321,
                available: 320
            }
        );
        assert_eq!(
            with(2, 9_u64.to_be_bytes().to_vec()),
            EnvelopeError::Identity {
                name: "sequence",
                frame: 9,
                envelope: 0
            }
        );
    }

    #[test]
    fn every_truncation_of_an_envelope_is_refused() {
        let envelope = unhex(STORED_FRAME).split_off(HEADER_BYTES);
        for len in 0..envelope.len() {
            assert!(decode(&envelope[..len]).is_err(), "{len} bytes");
        }
        assert!(decode(&[&envelope[..], &[0]].concat()).is_err(), "stray byte");
    }

    #[test]
    fn envelope_with_other_keys_is_refused() {
        let mut renamed = unhex(STORED_FRAME).split_off(HEADER_BYTES);
        renamed[2] = b'q';
        assert_eq!(decode(&renamed), Err(EnvelopeError::Malformed("has an unknown key")));
        let mut repeated = vec![0x85];
        for _ in 0..5 {
            repeated.extend_from_slice(b"\xa8sequence\x00");
        }
        assert_eq!(decode(&repeated), Err(EnvelopeError::Malformed("repeats a key")));
        assert_eq!(
            decode(b"\x80"),
            Err(EnvelopeError::Malformed("does not have exactly 5 keys"))
        );
        assert_eq!(decode(b"\x90"), Err(EnvelopeError::Malformed("is not a map")));
    }
}
