//! What passes cost, counted in passes that are not quiet and in hashes of pages.

use super::super::config::{EngineConfig, EngineKind};
use super::super::cost::{quiet_and_loud, request, run};
use super::super::timing;
use super::super::{Engine, OutputDetail};
use super::Sglang;
use crate::types::SimTime;

const PAGE: u32 = 16;

fn engine() -> Sglang {
    let config = EngineConfig {
        kind: EngineKind::Sglang,
        block_size: PAGE,
        ..EngineConfig::default()
    };
    Sglang::new(&config, timing::build(&config.timing))
}

#[test]
fn decoding_is_quiet_until_somebody_ends() {
    let mut engine = engine();
    engine.set_output_detail(OutputDetail::Milestones);
    for id in 0..32 {
        engine
            .submit(request(id, u32::try_from(id).unwrap(), 20, 500), SimTime::ZERO)
            .unwrap();
    }
    let (quiet, loud) = quiet_and_loud(&mut engine);
    assert!(loud <= 8, "{loud} passes that change something, {quiet} quiet ones");
    assert!(quiet > 400, "{quiet}");
}

#[test]
fn a_cached_prompt_is_hashed_once_per_page() {
    let mut engine = engine();
    let pages = 400_u32;
    let mut now = SimTime::ZERO;
    for id in 1..3 {
        let before = engine.hasher.hashed;
        engine.submit(request(id, 1, pages * PAGE, 1), now).unwrap();
        (now, _) = run(&mut engine, now);
        assert!(
            engine.hasher.hashed - before <= u64::from(pages) + 1,
            "{}",
            engine.hasher.hashed
        );
    }
}

#[test]
fn a_prompt_touches_its_own_path_and_an_eviction_what_leaves_however_much_is_cached() {
    let mut engine = engine();
    let mut now = SimTime::ZERO;
    for family in 1..400 {
        engine
            .submit(request(u64::from(family), family, 3 * PAGE, 1), now)
            .unwrap();
        (now, _) = run(&mut engine, now);
    }
    let before = engine.cache.touched();
    engine.submit(request(1000, 7, 3 * PAGE, 1), now).unwrap();
    run(&mut engine, now);
    let of_prompt = engine.cache.touched() - before;
    assert!(of_prompt <= 40, "{of_prompt} nodes for a prompt of one node");
    let cached = engine.cache.evictable_pages();
    let before = engine.cache.touched();
    assert_eq!(engine.cache.evict(30, |_| {}), 30);
    let of_eviction = engine.cache.touched() - before;
    assert!(of_eviction <= 2 * 30, "{of_eviction} nodes for 30 of {cached} pages");
}

#[test]
fn a_request_that_does_not_fit_is_looked_at_once_while_others_decode() {
    let config = EngineConfig {
        kind: EngineKind::Sglang,
        block_size: PAGE,
        num_gpu_blocks: 64,
        ..EngineConfig::default()
    };
    let mut engine = Sglang::new(&config, timing::build(&config.timing));
    engine.set_output_detail(OutputDetail::Milestones);
    engine.submit(request(0, 0, 20 * PAGE, 400), SimTime::ZERO).unwrap();
    let first = engine.step(SimTime::ZERO).unwrap();
    engine.submit(request(1, 1, 50 * PAGE, 100), first.ends_at).unwrap();
    let (before, second) = (engine.attempts, engine.step(first.ends_at).unwrap());
    let mut now = second.ends_at;
    for _ in 0..100 {
        now = engine.step_quiet(now).expect("nothing has changed");
    }
    assert_eq!(engine.attempts - before, 1);
}
