//! Flags that do not go together, or go together with less than they seem to; values as the peer takes them.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::{replay, report, text};

const ROW: &str = r#"{"timestamp":0,"input_length":8,"output_length":2,"hash_ids":[1]}"#;
const LOAD: [&str; 4] = [
    "--input-tokens=100",
    "--output-tokens=4",
    "--request-count=5",
    "--arrival-interval-ms=10",
];
const KV: [&str; 2] = ["--num-workers=2", "--router-mode=kv_router"];

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("t.jsonl"), ROW).unwrap();
    directory
}

fn refused(directory: &Path, flags: &[&str], code: i32, part: &str) {
    let output = replay(directory, flags);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{flags:?}: {said}");
    assert!(said.contains(part), "{flags:?}: {said}");
}

fn accepted(directory: &Path, flags: &[&str]) -> Output {
    let output = replay(directory, flags);
    assert!(output.status.success(), "{flags:?}: {}", text(&output.stderr));
    output
}

#[test]
fn flags_that_do_not_go_together_end_with_2_and_the_name_of_one() {
    let directory = directory();
    for (flags, part) in [
        (
            &["--turns-per-session=2"][..],
            "--turns-per-session is for synthetic load",
        ),
        (
            &["--shared-prefix-ratio=0.5"],
            "--shared-prefix-ratio is for synthetic load",
        ),
        (
            &["--shared-prefix-ratio=nan"],
            "--shared-prefix-ratio is for synthetic load",
        ),
        (&["--num-prefix-groups=3"], "--num-prefix-groups is for synthetic load"),
        (
            &["--inter-turn-delay-ms=3"],
            "--inter-turn-delay-ms is for synthetic load",
        ),
        (&["--agentic-lanes=2"], "--agentic-lanes works with --trace-format"),
        (&["--kv-event-lag-ms=5"], "--router-mode kv_router only"),
        (
            &["--kv-event-lag-ms=5", "--replay-mode=online", KV[0], KV[1]],
            "--replay-mode offline only",
        ),
    ] {
        refused(directory.path(), &[&["t.jsonl"], flags].concat(), 2, part);
    }
    // What they are anyway says nothing.
    let unsaid = [
        "t.jsonl",
        "--turns-per-session=1",
        "--shared-prefix-ratio=-0.0",
        "--num-prefix-groups=0",
        "--inter-turn-delay-ms=0",
    ];
    accepted(directory.path(), &unsaid);
}

#[test]
fn a_policy_file_that_defines_nothing_is_refused_whatever_the_router() {
    let directory = directory();
    let at = directory.path();
    for (name, content, part) in [
        ("empty", "", "it defines nothing; give default_policy_family"),
        ("comment", "# later\n", "it defines nothing"),
        ("null", "null", "it defines nothing"),
        ("models", "models: {}", "it defines nothing"),
        ("model", "models: {m: {}}", "models.m defines nothing"),
        ("list", "[]", "it is an array, expected an object"),
    ] {
        std::fs::write(at.join(name), content).unwrap();
        let flags = [&LOAD[..], &["--router-policy-config", name]].concat();
        refused(at, &flags, 1, part);
        refused(at, &[&flags[..], &KV].concat(), 1, part);
    }
}

#[test]
fn parallelism_without_a_model_of_hardware_counts_gpus() {
    let directory = directory();
    let at = directory.path();
    for (engine, gpus) in [
        (r#"{"aic_tp_size":2,"dp_size":2}"#, 4),
        (r#"{"aic_attention_dp_size":2}"#, 2),
        (r#"{"aic_system":"h200_sxm","aic_gemm_dtype":"fp8"}"#, 1),
        (
            r#"{"engine":{"block_size":64},"tensor_parallel_size":2,"dp_size":2}"#,
            4,
        ),
    ] {
        accepted(at, &[&LOAD[..], &["--extra-engine-args", engine]].concat());
        let report = report(at);
        assert_eq!(report["decode_gpus_per_worker"], gpus, "{engine}");
        let seconds = report["decode_worker_seconds"].as_f64().unwrap();
        let hours = report["gpu_hours"].as_f64().unwrap();
        assert!((hours - seconds * f64::from(gpus) / 3600.0).abs() < 1e-12, "{engine}");
    }
    for (engine, part) in [
        (
            r#"{"aic_backend":"vllm","aic_tp_size":2}"#,
            if cfg!(feature = "aic") {
                "needs measurements: give their directory as --aic-systems-path"
            } else {
                "asks for the AIC performance model, but this build has no AIC support (feature `aic`)"
            },
        ),
        (
            r#"{"aic_attention_dp_size":2,"dp_size":3}"#,
            "must equal dp_size, which is 3",
        ),
        (r#"{"worker_type":"aggregated","is_prefill":false}"#, "give one of them"),
    ] {
        refused(at, &[&LOAD[..], &["--extra-engine-args", engine]].concat(), 1, part);
    }
}

#[test]
fn more_requests_than_memory_holds_are_refused_before_any_is_made() {
    let directory = directory();
    for pace in [
        "--arrival-interval-ms=0",
        "--replay-concurrency=4294967295",
        "--request-rate=1",
    ] {
        let flags = [
            "--input-tokens=100",
            "--output-tokens=4",
            "--request-count=4294967295",
            pace,
        ];
        refused(
            directory.path(),
            &flags,
            1,
            "--request-count is 4294967295: so many requests would take",
        );
    }
}

#[test]
fn a_process_with_little_memory_is_told_that_it_is_little() {
    let directory = directory();
    let command = format!(
        "ulimit -v 1000000; exec '{}' replay --input-tokens=100 --output-tokens=4 --request-count=2000000 \
         --arrival-interval-ms=0 --report-json r.json",
        env!("CARGO_BIN_EXE_ghostfleet")
    );
    let output = Command::new("sh")
        .current_dir(directory.path())
        .args(["-c", &command])
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("and there are 732 MiB"), "{said}");
}

#[test]
fn values_that_nothing_reads_are_told_and_not_looked_at() {
    let directory = directory();
    let closed = ["t.jsonl", "--replay-concurrency=2", "--arrival-speedup-ratio=0"];
    let said = text(&accepted(directory.path(), &closed).stderr);
    assert!(
        said.contains("--arrival-speedup-ratio does nothing with --replay-concurrency"),
        "{said}"
    );
    let synthetic = [&LOAD[..], &["--trace-block-size=0"]].concat();
    let said = text(&accepted(directory.path(), &synthetic).stderr);
    assert!(
        said.contains("--trace-block-size does nothing without a trace"),
        "{said}"
    );
    let loop_of_load = [&LOAD[..3], &["--replay-concurrency=2", "--arrival-speedup-ratio=-1"]].concat();
    accepted(directory.path(), &loop_of_load);
    let dtypes = [&LOAD[..], &["--aic-gemm-dtype=AUTO", "--aic-moe-dtype="]].concat();
    accepted(directory.path(), &dtypes);
}

#[test]
fn numbers_and_names_are_read_as_the_peer_reads_them() {
    let directory = directory();
    let at = directory.path();
    let flags = [
        "--input-t",
        "1_00",
        "--output-t",
        " 4",
        "--request-c",
        "5",
        "--arrival-i",
        "1_0",
    ];
    accepted(at, &flags);
    assert_eq!(report(at)["total_input_tokens"], 500);
    refused(
        at,
        &[&LOAD[..], &["--num-workers", "-1"]].concat(),
        2,
        "expected a whole number from 0 to",
    );
    refused(
        at,
        &[&LOAD[..], &["--num", "2"]].concat(),
        2,
        "unexpected argument '--num'",
    );
    refused(
        at,
        &[&LOAD[..], &["--model-name", ""]].concat(),
        1,
        "--model-name is empty",
    );
    refused(
        at,
        &[&LOAD[..], &KV, &["--router-config", "[]"]].concat(),
        1,
        "router config: it is an array, expected an object",
    );
    let null = ["--router-config", r#"{"shared_cache_multiplier":null}"#];
    accepted(at, &[&LOAD[..], &KV, &null].concat());
    refused(
        at,
        &[&LOAD[..], &KV, &null, &["--semantics=1.4.2"]].concat(),
        1,
        "shared_cache_multiplier is null",
    );
}

#[test]
fn runs_of_one_second_leave_a_report_each() {
    let directory = directory();
    let run = || {
        Command::new(env!("CARGO_BIN_EXE_ghostfleet"))
            .current_dir(directory.path())
            .args(["replay", "t.jsonl"])
            .output()
            .unwrap()
    };
    // Ten runs at once cannot all fall into seconds of their own.
    let outputs: Vec<Output> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..10).map(|_| scope.spawn(run)).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    let mut named: Vec<String> = outputs
        .iter()
        .map(|output| {
            let said = text(&output.stdout);
            let (_, path) = said.split_once("Saved full report to: ").unwrap();
            path.trim_end().to_owned()
        })
        .collect();
    named.sort();
    named.dedup();
    assert_eq!(named.len(), 10, "{named:?}");
    for name in &named {
        let text = std::fs::read(directory.path().join(name)).unwrap();
        let report: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(report["completed_requests"], json!(1), "{name}");
    }
}

#[test]
fn a_variable_that_is_set_to_nothing_says_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let load = "--input-tokens 10 --output-tokens 2 --request-count 1 --replay-concurrency 1";
    let output = Command::new(env!("CARGO_BIN_EXE_ghostfleet"))
        .current_dir(directory.path())
        .envs(
            ["SYSTEMS_PATH", "MODEL_CONFIGS", "DATABASE_MODE", "PLAN"]
                .map(|name| (format!("GHOSTFLEET_AIC_{name}"), "")),
        )
        .env("AICONFIGURATOR_SYSTEMS_PATH", "")
        .args(["replay", "--report-json", "report.json"])
        .args(load.split_whitespace())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
