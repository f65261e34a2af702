//! What passes cost, counted in passes that are not quiet and in hashes of pages.

use super::super::config::{EngineConfig, EngineKind};
use super::super::timing;
use super::super::{Engine, OutputDetail};
use super::Sglang;
use crate::types::{EngineRequest, HashSalt, RequestId, SimTime, StopRule};

const PAGE: u32 = 16;

fn engine() -> Sglang {
    let config = EngineConfig {
        kind: EngineKind::Sglang,
        block_size: PAGE,
        ..EngineConfig::default()
    };
    Sglang::new(&config, timing::build(&config.timing))
}

fn request(id: u64, family: u32, prompt_len: u32, max_tokens: u32) -> EngineRequest {
    EngineRequest {
        id: RequestId(id),
        key: id,
        prompt: (0..prompt_len).map(|at| at + 100_000 * family).collect(),
        stop: StopRule {
            max_tokens: Some(max_tokens),
            ignore_eos: true,
            ..StopRule::default()
        },
        planned: None,
        priority: 0,
        salt: HashSalt::default(),
    }
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
    let mut now = SimTime::ZERO;
    let (mut quiet, mut loud) = (0, 0);
    loop {
        if let Some(end) = engine.step_quiet(now) {
            now = end;
            quiet += 1;
        } else if let Some(pass) = engine.step(now) {
            now = pass.ends_at;
            loud += 1;
        } else {
            break;
        }
    }
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
        while let Some(pass) = engine.step(now) {
            now = pass.ends_at;
        }
        assert!(
            engine.hasher.hashed - before <= u64::from(pages) + 1,
            "{}",
            engine.hasher.hashed
        );
    }
}
