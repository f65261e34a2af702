//! Prompt tokens that a target still has to compute, as the router believes.
//!
//! A request counts from dispatch until its first token. With a model of prefill durations the sum shrinks while the
//! oldest prefills are under way. Source: Dynamo 1.6.1 active sequences.

use std::collections::VecDeque;
use std::fmt;

use crate::types::SimTime;

/// How long prompts take, as a router believes.
pub trait PrefillTimes: fmt::Debug + Send + Sync {
    /// ms for a prompt of `new` tokens, at least one, behind `prefix` cached ones.
    fn prefill_ms(&self, new: u64, prefix: u64) -> f64;
}

/// One prefill under way.
#[derive(Debug, Clone, Copy)]
struct Prefill {
    request: u64,
    tokens: u64,
    /// Modelled duration, ms.
    duration_ms: Option<f64>,
}

/// Prefill work of one target.
#[derive(Debug, Clone, Default)]
pub(crate) struct PrefillLoad {
    /// In order of dispatch.
    prefills: VecDeque<Prefill>,
    tokens: u64,
    /// Since when the oldest one has been the oldest, ms.
    anchor_ms: f64,
    unmodelled: usize,
}

impl PrefillLoad {
    pub(crate) fn add(&mut self, request: u64, tokens: u64, duration_ms: Option<f64>, now: SimTime) {
        if tokens == 0 {
            return;
        }
        if self.prefills.is_empty() {
            self.anchor_ms = now.as_ms();
        }
        self.unmodelled += usize::from(duration_ms.is_none());
        self.tokens += tokens;
        self.prefills.push_back(Prefill {
            request,
            tokens,
            duration_ms,
        });
    }

    /// Takes a request out; whether it was there.
    pub(crate) fn remove(&mut self, request: u64, now: SimTime) -> bool {
        let Some(at) = self.prefills.iter().position(|prefill| prefill.request == request) else {
            return false;
        };
        let Some(gone) = self.prefills.remove(at) else {
            return false;
        };
        self.tokens -= gone.tokens;
        self.unmodelled -= usize::from(gone.duration_ms.is_none());
        if at == 0 {
            self.anchor_ms = now.as_ms();
        } else if let Some(duration_ms) = gone.duration_ms {
            self.anchor_ms = (self.anchor_ms + duration_ms).min(now.as_ms());
        }
        true
    }

    /// Tokens left at `now`.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    pub(crate) fn tokens(&self, now: SimTime) -> u64 {
        let Some(oldest) = self.prefills.front() else { return 0 };
        let Some(duration_ms) = oldest.duration_ms.filter(|&duration| duration > 0.0) else {
            return self.tokens;
        };
        let share = (now.as_ms() - self.anchor_ms).max(0.0) / duration_ms;
        let tokens = oldest.tokens as f64;
        if self.unmodelled == 0 {
            self.tokens.saturating_sub((tokens * share).floor() as u64)
        } else {
            self.tokens - oldest.tokens + (tokens * (1.0 - share).max(0.0)).ceil() as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> SimTime {
        SimTime::of_nanos(ms * 1_000_000)
    }

    #[test]
    fn without_a_model_tokens_count_until_the_first_token() {
        let mut load = PrefillLoad::default();
        load.add(1, 100, None, at(0));
        load.add(2, 50, None, at(5));
        assert_eq!(load.tokens(at(1000)), 150);
        assert!(load.remove(1, at(1000)) && !load.remove(1, at(1000)));
        assert_eq!(load.tokens(at(1000)), 50);
    }

    #[test]
    fn modelled_prefills_run_down_one_after_the_other() {
        let mut load = PrefillLoad::default();
        load.add(1, 100, Some(10.0), at(0));
        load.add(2, 60, Some(6.0), at(0));
        assert_eq!(
            [load.tokens(at(5)), load.tokens(at(12)), load.tokens(at(99))],
            [110, 40, 0]
        );
        load.remove(1, at(10));
        assert_eq!(load.tokens(at(13)), 30);
    }

    #[test]
    fn one_prefill_without_a_model_lets_only_the_oldest_run_down() {
        let mut load = PrefillLoad::default();
        load.add(1, 100, Some(10.0), at(0));
        load.add(2, 60, None, at(0));
        assert_eq!([load.tokens(at(5)), load.tokens(at(99))], [110, 60]);
    }
}
