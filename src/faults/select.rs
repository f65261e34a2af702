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
use std::fmt;
use std::str::FromStr;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::draw::Dice;
use crate::types::WorkerId;

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

/// A text that selects nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// No form of a selector.
    #[error(
        "{0:?} is no selector; use *, w<N>, w<N>-w<M>, a list of those, group:<name>, label:<key>=<value>, <N>%, \
         random(<N>), hottest or most_cached, the last four with @<workers> behind them if wanted"
    )]
    Form(String),
    /// An actor within a worker.
    #[error(
        "{0:?} is a part of a worker, and whole workers are selected here: use w<N>; kill, and the faults crash and panic \
         with actor=<part>, strike a part"
    )]
    Part(String),
    /// A share of nobody, or of more than everybody.
    #[error("{0:?} is no share; it must be greater than 0% and at most 100%")]
    Share(String),
    /// None of them.
    #[error("{0:?} selects nobody; the number in parentheses must be 1 or greater")]
    Count(String),
    /// The last worker before the first.
    #[error("the range {0:?} is reversed; the smaller number comes first")]
    Reversed(String),
}

/// As much of a text as an error repeats.
fn short(text: &str) -> String {
    text.chars().take(80).collect()
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
    /// Its KV events go to `JetStream`.
    pub durable_events: bool,
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

    fn read(text: &str) -> Result<Self, SelectorError> {
        let form = || {
            if text.starts_with('w') && text.contains('/') {
                SelectorError::Part(short(text))
            } else {
                SelectorError::Form(short(text))
            }
        };
        if matches!(text, "*" | "all") {
            return Ok(Self::All);
        }
        if let Some(name) = text.strip_prefix("group:") {
            return if name.is_empty() {
                Err(form())
            } else {
                Ok(Self::Group(name.to_owned()))
            };
        }
        if let Some(label) = text.strip_prefix("label:") {
            let label = label.split_once('=').filter(|(key, _)| !key.is_empty());
            let (key, value) = label.ok_or_else(form)?;
            return Ok(Self::Label(key.to_owned(), value.to_owned()));
        }
        let worker = |text: &str| text.trim().strip_prefix('w')?.parse::<u32>().ok();
        let ranges = text.split(',').take(Selector::MOST_IN_A_LIST + 1).map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (worker(first), worker(last)) {
                (Some(first), Some(last)) if first <= last => Ok((first, last)),
                (Some(_), Some(_)) => Err(SelectorError::Reversed(short(part.trim()))),
                _ => Err(form()),
            }
        });
        let ranges = ranges.collect::<Result<Vec<_>, _>>()?;
        if ranges.len() > Selector::MOST_IN_A_LIST {
            return Err(form());
        }
        Ok(Self::Ranges(ranges))
    }
}

impl Rule {
    /// `None`: not a rule, but maybe workers by name.
    fn read(text: &str) -> Result<Option<Self>, SelectorError> {
        if let Some(percent) = text.strip_suffix('%') {
            let Ok(percent) = percent.trim().parse::<f64>() else {
                return Ok(None);
            };
            return if percent > 0.0 && percent <= 100.0 {
                Ok(Some(Self::Share(percent / 100.0)))
            } else {
                Err(SelectorError::Share(short(text)))
            };
        }
        let in_parentheses = text.strip_suffix(')').and_then(|text| text.split_once('('));
        let (name, many) = match in_parentheses {
            Some((name, many)) => match many.trim().parse::<u32>() {
                Ok(many) => (name, many),
                Err(_) => return Ok(None),
            },
            None => (text, 1),
        };
        let rule = match name.trim() {
            "random" => Self::Random(many),
            "hottest" => Self::Hottest(many),
            "most_cached" => Self::MostCached(many),
            _ => return Ok(None),
        };
        if many == 0 {
            return Err(SelectorError::Count(short(text)));
        }
        Ok(Some(rule))
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let trimmed = text.trim();
        if let Some((rule, pool)) = trimmed.split_once('@') {
            let rule = Rule::read(rule.trim())?.ok_or_else(|| SelectorError::Form(short(text)))?;
            let pool = Pool::read(pool.trim())?;
            return Ok(Self { rule, pool });
        }
        Ok(match Rule::read(trimmed)? {
            Some(rule) => Self { rule, pool: Pool::All },
            None => Self {
                rule: Rule::Everyone,
                pool: Pool::read(trimmed)?,
            },
        })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = |f: &mut fmt::Formatter<'_>, name: &str, many: u32| match many {
            1 if name != "random" => f.write_str(name),
            many => write!(f, "{name}({many})"),
        };
        match self.rule {
            Rule::Everyone => {}
            Rule::Share(share) => write!(f, "{}%", share * 100.0)?,
            Rule::Random(n) => many(f, "random", n)?,
            Rule::Hottest(n) => many(f, "hottest", n)?,
            Rule::MostCached(n) => many(f, "most_cached", n)?,
        }
        match (self.rule, &self.pool) {
            (Rule::Everyone, Pool::All) => return f.write_str("*"),
            (Rule::Everyone, _) => {}
            (_, Pool::All) => return Ok(()),
            _ => f.write_str("@")?,
        }
        match &self.pool {
            Pool::All => Ok(()),
            Pool::Group(name) => write!(f, "group:{name}"),
            Pool::Label(key, value) => write!(f, "label:{key}={value}"),
            Pool::Ranges(ranges) => {
                for (index, (first, last)) in ranges.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    if first == last {
                        write!(f, "{comma}w{first}")?;
                    } else {
                        write!(f, "{comma}w{first}-w{last}")?;
                    }
                }
                Ok(())
            }
        }
    }
}

impl From<Selector> for String {
    fn from(selector: Selector) -> Self {
        selector.to_string()
    }
}

/// A text, or a list of workers by number and by name.
impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Written)
    }
}

struct Written;

impl<'de> Visitor<'de> for Written {
    type Value = Selector;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text as \"w0-w3\" or \"hottest\", or a list of workers as [0, \"w5\"]")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Selector, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Selector, A::Error> {
        let mut names = Vec::new();
        while let Some(Name(name)) = list.next_element()? {
            if names.len() == Selector::MOST_IN_A_LIST {
                return Err(de::Error::custom(format_args!(
                    "more than {} workers in a list; use ranges as \"w0-w31\"",
                    Selector::MOST_IN_A_LIST
                )));
            }
            names.push(name);
        }
        if names.is_empty() {
            return Err(de::Error::custom(
                "an empty list selects nobody; use \"*\" for all workers",
            ));
        }
        self.visit_str(&names.join(","))
    }
}

/// One of a list: its number, or its name.
struct Name(String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOfMany)
    }
}

struct OneOfMany;

impl Visitor<'_> for OneOfMany {
    type Value = Name;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a worker by number or name, as 0 or \"w5\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Name, E> {
        Ok(Name(text.to_owned()))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Name, E> {
        let number = u32::try_from(number);
        let number = number.map_err(|_| E::custom("a worker's number is at most 4294967295"))?;
        Ok(Name(WorkerId(number).to_string()))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Name, E> {
        match u64::try_from(number) {
            Ok(number) => self.visit_u64(number),
            Err(_) => Err(E::custom(format_args!("{number} is no worker; the first one is 0"))),
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
                durable_events: false,
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

    #[test]
    fn what_selects_nothing_is_refused() {
        for text in [
            "",
            "3",
            "w",
            "w5-w3",
            "group:",
            "label:x",
            "101%",
            "random(x)",
            "hottest@",
            "coldest",
            "w1@w2",
        ] {
            assert!(text.parse::<Selector>().is_err(), "{text}");
        }
        for (text, words) in [
            ("0%", "greater than 0%"),
            ("-1%", "greater than 0%"),
            ("nan%@group:a", "greater than 0%"),
            ("random(0)", "1 or greater"),
            ("hottest(0)@w0-w3", "1 or greater"),
            ("most_cached(0)", "1 or greater"),
            ("w0,w5-w2", "\"w5-w2\" is reversed"),
            ("w3/r0", "whole workers are selected here"),
        ] {
            let error = text.parse::<Selector>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn a_list_may_mix_numbers_and_names_and_what_is_none_is_told_what_it_may_be() {
        for (json, text) in [
            ("[1, 3]", "w1,w3"),
            ("[\"w1\", \"w3-w4\"]", "w1,w3-w4"),
            ("[\"w0\", 1]", "w0,w1"),
        ] {
            let list: Selector = serde_json::from_str(json).unwrap();
            assert_eq!(list.to_string(), text);
        }
        let from_toml: Selector = toml::Value::from(vec![2, 5]).try_into().unwrap();
        assert_eq!(from_toml.to_string(), "w2,w5");
        for (json, words) in [
            ("5", "integer `5`, expected a text as"),
            ("null", "null, expected a text as"),
            ("[]", "an empty list selects nobody"),
            ("[0, null]", "null, expected a worker by number or name"),
            ("[0.5]", "expected a worker by number or name"),
            ("[-1]", "-1 is no worker"),
            ("[4294967296]", "a worker's number is at most"),
            ("[\"w0\", \"hot\"]", "\"w0,hot\" is no selector"),
            ("{}", "map, expected a text as"),
        ] {
            let error = serde_json::from_str::<Selector>(json).unwrap_err().to_string();
            assert!(error.contains(words), "{json}: {error}");
        }
        let many = serde_json::to_string(&vec![0; Selector::MOST_IN_A_LIST + 1]).unwrap();
        let error = serde_json::from_str::<Selector>(&many).unwrap_err().to_string();
        assert!(error.contains("use ranges"), "{error}");
    }
}
