//! Whatever the files say, a plan is made or refused: nothing panics, and what is made has numbers an evaluator can read.

use std::fs;
use std::sync::LazyLock;

use ghostfleet::aic::{AicModel, Backend, MemoryQuery, kv_blocks, plan};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::Golden;

static GOLDEN: LazyLock<Golden> = LazyLock::new(Golden::open);

/// A value that has no place where it is put, or a size at a limit.
fn odd() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        Value::Null,
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(3),
        json!(127),
        json!((1_u64 << 24) - 1),
        json!(1_u64 << 24),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(0.5),
        json!(1e308),
        json!(""),
        json!("fp8"),
        json!("nvfp4"),
        json!("dynamic"),
        json!("compressed-tensors"),
        json!([]),
        json!([0]),
        json!([[]]),
        json!({}),
        json!({"group_0": {"weights": {"num_bits": 8, "type": "float"}}}),
        json!({"weights": null}),
    ])
}

/// Puts a value at a place that a number chooses, somewhere below.
fn put(document: &mut Value, mut at: usize, value: Value) {
    let mut place = document;
    loop {
        let list = place.as_array().map_or(0, Vec::len);
        let count = place.as_object().map_or(list, Map::len);
        let index = at % (count + 1);
        if index == count {
            break;
        }
        at /= count + 1;
        place = if place.is_object() {
            place.as_object_mut().unwrap().values_mut().nth(index).unwrap()
        } else {
            &mut place[index]
        };
    }
    *place = value;
}

/// Whether integers fit what reads them and fractions are numbers.
fn is_readable(value: &Value) -> bool {
    match value {
        Value::Number(number) if number.is_f64() => number.as_f64().is_some_and(|n| n.is_finite() && n >= 0.0),
        Value::Number(number) => number.as_u64().is_some_and(|n| u32::try_from(n).is_ok()),
        Value::Array(list) => list.iter().all(is_readable),
        Value::Object(map) => map.values().all(is_readable),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

fn try_everything(model: &AicModel) {
    if let Ok(plan) = plan(model) {
        assert!(is_readable(&plan), "{plan}");
    }
    let query = MemoryQuery {
        fraction: 0.9,
        max_num_batched_tokens: u32::MAX,
        block_size: 1,
    };
    if let Ok(estimate) = kv_blocks(model, &query) {
        assert!(estimate.kv_per_token > 0, "{estimate:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_changed_config_is_planned_or_refused(
        which in any::<prop::sample::Index>(),
        changes in vec((any::<usize>(), odd()), 1..4),
        (tp, moe_tp, moe_ep, dp) in (0..9_u32, prop::option::of(0..9_u32), prop::option::of(0..9_u32), 0..4_u32),
        backend in prop::sample::select(Backend::ALL.to_vec()),
    ) {
        let golden = &*GOLDEN;
        let mut paths: Vec<_> = fs::read_dir(golden.root.join("model_configs")).unwrap().map(|e| e.unwrap().path()).collect();
        paths.sort();
        let path = which.get(&paths);
        let mut config: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        for (at, value) in changes {
            put(&mut config, at, value);
        }
        let directory = tempfile::tempdir().unwrap();
        let model_opt = path.to_str().unwrap().ends_with("_hf_quant_config.json");
        let (name, other) = if model_opt { ("hf_quant_config.json", "config.json") } else { ("config.json", "hf_quant_config.json") };
        fs::write(directory.path().join(name), config.to_string()).unwrap();
        if model_opt {
            fs::copy(golden.root.join("model_configs/tiny_config.json"), directory.path().join(other)).unwrap();
        }
        try_everything(&AicModel {
            model_path: directory.path().to_owned(), backend, tp, moe_tp, moe_ep, attention_dp: dp,
            backend_version: if backend == Backend::Vllm { "0.24.0" } else { "current" }.to_owned(),
            ..golden.plain("tiny")
        });
    }

    #[test]
    fn a_changed_plan_is_taken_or_refused(changes in vec((any::<usize>(), odd()), 1..3)) {
        let golden = &*GOLDEN;
        let text = fs::read_to_string(golden.root.join("plans/deepseek-v3-h200-vllm-tp8.json")).unwrap();
        let mut document: Value = serde_json::from_str(&text).unwrap();
        for (at, value) in changes {
            put(&mut document, at, value);
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plan.json");
        fs::write(&path, document.to_string()).unwrap();
        let model = AicModel { tp: 8, plan: Some(path), ..golden.plain("deepseek-ai/DeepSeek-V3") };
        if let Ok(taken) = plan(&model) {
            prop_assert_eq!(&taken["schema_version"], &json!(27));
        }
    }

    #[test]
    fn a_damaged_systems_directory_is_read_or_refused(
        which in 0..3_usize,
        changes in vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 1..6),
    ) {
        let systems = tempfile::tempdir().unwrap();
        let names = ["h200_sxm.yaml", "query_versions.yaml", "attention_lane_defaults.yaml"];
        for (index, name) in names.iter().enumerate() {
            let mut bytes = fs::read(GOLDEN.systems.path().join(name)).unwrap();
            if index == which {
                damage(&mut bytes, &changes);
            }
            fs::write(systems.path().join(name), bytes).unwrap();
        }
        fs::create_dir_all(systems.path().join("data/h200_sxm/gemm/vllm/0.24.0")).unwrap();
        try_everything(&AicModel { systems_path: systems.path().to_owned(), ..GOLDEN.plain("Qwen/Qwen3-32B") });
    }
}

fn damage(bytes: &mut Vec<u8>, changes: &[(prop::sample::Index, u8, u8)]) {
    for (at, byte, kind) in changes {
        let at = at.index(bytes.len().max(1));
        match kind {
            _ if at >= bytes.len() => bytes.push(*byte),
            0 => bytes[at] = *byte,
            1 => bytes.insert(at, *byte),
            2 => drop(bytes.remove(at)),
            _ => bytes.truncate(at),
        }
    }
}
