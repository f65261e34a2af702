//! Plans and KV capacities of the measured-GPU model are those that the original makes. See `golden/aic/README.md`.

#![allow(clippy::unwrap_used)]

mod hostile;
mod ready_plan;
mod refusals;

use std::fs;
use std::path::{Path, PathBuf};

use ghostfleet::aic::{self, AicModel, Backend, DatabaseMode, Dtypes, MemoryQuery};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Recorded cases with the files they are about.
struct Golden {
    root: PathBuf,
    /// The systems directory, with the directories that data would be in.
    systems: TempDir,
}

impl Golden {
    fn open() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/aic");
        let systems = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(root.join("systems")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|kind| kind == "yaml") {
                fs::copy(&path, systems.path().join(path.file_name().unwrap())).unwrap();
            }
        }
        for directory in fs::read_to_string(root.join("systems/data_directories.txt"))
            .unwrap()
            .lines()
        {
            fs::create_dir_all(systems.path().join("data").join(directory)).unwrap();
        }
        Self { root, systems }
    }

    /// A deployment of a model on `h200_sxm` with vLLM.
    fn plain(&self, model: &str) -> AicModel {
        self.model(&json!({"model": model, "system": "h200_sxm", "backend": "vllm"}))
    }

    /// Names and contents, sorted.
    fn cases(&self) -> Vec<(String, Value)> {
        let mut cases: Vec<(String, Value)> = fs::read_dir(self.root.join("cases"))
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
                (name, serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap())
            })
            .collect();
        cases.sort_by(|a, b| a.0.cmp(&b.0));
        cases
    }

    fn model(&self, args: &Value) -> AicModel {
        let text = |key: &str| args[key].as_str().map(str::to_owned);
        let number = |key: &str| args[key].as_u64().map(|number| u32::try_from(number).unwrap());
        let backend = text("backend").unwrap();
        let mode = text("mode").unwrap_or_else(|| "SILICON".to_owned()).to_lowercase();
        AicModel {
            model_path: text("model").unwrap().into(),
            system: text("system").unwrap(),
            backend: *Backend::ALL.iter().find(|known| known.name() == backend).unwrap(),
            backend_version: text("version").unwrap_or_else(|| "current".to_owned()),
            tp: number("tp").unwrap_or(1),
            moe_tp: number("moe_tp"),
            moe_ep: number("moe_ep"),
            attention_dp: number("dp").unwrap_or(1),
            nextn: number("nextn").unwrap_or(0),
            dtypes: Dtypes {
                gemm: text("gemm"),
                moe: text("moe"),
                fmha: text("fmha"),
                kv_cache: text("kv_cache"),
                comm: text("comm"),
            },
            database_mode: *DatabaseMode::ALL.iter().find(|known| known.name() == mode).unwrap(),
            systems_path: self.systems.path().to_owned(),
            model_configs: Some(self.root.join("model_configs")),
            plan: None,
        }
    }
}

/// A plan without what is left to the evaluator here: in which order kernels of attention stand in for one that was not
/// measured, after the one that the engine takes.
fn without_stand_ins(mut plan: Value) -> Value {
    strip(&mut plan);
    plan
}

fn strip(value: &mut Value) {
    if let Some(fields) = value.as_object_mut() {
        fields.remove("lane_order");
        fields.values_mut().for_each(strip);
    }
    if let Some(list) = value.as_array_mut() {
        list.iter_mut().for_each(strip);
    }
}

/// Where two values differ first, with what is there.
fn difference(path: &str, made: &Value, recorded: &Value) -> Option<String> {
    match (made, recorded) {
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => a
            .iter()
            .find_map(|(key, value)| difference(&format!("{path}.{key}"), value, &b[key])),
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let mut pairs = a.iter().zip(b).enumerate();
            pairs.find_map(|(at, (a, b))| difference(&format!("{path}[{at}]"), a, b))
        }
        // The reader of JSON takes the last digit of a fraction for its neighbour now and then.
        (Value::Number(a), Value::Number(b)) if a.is_f64() && b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            ((a - b).abs() > 2.0 * f64::EPSILON * b.abs()).then(|| format!("{path}: made {a}, recorded {b}"))
        }
        _ if made == recorded => None,
        _ => Some(format!("{path}: made {made}, recorded {recorded}")),
    }
}

#[test]
fn every_recorded_plan_is_made_again() {
    let golden = Golden::open();
    let cases = golden.cases();
    assert!(cases.len() >= 20, "{}", cases.len());
    for (name, case) in cases {
        let made = aic::plan(&golden.model(&case["args"]));
        if case["plan"].is_null() {
            assert!(made.is_err(), "{name}: {} is refused by the original", case["refused"]);
            continue;
        }
        let made = made.unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut recorded = case["plan"].clone();
        recorded["schema_version"] = json!(27);
        let difference = difference(&name, &without_stand_ins(made), &without_stand_ins(recorded));
        assert_eq!(difference, None);
    }
}

#[test]
fn every_recorded_capacity_is_found_again() {
    let golden = Golden::open();
    let mut found = 0;
    for (name, case) in golden.cases() {
        let model = golden.model(&case["args"]);
        for kv in case["kv"].as_array().unwrap() {
            let number = |key: &str| u32::try_from(kv[key].as_u64().unwrap()).unwrap();
            let query = MemoryQuery {
                fraction: kv["fraction"].as_f64().unwrap(),
                max_num_batched_tokens: number("max_num_batched_tokens"),
                block_size: number("block_size"),
            };
            let estimate = aic::kv_blocks(&model, &query);
            if kv["blocks"].is_null() {
                assert!(
                    estimate.is_err(),
                    "{name}: {} is refused by the original",
                    kv["refused"]
                );
                continue;
            }
            let estimate = estimate.unwrap_or_else(|error| panic!("{name}: {error}"));
            let parts = json!({
                "blocks": estimate.blocks, "tokens": estimate.tokens, "weights": estimate.weights,
                "activations": estimate.activations, "comm": estimate.comm, "other": estimate.other,
                "kv_per_token": estimate.kv_per_token, "capacity": estimate.capacity,
            });
            for (part, value) in parts.as_object().unwrap() {
                assert_eq!(*value, kv[part], "{name}: {part} with {kv}");
            }
            found += 1;
        }
    }
    assert!(found >= 50, "{found}");
}

#[test]
fn the_kernel_that_an_engine_takes_on_a_gpu_is_looked_for_first() {
    let golden = Golden::open();
    for (system, backend, first) in [
        ("h200_sxm", "sglang", "fa3"),
        ("b200_sxm", "sglang", "triton"),
        ("h200_sxm", "vllm", "default"),
        ("h200_sxm", "trtllm", "default"),
        ("a100_sxm", "vllm", "default"),
    ] {
        let args = json!({"model": "Qwen/Qwen3-32B", "system": system, "backend": backend});
        let plan = aic::plan(&golden.model(&args)).unwrap();
        for (list, kind) in [
            ("context_ops", "ContextAttention"),
            ("generation_ops", "GenerationAttention"),
        ] {
            let operations = plan[list].as_array().unwrap();
            let attention = operations.iter().find_map(|operation| operation.get(kind)).unwrap();
            let lanes = attention["lane_order"].as_array().unwrap();
            assert_eq!(lanes[0], first, "{system} {backend}");
            assert_eq!(lanes.last().unwrap(), "default");
        }
    }
}
