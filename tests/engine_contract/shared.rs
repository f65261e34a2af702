//! Ranks that share memory below the GPU, each with passes of its own, in one clock.

use std::collections::BTreeSet;

use ghostfleet::engine::{Engine, EngineConfig, Fidelity, Pass, SharedMemory, SharedTier, build_in};
use ghostfleet::engine::{TierBandwidth, TierConfig, Writes};
use ghostfleet::types::{RequestId, SimTime};
use proptest::prelude::*;

use crate::index::{Index, LowerIndex};
use crate::load::Shape;

/// More events than any case needs.
const EVENTS: usize = 20_000;

/// One rank and what somebody knows who hears it.
struct Rank {
    engine: Box<dyn Engine>,
    pass: Pass,
    /// When its pass is over, if one is under way.
    ends_at: Option<SimTime>,
    index: Index,
    lower: LowerIndex,
    active: BTreeSet<RequestId>,
}

impl Rank {
    fn new(config: &EngineConfig, memory: &SharedMemory) -> Self {
        let mut rank = Self {
            engine: build_in(config, memory).unwrap(),
            pass: Pass::default(),
            ends_at: None,
            index: Index::default(),
            lower: LowerIndex::default(),
            active: BTreeSet::new(),
        };
        // Of what others have stored before.
        rank.look(SimTime::ZERO);
        rank
    }

    /// When something happens to it.
    fn next(&self) -> Option<SimTime> {
        self.ends_at.or_else(|| self.engine.wakes_at())
    }

    fn start(&mut self, now: SimTime) {
        if self.ends_at.is_none() && self.engine.step_into(now, &mut self.pass) {
            self.ends_at = Some(self.pass.ends_at);
        }
    }

    fn finish(&mut self, now: SimTime) {
        self.ends_at = None;
        self.engine.end_pass(now, &mut self.pass);
        for output in &self.pass.outputs {
            use ghostfleet::engine::Output::{Empty, Rejected, Token};
            match output {
                Token { finish: None, .. } => {}
                Token { id, .. } | Empty { id, .. } | Rejected { id, .. } => {
                    assert!(self.active.remove(id), "nobody ends twice");
                }
            }
        }
        self.hear();
    }

    fn look(&mut self, now: SimTime) {
        self.engine.end_transfers(now, &mut self.pass);
        self.hear();
    }

    fn hear(&mut self) {
        self.index.apply(&self.pass.kv_events);
        self.lower.apply(&self.pass.tier_events);
        self.pass.clear();
        // What is copied stays in the cache beyond what comes before it, until the copy is there.
        self.index.assert_equals(&self.engine.cached_blocks(), true);
        let load = self.engine.load();
        assert!(
            load.active_blocks + load.inactive_blocks <= load.total_blocks,
            "{load:?}"
        );
        assert_eq!(
            (load.running + load.waiting) as usize,
            self.active.len(),
            "nobody is lost"
        );
    }
}

/// What happens to the fleet.
#[derive(Debug, Clone)]
enum Op {
    Submit(usize, Shape),
    Cancel(usize, usize),
    /// So many events.
    Run(u8),
    /// The rank dies, and a new one takes its place.
    Replace(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let shape = (0..3_u32, 0..80_u32, 1..40_u32, 1..12_u32)
        .prop_map(|(family, shared, own, answer)| Shape::answered(shared, own, answer).of_family(family));
    let op = prop_oneof![
        6 => (0..3_usize, shape).prop_map(|(rank, shape)| Op::Submit(rank, shape)),
        1 => (0..3_usize, 0..8_usize).prop_map(|(rank, at)| Op::Cancel(rank, at)),
        5 => (1..40_u8).prop_map(Op::Run),
        1 => (0..3_usize).prop_map(Op::Replace),
    ];
    proptest::collection::vec(op, 1..40)
}

fn tiers() -> impl Strategy<Value = TierConfig> {
    let speed = || prop_oneof![Just(0.0), Just(0.001), Just(0.02), Just(1.0)];
    let scope = || {
        prop_oneof![
            Just(None),
            (speed(), speed()).prop_map(|(down, up)| Some(SharedTier { down, up, layout: 7 }))
        ]
    };
    let speeds = (speed(), speed(), speed(), speed());
    (
        1..40_u32,
        0..30_u32,
        speeds,
        prop_oneof![Just(0.0), Just(2.5)],
        scope(),
        scope(),
    )
        .prop_filter_map(
            "something is shared",
            |(
                host_blocks,
                disk_blocks,
                (g1_to_g2, g2_to_g1, g2_to_g3, g3_to_g2),
                latency_ms,
                host_shared,
                disk_shared,
            )| {
                let disk_shared = disk_shared.filter(|_| disk_blocks > 0);
                (host_shared.is_some() || disk_shared.is_some()).then_some(TierConfig {
                    writes: Writes::Through,
                    host_blocks,
                    disk_blocks,
                    storage: false,
                    bytes_per_token: 10_000,
                    bandwidth: TierBandwidth {
                        g1_to_g2,
                        g2_to_g1,
                        g2_to_g3,
                        g3_to_g2,
                        ..TierBandwidth::default()
                    },
                    host_latency_ms: latency_ms,
                    disk_latency_ms: latency_ms,
                    host_shared,
                    disk_shared,
                })
            },
        )
}

/// Three ranks in one clock.
struct Fleet {
    config: EngineConfig,
    memory: SharedMemory,
    ranks: Vec<Rank>,
    now: SimTime,
    number: u64,
}

impl Fleet {
    fn new(tiers: TierConfig, blocks: u32) -> Self {
        let config = EngineConfig {
            fidelity: Fidelity::Mocker,
            num_gpu_blocks: blocks,
            block_size: 4,
            max_num_batched_tokens: Some(64),
            tiers: Some(tiers),
            ..EngineConfig::default()
        };
        let memory = SharedMemory::new();
        Self {
            ranks: (0..3).map(|_| Rank::new(&config, &memory)).collect(),
            memory,
            config,
            now: SimTime::ZERO,
            number: 0,
        }
    }

    /// The next thing that happens to anybody; `false`: nothing does.
    fn event(&mut self) -> bool {
        for rank in &mut self.ranks {
            rank.start(self.now);
        }
        let Some(next) = self.ranks.iter().filter_map(Rank::next).min() else {
            return false;
        };
        self.now = self.now.max(next);
        for rank in &mut self.ranks {
            match rank.ends_at {
                Some(end) if end <= self.now => rank.finish(end),
                None if rank.engine.wakes_at().is_some_and(|at| at <= self.now) => rank.look(self.now),
                Some(_) | None => {}
            }
        }
        true
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Submit(rank, shape) => {
                let request = shape.request(self.number);
                self.number += 1;
                let (id, rank) = (request.id, &mut self.ranks[*rank]);
                if rank.engine.submit(request, self.now).is_ok() {
                    rank.active.insert(id);
                }
            }
            Op::Cancel(rank, at) => {
                let rank = &mut self.ranks[*rank];
                let id = rank.active.iter().nth(*at).copied();
                if let Some(id) = id {
                    // With its last token in the pass under way the engine knows it no more; what it had there is void.
                    rank.engine.cancel(id, self.now);
                    rank.active.remove(&id);
                    rank.pass.outputs.retain(|output| !is_of(output, id));
                }
            }
            Op::Run(events) => {
                for _ in 0..*events {
                    if !self.event() {
                        break;
                    }
                }
            }
            Op::Replace(rank) => self.ranks[*rank] = Rank::new(&self.config, &self.memory),
        }
    }
}

fn is_of(output: &ghostfleet::engine::Output, of: RequestId) -> bool {
    use ghostfleet::engine::Output::{Empty, Rejected, Token};
    match output {
        Token { id, .. } | Empty { id, .. } | Rejected { id, .. } => *id == of,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ranks_that_share_memory_lose_nobody_and_all_know_what_is_in_it(
        tiers in tiers(), blocks in 30..80_u32, ops in ops(),
    ) {
        let mut fleet = Fleet::new(tiers, blocks);
        for op in &ops {
            fleet.apply(op);
        }
        let mut events = 0;
        while fleet.event() {
            events += 1;
            prop_assert!(events < EVENTS, "it comes to rest");
        }
        for rank in &mut fleet.ranks {
            prop_assert!(rank.active.is_empty(), "starved: {:?}", rank.active);
            let load = rank.engine.load();
            prop_assert_eq!(load.active_blocks, 0, "nothing is held any more");
            prop_assert!(!rank.engine.is_moving());
            rank.lower.assert_equals(&rank.engine.lower_blocks());
        }
        if let Some(host) = fleet.memory.host() {
            prop_assert_eq!(host.used_blocks, host.resident_blocks, "nothing is expected any more");
            prop_assert!(host.used_blocks <= host.capacity_blocks);
        }
        if let Some(disk) = fleet.memory.disk() {
            prop_assert_eq!(disk.pending_blocks, 0);
            prop_assert_eq!(disk.write.submitted_jobs, disk.write.completed_jobs + disk.write.cancelled_jobs);
            prop_assert_eq!(disk.read.submitted_jobs, disk.read.completed_jobs + disk.read.cancelled_jobs);
        }
    }

    #[test]
    fn the_same_load_on_shared_memory_has_the_same_passes(tiers in tiers(), blocks in 30..80_u32, ops in ops()) {
        let run = || {
            let mut fleet = Fleet::new(tiers, blocks);
            for op in &ops {
                fleet.apply(op);
            }
            while fleet.event() {}
            (fleet.now, fleet.memory.host(), fleet.memory.disk())
        };
        prop_assert_eq!(run(), run());
    }
}
