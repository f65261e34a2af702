//! What a load asks, and when: decided by seed, load and number alone, so that a drill that runs again asks the same.

use std::time::Duration;

use super::scenario::load::{Arrivals, Load};
use crate::faults::draw::Dice;
use crate::types::Token;

/// The plan of one load.
#[derive(Debug, Clone)]
pub struct Plan {
    gaps: Dice,
    own: Dice,
    groups: Dice,
    seeds: Dice,
    arrivals: Arrivals,
    prompt_tokens: u32,
    prefix_groups: u32,
    prefix_tokens: u32,
    ids: (Token, Token),
}

/// Salts of the dice that a plan throws.
const GAPS: u64 = 1;
const OWN: u64 = 2;
const GROUPS: u64 = 3;
const SEEDS: u64 = 4;

impl Plan {
    /// The plan of the load at this position. `ids`: `lo..hi`, what prompts are made of.
    pub fn new(seed: u64, position: usize, load: &Load, ids: (Token, Token)) -> Self {
        let dice = |salt| Dice::new(seed, ((position as u64) << 8) | salt);
        Self {
            gaps: dice(GAPS),
            own: dice(OWN),
            groups: dice(GROUPS),
            seeds: dice(SEEDS),
            arrivals: load.arrivals,
            prompt_tokens: load.prompt_tokens,
            prefix_groups: load.prefix_groups,
            prefix_tokens: load.prefix_tokens,
            ids,
        }
    }

    /// The seed that a request is sent with. JSON has no larger number that everybody reads alike.
    pub fn seed(&self, number: u64) -> i64 {
        i64::try_from(self.seeds.bits(number) >> 12).unwrap_or(0)
    }

    /// Time between request `number` of an open loop and the next one, at `rate` requests per second.
    pub fn gap(&self, number: u64, rate: f64) -> Duration {
        let mean = 1.0 / rate;
        let seconds = match self.arrivals {
            Arrivals::Fixed => mean,
            // 1 - u is never 0.
            Arrivals::Poisson => -(1.0 - self.gaps.unit(number)).ln() * mean,
        };
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// The prompt of a request: the beginning of its group, then tokens of its own.
    pub fn prompt(&self, number: u64) -> Vec<Token> {
        let (first, end) = self.ids;
        let span = u64::from(end.saturating_sub(first)).max(1);
        let token = |bits: u64| first + u32::try_from(bits % span).unwrap_or(0);
        let mut prompt = Vec::with_capacity(self.prompt_tokens as usize);
        if self.prefix_groups > 0 {
            let group = self.groups.bits(number) % u64::from(self.prefix_groups);
            let dice = Dice::new(self.groups.bits(u64::MAX), group);
            prompt.extend((0..u64::from(self.prefix_tokens)).map(|place| token(dice.bits(place))));
        }
        let dice = Dice::new(self.own.bits(number), number);
        let rest = u64::from(self.prompt_tokens) - prompt.len() as u64;
        prompt.extend((0..rest).map(|place| token(dice.bits(place))));
        prompt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(seed: u64, position: usize) -> Plan {
        let load = Load {
            prompt_tokens: 64,
            prefix_groups: 3,
            prefix_tokens: 32,
            ..Load::default()
        };
        Plan::new(seed, position, &load, (300, 1000))
    }

    #[test]
    fn the_same_seed_asks_the_same_and_another_seed_or_load_does_not() {
        let asks = |plan: &Plan| (0..20).map(|n| (plan.prompt(n), plan.gap(n, 10.0))).collect::<Vec<_>>();
        assert_eq!(asks(&plan(1, 0)), asks(&plan(1, 0)));
        assert_ne!(asks(&plan(1, 0)), asks(&plan(2, 0)));
        assert_ne!(asks(&plan(1, 0)), asks(&plan(1, 1)));
    }

    #[test]
    fn prompts_have_their_length_and_share_the_beginning_of_their_group_only() {
        let plan = plan(1, 0);
        let prompts: Vec<_> = (0..50).map(|n| plan.prompt(n)).collect();
        assert!(prompts.iter().flatten().all(|id| (300..=999).contains(id)));
        assert!(prompts.iter().all(|prompt| prompt.len() == 64));
        let mut beginnings: Vec<_> = prompts.iter().map(|prompt| &prompt[..32]).collect();
        beginnings.sort_unstable();
        beginnings.dedup();
        assert_eq!(beginnings.len(), 3);
        let mut ends: Vec<_> = prompts.iter().map(|prompt| &prompt[32..]).collect();
        ends.sort_unstable();
        ends.dedup();
        assert_eq!(ends.len(), 50);
    }

    #[test]
    fn an_open_loop_keeps_its_rate_on_average() {
        let plan = plan(1, 0);
        let total: Duration = (0..10_000).map(|n| plan.gap(n, 50.0)).sum();
        assert!((190.0..210.0).contains(&total.as_secs_f64()), "{total:?}");
    }
}
