//! Selectors as they are written: the text, and the list of workers that JSON and TOML may have instead.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{Pool, Rule, Selector};
use crate::types::WorkerId;

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

impl Pool {
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
