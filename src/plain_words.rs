//! What is wrong with a document, in the words of who wrote it: serde speaks of the types that read it.

use std::fmt;

use serde_json::Value;

/// Longest value that a message repeats, characters.
const SHOWN: usize = 60;

/// An error of serde at a path, which is empty or `.` at the root: which field, what was found, what was expected. A text
/// that begins with a dot goes on the path.
pub(crate) fn plain(path: &str, error: &str) -> String {
    let text = placeless(error);
    let path = if path == "." { "" } else { path };
    if let Some(rest) = text.strip_prefix('.') {
        return below(path, rest);
    }
    if let Some(name) = text.strip_prefix("missing field `") {
        return format!("{} is missing", below(path, name.trim_end_matches('`')));
    }
    if let Some(name) = text.strip_prefix("duplicate field `") {
        return format!("{} is given twice", below(path, name.trim_end_matches('`')));
    }
    if let Some((name, rest)) = quoted(text, "unknown field `") {
        return format!("{} is not known{}", below(path, name), rest.replace('`', ""));
    }
    if let Some((name, rest)) = quoted(text, "unknown variant `") {
        let above = path.strip_suffix(name).map(|above| above.trim_end_matches('.'));
        return format!(
            "{} is {:?}{}",
            subject(above.unwrap_or(path)),
            shortened(name),
            rest.replace('`', "")
        );
    }
    let mismatch = text
        .strip_prefix("invalid type: ")
        .or_else(|| text.strip_prefix("invalid value: "));
    if let Some((found, expected)) = mismatch.and_then(|text| text.rsplit_once(", expected ")) {
        return format!("{} is {}, expected {}", subject(path), value(found), kind(expected));
    }
    if let Some((length, expected)) = text
        .strip_prefix("invalid length ")
        .and_then(|text| text.split_once(", expected "))
    {
        return format!("{} has {length} entries, expected {}", subject(path), kind(expected));
    }
    if path.is_empty() {
        text.to_owned()
    } else {
        format!("{path}: {text}")
    }
}

/// A value that no word can stand for: JSON that is no text where one of several is expected, on which serde says that it is no
/// JSON at all.
pub(crate) fn no_word(path: &str, found: &Value) -> String {
    let found = match found {
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => shortened(&found.to_string()),
    };
    format!("{} is {found}, expected a string", subject(path))
}

/// What is wrong, without the place within the text.
pub(crate) fn placeless(error: &str) -> &str {
    let place = error.rfind(" at line ").filter(|&at| error[at..].contains(" column "));
    &error[..place.unwrap_or(error.len())]
}

/// A number as short as it can be read: large and tiny ones with an exponent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Number(f64);

/// See [`Number`].
pub(crate) fn number(value: f64) -> Number {
    Number(value)
}

impl fmt::Display for Number {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.0.abs();
        if size >= 1e15 || size > 0.0 && size < 1e-6 {
            write!(out, "{:e}", self.0)
        } else {
            write!(out, "{}", self.0)
        }
    }
}

/// A field of what is at a path, which may end with it already.
fn below(path: &str, name: &str) -> String {
    let ends = path
        .strip_suffix(name)
        .is_some_and(|above| above.is_empty() || above.ends_with('.'));
    if ends {
        path.to_owned()
    } else if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

fn subject(path: &str) -> &str {
    if path.is_empty() { "it" } else { path }
}

/// What stands in quotes behind `begin`, and the rest.
fn quoted<'a>(text: &'a str, begin: &str) -> Option<(&'a str, &'a str)> {
    let text = text.strip_prefix(begin)?;
    // The name may have such quotes itself.
    let end = text.find("`, ").or_else(|| text.rfind('`'))?;
    Some((&text[..end], &text[end + 1..]))
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// A value that was found.
fn value(found: &str) -> String {
    match found {
        "unit value" | "Option value" => return "null".into(),
        "sequence" => return "an array".into(),
        "map" => return "an object".into(),
        _ => {}
    }
    if let Some(text) = found.strip_prefix("string ") {
        return shortened(text);
    }
    let bare = ["integer `", "floating point `", "boolean `", "character `"]
        .iter()
        .find_map(|kind| found.strip_prefix(kind))
        .map(|text| text.trim_end_matches('`'));
    match bare {
        Some(text) if found.starts_with("floating") => text.parse().map_or_else(|_| shortened(text), fraction),
        Some(text) => shortened(text),
        None => shortened(found),
    }
}

/// A number that was no whole one, or not written as one.
fn fraction(value: f64) -> String {
    let text = number(value).to_string();
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') {
        return text + ".0";
    }
    text
}

/// What was expected.
fn kind(expected: &str) -> String {
    let plain = match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number from 0 on",
        "i32" => "a whole number of 32 bits",
        "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a borrowed string" | "a character" | "variant identifier" | "string or map" | "a Value::Tagged enum" => {
            "a string"
        }
        "a sequence" => "an array",
        "a map" => "an object",
        "a boolean" => "true or false",
        other if other.starts_with("struct ") || other.starts_with("internally tagged enum ") => "an object",
        other => other,
    };
    plain.to_owned()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Outer {
        list: Vec<Inner>,
        count: Option<u32>,
        on: Option<bool>,
        any: Option<i64>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Inner {
        #[serde(alias = "second")]
        first: f64,
        way: Option<Way>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Way {
        Here,
        There,
    }

    fn said(text: &str) -> String {
        let mut json = serde_json::Deserializer::from_str(text);
        let error = serde_path_to_error::deserialize::<_, Outer>(&mut json).unwrap_err();
        plain(&error.path().to_string(), &error.inner().to_string())
    }

    #[test]
    fn every_error_of_serde_names_field_value_and_what_was_expected_in_plain_words() {
        let long = format!(r#"{{"list":[],"count":"{}"}}"#, "x".repeat(100));
        for (text, expected) in [
            (r#"{"count":1}"#, "list is missing"),
            (r#"{"list":[{}]}"#, "list[0].first is missing"),
            (r#"{"list":5}"#, "list is 5, expected an array"),
            (r#"{"list":[5]}"#, "list[0] is 5, expected an object"),
            ("5", "it is 5, expected an object"),
            (
                r#"{"list":[{"first":"x"}]}"#,
                r#"list[0].first is "x", expected a number"#,
            ),
            (
                r#"{"list":[{"first":null}]}"#,
                "list[0].first is null, expected a number",
            ),
            (
                r#"{"list":[{"first":{}}]}"#,
                "list[0].first is an object, expected a number",
            ),
            (r#"{"list":[{"first":1,"second":2}]}"#, "list[0].first is given twice"),
            (
                r#"{"list":[{"first":1,"way":"nowhere"}]}"#,
                r#"list[0].way is "nowhere", expected here or there"#,
            ),
            (
                r#"{"list":[{"first":1,"third":2}]}"#,
                "list[0].third is not known, expected one of first, second, way",
            ),
            (
                r#"{"list":[],"count":-1}"#,
                "count is -1, expected a whole number from 0 to 4294967295",
            ),
            (
                r#"{"list":[],"count":1e300}"#,
                "count is 1e300, expected a whole number from 0 to 4294967295",
            ),
            (r#"{"list":[],"on":1}"#, "on is 1, expected true or false"),
            (
                r#"{"list":[],"count":2.0}"#,
                "count is 2.0, expected a whole number from 0 to 4294967295",
            ),
            (r#"{"list":[],"any":[]}"#, "any is an array, expected a whole number"),
        ] {
            let said = said(text);
            assert!(
                said == expected || said.starts_with(expected) && expected.contains("expected one of"),
                "{text}: {said}"
            );
        }
        assert!(said(&long).len() < 150);
    }

    #[test]
    fn numbers_of_many_digits_are_short() {
        let texts =
            [1e300, -1e308, 2.5e-9, 0.25, 0.0, 4e12, 1_700_000_000_123.0].map(|value| number(value).to_string());
        assert_eq!(
            texts,
            [
                "1e300",
                "-1e308",
                "2.5e-9",
                "0.25",
                "0",
                "4000000000000",
                "1700000000123"
            ]
        );
    }
}
