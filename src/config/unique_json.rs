//! JSON in which no object has a key twice: which of the two counts would be a guess.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Reads one value.
///
/// # Errors
/// In words, with line and column: no JSON, something behind it, or a key that is there twice.
pub(super) fn read(text: &str) -> Result<Value, String> {
    let mut from = serde_json::Deserializer::from_str(text);
    let value = Unique.deserialize(&mut from).map_err(|error| error.to_string())?;
    from.end().map_err(|error| error.to_string())?;
    Ok(value)
}

/// A value, and each value inside it.
struct Unique;

impl<'de> DeserializeSeed<'de> for Unique {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(Self)? {
            all.push(item);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            if all.contains_key(&key) {
                return Err(A::Error::custom(format!("`{key}` is there twice")));
            }
            let value = members.next_value_seed(Self)?;
            all.insert(key, value);
        }
        Ok(all.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_out_as_they_are() {
        for text in [
            "null",
            "-7",
            "18446744073709551615",
            "0.5",
            r#""a\nb""#,
            r#"[1, [], {"a": {"b": true}, "c": ["a", "a"]}]"#,
        ] {
            assert_eq!(read(text), Ok(serde_json::from_str(text).unwrap()), "{text}");
        }
    }

    #[test]
    fn a_key_that_is_there_twice_is_named_however_deep_it_is() {
        for (text, key) in [
            (r#"{"a": 1, "a": 1}"#, "`a` is there twice"),
            (r#"[{"b": {"c": 1, "d": 2, "c": 3}}]"#, "`c` is there twice"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(key) && error.contains("line 1"), "{error}");
        }
        assert_eq!(read(r#"[{"a": 1}, {"a": 2}]"#).map(|value| value.is_array()), Ok(true));
        let deep = "[".repeat(100_000);
        assert!(read(&deep).is_err_and(|error| error.contains("recursion limit")));
    }
}
