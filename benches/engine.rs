//! What the engines cost: passes at several batch sizes, an admission with a long cached prefix, eviction under pressure.
//!
//! `cargo bench --bench engine`; figures are per pass, or per request.

#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ghostfleet::engine::{Engine, EngineConfig, EngineKind, OutputDetail, Pass, build};
use ghostfleet::types::{EngineRequest, HashSalt, IdRun, Prompt, RequestId, SimTime, StopRule};

const BLOCK: u32 = 16;
/// Passes of one measurement.
const PASSES: u64 = 1000;

fn engine(kind: EngineKind, num_gpu_blocks: u32) -> Box<dyn Engine> {
    let config = EngineConfig {
        kind,
        block_size: BLOCK,
        num_gpu_blocks,
        max_num_batched_tokens: None,
        ..EngineConfig::default()
    };
    build(&config).unwrap()
}

fn request(id: u64, prompt: Prompt, max_tokens: u32) -> EngineRequest {
    EngineRequest {
        id: RequestId(id),
        key: id,
        prompt,
        stop: StopRule {
            max_tokens: Some(max_tokens),
            ignore_eos: true,
            ..StopRule::default()
        },
        planned: None,
        priority: 0,
        salt: HashSalt::default(),
        routing_key: None,
    }
}

/// A prompt of `len` tokens that shares nothing with those of other families.
fn prompt(family: u64, len: u32) -> Prompt {
    let first = u32::try_from(family % 60_000).unwrap() * 65_536;
    let run = IdRun { first, count: len };
    Prompt::from_runs([run].into(), 0..1, 1, len)
}

fn run_to_end(engine: &mut dyn Engine, now: &mut SimTime, pass: &mut Pass) {
    while engine.step_into(*now, pass) {
        *now = pass.ends_at;
    }
}

/// `batch` requests that have been decoding for a moment.
fn decoding(kind: EngineKind, batch: u32) -> (Box<dyn Engine>, SimTime) {
    let mut engine = engine(kind, 1 << 20);
    for id in 0..u64::from(batch) {
        engine
            .submit(request(id, prompt(id, 100), 4000), SimTime::ZERO)
            .unwrap();
    }
    let mut now = SimTime::ZERO;
    for _ in 0..8 {
        now = engine.step(now).unwrap().ends_at;
    }
    (engine, now)
}

fn passes(criterion: &mut Criterion) {
    for kind in EngineKind::ALL {
        let mut group = criterion.benchmark_group(format!("passes/{kind:?}"));
        group.throughput(Throughput::Elements(PASSES)).sample_size(20);
        for batch in [1, 32, 256] {
            group.bench_function(BenchmarkId::new("every token", batch), |bencher| {
                bencher.iter_batched(
                    || decoding(kind, batch),
                    |(mut engine, mut now)| {
                        let mut pass = Pass::default();
                        for _ in 0..PASSES {
                            assert!(engine.step_into(now, &mut pass));
                            now = pass.ends_at;
                        }
                        black_box(now)
                    },
                    BatchSize::LargeInput,
                );
            });
            group.bench_function(BenchmarkId::new("milestones", batch), |bencher| {
                bencher.iter_batched(
                    || decoding(kind, batch),
                    |(mut engine, mut now)| {
                        engine.set_output_detail(OutputDetail::Milestones);
                        let mut pass = Pass::default();
                        for _ in 0..PASSES {
                            now = if let Some(end) = engine.step_quiet(now) {
                                end
                            } else {
                                assert!(engine.step_into(now, &mut pass));
                                pass.ends_at
                            };
                        }
                        black_box(now)
                    },
                    BatchSize::LargeInput,
                );
            });
        }
        group.finish();
    }
}

fn cached_prefix(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("admission with a cached prefix of 32k tokens");
    group.sample_size(20);
    for kind in EngineKind::ALL {
        let mut engine = engine(kind, 1 << 14);
        let (mut now, mut id, mut pass) = (SimTime::ZERO, 0, Pass::default());
        let long = prompt(1, 32 * 1024);
        group.bench_function(format!("{kind:?}"), |bencher| {
            bencher.iter(|| {
                id += 1;
                engine.submit(request(id, long.clone(), 1), now).unwrap();
                run_to_end(engine.as_mut(), &mut now, &mut pass);
                black_box(now)
            });
        });
    }
    group.finish();
}

fn eviction(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("prompt of 64 blocks into a full cache of 4096");
    group.sample_size(20);
    for kind in EngineKind::ALL {
        let mut engine = engine(kind, 4096);
        let (mut now, mut id, mut pass) = (SimTime::ZERO, 0, Pass::default());
        let mut one_more = || {
            id += 1;
            engine.submit(request(id, prompt(id, 64 * BLOCK), 1), now).unwrap();
            run_to_end(engine.as_mut(), &mut now, &mut pass);
        };
        for _ in 0..65 {
            one_more();
        }
        group.bench_function(format!("{kind:?}"), |bencher| bencher.iter(&mut one_more));
    }
    group.finish();
}

criterion_group!(benches, passes, cached_prefix, eviction);
criterion_main!(benches);
