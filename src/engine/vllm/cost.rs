//! What passes cost, counted in visits of the scheduler to single requests.

use super::super::config::{EngineConfig, TierBandwidth, TierConfig, Writes};
use super::super::cost::{self, quiet_and_loud, run};
use super::super::timing;
use super::super::{Engine, OutputDetail};
use super::Vllm;
use crate::types::{EngineRequest, RequestId, SimTime};

const BLOCK: u32 = 64;

fn engine() -> Vllm {
    let config = EngineConfig {
        block_size: BLOCK,
        ..EngineConfig::default()
    };
    Vllm::alone(&config, timing::build(&config.timing))
}

/// A request of a family of its own.
fn request(id: u64, prompt_len: u32, max_tokens: u32) -> EngineRequest {
    cost::request(id, u32::try_from(id).unwrap(), prompt_len, max_tokens)
}

#[test]
fn a_decoding_request_is_visited_twice_per_block_however_many_tokens_it_gets() {
    let (requests, blocks) = (100_u32, 10);
    let mut engine = engine();
    engine.set_output_detail(OutputDetail::Milestones);
    for id in 0..requests {
        engine
            .submit(request(u64::from(id), 20 + id % 40, blocks * BLOCK), SimTime::ZERO)
            .unwrap();
    }
    run(&mut engine, SimTime::ZERO);
    let most = u64::from(requests * (2 * blocks + 2));
    assert!(
        engine.visits <= most,
        "{} visits for {} tokens",
        engine.visits,
        requests * blocks * BLOCK
    );
}

#[test]
fn passes_between_block_boundaries_are_quiet() {
    let blocks = 10;
    let mut engine = engine();
    engine.submit(request(1, 30, blocks * BLOCK), SimTime::ZERO).unwrap();
    let (quiet, loud) = quiet_and_loud(&mut engine);
    assert_eq!(quiet + loud, blocks * BLOCK);
    assert!(loud <= 2 * blocks + 2, "{loud} passes that change something");
}

#[test]
fn a_request_that_does_not_fit_is_not_tried_again_until_something_changes() {
    let config = EngineConfig {
        block_size: BLOCK,
        num_gpu_blocks: 12,
        ..EngineConfig::default()
    };
    let mut engine = Vllm::alone(&config, timing::build(&config.timing));
    engine.submit(request(1, 8 * BLOCK + 2, 50), SimTime::ZERO).unwrap();
    engine.submit(request(2, 6 * BLOCK, 5), SimTime::ZERO).unwrap();
    let mut now = engine.step(SimTime::ZERO).unwrap().ends_at;
    assert_eq!((engine.load().running, engine.load().waiting), (1, 1));
    for _ in 0..40 {
        now = engine
            .step_quiet(now)
            .expect("a blocked queue does not make a pass loud");
    }
    run(&mut engine, now);
    assert_eq!(engine.load().waiting, 0, "both ran");
}

/// With host memory of 4096 blocks below.
fn engine_with_host() -> Vllm {
    let config = EngineConfig {
        block_size: BLOCK,
        num_gpu_blocks: 64,
        max_num_batched_tokens: None,
        tiers: Some(TierConfig {
            writes: Writes::Through,
            host_blocks: 4096,
            disk_blocks: 0,
            storage: false,
            bytes_per_token: 1000,
            bandwidth: TierBandwidth::default(),
            host_latency_ms: 0.0,
            disk_latency_ms: 0.0,
            host_shared: None,
            disk_shared: None,
        }),
        ..EngineConfig::default()
    };
    Vllm::alone(&config, timing::build(&config.timing))
}

#[test]
fn memory_below_the_gpu_makes_no_decoding_pass_loud() {
    let blocks = 10;
    let mut engine = engine_with_host();
    engine
        .submit(request(1, 30 * BLOCK, blocks * BLOCK), SimTime::ZERO)
        .unwrap();
    let (quiet, loud) = quiet_and_loud(&mut engine);
    assert!(quiet > 0);
    // One pass more than without: the one in which the prompt's copy is done.
    assert!(loud <= 2 * blocks + 3, "{loud} passes that change something");
}

#[test]
fn a_prompt_that_is_copied_back_is_hashed_once() {
    let mut engine = engine_with_host();
    let mut now = SimTime::ZERO;
    for id in [1, 2, 1] {
        let before = engine.hasher.hashed;
        engine.submit(request(id, 40 * BLOCK, 1), now).unwrap();
        while let Some(wake) = {
            (now, _) = run(&mut engine, now);
            engine.wakes_at()
        } {
            now = now.max(wake);
        }
        assert!(engine.hasher.hashed - before <= 40, "{}", engine.hasher.hashed - before);
    }
    assert_eq!(engine.load().waiting, 0);
}

#[test]
fn an_idle_pool_of_any_size_holds_nothing() {
    let config = EngineConfig {
        num_gpu_blocks: u32::MAX,
        ..EngineConfig::default()
    };
    let engine = Vllm::alone(&config, timing::build(&config.timing));
    assert_eq!(engine.pool.available(), u32::MAX - 1);
    assert!(size_of::<Vllm>() < 2048, "{} bytes", size_of::<Vllm>());
}

#[test]
fn a_block_is_hashed_once_in_a_requests_life_however_often_it_is_preempted() {
    let config = EngineConfig {
        block_size: BLOCK,
        num_gpu_blocks: 24,
        ..EngineConfig::default()
    };
    let mut engine = Vllm::alone(&config, timing::build(&config.timing));
    let (prompt_blocks, answer_blocks) = (5_u32, 6_u32);
    for id in 0..4 {
        engine
            .submit(request(id, prompt_blocks * BLOCK, answer_blocks * BLOCK), SimTime::ZERO)
            .unwrap();
    }
    let (_, preempted) = run(&mut engine, SimTime::ZERO);
    assert!(preempted > 0, "the pool is too small for all four at their ends");
    let most = u64::from(4 * (prompt_blocks + answer_blocks));
    assert!(
        engine.hasher.hashed <= most,
        "{} hashes for {most} blocks",
        engine.hasher.hashed
    );
}

#[test]
fn an_admission_with_a_cached_prefix_hashes_each_block_of_its_prompt_once() {
    let config = EngineConfig {
        block_size: BLOCK,
        max_num_batched_tokens: None,
        ..EngineConfig::default()
    };
    let mut engine = Vllm::alone(&config, timing::build(&config.timing));
    let blocks = 512_u32;
    for id in 1..3 {
        let before = engine.hasher.hashed;
        let prompt = request(1, blocks * BLOCK, 1).prompt;
        let again = EngineRequest {
            prompt,
            ..request(id, 1, 1)
        };
        engine.submit(again, SimTime::ZERO).unwrap();
        let pass = engine.step(SimTime::ZERO).unwrap();
        let cached = if id == 1 { 0 } else { (blocks - 1) * BLOCK };
        assert_eq!(pass.admissions[0].cached_tokens, cached);
        assert!(engine.hasher.hashed - before <= u64::from(blocks));
    }
}

#[test]
fn submitting_and_cancelling_touches_no_running_request() {
    let mut engine = engine();
    for id in 0..100 {
        engine.submit(request(id, 40, 5000), SimTime::ZERO).unwrap();
    }
    let mut now = engine.step(SimTime::ZERO).unwrap().ends_at;
    let visits = engine.visits;
    for id in 100..200 {
        engine.submit(request(id, 40, 5000), now).unwrap();
        assert!(engine.cancel(RequestId(id), now));
    }
    for _ in 0..5 {
        now = engine
            .step_quiet(now)
            .expect("what came and went leaves the pass quiet");
    }
    assert_eq!(engine.visits, visits);
}
