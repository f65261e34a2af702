//! A fleet whose passes take as long as those of measured GPUs.

use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::data::{decode, model, prefill, systems, timing};
use crate::process::{Running, serve};
use ghostfleet::aic::Backend;

/// Everything below a directory, as text.
fn all_below(directory: &std::path::Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text.push_str(&all_below(&path));
        } else {
            text.push_str(&String::from_utf8_lossy(&std::fs::read(path).unwrap()));
        }
    }
    text
}

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn groups_of_a_fleet_are_on_gpus_of_their_own() {
    let store = TempDir::new().unwrap();
    let file = store.path().join("fleet.toml");
    let text = format!(
        "aic_systems_path = {:?}\naic_model_path = \"meta-llama/Meta-Llama-3.1-8B\"\n\
         [[group]]\nname = \"new\"\nendpoint = \"dyn://one.backend.generate\"\naic_perf_model = true\n\
         aic_system = \"b200_sxm\"\n\
         [[group]]\nname = \"half\"\nendpoint = \"dyn://two.backend.generate\"\naic_perf_model = true\n\
         gpu_memory_utilization = 0.5\n\
         [[group]]\nname = \"plain\"\nendpoint = \"dyn://three.backend.generate\"\n",
        systems()
    );
    std::fs::write(&file, text).unwrap();
    let running = Running::start(&mut serve(&store, &["--config", file.to_str().unwrap()]));
    let screen = running.said.clone();
    running.signal("-TERM");
    assert_eq!(running.end().1, Some(0));
    for words in [
        "[new], 1 rank(s), 18",
        "[half], 1 rank(s), 6573 blocks",
        "[plain], 1 rank(s), 16384 blocks",
    ] {
        assert!(screen.contains(words), "{words:?} is missing in {screen}");
    }
    assert!(
        screen.contains("[new] meta-llama/Meta-Llama-3.1-8B on b200_sxm"),
        "{screen}"
    );
    assert!(!screen.contains("[plain] meta-llama"), "{screen}");
}

/// How long a worker takes for one answer of 8 tokens to 8000.
fn answered_after(flags: &[&str]) -> (Duration, String, String) {
    let store = TempDir::new().unwrap();
    let mut running = Running::start(&mut serve(&store, &[&["--http-port", "0"], flags].concat()));
    let records = all_below(store.path());
    let url = format!("http://{}/v1/completions", running.http_address());
    let prompt: Vec<u32> = (0..8000).map(|token| 100 + token % 1000).collect();
    let request = serde_json::json!({"model": "tiny", "prompt": prompt, "max_tokens": 8, "ignore_eos": true});
    let begin = Instant::now();
    let mut answer = ureq::post(&url).send_json(&request).unwrap();
    let answer: serde_json::Value = answer.body_mut().read_json().unwrap();
    let took = begin.elapsed();
    assert_eq!(answer["usage"]["completion_tokens"], 8, "{answer}");
    let screen = running.said.clone();
    running.signal("-TERM");
    assert_eq!(running.end().1, Some(0));
    (took, screen, records)
}

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn an_answer_takes_the_measured_prefill_and_steps_and_the_card_tells_the_capacity() {
    let systems = systems();
    let measured = [
        "--aic-perf-model",
        "--aic-model-path",
        "Qwen/Qwen3-32B",
        "--aic-systems-path",
        systems.to_str().unwrap(),
    ];
    let (took, screen, records) = answered_after(&measured);
    let gpu = timing(&model("Qwen/Qwen3-32B", "h200_sxm", Backend::Vllm));
    let steps: f64 = (8001..8008).map(|context| decode(&*gpu, 1, context)).sum();
    let passes = Duration::from_secs_f64((prefill(&*gpu, 1, 8000, 0) + steps) / 1e3);
    assert!(took >= passes, "{took:?} for passes of {passes:?}");
    assert!(screen.contains("3904 blocks of 64 tokens"), "{screen}");
    assert!(
        screen.contains("Qwen/Qwen3-32B on h200_sxm with vllm current, TP 1 (silicon)"),
        "{screen}"
    );
    assert!(records.contains("\"total_kv_blocks\":3904"), "{records}");
    // Ten times the speed, and a number of blocks that is given.
    let ten = [
        &measured[..],
        &["--speedup-ratio", "10", "--num-gpu-blocks-override", "1000"],
    ]
    .concat();
    let (sooner, screen, records) = answered_after(&ten);
    assert!(
        sooner >= passes / 10 && sooner < passes,
        "{sooner:?} for passes of {passes:?} at ten times the speed"
    );
    assert!(screen.contains("1000 blocks of 64 tokens"), "{screen}");
    assert!(records.contains("\"total_kv_blocks\":1000"), "{records}");
}
