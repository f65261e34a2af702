//! Enough of JSON Schema (2020-12) to hold answers against the served document. A keyword that is not known here is an
//! error, so that none of them is passed over.

use serde_json::Value;

/// A document with the schemas that others refer to.
pub(crate) struct Schemas<'a>(pub(crate) &'a Value);

/// Keywords that say nothing about what is valid.
const REMARKS: [&str; 5] = ["description", "default", "examples", "title", "x-unit"];

impl Schemas<'_> {
    /// Holds `value` against the schema at a JSON pointer of the document.
    ///
    /// # Errors
    /// Where it differs, and how.
    pub(crate) fn check(&self, pointer: &str, value: &Value) -> Result<(), String> {
        let schema = self
            .0
            .pointer(pointer)
            .ok_or_else(|| format!("no schema at {pointer}"))?;
        self.holds(schema, value, "$")
    }

    fn holds(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let members = schema
            .as_object()
            .ok_or_else(|| format!("{at}: {schema} is no schema"))?;
        for (keyword, rule) in members {
            self.keyword(members, (keyword, rule), value, at)?;
        }
        Ok(())
    }

    fn keyword(
        &self,
        schema: &serde_json::Map<String, Value>,
        (keyword, rule): (&str, &Value),
        value: &Value,
        at: &str,
    ) -> Result<(), String> {
        let wrong = |what: String| Err(format!("{at}: {value} {what}"));
        let number = |ok: fn(f64, f64) -> bool| match (value.as_f64(), rule.as_f64()) {
            (Some(value), Some(rule)) => ok(value, rule),
            _ => true,
        };
        let length = value.as_array().map(Vec::len);
        let count_of = |of: Vec<Result<(), String>>| {
            let reasons: Vec<String> = of.iter().filter_map(|held| held.clone().err()).collect();
            (of.len() - reasons.len(), reasons)
        };
        let each = || {
            list(rule)
                .map(|schema| self.holds(schema, value, at))
                .collect::<Vec<_>>()
        };
        match keyword {
            "$ref" => {
                let pointer = rule.as_str().and_then(|text| text.strip_prefix('#')).unwrap();
                let schema = self.0.pointer(pointer).ok_or_else(|| format!("{at}: no {pointer}"))?;
                return self.holds(schema, value, at);
            }
            "type" => {
                let is = |name: &Value| is_of(value, name.as_str().unwrap());
                if !(is_of_list(rule, &is) || rule.is_string() && is(rule)) {
                    return wrong(format!("is no {rule}"));
                }
            }
            "const" if rule != value => return wrong(format!("is not {rule}")),
            "enum" if !list(rule).any(|one| one == value) => return wrong(format!("is none of {rule}")),
            "minimum" if !number(|value, rule| value >= rule) => return wrong(format!("is below {rule}")),
            "exclusiveMinimum" if !number(|value, rule| value > rule) => return wrong(format!("is not above {rule}")),
            "maximum" if !number(|value, rule| value <= rule) => return wrong(format!("is above {rule}")),
            "minItems" if length.is_some_and(|many| many < size(rule)) => {
                return wrong(format!("has less than {rule}"));
            }
            "maxItems" if length.is_some_and(|many| many > size(rule)) => {
                return wrong(format!("has more than {rule}"));
            }
            "minProperties" if value.as_object().is_some_and(|object| object.len() < size(rule)) => {
                return wrong(format!("has less than {rule} members"));
            }
            "minProperties" | "const" | "enum" | "minimum" | "exclusiveMinimum" | "maximum" | "minItems"
            | "maxItems" => {}
            "items" => {
                for (index, item) in list(value).enumerate() {
                    self.holds(rule, item, &format!("{at}[{index}]"))?;
                }
            }
            "required" => {
                let missing = |name: &&Value| value.is_object() && value.get(name.as_str().unwrap()).is_none();
                if let Some(name) = list(rule).find(missing) {
                    return wrong(format!("has no {name}"));
                }
            }
            "properties" => {
                for (name, schema) in rule.as_object().unwrap() {
                    if let Some(member) = value.get(name) {
                        self.holds(schema, member, &format!("{at}.{name}"))?;
                    }
                }
            }
            "additionalProperties" => {
                let known = schema.get("properties").and_then(Value::as_object);
                for (name, member) in value.as_object().into_iter().flatten() {
                    if known.is_some_and(|known| known.contains_key(name)) {
                        continue;
                    }
                    if rule == false {
                        return Err(format!("{at}: nothing is said of {name} ({member})"));
                    }
                    self.holds(rule, member, &format!("{at}.{name}"))?;
                }
            }
            "oneOf" => match count_of(each()) {
                (1, _) => {}
                (0, reasons) => return Err(format!("{at}: none of several: {}", reasons.join("; or "))),
                (many, _) => return wrong(format!("is {many} of what it is to be one of")),
            },
            "anyOf" => {
                if let (0, reasons) = count_of(each()) {
                    return Err(format!("{at}: none of several: {}", reasons.join("; or ")));
                }
            }
            remark if REMARKS.contains(&remark) => {}
            other => return Err(format!("{at}: this check does not know the keyword {other}")),
        }
        Ok(())
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn size(rule: &Value) -> usize {
    usize::try_from(rule.as_u64().unwrap()).unwrap()
}

fn is_of_list(rule: &Value, is: &dyn Fn(&Value) -> bool) -> bool {
    list(rule).any(is)
}

fn is_of(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        other => panic!("no type {other}"),
    }
}

#[test]
fn what_differs_from_a_schema_is_found() {
    let document = serde_json::json!({
        "whole": {"type": "object", "required": ["a"], "additionalProperties": false, "properties": {
            "a": {"type": "integer", "minimum": 0, "maximum": 9},
            "b": {"oneOf": [{"enum": ["x", "y"]}, {"type": "array", "minItems": 1, "items": {"type": "string"}}]},
            "c": {"$ref": "#/part"},
        }},
        "part": {"exclusiveMinimum": 1.0},
        "some": {"minProperties": 1},
        "new": {"contains": {}},
    });
    let schemas = Schemas(&document);
    for good in [
        r#"{"a": 3}"#,
        r#"{"a": 0, "b": "x"}"#,
        r#"{"a": 9, "b": ["q"], "c": 2}"#,
    ] {
        assert_eq!(
            schemas.check("/whole", &serde_json::from_str(good).unwrap()),
            Ok(()),
            "{good}"
        );
    }
    for (bad, words) in [
        ("{}", "has no"),
        (r#"{"a": -1}"#, "below"),
        (r#"{"a": 10}"#, "above"),
        (r#"{"a": 1.5}"#, "is no"),
        (r#"{"a": 1, "d": 1}"#, "nothing is said of d"),
        (r#"{"a": 1, "b": "z"}"#, "none of several"),
        (r#"{"a": 1, "b": []}"#, "less than"),
        (r#"{"a": 1, "c": 1}"#, "$.c: 1 is not above"),
    ] {
        let error = schemas
            .check("/whole", &serde_json::from_str(bad).unwrap())
            .unwrap_err();
        assert!(error.contains(words), "{bad}: {error}");
    }
    assert!(schemas.check("/some", &serde_json::json!({})).is_err());
    let error = schemas.check("/new", &Value::Null).unwrap_err();
    assert!(error.contains("keyword contains"), "{error}");
}
