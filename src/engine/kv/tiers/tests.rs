use super::super::super::config::TierBandwidth;
use super::*;
use crate::types::LocalHash;

const MS: u64 = 1_000_000;

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

fn chain(family: u64, blocks: u32) -> Vec<BlockIdentity> {
    (0..blocks).map(|index| block(family, index)).collect()
}

fn tiers(host_blocks: u32, disk_blocks: u32, storage: bool) -> Tiers {
    let config = TierConfig {
        host_blocks,
        disk_blocks,
        storage,
        batch_blocks: 2,
        bytes_per_token: 100_000,
        bandwidth: TierBandwidth {
            g1_to_g2: 1.0,
            g2_to_g1: 1.0,
            g2_to_g3: 0.5,
            g3_to_g2: 0.25,
            g2_to_g4: 0.5,
            g4_to_g2: 0.1,
        },
    };
    Tiers::new(&config, 10, 1.0)
}

fn write(tiers: &mut Tiers, blocks: &[BlockIdentity], at_ms: u64) {
    for &identity in blocks {
        tiers.offer(identity);
    }
    tiers.write_offered(SimTime(at_ms * MS));
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
fn blocks_can_be_read_when_their_transfer_is_done_batch_by_batch() {
    let mut tiers = tiers(8, 0, false);
    write(&mut tiers, &chain(1, 3), 10);
    assert_eq!(tiers.next_arrival(), Some(SimTime(12 * MS)));
    tiers.settle(SimTime(12 * MS));
    assert_eq!(held(&tiers, LowerTier::Host), [100, 101]);
    tiers.settle(SimTime(13 * MS));
    assert_eq!(held(&tiers, LowerTier::Host), [100, 101, 102]);
    let told = events(&mut tiers);
    assert_eq!(told.len(), 2, "one event per batch");
    assert!(told.iter().all(|event| event.tier == LowerTier::Host));
    assert_eq!(tiers.read(&chain(1, 3), SimTime(20 * MS)), SimTime(23 * MS));
    write(&mut tiers, &chain(1, 3), 30);
    assert_eq!(tiers.next_arrival(), None, "what is there is not written again");
}

#[test]
fn what_leaves_host_memory_goes_down_and_comes_back_through_it() {
    let mut tiers = tiers(2, 2, true);
    for family in 1..=3 {
        write(&mut tiers, &chain(family, 2), family * 100);
        tiers.settle(SimTime((family * 100 + 50) * MS));
    }
    tiers.settle(SimTime(900 * MS));
    assert_eq!(held(&tiers, LowerTier::Host), [300, 301]);
    assert_eq!(held(&tiers, LowerTier::Disk), [200, 201]);
    assert_eq!(held(&tiers, LowerTier::Storage), [100, 101]);
    let told = events(&mut tiers);
    let removed = |tier| {
        let is = |event: &&TierEvent| event.tier == tier && matches!(event.event, KvEvent::Removed { .. });
        told.iter().filter(is).count()
    };
    assert_eq!((removed(LowerTier::Host), removed(LowerTier::Disk)), (2, 1));
    // From disk at 0.25 GB/s into the host, then at 1 GB/s into the GPU.
    assert_eq!(tiers.read(&chain(2, 2), SimTime(1000 * MS)), SimTime(1010 * MS));
    tiers.settle(SimTime(1008 * MS));
    assert_eq!(
        held(&tiers, LowerTier::Host),
        [200, 201],
        "read blocks stay in the host"
    );
    assert_eq!(tiers.read(&chain(1, 1), SimTime(2000 * MS)), SimTime(2011 * MS));
}

#[test]
fn tails_leave_before_heads() {
    let mut tiers = tiers(4, 0, false);
    write(&mut tiers, &chain(1, 4), 0);
    tiers.settle(SimTime(50 * MS));
    // A read refreshes in the same way.
    tiers.read(&chain(1, 4), SimTime(60 * MS));
    write(&mut tiers, &chain(2, 1), 100);
    tiers.settle(SimTime(200 * MS));
    assert_eq!(held(&tiers, LowerTier::Host), [100, 101, 102, 200]);
}

#[test]
fn clearing_withdraws_everything_and_forgets_what_is_on_its_way() {
    let mut tiers = tiers(4, 4, false);
    write(&mut tiers, &chain(1, 2), 0);
    tiers.settle(SimTime(50 * MS));
    write(&mut tiers, &chain(2, 2), 60);
    events(&mut tiers);
    tiers.clear();
    tiers.settle(SimTime(500 * MS));
    assert!(tiers.contents().is_empty());
    let told = events(&mut tiers);
    assert_eq!(told.len(), 1);
    assert!(matches!(&told[0].event, KvEvent::Removed { block_hashes } if block_hashes.len() == 2));
}
