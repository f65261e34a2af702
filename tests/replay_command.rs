//! `ghostfleet replay` as a process: outside planners, interruption, repeatability, policy files.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const LOAD: [&str; 10] = [
    "--input-tokens",
    "512",
    "--output-tokens",
    "16",
    "--request-count",
    "400",
    "--shared-prefix-ratio",
    "0.5",
    "--num-prefix-groups",
    "4",
];

fn replay(directory: &Path, flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ghostfleet"))
        .current_dir(directory)
        .args(["replay", "--report-json", "report.json"])
        .args(flags)
        .output()
        .unwrap()
}

fn report(directory: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(directory.join("report.json")).unwrap()).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A planner in the shell: says when it starts, then `each` for every tick.
fn planner(each: &str) -> String {
    let program = format!("read start; echo '{{\"initial_tick_ms\": 200}}'; while read -r tick; do {each}; done");
    json!({"command": ["sh", "-c", program], "timeout_seconds": 20}).to_string()
}

#[test]
fn an_outside_program_scales_the_fleet_and_sees_the_specified_figures() {
    let directory = tempfile::tempdir().unwrap();
    let config = planner("echo '{\"target_decode\": 3, \"next_tick_ms\": null}'");
    let engine = r#"{"startup_time": 0.5, "engine": {"block_size": 64}}"#;
    let scaled = ["--planner-config", &config, "--planner-log", "ticks.jsonl"];
    let flags = [
        &LOAD[..],
        &["--arrival-interval-ms", "5", "--extra-engine-args", engine],
        &scaled,
    ]
    .concat();
    let output = replay(directory.path(), &flags);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(
        shown.contains("  t=0.2s [agg]: 1 -> 3 workers (scale_up)\nPlanner ticks: 1\n"),
        "{shown}"
    );
    let log = std::fs::read_to_string(directory.path().join("ticks.jsonl")).unwrap();
    let tick: Value = serde_json::from_str(log.trim_end()).unwrap();
    assert_eq!(tick["decision"]["target_decode"], 3);
    let snapshot = &tick["snapshot"];
    assert_eq!(
        (&snapshot["now_ms"], &snapshot["active_decode_ids"]),
        (&json!(200.0), &json!([0]))
    );
    assert_eq!(snapshot["traffic"]["num_req"], 41);
    let pass = &snapshot["decode_fpm_snapshots"][0];
    for key in [
        "wall_time",
        "sum_prefill_kv_tokens",
        "var_decode_kv_tokens",
        "sum_queued_prefill_tokens",
    ] {
        assert!(pass[key].is_number(), "{key}: {pass}");
    }
    let report = report(directory.path());
    assert_eq!(report["completed_requests"], 400);
    let (seconds, duration) = (&report["decode_worker_seconds"], &report["duration_ms"]);
    let expected = duration.as_f64().unwrap() / 1e3 * 3.0 - 0.4;
    assert!(
        (seconds.as_f64().unwrap() - expected).abs() < 1e-6,
        "{seconds} for {duration} ms"
    );
}

#[test]
fn a_planner_that_makes_no_sense_or_dies_ends_the_replay_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    for (each, part) in [
        ("echo '{\"target_decode\": \"many\"}'", "wrong answer"),
        ("echo '{\"target\": 2}'", "target is not known"),
        ("echo '[1, 2]'", "wrong answer \"[1, 2]\": expected a JSON object"),
        (
            "echo '{\"target_prefill\": 2}'",
            "target_prefill is 2, but the fleet is aggregated",
        ),
        (
            "echo '{\"next_tick_ms\": 200}'",
            "next_tick_ms is 200, expected later than the tick itself, 200 ms",
        ),
        ("exit 0", "ended before its answer"),
    ] {
        let config = planner(each);
        let flags = [&LOAD[..], &["--arrival-interval-ms", "5", "--planner-config", &config]].concat();
        let output = replay(directory.path(), &flags);
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(said.contains("planner: ") && said.contains(part), "{said}");
    }
}

#[test]
fn an_interrupted_replay_writes_what_it_has_and_marks_it() {
    let directory = tempfile::tempdir().unwrap();
    // The planner interrupts its parent in the middle of the run.
    let config = planner("kill -INT $PPID; echo '{}'; exit");
    let load = [
        "--input-tokens",
        "64",
        "--output-tokens",
        "2",
        "--request-count",
        "50000",
    ];
    let more = [
        "--arrival-interval-ms",
        "20",
        "--planner-config",
        &config,
        "--html",
        "page.html",
    ];
    let output = replay(directory.path(), &[&load[..], &more].concat());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    let page = std::fs::read_to_string(directory.path().join("page.html")).unwrap();
    assert!(page.contains("report is partial") && page.contains("report (partial)</th>"));
    assert!(said.contains("report.json is a partial report"), "{said}");
    assert!(text(&output.stdout).contains("(partial: the run was interrupted)"));
    let report = report(directory.path());
    assert_eq!(report["partial"], true);
    let completed = report["completed_requests"].as_u64().unwrap();
    assert!((10..50_000).contains(&completed), "{completed}");
}

#[test]
fn a_prompt_that_can_never_be_computed_is_rejected_and_the_others_are_served() {
    let directory = tempfile::tempdir().unwrap();
    let rows = [(0, 100), (10, 400), (20, 50)].map(|(at, tokens)| {
        json!({"timestamp": at, "input_length": tokens, "output_length": 2, "hash_ids": [at]}).to_string()
    });
    std::fs::write(directory.path().join("t.jsonl"), rows.join("\n")).unwrap();
    let engine = r#"{"block_size": 64, "max_num_batched_tokens": 256, "enable_chunked_prefill": false}"#;
    for workers in ["1", "2"] {
        let flags = ["t.jsonl", "--num-workers", workers, "--extra-engine-args", engine];
        let records = ["--request-records", "records.jsonl"];
        let output = replay(directory.path(), &[&flags[..], &records].concat());
        let said = text(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert!(
            said.contains("1 of 3 requests were rejected") && said.contains("without chunked prefill"),
            "{said}"
        );
        assert_eq!(report(directory.path())["completed_requests"], 2);
        let records = std::fs::read_to_string(directory.path().join("records.jsonl")).unwrap();
        let rejected: Vec<Value> = records
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let rejected: Vec<&Value> = rejected
            .iter()
            .filter(|record| record["terminal_status"] == "rejected")
            .collect();
        assert_eq!((rejected.len(), &rejected[0]["input_length"]), (1, &json!(400)));
    }
}

#[test]
fn a_bound_on_whole_requests_stands_alone_as_in_1_6_1() {
    let directory = tempfile::tempdir().unwrap();
    let load = [&LOAD[..], &["--replay-concurrency", "4"]].concat();
    let both = ["--sla-e2e-ms", "900", "--sla-ttft-ms", "50"];
    let output = replay(directory.path(), &[&load[..], &both].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("--sla-e2e-ms stands alone"),
        "{}",
        text(&output.stderr)
    );
    let output = replay(
        directory.path(),
        &[&load[..], &both, &["--semantics", "1.4.2"]].concat(),
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(report(directory.path())["goodput_completed_requests"].is_u64());
    let output = replay(directory.path(), &[&load[..], &["--sla-itl-ms", "-1"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("--sla-itl-ms is -1, expected ms above 0"));
}

#[test]
fn the_same_seed_gives_the_same_report_and_records_byte_for_byte() {
    let run = |seed: &str| {
        let directory = tempfile::tempdir().unwrap();
        let fleet = [
            "--num-workers",
            "6",
            "--router-mode",
            "kv_router",
            "--router-replicas",
            "2",
            "--seed",
            seed,
        ];
        let load = ["--replay-concurrency", "40", "--request-records", "records.jsonl"];
        let output = replay(directory.path(), &[&LOAD[..], &fleet, &load].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let mut report = report(directory.path());
        for key in [
            "wall_time_ms",
            "processed_tokens_per_s",
            "processed_output_tokens_per_s",
        ] {
            report.as_object_mut().unwrap().remove(key).unwrap();
        }
        let records = std::fs::read_to_string(directory.path().join("records.jsonl")).unwrap();
        (report.to_string(), records)
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7").1, run("8").1, "ties fall differently");
}

#[test]
fn policy_classes_take_turns_and_a_full_one_refuses() {
    let directory = tempfile::tempdir().unwrap();
    let policy = |limit: &str| {
        format!(
            "
default_policy_family: chat
uncached_isl_buckets: [{{min_tokens: 0, bucket: all}}]
policy_classes:
  - {{name: chat-all, policy_family: chat, cache_bucket: all, quantum: 4096, prefill_busy_threshold: 0}}
  - {{name: batch, quantum: 1024, prefill_busy_threshold: 0{limit}}}
"
        )
    };
    let rows: Vec<String> = (0..120)
        .map(|at| {
            let class = if at % 2 == 0 { "chat" } else { "batch" };
            json!({
                "timestamp": at, "input_length": 1024, "output_length": 4,
                "hash_ids": [2 * at, 2 * at + 1], "policy_class": class,
            })
            .to_string()
        })
        .collect();
    std::fs::write(directory.path().join("trace.jsonl"), rows.join("\n")).unwrap();
    let flags = ["trace.jsonl", "--num-workers", "2", "--router-mode", "kv_router"];
    let files = [
        "--router-policy-config",
        "policy.yaml",
        "--request-records",
        "records.jsonl",
    ];
    let flags = [&flags[..], &files].concat();
    std::fs::write(directory.path().join("policy.yaml"), policy("")).unwrap();
    let output = replay(directory.path(), &flags);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let records = std::fs::read_to_string(directory.path().join("records.jsonl")).unwrap();
    // Records are in the order of arrival: chat, batch, chat, ...
    let wait = |line: &str| {
        serde_json::from_str::<Value>(line).unwrap()["route_queue_wait_ms"]
            .as_f64()
            .unwrap()
    };
    let mean = |from: usize| records.lines().skip(from).step_by(2).map(wait).sum::<f64>() / 60.0;
    // Each prompt fills its worker, so that a class is blocked when it is asked again, and that ends its turn however much it
    // may still spend: Dynamo 1.4.2 lets both wait for the same time here, too.
    assert!(
        mean(0) > 0.0 && (mean(0) - mean(1)).abs() < 1e-6,
        "chat waits {} ms, batch {} ms",
        mean(0),
        mean(1)
    );

    std::fs::write(
        directory.path().join("policy.yaml"),
        policy(", request_queue_limit_per_worker: 4"),
    )
    .unwrap();
    let output = replay(directory.path(), &flags);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("router policy class \"batch\" queue requests limit reached (current=8, limit=8)"),
        "{said}"
    );
}

#[test]
fn flags_that_would_change_nothing_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let row = r#"{"timestamp":0,"input_length":8,"output_length":2,"hash_ids":[1]}"#;
    std::fs::write(directory.path().join("t.jsonl"), row).unwrap();
    let kv = ["--router-mode", "kv_router", "--num-workers", "2"];
    for (flags, part) in [
        (
            vec!["t.jsonl", "--agentic-lanes", "2"],
            "--agentic-lanes works with --trace-format",
        ),
        (
            vec!["t.jsonl", "--kv-event-lag-ms", "5"],
            "--router-mode kv_router only",
        ),
        (
            [
                &["t.jsonl", "--router-config", r#"{"router_prefill_load_model":"aic"}"#][..],
                &kv,
            ]
            .concat(),
            "not available in this build",
        ),
        (
            vec!["t.jsonl", "--router-config", r#"{"router_temperature":"x"}"#],
            "router config: router_temperature is \"x\", expected a number",
        ),
        (
            vec!["t.jsonl", "--sla-ttft-ms", "nan", "--semantics", "1.4.2"],
            "--sla-ttft-ms is NaN, expected ms",
        ),
        (
            vec!["t.jsonl", "--arrival-speedup-ratio", "-1e300"],
            "--arrival-speedup-ratio is -1e300, expected",
        ),
        (
            vec!["t.jsonl", "--extra-engine-args", "[1]"],
            "the document must be an object",
        ),
        (
            vec![
                "t.jsonl",
                "--extra-engine-args",
                r#"{"engine_type":"sglang","sglang":{"page_size":0}}"#,
            ],
            "page_size",
        ),
    ] {
        let output = replay(directory.path(), &flags);
        assert_eq!(output.status.code(), Some(1), "{flags:?}");
        let said = text(&output.stderr);
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn times_beyond_the_clock_are_refused_one_by_one_and_in_sum() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.jsonl");
    let row = |time: &str| format!(r#"{{"session_id":"s",{time},"input_length":8,"output_length":2,"hash_ids":[1]}}"#);
    std::fs::write(&path, row(r#""timestamp":1e308"#)).unwrap();
    let output = replay(directory.path(), &["t.jsonl"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("t.jsonl, line 1: timestamp is 1e308, expected ms from -4e12 to 4e12"),
        "{said}"
    );
    let rows: Vec<String> = (0..4)
        .map(|at| row(if at == 0 { r#""timestamp":0"# } else { r#""delay":4e12"# }))
        .collect();
    std::fs::write(&path, rows.join("\n")).unwrap();
    let output = replay(directory.path(), &["t.jsonl"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("the end of the clock"), "{said}");
}

#[test]
fn a_run_that_serves_nothing_says_why_and_fails() {
    let directory = tempfile::tempdir().unwrap();
    let load = ["--input-tokens", "4096", "--output-tokens", "4", "--request-count", "3"];
    let engine = r#"{"max_num_batched_tokens":1024,"enable_chunked_prefill":false}"#;
    let flags = [&load[..], &["--replay-concurrency", "2", "--extra-engine-args", engine]].concat();
    let output = replay(directory.path(), &flags);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("3 of 3 requests were rejected"), "{said}");
    assert_eq!(report(directory.path())["completed_requests"], 0);
}

#[test]
fn a_single_worker_of_1_4_2_counts_time_and_names_as_the_peer() {
    let directory = tempfile::tempdir().unwrap();
    let row = |at: u32| {
        format!(
            r#"{{"timestamp":{},"input_length":500,"output_length":20,"hash_ids":[{at}]}}"#,
            at * 100
        )
    };
    let rows: Vec<String> = (0..20).map(row).collect();
    std::fs::write(directory.path().join("t.jsonl"), rows.join("\n")).unwrap();
    let flags = [
        "t.jsonl",
        "--semantics",
        "1.4.2",
        "--max-sim-time-seconds",
        "1",
        "--report-jsonl",
        "r.jsonl",
    ];
    let output = replay(directory.path(), &flags);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = report(directory.path());
    let number = |key: &str| report[key].as_f64().unwrap();
    assert!(report["completed_requests"].as_u64().unwrap() > 0);
    assert!((number("decode_worker_seconds") - number("duration_ms") / 1e3).abs() < 1e-9);
    let records = std::fs::read_to_string(directory.path().join("r.jsonl")).unwrap();
    let first: Value = serde_json::from_str(records.lines().next().unwrap()).unwrap();
    for key in ["session_id", "turn_index", "decode_worker_idx"] {
        assert_eq!(first.get(key), Some(&Value::Null), "{key}");
    }
}

#[test]
fn outputs_that_cannot_be_written_are_told_before_the_replay() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    std::fs::write(at.join("file"), "").unwrap();
    std::fs::write(at.join("bad.json"), "{").unwrap();
    std::fs::create_dir(at.join("taken")).unwrap();
    // Far more work than any test waits for.
    let long = [
        "--input-tokens=100000",
        "--output-tokens=100000",
        "--request-count=4000000",
        "--replay-concurrency=1000",
    ];
    for (flags, expected) in [
        (&["--report-json=file/r.json"][..], "cannot write file/r.json"),
        (&["--request-records=taken"], "cannot write taken"),
        (&["--html=file/p.html"], "cannot write file/p.html"),
        (&["--html=p.html", "--html-compare", "bad.json"], "bad.json: EOF"),
        (
            &["--html=p.html", "--html-compare", "none.json"],
            "none.json: No such file",
        ),
    ] {
        let output = replay(at, &[&long, flags].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{said}");
    }
    let mut left: Vec<_> = std::fs::read_dir(at)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["bad.json", "file", "taken"]);
}

#[test]
fn outputs_that_would_overwrite_what_is_read_or_written_besides_are_refused_and_nothing_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let row = r#"{"timestamp":0,"input_length":8,"output_length":2,"hash_ids":[1]}"#;
    std::fs::write(at.join("t.jsonl"), row).unwrap();
    std::fs::create_dir(at.join("deep")).unwrap();
    std::os::unix::fs::symlink("../t.jsonl", at.join("deep/link")).unwrap();
    std::fs::hard_link(at.join("t.jsonl"), at.join("twin")).unwrap();
    std::fs::write(at.join("policy.yaml"), "").unwrap();
    std::fs::write(at.join("engine.json"), "{}").unwrap();
    std::fs::write(at.join("other.json"), r#"{"completed_requests": 1}"#).unwrap();
    let planner = r#"{"initial_tick_ms": 5, "ticks": []}"#;
    for (flags, expected) in [
        (
            &["--request-records", "t.jsonl"][..],
            "--request-records t.jsonl is the same file as the trace",
        ),
        (
            &["--report-jsonl", "./t.jsonl"],
            "--report-jsonl ./t.jsonl is the same file as the trace (t.jsonl)",
        ),
        (
            &["--html", "deep/link"],
            "--html deep/link is the same file as the trace (t.jsonl)",
        ),
        (
            &["--html", "twin"],
            "--html twin is the same file as the trace (t.jsonl)",
        ),
        (
            &["--html", "deep/../report.json"],
            "is the same file as --report-json (report.json)",
        ),
        (
            &["--request-records", "x", "--html", "x"],
            "--html x is the same file as --request-records",
        ),
        (
            &["--planner-config", planner, "--planner-log", "report.json"],
            "--planner-log report.json is the same file as --report-json",
        ),
        (
            &["--router-policy-config", "policy.yaml", "--html", "policy.yaml"],
            "is the same file as the router policy file",
        ),
        (
            &["--extra-engine-args", "engine.json", "--html", "engine.json"],
            "is the same file as --extra-engine-args",
        ),
        (
            &["--html", "other.json", "--html-compare", "other.json"],
            "is the same file as --html-compare",
        ),
    ] {
        let output = replay(at, &[&["t.jsonl"], flags].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.contains(expected), "{said}");
    }
    assert_eq!(std::fs::read_to_string(at.join("t.jsonl")).unwrap(), row);
    assert!(
        !at.join("report.json").exists() && !at.join("x").exists(),
        "nothing is made"
    );
    // Results in a directory that is read would be a part of the corpus next time.
    let output = replay(at, &[".", "--trace-format", "weka"]);
    assert!(
        text(&output.stderr).contains("report.json lies in the trace (.)"),
        "{output:?}"
    );
    let output = replay(
        at,
        &["t.jsonl", "--html", "/dev/null", "--request-records", "/dev/null"],
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = replay(at, &["t.jsonl", "--report-json", "new/"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_dir(at.join("new")).unwrap().count(), 1);
    std::fs::write(at.join("other.json"), "{}").unwrap();
    let output = replay(at, &["t.jsonl", "--html", "p.html", "--html-compare", "other.json"]);
    assert!(
        text(&output.stderr).contains("other.json: expected a JSON report"),
        "{output:?}"
    );
}

#[test]
fn a_signal_ends_a_replay_that_waits_for_its_trace_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let pipe = at.join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for signal in ["-INT", "-TERM"] {
        let child = Command::new(env!("CARGO_BIN_EXE_ghostfleet"))
            .current_dir(at)
            .args(["replay", "pipe", "--report-json", "report.json"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It can be opened once the replay reads it, and signals are heard before that.
        let writer = std::fs::File::options().write(true).open(&pipe).unwrap();
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(sent.unwrap().success());
        let output = child.wait_with_output().unwrap();
        drop(writer);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert!(said.contains("interrupted while the workload was read"), "{said}");
        assert!(!at.join("report.json").exists());
    }
}

#[test]
fn flags_that_do_nothing_are_told_and_the_replay_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let idle = ["--replay-concurrency=4", "--seed=7", "--benchmark-granularity=3"];
    let output = replay(directory.path(), &[&LOAD[..], &idle].concat());
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    for flag in [
        "--seed does nothing without",
        "--benchmark-granularity does nothing here",
    ] {
        assert!(said.contains(&format!("warning: {flag}")), "{said}");
    }
    let output = replay(directory.path(), &[&LOAD[..], &["--replay-concurrency=4"]].concat());
    assert!(!text(&output.stderr).contains("warning"), "{output:?}");
}

#[test]
fn what_is_wrong_with_a_graph_has_file_line_and_field() {
    let directory = tempfile::tempdir().unwrap();
    let header = r#"{"schema":"dynamo.agentic_mooncake","version":2,"block_size":8,"hash_id_scope":"local","source":{"format":"f","digest":"d"}}"#;
    let row = |name: &str, waits_for: &str| {
        format!(
            r#"{{"request_id":"{name}","play_id":"p","session_id":"s","model":"m","not_before_ms":0,"input_length":8,"output_length":1,"hash_ids":[1],"dependencies":[{{"request_id":"{waits_for}","trigger":"completion","delay_ms":0,"relation":"sequence"}}]}}"#
        )
    };
    let record = |name: &str, start: u32, agent: &str| {
        format!(
            r#"{{"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":{},"agent_context":{agent},"request":{{"request_id":"{name}","output_tokens":1,"request_received_ms":{start},"total_time_ms":10,"replay":{{"trace_block_size":8,"input_length":8,"input_sequence_hashes":[1]}}}}}}"#,
            start + 10
        )
    };
    let session = r#"{"session_id":"s"}"#;
    for (form, rows, expected) in [
        (
            "agentic_mooncake",
            [header.to_owned(), row("a", "zz")],
            "t.jsonl, line 2: dependencies of request a names zz, expected the request_id of a line of this trace",
        ),
        (
            "agentic_mooncake",
            [header.to_owned(), row("a", "a")],
            "t.jsonl, line 2: dependencies of request a names the request itself",
        ),
        (
            "dynamo",
            [record("a", 100, session), record("b", 105, session)],
            "t.jsonl, line 2: request b began 5 ms before the end of a",
        ),
        (
            "dynamo",
            [
                record("a", 100, session),
                record("b", 200, r#"{"session_id":"t","parent_session_id":"x"}"#),
            ],
            "t.jsonl, line 2: agent_context.parent_session_id of session t is x, of which there is no request",
        ),
        (
            "dynamo",
            [record("a", 100, session), record("b", 200, "5")],
            "t.jsonl, line 2: agent_context is 5, expected an object",
        ),
        (
            "dynamo",
            [record("a", 100, session), record("a", 200, session)],
            "t.jsonl, line 2: request.request_id is a, as in a line before",
        ),
    ] {
        std::fs::write(directory.path().join("t.jsonl"), rows.join("\n")).unwrap();
        let output = replay(directory.path(), &["t.jsonl", "--trace-format", form]);
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(said.contains(expected), "{said}");
    }
}
