//! What is left for an admission.

use super::report::{Remaining, Verdict};
use super::rules::Rules;

/// Budget of one attempt to prefill.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    /// Tokens of the pool that can be had. SGLang looks again for every candidate, because what a candidate pins cannot be
    /// evicted any more; the emulator looks once.
    pub(super) pool: i64,
    reserved: f64,
    charged_now: i64,
    input: i64,
    chunk: Option<i64>,
    /// Pages that the requests admitted so far will take.
    pub(super) pages: u32,
}

impl Budget {
    /// `pool` tokens can be had, of which running requests will need `reserved`.
    pub(super) fn new(rules: &Rules, pool: i64, reserved: f64) -> Self {
        Self {
            pool,
            reserved,
            charged_now: 0,
            input: rules.prefill_tokens,
            chunk: rules.chunk_tokens,
            pages: 0,
        }
    }

    /// Tokens for prompts and the outputs still to come.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn total(&self) -> f64 {
        self.pool as f64 - self.reserved
    }

    /// Tokens for prompts alone.
    pub(super) fn current(&self) -> i64 {
        self.pool - self.charged_now
    }

    pub(super) fn input(&self) -> i64 {
        self.input
    }

    /// Tokens that the pass may still compute; `None`: no limit.
    pub(super) fn chunk(&self) -> Option<i64> {
        self.chunk
    }

    /// Takes `tokens` to compute (rounded to pages), `memory` tokens of the pool for them and `outputs` still to come.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn charge(&mut self, tokens: i64, memory: i64, outputs: u32) {
        self.reserved += memory as f64 + f64::from(outputs);
        self.charged_now += memory;
        self.input -= tokens;
        self.chunk = self.chunk.map(|chunk| chunk - tokens);
    }

    /// Whether another candidate may be tried.
    pub(super) fn verdict(&self) -> Verdict {
        if self.total() <= 0.0 || self.current() <= 0 {
            Verdict::NoToken
        } else if self.input <= 0 || self.chunk.is_some_and(|chunk| chunk <= 0) {
            Verdict::Other
        } else {
            Verdict::Continue
        }
    }

    pub(super) fn remaining(&self) -> Remaining {
        Remaining {
            total_tokens: self.total(),
            input_tokens: self.input,
            chunk_tokens: self.chunk,
        }
    }
}
