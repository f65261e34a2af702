//! `ghostfleet replay` as a process: outside planners, repeatability, policy files, flags; beside it outputs, signals and
//! traces that make no sense.

#![allow(clippy::unwrap_used)]

mod flags;
mod interruption;
mod outputs;
mod shared_memory;
mod wrong_traces;

use std::path::Path;
use std::process::{Command, Output};

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
        // Where the caller may have measurements.
        .env_remove("GHOSTFLEET_AIC_SYSTEMS_PATH")
        .env_remove("AICONFIGURATOR_SYSTEMS_PATH")
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
        shown.starts_with("\nScaling events:\n  t=0.2s [agg]: 1 -> 3 workers (scale_up)\n"),
        "{shown}"
    );
    assert!(shown.ends_with("report.json\nPlanner ticks: 1\n"), "{shown}");
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
    let event = json!({"at_s": 0.2, "component": "agg", "from_count": 1, "to_count": 3, "reason": "scale_up"});
    assert_eq!(report["planner"], json!({"total_ticks": 1, "scaling_events": [event]}));
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
        (
            "printf '{}\\n{\"target_decode\": 2}\\n'",
            "wrote more than one line for one that it was asked, from \"{}\" on",
        ),
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
fn bounds_of_good_service_may_be_given_together() {
    let directory = tempfile::tempdir().unwrap();
    let load = [&LOAD[..], &["--replay-concurrency", "4"]].concat();
    let both = ["--sla-e2e-ms", "900", "--sla-ttft-ms", "50"];
    for semantics in ["1.6.1", "1.4.2"] {
        let output = replay(
            directory.path(),
            &[&load[..], &both, &["--semantics", semantics]].concat(),
        );
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(report(directory.path())["goodput_completed_requests"].is_u64());
    }
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
            [
                &["t.jsonl", "--router-config", r#"{"router_prefill_load_model":"aic"}"#][..],
                &kv,
            ]
            .concat(),
            "asks for a model that no flag names; give --aic-backend",
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
fn sizes_that_no_machine_holds_are_refused_before_they_take_memory() {
    let directory = tempfile::tempdir().unwrap();
    for (flags, part) in [
        (
            vec!["--num-workers", "4294967295"],
            "--num-workers is 4294967295, expected at most 65536",
        ),
        (
            vec!["--extra-engine-args", r#"{"dp_size":4000000000}"#],
            "dp_size is 4000000000, expected at most 1024",
        ),
        (
            vec!["--num-workers", "65536", "--extra-engine-args", r#"{"dp_size":5}"#],
            "makes 327680 ranks, expected at most 262144",
        ),
        (
            vec!["--router-mode", "kv_router", "--router-replicas", "1000000000"],
            "--router-replicas is 1000000000, expected at most 1024",
        ),
        (
            vec!["--turns-per-session", "4294967295"],
            "request_count times turns_per_session is 34359738360, expected at most 16777216",
        ),
        (
            vec![
                "--planner-config",
                r#"{"initial_tick_ms":1,"ticks":[{"target_decode":4294967295}]}"#,
            ],
            "ticks[0]: target_decode is 4294967295, expected at most 65536",
        ),
        (
            vec!["--planner-config", r#"{"command":["true"],"timeout_seconds":1e19}"#],
            "timeout_seconds is 1e19, expected a number from 0 to 1000000",
        ),
        (
            vec!["--planner-config", r#"{"mode": "agg", "max_gpus": 2}"#],
            "--planner-config: max_gpus is not known to Dynamo's planner",
        ),
        (
            vec!["--planner-config", "nowhere.yaml"],
            "--planner-config: neither a file nor a script (key ticks), a program (key command) or",
        ),
    ] {
        let load = [
            "--input-tokens",
            "8",
            "--output-tokens",
            "2",
            "--request-count",
            "8",
            "--replay-concurrency",
            "1",
        ];
        let output = replay(directory.path(), &[&load[..], &flags].concat());
        assert_eq!(output.status.code(), Some(1), "{flags:?}");
        assert!(text(&output.stderr).contains(part), "{}", text(&output.stderr));
    }
    let long = [
        "--input-tokens",
        "4000000000",
        "--output-tokens",
        "2",
        "--request-count",
        "1",
        "--replay-concurrency",
        "1",
    ];
    let output = replay(directory.path(), &long);
    let said = text(&output.stderr);
    assert!(
        said.contains("input_tokens is 4000000000, expected at most 67108864"),
        "{said}"
    );
}

#[test]
fn a_run_that_serves_nothing_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let load = ["--input-tokens", "4096", "--output-tokens", "4", "--request-count", "3"];
    let engine = r#"{"max_num_batched_tokens":1024,"enable_chunked_prefill":false}"#;
    let flags = [&load[..], &["--replay-concurrency", "2", "--extra-engine-args", engine]].concat();
    let output = replay(directory.path(), &flags);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
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
