//! The schemas of the API's bodies and answers, by name. Answers are closed: what they hold is here, and nothing else.

mod actors;
mod faults;
mod fleet;

use serde_json::{Map, Value, json};

/// Every schema, by name.
pub(super) fn all() -> Map<String, Value> {
    let own = [
        ("Problem", object([("error", text())])),
        ("EventStream", text()),
        ("Page", text()),
        ("Document", document()),
    ];
    let own = own.into_iter().chain(faults::schemas());
    let named = own.chain(fleet::schemas()).chain(actors::schemas());
    named.map(|(name, schema)| (name.to_owned(), schema)).collect()
}

/// Another schema.
pub(super) fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

/// An object that has these members and no others.
fn object<const N: usize>(members: [(&str, Value); N]) -> Value {
    let required: Vec<&str> = members.iter().map(|(name, _)| *name).collect();
    let required = json!(required);
    let mut object = open_to(members);
    object["required"] = required;
    object
}

/// An object that may have these members, and no others.
fn open_to<const N: usize>(members: [(&str, Value); N]) -> Value {
    let properties: Map<String, Value> = members
        .into_iter()
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect();
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

/// The same object with further members, which it must have or may leave out.
fn with<const N: usize>(mut object: Value, is_required: bool, members: [(&str, Value); N]) -> Value {
    for (name, schema) in members {
        object["properties"][name] = schema;
        if is_required && let Some(required) = object["required"].as_array_mut() {
            required.push(name.into());
        }
    }
    object
}

fn list(items: &Value) -> Value {
    json!({"type": "array", "items": items})
}

/// Names that are not known beforehand, each with such a value.
fn map(values: &Value) -> Value {
    json!({"type": "object", "additionalProperties": values})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn flag() -> Value {
    json!({"type": "boolean"})
}

fn number() -> Value {
    json!({"type": "number"})
}

/// A whole number, 0 or greater.
fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn words(words: &[&str]) -> Value {
    json!({"enum": words})
}

fn one_of<const N: usize>(schemas: [Value; N]) -> Value {
    json!({"oneOf": Value::from_iter(schemas)})
}

fn or_null(schema: Value) -> Value {
    one_of([schema, json!({"type": "null"})])
}

fn about(about: &str, mut schema: Value) -> Value {
    schema["description"] = about.into();
    schema
}

/// This document, roughly.
fn document() -> Value {
    let any = || json!({"type": "object"});
    object([
        ("openapi", text()),
        ("info", any()),
        ("paths", any()),
        ("security", list(&any())),
        ("components", any()),
    ])
}
