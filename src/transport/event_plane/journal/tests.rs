//! Ids, counts, recovery answers, and dumps that tell the same story as the events.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::types::LocalHash;

const WORKER: InstanceId = InstanceId(77);
const RANK: DpRank = DpRank(2);

fn tokens_hash(hash: u64) -> u64 {
    hash.wrapping_mul(31)
}

fn stored(parent: Option<u64>, hashes: &[u64]) -> KvEvent {
    KvEvent::Stored {
        parent: parent.map(SequenceHash),
        blocks: hashes
            .iter()
            .map(|&hash| StoredBlock {
                block_hash: SequenceHash(hash),
                tokens_hash: LocalHash(tokens_hash(hash)),
            })
            .collect(),
    }
}

fn removed(hashes: &[u64]) -> KvEvent {
    KvEvent::Removed {
        block_hashes: hashes.iter().copied().map(SequenceHash).collect(),
    }
}

fn query(start_event_id: Option<u64>) -> Query {
    Query {
        worker: WORKER,
        rank: RANK,
        start_event_id,
        end_event_id: None,
    }
}

fn read(msgpack: &[u8]) -> Vec<Value> {
    rmp_serde::from_slice(msgpack).expect("array of events")
}

/// A router's index of one rank in its simplest form: refuses children of unknown parents.
#[derive(Debug, Default, PartialEq)]
struct Index {
    parents: BTreeMap<u64, Option<u64>>,
    refused: usize,
}

impl Index {
    fn apply(&mut self, event: &Value) {
        assert_eq!(event["worker_id"], WORKER.0);
        assert_eq!(event["event"]["dp_rank"], RANK.0);
        let data = &event["event"]["data"];
        if data == "cleared" {
            self.parents.clear();
        } else if let Some(hashes) = data["removed"]["block_hashes"].as_array() {
            for hash in hashes {
                self.parents.remove(&hash.as_u64().expect("u64"));
            }
        } else {
            let mut parent = data["stored"]["parent_hash"].as_u64();
            for block in data["stored"]["blocks"].as_array().expect("blocks") {
                let hash = block["block_hash"].as_u64().expect("u64");
                assert_eq!(block["tokens_hash"], tokens_hash(hash));
                if parent.is_some_and(|parent| !self.parents.contains_key(&parent)) {
                    self.refused += 1;
                    return;
                }
                self.parents.insert(hash, parent);
                parent = Some(hash);
            }
        }
    }

    fn of(events: &[Value]) -> Self {
        let mut index = Self::default();
        for event in events {
            index.apply(event);
        }
        index
    }
}

fn dump_of(journal: &mut Journal) -> (Vec<Value>, u64) {
    match journal.answer(&query(None)) {
        Response::TreeDump { events, last_event_id } => (read(&events), last_event_id),
        other @ (Response::Events { .. }
        | Response::TooNew { .. }
        | Response::InvalidRange { .. }
        | Response::Error(_)) => panic!("expected a dump, got {other:?}"),
    }
}

#[test]
fn blocks_that_are_no_longer_announced_are_remembered_with_their_chains() {
    let hashes = |former: &Former| -> Vec<(Option<u64>, u64)> {
        let memory = former.memory();
        let placed = |(parent, block): &Placed| (parent.map(|parent| parent.0), block.block_hash.0);
        memory.blocks.iter().map(placed).collect()
    };
    let former = Arc::new(Former::default());
    let mut journal = Journal::new(WORKER, RANK).remembering(Arc::clone(&former));
    journal.record(vec![
        stored(None, &[1, 2, 3]),
        stored(Some(2), &[4]),
        stored(None, &[1]),
    ]);
    assert_eq!(hashes(&former), []);
    // One of two stores, a stranger, a leaf.
    journal.record(vec![removed(&[1, 99, 3])]);
    assert_eq!(hashes(&former), [(Some(2), 3)]);
    assert_eq!(former.memory().blocks[0].1.tokens_hash, LocalHash(tokens_hash(3)));
    // Nobody is told of this one, so it can go again.
    journal.keep_quiet_about(&[removed(&[4, 99]), stored(None, &[50])]);
    assert_eq!(hashes(&former)[1..], [(Some(2), 4)]);
    assert_eq!(journal.announced_blocks(), 3);
    drop(journal);
    assert_eq!(hashes(&former)[2..], [(Some(2), 4), (Some(1), 2), (None, 1)]);
    // A whole cache of more than is kept: what is kept hangs together.
    let long: Vec<u64> = (1000..1000 + KEPT_BLOCKS as u64 + 5).collect();
    let former = Arc::new(Former::default());
    let mut journal = Journal::new(WORKER, RANK).remembering(Arc::clone(&former));
    journal.record(vec![stored(None, &long), KvEvent::Cleared]);
    let memory = former.memory();
    assert_eq!((memory.blocks.len(), memory.dropped), (KEPT_BLOCKS, 5));
    assert_eq!(
        memory.blocks.back().expect("a block").0,
        None,
        "the root is the last to be forgotten"
    );
    drop(journal);
    assert_eq!(former.memory().blocks.len(), KEPT_BLOCKS);
}

#[test]
fn the_newest_event_can_be_said_again_as_it_was() {
    let mut journal = Journal::new(WORKER, RANK);
    assert_eq!(journal.newest(), None);
    let payloads = journal.record(vec![stored(None, &[1]), KvEvent::Cleared, stored(None, &[2])]);
    let told: Vec<Value> = payloads.iter().flat_map(|payload| read(payload)).collect();
    assert_eq!(read(&journal.newest().expect("an event")), told[told.len() - 1..]);
    assert_eq!(journal.last_event_id(), 3, "it uses no id");
    journal.skip(1);
    assert_eq!(journal.newest(), None, "what is left out is kept by nobody");
}

#[test]
fn ids_count_up_from_1_without_gaps_over_messages() {
    let mut journal = Journal::new(WORKER, RANK);
    let many: Vec<KvEvent> = (0..200).map(|root| stored(None, &[root])).collect();
    let payloads = journal.record(many);
    let more = journal.record(vec![KvEvent::Cleared]);
    let ids: Vec<u64> = payloads
        .iter()
        .chain(&more)
        .flat_map(|payload| read(payload))
        .map(|event| event["event"]["event_id"].as_u64().expect("u64"))
        .collect();
    assert_eq!((payloads.len(), more.len()), (2, 1));
    assert_eq!(ids, (1..=201).collect::<Vec<u64>>());
    assert_eq!(journal.last_event_id(), 201);
}

#[test]
fn what_lies_below_the_gpu_is_told_and_dumped_with_its_tier() {
    let mut journal = Journal::new(WORKER, RANK);
    let on = |tier, event| TierEvent { tier, event };
    journal.record(vec![stored(None, &[1])]);
    let payloads = journal.record_lower(&[
        on(LowerTier::Host, stored(Some(1), &[2, 3])),
        on(LowerTier::Disk, stored(None, &[1])),
        on(LowerTier::Storage, stored(None, &[9])),
        on(LowerTier::Host, removed(&[2])),
    ]);
    let told: Vec<Value> = payloads.iter().flat_map(|payload| read(payload)).collect();
    let tiers: Vec<&str> = told.iter().filter_map(|event| event["storage_tier"].as_str()).collect();
    assert_eq!(tiers, ["host_pinned", "disk", "external", "host_pinned"]);
    assert_eq!(journal.last_event_id(), 5);
    let (dumped, _) = dump_of(&mut journal);
    let placed: BTreeSet<(&str, u64, Option<u64>)> = dumped
        .iter()
        .filter_map(|event| {
            let data = &event["event"]["data"]["stored"];
            let hash = data["blocks"][0]["block_hash"].as_u64()?;
            Some((event["storage_tier"].as_str()?, hash, data["parent_hash"].as_u64()))
        })
        .collect();
    let expected = [
        ("device", 1, None),
        ("disk", 1, None),
        ("external", 9, None),
        ("host_pinned", 3, Some(2)),
    ];
    assert_eq!(placed, BTreeSet::from(expected));
    let gone = journal.lower_withdrawals();
    assert_eq!(gone.len(), 3);
    journal.record_lower(&gone);
    assert_eq!(dump_of(&mut journal).0.len(), 1);
}

#[test]
fn a_block_stored_twice_is_withdrawn_with_its_second_removal() {
    let mut journal = Journal::new(WORKER, RANK);
    assert_eq!(journal.record(vec![stored(None, &[1, 2])]).len(), 1);
    assert_eq!(
        journal.record(vec![stored(None, &[1])]).len(),
        1,
        "repeated stores are sent"
    );
    assert!(journal.record(vec![removed(&[1])]).is_empty(), "one store is left");
    assert_eq!(journal.last_event_id(), 2, "and no id is used");
    assert_eq!(journal.record(vec![removed(&[2, 1])]).len(), 1);
    assert_eq!(journal.announced_blocks(), 0);
}

#[test]
fn clearing_resets_the_counts() {
    let mut journal = Journal::new(WORKER, RANK);
    journal.record(vec![stored(None, &[1]), stored(None, &[1]), KvEvent::Cleared]);
    journal.record(vec![stored(None, &[1])]);
    assert_eq!(journal.record(vec![removed(&[1])]).len(), 1);
}

#[test]
fn queries_follow_the_rule_of_the_worker() {
    let mut journal = Journal::new(WORKER, RANK);
    assert!(matches!(
        journal.answer(&query(Some(5))),
        Response::TreeDump { last_event_id: 0, .. }
    ));
    for root in 1..=3 {
        journal.record(vec![stored(None, &[root])]);
    }
    let other_rank = Query {
        rank: DpRank(0),
        ..query(None)
    };
    assert!(matches!(journal.answer(&other_rank), Response::Error(_)));
    let backwards = Query {
        end_event_id: Some(1),
        ..query(Some(2))
    };
    assert_eq!(
        journal.answer(&backwards),
        Response::InvalidRange { start_id: 2, end_id: 1 }
    );
    assert_eq!(
        journal.answer(&query(Some(4))),
        Response::TooNew {
            requested_start: 4,
            requested_end: None,
            newest_available: 3
        }
    );
    assert!(matches!(journal.answer(&query(Some(0))), Response::TreeDump { .. }));
    let Response::Events { events, last_event_id } = journal.answer(&query(Some(2))) else {
        panic!("events are kept");
    };
    assert_eq!((events.len(), last_event_id), (2, 3));
    let first: Value = rmp_serde::from_slice(&events[0]).expect("event");
    assert_eq!(first["event"]["event_id"], 2);
}

#[test]
fn only_the_newest_1024_events_are_kept() {
    let mut journal = Journal::new(WORKER, RANK);
    for root in 0..1030 {
        journal.record(vec![stored(None, &[root])]);
    }
    assert!(matches!(journal.answer(&query(Some(6))), Response::TreeDump { .. }));
    let Response::Events { events, .. } = journal.answer(&query(Some(7))) else {
        panic!("event 7 is the oldest kept");
    };
    assert_eq!(events.len(), KEPT_EVENTS);
}

#[test]
fn a_seeded_journal_dumps_its_seed_before_any_event() {
    let block = |hash| StoredBlock {
        block_hash: SequenceHash(hash),
        tokens_hash: LocalHash(tokens_hash(hash)),
    };
    let seed = [
        (None, block(1)),
        (Some(SequenceHash(1)), block(2)),
        (Some(SequenceHash(1)), block(3)),
    ];
    let mut journal = Journal::seeded(WORKER, RANK, &seed);
    let (events, last_event_id) = dump_of(&mut journal);
    assert_eq!(last_event_id, 0);
    assert_eq!(
        Index::of(&events).parents,
        BTreeMap::from([(1, None), (2, Some(1)), (3, Some(1))])
    );
    assert_eq!(journal.record(vec![removed(&[3])]).len(), 1);
    assert_eq!(journal.last_event_id(), 1);
}

#[test]
fn a_dump_is_built_once_until_the_cache_changes() {
    let mut journal = Journal::new(WORKER, RANK);
    journal.record(vec![stored(None, &[1, 2, 3])]);
    let (first, second) = (journal.dump(), journal.dump());
    assert_eq!(first.as_ptr(), second.as_ptr());
    journal.record(vec![removed(&[3])]);
    assert_ne!(first, journal.dump());
}

#[test]
fn a_long_chain_is_dumped_in_events_of_128_blocks() {
    let mut journal = Journal::new(WORKER, RANK);
    let chain: Vec<u64> = (1..=20_000).collect();
    journal.record(vec![stored(None, &chain)]);
    let (events, _) = dump_of(&mut journal);
    assert_eq!(Index::of(&events).parents.len(), chain.len());
    assert!(events.iter().all(|event| {
        event["event"]["data"]["stored"]["blocks"]
            .as_array()
            .is_some_and(|blocks| blocks.len() <= 128)
    }));
}

#[test]
fn blocks_in_a_cycle_or_below_a_missing_parent_are_left_out_of_the_dump() {
    let mut journal = Journal::new(WORKER, RANK);
    journal.record(vec![
        stored(Some(2), &[1]),
        stored(Some(1), &[2]),
        stored(Some(99), &[3, 4]),
        stored(None, &[5]),
    ]);
    let (events, _) = dump_of(&mut journal);
    let index = Index::of(&events);
    assert_eq!(index.parents, BTreeMap::from([(5, None)]));
    assert_eq!(index.refused, 0);
}

#[test]
fn an_idle_rank_is_small() {
    assert!(size_of::<Journal>() < 256, "{}", size_of::<Journal>());
}

/// A cache under random work: identities are 1 + 40 * parent + branch, so that equal ones have equal parents.
#[derive(Debug, Clone)]
enum Work {
    Extend {
        below: prop::sample::Index,
        branch: u64,
        len: u64,
    },
    StoreAgain(prop::sample::Index),
    EvictLeaf(prop::sample::Index),
    Clear,
}

fn work() -> impl Strategy<Value = Work> {
    prop_oneof![
        6 => (any::<prop::sample::Index>(), 0..3_u64, 1..5_u64)
            .prop_map(|(below, branch, len)| Work::Extend { below, branch, len }),
        2 => any::<prop::sample::Index>().prop_map(Work::StoreAgain),
        4 => any::<prop::sample::Index>().prop_map(Work::EvictLeaf),
        1 => Just(Work::Clear),
    ]
}

/// The cache itself: parent and number of copies of each block.
#[derive(Default)]
struct Cache(BTreeMap<u64, (Option<u64>, u32)>);

impl Cache {
    fn pick(&self, index: prop::sample::Index, leaves_only: bool) -> Option<u64> {
        let inner: BTreeSet<u64> = self.0.values().filter_map(|(parent, _)| *parent).collect();
        let picks: Vec<u64> = self
            .0
            .keys()
            .copied()
            .filter(|hash| !leaves_only || !inner.contains(hash))
            .collect();
        (!picks.is_empty()).then(|| *index.get(&picks))
    }

    fn store(&mut self, hash: u64, parent: Option<u64>) {
        self.0.entry(hash).or_insert((parent, 0)).1 += 1;
    }

    fn act(&mut self, work: &Work) -> Option<KvEvent> {
        match work {
            Work::Extend { below, branch, len } => {
                let above = self.pick(*below, false).filter(|hash| hash % 2 == 0);
                let mut parent = above;
                let mut chain = Vec::new();
                for _ in 0..*len {
                    let hash = 1 + parent.unwrap_or(0).wrapping_mul(40) + branch;
                    self.store(hash, parent);
                    chain.push(hash);
                    parent = Some(hash);
                }
                Some(stored(above, &chain))
            }
            Work::StoreAgain(index) => {
                let hash = self.pick(*index, false)?;
                let parent = self.0[&hash].0;
                self.store(hash, parent);
                Some(stored(parent, &[hash]))
            }
            Work::EvictLeaf(index) => {
                let hash = self.pick(*index, true)?;
                let copies = &mut self.0.get_mut(&hash)?.1;
                *copies -= 1;
                if *copies == 0 {
                    self.0.remove(&hash);
                }
                Some(removed(&[hash]))
            }
            Work::Clear => {
                self.0.clear();
                Some(KvEvent::Cleared)
            }
        }
    }

    fn index(&self) -> Index {
        Index {
            parents: self.0.iter().map(|(&hash, &(parent, _))| (hash, parent)).collect(),
            refused: 0,
        }
    }
}

proptest! {
    #[test]
    fn events_dump_and_cache_tell_the_same_story(passes in prop::collection::vec(prop::collection::vec(work(), 1..6), 1..60)) {
        let mut cache = Cache::default();
        let mut journal = Journal::new(WORKER, RANK);
        let mut live = Index::default();
        for pass in &passes {
            let events = pass.iter().filter_map(|work| cache.act(work)).collect();
            for payload in journal.record(events) {
                for event in read(&payload) {
                    live.apply(&event);
                }
            }
            prop_assert_eq!(&live, &cache.index());
        }
        prop_assert_eq!(journal.announced_blocks(), cache.0.len());
        let (dump, last_event_id) = dump_of(&mut journal);
        prop_assert_eq!(last_event_id, journal.last_event_id());
        let ids: Vec<u64> = dump.iter().map(|event| event["event"]["event_id"].as_u64().expect("u64")).collect();
        prop_assert_eq!(ids, (0..dump.len() as u64).collect::<Vec<_>>());
        prop_assert_eq!(Index::of(&dump), cache.index());
    }
}
