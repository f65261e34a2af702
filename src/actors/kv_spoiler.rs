//! What faults do to KV event messages on their way from the journal to the wire.
//!
//! The journal stays true, but for gaps and silence, so that recovery answers are the truth that a router can fall back on.

use bytes::Bytes;
use serde_json::Value;

use super::event_ways::{Sent, Ways, corrupt, dropping};
use crate::faults::draw::Dice;
use crate::faults::kind::{EventFault, InContent};
use crate::faults::table::Due;

/// Turns identities into others.
const WRONG: u64 = 0x5bd1_e995_9d1d_0e35;

/// One publisher's messages under faults.
#[derive(Debug, Default)]
pub(super) struct Spoiler {
    ways: Ways<Bytes>,
    /// From true ids to those on the wire.
    offset: Option<u64>,
}

impl Spoiler {
    /// Whether nothing is held back.
    pub(super) fn is_empty(&self) -> bool {
        self.ways.held() == 0
    }

    /// Messages that are held back.
    pub(super) fn held(&self) -> usize {
        self.ways.held()
    }

    /// Passes a payload through the faults; what goes out, in order. `messages` makes of it what is put on the wire.
    pub(super) fn pass(
        &mut self,
        payload: Bytes,
        faults: &[Due<EventFault>],
        dice: Dice,
        messages: impl FnOnce(&Bytes) -> Vec<Bytes>,
    ) -> Vec<Sent<Bytes>> {
        let dice = self.ways.next_dice(dice);
        let corrupting = faults.iter().find(|due| due.in_content() == Some(InContent::Corrupt));
        let payload = self.spoil(payload, faults, dice);
        let mut sent = Vec::new();
        for mut message in messages(&payload) {
            if let Some(corrupting) = corrupting {
                message = corrupt(&message, dice);
                if dropping(faults).is_none() {
                    corrupting.happened();
                }
            }
            sent.extend(self.ways.pass(message, faults, dice));
        }
        sent
    }

    /// What was held back goes out when its fault has ended.
    pub(super) fn release(&mut self, in_force: &[EventFault]) -> Vec<Bytes> {
        if !in_force
            .iter()
            .filter_map(EventFault::in_content)
            .any(|content| matches!(content, InContent::Renumber(_)))
        {
            self.offset = None;
        }
        self.ways.release(in_force)
    }

    /// Changes what a payload says.
    fn spoil(&mut self, payload: Bytes, faults: &[Due<EventFault>], dice: Dice) -> Bytes {
        let spoiling = || faults.iter().filter_map(|due| Some((due, due.in_content()?)));
        if spoiling().all(|(_, content)| content == InContent::Corrupt) {
            return payload;
        }
        let Ok(Value::Array(mut events)) = rmp_serde::from_slice::<Value>(&payload) else {
            return payload;
        };
        let arrives = dropping(faults).is_none();
        for event in &mut events {
            for (due, content) in spoiling() {
                let truth = event["event"].clone();
                self.respell(&mut event["event"], content, dice);
                if arrives && event["event"] != truth {
                    due.happened();
                }
            }
        }
        rmp_serde::to_vec_named(&events).map_or(payload, Bytes::from)
    }

    fn respell(&mut self, event: &mut Value, content: InContent, dice: Dice) {
        match content {
            InContent::WrongRank(rank) => event["dp_rank"] = rank.into(),
            InContent::Renumber(first) => {
                let id = event["event_id"].as_u64().unwrap_or(0);
                let offset = *self.offset.get_or_insert(first.wrapping_sub(id));
                event["event_id"] = id.wrapping_add(offset).into();
            }
            InContent::WrongParent => {
                if let Some(stored) = event["data"].get_mut("stored") {
                    stored["parent_hash"] = dice.bits(2).into();
                }
            }
            InContent::WrongHash => each_block(&mut event["data"], |hash| vec![wrong(hash)]),
            InContent::WrongBlockSize(factor) => each_block(&mut event["data"], |hash| parts_of(hash, factor)),
            InContent::DuplicateHash => {
                if let Some(blocks) = stored(&mut event["data"]) {
                    *blocks = blocks.iter().flat_map(|block| [block.clone(), block.clone()]).collect();
                }
            }
            // Not what it says, but its bytes on the wire.
            InContent::Corrupt => {}
        }
    }
}

/// The identity that a block gets in place of its own.
pub(super) const fn wrong(hash: u64) -> u64 {
    hash ^ WRONG
}

/// The identities of the smaller blocks into which one is cut.
pub(super) fn parts_of(hash: u64, factor: u32) -> Vec<u64> {
    (0..u64::from(factor.max(1)))
        .map(|part| Dice::new(hash, part).bits(0))
        .collect()
}

/// The blocks that an event stores, if it does.
fn stored(data: &mut Value) -> Option<&mut Vec<Value>> {
    data.get_mut("stored")?.get_mut("blocks")?.as_array_mut()
}

/// Puts other hashes in the place of each block's, the same for what is stored and what is removed.
fn each_block(data: &mut Value, others: impl Fn(u64) -> Vec<u64>) {
    if let Some(blocks) = stored(data) {
        let spoiled = blocks.iter().flat_map(|block| {
            let hashes = others(block["block_hash"].as_u64().unwrap_or(0)).into_iter();
            let local = others(block["tokens_hash"].as_u64().unwrap_or(0)).into_iter();
            hashes.zip(local).map(|(hash, local)| {
                let mut block = block.clone();
                block["block_hash"] = hash.into();
                block["tokens_hash"] = local.into();
                block
            })
        });
        *blocks = spoiled.collect();
    }
    let removed = data
        .get_mut("removed")
        .and_then(|removed| removed.get_mut("block_hashes"));
    if let Some(Value::Array(hashes)) = removed {
        let spoiled = hashes.iter().flat_map(|hash| others(hash.as_u64().unwrap_or(0)));
        *hashes = spoiled.map(Value::from).collect();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::transport::event_plane::journal::Journal;
    use crate::types::{DpRank, InstanceId, KvEvent, LocalHash, SequenceHash, StoredBlock};

    fn messages(many: u64) -> Vec<Bytes> {
        let mut journal = Journal::new(InstanceId(7), DpRank(0));
        let event = |n: u64| KvEvent::Stored {
            parent: (n > 0).then_some(SequenceHash(n)),
            blocks: vec![StoredBlock {
                block_hash: SequenceHash(n + 1),
                tokens_hash: LocalHash(u64::MAX - n),
            }],
        };
        (0..many).flat_map(|n| journal.record(vec![event(n)])).collect()
    }

    fn read(payload: &Bytes) -> Value {
        rmp_serde::from_slice::<Value>(payload).unwrap()[0].clone()
    }

    fn as_it_is(payload: &Bytes) -> Vec<Bytes> {
        vec![payload.clone()]
    }

    fn due(faults: &[EventFault]) -> Vec<Due<EventFault>> {
        faults.iter().cloned().map(Due::alone).collect()
    }

    /// What goes out of three messages, and what comes when the faults end.
    fn pass(faults: &[EventFault]) -> (Vec<Sent<Bytes>>, Vec<Bytes>) {
        let mut spoiler = Spoiler::default();
        let faults = &due(faults);
        let sent = messages(3)
            .into_iter()
            .flat_map(|m| spoiler.pass(m, faults, Dice::new(1, 1), as_it_is));
        let sent = sent.collect();
        (sent, spoiler.release(&[]))
    }

    fn now(faults: &[EventFault]) -> Vec<Value> {
        let (sent, _) = pass(faults);
        let now = sent.iter().map(|sent| match sent {
            Sent::Now(payload) => read(payload),
            other @ (Sent::Later(..) | Sent::Stale(_) | Sent::Lost) => panic!("{other:?}"),
        });
        now.collect()
    }

    #[test]
    fn messages_are_lost_repeated_held_and_shuffled() {
        let all = messages(3);
        assert_eq!(pass(&[EventFault::Drop {}]).0, vec![Sent::Lost; 3]);
        let (sent, _) = pass(&[EventFault::Duplicate { copies: 1 }]);
        assert_eq!(sent.len(), 6);
        assert_eq!(sent[0], sent[1]);
        assert_eq!(pass(&[EventFault::Hold {}]), (Vec::new(), all.clone()));
        let (sent, rest) = pass(&[EventFault::Reorder { window: 2 }]);
        assert_eq!((sent.len(), rest), (2, vec![all[2].clone()]));
        let delay = EventFault::Delay {
            ms: 5.0,
            jitter_ms: 0.0,
        };
        let late = |m: &Bytes| Sent::Later(m.clone(), Duration::from_millis(5));
        assert_eq!(pass(&[delay]).0, all.iter().map(late).collect::<Vec<_>>());
        assert_eq!(pass(&[EventFault::StaleEpoch {}]).0[0], Sent::Stale(all[0].clone()));
        let (sent, _) = pass(&[EventFault::Corrupt {}]);
        assert_ne!(sent[0], Sent::Now(all[0].clone()));
    }

    #[test]
    fn removals_and_clears_are_changed_as_far_as_there_is_something_to_change() {
        let mut journal = Journal::new(InstanceId(7), DpRank(0));
        let store = KvEvent::Stored {
            parent: None,
            blocks: vec![StoredBlock {
                block_hash: SequenceHash(1),
                tokens_hash: LocalHash(2),
            }],
        };
        let remove = KvEvent::Removed {
            block_hashes: vec![SequenceHash(1)],
        };
        journal.record(vec![store]);
        let messages: Vec<Bytes> = [remove, KvEvent::Cleared]
            .into_iter()
            .flat_map(|event| journal.record(vec![event]))
            .collect();
        let spoiled = |fault: EventFault| -> Vec<Value> {
            let mut spoiler = Spoiler::default();
            let fault = due(&[fault]);
            let sent = messages
                .iter()
                .flat_map(|m| spoiler.pass(m.clone(), &fault, Dice::new(1, 1), as_it_is));
            sent.map(|sent| match sent {
                Sent::Now(payload) => read(&payload)["event"]["data"].clone(),
                other @ (Sent::Later(..) | Sent::Stale(_) | Sent::Lost) => panic!("{other:?}"),
            })
            .collect()
        };
        let removed = serde_json::json!({"removed": {"block_hashes": [1 ^ WRONG]}});
        assert_eq!(spoiled(EventFault::WrongHash {}), [removed, "cleared".into()]);
        for fault in [EventFault::WrongParent {}, EventFault::DuplicateHash {}] {
            assert_eq!(
                spoiled(fault),
                [serde_json::json!({"removed": {"block_hashes": [1]}}), "cleared".into()]
            );
        }
    }

    #[test]
    fn what_messages_say_is_changed_and_nothing_else() {
        let truth: Vec<Value> = messages(3).iter().map(read).collect();
        assert_eq!(now(&[]), truth);
        let wrong = now(&[EventFault::WrongRank { rank: 5 }]);
        assert_eq!(wrong[0]["event"]["dp_rank"], 5);
        assert_eq!(wrong[0]["event"]["data"], truth[0]["event"]["data"]);
        let wrong = now(&[EventFault::Renumber { first: 0 }]);
        let ids: Vec<_> = wrong
            .iter()
            .map(|event| event["event"]["event_id"].as_u64().unwrap())
            .collect();
        assert_eq!(ids, [0, 1, 2]);
        let wrong = now(&[EventFault::WrongParent {}]);
        assert_ne!(wrong[1]["event"]["data"]["stored"]["parent_hash"], 1);
        let wrong = now(&[EventFault::WrongHash {}]);
        let block = &wrong[0]["event"]["data"]["stored"]["blocks"][0];
        assert_eq!(block["block_hash"].as_u64(), Some(1 ^ WRONG));
        assert_eq!(block["tokens_hash"].as_u64(), Some(u64::MAX ^ WRONG));
        let wrong = now(&[EventFault::DuplicateHash {}]);
        let blocks = wrong[0]["event"]["data"]["stored"]["blocks"].as_array().unwrap();
        assert_eq!((blocks.len(), &blocks[0]), (2, &blocks[1]));
        let wrong = now(&[EventFault::WrongBlockSize { factor: 4 }]);
        assert_eq!(
            wrong[0]["event"]["data"]["stored"]["blocks"].as_array().unwrap().len(),
            4
        );
    }

    #[test]
    fn a_fault_has_happened_when_a_message_is_not_what_it_would_have_been() {
        let mut journal = Journal::new(InstanceId(7), DpRank(0));
        let removal = journal.record(vec![KvEvent::Removed {
            block_hashes: vec![SequenceHash(1)],
        }]);
        let count = |payload: &Bytes, faults: &[EventFault]| -> Vec<u64> {
            let faults = due(faults);
            Spoiler::default().pass(payload.clone(), &faults, Dice::new(1, 1), as_it_is);
            faults.iter().map(Due::count).collect()
        };
        let store = &messages(1)[0];
        let (wrong_parent, wrong_rank) = (EventFault::WrongParent {}, EventFault::WrongRank { rank: 1 });
        assert_eq!(count(store, &[wrong_parent.clone(), wrong_rank.clone()]), [1, 1]);
        assert_eq!(count(&removal[0], &[wrong_parent]), [0], "a removal has no parent");
        assert_eq!(count(store, &[EventFault::WrongRank { rank: 0 }]), [0], "its own rank");
        assert_eq!(
            count(
                store,
                &[wrong_rank, EventFault::Drop {}, EventFault::Duplicate { copies: 1 }]
            ),
            [0, 1, 0],
            "nobody sees what is lost"
        );
        let delay = EventFault::Delay {
            ms: 5.0,
            jitter_ms: 0.0,
        };
        let window = EventFault::Reorder { window: 2 };
        assert_eq!(count(store, &[window, delay]), [1, 0], "it waits for its window");
    }
}
