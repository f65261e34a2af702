//! Synthetic load: constant lengths, shared prefixes, turns, Poisson or even arrivals.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::plain_words::number;
use crate::types::{SimTime, Token};

use super::memory;
use super::record::Terminal;
use super::sessions::{SessionTrace, TurnSpec};
use super::source::{Source, Turn};
use super::trace::MAX_TOKENS;

/// Seed of the prefix groups; independent of the arrival seed, as in the peer.
const GROUP_SEED: u64 = 42;

/// Most turns of all sessions, which stand in memory.
const MAX_TURNS: u64 = 1 << 24;
/// Most blocks of their prompts, a hash id each: 2 GiB.
const MAX_BLOCKS: u64 = 1 << 28;

/// When requests arrive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// Closed loop with so many at a time.
    Concurrency(usize),
    /// Exponential gaps with this mean rate.
    Poisson {
        /// Requests per second.
        rate: f64,
        /// Seed of the gaps.
        seed: u64,
    },
    /// Even gaps, ms; 0: all at once.
    Interval(f64),
}

/// Synthetic load. Source of names and rules: Dynamo 1.6.1 synthetic replay.
#[derive(Debug, Clone, PartialEq)]
pub struct SyntheticSpec {
    /// Prompt tokens of each request.
    pub input_tokens: u32,
    /// Tokens to generate for each.
    pub output_tokens: u32,
    /// Requests, or sessions with more than one turn.
    pub count: u32,
    /// When they come.
    pub arrivals: Arrivals,
    /// Turns of a session.
    pub turns: u32,
    /// Share of each prompt that a group has in common.
    pub shared_prefix_ratio: f64,
    /// Such groups; 0: nothing is shared.
    pub prefix_groups: u32,
    /// Wait between turns, ms.
    pub inter_turn_delay_ms: f64,
    /// Divides arrival times and waits, open loop only.
    pub speedup: f64,
    /// Tokens per hash id: the engine's block size.
    pub block_size: u32,
}

/// A synthetic load that makes no sense.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SyntheticError {
    /// Nothing of something.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// More than any model takes, or than memory holds.
    #[error("{name} is {value}, expected at most {most}")]
    TooMany {
        /// Of what.
        name: &'static str,
        /// How many.
        value: u64,
        /// How many there may be.
        most: u64,
    },
    /// Not a share.
    #[error("shared_prefix_ratio must be between 0.0 and 1.0, got {}", number(*.0))]
    Ratio(f64),
    /// Not a wait.
    #[error("inter_turn_delay_ms must be finite and at least 0, got {}", number(*.0))]
    Delay(f64),
    /// Not a rate.
    #[error("request_rate must be finite and above 0, got {}", number(*.0))]
    Rate(f64),
    /// Not a gap.
    #[error("arrival_interval_ms must be finite and at least 0, got {}", number(*.0))]
    Interval(f64),
    /// Nobody may be in flight.
    #[error("replay_concurrency must be at least 1")]
    Concurrency,
    /// Not a speed.
    #[error("arrival_speedup_ratio must be finite and above 0, got {}", number(*.0))]
    Speedup(f64),
}

impl SyntheticSpec {
    /// Whether sessions, prefixes or waits matter.
    pub fn is_simple(&self) -> bool {
        self.turns <= 1 && self.shared_prefix_ratio == 0.0 && self.prefix_groups == 0 && self.inter_turn_delay_ms == 0.0
    }

    /// Checks every value.
    ///
    /// # Errors
    /// [`SyntheticError`] names the value and its range.
    pub fn validate(&self) -> Result<(), SyntheticError> {
        let counts = [
            ("input_tokens", self.input_tokens),
            ("output_tokens", self.output_tokens),
            ("request_count", self.count),
            ("turns_per_session", if self.is_simple() { 1 } else { self.turns }),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(SyntheticError::Zero(name));
        }
        self.check_sizes()?;
        if !(0.0..=1.0).contains(&self.shared_prefix_ratio) {
            return Err(SyntheticError::Ratio(self.shared_prefix_ratio));
        }
        if !self.inter_turn_delay_ms.is_finite() || self.inter_turn_delay_ms < 0.0 {
            return Err(SyntheticError::Delay(self.inter_turn_delay_ms));
        }
        let timed = !matches!(self.arrivals, Arrivals::Concurrency(_));
        if timed && (!self.speedup.is_finite() || self.speedup <= 0.0) {
            return Err(SyntheticError::Speedup(self.speedup));
        }
        match self.arrivals {
            Arrivals::Concurrency(0) => Err(SyntheticError::Concurrency),
            Arrivals::Poisson { rate, .. } if !rate.is_finite() || rate <= 0.0 => Err(SyntheticError::Rate(rate)),
            Arrivals::Interval(gap) if !gap.is_finite() || gap < 0.0 => Err(SyntheticError::Interval(gap)),
            Arrivals::Concurrency(_) | Arrivals::Poisson { .. } | Arrivals::Interval(_) => Ok(()),
        }
    }

    fn check_sizes(&self) -> Result<(), SyntheticError> {
        let at_most = |name, value: u64, most: u64| {
            if value > most {
                return Err(SyntheticError::TooMany { name, value, most });
            }
            Ok(())
        };
        at_most("input_tokens", self.input_tokens.into(), MAX_TOKENS.into())?;
        at_most("output_tokens", self.output_tokens.into(), MAX_TOKENS.into())?;
        if self.is_simple() {
            return Ok(());
        }
        let turns = u64::from(self.count) * u64::from(self.turns);
        let blocks = self.input_tokens.div_ceil(self.block_size.max(1));
        let name = "request_count times turns_per_session";
        at_most(name, turns, MAX_TURNS)?;
        let name = "the number of prompt blocks of all turns";
        at_most(name, turns.saturating_mul(blocks.into()), MAX_BLOCKS)
    }

    /// Bytes that requests take at least, with or without records: those that are in flight at once, and what stays of all.
    pub fn least_memory(&self, records: bool) -> u64 {
        let sessions = u64::from(self.count);
        let at_once = match self.arrivals {
            Arrivals::Concurrency(most) => sessions.min(most as u64),
            Arrivals::Interval(0.0) => sessions,
            Arrivals::Interval(_) | Arrivals::Poisson { .. } => 1,
        };
        let turns = if self.is_simple() { 1 } else { u64::from(self.turns) };
        let in_flight = at_once.saturating_mul(memory::of_request(self.input_tokens));
        in_flight.saturating_add(memory::of_ended(sessions.saturating_mul(turns), records))
    }

    /// Sessions with their hash ids, for loads that are not simple.
    pub fn sessions(&self) -> SessionTrace {
        let mut trace = SessionTrace::new(self.block_size, false, "session_");
        let blocks = self.input_tokens.div_ceil(self.block_size);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let shared = (f64::from(blocks) * self.shared_prefix_ratio).round() as u64;
        let grouped = self.shared_prefix_ratio > 0.0 && self.prefix_groups > 0;
        let mut draws = StdRng::seed_from_u64(GROUP_SEED);
        let mut gaps = Gaps::new(self.arrivals);
        // Ids of groups come first; every other id is used once.
        let mut fresh = u64::from(self.prefix_groups) * shared;
        for number in 0..self.count {
            let group = if grouped {
                u64::from(draws.random_range(0..self.prefix_groups))
            } else {
                0
            };
            let mut session = None;
            let start_ms = gaps.next_ms();
            for turn in 0..self.turns.max(1) {
                let from_group = if grouped { shared } else { 0 };
                let own = u64::from(blocks) - from_group;
                let ids = (group * shared..group * shared + from_group).chain(fresh..fresh + own);
                let spec = TurnSpec {
                    hash_ids: ids.collect(),
                    input_tokens: self.input_tokens,
                    output_tokens: self.output_tokens,
                    start_ms: (turn == 0).then_some(start_ms),
                    delay_ms: self.inter_turn_delay_ms,
                    ..TurnSpec::default()
                };
                fresh += own;
                match session {
                    None => session = Some(trace.open(None, u64::from(number), spec)),
                    Some(session) => trace.follow(session, spec),
                }
            }
        }
        trace
    }
}

/// Arrival times one after the other.
#[derive(Debug)]
struct Gaps {
    arrivals: Arrivals,
    draws: StdRng,
    next_ms: f64,
}

impl Gaps {
    fn new(arrivals: Arrivals) -> Self {
        let seed = match arrivals {
            Arrivals::Poisson { seed, .. } => seed,
            Arrivals::Concurrency(_) | Arrivals::Interval(_) => 0,
        };
        Self {
            arrivals,
            draws: StdRng::seed_from_u64(seed),
            next_ms: 0.0,
        }
    }

    fn next_ms(&mut self) -> f64 {
        let now = self.next_ms;
        self.next_ms += match self.arrivals {
            Arrivals::Concurrency(_) => 0.0,
            Arrivals::Interval(gap) => gap,
            Arrivals::Poisson { rate, .. } => -(1000.0 / rate) * (1.0 - self.draws.random::<f64>()).ln(),
        };
        now
    }
}

/// Requests without anything in common: nothing is kept per request.
#[derive(Debug)]
pub(crate) struct SimpleSource {
    spec: SyntheticSpec,
    gaps: Gaps,
    next: u32,
    next_at: SimTime,
    in_flight: usize,
    ended: u64,
}

impl SimpleSource {
    pub(crate) fn new(spec: SyntheticSpec) -> Self {
        let mut source = Self {
            gaps: Gaps::new(spec.arrivals),
            next: 0,
            next_at: SimTime::ZERO,
            in_flight: 0,
            ended: 0,
            spec,
        };
        source.advance();
        source
    }

    fn advance(&mut self) {
        self.next_at = SimTime::of_ms(self.gaps.next_ms() / self.spec.speedup);
    }
}

impl Source for SimpleSource {
    fn next_at(&self) -> Option<SimTime> {
        match self.spec.arrivals {
            Arrivals::Concurrency(_) => None,
            Arrivals::Poisson { .. } | Arrivals::Interval(_) => (self.next < self.spec.count).then_some(self.next_at),
        }
    }

    fn take(&mut self, now: SimTime) -> Option<Turn> {
        if self.next == self.spec.count {
            return None;
        }
        let arrival = match self.spec.arrivals {
            Arrivals::Concurrency(most) if self.in_flight < most => now,
            Arrivals::Poisson { .. } | Arrivals::Interval(_) if self.next_at <= now => self.next_at,
            Arrivals::Concurrency(_) | Arrivals::Poisson { .. } | Arrivals::Interval(_) => return None,
        };
        let tag = self.next;
        self.next += 1;
        self.in_flight += 1;
        self.advance();
        Some(Turn {
            tag,
            session: tag,
            turn: 0,
            arrival,
            input_tokens: self.spec.input_tokens,
            output_tokens: self.spec.output_tokens,
            planned: None,
            priority: 0,
            strict_priority: 0,
            policy_class: None,
        })
    }

    fn ended(&mut self, _tag: u32, _now: SimTime, _terminal: Terminal) {
        self.in_flight -= 1;
        self.ended += 1;
    }

    fn write_prompt(&self, tag: u32, prompt: &mut Vec<Token>) {
        let request = u64::from(tag) << 32;
        prompt.extend((0..self.spec.input_tokens).map(|at| token(request ^ u64::from(at))));
    }

    fn is_drained(&self) -> bool {
        self.ended == u64::from(self.spec.count)
    }

    fn total(&self) -> u64 {
        u64::from(self.spec.count)
    }

    fn tells_sessions(&self) -> bool {
        false
    }

    fn session_name(&self, tag: u32) -> String {
        format!("request_{}", u64::from(tag) + 1)
    }
}

/// A token id for a position: distinct with overwhelming likelihood, never 0. Source: Dynamo synthetic replay.
fn token(at: u64) -> Token {
    let mut word = at.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^= word >> 31;
    u32::try_from(word & 0xffff_ffff).unwrap_or(1).max(1)
}

impl SyntheticSpec {
    /// The load as a source.
    ///
    /// # Errors
    /// As [`SyntheticSpec::validate`].
    pub fn source(self) -> Result<Box<dyn Source>, SyntheticError> {
        self.validate()?;
        if self.is_simple() {
            return Ok(Box::new(SimpleSource::new(self)));
        }
        let load = match self.arrivals {
            Arrivals::Concurrency(most) => super::Load::Concurrency(most),
            Arrivals::Poisson { .. } | Arrivals::Interval(_) => super::Load::Timestamps { speedup: self.speedup },
        };
        Ok(Box::new(super::SessionSource::new(self.sessions(), load)))
    }
}
