//! What every engine promises, whatever its scheduler, checked with random loads.

#![allow(clippy::unwrap_used)]

mod configs;
mod driver;
mod index;
mod load;
mod passes;
mod shared;

use ghostfleet::engine::{
    EngineConfig, EngineKind, Fidelity, HandoffFact, Output, OutputDetail, Semantics, SglangConfig, SglangPolicy,
    TierBandwidth, TierConfig, Writes,
};
use ghostfleet::types::RequestId;
use proptest::prelude::*;

use crate::configs::configs;
use crate::driver::Driver;
use crate::load::{Op, Script, Shape, scripts};
use crate::passes::{eventful, milestones, passes};

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
                    driver.lower.apply(&pass.tier_events);
                    driver.check_index();
                    driver.lower.assert_equals(&driver.engine.lower_blocks());
                }
                None if driver.wait() => {}
                None => driver.now = driver.now.after_ms(1e-6),
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

#[test]
fn the_last_running_request_waits_while_a_destination_has_the_memory_it_needs() {
    let config = EngineConfig {
        kind: EngineKind::Sglang,
        fidelity: Fidelity::Mocker,
        num_gpu_blocks: 8,
        block_size: 4,
        ..EngineConfig::default()
    };
    let mut driver = Driver::new(&config);
    let run = |driver: &mut Driver| {
        let mut outputs = Vec::new();
        while let Some(pass) = driver.engine.step(driver.now) {
            driver.now = pass.ends_at;
            outputs.extend(pass.outputs);
        }
        outputs
    };
    let ops = vec![Op::Submit(Shape::answered(0, 8, 23)), Op::Steps(1)];
    driver.run(&Script { ops });
    let destination = Shape::answered(0, 12, 1).request(1);
    driver.engine.reserve_destination(destination, driver.now).unwrap();
    let outputs = run(&mut driver);
    assert!(
        outputs
            .iter()
            .all(|output| matches!(output, Output::Token { finish: None, .. }))
    );
    let load = driver.engine.load();
    assert_eq!((load.running, load.active_blocks), (1, 8), "it keeps what it has");
    assert!(driver.engine.activate_destination(RequestId(1)));
    let last = |output: &&Output| matches!(output, Output::Token { finish: Some(_), .. });
    assert_eq!(run(&mut driver).iter().filter(last).count(), 2);
}

#[test]
fn a_prompt_that_no_pass_can_finish_gives_back_what_was_copied_for_it() {
    let config = EngineConfig {
        fidelity: Fidelity::Mocker,
        num_gpu_blocks: 20,
        block_size: 4,
        max_num_batched_tokens: Some(39),
        enable_chunked_prefill: false,
        tiers: Some(TierConfig {
            writes: Writes::Through,
            host_blocks: 20,
            disk_blocks: 0,
            storage: false,
            bytes_per_token: 1,
            bandwidth: TierBandwidth::default(),
            host_latency_ms: 0.0,
            disk_latency_ms: 0.0,
            host_shared: None,
            disk_shared: None,
        }),
        ..EngineConfig::default()
    };
    // The first prompt comes to the host and leaves the GPU for the next ones; the last one needs 40 tokens more than it.
    let ops = vec![
        Op::Submit(Shape::answered(24, 0, 1)),
        Op::Steps(3),
        Op::Submit(Shape::answered(0, 39, 38)),
        Op::Steps(60),
        Op::Submit(Shape::answered(37, 27, 5)),
        Op::Steps(3),
    ];
    let mut driver = Driver::new(&config);
    driver.run(&Script { ops });
    driver.drain();
    driver.assert_empty();
}

#[test]
fn a_cache_that_is_cleared_under_a_request_tells_what_that_request_keeps() {
    let config = EngineConfig {
        kind: EngineKind::Sglang,
        fidelity: Fidelity::Mocker,
        semantics: Semantics::V1_4_2,
        num_gpu_blocks: 8,
        block_size: 4,
        max_num_seqs: None,
        max_num_batched_tokens: None,
        enable_chunked_prefill: false,
        sglang: SglangConfig {
            schedule_policy: SglangPolicy::ShortestPrefillFirst,
            max_prefill_tokens: 64,
            chunked_prefill_size: None,
            clip_max_new_tokens: 4,
            schedule_conservativeness: 0.0,
            ..SglangConfig::default()
        },
        ..EngineConfig::default()
    };
    let ops = vec![
        Op::Submit(Shape::answered(1, 4, 15)),
        Op::Steps(8),
        Op::Withhold(100),
        Op::Steps(5),
        Op::Withhold(0),
        Op::Submit(Shape::answered(0, 8, 17)),
        Op::Steps(18),
        Op::ClearCache,
    ];
    let mut driver = Driver::new(&config);
    driver.run(&Script { ops });
    driver.drain();
    driver.assert_empty();
}
