//! `scripts/aiperf`: what a person or a drill gets from it.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn script(arguments: &[&str]) -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/aiperf"));
    command
        .args(["--binary", env!("CARGO_BIN_EXE_ghostfleet")])
        .args(arguments);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
#[ignore = "needs AIPerf and a Dynamo frontend"]
fn aiperf_offline_measures_a_frontend_and_shows_what_its_fleet_did() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result.json");
    let load = [
        "--concurrency",
        "4",
        "--request-count",
        "24",
        "--isl",
        "64",
        "--osl",
        "8",
    ];
    let mut command = script(&["--workers", "2", "--json", file.to_str().unwrap(), "--"]);
    let output = command.args(load).output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("Time to First Token") && said.contains("The fleet meanwhile"),
        "{said}"
    );
    let result: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(result["aiperf_version"], "0.13.0");
    assert_eq!(
        (
            result["requests"]["completed"].as_u64(),
            result["requests"]["errors"].as_u64()
        ),
        (Some(24), Some(0))
    );
    for span in ["ttft_ms", "itl_ms", "e2e_ms"] {
        let [p50, p99] = ["p50", "p99"].map(|name| result[span][name].as_f64().unwrap());
        assert!(p50 > 0.0 && p50 <= p99, "{span}: {result}");
    }
    let fleet = &result["fleet"];
    assert_eq!(fleet["workers"]["ready"], 2, "{fleet}");
    assert!(fleet["requests"].as_u64().unwrap() >= 24, "{fleet}");
    assert!(fleet["tokens"].as_u64().unwrap() >= 24 * 8, "{fleet}");
    assert!(fleet["samples"].as_u64().unwrap() > 0, "{fleet}");
}

#[test]
fn a_missing_environment_is_told_with_the_way_out() {
    let output = script(&["--url", "http://127.0.0.1:1"])
        .env("GHOSTFLEET_AIPERF", "/nowhere/bin/python")
        .output()
        .unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("/nowhere/bin/python is not there") && said.contains("scripts/setup --with aiperf"),
        "{said}"
    );
}
