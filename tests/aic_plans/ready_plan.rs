//! A plan made elsewhere is taken as it is, in the evaluator's form, when it is a plan of the same deployment.

use std::fs;

use ghostfleet::aic::{AicModel, DatabaseMode, plan};
use serde_json::{Value, json};

use super::Golden;

const DEEPSEEK: &str = "plans/deepseek-v3-h200-vllm-tp8.json";

fn recorded(golden: &Golden) -> Value {
    serde_json::from_str(&fs::read_to_string(golden.root.join(DEEPSEEK)).unwrap()).unwrap()
}

fn deployed(golden: &Golden) -> AicModel {
    AicModel {
        tp: 8,
        moe_ep: Some(8),
        plan: Some(golden.root.join(DEEPSEEK)),
        ..golden.plain("deepseek-ai/DeepSeek-V3")
    }
}

/// What is said of a plan with changes.
fn changed(golden: &Golden, change: impl FnOnce(&mut Value)) -> Result<Value, String> {
    let mut changed = recorded(golden);
    change(&mut changed);
    written(golden, &changed.to_string())
}

fn written(golden: &Golden, text: &str) -> Result<Value, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("plan.json");
    fs::write(&path, text).unwrap();
    let model = AicModel {
        plan: Some(path),
        ..deployed(golden)
    };
    plan(&model).map_err(|error| error.to_string())
}

#[test]
fn a_plan_of_the_original_is_taken_as_it_is() {
    let golden = Golden::open();
    let mut expected = recorded(&golden);
    expected["schema_version"] = json!(27);
    assert_eq!(plan(&deployed(&golden)).unwrap(), expected);
    for version in ["0.24.0", "previous"] {
        let model = AicModel {
            backend_version: version.to_owned(),
            ..deployed(&golden)
        };
        assert_eq!(plan(&model).unwrap(), expected, "{version}");
    }
}

#[test]
fn the_directory_and_the_mode_of_this_run_are_the_ones_that_count() {
    let golden = Golden::open();
    let made = changed(&golden, |plan| plan["engine"]["systems_path"] = json!("/elsewhere")).unwrap();
    assert_eq!(made["engine"]["systems_path"], Value::Null);
    let model = AicModel {
        database_mode: DatabaseMode::Sol,
        ..deployed(&golden)
    };
    let engine = plan(&model).unwrap()["engine"].clone();
    assert_eq!(engine["database_mode"], "SOL");
    assert_eq!(engine.get("enable_shared_layer"), None);
}

#[test]
fn a_plan_of_another_deployment_names_the_flag() {
    let golden = Golden::open();
    let own = || deployed(&golden);
    let gemm = ghostfleet::aic::Dtypes {
        gemm: Some("fp8".to_owned()),
        ..own().dtypes
    };
    let others = [
        (
            AicModel {
                system: "b200_sxm".to_owned(),
                ..own()
            },
            "--aic-system h200_sxm",
        ),
        (
            AicModel {
                backend: ghostfleet::aic::Backend::Sglang,
                ..own()
            },
            "--aic-backend vllm",
        ),
        (
            AicModel {
                backend_version: "0.27.0".to_owned(),
                ..own()
            },
            "--aic-backend-version 0.24.0",
        ),
        (AicModel { tp: 1, ..own() }, "--aic-tp-size 8"),
        (
            AicModel {
                attention_dp: 2,
                ..own()
            },
            "--aic-attention-dp-size 1",
        ),
        (
            AicModel {
                moe_tp: Some(8),
                ..own()
            },
            "--aic-moe-tp-size 1",
        ),
        (
            AicModel {
                moe_ep: Some(1),
                ..own()
            },
            "--aic-moe-ep-size 8",
        ),
        (AicModel { nextn: 1, ..own() }, "--aic-nextn"),
        (
            AicModel { dtypes: gemm, ..own() },
            "--aic-gemm-dtype does not change a ready plan",
        ),
    ];
    for (model, words) in others {
        let error = plan(&model).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains(DEEPSEEK), "{error}");
    }
}

#[test]
fn what_is_no_plan_is_refused() {
    let golden = Golden::open();
    let refused = |words: &str, change: fn(&mut Value)| {
        let error = changed(&golden, change).unwrap_err();
        assert!(error.contains(words) && error.contains("plan.json"), "{error}");
    };
    refused("schema_version 14 cannot be read", |plan| {
        plan["schema_version"] = json!(14);
    });
    refused("schema_version 28 cannot be read", |plan| {
        plan["schema_version"] = json!(28);
    });
    refused("schema_version is missing", |plan| plan["schema_version"] = json!("15"));
    refused("engine is missing", |plan| plan["engine"] = json!([]));
    refused("engine.backend is missing", |plan| {
        plan["engine"]["backend"] = Value::Null;
    });
    refused("engine.tp_size is no whole number", |plan| {
        plan["engine"]["tp_size"] = json!(-8);
    });
    refused("context_ops is missing", |plan| plan["context_ops"] = Value::Null);
    refused("generation_ops is empty", |plan| plan["generation_ops"] = json!([]));
    refused("generation_ops[1] is no object with one operation", |plan| {
        plan["generation_ops"][1] = json!({"Gemm": {}, "Moe": {}});
    });
    refused("context_ops[0] is no object", |plan| {
        plan["context_ops"][0] = json!({"Gemm": 1});
    });
    for (text, words) in [
        ("[]", "expected a map"),
        ("{", "EOF"),
        ("", "EOF"),
        (&"[".repeat(100_000), "expected a map"),
        (&" ".repeat((16 << 20) + 1), "larger than 16777216 bytes"),
    ] {
        let error = written(&golden, text).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    let model = AicModel {
        plan: Some("/nowhere/plan.json".into()),
        ..deployed(&golden)
    };
    assert!(
        plan(&model)
            .unwrap_err()
            .to_string()
            .contains("cannot read /nowhere/plan.json")
    );
}
