//! Payload of topic `kv-events`: an array of router events.
//!
//! Router event, a map: `worker_id`, `storage_tier` (`device`, `host_pinned`, `disk`, `external`), `residency_domain` ("worker") and `event`, a map of
//! `event_id`, `data` and `dp_rank`. `data` is one of
//! * `{"stored": {"parent_hash": u64|nil, "start_position": nil, "blocks": [{"block_hash", "tokens_hash",
//!   "mm_extra_info": nil}, ..]}}`
//! * `{"removed": {"block_hashes": [u64, ..]}}`
//! * `"cleared"`
//!
//! The events of one pass are one message, unless they exceed [`MAX_EVENTS`] or [`MAX_BLOCKS`]; consecutive stores of
//! one chain and consecutive removals become one event of at most [`MAX_MERGED_BLOCKS`].
//!
//! Source: Dynamo 1.6.1; 1.4.2 accepts the same bytes.

use super::msgpack::{put_array_len, put_optional_uint, put_uint};
use crate::types::{DpRank, InstanceId, KvEvent, LowerTier, SequenceHash, StoredBlock};

/// Most events of one message.
pub const MAX_EVENTS: usize = 128;

/// Most blocks of one message.
pub const MAX_BLOCKS: usize = 8192;

/// Most blocks of an event that was merged from several.
pub const MAX_MERGED_BLOCKS: usize = 128;

/// Appends one payload with all of `events`, numbered from `first_event_id`; returns the id after the last one.
pub fn encode_batch(
    out: &mut Vec<u8>,
    worker: InstanceId,
    rank: DpRank,
    first_event_id: u64,
    events: &[KvEvent],
) -> u64 {
    encode_batch_marked(out, worker, rank, None, first_event_id, events, |_| ())
}

/// As [`encode_batch`], of the GPU or of a `tier` below it; `mark` gets the length of `out` before the first event and after each one.
pub(super) fn encode_batch_marked(
    out: &mut Vec<u8>,
    worker: InstanceId,
    rank: DpRank,
    tier: Option<LowerTier>,
    first_event_id: u64,
    events: &[KvEvent],
    mut mark: impl FnMut(usize),
) -> u64 {
    put_array_len(out, events.len());
    mark(out.len());
    let mut event_id = first_event_id;
    for event in events {
        encode_event(out, worker, rank, tier, event_id, event);
        mark(out.len());
        event_id += 1;
    }
    event_id
}

fn encode_event(
    out: &mut Vec<u8>,
    worker: InstanceId,
    rank: DpRank,
    tier: Option<LowerTier>,
    event_id: u64,
    event: &KvEvent,
) {
    match event {
        KvEvent::Stored { parent, blocks } => encode_stored(out, worker, rank, tier, event_id, *parent, blocks),
        KvEvent::Removed { block_hashes } => {
            open_event(out, worker, tier, event_id);
            out.extend_from_slice(b"\x81\xa7removed\x81\xacblock_hashes");
            put_array_len(out, block_hashes.len());
            for hash in block_hashes {
                put_uint(out, hash.0);
            }
            close_event(out, rank);
        }
        KvEvent::Cleared => {
            open_event(out, worker, tier, event_id);
            out.extend_from_slice(b"\xa7cleared");
            close_event(out, rank);
        }
    }
}

/// Appends one `stored` event without the array around it.
pub(super) fn encode_stored(
    out: &mut Vec<u8>,
    worker: InstanceId,
    rank: DpRank,
    tier: Option<LowerTier>,
    event_id: u64,
    parent: Option<SequenceHash>,
    blocks: &[StoredBlock],
) {
    open_event(out, worker, tier, event_id);
    out.extend_from_slice(b"\x81\xa6stored\x83\xabparent_hash");
    put_optional_uint(out, parent.map(|hash| hash.0));
    out.extend_from_slice(b"\xaestart_position\xc0\xa6blocks");
    put_array_len(out, blocks.len());
    for block in blocks {
        out.extend_from_slice(b"\x83\xaablock_hash");
        put_uint(out, block.block_hash.0);
        out.extend_from_slice(b"\xabtokens_hash");
        put_uint(out, block.tokens_hash.0);
        out.extend_from_slice(b"\xadmm_extra_info\xc0");
    }
    close_event(out, rank);
}

fn open_event(out: &mut Vec<u8>, worker: InstanceId, tier: Option<LowerTier>, event_id: u64) {
    out.extend_from_slice(b"\x84\xa9worker_id");
    put_uint(out, worker.0);
    out.extend_from_slice(b"\xacstorage_tier");
    out.extend_from_slice(match tier {
        None => b"\xa6device".as_slice(),
        Some(LowerTier::Host) => b"\xabhost_pinned",
        Some(LowerTier::Disk) => b"\xa4disk",
        Some(LowerTier::Storage) => b"\xa8external",
    });
    out.extend_from_slice(b"\xb0residency_domain\xa6worker\xa5event\x83\xa8event_id");
    put_uint(out, event_id);
    out.extend_from_slice(b"\xa4data");
}

fn close_event(out: &mut Vec<u8>, rank: DpRank) {
    out.extend_from_slice(b"\xa7dp_rank");
    put_uint(out, u64::from(rank.0));
}

/// Joins neighbours that may be one event and splits what exceeds a message; drops events without blocks.
pub fn coalesce(events: Vec<KvEvent>) -> Vec<KvEvent> {
    let mut out: Vec<KvEvent> = Vec::with_capacity(events.len());
    for event in events {
        if size(&event) == Some(0) {
            continue;
        }
        let Some(event) = absorb(out.last_mut(), event) else {
            continue;
        };
        if size(&event) > Some(MAX_BLOCKS) {
            split(event, &mut out);
        } else {
            out.push(event);
        }
    }
    out
}

/// Cuts coalesced events into messages.
pub fn messages(events: &[KvEvent]) -> impl Iterator<Item = &[KvEvent]> {
    let mut rest = events;
    std::iter::from_fn(move || {
        let mut blocks = 0;
        let fits = rest
            .iter()
            .take(MAX_EVENTS)
            .take_while(|event| {
                blocks += size(event).unwrap_or(0);
                blocks <= MAX_BLOCKS
            })
            .count();
        // A single event over the limit still has to go out.
        let (message, after) = rest.split_at(fits.max(1).min(rest.len()));
        rest = after;
        (!message.is_empty()).then_some(message)
    })
}

/// Blocks of an event; `None` for one that has none by nature.
fn size(event: &KvEvent) -> Option<usize> {
    match event {
        KvEvent::Stored { blocks, .. } => Some(blocks.len()),
        KvEvent::Removed { block_hashes } => Some(block_hashes.len()),
        KvEvent::Cleared => None,
    }
}

/// Appends `event` to `last` where the two may be one; else gives it back.
fn absorb(last: Option<&mut KvEvent>, event: KvEvent) -> Option<KvEvent> {
    match (last, event) {
        (Some(KvEvent::Stored { blocks: head, .. }), KvEvent::Stored { parent, blocks: tail })
            if head.len() + tail.len() <= MAX_MERGED_BLOCKS
                && parent.is_some()
                && parent == head.last().map(|block| block.block_hash) =>
        {
            head.extend(tail);
            None
        }
        (Some(KvEvent::Removed { block_hashes: head }), KvEvent::Removed { block_hashes: tail })
            if head.len() + tail.len() <= MAX_MERGED_BLOCKS =>
        {
            head.extend(tail);
            None
        }
        (_, event) => Some(event),
    }
}

fn split(event: KvEvent, out: &mut Vec<KvEvent>) {
    match event {
        KvEvent::Stored { mut parent, blocks } => {
            for chunk in blocks.chunks(MAX_BLOCKS) {
                out.push(KvEvent::Stored {
                    parent,
                    blocks: chunk.to_vec(),
                });
                parent = chunk.last().map(|block| block.block_hash);
            }
        }
        KvEvent::Removed { block_hashes } => {
            out.extend(block_hashes.chunks(MAX_BLOCKS).map(|chunk| KvEvent::Removed {
                block_hashes: chunk.to_vec(),
            }));
        }
        KvEvent::Cleared => out.push(KvEvent::Cleared),
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden::{CLEARED_PAYLOAD, REMOVED_PAYLOAD, STORED_PAYLOAD, unhex};
    use super::*;
    use crate::types::LocalHash;

    const WORKER: InstanceId = InstanceId(0x1eee_a22a_97a7_87da);

    fn block(hash: u64) -> StoredBlock {
        StoredBlock {
            block_hash: SequenceHash(hash),
            tokens_hash: LocalHash(hash ^ 0xff),
        }
    }

    fn stored(parent: Option<u64>, hashes: impl IntoIterator<Item = u64>) -> KvEvent {
        KvEvent::Stored {
            parent: parent.map(SequenceHash),
            blocks: hashes.into_iter().map(block).collect(),
        }
    }

    fn removed(hashes: impl IntoIterator<Item = u64>) -> KvEvent {
        KvEvent::Removed {
            block_hashes: hashes.into_iter().map(SequenceHash).collect(),
        }
    }

    fn payload(worker: InstanceId, first_event_id: u64, event: KvEvent) -> Vec<u8> {
        let mut out = Vec::new();
        let next = encode_batch(&mut out, worker, DpRank(0), first_event_id, &[event]);
        assert_eq!(next, first_event_id + 1);
        out
    }

    #[test]
    fn stored_equals_the_recorded_payload() {
        let blocks = vec![
            StoredBlock {
                block_hash: SequenceHash(101),
                tokens_hash: LocalHash(14_643_705_804_678_351_452),
            },
            StoredBlock {
                block_hash: SequenceHash(102),
                tokens_hash: LocalHash(16_777_012_769_546_811_212),
            },
        ];
        let event = KvEvent::Stored { parent: None, blocks };
        assert_eq!(payload(WORKER, 1, event), unhex(STORED_PAYLOAD));
    }

    #[test]
    fn removed_equals_the_recorded_payload() {
        assert_eq!(
            payload(WORKER, 7, removed([103, (-5_i64).cast_unsigned()])),
            unhex(REMOVED_PAYLOAD)
        );
    }

    #[test]
    fn cleared_equals_the_recorded_payload() {
        let worker = InstanceId(0x1eee_a22a_97a7_8b56);
        assert_eq!(payload(worker, 11, KvEvent::Cleared), unhex(CLEARED_PAYLOAD));
    }

    #[test]
    fn batch_numbers_its_events_and_appends_to_the_buffer() {
        let events = [stored(Some(3), [4]), KvEvent::Cleared];
        let mut out = vec![0xaa];
        assert_eq!(encode_batch(&mut out, WORKER, DpRank(3), 500, &events), 502);
        assert_eq!(out[0], 0xaa);
        let read: serde_json::Value = rmp_serde::from_slice(&out[1..]).expect("msgpack");
        assert_eq!(read[0]["event"]["event_id"], 500);
        assert_eq!(read[0]["event"]["data"]["stored"]["parent_hash"], 3);
        assert_eq!(read[1]["event"]["event_id"], 501);
        assert_eq!(read[1]["event"]["dp_rank"], 3);
        assert_eq!(read[1]["event"]["data"], "cleared");
    }

    #[test]
    fn stores_of_one_chain_become_one_event() {
        let merged = coalesce(vec![stored(None, [1, 2]), stored(Some(2), [3]), stored(Some(2), [4])]);
        assert_eq!(merged, vec![stored(None, [1, 2, 3]), stored(Some(2), [4])]);
    }

    #[test]
    fn removals_merge_up_to_the_limit_and_cleared_is_a_barrier() {
        let merged = coalesce(vec![
            removed(0..100),
            removed(100..128),
            removed([128]),
            KvEvent::Cleared,
            removed([129]),
            removed([]),
            removed([130]),
        ]);
        assert_eq!(
            merged,
            vec![removed(0..128), removed([128]), KvEvent::Cleared, removed([129, 130])]
        );
    }

    #[test]
    fn two_roots_do_not_merge() {
        let events = vec![stored(None, [1]), stored(None, [2])];
        assert_eq!(coalesce(events.clone()), events);
    }

    #[test]
    fn an_event_larger_than_a_message_is_split_without_breaking_its_chain() {
        let split = coalesce(vec![stored(None, 0..10_000)]);
        assert_eq!(split, vec![stored(None, 0..8192), stored(Some(8191), 8192..10_000)]);
    }

    #[test]
    fn messages_hold_at_most_128_events_and_8192_blocks() {
        let many: Vec<KvEvent> = (0..300).map(|root| stored(None, [root])).collect();
        let sizes: Vec<usize> = messages(&many).map(<[KvEvent]>::len).collect();
        assert_eq!(sizes, [128, 128, 44]);
        let large: Vec<KvEvent> = (0..5)
            .map(|root| stored(None, root * 10_000..root * 10_000 + 3000))
            .collect();
        let sizes: Vec<usize> = messages(&large).map(<[KvEvent]>::len).collect();
        assert_eq!(sizes, [2, 2, 1]);
        assert_eq!(messages(&[]).count(), 0);
    }
}
