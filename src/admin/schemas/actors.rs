//! Actors: a worker with all that it is made of, or one of its children with what it says of itself.

use serde_json::Value;

use super::fleet::{health, state};
use super::{about, count, flag, list, map, number, object, one_of, or_null, reference, text, with, words};

pub(super) fn schemas() -> impl Iterator<Item = (&'static str, Value)> {
    let said = [
        "RankSays",
        "KvSays",
        "NativeSays",
        "MetricsSays",
        "LeaseSays",
        "RendezvousSays",
    ];
    let inside = with(
        object([("alive", flag())]),
        false,
        [
            ("said", one_of(said.map(reference))),
            ("silent_for_ms", about("it is busy or hangs", number())),
            ("worker_silent_for_ms", about("its worker is busy or hangs", number())),
        ],
    );
    let child = object([
        ("path", text()),
        ("worker_state", state()),
        ("figures", about("of a rank", or_null(reference("RankFigures")))),
        ("inside", inside),
        ("supervisor", reference("Supervisor")),
    ]);
    [
        ("Actor", one_of([reference("Worker"), reference("Child")])),
        ("Worker", worker()),
        ("Child", child),
        ("Load", load()),
        ("RankFigures", rank()),
        ("RestartRule", rule([])),
        (
            "Supervisor",
            rule([(
                "deaths",
                about("actors that have died, as they stand now", list(&reference("Standing"))),
            )]),
        ),
        ("Death", death()),
        (
            "Standing",
            with(
                death(),
                true,
                [
                    ("budget_left", count()),
                    ("replaced_in_ms", about("0: it is, or never will be", number())),
                ],
            ),
        ),
        ("RankSays", rank_says()),
        (
            "KvSays",
            object([
                ("publisher_id", count()),
                ("last_event_id", count()),
                ("announced_blocks", count()),
                ("held_messages", count()),
            ]),
        ),
        (
            "NativeSays",
            object([
                ("address", text()),
                ("next_sequence", count()),
                ("topic", text()),
                ("has_subscribers", flag()),
                ("replayable", flag()),
                ("replay_address", or_null(text())),
                ("held_messages", count()),
            ]),
        ),
        ("MetricsSays", object([("ranks_with_news", list(&count()))])),
        ("LeaseSays", object([("keeps_lease", flag())])),
        ("RendezvousSays", rendezvous_says()),
    ]
    .into_iter()
}

fn worker() -> Value {
    let recovery = object([
        ("answered_total", count()),
        ("given_up_total", count()),
        ("dumps_built_total", count()),
    ]);
    let handoffs = object([
        ("rooms", about("those that are not over", count())),
        ("transfers", about("those whose KV is travelling", count())),
        ("completed_total", count()),
        ("failed_total", count()),
    ]);
    object([
        ("path", text()),
        ("group", text()),
        ("labels", map(&text())),
        ("state", state()),
        ("health", health()),
        ("incarnation", about("how often it has been built", count())),
        ("instance_id", about("its id in discovery", count())),
        ("registered", about("it has been in discovery", flag())),
        ("http", about("where its HTTP port is", or_null(text()))),
        ("restarts", count()),
        ("open_streams", count()),
        ("accepted_total", count()),
        ("completed_total", count()),
        ("failed_total", count()),
        ("cancelled_total", count()),
        ("recovery", recovery),
        ("event_messages_dropped_total", count()),
        ("handoffs", handoffs),
        ("deaths", list(&reference("Death"))),
        ("supervisor", reference("Supervisor")),
        ("faults", about("those in force for it", reference("ListedFaults"))),
        ("ranks", list(&reference("RankFigures"))),
    ])
}

fn load() -> Value {
    object([
        ("running", count()),
        ("waiting", count()),
        ("active_blocks", about("KV blocks in use by requests", count())),
        (
            "inactive_blocks",
            about("KV blocks that are cached and unused", count()),
        ),
        ("total_blocks", count()),
        ("preemptions", count()),
    ])
}

fn rank() -> Value {
    object([
        ("path", text()),
        ("load", reference("Load")),
        ("streams", about("requests that it still has to answer", count())),
        ("requests_total", count()),
        ("tokens_total", count()),
        ("passes_total", count()),
        ("kv_events_total", count()),
        ("lateness", reference("Lateness")),
    ])
}

fn rule<const N: usize>(members: [(&str, Value); N]) -> Value {
    let rule = object([
        ("budget", about("deaths that are made good within a window", count())),
        ("window_s", number()),
        ("first_backoff_ms", number()),
        ("max_backoff_ms", number()),
    ]);
    with(rule, true, members)
}

fn death() -> Value {
    object([
        ("path", text()),
        ("cause", words(&["killed", "panicked", "escalated"])),
        ("deaths_total", count()),
        ("deaths_in_window", count()),
        ("budget", count()),
        ("window_s", number()),
        ("died_at_ms", about("since the fleet started", number())),
        (
            "backoff_ms",
            about("null: it is not replaced by itself", or_null(number())),
        ),
    ])
}

fn rank_says() -> Value {
    let pass = object([
        ("began_ms", number()),
        ("ends_in_ms", number()),
        ("overdue_ms", number()),
    ]);
    object([
        (
            "activity",
            one_of([
                words(&["idle", "between passes"]),
                object([("starts_in_ms", number())]),
                object([("pass", pass)]),
            ]),
        ),
        ("hangs", flag()),
        ("streams", count()),
        ("load", reference("Load")),
        ("publisher_missed_events", flag()),
    ])
}

fn rendezvous_says() -> Value {
    let room = object([
        ("handoff", text()),
        ("room", count()),
        ("request", text()),
        ("source", or_null(text())),
        ("destination", flag()),
        ("transferring", flag()),
        ("ends_in_ms", number()),
    ]);
    object([
        ("port", count()),
        ("open_rooms", count()),
        ("sources_waiting", count()),
        ("rooms", list(&room)),
    ])
}
