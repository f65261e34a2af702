//! Runs scripts on one engine and checks what must hold after every pass.

use std::collections::BTreeMap;

use ghostfleet::block_hash::hash_blocks;
use ghostfleet::engine::{
    Engine, EngineConfig, EngineKind, EvictionBackend, Fidelity, Output, Pass, Rejected, Semantics, build,
};
use ghostfleet::types::{KvEvent, RequestId, SimTime};

use crate::index::{Index, LowerIndex};
use crate::load::{Op, Script};
use crate::passes::PASSES;

/// Runs scripts on one engine and checks what must hold after every pass.
pub(crate) struct Driver {
    pub(crate) config: EngineConfig,
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) now: SimTime,
    pub(crate) index: Index,
    pub(crate) lower: LowerIndex,
    /// Tokens still to come per active request; `None` when the end is drawn by the engine.
    pub(crate) active: BTreeMap<RequestId, Progress>,
    pub(crate) passes: Vec<Pass>,
    /// Blocks that requests are to do without.
    pub(crate) wanted: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) got: u32,
    pub(crate) most: Option<u32>,
    pub(crate) admitted: bool,
}

impl Driver {
    pub(crate) fn new(config: &EngineConfig) -> Self {
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

    pub(crate) fn run(&mut self, script: &Script) {
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
    pub(crate) fn withhold(&mut self, percent: u32) {
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
    pub(crate) fn keeps_idle_cache_apart(&self) -> bool {
        (self.config.kind, self.config.fidelity) != (EngineKind::Sglang, Fidelity::Mocker)
    }

    /// Runs until everybody has their answer.
    pub(crate) fn drain(&mut self) {
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
    pub(crate) fn wait(&mut self) -> bool {
        let at = self.engine.wakes_at();
        self.now = self.now.max(at.unwrap_or_default());
        at.is_some()
    }

    pub(crate) fn step(&mut self) -> bool {
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
    pub(crate) fn check_contents(&self, pass: &Pass) {
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
    pub(crate) fn most_scheduled(&self) -> u64 {
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

    pub(crate) fn take(&mut self, output: &Output) {
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

    pub(crate) fn check(&self) {
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
        self.check_index();
    }

    /// What was told of the cache is what it holds.
    pub(crate) fn check_index(&self) {
        let orphans = matches!(
            self.config.eviction_backend,
            EvictionBackend::Lru | EvictionBackend::MultiLru
        );
        self.index.assert_equals(&self.engine.cached_blocks(), orphans);
    }

    pub(crate) fn assert_empty(&mut self) {
        if (self.config.kind, self.config.fidelity) == (EngineKind::Sglang, Fidelity::Mocker) {
            // It does not tell cached blocks from those in use.
            self.index.apply(&self.engine.clear_cache());
        }
        let load = self.engine.load();
        assert_eq!((load.running, load.waiting, load.active_blocks), (0, 0, 0));
    }
}
