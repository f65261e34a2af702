//! What keeps a fleet on measured GPUs from starting: one line that names it, and nothing is registered.

use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use crate::data::systems;
use crate::process::{assert_refused, run, serve};

fn refused(flags: &[&str], words: &[&str]) {
    let store = TempDir::new().unwrap();
    let output = run(&mut serve(&store, flags));
    assert_refused(
        &output,
        output.status.code().filter(|code| *code != 0).unwrap_or(-1),
        words,
    );
    let said = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{said}");
    let last = said.trim_end().lines().next_back().unwrap();
    assert_eq!(last, errors[0], "one line, and nothing after it");
    assert_eq!(
        std::fs::read_dir(store.path()).unwrap().count(),
        0,
        "nothing is registered"
    );
}

fn at<'a>(systems: &'a Path, flags: &[&'a str]) -> Vec<&'a str> {
    let on = ["--aic-perf-model", "--aic-systems-path", systems.to_str().unwrap()];
    [&on[..], flags].concat()
}

const QWEN: [&str; 2] = ["--aic-model-path", "Qwen/Qwen3-32B"];

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn what_there_are_no_measurements_of_is_refused_by_name() {
    let systems = systems();
    for (flags, words) in [
        (&["--aic-system", "nope"][..], &["nope", "h200_sxm"][..]),
        (&["--aic-backend-version", "9.9.9"], &["9.9.9", "vllm", "h200_sxm"]),
        (
            &["--ais-backend", "llama"],
            &["--aic-backend llama", "vllm, sglang or trtllm"],
        ),
        (
            &["--aic-gemm-dtype", "fp3"],
            &["unsupported AIC gemm quant mode", "fp3", "fp8"],
        ),
        (
            &["--aic-database-mode", "gold"],
            &["--aic-database-mode gold", "silicon"],
        ),
        (&["--aic-system", "l40s"], &["no KV budget", "48305799168"]),
        (&["--planner-profile-data", "p.npz"], &["choose one timing provider"]),
        (
            &["--timing-model", r#"{"type": "polynomial"}"#],
            &["--timing-model", "choose one timing provider"],
        ),
        (&["--gpu-memory-utilization", "0.05"], &["no KV budget"]),
    ] {
        refused(&[&at(&systems, &QWEN)[..], flags].concat(), words);
    }
    let experts = at(&systems, &["--aic-model-path", "Qwen/Qwen3-30B-A3B"]);
    refused(&experts, &["moe_tp_size", "moe_ep_size"]);
    refused(
        &at(&systems, &["--aic-model-path", "no/such-model"]),
        &["no/such-model", "model_configs"],
    );
    let whole = r#"{"model": "Qwen/Qwen3-32B", "tp": 2}"#;
    let systems = systems.to_str().unwrap();
    refused(
        &[
            "--ais-perf-config",
            whole,
            "--aic-systems-path",
            systems,
            "--ais-system",
            "l40s",
        ],
        &["--aic-system l40s", "cannot be combined with --ais-perf-config"],
    );
    refused(
        &["--ais-perf-config", r#"{"cp_size": 2}"#, "--aic-systems-path", systems],
        &["--ais-perf-config", "cp_size must be 1"],
    );
}

/// A copy of the measurements of vLLM on H200 that a dense model needs.
fn few(into: &Path) {
    let from = systems();
    let versions = std::fs::read_to_string(from.join("query_versions.yaml")).unwrap();
    std::fs::write(into.join("query_versions.yaml"), versions).unwrap();
    std::fs::copy(from.join("h200_sxm.yaml"), into.join("h200_sxm.yaml")).unwrap();
    for part in [
        "gemm/vllm/0.24.0",
        "attention/vllm/0.24.0",
        "comm/vllm/0.24.0",
        "comm/nccl/2.26.2",
    ] {
        let (from, into) = (
            from.join("data/h200_sxm").join(part),
            into.join("data/h200_sxm").join(part),
        );
        std::fs::create_dir_all(&into).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, into.join(path.file_name().unwrap())).unwrap();
        }
    }
}

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn measurements_that_lack_a_table_are_refused_at_the_start_and_not_at_the_first_request() {
    let directory = TempDir::new().unwrap();
    let root = directory.path().join("systems");
    std::fs::create_dir(&root).unwrap();
    few(&root);
    let configs = systems().join("../model_configs");
    let flags = [
        "--aic-model-path",
        "Qwen/Qwen3-32B",
        "--aic-model-configs",
        configs.to_str().unwrap(),
    ];
    let flags = at(&root, &flags);
    let gemm = root.join("data/h200_sxm/gemm/vllm/0.24.0/gemm_perf.parquet");
    std::fs::write(
        &gemm,
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    )
    .unwrap();
    let always = [root.to_str().unwrap(), "h200_sxm", "vllm", "0.24.0", "Qwen/Qwen3-32B"];
    refused(&flags, &[&always[..], &["git-lfs pointer"]].concat());
    std::fs::write(&gemm, "no parquet").unwrap();
    refused(&flags, &always);
    std::fs::remove_file(&gemm).unwrap();
    refused(&flags, &[&always[..], &["no GEMM rows loaded"]].concat());
}

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn a_shape_that_was_not_measured_is_refused_unless_it_may_be_estimated() {
    let directory = TempDir::new().unwrap();
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1536, "num_hidden_layers": 2, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 96, "intermediate_size": 4096, "vocab_size": 2000, "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
    });
    std::fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    let systems = systems();
    let flags = at(&systems, &["--aic-model-path", directory.path().to_str().unwrap()]);
    refused(
        &flags,
        &["head_size: 96", "h200_sxm", directory.path().to_str().unwrap()],
    );
    let store = TempDir::new().unwrap();
    let estimated = [&flags[..], &["--aic-database-mode", "hybrid"]].concat();
    let running = crate::process::Running::start(&mut serve(&store, &estimated));
    running.signal("-TERM");
    assert_eq!(running.end().1, Some(0));
}
