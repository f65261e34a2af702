//! Whom a fault strikes.
//!
//! | Text | Workers |
//! |---|---|
//! | `*` | all |
//! | `w3`, `w0-w31`, `w1,w5,w8-w9` | by position |
//! | `group:decode` | of a group |
//! | `label:engine=vllm` | with that label: `engine`, `role`, `namespace`, `component`, `endpoint`, or one of the user's |
//! | `25%` | a random share, at least one |
//! | `random(3)` | random ones |
//! | `hottest`, `hottest(3)` | those with the most requests in their engines |
//! | `most_cached`, `most_cached(3)` | those with the most cached blocks |
//!
//! The last four may be followed by `@` and one of the others: `hottest(2)@group:decode`. They choose among workers that
//! are alive, once, when the fault's window opens.

use std::cmp::Reverse;

use serde::Serialize;

use super::draw::Dice;
use crate::types::WorkerId;

mod written;

pub use written::SelectorError;

/// How closely a fault is aimed. Of several faults of one kind the closest aimed counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// At everyone.
    Fleet,
    /// At a group or a label.
    Group,
    /// At workers of its own.
    Worker,
}

/// Which workers.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(into = "String")]
pub struct Selector {
    rule: Rule,
    pool: Pool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Rule {
    Everyone,
    Share(f64),
    Random(u32),
    Hottest(u32),
    MostCached(u32),
}

#[derive(Debug, Clone, PartialEq)]
enum Pool {
    All,
    Ranges(Vec<(u32, u32)>),
    Group(String),
    Label(String, String),
}

/// What a selector looks at.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Which worker.
    pub id: WorkerId,
    /// Its group.
    pub group: String,
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// Whether it serves.
    pub alive: bool,
    /// Requests in its engines.
    pub requests: u64,
    /// Blocks in its caches.
    pub cached_blocks: u64,
    /// How it announces its cache.
    pub events: KvEvents,
}

/// How a worker announces what is in its cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KvEvents {
    /// Not at all.
    None,
    /// By publishers of its own.
    #[default]
    Published,
    /// In `JetStream`.
    Durable,
}

impl Selector {
    /// Workers and ranges in one list; more is a mistake.
    pub const MOST_IN_A_LIST: usize = 1024;

    /// Everyone.
    pub const fn all() -> Self {
        Self {
            rule: Rule::Everyone,
            pool: Pool::All,
        }
    }

    /// One worker.
    pub fn worker(id: WorkerId) -> Self {
        Self {
            rule: Rule::Everyone,
            pool: Pool::Ranges(vec![(id.0, id.0)]),
        }
    }

    /// How closely it aims.
    pub fn level(&self) -> Level {
        match (self.rule, &self.pool) {
            (Rule::Everyone, Pool::All) => Level::Fleet,
            (Rule::Everyone, Pool::Group(_) | Pool::Label(..)) => Level::Group,
            (Rule::Everyone, Pool::Ranges(_))
            | (Rule::Share(_) | Rule::Random(_) | Rule::Hottest(_) | Rule::MostCached(_), _) => Level::Worker,
        }
    }

    /// Whether the choice depends on dice.
    pub fn is_random(&self) -> bool {
        matches!(self.rule, Rule::Share(_) | Rule::Random(_))
    }

    /// Whether the choice depends on the moment.
    pub fn is_rule(&self) -> bool {
        self.rule != Rule::Everyone
    }

    /// Whether it could ever select any of the workers.
    pub fn can_match(&self, fleet: &[Candidate]) -> bool {
        fleet.iter().any(|worker| self.pool.holds(worker))
    }

    /// What of it selects no worker of the fleet, and never can: all of it, or a worker or range of its list.
    pub fn unmatched(&self, fleet: &[Candidate]) -> Option<Self> {
        let Pool::Ranges(ranges) = &self.pool else {
            return (!self.can_match(fleet)).then(|| self.clone());
        };
        let alone = |range| Self {
            rule: Rule::Everyone,
            pool: Pool::Ranges(vec![range]),
        };
        let mut parts = ranges.iter().map(|range| alone(*range));
        parts.find(|part| !part.can_match(fleet))
    }

    /// The workers it means now, by position.
    pub fn choose(&self, fleet: &[Candidate], dice: Dice) -> Vec<WorkerId> {
        let pool = fleet.iter().filter(|worker| self.pool.holds(worker));
        let mut chosen: Vec<&Candidate> = match self.rule {
            Rule::Everyone => pool.collect(),
            Rule::Share(_) | Rule::Random(_) | Rule::Hottest(_) | Rule::MostCached(_) => {
                pool.filter(|worker| worker.alive).collect()
            }
        };
        match self.rule {
            Rule::Everyone => {}
            Rule::Share(share) => {
                #[allow(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    clippy::cast_precision_loss
                )]
                let many = (chosen.len() as f64 * share).round() as usize;
                dice.shuffle(&mut chosen);
                chosen.truncate(many.max(1));
            }
            Rule::Random(many) => {
                dice.shuffle(&mut chosen);
                chosen.truncate(many as usize);
            }
            // Sorting is stable: ties go to the first worker.
            Rule::Hottest(many) => {
                chosen.sort_by_key(|worker| Reverse(worker.requests));
                chosen.truncate(many as usize);
            }
            Rule::MostCached(many) => {
                chosen.sort_by_key(|worker| Reverse(worker.cached_blocks));
                chosen.truncate(many as usize);
            }
        }
        let mut ids: Vec<WorkerId> = chosen.into_iter().map(|worker| worker.id).collect();
        ids.sort_unstable();
        ids
    }
}

impl Pool {
    fn holds(&self, worker: &Candidate) -> bool {
        match self {
            Self::All => true,
            Self::Ranges(ranges) => ranges
                .iter()
                .any(|&(first, last)| (first..=last).contains(&worker.id.0)),
            Self::Group(name) => worker.group == *name,
            Self::Label(key, value) => worker.labels.iter().any(|(k, v)| k == key && v == value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet() -> Vec<Candidate> {
        (0..8)
            .map(|id| Candidate {
                id: WorkerId(id),
                group: if id < 3 { "prefill" } else { "decode" }.to_owned(),
                labels: vec![(
                    "engine".to_owned(),
                    if id % 2 == 0 { "vllm" } else { "sglang" }.to_owned(),
                )],
                alive: id != 7,
                requests: u64::from(id % 5),
                cached_blocks: u64::from(100 - id),
                events: KvEvents::default(),
            })
            .collect()
    }

    fn chosen(text: &str) -> Vec<u32> {
        let selector: Selector = text.parse().unwrap();
        assert_eq!(selector.to_string().parse(), Ok(selector.clone()), "{text}");
        let ids = selector.choose(&fleet(), Dice::new(1, 1));
        ids.into_iter().map(|id| id.0).collect()
    }

    #[test]
    fn selectors_choose_whom_they_name() {
        assert_eq!(chosen("*"), (0..8).collect::<Vec<_>>());
        assert_eq!(chosen("w3"), [3]);
        assert_eq!(chosen("w0-w1, w5"), [0, 1, 5]);
        assert_eq!(chosen("w7"), [7], "a dead worker can be named");
        assert_eq!(chosen("group:prefill"), [0, 1, 2]);
        assert_eq!(chosen("label:engine=sglang"), [1, 3, 5, 7]);
        assert_eq!(chosen("hottest"), [4]);
        assert_eq!(chosen("hottest(2)@group:prefill"), [1, 2]);
        assert_eq!(chosen("most_cached(2)@label:engine=sglang"), [1, 3]);
        assert_eq!(chosen("random(3)").len(), 3);
        assert_eq!(chosen("50%@group:decode").len(), 2, "half of the four that are alive");
        assert_eq!(chosen("1%").len(), 1, "a share is never nobody");
        assert_eq!(chosen("group:other"), Vec::<u32>::new());
    }

    #[test]
    fn who_is_named_and_not_there_is_told_alone() {
        let unmatched = |text: &str| {
            let part = text.parse::<Selector>().unwrap().unmatched(&fleet());
            part.map(|part| part.to_string())
        };
        assert_eq!(unmatched("w0,w9,w3").as_deref(), Some("w9"));
        assert_eq!(unmatched("hottest@w1,w20-w30").as_deref(), Some("w20-w30"));
        assert_eq!(unmatched("group:other").as_deref(), Some("group:other"));
        for text in ["*", "w0-w31", "w7,w2", "random(20)", "hottest@group:prefill"] {
            assert_eq!(unmatched(text), None, "{text}");
        }
    }

    #[test]
    fn random_choices_follow_the_seed_alone() {
        let selector: Selector = "random(3)".parse().unwrap();
        let choose = |seed| selector.choose(&fleet(), Dice::new(seed, 1));
        assert_eq!(choose(1), choose(1));
        assert!((2..20).any(|seed| choose(seed) != choose(1)));
    }

    #[test]
    fn closer_aim_is_a_higher_level() {
        let level = |text: &str| text.parse::<Selector>().unwrap().level();
        assert!(level("*") < level("group:a") && level("group:a") < level("w1"));
        assert_eq!(level("random(2)"), Level::Worker);
    }
}
