//! YAML files, their overrides, and messages that name the path of a key.

use std::path;

use serde::de::DeserializeOwned;
use serde_norway::Value;
use serde_path_to_error::{Path, Segment};

use super::PredictError;
use crate::plain_words::plain;

/// Reads a file and applies `PATH=YAML` overrides in order.
///
/// # Errors
/// [`PredictError`] names the file, or the override.
pub fn load(path: &path::Path, overrides: &[String]) -> Result<Value, PredictError> {
    let file = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| PredictError::Config(format!("{file}: {error}")))?;
    let mut value: Value =
        serde_norway::from_str(&text).map_err(|error| PredictError::Config(format!("{file}: {error}")))?;
    value
        .apply_merge()
        .map_err(|error| PredictError::Config(format!("{file}: {error}")))?;
    if !value.is_mapping() {
        return Err(PredictError::Config(format!("{file}: expected a mapping at the top")));
    }
    for given in overrides {
        apply(&mut value, given).map_err(|what| PredictError::Config(format!("--set {given}: {what}")))?;
    }
    Ok(value)
}

fn apply(document: &mut Value, given: &str) -> Result<(), String> {
    let (path, yaml) = given.split_once('=').ok_or("expected PATH=YAML")?;
    let value: Value = serde_norway::from_str(yaml).map_err(|error| error.to_string())?;
    set(document, path, value)
}

/// Puts a value at a dot path; mappings on the way are made.
pub fn set(document: &mut Value, path: &str, value: Value) -> Result<(), String> {
    let mut place = document;
    for key in path.split('.') {
        if key.is_empty() {
            return Err("a part of the path is empty".into());
        }
        if place.is_null() {
            *place = Value::Mapping(serde_norway::Mapping::new());
        }
        let Value::Mapping(map) = place else {
            return Err(format!("{key} is below something that is not a mapping"));
        };
        place = map.entry(Value::String(key.to_owned())).or_insert(Value::Null);
    }
    *place = value;
    Ok(())
}

/// The value at a dot path.
pub fn get<'a>(document: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(document, |place, key| place.get(key))
}

/// A value as a `T`; errors name the path of the key.
///
/// # Errors
/// [`PredictError::Config`].
pub fn read<T: DeserializeOwned>(value: Value) -> Result<T, PredictError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let (path, what) = (written(error.path()), error.inner().to_string());
        PredictError::Config(plain(&path, &what))
    })
}

/// A path as it is in the file, where the name of a type is no part of it.
fn written(path: &Path) -> String {
    let mut text = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => text.extend(["[", &index.to_string(), "]"]),
            Segment::Map { key } if text.is_empty() => text.push_str(key),
            Segment::Map { key } => text.extend([".", key]),
            Segment::Enum { .. } => {}
            Segment::Unknown => text.push_str(".?"),
        }
    }
    text
}

/// A value in a message.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Sequence(_) => "an array".into(),
        Value::Mapping(_) => "an object".into(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Tagged(_) => {
            serde_json::to_string(value).unwrap_or_else(|_| "a value with a tag".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_make_their_way_and_the_last_one_counts() {
        let mut document: Value = serde_norway::from_str("engine: {model: m}").unwrap();
        for given in [
            "traffic.load.concurrency=8",
            "traffic.load.concurrency=9",
            "engine.model=[1, x]",
        ] {
            apply(&mut document, given).unwrap();
        }
        assert_eq!(get(&document, "traffic.load.concurrency"), Some(&Value::from(9)));
        assert!(get(&document, "engine.model").is_some_and(Value::is_sequence));
        assert!(
            apply(&mut document, "engine.model.x=1")
                .unwrap_err()
                .contains("not a mapping")
        );
        assert!(apply(&mut document, "a..b=1").unwrap_err().contains("empty"));
        assert!(apply(&mut document, "a").unwrap_err().contains("PATH=YAML"));
    }
}
