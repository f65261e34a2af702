//! `replay --replay-mode online`: live workers in this process, the same report.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const ENGINE: &str =
    r#"{"engine": {"block_size": 64, "timing_model": {"type": "fixed", "prefill_ms": 4, "decode_ms": 2}}}"#;

fn replay(directory: &Path, flags: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_ghostfleet"))
        .current_dir(directory)
        .env("RUST_LOG", "error")
        .args(["replay", "--report-json", "report.json", "--extra-engine-args", ENGINE])
        .args(flags)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&std::fs::read_to_string(directory.join("report.json")).unwrap()).unwrap()
}

const LOAD: [&str; 12] = [
    "--input-tokens",
    "256",
    "--output-tokens",
    "8",
    "--request-count",
    "24",
    "--replay-concurrency",
    "4",
    "--shared-prefix-ratio",
    "0.5",
    "--num-prefix-groups",
    "1",
];

#[test]
fn a_load_has_the_same_counts_live_and_in_virtual_time_and_takes_as_long_as_the_model_says_at_least() {
    let directory = tempfile::tempdir().unwrap();
    let fleet = [&LOAD[..], &["--num-workers", "2", "--request-records", "records.jsonl"]].concat();
    let offline = replay(directory.path(), &fleet);
    let online = replay(directory.path(), &[&fleet[..], &["--replay-mode", "online"]].concat());
    for key in [
        "num_requests",
        "completed_requests",
        "total_input_tokens",
        "total_output_tokens",
    ] {
        assert_eq!(online[key], offline[key], "{key}");
    }
    let mean = |report: &Value, key: &str| report[key].as_f64().unwrap();
    for key in ["min_ttft_ms", "mean_itl_ms", "mean_e2e_latency_ms"] {
        let (live, model) = (mean(&online, key), mean(&offline, key));
        assert!(live > model * 0.98 - 0.1, "{key}: {live} live, {model} by the model");
    }
    assert!(mean(&online, "prefix_cache_reused_ratio") > 0.2);
    let records = std::fs::read_to_string(directory.path().join("records.jsonl")).unwrap();
    let records: Vec<Value> = records
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let on = |worker: u64| {
        records
            .iter()
            .filter(|record| record["logical_worker_id"] == worker)
            .count()
    };
    assert_eq!((on(0), on(1)), (12, 12), "round robin");
    assert!(records.iter().all(|record| record["output_length"] == 8));
}

#[test]
fn the_kv_router_model_routes_live_workers_too() {
    let directory = tempfile::tempdir().unwrap();
    let fleet = [
        "--num-workers",
        "3",
        "--router-mode",
        "kv_router",
        "--replay-mode",
        "online",
    ];
    let online = replay(directory.path(), &[&LOAD[..], &fleet].concat());
    assert_eq!(online["completed_requests"], 24);
    assert!(online["prefix_cache_reused_ratio"].as_f64().unwrap() > 0.2);
}

#[test]
fn both_halves_of_a_disaggregated_request_meet_in_real_time() {
    let directory = tempfile::tempdir().unwrap();
    let side = |role: &str| {
        format!(
            r#"{{"engine": {{"block_size": 64, "worker_type": "{role}", "kv_transfer_bytes_per_token": 100000, "kv_transfer_bandwidth": 8.0, "timing_model": {{"type": "fixed", "prefill_ms": 4, "decode_ms": 2}}}}}}"#
        )
    };
    let (prefill, decode) = (side("prefill"), side("decode"));
    let run = |mode: &str| -> (Value, Vec<Value>) {
        let output = Command::new(env!("CARGO_BIN_EXE_ghostfleet"))
            .current_dir(directory.path())
            .env("RUST_LOG", "error")
            .args([
                "replay",
                "--report-json",
                "report.json",
                "--request-records",
                "records.jsonl",
            ])
            .args(["--prefill-engine-args", &prefill, "--decode-engine-args", &decode])
            .args([
                "--num-prefill-workers",
                "2",
                "--num-decode-workers",
                "2",
                "--router-mode",
                "kv_router",
            ])
            .args(["--replay-mode", mode])
            .args(LOAD)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        let records = read("records.jsonl");
        let records = records.lines().map(|line| serde_json::from_str(line).unwrap());
        (serde_json::from_str(&read("report.json")).unwrap(), records.collect())
    };
    let (offline, _) = run("offline");
    let (online, records) = run("online");
    for key in ["completed_requests", "total_input_tokens", "total_output_tokens"] {
        assert_eq!(online[key], offline[key], "{key}");
    }
    for key in ["min_ttft_ms", "mean_e2e_latency_ms"] {
        let (live, model) = (online[key].as_f64().unwrap(), offline[key].as_f64().unwrap());
        assert!(live > model * 0.98 - 0.1, "{key}: {live} live, {model} by the model");
    }
    assert!(online["prefill_worker_seconds"].as_f64().unwrap() > 0.0);
    assert!(online["prefix_cache_reused_ratio"].as_f64().unwrap() > 0.2);
    for record in &records {
        let routes = record["routing_history"].as_array().unwrap();
        let pools: Vec<_> = routes.iter().map(|route| route["pool"].as_str().unwrap()).collect();
        assert_eq!(pools, ["prefill", "decode"]);
        let at = |key: &str| record[key].as_f64().unwrap_or_else(|| panic!("{key} of {record}"));
        assert!(at("prefill_admit_ms") <= at("decode_admit_ms"));
        assert_eq!(record["output_length"], 8);
    }
}

/// The second worker is asked for a prompt that the first one computes at that moment: it waits until that is in the host
/// memory which they share, and reads it from there.
#[test]
fn a_live_worker_waits_for_what_another_one_is_writing_to_shared_memory() {
    const HOST: &str = r#"{"engine": {"block_size": 64, "timing_model": {"type": "fixed", "prefill_ms": 40, "decode_ms": 2},
        "kv_cache_bytes_per_token": 100000, "native_host_offload": {"num_host_blocks": 64, "scope": "cluster_shared",
        "kv_layout_id": "tiny", "d2h_bandwidth_gbps": 1.0, "h2d_bandwidth_gbps": 1.0}}}"#;
    let directory = tempfile::tempdir().unwrap();
    let row = |at: u32| format!(r#"{{"timestamp": {at}, "input_length": 512, "output_length": 4, "hash_ids": [7]}}"#);
    std::fs::write(
        directory.path().join("trace.jsonl"),
        format!("{}\n{}\n", row(0), row(5)),
    )
    .unwrap();
    let run = |mode: &str| -> Vec<Value> {
        let output = Command::new(env!("CARGO_BIN_EXE_ghostfleet"))
            .current_dir(directory.path())
            .env("RUST_LOG", "error")
            .args([
                "replay",
                "trace.jsonl",
                "--request-records",
                "records.jsonl",
                "--num-workers",
                "2",
            ])
            .args(["--extra-engine-args", HOST, "--replay-mode", mode])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let records = std::fs::read_to_string(directory.path().join("records.jsonl")).unwrap();
        let records = records.lines().map(|line| serde_json::from_str(line).unwrap());
        let mut records: Vec<Value> = records.collect();
        records.sort_by_key(|record| record["logical_worker_id"].as_u64());
        records
    };
    let (offline, online) = (run("offline"), run("online"));
    for records in [&offline, &online] {
        let reused: Vec<u64> = records
            .iter()
            .map(|record| record["reused_input_tokens"].as_u64().unwrap())
            .collect();
        assert_eq!(reused, [0, 448], "the last block is computed for its first token");
    }
    // Computed, written and read back: 40 + 51.2 + 51.2 ms.
    let (model, live) = (&offline[1]["first_admit_ms"], &online[1]["first_admit_ms"]);
    assert!((model.as_f64().unwrap() - 142.4).abs() < 1e-6, "{model}");
    assert!(live.as_f64().unwrap() >= 141.4, "{live}");
}
