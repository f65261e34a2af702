//! Bytes of the rendezvous.
//!
//! | Part | Bytes |
//! |---|---|
//! | header, decode to prefill | `DMHF`, u16 LE version 1, u16 LE flags 0 |
//! | frame, both ways | u32 LE length (1 to 65536), JSON `{"identity":{..},"message":M}` |
//!
//! Source: Dynamo 1.6.1 and 1.4.2; the messages in the tests were recorded between two workers of 1.4.2.

use bytes::{Buf, BytesMut};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Identity;

/// First bytes of a connection.
pub const HEADER: [u8; 8] = *b"DMHF\x01\x00\x00\x00";

/// Longest JSON of a frame.
pub const MAX_FRAME_BYTES: usize = 65_536;

/// Who is first to do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// The prompt is computed, then the destination sets blocks aside (vLLM).
    SourceFirst,
    /// The destination sets blocks aside, then the prompt is computed (SGLang).
    DestinationFirst,
}

/// Side of a participant; only destinations dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// The decode worker.
    Destination,
}

/// First message of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register {
    /// Side.
    pub role: Role,
    /// Data-parallel rank.
    pub dp_rank: u32,
    /// Order of its engine.
    pub order: Order,
    /// `vllm` or `sglang`.
    pub engine_type: String,
}

/// Which tokens a transfer is charged for, as the wire names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimingMode {
    /// The whole prompt.
    FullPrompt,
    /// Those that the destination does not have.
    DestinationMissing,
}

/// What the source knows of the transfer's length.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TransferTiming {
    /// Which tokens count.
    pub mode: TimingMode,
    /// Length of the prompt.
    pub full_prompt_tokens: u32,
    /// Bytes of KV per token, if known.
    pub kv_bytes_per_token: Option<u64>,
    /// GB/s, if limited.
    pub bandwidth_gb_s: Option<f64>,
}

/// What has become true at one side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Fact {
    /// The prompt is computed and kept.
    SourceHeld {
        /// Which handoff.
        handoff_id: Uuid,
        /// Of its transfer.
        transfer_timing: TransferTiming,
    },
    /// Blocks are set aside.
    DestinationReserved {
        /// Which handoff.
        handoff_id: Uuid,
        /// Tokens of the blocks that have to be filled.
        transferable_prompt_tokens: u32,
    },
}

/// What the source asks of the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Set blocks aside.
    ReserveDestination {
        /// Which handoff.
        handoff_id: Uuid,
    },
    /// The KV is there.
    ActivateDestination {
        /// Which handoff.
        handoff_id: Uuid,
    },
    /// Drop it.
    CancelDestination {
        /// Which handoff.
        handoff_id: Uuid,
    },
}

/// A numbered command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// Number within the handoff; local actions of the source count too.
    pub id: u32,
    /// What to do.
    pub action: Command,
}

/// How a command went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Will be done; a fact follows.
    Accepted,
    /// Is done.
    Applied,
    /// There was nothing to do it to.
    Noop,
    /// Cannot be done.
    Failed(String),
}

/// Answer to a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionAck {
    /// Which command.
    pub action_id: u32,
    /// How it went.
    pub outcome: Outcome,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// The destination says who it is.
    Register(Register),
    /// It is known.
    Registered,
    /// Something is true now.
    Fact(Fact),
    /// Do something.
    Action(Action),
    /// How it went.
    ActionAck(ActionAck),
    /// The handoff is over, and well.
    Complete,
    /// The handoff is over, and not well.
    Abort {
        /// Why.
        message: String,
    },
    /// Too many handoffs already.
    Overloaded,
    /// The other side broke the protocol.
    ProtocolError {
        /// How.
        message: String,
    },
}

/// One frame's JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// Which handoff.
    pub identity: Identity,
    /// What is said.
    pub message: Message,
}

/// A frame that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Not the protocol, or not this version of it.
    #[error("connection does not open with the rendezvous header of version 1")]
    Header,
    /// Length out of range.
    #[error("frame of {0} bytes; 1 to {MAX_FRAME_BYTES} are allowed")]
    Length(u32),
    /// No message.
    #[error("malformed message: {0}")]
    Json(String),
}

/// Most characters of a peer's text that are kept.
const MAX_TEXT_CHARS: usize = 512;

/// Appends a frame.
pub fn encode(out: &mut Vec<u8>, envelope: &Envelope) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    let written = serde_json::to_writer(&mut *out, envelope);
    debug_assert!(written.is_ok(), "plain data with string keys is JSON");
    let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Takes a complete frame off the front of `buffer`; `None`: more bytes are needed.
///
/// # Errors
/// [`WireError`]; the connection is of no use any more.
pub fn decode(buffer: &mut BytesMut) -> Result<Option<Envelope>, WireError> {
    let Some(length) = buffer.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*length);
    let bytes = usize::try_from(length).unwrap_or(usize::MAX);
    if bytes == 0 || bytes > MAX_FRAME_BYTES {
        return Err(WireError::Length(length));
    }
    if buffer.len() < 4 + bytes {
        return Ok(None);
    }
    buffer.advance(4);
    let json = buffer.split_to(bytes);
    let envelope: Envelope = serde_json::from_slice(&json).map_err(|error| WireError::Json(error.to_string()))?;
    Ok(Some(clipped(envelope)))
}

/// A peer's words go into errors, logs and answers to it: a few lines of them are enough.
fn clipped(mut envelope: Envelope) -> Envelope {
    let text = match &mut envelope.message {
        Message::Abort { message } | Message::ProtocolError { message } => message,
        Message::ActionAck(ActionAck {
            outcome: Outcome::Failed(why),
            ..
        }) => why,
        Message::Register(Register { engine_type, .. }) => engine_type,
        Message::Registered
        | Message::Fact(_)
        | Message::Action(_)
        | Message::ActionAck(_)
        | Message::Complete
        | Message::Overloaded => return envelope,
    };
    if let Some((end, _)) = text.char_indices().nth(MAX_TEXT_CHARS) {
        text.truncate(end);
    }
    envelope
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: &str = r#"{"handoff_id":"df69fc77-7451-4e05-9564-0f922cea424e","bootstrap_room":2878841286147259991,"request_id":"e3847ce8-5756-42ff-a5e8-d3dbec4d9d6b"}"#;

    fn identity() -> Identity {
        serde_json::from_str(IDENTITY).unwrap()
    }

    fn recorded() -> Vec<(&'static str, Message)> {
        let handoff_id = identity().handoff_id;
        vec![
            (
                r#"{"Register":{"role":"Destination","dp_rank":0,"order":"SourceFirst","engine_type":"vllm"}}"#,
                Message::Register(Register {
                    role: Role::Destination,
                    dp_rank: 0,
                    order: Order::SourceFirst,
                    engine_type: "vllm".to_owned(),
                }),
            ),
            (r#""Registered""#, Message::Registered),
            (
                r#"{"Fact":{"SourceHeld":{"handoff_id":"df69fc77-7451-4e05-9564-0f922cea424e","transfer_timing":{"mode":"full_prompt","full_prompt_tokens":27,"kv_bytes_per_token":1000000,"bandwidth_gb_s":1.0}}}}"#,
                Message::Fact(Fact::SourceHeld {
                    handoff_id,
                    transfer_timing: TransferTiming {
                        mode: TimingMode::FullPrompt,
                        full_prompt_tokens: 27,
                        kv_bytes_per_token: Some(1_000_000),
                        bandwidth_gb_s: Some(1.0),
                    },
                }),
            ),
            (
                r#"{"Action":{"id":1,"action":{"ReserveDestination":{"handoff_id":"df69fc77-7451-4e05-9564-0f922cea424e"}}}}"#,
                Message::Action(Action {
                    id: 1,
                    action: Command::ReserveDestination { handoff_id },
                }),
            ),
            (
                r#"{"ActionAck":{"action_id":1,"outcome":"Accepted"}}"#,
                Message::ActionAck(ActionAck {
                    action_id: 1,
                    outcome: Outcome::Accepted,
                }),
            ),
            (
                r#"{"Fact":{"DestinationReserved":{"handoff_id":"df69fc77-7451-4e05-9564-0f922cea424e","transferable_prompt_tokens":32}}}"#,
                Message::Fact(Fact::DestinationReserved {
                    handoff_id,
                    transferable_prompt_tokens: 32,
                }),
            ),
            (
                r#"{"Action":{"id":3,"action":{"ActivateDestination":{"handoff_id":"df69fc77-7451-4e05-9564-0f922cea424e"}}}}"#,
                Message::Action(Action {
                    id: 3,
                    action: Command::ActivateDestination { handoff_id },
                }),
            ),
            (
                r#"{"ActionAck":{"action_id":3,"outcome":"Applied"}}"#,
                Message::ActionAck(ActionAck {
                    action_id: 3,
                    outcome: Outcome::Applied,
                }),
            ),
            (r#""Complete""#, Message::Complete),
            (
                r#"{"ProtocolError":{"message":"duplicate destination participant"}}"#,
                Message::ProtocolError {
                    message: "duplicate destination participant".to_owned(),
                },
            ),
        ]
    }

    #[test]
    fn messages_match_the_recorded_bytes() {
        for (text, message) in recorded() {
            let json = format!(r#"{{"identity":{IDENTITY},"message":{text}}}"#);
            let mut bytes = u32::try_from(json.len()).unwrap().to_le_bytes().to_vec();
            bytes.extend_from_slice(json.as_bytes());
            let envelope = Envelope {
                identity: identity(),
                message,
            };
            let mut written = Vec::new();
            encode(&mut written, &envelope);
            assert_eq!(written, bytes, "{text}");
            let mut buffer = BytesMut::from(&bytes[..]);
            assert_eq!(decode(&mut buffer), Ok(Some(envelope)), "{text}");
            assert!(buffer.is_empty());
        }
        // The recorded lengths, so that the test's own arithmetic cannot hide a difference.
        let mut registered = Vec::new();
        encode(
            &mut registered,
            &Envelope {
                identity: identity(),
                message: Message::Registered,
            },
        );
        assert_eq!(registered[..4], [0xb2, 0, 0, 0]);
    }

    #[test]
    fn frames_arrive_in_pieces() {
        let envelope = Envelope {
            identity: identity(),
            message: Message::Abort {
                message: "no".to_owned(),
            },
        };
        let mut bytes = Vec::new();
        encode(&mut bytes, &envelope);
        encode(&mut bytes, &envelope);
        let mut buffer = BytesMut::new();
        let mut read = 0;
        for byte in bytes {
            buffer.extend_from_slice(&[byte]);
            read += usize::from(decode(&mut buffer).unwrap().is_some());
        }
        assert_eq!(read, 2);
    }

    #[test]
    fn long_words_of_a_peer_are_cut() {
        let mut bytes = Vec::new();
        let message = Message::Abort {
            message: "\u{e4}".repeat(20_000),
        };
        encode(
            &mut bytes,
            &Envelope {
                identity: identity(),
                message,
            },
        );
        let read = decode(&mut BytesMut::from(&bytes[..])).unwrap().unwrap();
        let Message::Abort { message } = read.message else {
            panic!("{read:?}")
        };
        assert_eq!(message.chars().count(), MAX_TEXT_CHARS);
    }

    #[test]
    fn impossible_lengths_and_texts_are_errors() {
        let decoded = |bytes: &[u8]| decode(&mut BytesMut::from(bytes));
        assert_eq!(decoded(&[0, 0, 0, 0]), Err(WireError::Length(0)));
        assert_eq!(decoded(&[1, 0, 1, 0]), Err(WireError::Length(65_537)));
        assert!(matches!(decoded(b"\x02\0\0\0{}"), Err(WireError::Json(_))));
        assert!(matches!(decoded(b"\x02\0\0\0\xff\xff"), Err(WireError::Json(_))));
    }
}
