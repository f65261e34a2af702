//! The `OpenAPI` document, made from one table of paths and the catalogue of faults.

use serde_json::{Map, Value, json};

use crate::faults::kind::catalogue;

/// One operation of the API.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    /// Method, lower case.
    pub method: &'static str,
    /// Path; parameters in braces.
    pub path: &'static str,
    /// What it does.
    pub summary: &'static str,
    /// Query parameters, each with its type and meaning.
    pub query: &'static [(&'static str, &'static str, &'static str)],
    /// Schema of the body, if it has one.
    pub body: Option<&'static str>,
    /// Schema of the answer.
    pub answer: &'static str,
}

const fn operation(
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    query: &'static [(&'static str, &'static str, &'static str)],
    body: Option<&'static str>,
    answer: &'static str,
) -> Operation {
    Operation {
        method,
        path,
        summary,
        query,
        body,
        answer,
    }
}

/// Every operation.
pub const OPERATIONS: &[Operation] = &[
    operation(
        "get",
        "/v1/fleet",
        "Sums over the fleet",
        &[(
            "workers",
            "string",
            "with each worker: `rows`, or `columns` of numbers by position",
        )],
        None,
        "Fleet",
    ),
    operation(
        "get",
        "/v1/workers",
        "Each worker in one line",
        &[("select", "string", "only these workers, as `hottest(3)` or `w0-w7`")],
        None,
        "WorkerRows",
    ),
    operation(
        "get",
        "/v1/actors/{path}",
        "Everything about an actor: w3, w3/r0, w3/r0/kv, w3/r0/native, w3/metrics, w3/lease, w3/rendezvous",
        &[],
        None,
        "Any",
    ),
    operation(
        "get",
        "/v1/cache/{path}",
        "True content of the prefix cache of each rank of a worker, or of one rank, parents first",
        &[],
        None,
        "Caches",
    ),
    operation(
        "get",
        "/v1/former/{worker}",
        "Blocks that each rank of a worker, as w3, has announced and has no more, oldest first; of former incarnations, too",
        &[],
        None,
        "Former",
    ),
    operation(
        "get",
        "/v1/blocks/{path}",
        "The shape of those caches: prefixes, ends, depths",
        &[],
        None,
        "Any",
    ),
    operation(
        "get",
        "/v1/records",
        "What is in the discovery store, whoever put it there: what routers see",
        &[("prefix", "string", "of the keys, as v1/instances/; required")],
        None,
        "Any",
    ),
    operation("get", "/v1/faults", "All faults", &[], None, "ListedFaults"),
    operation(
        "post",
        "/v1/faults",
        "Add faults, or remove and add, all or nothing; answers the new ones",
        &[],
        Some("Change"),
        "ListedFaults",
    ),
    operation(
        "put",
        "/v1/faults",
        "Replace all faults, all or nothing; answers the new ones",
        &[],
        Some("Change"),
        "ListedFaults",
    ),
    operation("delete", "/v1/faults", "Remove all faults", &[], None, "ListedFaults"),
    operation("delete", "/v1/faults/{id}", "Remove a fault", &[], None, "ListedFaults"),
    operation("get", "/v1/kinds", "The catalogue of faults", &[], None, "Any"),
    operation(
        "post",
        "/v1/commands",
        "Crash, panic, drain, restart, heal, clear_cache; 200 when all went well",
        &[],
        Some("Command"),
        "Results",
    ),
    operation(
        "get",
        "/v1/requests",
        "Requests under way, oldest first per worker",
        &[
            ("limit", "integer", "most requests"),
            ("worker", "string", "only of this one, as w3"),
        ],
        None,
        "Any",
    ),
    operation(
        "get",
        "/v1/why/{request}",
        "Who waits for what: a request by the id that the router gave it",
        &[],
        None,
        "Any",
    ),
    operation(
        "get",
        "/v1/journal",
        "What has happened, in order, oldest first; `more` says that there are entries after `next`",
        &[
            ("after", "integer", "position to go on from"),
            ("limit", "integer", "most entries, 1000 without, at most 10000"),
            ("draws", "boolean", "with the dice of every gate"),
        ],
        None,
        "Any",
    ),
    operation(
        "get",
        "/v1/live",
        "Changes as they happen, as server-sent events `names`, `entry`, `sample` and `lost`",
        &[
            (
                "after",
                "integer",
                "journal position to go on from; default: what comes from now on",
            ),
            ("every_ms", "integer", "time between samples, 0: none"),
            (
                "workers",
                "string",
                "samples have every worker: `rows`, or `columns` that a first event `names` explains",
            ),
            ("draws", "boolean", "entries include the dice of every gate"),
        ],
        None,
        "EventStream",
    ),
    operation("get", "/openapi.json", "This document", &[], None, "Any"),
    operation("get", "/", "The dashboard, a page for browsers", &[], None, "Page"),
];

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

/// The document.
pub fn document() -> Value {
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let parameters: Vec<Value> = path_parameters(operation.path)
            .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
            .chain(operation.query.iter().map(|(name, kind, about)| {
                json!({"name": name, "in": "query", "description": about, "schema": {"type": kind}})
            }))
            .collect();
        let media = match operation.answer {
            "EventStream" => "text/event-stream",
            "Page" => "text/html",
            _ => "application/json",
        };
        let mut entry = json!({
            "summary": operation.summary,
            "parameters": parameters,
            "responses": {
                "200": {"description": "done", "content": {media: {"schema": reference(operation.answer)}}},
                "default": {
                    "description": "not done",
                    "content": {"application/json": {"schema": reference("Problem")}},
                },
            },
        });
        if let Some(body) = operation.body {
            entry["requestBody"] =
                json!({"required": true, "content": {"application/json": {"schema": reference(body)}}});
        }
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = entry;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "ghostfleet admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Look at a running fleet, break it, mend it.",
        },
        "paths": paths,
        "security": [{}, {"token": []}],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas(),
        },
    })
}

fn path_parameters(path: &str) -> impl Iterator<Item = &str> {
    path.split('{').skip(1).filter_map(|part| part.split('}').next())
}

fn schemas() -> Value {
    let kinds: Vec<Value> = catalogue()
        .map(|info| {
            let params: Map<String, Value> = info.params.iter().map(|name| ((*name).to_owned(), json!({}))).collect();
            json!({
                "type": "object",
                "description": info.about,
                "properties": {
                    "layer": {"const": info.layer},
                    "kind": {"const": info.kind},
                    "params": {"type": "object", "properties": params, "additionalProperties": false},
                },
            })
        })
        .collect();
    json!({
        "Any": {},
        "Problem": {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]},
        "Fleet": {"type": "object", "properties": {"journal_last": {"type": "integer"}, "tokens_total": {"type": "integer"}}},
        "WorkerRow": {"type": "object", "properties": {"path": {"type": "string"}, "state": {"type": "string"}}},
        "WorkerRows": {"type": "array", "items": reference("WorkerRow")},
        "Blocks": {"type": "array", "items": {
            "type": "object",
            "properties": {
                "block_hash": {"type": "integer"},
                "tokens_hash": {"type": "integer"},
                "parent": {"type": ["integer", "null"]},
            },
        }},
        "Caches": {"type": "array", "items": {"$ref": "#/components/schemas/Blocks"}},
        "Former": {"type": "array", "items": {"type": "object", "properties": {
            "blocks": {"$ref": "#/components/schemas/Blocks"},
            "dropped": {"type": "integer", "description": "blocks that were too many to keep"},
        }}},
        "EventStream": {"type": "string"},
        "Page": {"type": "string"},
        "Selector": {
            "oneOf": [{"type": "string"}, {"type": "array", "items": {"type": ["integer", "string"]}}],
            "examples": ["*", "w3", "w0-w31", "group:decode", "label:engine=vllm", "25%", "random(3)", "hottest"],
        },
        "Fault": {
            "type": "object",
            "required": ["select", "kind"],
            "properties": {
                "select": reference("Selector"),
                "layer": {"type": "string"},
                "kind": {"type": "string"},
                "params": {"type": "object"},
                "probability": {"type": "number", "minimum": 0, "maximum": 1, "default": 1},
                "from": {"type": "number", "minimum": 0, "default": 0, "description": "seconds from now"},
                "to": {"type": "number", "description": "seconds from now; without: until removed"},
                "seed": {"type": "integer", "default": 0},
            },
            "oneOf": kinds,
        },
        "FaultOrLine": {"oneOf": [
            reference("Fault"),
            {"type": "string", "examples": ["w3 slow factor=4 to=30s"]},
        ]},
        "Change": {"oneOf": [
            reference("FaultOrLine"),
            {"type": "array", "items": reference("FaultOrLine")},
            {"type": "object", "properties": {
                "add": {"type": "array", "items": reference("FaultOrLine")},
                "remove": {"type": "array", "items": {"type": ["integer", "string"]}},
            }},
        ]},
        "ListedFaults": {"type": "array", "items": {"type": "object", "properties": {
            "id": {"type": "integer"},
            "phase": {"enum": ["waiting", "open", "over"]},
            "line": {"type": "string"},
            "workers": {"type": "array", "items": {"type": "integer"}},
        }}},
        "Command": {
            "type": "object",
            "required": ["command"],
            "properties": {
                "command": {"enum": ["crash", "panic", "drain", "restart", "heal", "clear_cache"]},
                "path": {"type": "string", "description": "an actor"},
                "select": reference("Selector"),
                "seed": {"type": "integer"},
                "same_id": {"type": "boolean", "description": "come back under the former instance id"},
            },
        },
        "Results": {"type": "object", "properties": {"results": {"type": "array", "items": {"type": "object", "properties": {
            "path": {"type": "string"},
            "ok": {"type": "boolean"},
            "error": {"type": "string"},
        }}}}},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_that_is_named_is_there_and_every_kind_is_told() {
        let document = document();
        let text = document.to_string();
        let parts = text.split("#/components/schemas/").skip(1);
        let names = parts.map(|rest| rest.split('"').next().unwrap());
        for name in names {
            assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
        }
        for info in catalogue() {
            assert!(text.contains(&format!("\"{}\"", info.kind)), "{}", info.kind);
        }
    }
}
