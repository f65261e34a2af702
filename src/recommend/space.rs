//! Domains in a document and the candidates they span.
//!
//! A domain is a mapping `{choices: [...]}` or `{range: {min, max, step, scale}}` in the place of a value. Candidates are
//! numbered: the last domain of the document varies fastest.

use serde::Deserialize;
use serde_norway::{Mapping, Value};

use crate::plain_words::number as short;
use crate::predict::{PredictError, yaml};

use super::presets;

/// Sections that may hold domains.
const SECTIONS: [&str; 3] = ["traffic", "engine", "router"];
/// Values of one domain.
const MAX_VALUES: usize = 10_000;
/// Candidates of a space.
const MAX_CANDIDATES: u64 = 1 << 40;

/// One value that varies.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Domain {
    /// Dot path.
    pub(super) path: String,
    /// What it can be, in the order of the document.
    pub(super) values: Vec<Value>,
}

/// All candidates of a document.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Space {
    template: Value,
    domains: Vec<Domain>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    min: f64,
    max: f64,
    /// On a log scale a factor, 2 where it is left out.
    step: Option<f64>,
    #[serde(default)]
    scale: Scale,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Scale {
    #[default]
    Linear,
    Log,
}

fn wrong(path: &str, what: impl std::fmt::Display) -> PredictError {
    PredictError::Config(format!("{path}: {what}"))
}

impl Space {
    /// Finds the domains of a document.
    ///
    /// # Errors
    /// [`PredictError::Config`] names the path of a domain that makes no sense.
    pub(super) fn new(template: Value) -> Result<Self, PredictError> {
        let mut domains = Vec::new();
        for section in SECTIONS {
            if let Some(value) = template.get(section) {
                find(value, section, &mut domains)?;
            }
        }
        let space = Self { template, domains };
        let mut sizes = space.domains.iter().map(|domain| domain.values.len() as u64);
        let size = sizes.try_fold(1_u64, u64::checked_mul);
        match size.filter(|size| *size <= MAX_CANDIDATES) {
            Some(_) => Ok(space),
            None => Err(PredictError::Config(format!(
                "the domains span more than {MAX_CANDIDATES} candidates; make some of them smaller"
            ))),
        }
    }

    /// What varies.
    pub(super) fn domains(&self) -> &[Domain] {
        &self.domains
    }

    /// How many candidates there are, at least 1.
    pub(super) fn len(&self) -> u64 {
        self.domains.iter().map(|domain| domain.values.len() as u64).product()
    }

    /// Which value each domain has in a candidate.
    pub(super) fn choices(&self, mut candidate: u64) -> Vec<usize> {
        let mut choices = vec![0; self.domains.len()];
        for (choice, domain) in choices.iter_mut().zip(&self.domains).rev() {
            let count = domain.values.len() as u64;
            *choice = usize::try_from(candidate % count).unwrap_or(0);
            candidate /= count;
        }
        choices
    }

    /// The candidate with these values.
    pub(super) fn candidate(&self, choices: &[usize]) -> u64 {
        let pairs = choices.iter().zip(&self.domains);
        pairs.fold(0, |candidate, (&choice, domain)| {
            candidate * domain.values.len() as u64 + choice as u64
        })
    }

    /// The document of a candidate.
    pub(super) fn document(&self, candidate: u64) -> Value {
        let mut document = self.template.clone();
        for (choice, domain) in self.choices(candidate).into_iter().zip(&self.domains) {
            // The path was found in this very document.
            let _ = yaml::set(&mut document, &domain.path, domain.values[choice].clone());
        }
        document
    }

    /// Paths and values of a candidate.
    pub(super) fn settings(&self, candidate: u64) -> Vec<(&str, &Value)> {
        let choices = self.choices(candidate);
        let pairs = choices.into_iter().zip(&self.domains);
        pairs
            .map(|(choice, domain)| (domain.path.as_str(), &domain.values[choice]))
            .collect()
    }
}

fn find(value: &Value, path: &str, domains: &mut Vec<Domain>) -> Result<(), PredictError> {
    let Value::Mapping(map) = value else { return Ok(()) };
    if value.get("preset").is_some() {
        return Err(wrong(
            path,
            "preset belongs to engine.workers.<pool>.parallelism; list the choices",
        ));
    }
    if map.len() == 1
        && let Some(values) = domain(value, path)?
    {
        domains.push(Domain {
            path: path.to_owned(),
            values,
        });
        return Ok(());
    }
    for (key, value) in map {
        let Some(key) = key.as_str() else {
            return Err(wrong(path, "keys have to be strings"));
        };
        if key.contains('.') {
            return Err(wrong(path, format!("{key}: a key with a dot")));
        }
        find(value, &format!("{path}.{key}"), domains)?;
    }
    Ok(())
}

/// The values of a mapping that is a domain.
fn domain(value: &Value, path: &str) -> Result<Option<Vec<Value>>, PredictError> {
    let values = if let Some(choices) = value.get("choices") {
        let Value::Sequence(choices) = choices else {
            return Err(wrong(path, "choices has to be a list"));
        };
        choices.clone()
    } else if let Some(range) = value.get("range") {
        let range: Range = yaml::read(range.clone()).map_err(|error| wrong(path, error))?;
        range.values().map_err(|what| wrong(path, what))?
    } else {
        return Ok(None);
    };
    if values.is_empty() || values.len() > MAX_VALUES {
        let count = values.len();
        return Err(wrong(
            path,
            format!("a domain of {count} values, expected 1 to {MAX_VALUES}"),
        ));
    }
    let again = (1..values.len()).find(|&at| values[..at].contains(&values[at]));
    match again {
        Some(at) => Err(wrong(path, format!("{} is there twice", plain(&values[at])))),
        None => Ok(Some(values)),
    }
}

impl Range {
    /// From `min` to `max`: steps are added, or on a log scale multiplied; factors that nobody gave end at `max`.
    fn values(&self) -> Result<Vec<Value>, String> {
        let &Self { min, max, scale, .. } = self;
        if !min.is_finite() || !max.is_finite() || min > max {
            let (min, max) = (short(min), short(max));
            return Err(format!("range from {min} to {max}, expected finite numbers in order"));
        }
        let step = match (self.step, scale) {
            (Some(step), _) => step,
            (None, Scale::Log) => 2.0,
            (None, Scale::Linear) => return Err("step is missing; a linear range needs one".into()),
        };
        match scale {
            Scale::Linear | Scale::Log if !step.is_finite() => {
                return Err(format!("step is {}, expected a finite number", short(step)));
            }
            Scale::Linear if step <= 0.0 => return Err(format!("step is {}, expected above 0", short(step))),
            Scale::Log if step <= 1.0 || min <= 0.0 => {
                return Err(format!(
                    "a log range needs min above 0 and step above 1, got {} and {}",
                    short(min),
                    short(step)
                ));
            }
            Scale::Linear | Scale::Log => {}
        }
        // Steps accumulate errors of the last bits, which must not lose the end.
        let end = max + max.abs() * 1e-9;
        let mut values = Vec::new();
        for at in 0..=MAX_VALUES {
            #[allow(clippy::cast_precision_loss)]
            let at = at as f64;
            let value = match scale {
                Scale::Linear => min + at * step,
                Scale::Log => min * step.powf(at),
            };
            if value > end {
                break;
            }
            values.push(number(value.min(max)));
        }
        let end = number(max);
        if self.step.is_none() && values.last() != Some(&end) {
            values.push(end);
        }
        Ok(values)
    }
}

/// Whole numbers stay whole, because many keys take no others.
#[allow(clippy::cast_possible_truncation)]
fn number(value: f64) -> Value {
    let rounded = value.round();
    if (value - rounded).abs() <= 1e-9 * value.abs().max(1.0) && rounded.abs() < 1e15 {
        Value::from(rounded as i64)
    } else {
        Value::from(value)
    }
}

fn is_shape(mapping: &Mapping) -> bool {
    let of_shape = |key: &Value| key.as_str().is_some_and(|key| presets::KEYS.contains(&key));
    !mapping.is_empty() && mapping.keys().all(of_shape)
}

/// A value on one line; of a parallel shape what is not 1.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Mapping(shape) if is_shape(shape) => {
            let counts = shape.iter().filter(|(_, value)| value.as_u64() != Some(1));
            let counts = counts.map(|(key, value)| format!("{}={}", plain(key), plain(value)));
            let counts: Vec<String> = counts.collect();
            if counts.is_empty() {
                "1 GPU".to_owned()
            } else {
                counts.join(" ")
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Mapping(_) | Value::Sequence(_) | Value::Tagged(_) => {
            serde_json::to_string(value).unwrap_or_else(|_| "?".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(text: &str) -> Result<Space, PredictError> {
        Space::new(serde_norway::from_str(text).unwrap())
    }

    #[test]
    fn candidates_are_numbered_with_the_last_domain_fastest() {
        let space = space(
            "engine: {model: {choices: [a, b]}, x: 1}\nrouter: {t: {range: {min: 0, max: 1, step: 0.5}}}\n\
             traffic: {load: {range: {min: 1, max: 64, step: 4, scale: log}}}",
        )
        .unwrap();
        let paths: Vec<_> = space.domains().iter().map(|domain| domain.path.as_str()).collect();
        assert_eq!(paths, ["traffic.load", "engine.model", "router.t"]);
        let values = |at: usize| space.domains()[at].values.iter().map(plain).collect::<Vec<_>>();
        assert_eq!(
            (values(0), values(2)),
            (
                vec!["1".into(), "4".into(), "16".into(), "64".into()],
                vec!["0".to_owned(), "0.5".into(), "1".into()]
            )
        );
        let doubled = self::space("engine: {x: {range: {min: 3, max: 20, scale: log}}}").unwrap();
        assert_eq!(doubled.domains()[0].values, [3, 6, 12, 20].map(Value::from));
        assert_eq!(space.len(), 24);
        assert_eq!(space.choices(23), [3, 1, 2]);
        assert!((0..24).all(|candidate| space.candidate(&space.choices(candidate)) == candidate));
        let document = space.document(4);
        assert_eq!(yaml::get(&document, "engine.model"), Some(&Value::from("b")));
        assert_eq!(yaml::get(&document, "engine.x"), Some(&Value::from(1)));
        assert_eq!(yaml::get(&document, "router.t"), Some(&Value::from(0.5)));
    }

    #[test]
    fn domains_that_make_no_sense_name_their_path() {
        for (text, expected) in [
            ("engine: {x: {choices: []}}", "engine.x: a domain of 0 values"),
            ("engine: {x: {choices: 3}}", "engine.x: choices has to be a list"),
            ("engine: {x: {choices: [3, 4, 3]}}", "engine.x: 3 is there twice"),
            ("engine: {x: {range: {min: 1, max: 2, step: 0}}}", "engine.x: step is 0"),
            (
                "engine: {x: {range: {min: 0, max: 2, step: 2, scale: log}}}",
                "engine.x: a log range",
            ),
            ("engine: {x: {range: {min: 0, max: 2}}}", "engine.x: step is missing"),
            (
                "engine: {x: {range: {min: 2, max: 1}}}",
                "engine.x: range from 2 to 1, expected finite numbers in order",
            ),
            (
                "engine: {x: {range: {min: 0, max: 1.7e308, step: -1e300}}}",
                "engine.x: step is -1e300, expected above 0",
            ),
            ("traffic: {choices: [{}, {}]}", "traffic: {} is there twice"),
            (
                "engine: {x: {range: {min: 0, max: 1, step: 0.00001}}}",
                "engine.x: a domain of 10001 values",
            ),
            ("engine: {workers: {preset: list}}", "engine.workers: preset belongs to"),
        ] {
            let error = space(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
