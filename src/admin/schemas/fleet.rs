//! The fleet's sums, its workers in rows and columns, its caches and its requests.

use serde_json::{Value, json};

use super::{about, count, list, map, number, object, one_of, or_null, reference, text, with, words};
use crate::actors::registry::{WorkerHealth, WorkerState};

pub(super) fn schemas() -> impl Iterator<Item = (&'static str, Value)> {
    let requests = object([
        ("requests", list(&request())),
        ("not_listed", about("how many more there are", count())),
    ]);
    let names = object([
        ("workers", list(&name())),
        ("health", about("words that the columns count through", list(&text()))),
        ("supervisor", reference("RestartRule")),
    ]);
    [
        ("Fleet", fleet()),
        ("WorkerRow", row()),
        ("WorkerRows", list(&reference("WorkerRow"))),
        ("Columns", columns()),
        ("Names", names),
        (
            "Lost",
            object([("after", about("position after which entries are gone", count()))]),
        ),
        ("Lateness", lateness()),
        ("Blocks", list(&block())),
        ("Caches", about("by rank", list(&reference("Blocks")))),
        (
            "Former",
            list(&object([
                ("blocks", reference("Blocks")),
                ("dropped", about("blocks that were too many to keep", count())),
            ])),
        ),
        ("Shapes", list(&shape())),
        (
            "Records",
            list(&object([
                ("key", text()),
                (
                    "value",
                    about("what stands there; a text where it is no JSON", json!({})),
                ),
            ])),
        ),
        ("Requests", requests),
        ("Why", why()),
    ]
    .into_iter()
}

/// Where a worker is in its life.
pub(super) fn state() -> Value {
    let states = [
        WorkerState::Planned,
        WorkerState::Starting,
        WorkerState::Ready,
        WorkerState::Draining,
        WorkerState::Left,
        WorkerState::Dead,
    ];
    words(&states.map(WorkerState::word))
}

/// The same, and what keeps it from serving.
pub(super) fn health() -> Value {
    words(&WorkerHealth::WORDS)
}

fn fleet() -> Value {
    let launch = one_of([
        words(&["ready", "over"]),
        object([("starting", about("workers that are registered", count()))]),
        object([("failed", text())]),
    ]);
    let spans = || {
        object([
            ("count", count()),
            ("mean_ms", number()),
            ("p50_ms", number()),
            ("p99_ms", number()),
        ])
    };
    let latency = object([("ttft", spans()), ("itl", spans()), ("e2e", spans())]);
    let fleet = object([
        ("at_ms", about("since the fleet started", number())),
        ("launch", launch),
        ("journal_last", about("newest position in the journal", count())),
        ("workers_by_state", map(&count())),
        ("workers_by_health", map(&count())),
        (
            "latency",
            about("of all requests; in a sample, since the last one", latency),
        ),
        ("lateness", reference("Lateness")),
        ("open_streams", count()),
        ("running", count()),
        ("waiting", count()),
        ("active_blocks", count()),
        ("cached_blocks", count()),
    ]);
    let fleet = with(fleet, true, totals());
    with(
        fleet,
        false,
        [
            ("supervisor", reference("RestartRule")),
            ("fault_sums", fault_sums()),
            ("workers", reference("WorkerRows")),
            ("columns", reference("Columns")),
        ],
    )
}

fn fault_sums() -> Value {
    let sums = object([
        ("added", count()),
        ("removed", count()),
        ("forgotten", about("over, and listed no more", count())),
        ("asked", count()),
        ("happened", count()),
    ]);
    about("over all faults since the fleet's start, listed or not", sums)
}

fn lateness() -> Value {
    let lateness = object([
        ("passes", count()),
        ("mean_ms", number()),
        ("p99_ms", number()),
        ("max_ms", number()),
        ("slipped_ms", number()),
    ]);
    about("how late passes end against their model", lateness)
}

/// What a worker and the whole fleet have a sum of.
fn totals() -> [(&'static str, Value); 9] {
    [
        "total_blocks",
        "requests_total",
        "failed_total",
        "cancelled_total",
        "tokens_total",
        "prompt_tokens_total",
        "cached_tokens_total",
        "preemptions_total",
        "restarts",
    ]
    .map(|name| (name, count()))
}

fn row() -> Value {
    let row = object([
        ("path", text()),
        ("group", text()),
        ("state", state()),
        ("health", health()),
        ("incarnation", about("how often it has been built", count())),
        ("instance_id", about("its id in discovery", count())),
        ("open_streams", count()),
        ("rooms", about("handoffs that are not over", count())),
        ("running", count()),
        ("waiting", count()),
        ("active_blocks", about("KV blocks in use by requests", count())),
        ("cached_blocks", about("KV blocks that are cached and unused", count())),
        ("faults", about("those in force for it", list(&reference("FaultId")))),
    ]);
    with(row, true, totals())
}

fn columns() -> Value {
    let columns = object([
        ("health", about("position among the names' words", list(&count()))),
        ("incarnation", list(&count())),
        ("open_streams", list(&count())),
        ("running", list(&count())),
        ("waiting", list(&count())),
        ("active_blocks", list(&count())),
        ("cached_blocks", list(&count())),
        ("total_blocks", list(&count())),
        ("tokens_total", list(&count())),
        ("prompt_tokens_total", list(&count())),
        ("cached_tokens_total", list(&count())),
        (
            "faults",
            about("by position, of those that have any", map(&list(&reference("FaultId")))),
        ),
    ]);
    about("figures by position in the fleet", columns)
}

fn name() -> Value {
    object([
        ("path", text()),
        ("group", text()),
        ("labels", map(&text())),
        ("ranks", count()),
    ])
}

fn block() -> Value {
    object([
        ("block_hash", count()),
        ("tokens_hash", count()),
        ("parent", or_null(count())),
    ])
}

fn shape() -> Value {
    object([
        ("path", text()),
        ("blocks", count()),
        ("roots", about("blocks without a parent", count())),
        ("leaves", about("blocks without a child", count())),
        ("deepest", about("blocks of the longest chain", count())),
        ("depths_per_bar", count()),
        (
            "by_depth",
            about("blocks by depth, the first ones of prefixes first", list(&count())),
        ),
    ])
}

fn request() -> Value {
    object([
        (
            "request",
            about("id that the router gave it; of an HTTP request, of its answer", text()),
        ),
        ("worker", text()),
        ("age_ms", number()),
        ("tokens", about("said so far", count())),
        (
            "phase",
            about(
                "delayed, swallowed: a fault keeps it from being served",
                words(&[
                    "delayed",
                    "swallowed",
                    "dialling",
                    "waiting",
                    "running",
                    "ending",
                    "closing",
                    "broken",
                ]),
            ),
        ),
        (
            "pending",
            about(
                "bytes towards a router, events towards an HTTP client, that are not read yet",
                count(),
            ),
        ),
        ("address", about("where the answer goes", text())),
    ])
}

fn why() -> Value {
    let members = [
        (
            "because",
            about("what it waits for, the nearest cause first", list(&text())),
        ),
        (
            "rank",
            about("what the rank that has it says", or_null(reference("RankSays"))),
        ),
    ];
    let others = about("further answers to the same request", list(&reference("Why")));
    with(with(request(), true, members), false, [("others", others)])
}
