//! Index drift as a check of drills, by each way that the truth about an index can be had.

use std::path::Path;

use ghostfleet::drill::{Options, Scenario, Verdict, run};

use crate::release::Release;

/// What the drills have in common; `{fleet}` and what follows it is their own.
const SCENE: &str = r#"
[scenario]
duration = "{duration}"
warmup = "1s"
[fleet]
model_path = "../tiny-model"
model_name = "tiny"
num_workers = 2
block_size = 16
discovery_backend = "file"
timing_model = { type = "fixed", prefill_ms = 5.0, decode_ms = 10.0 }
{fleet}
"#;

const FRONTEND: &str = r#"
[frontend]
command = ["python", "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", "{port}", "--namespace", "{namespace}",
    "--router-mode", "kv", "--discovery-backend", "file"{flags}]
env = { HF_HUB_OFFLINE = "1" }
"#;

/// A frontend's table, with flags of its own.
fn frontend(flags: &str) -> String {
    FRONTEND.replace("{flags}", flags)
}

/// A drill with the Python of 1.6.1 in the place of `python` passes; paths are taken from the gallery's directory.
#[track_caller]
fn passes(duration: &str, fleet: &str, rest: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/drills/x.toml");
    let scene = SCENE.replace("{duration}", duration).replace("{fleet}", fleet);
    let text = (scene + rest).replace("python", &Release::V1_6_1.python().display().to_string());
    let scenario = Scenario::parse(&path, &text).expect("the drill can be read");
    let report = run(&scenario, Options::default()).expect("the drill runs to its end");
    eprintln!("{}", report.text());
    assert_eq!(report.verdict, Verdict::Pass);
    assert_eq!(report.errors().next(), None);
}

/// The load begins late, so that what the drill asks on its own behalf can be told from it.
#[test]
#[ignore = "needs a Dynamo frontend: scripts/test"]
fn a_frontend_that_does_not_serve_its_index_is_judged_by_its_choices() {
    let rest = r#"
[index]
by = "choices"
[[load]]
rate = 5
start = "12s"

[[at]]
at = "6s"
mark = "clear"
do = "* clear_cache event=without"

[[check]]
name = "what is planted is known"
expect = "index_drift == 0 until clear"
[[check]]
name = "what has gone without a word is believed in"
expect = "index_drift > 90% after clear + 500ms until 9s"
[[check]]
name = "no request is taken for one of a load's"
expect = "requests reaching w0-w1 == 0 until 11s"
[[check]]
expect = "leaked anything == 0"
"#;
    passes("14s", "", &(frontend("") + rest));
}

#[test]
#[ignore = "needs a Dynamo frontend: scripts/test"]
fn a_frontend_that_serves_its_index_is_asked_for_what_nobody_has_any_more() {
    let rest = r#"
[index]
by = "served"

[[load]]
rate = 10
prefix_groups = 10
prefix_tokens = 64
stop = "4s"

[[at]]
at = "6s"
mark = "clear"
do = "* clear_cache event=without"

[[check]]
expect = "index_drift == 0 after 4500ms until clear"
[[check]]
name = "all that it knows is phantom, and stays so"
expect = "index_drift > 99% after clear + 1s until 8s"
[[check]]
expect = "index_drift > 99% after 8s"
"#;
    passes("10s", "", &(frontend(", \"--serve-indexer\"") + rest));
}

#[test]
#[ignore = "needs Dynamo's standalone indexer: scripts/test"]
fn a_standalone_indexer_is_started_told_of_the_workers_and_compared() {
    let rest = r#"
[index]
command = ["python", "-m", "dynamo.indexer", "--threads", "1", "--port", "{port}"]

[[load]]
rate = 10
prompt_tokens = 64

[[at]]
at = "4s"
mark = "mute"
do = "w0 silent for=2s"
[[at]]
at = "7s"
mark = "clear"
do = "clear-cache w0"
[[at]]
at = "11s"
mark = "restart"
do = "w1 restart same_id=true"

[[check]]
expect = "index_drift == 0 until mute"
[[check]]
name = "what was not told is missing"
expect = "index_drift > 5% after mute + 1s until clear"
[[check]]
name = "a cleared cache is one that both know"
expect = "index_drift == 0 after clear + 1500ms until restart"
[[check]]
name = "a worker that comes back is read again"
expect = "index_drift < 1% after restart + 3s"
"#;
    let streams = "zmq_kv_events_ports = \"0,0\"\nzmq_replay_ports = \"0,0\"";
    passes("16s", streams, rest);
}
