//! What every engine promises, whatever its scheduler, checked with random loads.

#![allow(clippy::unwrap_used)]

mod index;
mod load;

use std::collections::BTreeMap;

use ghostfleet::block_hash::hash_blocks;
use ghostfleet::engine::{
    CapacityPolicy, Engine, EngineConfig, EngineKind, EvictionBackend, Fidelity, HandoffFact, Output, OutputDetail,
    Pass, PreemptionMode, RadixEviction, Reasoning, Rejected, Semantics, SglangConfig, SglangPolicy, Speculation,
    TierBandwidth, TierConfig, Writes, build,
};
use ghostfleet::types::{KvEvent, RequestId, SimTime};
use index::{Index, LowerIndex};
use load::{Op, Script, Shape, scripts};
use proptest::prelude::*;

/// More passes than any script of ours needs; an engine that runs longer starves somebody.
const PASSES: usize = 5_000;

/// Runs scripts on one engine and checks what must hold after every pass.
struct Driver {
    config: EngineConfig,
    engine: Box<dyn Engine>,
    now: SimTime,
    index: Index,
    lower: LowerIndex,
    /// Tokens still to come per active request; `None` when the end is drawn by the engine.
    active: BTreeMap<RequestId, Progress>,
    passes: Vec<Pass>,
    /// Blocks that requests are to do without.
    wanted: u32,
}

#[derive(Debug, Default)]
struct Progress {
    got: u32,
    most: Option<u32>,
    admitted: bool,
}

impl Driver {
    fn new(config: &EngineConfig) -> Self {
        let mut engine = build(config).unwrap();
        engine.record_schedule(true);
        engine.record_stored(true);
        Self {
            config: config.clone(),
            engine,
            now: SimTime::ZERO,
            index: Index::default(),
            lower: LowerIndex::default(),
            active: BTreeMap::new(),
            passes: Vec::new(),
            wanted: 0,
        }
    }

    fn run(&mut self, script: &Script) {
        for (number, op) in script.ops.iter().enumerate() {
            match op {
                Op::Submit(shape) => {
                    let request = shape.request(number as u64);
                    let (id, most) = (request.id, shape.max_tokens);
                    if self.engine.submit(request, self.now).is_ok() {
                        let progress = Progress {
                            most,
                            ..Progress::default()
                        };
                        assert!(self.active.insert(id, progress).is_none());
                    }
                }
                Op::Steps(count) => {
                    for _ in 0..*count {
                        self.step();
                        self.check();
                    }
                }
                Op::Cancel(at) => {
                    let id = self.active.keys().nth(at % self.active.len().max(1)).copied();
                    if let Some(id) = id {
                        assert!(self.engine.cancel(id, self.now));
                        self.active.remove(&id);
                        assert!(!self.engine.cancel(id, self.now));
                    }
                }
                Op::ClearCache => {
                    let events = self.engine.clear_cache();
                    self.index.apply(&events);
                    assert_eq!(self.engine.load().inactive_blocks, 0);
                }
                Op::Withhold(percent) => self.withhold(*percent),
            }
            self.check();
        }
    }

    /// Takes blocks away from the pool, or gives them back.
    fn withhold(&mut self, percent: u32) {
        let before = self.engine.load();
        let whole = before.total_blocks + self.engine.withheld();
        let wanted = whole * percent / 100;
        let events = self.engine.withhold(wanted);
        self.index.apply(&events);
        let load = self.engine.load();
        let kept = self.engine.withheld();
        assert_eq!(load.total_blocks, whole - kept);
        assert_eq!((load.running, load.waiting), (before.running, before.waiting));
        assert!(kept <= wanted);
        if self.active.is_empty() && self.keeps_idle_cache_apart() {
            assert_eq!(kept, wanted, "nobody uses anything: {load:?}");
        }
        self.wanted = wanted;
    }

    /// Whether cached blocks that nobody uses are told from those in use.
    fn keeps_idle_cache_apart(&self) -> bool {
        (self.config.kind, self.config.fidelity) != (EngineKind::Sglang, Fidelity::Mocker)
    }

    /// Runs until everybody has their answer.
    fn drain(&mut self) {
        self.withhold(0);
        for _ in 0..PASSES {
            if !self.step() && !self.wait() {
                break;
            }
            self.check();
        }
        assert!(self.active.is_empty(), "starved: {:?}", self.active);
    }

    /// Waits for a transfer below the GPU, if one is under way.
    fn wait(&mut self) -> bool {
        let at = self.engine.wakes_at();
        self.now = self.now.max(at.unwrap_or_default());
        at.is_some()
    }

    fn step(&mut self) -> bool {
        // What was in use is taken away as it becomes free.
        if self.engine.withheld() < self.wanted {
            let events = self.engine.withhold(self.wanted);
            self.index.apply(&events);
        }
        let Some(pass) = self.engine.step(self.now) else {
            // A prompt that is computed in part may wait for blocks that are gone.
            assert!(
                self.engine.load().running == 0 || self.wanted > 0,
                "an engine with running requests has work"
            );
            return false;
        };
        assert!(pass.ends_at >= self.now);
        self.now = pass.ends_at;
        let scheduled: u64 = self
            .engine
            .schedule()
            .iter()
            .map(|&(_, tokens)| u64::from(tokens))
            .sum();
        assert!(scheduled <= self.most_scheduled());
        for admission in &pass.admissions {
            let progress = self
                .active
                .get_mut(&admission.id)
                .expect("only active requests are admitted");
            assert_eq!(admission.again, std::mem::replace(&mut progress.admitted, true));
        }
        for output in &pass.outputs {
            self.take(output);
        }
        self.check_contents(&pass);
        self.index.apply(&pass.kv_events);
        self.lower.apply(&pass.tier_events);
        self.lower.assert_equals(&self.engine.lower_blocks());
        assert_eq!(pass.load, self.engine.load());
        self.passes.push(pass);
        true
    }

    /// Each stored run says what its blocks contain, and that has the hashes which it announces.
    fn check_contents(&self, pass: &Pass) {
        let runs = pass.kv_events.iter().filter_map(|event| match event {
            KvEvent::Stored { blocks, .. } => Some(blocks),
            KvEvent::Removed { .. } | KvEvent::Cleared => None,
        });
        let runs: Vec<_> = runs.collect();
        assert_eq!(pass.stored.len(), runs.len());
        for (blocks, content) in runs.into_iter().zip(&pass.stored) {
            let hashed = hash_blocks(&content.tokens, self.config.block_size as usize, &content.salt, false);
            let contents = hashed.iter().map(|block| block.tokens_hash);
            assert!(
                contents.eq(blocks.iter().map(|block| block.tokens_hash)),
                "{blocks:?} {content:?}"
            );
        }
    }

    /// Tokens that a pass may compute at most.
    fn most_scheduled(&self) -> u64 {
        match self.config.kind {
            EngineKind::Vllm | EngineKind::Trtllm => self.config.max_num_batched_tokens.map_or(u64::MAX, u64::from),
            EngineKind::Sglang => {
                let chunk = self.config.sglang.chunked_prefill_size;
                let chunk = chunk.filter(|_| self.config.enable_chunked_prefill);
                let decoding = self.active.len() as u64;
                let emulates_old =
                    (self.config.fidelity, self.config.semantics) == (Fidelity::Mocker, Semantics::V1_4_2);
                chunk.map(u64::from).map_or(u64::MAX, |chunk| {
                    if emulates_old {
                        chunk + decoding
                    } else {
                        chunk.max(decoding)
                    }
                })
            }
        }
    }

    fn take(&mut self, output: &Output) {
        match *output {
            Output::Token { id, finish, .. } => {
                let progress = self
                    .active
                    .get_mut(&id)
                    .expect("no token after the last one or a cancel");
                progress.got += 1;
                assert!(progress.admitted);
                assert!(progress.most.is_none_or(|most| progress.got <= most));
                if finish.is_some() {
                    self.active.remove(&id);
                }
            }
            Output::Empty { id, .. } => {
                let progress = self.active.remove(&id).expect("ends once");
                assert_eq!(progress.got, 0);
            }
            Output::Rejected { id, ref reason } => {
                let progress = self.active.remove(&id).expect("ends once");
                let outgrown = matches!(reason, Rejected::OutOfMemory { .. } | Rejected::PassTooSmall { .. });
                assert!(!progress.admitted || outgrown, "{reason}");
            }
        }
    }

    fn check(&self) {
        let load = self.engine.load();
        assert!(
            load.active_blocks + load.inactive_blocks <= load.total_blocks,
            "{load:?}"
        );
        assert!(self.config.max_num_seqs.is_none_or(|most| load.running <= most));
        assert_eq!(
            (load.running + load.waiting) as usize,
            self.active.len(),
            "nobody is lost"
        );
        let orphans = matches!(
            self.config.eviction_backend,
            EvictionBackend::Lru | EvictionBackend::MultiLru
        );
        self.index.assert_equals(&self.engine.cached_blocks(), orphans);
    }

    fn assert_empty(&mut self) {
        if (self.config.kind, self.config.fidelity) == (EngineKind::Sglang, Fidelity::Mocker) {
            // It does not tell cached blocks from those in use.
            self.index.apply(&self.engine.clear_cache());
        }
        let load = self.engine.load();
        assert_eq!((load.running, load.waiting, load.active_blocks), (0, 0, 0));
    }
}

fn engines() -> impl Strategy<Value = (EngineKind, Fidelity)> {
    let kinds = prop::sample::select(EngineKind::ALL.to_vec());
    (kinds, prop::sample::select(vec![Fidelity::Real, Fidelity::Mocker]))
}

prop_compose! {
    fn speculations()(nextn in 1_u32..6, accept_rates in prop::collection::vec(0.0..1.0, 0..6), seed in any::<u64>()) -> Speculation {
        Speculation { nextn, accept_rates, seed }
    }
}

prop_compose! {
    fn sglang_configs()(
        schedule_policy in prop::sample::select(vec![
            SglangPolicy::Fcfs, SglangPolicy::Lpm, SglangPolicy::DfsWeight, SglangPolicy::Lof, SglangPolicy::Random,
            SglangPolicy::Hrrn, SglangPolicy::ShortestPrefillFirst, SglangPolicy::RoutingKey,
        ]),
        max_prefill_tokens in prop::sample::select(vec![16_u32, 64, 16_384]),
        chunked_prefill_size in prop::option::of(prop::sample::select(vec![16_u32, 32, 64])),
        clip_max_new_tokens in prop::sample::select(vec![4_u32, 4096]),
        schedule_conservativeness in prop::sample::select(vec![0.0, 0.1, 1.0]),
        radix_eviction_policy in prop::sample::select(vec![
            RadixEviction::Lru, RadixEviction::Mru, RadixEviction::Lfu, RadixEviction::Slru, RadixEviction::Fifo,
            RadixEviction::Filo, RadixEviction::Priority, RadixEviction::Tlru,
        ]),
        prefill_decode_interval in prop::sample::select(vec![0_u32, 0, 3]),
    ) -> SglangConfig {
        SglangConfig {
            schedule_policy,
            max_prefill_tokens,
            chunked_prefill_size,
            clip_max_new_tokens,
            schedule_conservativeness,
            radix_eviction_policy,
            tlru_threshold: 20,
            tlru_next_prompt_estimate: 4,
            prefill_decode_interval,
        }
    }
}

prop_compose! {
    fn tier_configs()(
        host_blocks in 1_u32..20,
        disk_blocks in 0_u32..12,
        storage in any::<bool>(),
        batch_blocks in prop::option::of(1_u32..6),
        latency_ms in prop::sample::select(vec![0.0, 0.0, 3.0]),
        speeds in prop::collection::vec(prop::sample::select(vec![0.0, 0.01, 0.5, 20.0]), 6),
    ) -> TierConfig {
        TierConfig {
            host_blocks,
            disk_blocks,
            storage,
            writes: batch_blocks.map_or(Writes::Through, |batch_blocks| Writes::OnEviction { batch_blocks }),
            bytes_per_token: 100_000,
            host_latency_ms: latency_ms,
            disk_latency_ms: latency_ms,
            bandwidth: TierBandwidth {
                g1_to_g2: speeds[0],
                g2_to_g1: speeds[1],
                g2_to_g3: speeds[2],
                g3_to_g2: speeds[3],
                g2_to_g4: speeds[4],
                g4_to_g2: speeds[5],
            },
        }
    }
}

prop_compose! {
    fn configs()(
        (kind, fidelity) in engines(),
        num_gpu_blocks in 6_u32..40,
        block_size in prop::sample::select(vec![1_u32, 2, 4, 16]),
        max_num_seqs in prop::option::of(1_u32..9),
        max_num_batched_tokens in prop::option::of(8_u32..80),
        max_model_len in prop::option::of(20_u32..200),
        enable_prefix_caching in prop::bool::weighted(0.8),
        enable_chunked_prefill in prop::bool::weighted(0.8),
        eviction_backend in prop::sample::select(EvictionBackend::ALL.to_vec()),
        fifo in any::<bool>(),
        priority_scheduling in any::<bool>(),
        watermark in prop::sample::select(vec![0.0, 0.1]),
        reserve_full_isl in any::<bool>(),
        long_prefill_token_threshold in prop::sample::select(vec![0_u32, 5]),
        long_prefill_token_threshold_adaptive in any::<bool>(),
        sglang in sglang_configs(),
        speculation in prop::option::weighted(0.2, speculations()),
        old in prop::bool::weighted(0.2),
        tiers in prop::option::weighted(0.5, tier_configs()),
        max_utilization in any::<bool>(),
        thinking_ratio in prop::option::weighted(0.2, 0.0..1.0),
        seed in any::<u64>(),
    ) -> EngineConfig {
        EngineConfig {
            kind,
            fidelity,
            num_gpu_blocks,
            block_size,
            max_model_len,
            max_num_seqs,
            max_num_batched_tokens,
            // That policy cannot do without.
            enable_prefix_caching: enable_prefix_caching
                || (kind == EngineKind::Sglang && sglang.schedule_policy == SglangPolicy::ShortestPrefillFirst),
            enable_chunked_prefill,
            eviction_backend: if kind == EngineKind::Sglang { EvictionBackend::Native } else { eviction_backend },
            preemption_mode: if fifo { PreemptionMode::Fifo } else { PreemptionMode::Lifo },
            priority_scheduling,
            watermark,
            reserve_full_isl,
            long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive,
            sglang,
            tiers: tiers.filter(|tiers| {
                let possible = kind == EngineKind::Vllm && enable_prefix_caching && speculation.is_none();
                possible && (tiers.writes != Writes::Through || eviction_backend == EvictionBackend::Native)
            }),
            speculation,
            semantics: if old { Semantics::V1_4_2 } else { Semantics::V1_6_1 },
            capacity_policy: if max_utilization { CapacityPolicy::MaxUtilization } else { CapacityPolicy::GuaranteedNoEvict },
            reasoning: thinking_ratio.map(|ratio| Reasoning { start_token: 1100, end_token: 3, ratio }),
            seed,
            ..EngineConfig::default()
        }
    }
}

/// Passes of `script` with the outputs that `detail` lists.
fn passes(config: &EngineConfig, script: &Script, detail: OutputDetail, quiet: bool) -> Vec<(SimTime, Pass)> {
    let mut engine = build(config).unwrap();
    engine.set_output_detail(detail);
    let mut now = SimTime::ZERO;
    let mut seen = Vec::new();
    let mut step = |engine: &mut dyn Engine, now: &mut SimTime| {
        if quiet && let Some(end) = engine.step_quiet(*now) {
            assert!(end >= *now);
            *now = end;
            return true;
        }
        let Some(pass) = engine.step(*now) else {
            let at = engine.wakes_at();
            *now = (*now).max(at.unwrap_or_default());
            return at.is_some();
        };
        *now = pass.ends_at;
        seen.push((*now, pass));
        true
    };
    for (number, op) in script.ops.iter().enumerate() {
        match op {
            Op::Submit(shape) => drop(engine.submit(shape.request(number as u64), now)),
            Op::Steps(count) => {
                for _ in 0..*count {
                    step(engine.as_mut(), &mut now);
                }
            }
            Op::Cancel(at) => drop(engine.cancel(RequestId(*at as u64), now)),
            Op::ClearCache => drop(engine.clear_cache()),
            Op::Withhold(percent) => {
                let whole = engine.load().total_blocks + engine.withheld();
                drop(engine.withhold(whole * percent / 100));
            }
        }
    }
    engine.withhold(0);
    let mut left = PASSES;
    while step(engine.as_mut(), &mut now) {
        left -= 1;
        assert!(left > 0, "starved: {:?}", engine.load());
    }
    seen
}

/// First and last tokens only.
fn milestones(passes: Vec<(SimTime, Pass)>) -> Vec<(SimTime, Pass)> {
    let mut started = std::collections::BTreeSet::new();
    let keep = |(now, mut pass): (SimTime, Pass)| {
        pass.outputs.retain(|output| match *output {
            Output::Token { id, finish, .. } => started.insert(id) || finish.is_some(),
            Output::Empty { .. } | Output::Rejected { .. } => true,
        });
        (now, pass)
    };
    passes.into_iter().map(keep).collect()
}

/// Passes in which somebody hears something or the cache changes.
fn eventful(mut passes: Vec<(SimTime, Pass)>) -> Vec<(SimTime, Pass)> {
    passes.retain(|(_, pass)| {
        !(pass.outputs.is_empty()
            && pass.admissions.is_empty()
            && pass.preempted.is_empty()
            && pass.kv_events.is_empty()
            && pass.tier_events.is_empty())
    });
    passes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nobody_is_lost_and_the_books_balance(config in configs(), script in scripts()) {
        let mut driver = Driver::new(&config);
        driver.run(&script);
        driver.drain();
        driver.assert_empty();
    }

    #[test]
    fn cancelling_everybody_returns_everything(config in configs(), script in scripts()) {
        let mut driver = Driver::new(&config);
        driver.run(&script);
        for id in std::mem::take(&mut driver.active).into_keys() {
            prop_assert!(driver.engine.cancel(id, driver.now));
        }
        driver.assert_empty();
        driver.check();
        while driver.step() || driver.wait() {}
        let events = driver.engine.clear_cache();
        driver.index.apply(&events);
        driver.check();
        prop_assert!(driver.engine.lower_blocks().is_empty());
        while driver.step() || driver.wait() {}
        let load = driver.engine.load();
        prop_assert_eq!((load.active_blocks, load.inactive_blocks), (0, 0));
    }

    #[test]
    fn same_seed_same_passes(config in configs(), script in scripts()) {
        let run = || {
            let mut driver = Driver::new(&config);
            driver.run(&script);
            driver.drain();
            driver.passes
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn an_engine_does_not_care_what_a_prompt_is_made_from(config in configs(), script in scripts()) {
        let plain = passes(&config, &script, OutputDetail::EveryToken, false);
        let runs = Script { ops: script.ops.iter().map(Op::with_runs).collect() };
        prop_assert_eq!(passes(&config, &runs, OutputDetail::EveryToken, false), plain);
    }

    #[test]
    fn listing_fewer_outputs_changes_nothing_else(config in configs(), script in scripts()) {
        let every = passes(&config, &script, OutputDetail::EveryToken, false);
        let few = passes(&config, &script, OutputDetail::Milestones, false);
        prop_assert_eq!(milestones(every), few);
    }

    #[test]
    fn quiet_passes_leave_out_only_tokens(config in configs(), script in scripts()) {
        let all = passes(&config, &script, OutputDetail::Milestones, false);
        let loud = passes(&config, &script, OutputDetail::Milestones, true);
        prop_assert!(loud.len() <= all.len());
        let (all, loud) = (eventful(all), eventful(loud));
        for (all, loud) in all.iter().zip(&loud) {
            prop_assert_eq!(all, loud);
        }
        prop_assert_eq!(all.len(), loud.len());
    }

    #[test]
    fn handoffs_give_every_block_back(config in configs(), script in scripts(), stop in 0_usize..200) {
        let mut driver = Driver::new(&config);
        let mut waiting = Vec::new();
        for (number, op) in script.ops.iter().enumerate() {
            let Op::Submit(shape) = op else { continue };
            let request = shape.request(number as u64);
            let id = request.id;
            let done = if number % 2 == 0 {
                driver.engine.submit_source(request, driver.now)
            } else {
                driver.engine.reserve_destination(request, driver.now)
            };
            waiting.extend(done.is_ok().then_some(id));
        }
        let mut facts = Vec::new();
        for _ in 0..stop {
            driver.engine.take_handoff_facts(driver.now, &mut facts);
            for fact in facts.drain(..) {
                match fact {
                    HandoffFact::SourceHeld { id, .. } => prop_assert!(driver.engine.release_source(id)),
                    HandoffFact::DestinationReserved { id, .. } => prop_assert!(driver.engine.activate_destination(id)),
                }
            }
            let load = driver.engine.load();
            prop_assert!(load.active_blocks + load.inactive_blocks <= load.total_blocks);
            match driver.engine.step(driver.now) {
                Some(pass) => {
                    driver.now = pass.ends_at;
                    driver.index.apply(&pass.kv_events);
                }
                None if driver.wait() => {}
                None => driver.now.0 += 1,
            }
        }
        for id in waiting {
            driver.engine.cancel(id, driver.now);
        }
        driver.assert_empty();
    }
}

#[test]
fn a_request_that_outgrew_a_pool_which_lost_pages_leaves_nothing_untold() {
    let config = EngineConfig {
        kind: EngineKind::Sglang,
        fidelity: Fidelity::Mocker,
        num_gpu_blocks: 23,
        block_size: 4,
        max_num_seqs: None,
        max_num_batched_tokens: None,
        enable_chunked_prefill: false,
        sglang: SglangConfig {
            schedule_policy: SglangPolicy::Lpm,
            chunked_prefill_size: None,
            clip_max_new_tokens: 4,
            schedule_conservativeness: 0.0,
            ..SglangConfig::default()
        },
        ..EngineConfig::default()
    };
    let ops = vec![
        Op::Withhold(20),
        Op::Submit(Shape::open_ended(60, 5)),
        Op::Steps(15),
        Op::Submit(Shape::open_ended(0, 1)),
        Op::Submit(Shape::open_ended(0, 1)),
        Op::Cancel(33),
    ];
    let mut driver = Driver::new(&config);
    driver.run(&Script { ops });
    driver.drain();
    driver.assert_empty();
}
