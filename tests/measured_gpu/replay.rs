//! A replay whose passes take as long as those of measured GPUs.

use std::path::Path;

use ghostfleet::aic::Backend;
use serde_json::Value;
use tempfile::TempDir;

use crate::data::{decode, model, prefill, systems, timing};
use crate::process::{assert_refused, ghostfleet, run};

const LLAMA: &str = "meta-llama/Meta-Llama-3.1-8B";
const FLAT: &str = r#"{"aic_backend": "vllm", "aic_model_path": "meta-llama/Meta-Llama-3.1-8B"}"#;

/// The report of a replay, and its bytes.
fn replay(directory: &Path, flags: &[&str]) -> (Value, Vec<u8>) {
    let mut command = ghostfleet();
    command
        .current_dir(directory)
        .args(["replay", "--report-json", "report.json"]);
    command.arg("--aic-systems-path").arg(systems()).args(flags);
    let ran = run(&mut command);
    assert!(
        ran.status.success(),
        "{flags:?}: {}",
        String::from_utf8_lossy(&ran.stderr)
    );
    let bytes = std::fs::read(directory.join("report.json")).unwrap();
    (serde_json::from_slice(&bytes).unwrap(), bytes)
}

const ONE_AT_A_TIME: [&str; 4] = [
    "--input-tokens=1000",
    "--output-tokens=5",
    "--request-count=3",
    "--replay-concurrency=1",
];

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn requests_one_at_a_time_take_the_sums_of_their_passes() {
    let directory = TempDir::new().unwrap();
    let gpu = timing(&model(LLAMA, "h200_sxm", Backend::Vllm));
    let prompt = prefill(&*gpu, 1, 1000, 0);
    assert!((prompt - 20.750_786).abs() < 6e-7, "{prompt}");
    let steps: f64 = (1001..1005).map(|context| decode(&*gpu, 1, context)).sum();
    let nested = serde_json::json!({"engine": {"timing_model": {"type": "external", "provider": "ais",
        "config": {"model": LLAMA, "backend": "vllm", "system": "h200_sxm"}}}});
    for engine in [FLAT, &nested.to_string()] {
        let (report, _) = replay(
            directory.path(),
            &[&ONE_AT_A_TIME[..], &["--extra-engine-args", engine]].concat(),
        );
        let figure = |name: &str| report[name].as_f64().unwrap();
        assert!((figure("mean_ttft_ms") - prompt).abs() < 1e-4, "{report:#}");
        assert!(
            (figure("mean_e2e_latency_ms") - prompt - steps).abs() < 1e-4,
            "{report:#}"
        );
    }
}

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn the_same_seeds_make_the_same_bytes() {
    let directory = TempDir::new().unwrap();
    let load = [
        "--input-tokens=2000",
        "--output-tokens=50",
        "--request-count=200",
        "--request-rate=20",
        "--num-workers=2",
        "--extra-engine-args",
        FLAT,
    ];
    let (_, first) = replay(directory.path(), &load);
    let (_, second) = replay(directory.path(), &load);
    let figures = |bytes: &[u8]| {
        let mut report: Value = serde_json::from_slice(bytes).unwrap();
        // How long the replay itself took is another time each time.
        let timed = |key: &str| key.contains("wall") || key.starts_with("processed_");
        report.as_object_mut().unwrap().retain(|key, _| !timed(key));
        report
    };
    assert_eq!(figures(&first), figures(&second));
}

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn the_routers_own_model_changes_where_requests_go() {
    let directory = TempDir::new().unwrap();
    let load = [
        "--input-tokens=6000",
        "--output-tokens=20",
        "--request-count=300",
        "--request-rate=9",
        "--num-workers=2",
        "--router-mode=kv_router",
        "--extra-engine-args",
        FLAT,
    ];
    let model = ["--aic-backend=vllm", "--aic-system=h200_sxm", "--aic-model-path", LLAMA];
    let (without, _) = replay(directory.path(), &load);
    let (with, _) = replay(directory.path(), &[&load[..], &model].concat());
    assert_ne!(without["mean_ttft_ms"], with["mean_ttft_ms"]);
    assert_eq!(with["completed_requests"], 300);
    let mut command = ghostfleet();
    command
        .current_dir(directory.path())
        .arg("replay")
        .args(load)
        .args(model);
    command
        .arg("--aic-systems-path")
        .arg(systems())
        .arg("--aic-backend-version=9.9.9");
    assert_refused(&run(&mut command), 1, &["the router's prefill model", "9.9.9"]);
}

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn the_model_says_how_many_blocks_a_cache_has() {
    let directory = TempDir::new().unwrap();
    let blocks = |engine: &str| {
        let (report, _) = replay(
            directory.path(),
            &[&ONE_AT_A_TIME[..], &["--extra-engine-args", engine]].concat(),
        );
        report
    };
    // A GPU whose memory the weights fill has room for no block.
    let full = r#"{"aic_backend": "vllm", "aic_system": "l40s", "aic_model_path": "Qwen/Qwen3-32B"}"#;
    let mut command = ghostfleet();
    command.current_dir(directory.path()).arg("replay").args(ONE_AT_A_TIME);
    command
        .arg("--aic-systems-path")
        .arg(systems())
        .args(["--extra-engine-args", full]);
    assert_refused(
        &run(&mut command),
        1,
        &["--extra-engine-args", "aic_backend", "no KV budget"],
    );
    // Unless their number is given.
    blocks(
        r#"{"aic_backend": "vllm", "aic_system": "l40s", "aic_model_path": "Qwen/Qwen3-32B", "num_gpu_blocks": 500}"#,
    );
}
