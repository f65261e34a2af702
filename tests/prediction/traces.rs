//! Trace files: made, described, converted, replayed.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{json as read, refuse, succeed, timeless};

fn stat(directory: &TempDir, arguments: &[&str]) -> Value {
    let args = [&["trace", "stat", "--format", "json"], arguments].concat();
    serde_json::from_str(&succeed(directory.path(), &args)).unwrap()
}

#[test]
fn a_synthetic_trace_replays_like_the_synthetic_load_it_was_made_of() {
    let directory = TempDir::new().unwrap();
    let at = directory.path();
    // Times of few digits: numbers of 17 digits may be read a last bit off.
    let load = [
        "--input-tokens=256",
        "--output-tokens=8",
        "--request-count=12",
        "--arrival-interval-ms=37.5",
        "--turns-per-session=3",
        "--shared-prefix-ratio=0.5",
        "--num-prefix-groups=2",
        "--inter-turn-delay-ms=30",
    ];
    let synth = ["trace", "synth", "--trace-block-size=64", "-o", "t.jsonl"];
    succeed(at, &[&synth[..], &load].concat());
    let engine = r#"--extra-engine-args={"block_size": 64}"#;
    let report = |name: &str, load: &[&str]| {
        let args = [&["replay", "--num-workers=2", engine, "--report-json", name], load].concat();
        succeed(at, &args);
        timeless(read(&at.join(name)))
    };
    let replayed = report("a.json", &["t.jsonl", "--trace-block-size=64"]);
    assert_eq!(replayed["completed_requests"], 36);
    assert_eq!(replayed, report("b.json", &load));

    let found = stat(&directory, &["t.jsonl", "--trace-block-size=64"]);
    assert_eq!(
        (&found["requests"], &found["sessions"], &found["most_turns"]),
        (&json!(36), &json!(12), &json!(3))
    );
    assert_eq!(found["input_tokens"]["total"], 36 * 256);
    // Two groups of two blocks, and two blocks of its own for each request.
    assert_eq!(
        (&found["full_blocks"], &found["distinct_blocks"]),
        (&json!(144), &json!(2 * 2 + 36 * 2))
    );
    assert_eq!(found["reusable_share"], 68.0 / 144.0);
    let text = succeed(at, &["trace", "stat", "t.jsonl", "--trace-block-size=64"]);
    assert!(text.contains("sessions          12 (at most 3 turns)"), "{text}");
}

const WEKA: &str = r#"{"id":"w","models":["m"],"block_size":64,"hash_id_scope":"local","requests":[
  {"type":"n","t":0.5,"model":"m","in":128,"out":4,"hash_ids":[1,2],"api_time":0.5},
  {"type":"subagent","t":1.1,"agent_id":"a","subagent_type":"x","status":"completed","requests":[
    {"type":"n","t":1.2,"model":"m","in":64,"out":0,"hash_ids":[9],"api_time":0.2}]},
  {"type":"n","t":2.0,"model":"m","in":192,"out":4,"hash_ids":[1,2,3],"api_time":0.5}]}"#;

#[test]
fn weka_traces_replay_from_directories_and_convert_to_agentic_rows_that_replay_alike() {
    let directory = TempDir::new().unwrap();
    let at = directory.path();
    std::fs::create_dir_all(at.join("corpus/deep")).unwrap();
    std::fs::write(at.join("corpus/deep/w.json"), WEKA).unwrap();
    std::fs::write(
        at.join("corpus/v.jsonl"),
        WEKA.replace('\n', "").replace(r#""id":"w""#, r#""id":"v""#),
    )
    .unwrap();
    std::fs::write(at.join("corpus/README.txt"), "no trace").unwrap();
    let report = |name: &str, trace: &[&str]| {
        succeed(at, &[&["replay", "--report-json", name], trace].concat());
        timeless(read(&at.join(name)))
    };
    let mut replayed = report("a.json", &["corpus", "--trace-format=weka"]);
    assert_eq!(
        (&replayed["completed_requests"], &replayed["total_trajectories"]),
        (&json!(6), &json!(2))
    );
    let digest = &replayed["agentic_graph"]["source"]["digest"];
    assert_eq!(digest.as_str().map(str::len), Some(64), "{digest}");
    let convert = ["trace", "convert", "corpus", "--trace-format=weka", "-o", "g.jsonl"];
    succeed(at, &convert);
    let basis = replayed.as_object_mut().unwrap().remove("weka_nested_timestamp_basis");
    assert_eq!(basis, Some(json!("absolute")));
    let again = report("b.json", &["g.jsonl", "--trace-format=agentic_mooncake"]);
    assert_eq!(replayed, again);
    refuse(
        at,
        &["replay", "corpus", "--trace-format=weka", "--replay-concurrency=2"],
        1,
        &["sets its own pace"],
    );
    std::fs::create_dir(at.join("empty")).unwrap();
    refuse(
        at,
        &["replay", "empty", "--trace-format=weka"],
        1,
        &["no .json or .jsonl file"],
    );
}

#[test]
fn request_traces_convert_to_mooncake_rows_that_replay_alike() {
    let directory = TempDir::new().unwrap();
    let at = directory.path();
    let line = |id: u32, at: u32, hashes: &str| {
        format!(
            r#"{{"event":{{"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":{},"request":{{"request_id":"r{id}","output_tokens":3,"total_time_ms":5,"replay":{{"trace_block_size":64,"input_length":100,"input_sequence_hashes":{hashes}}}}}}}}}"#,
            at + 5
        )
    };
    let lines = [
        line(1, 1000, "[18446744073709551615, 7]"),
        line(2, 1040, "[18446744073709551615, 9]"),
    ];
    std::fs::write(at.join("shard.jsonl"), lines.join("\n")).unwrap();
    let convert = [
        "trace",
        "convert",
        "shard.jsonl",
        "--trace-format=dynamo",
        "-o",
        "m.jsonl",
    ];
    succeed(at, &convert);
    let report = |name: &str, trace: &[&str]| {
        succeed(at, &[&["replay", "--report-json", name], trace].concat());
        timeless(read(&at.join(name)))
    };
    let replayed = report("a.json", &["shard.jsonl", "--trace-format=dynamo"]);
    assert_eq!(replayed["completed_requests"], 2);
    assert_eq!(replayed, report("b.json", &["m.jsonl", "--trace-block-size=64"]));
    refuse(
        at,
        &["trace", "stat", "m.jsonl", "--trace-block-size=0"],
        2,
        &["--trace-block-size is 0"],
    );
    std::fs::write(at.join("bad.jsonl"), "{\"timestamp\":0}\n").unwrap();
    refuse(
        at,
        &["trace", "stat", "bad.jsonl"],
        2,
        &["bad.jsonl, line 1: hash_ids is missing"],
    );
}

#[test]
fn a_conversion_onto_the_trace_itself_is_refused() {
    let directory = TempDir::new().unwrap();
    let at = directory.path();
    let row = r#"{"timestamp":0,"input_length":8,"output_length":2,"hash_ids":[1]}"#;
    std::fs::write(at.join("t.jsonl"), row).unwrap();
    std::os::unix::fs::symlink("t.jsonl", at.join("link")).unwrap();
    for output in ["t.jsonl", "./t.jsonl", "link"] {
        let convert = ["trace", "convert", "t.jsonl", "-o", output];
        refuse(at, &convert, 2, &["--output", "is the same file as the trace"]);
    }
    assert_eq!(std::fs::read_to_string(at.join("t.jsonl")).unwrap(), row);
}
