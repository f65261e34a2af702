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
