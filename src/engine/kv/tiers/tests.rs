use super::super::super::config::TierBandwidth;
use super::*;
use crate::types::{KvEvent, LocalHash};

const fn ms(ms: u64) -> SimTime {
    SimTime::of_nanos(ms * 1_000_000)
}

/// Chain `family`, block `index`; each takes 1 ms at 1 GB/s.
fn block(family: u64, index: u32) -> BlockIdentity {
    let hash = |index: u32| SequenceHash(family * 100 + u64::from(index));
    BlockIdentity {
        block: StoredBlock {
            block_hash: hash(index),
            tokens_hash: LocalHash(u64::from(index)),
        },
        parent: index.checked_sub(1).map(hash),
        position: index,
    }
}

pub(super) fn chain(family: u64, blocks: u32) -> Vec<BlockIdentity> {
    (0..blocks).map(|index| block(family, index)).collect()
}

fn tiers(writes: Writes, host_blocks: u32, disk_blocks: u32, storage: bool) -> Tiers {
    let config = TierConfig {
        writes,
        host_blocks,
        disk_blocks,
        storage,
        bytes_per_token: 100_000,
        bandwidth: TierBandwidth {
            g1_to_g2: 1.0,
            g2_to_g1: 1.0,
            g2_to_g3: 0.5,
            g3_to_g2: 0.25,
            g2_to_g4: 0.1,
            g4_to_g2: 0.1,
        },
        host_latency_ms: 0.0,
        disk_latency_ms: 0.0,
        host_shared: None,
        disk_shared: None,
    };
    Tiers::new(&config, 10, false, &SharedMemory::new()).expect("nobody to disagree with")
}

/// Writes a chain down when a pass ends.
fn write(tiers: &mut Tiers, blocks: &[BlockIdentity], at: SimTime) -> Option<TransferId> {
    let id = tiers.prepare(blocks.to_vec(), &hashes(blocks), at);
    tiers.submit_prepared(at);
    id
}

fn events(tiers: &mut Tiers) -> Vec<TierEvent> {
    let mut events = Vec::new();
    tiers.take_events(&mut events);
    events
}

fn held(tiers: &Tiers, tier: LowerTier) -> Vec<u64> {
    let mut hashes: Vec<u64> = tiers
        .contents()
        .into_iter()
        .filter(|(of, ..)| *of == tier)
        .map(|(.., block)| block.block_hash.0)
        .collect();
    hashes.sort_unstable();
    hashes
}

#[test]
fn a_prompt_is_worth_waiting_for_while_it_is_written_and_can_be_read_then() {
    let mut tiers = tiers(Writes::Through, 8, 0, false);
    assert_eq!(tiers.find(0, &chain(1, 3), 0, ms(0)), (Found::Nothing, false));
    let id = write(&mut tiers, &chain(1, 2), ms(10)).expect("there is room");
    assert_eq!(tiers.end_of_store(id), ms(12));
    assert_eq!(tiers.find(0, &chain(1, 3), 0, ms(11)), (Found::Coming, false));
    assert!(!tiers.settle(ms(11)) && tiers.settle(ms(12)));
    assert_eq!(tiers.take_stored(), [id]);
    assert_eq!(tiers.find(0, &chain(1, 3), 0, ms(12)), (Found::Blocks(2), false));
    assert_eq!(events(&mut tiers).len(), 1);
    let load = tiers.load(7, chain(1, 2), ms(12), ms(14)).expect("all of it is there");
    assert!(tiers.has(load));
    assert_eq!(
        tiers.find(0, &chain(1, 2), 0, ms(12)),
        (Found::Coming, false),
        "one reader at a time"
    );
    assert!(tiers.settle(ms(16)));
    assert_eq!(tiers.take_loaded(), [7]);
    assert_eq!(tiers.find(0, &chain(1, 2), 0, ms(16)), (Found::Blocks(2), false));
}

#[test]
fn a_cohort_takes_the_room_of_the_least_recently_used_or_waits() {
    let mut tiers = tiers(Writes::Through, 4, 0, false);
    write(&mut tiers, &chain(1, 2), ms(0));
    write(&mut tiers, &chain(2, 2), ms(0));
    tiers.settle(ms(50));
    tiers.touch(hashes(&chain(1, 2)).into_iter());
    write(&mut tiers, &chain(3, 1), ms(60));
    assert_eq!(
        held(&tiers, LowerTier::Host),
        [100, 101, 201],
        "of equally old ones the smaller hash"
    );
    assert!(
        write(&mut tiers, &chain(4, 4), ms(60)).is_none(),
        "one block is on its way in"
    );
    tiers.settle(ms(90));
    let load = tiers.load(0, chain(1, 2), ms(90), ms(90)).expect("all of it is there");
    assert!(
        write(&mut tiers, &chain(4, 3), ms(90)).is_none(),
        "two blocks are being read"
    );
    tiers.cancel_load(load, ms(90));
    assert!(write(&mut tiers, &chain(4, 3), ms(90)).is_some());
}

#[test]
fn what_arrives_in_the_host_goes_down_and_comes_back_through_it() {
    let mut tiers = tiers(Writes::Through, 2, 4, true);
    for family in 1..=3 {
        write(&mut tiers, &chain(family, 2), ms(family * 100));
        tiers.settle(ms(family * 100 + 50));
        tiers.settle(ms(family * 100 + 99));
    }
    assert_eq!(held(&tiers, LowerTier::Host), [300, 301]);
    assert_eq!(held(&tiers, LowerTier::Disk), [200, 201, 300, 301]);
    assert_eq!(held(&tiers, LowerTier::Storage), [100, 101, 200, 201, 300, 301]);
    assert_eq!(
        tiers.find(0, &chain(2, 2), MOST_ROUNDS, ms(500)),
        (Found::Nothing, false),
        "not for ever"
    );
    assert_eq!(tiers.find(0, &chain(2, 2), 0, ms(500)), (Found::Coming, true));
    // Two blocks from disk at 0.25 GB/s.
    assert_eq!(tiers.next_end(), Some(ms(508)));
    tiers.settle(ms(508));
    assert_eq!(tiers.find(0, &chain(2, 2), 0, ms(508)), (Found::Blocks(2), false));
    assert_eq!(held(&tiers, LowerTier::Host), [200, 201]);
}

#[test]
fn a_prefix_larger_than_the_host_is_staged_as_far_as_there_is_room() {
    let mut tiers = tiers(Writes::Through, 1, 4, false);
    for index in 0..2 {
        write(&mut tiers, &chain(1, 2)[index..=index], ms(100 * index as u64));
        tiers.settle(ms(100 * index as u64 + 50));
        tiers.settle(ms(100 * index as u64 + 99));
    }
    assert_eq!(held(&tiers, LowerTier::Disk), [100, 101]);
    assert_eq!(
        tiers.find(0, &chain(1, 2), 0, ms(300)),
        (Found::Coming, true),
        "its first block takes the place of its second"
    );
    assert_eq!(tiers.find(0, &chain(1, 2), 1, ms(300)), (Found::Coming, false));
    tiers.settle(ms(399));
    assert_eq!(
        tiers.find(0, &chain(1, 2), MOST_ROUNDS, ms(400)),
        (Found::Blocks(1), false)
    );
}

#[test]
fn evicted_blocks_are_written_in_batches_that_share_the_link_and_the_pass_waits_for_them() {
    let mut tiers = tiers(Writes::OnEviction { batch_blocks: 2 }, 8, 0, false);
    tiers.evicted(chain(1, 3), ms(10));
    assert_eq!(tiers.ready_at(), ms(13), "three blocks at 1 GB/s");
    assert!(tiers.settle(ms(12)), "the batch of one is done at half the speed");
    assert_eq!(held(&tiers, LowerTier::Host), [102]);
    tiers.settle(ms(13));
    assert_eq!(held(&tiers, LowerTier::Host), [100, 101, 102]);
    tiers.evicted(chain(1, 3), ms(20));
    assert_eq!(tiers.next_end(), None, "what is there is not written again");
    tiers.evicted(chain(2, 20), ms(30));
    tiers.settle(ms(99));
    assert_eq!(held(&tiers, LowerTier::Host).len(), 8, "what finds no room is lost");
}

#[test]
fn clearing_withdraws_everything_but_what_is_on_its_way() {
    let mut tiers = tiers(Writes::Through, 4, 0, false);
    write(&mut tiers, &chain(1, 2), ms(0));
    tiers.settle(ms(50));
    write(&mut tiers, &chain(2, 2), ms(60));
    events(&mut tiers);
    tiers.clear();
    assert!(tiers.contents().is_empty());
    let told = events(&mut tiers);
    assert_eq!(told.len(), 1);
    assert!(matches!(&told[0].event, KvEvent::Removed { block_hashes } if block_hashes.len() == 2));
    tiers.settle(ms(500));
    assert_eq!(held(&tiers, LowerTier::Host), [200, 201]);
}
