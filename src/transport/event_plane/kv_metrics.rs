//! Payload of topic `kv_metrics`: the load figures by which a frontend tells an overloaded rank.
//!
//! A map of five keys, all always there: `worker_id`, `dp_rank`, `active_decode_blocks`, `active_prefill_tokens`,
//! `kv_used_blocks`; the last three may be nil. Sent when a value changes; readers keep the last one until it is
//! replaced or the worker leaves.
//!
//! Source: Dynamo 1.4.2 and 1.6.1.

use super::msgpack::{put_optional_uint, put_uint};
use crate::types::{DpRank, InstanceId};

/// What one rank reports. `None`: not measured here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KvMetrics {
    /// Blocks of sequences that decode.
    pub active_decode_blocks: Option<u64>,
    /// Prompt tokens still to be computed.
    pub active_prefill_tokens: Option<u64>,
    /// Blocks in use by requests.
    pub kv_used_blocks: Option<u64>,
}

/// Appends the payload to `out`.
pub fn encode(out: &mut Vec<u8>, worker: InstanceId, rank: DpRank, metrics: &KvMetrics) {
    out.extend_from_slice(b"\x85\xa9worker_id");
    put_uint(out, worker.0);
    out.extend_from_slice(b"\xa7dp_rank");
    put_uint(out, u64::from(rank.0));
    out.extend_from_slice(b"\xb4active_decode_blocks");
    put_optional_uint(out, metrics.active_decode_blocks);
    out.extend_from_slice(b"\xb5active_prefill_tokens");
    put_optional_uint(out, metrics.active_prefill_tokens);
    out.extend_from_slice(b"\xaekv_used_blocks");
    put_optional_uint(out, metrics.kv_used_blocks);
}

#[cfg(test)]
mod tests {
    use super::super::golden::{METRICS_PAYLOAD, unhex};
    use super::*;

    #[test]
    fn payload_equals_the_recorded_one() {
        let metrics = KvMetrics {
            active_decode_blocks: Some(5),
            active_prefill_tokens: None,
            kv_used_blocks: Some(13),
        };
        let mut out = Vec::new();
        encode(&mut out, InstanceId(0x1eee_a22a_97a7_87da), DpRank(0), &metrics);
        assert_eq!(out, unhex(METRICS_PAYLOAD));
    }
}
