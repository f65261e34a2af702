//! When a dead actor is replaced: back-off and budget, as a pure rule. The parent builds the replacement from a factory.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

use super::liveness::Cause;
use crate::types::SimTime;

/// How patient a parent is with a child.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RestartPolicy {
    /// Restarts allowed within `window`; one more and the child stays dead.
    pub budget: u32,
    /// Span in which deaths are counted.
    pub window: Duration,
    /// Wait before the first restart; doubles with each death within the window.
    pub first_backoff: Duration,
    /// Longest wait.
    pub max_backoff: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            budget: 5,
            window: Duration::from_secs(60),
            first_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
        }
    }
}

/// What to do about a death.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// Build a new one after this long.
    RestartAfter(Duration),
    /// The budget is used up.
    GiveUp,
}

impl Verdict {
    /// The wait before the replacement, if there will be one.
    pub fn backoff(self) -> Option<Duration> {
        match self {
            Self::RestartAfter(wait) => Some(wait),
            Self::GiveUp => None,
        }
    }
}

/// What became of an actor's last death, for whoever looks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Supervised {
    /// Actor path.
    pub path: String,
    /// How it came to its end.
    pub cause: Cause,
    /// Deaths since the start.
    pub deaths_total: u64,
    /// Deaths that count against the budget, the last one included.
    pub deaths_in_window: u32,
    /// Deaths that are made good within a window.
    pub budget: u32,
    /// Length of a window, seconds.
    pub window_s: f64,
    /// When it died last, ms since the fleet started.
    pub died_at_ms: f64,
    /// Wait from that death to its replacement, ms. `None`: the budget is used up, and what it belongs to is given up; or
    /// it is a worker that was killed by request, which stays dead until it is restarted by request.
    pub backoff_ms: Option<f64>,
    /// When those that count died.
    #[serde(skip)]
    recent: Vec<SimTime>,
}

impl Supervised {
    /// After a death at `now` that is made good after `backoff`, or never by itself.
    pub fn new(
        (path, cause): (String, Cause),
        restarts: &Restarts,
        policy: &RestartPolicy,
        now: SimTime,
        backoff: Option<Duration>,
    ) -> Self {
        Self {
            path,
            cause,
            deaths_total: restarts.total,
            deaths_in_window: restarts.recent(),
            budget: policy.budget,
            window_s: policy.window.as_secs_f64(),
            died_at_ms: now.as_ms(),
            backoff_ms: backoff.map(|wait| wait.as_secs_f64() * 1e3),
            recent: restarts.recent.iter().copied().collect(),
        }
    }

    /// Deaths that count against the budget at `now`: they get fewer as the window moves on.
    pub fn in_window(&self, now: SimTime) -> u32 {
        let counts = |at: &&SimTime| now.since(**at).as_secs_f64() <= self.window_s;
        u32::try_from(self.recent.iter().filter(counts).count()).unwrap_or(u32::MAX)
    }

    /// Time at `now` until its replacement is built, ms; 0: it has been, or never will be.
    pub fn replaced_in_ms(&self, now: SimTime) -> f64 {
        let due = self.backoff_ms.map_or(0.0, |wait| self.died_at_ms + wait);
        (due - now.as_ms()).max(0.0)
    }
}

/// Deaths of one child.
#[derive(Debug, Clone, Default)]
pub struct Restarts {
    recent: VecDeque<SimTime>,
    total: u64,
}

impl Restarts {
    /// Records a death at `now`.
    pub fn on_death(&mut self, policy: &RestartPolicy, now: SimTime) -> Verdict {
        self.total += 1;
        while self.recent.front().is_some_and(|at| now.since(*at) > policy.window) {
            self.recent.pop_front();
        }
        let earlier = u32::try_from(self.recent.len()).unwrap_or(u32::MAX);
        if earlier >= policy.budget {
            return Verdict::GiveUp;
        }
        self.recent.push_back(now);
        let backoff = policy
            .first_backoff
            .saturating_mul(2u32.saturating_pow(earlier.min(16)));
        Verdict::RestartAfter(backoff.min(policy.max_backoff))
    }

    /// Records a death by request that nobody makes good: it does not count against the budget.
    pub fn on_kill(&mut self) {
        self.total += 1;
    }

    /// Deaths that count against the budget.
    pub fn recent(&self) -> u32 {
        u32::try_from(self.recent.len()).unwrap_or(u32::MAX)
    }

    /// Deaths since the start.
    pub fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_and_the_budget_ends_it() {
        let policy = RestartPolicy {
            budget: 3,
            window: Duration::from_secs(60),
            first_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_millis(350),
        };
        let mut restarts = Restarts::default();
        let at = |s: u64| SimTime::of_nanos(s * 1_000_000_000);
        let waits: Vec<_> = (1..=4).map(|s| restarts.on_death(&policy, at(s))).collect();
        let ms = |ms| Verdict::RestartAfter(Duration::from_millis(ms));
        assert_eq!(waits, [ms(100), ms(200), ms(350), Verdict::GiveUp]);
        // The window moves on: after a minute the slate is clean.
        assert_eq!(restarts.on_death(&policy, at(100)), ms(100));
        assert_eq!(restarts.total(), 5);
    }

    #[test]
    fn what_is_told_of_a_death_moves_with_the_clock() {
        let policy = RestartPolicy::default();
        let mut restarts = Restarts::default();
        let at = |ms: u64| SimTime::of_nanos(ms * 1_000_000);
        restarts.on_death(&policy, at(10_000));
        restarts.on_death(&policy, at(30_000));
        let who = ("w1/r0".to_owned(), Cause::Panicked);
        let seen = Supervised::new(who, &restarts, &policy, at(30_000), Some(Duration::from_millis(200)));
        assert_eq!((seen.in_window(at(30_000)), seen.in_window(at(80_000))), (2, 1));
        assert!((seen.replaced_in_ms(at(30_050)) - 150.0).abs() < 1e-6);
        assert!(seen.replaced_in_ms(at(31_000)).abs() < 1e-6);
    }
}
