//! Labels of workers: names of the user's own, for selectors (`label:zone=a`).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::layers::Layered;
use super::rules::refused;

/// Most labels of a worker.
const MAX_LABELS: usize = 16;

/// Most values that workers take turns with.
const MAX_TURNS: usize = 256;

/// Longest key or value, bytes.
const MAX_BYTES: usize = 63;

/// Keys that every worker has anyway.
const TAKEN: [&str; 5] = ["engine", "role", "namespace", "component", "endpoint"];

/// Keys and their values; where there are several, workers take turns by their position in the fleet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "BTreeMap<String, Values>")]
pub struct Labels(BTreeMap<String, Vec<String>>);

/// As text, or as a table.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Table(BTreeMap<String, Values>),
}

/// One value, or several.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Values {
    One(String),
    Several(Vec<String>),
}

/// Labels that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelsError {
    /// Not `key=value`.
    #[error("{0:?} is no label; write key=value, or key=a|b for workers that take turns, comma separated")]
    Form(String),
    /// A key or a value that selectors could not name.
    #[error("label {0:?}: keys and values are 1 to 63 letters, digits, '-', '_', '.' or '/'")]
    Word(String),
    /// A key twice.
    #[error("label {0:?} is given twice")]
    Twice(String),
    /// A key that has a meaning already.
    #[error("label {0:?} is taken: every worker has engine, role, namespace, component and endpoint")]
    Taken(String),
    /// Too many.
    #[error("there are more than {MAX_LABELS} labels, or {MAX_TURNS} values of one")]
    TooMany,
}

impl Labels {
    fn checked(given: impl IntoIterator<Item = (String, Vec<String>)>) -> Result<Self, LabelsError> {
        let mut labels = BTreeMap::new();
        for (key, values) in given {
            let words = std::iter::once(&key).chain(&values);
            if let Some(bad) = words.into_iter().find(|word| !is_word(word)) {
                return Err(LabelsError::Word(bad.chars().take(80).collect()));
            }
            if TAKEN.contains(&key.as_str()) {
                return Err(LabelsError::Taken(key));
            }
            if values.is_empty() {
                return Err(LabelsError::Form(key));
            }
            if values.len() > MAX_TURNS {
                return Err(LabelsError::TooMany);
            }
            if labels.insert(key.clone(), values).is_some() {
                return Err(LabelsError::Twice(key));
            }
        }
        if labels.len() > MAX_LABELS {
            return Err(LabelsError::TooMany);
        }
        Ok(Self(labels))
    }

    /// Those of the worker at `position` in the fleet.
    pub fn of(&self, position: u32) -> impl Iterator<Item = (String, String)> {
        let value = move |values: &Vec<String>| values.get(position as usize % values.len().max(1)).cloned();
        let labels = self.0.iter();
        labels.filter_map(move |(key, values)| Some((key.clone(), value(values)?)))
    }
}

fn is_word(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    (1..=MAX_BYTES).contains(&text.len()) && text.bytes().all(fits)
}

impl FromStr for Labels {
    type Err = LabelsError;

    fn from_str(text: &str) -> Result<Self, LabelsError> {
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        let label = |word: &str| {
            let (key, values) = word.split_once('=').ok_or_else(|| LabelsError::Form(word.to_owned()))?;
            let values = values.split('|').map(|value| value.trim().to_owned());
            Ok((key.trim().to_owned(), values.collect()))
        };
        Self::checked(words.map(label).collect::<Result<Vec<_>, _>>()?)
    }
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = self.0.iter().map(|(key, values)| format!("{key}={}", values.join("|")));
        f.write_str(&labels.collect::<Vec<_>>().join(","))
    }
}

impl TryFrom<Written> for Labels {
    type Error = LabelsError;

    fn try_from(written: Written) -> Result<Self, LabelsError> {
        match written {
            Written::Text(text) => text.parse(),
            Written::Table(table) => Self::checked(table.into_iter().map(|(key, values)| match values {
                Values::One(value) => (key, vec![value]),
                Values::Several(values) => (key, values),
            })),
        }
    }
}

impl From<Labels> for BTreeMap<String, Values> {
    fn from(Labels(labels): Labels) -> Self {
        let values = |values: Vec<String>| match <[String; 1]>::try_from(values) {
            Ok([value]) => Values::One(value),
            Err(values) => Values::Several(values),
        };
        labels
            .into_iter()
            .map(|(key, several)| (key, values(several)))
            .collect()
    }
}

/// What a group's settings say.
pub(super) fn resolve(layered: &Layered) -> Result<Labels, ConfigError> {
    let Some(value) = layered.value("labels") else {
        return Ok(Labels::default());
    };
    serde_json::from_value(value.clone()).map_err(|error| refused(layered, "labels", &format!("cannot be: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_table_say_the_same_and_workers_take_turns() {
        let text: Labels = "zone=a|b, rack=r1".parse().unwrap();
        let table: Labels = serde_json::from_str(r#"{"zone": ["a", "b"], "rack": "r1"}"#).unwrap();
        assert_eq!(text, table);
        assert_eq!(text.to_string().parse(), Ok(text.clone()));
        let told = serde_json::to_value(&text).unwrap();
        assert_eq!(told, serde_json::json!({"zone": ["a", "b"], "rack": "r1"}));
        assert_eq!(serde_json::from_value::<Labels>(told).unwrap(), text);
        let of = |position| {
            text.of(position)
                .map(|(key, value)| key + "=" + &value)
                .collect::<Vec<_>>()
        };
        assert_eq!(of(0), ["rack=r1", "zone=a"]);
        assert_eq!(of(3), ["rack=r1", "zone=b"]);
        assert_eq!("".parse::<Labels>().unwrap().of(0).count(), 0);
    }

    #[test]
    fn labels_that_selectors_could_not_name_are_refused() {
        for (text, error) in [
            ("zone", "is no label"),
            ("zone=", "keys and values"),
            ("zone=a b", "keys and values"),
            ("role=x", "is taken"),
            ("zone=a,zone=b", "is given twice"),
        ] {
            let refused = text.parse::<Labels>().unwrap_err().to_string();
            assert!(refused.contains(error), "{text}: {refused}");
        }
        let many = (0..=MAX_LABELS)
            .map(|n| format!("k{n}=v"))
            .collect::<Vec<_>>()
            .join(",");
        assert_eq!(many.parse::<Labels>(), Err(LabelsError::TooMany));
    }
}
