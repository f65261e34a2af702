//! The `OpenAPI` document, made from one table of paths, the schemas and the catalogue of faults.

use serde_json::{Map, Value, json};

use super::schemas::{self, reference};
use crate::faults::kind::param::{Param, Range, Values};

/// One operation of the API.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    /// Method, lower case.
    pub method: &'static str,
    /// Path; parameters in braces.
    pub path: &'static str,
    /// What it does.
    pub summary: &'static str,
    /// Query parameters.
    pub query: &'static [Param],
    /// Schema of the body, if it has one.
    pub body: Option<&'static str>,
    /// Schema of the answer.
    pub answer: &'static str,
}

const fn operation(
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    query: &'static [Param],
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

const fn optional(name: &'static str, values: Values, about: &'static str) -> Param {
    Param {
        name,
        about,
        required: false,
        values,
    }
}

const fn required(name: &'static str, values: Values, about: &'static str) -> Param {
    Param {
        required: true,
        ..optional(name, values, about)
    }
}

/// A whole number.
const COUNT: Values = Values::Whole(Range {
    least: 0,
    above: false,
    most: None,
    unit: "",
    example: 3,
});

/// How each worker is told.
const EACH: Values = Values::Word(&["rows", "columns"]);

/// Every operation.
pub const OPERATIONS: &[Operation] = &[
    operation(
        "get",
        "/v1/fleet",
        "Sums over the fleet",
        &[optional(
            "workers",
            EACH,
            "with each worker: `rows`, or `columns` of numbers by position",
        )],
        None,
        "Fleet",
    ),
    operation(
        "get",
        "/v1/workers",
        "Each worker in one line",
        &[optional(
            "select",
            Values::Text,
            "only these workers, as `hottest(3)` or `w0-w7`",
        )],
        None,
        "WorkerRows",
    ),
    operation(
        "get",
        "/v1/actors/{path}",
        "Everything about an actor: w3, w3/r0, w3/r0/kv, w3/r0/native, w3/metrics, w3/lease, w3/rendezvous",
        &[],
        None,
        "Actor",
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
        "/v1/former/{path}",
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
        "Shapes",
    ),
    operation(
        "get",
        "/v1/records",
        "What is in the discovery store, whoever put it there: what routers see",
        &[required("prefix", Values::Text, "of the keys, as v1/instances/")],
        None,
        "Records",
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
        Some("Replacement"),
        "ListedFaults",
    ),
    operation("delete", "/v1/faults", "Remove all faults", &[], None, "ListedFaults"),
    operation("delete", "/v1/faults/{id}", "Remove a fault", &[], None, "ListedFaults"),
    operation("get", "/v1/kinds", "The catalogue of faults", &[], None, "Kinds"),
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
            optional("limit", COUNT, "most requests"),
            optional("worker", Values::Text, "only of this one, as w3"),
        ],
        None,
        "Requests",
    ),
    operation(
        "get",
        "/v1/why/{request}",
        "Who waits for what: a request by the id that the router gave it",
        &[],
        None,
        "Why",
    ),
    operation(
        "get",
        "/v1/journal",
        "What has happened, in order, oldest first; `more` says that there are entries after `next`",
        &[
            optional("after", COUNT, "position to go on from"),
            optional("limit", COUNT, "most entries, 1000 without, at most 10000"),
            optional("draws", Values::Flag, "with the dice of every gate"),
        ],
        None,
        "Journal",
    ),
    operation(
        "get",
        "/v1/live",
        "Changes as they happen, as server-sent events `names`, `entry`, `sample` and `lost`",
        &[
            optional(
                "after",
                COUNT,
                "journal position to go on from; default: what comes from now on",
            ),
            optional("every_ms", COUNT, "time between samples, 0: none"),
            optional(
                "workers",
                EACH,
                "samples have every worker: `rows`, or `columns` that a first event `names` explains",
            ),
            optional("draws", Values::Flag, "entries include the dice of every gate"),
        ],
        None,
        "EventStream",
    ),
    operation("get", "/openapi.json", "This document", &[], None, "Document"),
    operation("get", "/", "The dashboard, a page for browsers", &[], None, "Page"),
];

/// What server-sent events are called, and the schema of their data.
pub const EVENTS: [(&str, &str); 4] = [
    ("names", "Names"),
    ("entry", "Entry"),
    ("sample", "Fleet"),
    ("lost", "Lost"),
];

/// Schema of an answer that says no.
fn failure(operation: &Operation) -> &'static str {
    // Of an order to several workers each has a result of its own.
    if operation.answer == "Results" {
        "NotDone"
    } else {
        "Problem"
    }
}

/// The document.
pub fn document() -> Value {
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let parameters: Vec<Value> = path_parameters(operation.path)
            .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
            .chain(operation.query.iter().map(|param| {
                let (name, about, required) = (param.name, param.about(), param.required);
                let schema = param.values.schema();
                json!({"name": name, "in": "query", "description": about, "required": required, "schema": schema})
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
                    "content": {"application/json": {"schema": reference(failure(operation))}},
                },
            },
        });
        if operation.answer == "EventStream" {
            entry["responses"]["200"]["x-events"] = EVENTS
                .iter()
                .map(|(name, data)| ((*name).to_owned(), reference(data)))
                .collect();
        }
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
            "schemas": schemas::all(),
        },
    })
}

fn path_parameters(path: &str) -> impl Iterator<Item = &str> {
    path.split('{').skip(1).filter_map(|part| part.split('}').next())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::kind::catalogue;

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
