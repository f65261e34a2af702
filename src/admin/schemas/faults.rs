//! Faults, commands, and the journal.

use serde_json::{Map, Value, json};

use super::{about, count, flag, list, number, object, one_of, open_to, or_null, reference, text, with, words};
use crate::faults::Selector;
use crate::faults::journal::{Entry, Event};
use crate::faults::kind::catalogue;

pub(super) fn schemas() -> impl Iterator<Item = (&'static str, Value)> {
    let fault_or_line = || reference("FaultOrLine");
    let add = || about("added together or not at all", list(&fault_or_line()));
    let id = one_of([count(), about("as f3", text())]);
    let remove = about("removed together with what is added, or not at all", list(&id));
    let change = |mut members: Value| {
        members["minProperties"] = 1.into();
        json!({"oneOf": [fault_or_line(), list(&fault_or_line()), members]})
    };
    [
        ("Selector", selector()),
        ("Fault", fault()),
        (
            "FaultOrLine",
            one_of([
                reference("Fault"),
                json!({"type": "string", "examples": ["w3 slow factor=4 to=30s"]}),
            ]),
        ),
        ("Change", change(open_to([("add", add()), ("remove", remove)]))),
        ("Replacement", change(object([("add", add())]))),
        ("FaultId", about("f3 is 3", count())),
        (
            "ListedFaults",
            list(&with(
                told_fault(),
                true,
                [
                    ("id", reference("FaultId")),
                    ("phase", words(&["waiting", "open", "over"])),
                    ("line", about("the fault in one line", text())),
                    ("opens_ms", about("since the fleet started", number())),
                    ("closes_ms", or_null(number())),
                    ("workers", about("whom it strikes, by position", list(&count()))),
                    ("asked", about("how often gates have asked for it", count())),
                    ("happened", about("how often it has happened", count())),
                ],
            )),
        ),
        (
            "Kinds",
            list(&object([
                ("layer", layer()),
                ("kind", text()),
                ("about", text()),
                ("params", list(&param())),
            ])),
        ),
        ("Command", command()),
        ("Results", object([("results", list(&result()))])),
        ("NotDone", one_of([reference("Problem"), reference("Results")])),
        ("Entry", entry()),
        (
            "Journal",
            object([
                ("entries", list(&reference("Entry"))),
                ("next", about("position to go on from", count())),
                ("last", about("newest position", count())),
                (
                    "lost",
                    about("entries after the position asked for are no longer kept", flag()),
                ),
                ("more", about("ask again from next", flag())),
            ]),
        ),
    ]
    .into_iter()
}

fn selector() -> Value {
    let most = u32::MAX;
    let worker = json!({"anyOf": [
        {"type": "integer", "minimum": 0, "maximum": most},
        {"type": "string", "examples": ["w3", "w0-w31"]},
    ]});
    json!({
        "description": "whom: a text, or a list of workers by number and name",
        "oneOf": [
            {
                "type": "string",
                "examples": ["*", "w3", "w0-w31", "group:decode", "label:engine=vllm", "25%", "random(3)", "hottest"],
            },
            {"type": "array", "items": worker, "minItems": 1, "maxItems": Selector::MOST_IN_A_LIST},
        ],
    })
}

fn layer() -> Value {
    let mut layers: Vec<&str> = catalogue().map(|info| info.layer.word()).collect();
    layers.sort_unstable();
    layers.dedup();
    words(&layers)
}

/// A fault as it is sent: each kind with the parameters that the catalogue gives it.
fn fault() -> Value {
    let kinds: Vec<Value> = catalogue()
        .map(|info| {
            let params: Map<String, Value> = info
                .params
                .iter()
                .map(|param| (param.name.to_owned(), param.schema()))
                .collect();
            let needed = info.params.iter().filter(|param| param.required);
            let needed: Vec<&str> = needed.map(|param| param.name).collect();
            let mut required = vec!["kind"];
            required.extend((!needed.is_empty()).then_some("params"));
            json!({
                "description": info.about.trim(),
                "properties": {
                    "layer": {"enum": [info.layer, null]},
                    "kind": {"const": info.kind},
                    "params": {
                        "type": "object",
                        "properties": params,
                        "required": needed,
                        "additionalProperties": false,
                    },
                },
                "required": required,
            })
        })
        .collect();
    let mut fault = open_to([
        ("select", reference("Selector")),
        (
            "layer",
            about("needed where several layers have the kind", or_null(layer())),
        ),
        ("kind", text()),
        ("params", json!({"type": "object"})),
        (
            "probability",
            json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 1}),
        ),
        (
            "from",
            json!({"type": "number", "minimum": 0, "default": 0, "description": "seconds from now"}),
        ),
        (
            "to",
            about(
                "seconds from now; without: until removed",
                or_null(json!({"type": "number", "minimum": 0})),
            ),
        ),
        ("seed", json!({"type": "integer", "minimum": 0, "default": 0})),
    ]);
    fault["required"] = json!(["select", "kind"]);
    fault["oneOf"] = kinds.into();
    fault
}

/// A fault as it is told.
fn told_fault() -> Value {
    let fault = object([
        ("select", text()),
        ("layer", layer()),
        ("kind", text()),
        ("probability", number()),
        ("from", about("seconds after it was added", number())),
        ("seed", count()),
    ]);
    let params = about("those at their defaults may be left out", json!({"type": "object"}));
    with(
        fault,
        false,
        [
            ("params", params),
            ("to", about("seconds after it was added", number())),
        ],
    )
}

/// A parameter of a kind: its schema, its name and whether it is required.
fn param() -> Value {
    let param = object([("name", text()), ("required", flag()), ("description", text())]);
    with(
        param,
        false,
        [
            ("type", words(&["number", "integer", "boolean", "string"])),
            ("x-unit", text()),
            ("minimum", number()),
            ("exclusiveMinimum", number()),
            ("maximum", number()),
            ("enum", list(&text())),
        ],
    )
}

fn command() -> Value {
    let mut command = open_to([
        (
            "command",
            words(&["crash", "panic", "drain", "restart", "heal", "clear_cache"]),
        ),
        ("path", about("an actor; or select", or_null(text()))),
        ("select", or_null(reference("Selector"))),
        (
            "seed",
            about(
                "of the dice of a selector that picks at random",
                json!({"type": "integer", "minimum": 0, "default": 0}),
            ),
        ),
        (
            "same_id",
            about(
                "come back under the former instance id",
                json!({"type": "boolean", "default": false}),
            ),
        ),
    ]);
    command["required"] = json!(["command"]);
    command
}

fn result() -> Value {
    with(object([("path", text()), ("ok", flag())]), false, [("error", text())])
}

/// One entry of the journal; `event` says which.
fn entry() -> Value {
    let examples = Event::examples().into_iter().zip(1..).map(|(event, seq)| Entry {
        seq,
        at_ms: 12.5,
        event,
    });
    let mut entry = any_entry();
    entry["examples"] = json!(examples.collect::<Vec<_>>());
    entry
}

fn any_entry() -> Value {
    let id = || ("id", reference("FaultId"));
    let worker = || ("worker", count());
    let workers = || ("workers", list(&count()));
    let done = event(
        "done",
        [("id", or_null(reference("FaultId"))), ("path", text()), ("act", text())],
    );
    one_of([
        event("added", [id(), ("fault", told_fault())]),
        event("removed", [id()]),
        event("opened", [id(), workers()]),
        event("closed", [id()]),
        event("healed", [workers()]),
        event("drawn", [id(), worker(), ("draw", count()), ("hit", flag())]),
        with(done, false, [("error", text())]),
        event(
            "gave_up",
            [worker(), ("path", text()), ("budget", count()), ("window_s", number())],
        ),
        event("state", [worker(), ("state", super::fleet::state())]),
    ])
}

fn event<const N: usize>(word: &str, members: [(&str, Value); N]) -> Value {
    let entry = object([
        ("seq", about("position, without gaps", count())),
        ("at_ms", about("since the fleet started", number())),
        ("event", json!({"const": word})),
    ]);
    with(entry, true, members)
}
