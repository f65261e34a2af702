//! `predict` on measured GPUs.

use serde_json::Value;
use tempfile::TempDir;

use ghostfleet::aic::{AicModel, Backend};

use crate::data::{decode, model, prefill, systems, timing};
use crate::process::{assert_refused, ghostfleet, run};

const DOCUMENT: &str = "
engine:
  model: Qwen/Qwen3-32B
  hardware: h200_sxm
  workers: {aggregated: {parallelism: {tensor: 4, replicas: 2}}}
traffic:
  source: {type: synthetic, input_tokens: 1000, output_tokens: 5}
  load: {type: concurrency, concurrency: 1}
  stop: {requests: 3}
";

/// Runs `predict` on the document with values replaced.
fn predict(directory: &TempDir, sets: &[&str]) -> std::process::Output {
    of_document("predict", directory, sets)
}

fn of_document(what: &str, directory: &TempDir, sets: &[&str]) -> std::process::Output {
    std::fs::write(directory.path().join("p.yaml"), DOCUMENT).unwrap();
    let mut command = ghostfleet();
    command
        .current_dir(directory.path())
        .env("GHOSTFLEET_AIC_SYSTEMS_PATH", systems());
    command.args([
        what,
        "--config",
        "p.yaml",
        "--output-dir",
        "out",
        "--overwrite",
        "--stack",
        "dynamo",
    ]);
    for set in sets {
        command.args(["--set", set]);
    }
    run(&mut command)
}

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn the_default_timing_is_that_of_the_documents_model_on_its_hardware() {
    let directory = TempDir::new().unwrap();
    let ran = predict(&directory, &[]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let text = std::fs::read_to_string(directory.path().join("out/prediction.json")).unwrap();
    let gpu = timing(&AicModel {
        tp: 4,
        ..model("Qwen/Qwen3-32B", "h200_sxm", Backend::Vllm)
    });
    let prompt = prefill(&*gpu, 1, 1000, 0);
    let steps: f64 = (1001..1005).map(|context| decode(&*gpu, 1, context)).sum();
    let report: Value = serde_json::from_str(&text).unwrap();
    let figure = |name: &str| find(&report, name).unwrap_or_else(|| panic!("{name} in {report:#}"));
    assert!((figure("mean_ttft_ms") - prompt).abs() < 1e-4, "{report:#}");
    assert!(
        (figure("mean_e2e_latency_ms") - prompt - steps).abs() < 1e-4,
        "{report:#}"
    );
    let router = "router={policy: kv_router, prefill_load_model: {type: ais}}";
    let ran = predict(&directory, &[router]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// A number by its name, wherever it stands.
fn find(value: &Value, name: &str) -> Option<f64> {
    let members = value.as_object()?;
    let here = members.get(name).and_then(Value::as_f64);
    here.or_else(|| members.values().find_map(|member| find(member, name)))
}

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn what_is_not_known_is_refused_in_the_words_of_the_document() {
    let directory = TempDir::new().unwrap();
    let at = "engine.workers.aggregated";
    for (set, words) in [
        (
            "engine.hardware=nope",
            [&format!("{at}.timing"), "nope", "engine.hardware"],
        ),
        (
            "engine.model=no/model",
            [&format!("{at}.timing"), "no/model", "model_configs"],
        ),
        (
            "engine.backend_version=9.9.9",
            [&format!("{at}.timing"), "9.9.9", "vllm"],
        ),
        (
            "engine.workers.aggregated.parallelism.pipeline=2",
            [&format!("{at}.parallelism.pipeline"), "without pipelines", "use 1"],
        ),
    ] {
        assert_refused(&predict(&directory, &[set]), 2, &words);
    }
    let share = [
        "optimization={target: throughput}",
        "traffic.load={type: kv_capacity_fraction, fraction: 0.5}",
    ];
    let words = ["traffic.load", "kv_cache.capacity", "type fixed"];
    assert_refused(&of_document("recommend", &directory, &share), 2, &words);
}
