//! How fast the engines of one side are, learned from their passes, and how long a request would wait there.
//!
//! Passes are of three kinds, each with its own fit: prompts alone (prompt tokens), answers alone (requests, KV tokens), both
//! (prompt tokens, KV tokens). Source: `core/perf_model/rust_adapter.py` of Dynamo 1.4.2's planner and `engine_perf.rs` of
//! its emulator.

use super::super::planner::ForwardMetrics;
use super::Capabilities;
use super::averages::MovingAverage;
use super::config::Learning;
use super::regression::Fit;
use super::samples::{Sample, Samples};
use super::thresholds::Role;

/// Most of a prompt that may count as cached.
const MOST_CACHED: f64 = 0.95;
const MAX_BATCHED_TOKENS: u32 = 8192;
const MAX_SEQUENCES: u32 = 512;
const MAX_KV_TOKENS: u64 = 2_000_000;

/// What one pass does.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Work {
    pub(super) prompt_tokens: f64,
    pub(super) answers: f64,
    pub(super) kv_tokens: f64,
}

/// One kind of passes.
#[derive(Debug, Clone)]
struct Kind {
    samples: Samples,
    loads: usize,
    least: usize,
    fit: Option<Fit>,
    /// Observations came since the last fit.
    stale: bool,
}

impl Kind {
    fn new(learning: Learning, loads: usize) -> Self {
        let parts = if loads == 1 {
            learning.buckets
        } else {
            learning.buckets.isqrt()
        };
        Self {
            samples: Samples::new(learning.most as usize, parts),
            loads,
            least: learning.least as usize,
            fit: None,
            stale: false,
        }
    }

    fn add(&mut self, sample: Sample) {
        self.samples.add(sample);
        self.stale = true;
    }

    fn refit(&mut self) {
        if std::mem::take(&mut self.stale) {
            self.fit = Fit::of(self.samples.all(), self.loads, self.least);
        }
    }
}

/// What the estimate of a wait supposes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Supposed {
    /// Queued prompts, times.
    pub(super) queue: f64,
    /// Running answers, times.
    pub(super) answers: f64,
    /// Queued answers run too.
    pub(super) with_queued_answers: bool,
    /// Queued prompts have become answers.
    pub(super) with_queued_prompts: bool,
}

/// Model of the engines of one side.
#[derive(Debug, Clone)]
pub(super) struct Speed {
    role: Role,
    engine: Capabilities,
    prompts: Kind,
    answers: Kind,
    mixed: Kind,
    /// Tokens of a prompt, and of a running answer's context.
    prompt_tokens: MovingAverage,
    context_tokens: MovingAverage,
    /// Prompt tokens of a pass.
    pass_prompt_tokens: MovingAverage,
}

#[allow(clippy::cast_precision_loss)]
fn real(count: u64) -> f64 {
    count as f64
}

impl Speed {
    pub(super) fn new(role: Role, engine: Capabilities, learning: Learning) -> Self {
        let average = || MovingAverage::new(learning.most as usize);
        Self {
            role,
            engine,
            prompts: Kind::new(learning, 1),
            answers: Kind::new(learning, 2),
            mixed: Kind::new(learning, 2),
            prompt_tokens: average(),
            context_tokens: average(),
            pass_prompt_tokens: average(),
        }
    }

    pub(super) fn role(&self) -> Role {
        self.role
    }

    pub(super) fn engine(&self) -> Capabilities {
        self.engine
    }

    /// Token budget of a pass.
    pub(super) fn batched_tokens(&self) -> u32 {
        self.engine.max_num_batched_tokens.unwrap_or(MAX_BATCHED_TOKENS)
    }

    pub(super) fn sequences(&self) -> u32 {
        self.engine.max_num_seqs.unwrap_or(MAX_SEQUENCES)
    }

    pub(super) fn kv_tokens(&self) -> u64 {
        match self.engine.max_kv_tokens {
            0 => MAX_KV_TOKENS,
            tokens => tokens,
        }
    }

    /// Whether it can tell anything.
    pub(super) fn is_ready(&self) -> bool {
        [&self.prompts, &self.answers, &self.mixed]
            .iter()
            .any(|kind| kind.fit.is_some())
    }

    /// Learns from the latest passes.
    pub(super) fn learn(&mut self, passes: &[ForwardMetrics]) {
        for pass in passes {
            let prompts = pass.num_prefill_requests;
            let each = if prompts > 0 {
                real(pass.sum_prefill_tokens) / f64::from(prompts)
            } else {
                0.0
            };
            self.prompt_tokens.add(each);
            if pass.num_decode_requests > 0 {
                self.context_tokens
                    .add(real(pass.sum_decode_kv_tokens) / f64::from(pass.num_decode_requests));
            }
            self.pass_prompt_tokens.add(real(pass.sum_prefill_tokens));
            let work = Work {
                prompt_tokens: real(pass.sum_prefill_tokens),
                answers: f64::from(pass.num_decode_requests),
                kv_tokens: real(pass.sum_decode_kv_tokens),
            };
            let ms = pass.wall_time * 1e3;
            if !ms.is_finite() || ms <= 0.0 {
                continue;
            }
            match work.load() {
                Load::None => {}
                Load::Prompts(x) => self.prompts.add(Sample { x, ms }),
                Load::Answers(x) => self.answers.add(Sample { x, ms }),
                Load::Mixed(x) => self.mixed.add(Sample { x, ms }),
            }
        }
        for kind in [&mut self.prompts, &mut self.answers, &mut self.mixed] {
            kind.refit();
        }
    }

    /// Milliseconds of a pass; `None`: too few of its kind were seen.
    pub(super) fn pass_ms(&self, work: Work) -> Option<f64> {
        let (kind, x) = match work.load() {
            Load::None => return Some(0.0),
            Load::Prompts(x) => (&self.prompts, x),
            Load::Answers(x) => (&self.answers, x),
            Load::Mixed(x) => (&self.mixed, x),
        };
        kind.fit.as_ref().map(|fit| fit.ms(x))
    }

    /// Milliseconds of so many prompt tokens beside other work, in passes as long as the budget allows.
    pub(super) fn prompts_ms(&self, tokens: f64, beside: Work) -> Option<f64> {
        let pass = |prompt_tokens: f64| {
            self.pass_ms(Work {
                prompt_tokens,
                ..beside
            })
        };
        let budget = f64::from(self.batched_tokens());
        let (whole, rest) = ((tokens / budget).floor(), tokens % budget);
        let mut ms = 0.0;
        if whole > 0.0 {
            ms += whole * pass(budget)?;
        }
        if rest > 0.0 {
            ms += pass(rest)?;
        }
        Some(ms)
    }

    /// Milliseconds until a prompt that comes next is computed, after those that are queued; `cached`: share of a prompt
    /// that the cache has.
    pub(super) fn first_token_ms(&self, pass: &ForwardMetrics, cached: Option<f64>, supposed: Supposed) -> Option<f64> {
        let mut tokens = real(pass.sum_queued_prefill_tokens) * supposed.queue;
        tokens += self.prompt_tokens.value();
        tokens *= 1.0 - cached_share(cached);
        let beside = match self.role {
            Role::Prefill | Role::Decode => Work::default(),
            Role::Aggregated => answers_of(pass, supposed),
        };
        let beside = Work {
            answers: beside.answers.ceil(),
            kv_tokens: beside.kv_tokens.ceil(),
            ..beside
        };
        self.prompts_ms(tokens.ceil(), beside)
    }

    /// Milliseconds of a pass when one more answer runs.
    pub(super) fn token_ms(&self, pass: &ForwardMetrics, supposed: Supposed) -> Option<f64> {
        let mut work = answers_of(pass, supposed);
        let context = self.context_tokens.value();
        if context > 0.0 {
            work.kv_tokens += context;
            work.answers += 1.0;
        }
        self.pass_ms(Work {
            prompt_tokens: match self.role {
                Role::Prefill | Role::Decode => 0.0,
                // What prompts usually are in the way, not what they are by chance in the latest pass.
                Role::Aggregated => self.pass_prompt_tokens.value().ceil(),
            },
            answers: work.answers.ceil(),
            kv_tokens: work.kv_tokens.ceil(),
        })
    }
}

/// The answers that a worker gives, of those that are queued as supposed.
fn answers_of(pass: &ForwardMetrics, supposed: Supposed) -> Work {
    let mut work = Work {
        prompt_tokens: 0.0,
        answers: f64::from(pass.num_decode_requests),
        kv_tokens: real(pass.sum_decode_kv_tokens),
    };
    if supposed.with_queued_answers {
        work.answers += f64::from(pass.num_queued_decode);
        work.kv_tokens += real(pass.sum_queued_decode_kv_tokens);
    }
    if supposed.with_queued_prompts {
        work.answers += f64::from(pass.num_queued_prefill);
        work.kv_tokens += real(pass.sum_queued_prefill_tokens);
    }
    work.answers *= supposed.answers;
    work.kv_tokens *= supposed.answers;
    work
}

/// Share of a prompt that is taken to be cached.
pub(super) fn cached_share(seen: Option<f64>) -> f64 {
    seen.filter(|share| share.is_finite())
        .map_or(0.0, |share| share.clamp(0.0, MOST_CACHED))
}

/// What a pass is fitted by.
enum Load {
    None,
    Prompts([f64; 2]),
    Answers([f64; 2]),
    Mixed([f64; 2]),
}

impl Work {
    fn load(self) -> Load {
        let answers = self.answers > 0.0 || self.kv_tokens > 0.0;
        match (self.prompt_tokens > 0.0, answers) {
            (false, false) => Load::None,
            (true, false) => Load::Prompts([self.prompt_tokens, 0.0]),
            (false, true) => Load::Answers([self.answers, self.kv_tokens]),
            (true, true) => Load::Mixed([self.prompt_tokens, self.kv_tokens]),
        }
    }
}
