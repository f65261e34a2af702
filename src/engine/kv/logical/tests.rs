//! What the pool promises whatever its eviction order.

use proptest::prelude::*;

use super::*;
use crate::types::LocalHash;

/// Block `position` of the chain that branches off the common trunk after `shared` blocks.
fn identity(chain: u64, shared: u32, position: u32) -> BlockIdentity {
    let hash = |position: u32| SequenceHash(1 + u64::from(position) + if position < shared { 0 } else { chain << 32 });
    BlockIdentity {
        block: StoredBlock {
            block_hash: hash(position),
            tokens_hash: LocalHash(0),
        },
        parent: (position > 0).then(|| hash(position - 1)),
        position,
    }
}

fn chain(chain: u64, blocks: u32) -> Vec<BlockIdentity> {
    (0..blocks).map(|position| identity(chain, 2, position)).collect()
}

fn hashes(identities: &[BlockIdentity]) -> Vec<SequenceHash> {
    identities.iter().map(|identity| identity.block.block_hash).collect()
}

fn pool(capacity: u32, backend: EvictionBackend) -> LogicalPool {
    LogicalPool::new(capacity, backend).unwrap()
}

fn taken(pool: &mut LogicalPool, known: &[BlockIdentity], partial: u32) -> (BlockTable, Vec<KvEvent>) {
    let mut table = BlockTable::default();
    let mut events = Vec::new();
    let blocks = u32::try_from(known.len()).unwrap() + partial;
    assert!(pool.take(&mut table, known, blocks, &mut events));
    (table, events)
}

fn stored(identities: &[BlockIdentity]) -> KvEvent {
    KvEvent::Stored {
        parent: identities[0].parent,
        blocks: identities.iter().map(|identity| identity.block).collect(),
    }
}

#[test]
fn only_new_blocks_are_stored_and_equal_ones_exist_once() {
    let mut pool = pool(8, EvictionBackend::Lineage);
    let (a, b) = (chain(1, 3), chain(2, 4));
    let (mut first, events) = taken(&mut pool, &a, 1);
    assert_eq!(events, [stored(&a)]);
    assert_eq!((pool.active(), pool.inactive()), (4, 0));
    let (mut second, events) = taken(&mut pool, &b, 0);
    assert_eq!(events, [stored(&b[2..])], "the trunk is an active hit");
    assert_eq!((first.len(), second.len(), pool.active()), (4, 4, 6));
    pool.release(&mut second);
    assert_eq!((pool.active(), pool.inactive()), (4, 2));
    let (mut second, events) = taken(&mut pool, &b, 0);
    assert_eq!(events, [], "an inactive hit is no event");
    pool.release(&mut first);
    pool.release(&mut second);
    assert_eq!((pool.active(), pool.inactive(), pool.available()), (0, 5, 8));
}

#[test]
fn a_hit_in_the_middle_ends_a_stored_chain() {
    let mut pool = pool(8, EvictionBackend::MultiLru);
    let blocks = chain(1, 4);
    let (mut table, _) = taken(&mut pool, &blocks[2..3], 0);
    pool.release(&mut table);
    let (_held, events) = taken(&mut pool, &blocks, 0);
    assert_eq!(events, [stored(&blocks[..2]), stored(&blocks[3..])]);
}

#[test]
fn a_filled_block_that_exists_already_gives_its_place_back() {
    let mut pool = pool(4, EvictionBackend::Lru);
    let blocks = chain(1, 1);
    let (mut first, _) = taken(&mut pool, &blocks, 0);
    let (mut second, _) = taken(&mut pool, &[], 1);
    assert_eq!(pool.active(), 2);
    assert!(!pool.publish(&mut second, blocks[0]));
    assert_eq!((pool.active(), second.len()), (1, 1));
    pool.release(&mut first);
    assert_eq!((pool.active(), pool.inactive()), (1, 0));
    pool.release(&mut second);
    assert_eq!((pool.active(), pool.inactive()), (0, 1));
}

#[test]
fn blocks_are_removed_on_eviction_and_clearing_only() {
    let mut pool = pool(4, EvictionBackend::Lineage);
    let blocks = chain(1, 3);
    let (mut table, _) = taken(&mut pool, &blocks, 0);
    pool.release(&mut table);
    let (mut table, events) = taken(&mut pool, &[], 3);
    let gone = vec![blocks[2].block.block_hash, blocks[1].block.block_hash];
    assert_eq!(
        events,
        [KvEvent::Removed { block_hashes: gone }],
        "one event, leaves first"
    );
    pool.release(&mut table);
    let (mut held, _) = taken(&mut pool, &chain(2, 1)[..1], 0);
    assert_eq!(pool.clear(), [], "the first block of the trunk is in use");
    pool.release(&mut held);
    assert_eq!(pool.clear(), [KvEvent::Cleared]);
    assert_eq!(pool.clear(), []);
    assert!(pool.cached_blocks().is_empty());
}

#[test]
fn without_enough_blocks_nothing_is_taken() {
    for backend in EvictionBackend::ALL.into_iter().skip(1) {
        let mut pool = pool(4, backend);
        let (mut cached, _) = taken(&mut pool, &chain(1, 2), 0);
        pool.release(&mut cached);
        let (_held, _) = taken(&mut pool, &[], 2);
        let mut table = BlockTable::default();
        let mut events = Vec::new();
        assert!(
            !pool.take(&mut table, &chain(2, 3), 3, &mut events),
            "both cached blocks are hits"
        );
        assert_eq!((table.len(), events.len()), (0, 0));
        assert_eq!((pool.active(), pool.inactive()), (2, 2));
    }
}

#[derive(Debug, Clone)]
enum Op {
    /// A request for a chain of so many blocks, that finds what is there, with a partial block or not.
    Take(u64, u32, bool),
    /// A request ends, by its place in the list.
    Release(usize),
    /// A request's partial block fills up.
    Fill(usize),
    Clear,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (1_u64..5, 0_u32..7, any::<bool>()).prop_map(|(chain, blocks, partial)| Op::Take(chain, blocks, partial)),
        4 => any::<prop::sample::Index>().prop_map(|at| Op::Release(at.index(64))),
        2 => any::<prop::sample::Index>().prop_map(|at| Op::Fill(at.index(64))),
        1 => Just(Op::Clear),
    ];
    prop::collection::vec(op, 0..80)
}

/// Runs `ops` and checks the books after each; returns all events.
fn run(backend: EvictionBackend, capacity: u32, ops: &[Op]) -> Vec<KvEvent> {
    let mut pool = pool(capacity, backend);
    // Chain and table of each request.
    let mut requests: Vec<(u64, BlockTable)> = Vec::new();
    let mut all = Vec::new();
    let mut cached = std::collections::BTreeSet::new();
    for op in ops {
        let mut events = Vec::new();
        match *op {
            Op::Take(name, blocks, partial) => {
                let mut table = BlockTable::default();
                let known = chain(name, blocks);
                let whole = blocks + u32::from(partial);
                if pool.take(&mut table, &known, whole, &mut events) {
                    requests.push((name, table));
                }
            }
            Op::Release(at) if at < requests.len() => pool.release(&mut requests.remove(at).1),
            Op::Fill(at) if at < requests.len() && requests[at].1.private > 0 => {
                let (name, table) = &mut requests[at];
                let filled = identity(*name, 2, table.cached());
                if pool.publish(table, filled) {
                    events.push(stored(&[filled]));
                }
            }
            Op::Release(_) | Op::Fill(_) => {}
            Op::Clear => events = pool.clear(),
        }
        for event in &events {
            match event {
                KvEvent::Stored { blocks, .. } => {
                    for block in blocks {
                        assert!(cached.insert(block.block_hash), "stored once");
                    }
                }
                KvEvent::Removed { block_hashes } => {
                    for hash in block_hashes {
                        assert!(cached.remove(hash), "only stored blocks are removed");
                    }
                }
                KvEvent::Cleared => cached.clear(),
            }
        }
        let mut owned = std::collections::BTreeSet::new();
        let mut private = 0;
        for (name, table) in &requests {
            private += table.private;
            for hash in hashes(&chain(*name, table.cached())) {
                assert!(
                    pool.lookup(hash).is_some_and(|id| pool.is_referenced(id)),
                    "{hash:?} is in use"
                );
                owned.insert(hash);
            }
        }
        let active = private + u32::try_from(owned.len()).unwrap();
        assert_eq!(pool.active(), active);
        assert_eq!(pool.active() + pool.available(), capacity);
        assert!(pool.inactive() <= pool.available());
        assert_eq!(pool.inactive() as usize, cached.len() - owned.len());
        let content: std::collections::BTreeSet<_> = pool
            .cached_blocks()
            .into_iter()
            .map(|(_, block)| block.block_hash)
            .collect();
        assert_eq!(content, cached, "the events tell what is cached");
        all.extend(events);
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn blocks_are_conserved_and_those_in_use_stay(capacity in 1_u32..20, ops in ops()) {
        for backend in EvictionBackend::ALL.into_iter().skip(1) {
            run(backend, capacity, &ops);
        }
    }

    #[test]
    fn the_same_operations_evict_in_the_same_order(capacity in 1_u32..20, ops in ops()) {
        for backend in EvictionBackend::ALL.into_iter().skip(1) {
            prop_assert_eq!(run(backend, capacity, &ops), run(backend, capacity, &ops));
        }
    }
}
