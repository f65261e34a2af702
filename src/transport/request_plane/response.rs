//! Items of an answer, written straight into the socket's buffer.
//!
//! | Frame | Bytes |
//! |---|---|
//! | handshake | header `{"subject":..,"stream_type":"response"}` |
//! | prologue | header `{"error":null}` |
//! | token | data `{"data":{"data":{"token_ids":[t]}},"complete_final":false}`, last one with `finish_reason` and usage; with `index` where there are several answers, with `log_probs` and `top_logprobs` where they are asked for |
//! | error | data `{"data":{"event":"error","error":{..}},"complete_final":false}` |
//! | final | data `{"data":null,"complete_final":true}` |
//! | end | header `"sentinel"` |
//!
//! Errors are written in the legacy form (`error_type`, `message`), which both 1.4.2 and 1.6.1 map correctly.
//! Source: Dynamo 1.6.1 and 1.4.2, golden vectors G4 and G5.

use rmp::encode as mp;

use super::{Codec, two_part};
use crate::transport::intake::Failure;
use crate::transport::logprob;
use crate::types::{FinishReason, Token};

/// Token counts that go with the last item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Prompt length.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub completion_tokens: u32,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u32,
}

/// How a frontend tells the worker to end a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamControl {
    /// Finish early; what was sent stays valid.
    Stop,
    /// The client is gone.
    Kill,
}

/// Header of a control frame that a frontend sends on the response socket.
pub fn decode_control(header: &[u8]) -> Option<StreamControl> {
    match header {
        b"\"stop\"" => Some(StreamControl::Stop),
        b"\"kill\"" => Some(StreamControl::Kill),
        _ => None,
    }
}

/// First frame on the response socket.
pub fn write_handshake(out: &mut Vec<u8>, subject: &str) {
    let text = format!(
        "{{\"subject\":{},\"stream_type\":\"response\"}}",
        serde_json::Value::from(subject)
    );
    two_part::write(out, text.as_bytes(), b"");
}

/// Second frame: the request was accepted.
pub fn write_prologue(out: &mut Vec<u8>) {
    two_part::write(out, b"{\"error\":null}", b"");
}

/// What an item tells beside its token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extras {
    /// Number of the answer, where there are several.
    pub index: Option<u32>,
    /// Alternatives to tell; `None`: no log probabilities.
    pub logprobs: Option<u32>,
}

/// One item of one of several answers, or with log probabilities.
pub fn write_item_with(
    out: &mut Vec<u8>,
    codec: Codec,
    token: Option<Token>,
    finish: Option<FinishReason>,
    usage: Option<Usage>,
    extras: Extras,
) {
    if extras == Extras::default() {
        return write_output(out, codec, token, finish, usage);
    }
    let mut output = serde_json::json!({ "token_ids": token.as_slice() });
    if let Some(index) = extras.index {
        output["index"] = index.into();
    }
    if let (Some(token), Some(count)) = (token, extras.logprobs) {
        output["log_probs"] = serde_json::json!([logprob::sampled(token)]);
        let candidate = |(rank, (id, logprob)): (u32, (Token, f64))| serde_json::json!({ "rank": rank, "token_id": id, "token": null, "logprob": logprob });
        let candidates = (1..).zip(logprob::top(token, count.max(1), Token::MAX)).map(candidate);
        output["top_logprobs"] = serde_json::json!([candidates.collect::<Vec<_>>()]);
    }
    if let Some(finish) = finish {
        output["finish_reason"] = finish_text(finish).into();
    }
    if let Some(usage) = usage {
        output["completion_usage"] = serde_json::json!({
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens.saturating_add(usage.completion_tokens),
            "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
        });
    }
    let item = serde_json::json!({ "data": { "data": output }, "complete_final": false });
    write_item(out, codec, &item);
}

/// One token; `finish` and `usage` on the last.
pub fn write_token(out: &mut Vec<u8>, codec: Codec, token: Token, finish: Option<FinishReason>, usage: Option<Usage>) {
    write_output(out, codec, Some(token), finish, usage);
}

/// The token of a prefill worker, with what the frontend copies to the decode leg.
pub fn write_prefilled(out: &mut Vec<u8>, codec: Codec, token: Token, params: &serde_json::Value) {
    let item = serde_json::json!({
        "data": {"data": {"token_ids": [token], "disaggregated_params": params}},
        "complete_final": false,
    });
    write_item(out, codec, &item);
}

/// The failure as an error item.
pub fn write_failure(out: &mut Vec<u8>, codec: Codec, failure: &Failure) {
    let (error_type, message) = match failure {
        Failure::InvalidRequest(message) => (serde_json::json!("InvalidArgument"), message.as_str()),
        Failure::ShuttingDown => (
            serde_json::json!({"Backend": "EngineShutdown"}),
            "worker is shutting down",
        ),
        Failure::Internal(message) => (serde_json::json!("Unknown"), message.as_str()),
    };
    let item = serde_json::json!({
        "data": {"event": "error", "error": {"error_type": error_type, "message": message}},
        "complete_final": false,
    });
    write_item(out, codec, &item);
}

/// The marker that decides success, and the end of the stream.
pub fn write_end(out: &mut Vec<u8>, codec: Codec) {
    write_final(out, codec);
    write_sentinel(out);
}

/// The end of the stream.
pub fn write_sentinel(out: &mut Vec<u8>) {
    two_part::write(out, b"\"sentinel\"", b"");
}

/// The marker that decides success.
pub fn write_final(out: &mut Vec<u8>, codec: Codec) {
    two_part::write_data(out, |out| match codec {
        Codec::Msgpack => {
            put(mp::write_map_len(out, 2));
            put(mp::write_str(out, "data"));
            put(mp::write_nil(out));
            put(mp::write_str(out, "complete_final"));
            put(mp::write_bool(out, true));
        }
        Codec::Json => out.extend_from_slice(b"{\"data\":null,\"complete_final\":true}"),
    });
}

/// A complete item from a JSON value, in the stream's codec (rare items only: errors, recovery answers have their own).
pub fn write_item(out: &mut Vec<u8>, codec: Codec, item: &serde_json::Value) {
    two_part::write_data(out, |out| match codec {
        Codec::Msgpack => put(rmp_serde::encode::write_named(out, item)),
        Codec::Json => put(serde_json::to_writer(out, item)),
    });
}

fn write_output(
    out: &mut Vec<u8>,
    codec: Codec,
    token: Option<Token>,
    finish: Option<FinishReason>,
    usage: Option<Usage>,
) {
    let finish = finish.map(finish_text);
    two_part::write_data(out, |out| match codec {
        Codec::Msgpack => msgpack_output(out, token, finish, usage),
        Codec::Json => json_output(out, token, finish, usage),
    });
}

fn finish_text(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Eos => "eos",
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

fn msgpack_output(out: &mut Vec<u8>, token: Option<Token>, finish: Option<&str>, usage: Option<Usage>) {
    put(mp::write_map_len(out, 2));
    put(mp::write_str(out, "data"));
    put(mp::write_map_len(out, 1));
    put(mp::write_str(out, "data"));
    put(mp::write_map_len(
        out,
        1 + u32::from(finish.is_some()) + u32::from(usage.is_some()),
    ));
    put(mp::write_str(out, "token_ids"));
    put(mp::write_array_len(out, u32::from(token.is_some())));
    if let Some(token) = token {
        put(mp::write_uint(out, token.into()));
    }
    if let Some(finish) = finish {
        put(mp::write_str(out, "finish_reason"));
        put(mp::write_str(out, finish));
    }
    if let Some(usage) = usage {
        put(mp::write_str(out, "completion_usage"));
        put(mp::write_map_len(out, 4));
        let total = usage.prompt_tokens.saturating_add(usage.completion_tokens);
        for (name, value) in [
            ("prompt_tokens", usage.prompt_tokens),
            ("completion_tokens", usage.completion_tokens),
            ("total_tokens", total),
        ] {
            put(mp::write_str(out, name));
            put(mp::write_uint(out, value.into()));
        }
        put(mp::write_str(out, "prompt_tokens_details"));
        put(mp::write_map_len(out, 1));
        put(mp::write_str(out, "cached_tokens"));
        put(mp::write_uint(out, usage.cached_tokens.into()));
    }
    put(mp::write_str(out, "complete_final"));
    put(mp::write_bool(out, false));
}

fn json_output(out: &mut Vec<u8>, token: Option<Token>, finish: Option<&str>, usage: Option<Usage>) {
    use std::io::Write as _;
    out.extend_from_slice(b"{\"data\":{\"data\":{\"token_ids\":[");
    if let Some(token) = token {
        put(write!(out, "{token}"));
    }
    out.push(b']');
    if let Some(finish) = finish {
        put(write!(out, ",\"finish_reason\":\"{finish}\""));
    }
    if let Some(Usage {
        prompt_tokens,
        completion_tokens,
        cached_tokens,
    }) = usage
    {
        let total = prompt_tokens.saturating_add(completion_tokens);
        put(write!(
            out,
            ",\"completion_usage\":{{\"prompt_tokens\":{prompt_tokens},\"completion_tokens\":{completion_tokens},\
             \"total_tokens\":{total},\"prompt_tokens_details\":{{\"cached_tokens\":{cached_tokens}}}}}"
        ));
    }
    out.extend_from_slice(b"}},\"complete_final\":false}");
}

/// Writing into a `Vec` has no way to fail, and the values are finite numbers, strings and maps.
fn put<T, E: std::fmt::Debug>(written: Result<T, E>) {
    written.expect("a Vec takes every byte");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    #[test]
    fn a_two_token_answer_matches_the_recorded_bytes() {
        let want = hex(
            "000000000000004b 0000000000000000 0000000000000000 7b227375626a656374223a2232303636643731342d666262372d343433302d613034372d313065623563383035646238222c2273747265616d5f74797065223a22726573706f6e7365227d
             000000000000000e 0000000000000000 0000000000000000 7b226572726f72223a6e756c6c7d
             0000000000000000 000000000000002b 0000000000000000 82a46461746181a46461746181a9746f6b656e5f69647391cd0130ae636f6d706c6574655f66696e616cc2
             0000000000000000 0000000000000040 0000000000000000 82a46461746181a46461746182a9746f6b656e5f69647391cd0131ad66696e6973685f726561736f6ea66c656e677468ae636f6d706c6574655f66696e616cc2
             0000000000000000 0000000000000017 0000000000000000 82a464617461c0ae636f6d706c6574655f66696e616cc3
             000000000000000a 0000000000000000 0000000000000000 2273656e74696e656c22",
        );
        let mut out = Vec::new();
        write_handshake(&mut out, "2066d714-fbb7-4430-a047-10eb5c805db8");
        write_prologue(&mut out);
        write_token(&mut out, Codec::Msgpack, 304, None, None);
        write_token(&mut out, Codec::Msgpack, 305, Some(FinishReason::Length), None);
        write_end(&mut out, Codec::Msgpack);
        assert_eq!(out, want);
        assert_eq!(out.len(), 373);
    }

    #[test]
    fn json_items_have_the_recorded_lengths() {
        let length = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            write(&mut out);
            let (_, data) = two_part::split(&out).unwrap();
            assert!(serde_json::from_slice::<serde_json::Value>(data).is_ok());
            data.len()
        };
        assert_eq!(length(&|out| write_token(out, Codec::Json, 304, None, None)), 60);
        assert_eq!(
            length(&|out| write_token(out, Codec::Json, 305, Some(FinishReason::Length), None)),
            85
        );
        assert_eq!(length(&|out| write_end(out, Codec::Json)), 35);
    }

    #[test]
    fn both_codecs_say_the_same() {
        let usage = Usage {
            prompt_tokens: 7,
            completion_tokens: 2,
            cached_tokens: 4,
        };
        let read = |codec| {
            let mut out = Vec::new();
            write_token(&mut out, codec, 70_000, Some(FinishReason::Eos), Some(usage));
            let (_, data) = two_part::split(&out).unwrap();
            match codec {
                Codec::Msgpack => rmp_serde::from_slice::<serde_json::Value>(data).unwrap(),
                Codec::Json => serde_json::from_slice(data).unwrap(),
            }
        };
        assert_eq!(read(Codec::Msgpack), read(Codec::Json));
        assert_eq!(
            read(Codec::Json)["data"]["data"]["completion_usage"]["prompt_tokens_details"]["cached_tokens"],
            4
        );
    }

    #[test]
    fn several_answers_and_log_probabilities_are_told() {
        for codec in [Codec::Msgpack, Codec::Json] {
            let mut out = Vec::new();
            let extras = Extras {
                index: Some(2),
                logprobs: Some(2),
            };
            write_item_with(&mut out, codec, Some(1234), Some(FinishReason::Stop), None, extras);
            let (_, data) = two_part::split(&out).unwrap();
            let item: serde_json::Value = match codec {
                Codec::Msgpack => rmp_serde::from_slice(data).unwrap(),
                Codec::Json => serde_json::from_slice(data).unwrap(),
            };
            let output = &item["data"]["data"];
            assert_eq!((&output["index"], &output["token_ids"][0]), (&2.into(), &1234.into()));
            assert_eq!(output["log_probs"][0], output["top_logprobs"][0][0]["logprob"]);
            let second = &output["top_logprobs"][0][1];
            assert_eq!((&second["rank"], &second["token_id"]), (&2.into(), &1235.into()));
            assert_eq!(output["finish_reason"], "stop");
        }
        // Without them nothing changes.
        let (mut plain, mut with) = (Vec::new(), Vec::new());
        write_token(&mut plain, Codec::Msgpack, 7, None, None);
        write_item_with(&mut with, Codec::Msgpack, Some(7), None, None, Extras::default());
        assert_eq!(plain, with);
    }

    #[test]
    fn control_frames_of_the_frontend_are_recognised() {
        let kill = hex("0000000000000006 0000000000000000 0000000000000000 226b696c6c22");
        let stop = hex("0000000000000006 0000000000000000 0000000000000000 2273746f7022");
        assert_eq!(
            decode_control(two_part::split(&kill).unwrap().0),
            Some(StreamControl::Kill)
        );
        assert_eq!(
            decode_control(two_part::split(&stop).unwrap().0),
            Some(StreamControl::Stop)
        );
        assert_eq!(decode_control(b"\"pause\""), None);
    }
}
