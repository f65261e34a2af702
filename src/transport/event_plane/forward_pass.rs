//! Payload of topic `forward-pass-metrics`: what one forward pass of one rank did.
//!
//! A map of seven keys: `version` (1), `worker_id` (decimal string), `dp_rank`, `counter_id`, `wall_time` (seconds),
//! `scheduled_requests`, `queued_requests`; the last two are maps, all of whose keys are always there. Floats take nine
//! bytes, zeros too. `counter_id` counts a rank's messages from 1; a message of an idle rank is all zeros.
//!
//! Readers (planners, not routers) keep the latest message of each `(worker_id, dp_rank)`.
//!
//! Source: Dynamo 1.4.2 and 1.6.1.

use std::time::Duration;

use super::msgpack::{put_f64, put_str, put_uint};
use crate::types::{DpRank, InstanceId};

/// How much is told of forward passes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Detail {
    /// Nothing.
    #[default]
    Off,
    /// At most one pass per rank and second, zeros while it is idle.
    Heartbeat,
    /// Every pass, and zeros after each idle second, as Dynamo's mocker does.
    Full,
}

/// Lengths of some requests.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Lengths {
    /// How many requests.
    pub requests: u32,
    /// Sum of their lengths, tokens.
    pub tokens: u64,
    /// Population variance of their lengths.
    pub variance: f64,
}

/// What one pass did.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ForwardPass {
    /// How long it took; zero for an idle rank.
    pub wall_time: Duration,
    /// Requests that computed prompt tokens; variance of their prompt lengths. `tokens` are those computed in this pass.
    pub prefill: Lengths,
    /// Prompt tokens of these requests that were there before, from the cache or earlier chunks.
    pub prefill_kv_tokens: u64,
    /// Requests that decoded, by sequence length.
    pub decode: Lengths,
    /// Waiting requests that never ran, by prompt length.
    pub queued_prefill: Lengths,
    /// Waiting requests that were preempted, by sequence length.
    pub queued_decode: Lengths,
}

/// Appends the payload to `out`.
pub fn encode(out: &mut Vec<u8>, worker: InstanceId, rank: DpRank, counter_id: u64, pass: &ForwardPass) {
    out.extend_from_slice(b"\x87\xa7version\x01\xa9worker_id");
    put_str(out, &worker.0.to_string());
    out.extend_from_slice(b"\xa7dp_rank");
    put_uint(out, u64::from(rank.0));
    out.extend_from_slice(b"\xaacounter_id");
    put_uint(out, counter_id);
    out.extend_from_slice(b"\xa9wall_time");
    put_f64(out, pass.wall_time.as_secs_f64());
    out.extend_from_slice(b"\xb2scheduled_requests\x87");
    put_prefill(out, &pass.prefill);
    out.extend_from_slice(b"\xb5sum_prefill_kv_tokens");
    put_uint(out, pass.prefill_kv_tokens);
    put_decode(out, &pass.decode);
    out.extend_from_slice(b"\xafqueued_requests\x86");
    put_prefill(out, &pass.queued_prefill);
    put_decode(out, &pass.queued_decode);
}

fn put_prefill(out: &mut Vec<u8>, lengths: &Lengths) {
    out.extend_from_slice(b"\xb4num_prefill_requests");
    put_uint(out, u64::from(lengths.requests));
    out.extend_from_slice(b"\xb2sum_prefill_tokens");
    put_uint(out, lengths.tokens);
    out.extend_from_slice(b"\xb2var_prefill_length");
    put_f64(out, lengths.variance);
}

fn put_decode(out: &mut Vec<u8>, lengths: &Lengths) {
    out.extend_from_slice(b"\xb3num_decode_requests");
    put_uint(out, u64::from(lengths.requests));
    out.extend_from_slice(b"\xb4sum_decode_kv_tokens");
    put_uint(out, lengths.tokens);
    out.extend_from_slice(b"\xb4var_decode_kv_tokens");
    put_f64(out, lengths.variance);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(pass: &ForwardPass) -> (Vec<u8>, Value) {
        let mut out = Vec::new();
        encode(&mut out, InstanceId(7_587_899_250_901_192_295), DpRank(1), 9, pass);
        let value = rmp_serde::from_slice(&out).expect("msgpack");
        (out, value)
    }

    #[test]
    fn every_field_is_there_under_its_name() {
        let lengths = |requests, tokens, variance| Lengths {
            requests,
            tokens,
            variance,
        };
        let pass = ForwardPass {
            wall_time: Duration::from_millis(25),
            prefill: lengths(2, 30, 2.25),
            prefill_kv_tokens: 4,
            decode: lengths(3, 50, 0.5),
            queued_prefill: lengths(1, 6, 0.0),
            queued_decode: lengths(7, 80, 9.0),
        };
        assert_eq!(
            read(&pass).1,
            json!({
                "version": 1, "worker_id": "7587899250901192295", "dp_rank": 1, "counter_id": 9, "wall_time": 0.025,
                "scheduled_requests": {
                    "num_prefill_requests": 2, "sum_prefill_tokens": 30, "var_prefill_length": 2.25,
                    "sum_prefill_kv_tokens": 4, "num_decode_requests": 3, "sum_decode_kv_tokens": 50,
                    "var_decode_kv_tokens": 0.5,
                },
                "queued_requests": {
                    "num_prefill_requests": 1, "sum_prefill_tokens": 6, "var_prefill_length": 0.0,
                    "num_decode_requests": 7, "sum_decode_kv_tokens": 80, "var_decode_kv_tokens": 9.0,
                },
            })
        );
    }

    #[test]
    fn zeros_are_written_as_floats_of_nine_bytes() {
        let (bytes, value) = read(&ForwardPass::default());
        assert_eq!(value["wall_time"], 0.0);
        let zeros = bytes
            .windows(9)
            .filter(|window| *window == [0xcb, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(zeros.count(), 5);
        // With envelope and header the 524 bytes that Dynamo's mocker sends.
        assert_eq!(bytes.len(), 426);
    }
}
