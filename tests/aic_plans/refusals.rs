//! What cannot be planned or sized is refused in words that name it and the way out.

use std::fs;

use ghostfleet::aic::{AicModel, DatabaseMode, KvEstimate, MemoryQuery, kv_blocks, plan};
use serde_json::{Value, json};

use super::Golden;

const QUERY: MemoryQuery = MemoryQuery {
    fraction: 0.9,
    max_num_batched_tokens: 8192,
    block_size: 16,
};

fn sized(model: &AicModel) -> Result<KvEstimate, String> {
    kv_blocks(model, &QUERY).map_err(|error| error.to_string())
}

/// Asserts that a model is not planned, in a message with these words.
fn refused(model: &AicModel, words: &[&str]) {
    contains(&plan(model).unwrap_err().to_string(), words);
}

fn contains(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }
}

/// A model directory with the config of the tiny model, changed.
fn changed(golden: &Golden, changes: &Value) -> (tempfile::TempDir, AicModel) {
    let config = fs::read_to_string(golden.root.join("model_configs/tiny_config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    let model = AicModel {
        model_path: directory.path().to_owned(),
        ..golden.plain("tiny")
    };
    (directory, model)
}

#[test]
fn a_family_that_is_not_known_names_the_ready_plan() {
    let golden = Golden::open();
    let (_directory, model) = changed(&golden, &json!({"architectures": ["DeepseekV32ForCausalLM"]}));
    let path = model.model_path.display().to_string();
    refused(
        &model,
        &[&path, "DeepseekV32ForCausalLM", "--aic-plan", "Qwen3MoeForCausalLM"],
    );
    contains(
        &sized(&model).unwrap_err(),
        &["DeepseekV32ForCausalLM", "--num-gpu-blocks-override"],
    );
}

#[test]
fn a_model_that_is_nowhere_says_where_it_was_looked_for() {
    let golden = Golden::open();
    let mut model = golden.plain("Qwen/Qwen9-1B");
    refused(&model, &["Qwen/Qwen9-1B", "Qwen--Qwen9-1B_config.json"]);
    model.model_path = "/nowhere/at/all".into();
    refused(&model, &["/nowhere/at/all", "no name of a model"]);
    model.model_configs = None;
    refused(&model, &["--model-path", "--aic-model-configs"]);
    let empty = tempfile::tempdir().unwrap();
    model.model_path = empty.path().to_owned();
    refused(&model, &["config.json", "cannot read"]);
}

#[test]
fn a_key_that_is_missing_or_makes_no_sense_is_named() {
    let golden = Golden::open();
    for (changes, words) in [
        (json!({"vocab_size": null}), ["config.json: vocab_size", "is missing"]),
        (json!({"hidden_size": 0}), ["hidden_size", "is missing"]),
        (json!({"hidden_size": -4}), ["hidden_size", "is no whole number up to"]),
        (
            json!({"num_hidden_layers": 2.5}),
            ["num_hidden_layers", "is no whole number"],
        ),
        (
            json!({"num_attention_heads": "16"}),
            ["num_attention_heads", "is no whole number"],
        ),
        (
            json!({"intermediate_size": 1_u64 << 40}),
            ["intermediate_size", "is no whole number up to"],
        ),
        (json!({"architectures": []}), ["architectures", "has no name"]),
        (
            json!({"architectures": "Qwen3ForCausalLM"}),
            ["architectures", "has no name"],
        ),
        (
            json!({"head_dim": 16_000_000, "num_attention_heads": 4096}),
            ["head_dim", "too large"],
        ),
        (
            json!({"head_dim": null, "hidden_size": 8}),
            ["hidden_size", "smaller than num_attention_heads"],
        ),
        (
            json!({"quantization_config": {"quant_method": 8}}),
            ["quant_method", "is no word"],
        ),
        (
            json!({"quantization_config": {"kv_cache_dtype": "fp3"}}),
            ["KV cache format \"fp3\"", "--aic-kv-cache-dtype"],
        ),
    ] {
        let (_directory, model) = changed(&golden, &changes);
        refused(&model, &words);
    }
}

#[test]
fn a_checkpoint_in_a_format_that_is_not_known_is_planned_once_the_formats_are_stated() {
    let golden = Golden::open();
    let mut model = golden.plain("made/dense-awq");
    refused(&model, &["made--dense-awq_config.json", "\"awq\"", "--aic-gemm-dtype"]);
    model.dtypes.gemm = Some("int4".to_owned());
    assert_eq!(plan(&model).unwrap()["engine"]["weight_dtype"], "int4");
}

#[test]
fn sizes_of_nothing_and_too_many_drafts_are_refused() {
    let golden = Golden::open();
    let model = || golden.plain("Qwen/Qwen3-30B-A3B");
    refused(&AicModel { tp: 0, ..model() }, &["--aic-tp-size", "at least 1"]);
    let none = AicModel {
        attention_dp: 0,
        ..model()
    };
    refused(&none, &["--aic-attention-dp-size", "at least 1"]);
    let none = AicModel {
        moe_ep: Some(0),
        ..model()
    };
    refused(&none, &["--aic-moe-ep-size", "at least 1"]);
    refused(&AicModel { nextn: 6, ..model() }, &["--aic-nextn", "1..=5"]);
    let huge = AicModel {
        moe_tp: Some(u32::MAX),
        moe_ep: Some(u32::MAX),
        attention_dp: u32::MAX,
        ..model()
    };
    refused(&huge, &["must be equal"]);
}

#[test]
fn a_system_or_version_that_is_not_there_lists_those_that_are() {
    let golden = Golden::open();
    let model = || golden.plain("Qwen/Qwen3-32B");
    let system = |system: &str| AicModel {
        system: system.to_owned(),
        ..model()
    };
    refused(&system("nope"), &["nope", "h200_sxm, l4", "--aic-system"]);
    refused(&system("../systems/h200_sxm"), &["no GPU system", "--aic-system"]);
    refused(&system("query_versions"), &["query_versions.yaml", "data_dir"]);
    refused(
        &system("l4"),
        &["vllm current on l4", "none at all", "--aic-database-mode sol"],
    );
    let version = |version: &str| AicModel {
        backend_version: version.to_owned(),
        ..model()
    };
    refused(
        &version("0.19.0"),
        &["vllm 0.19.0 on h200_sxm", "--aic-backend-version", "0.24.0, 0.27.0"],
    );
    refused(&version("previous"), &["query_versions.yaml", "0.24.0, 0.27.0"]);
    refused(&version("next"), &["vllm next", "0.24.0, 0.27.0"]);
    refused(&version("../0.24.0"), &["no version"]);
    let nowhere = AicModel {
        systems_path: "/nowhere".into(),
        ..model()
    };
    refused(&nowhere, &["/nowhere"]);
}

#[test]
fn a_gpus_limits_alone_need_no_measurements() {
    let golden = Golden::open();
    for (system, mode) in [
        ("l4", DatabaseMode::Sol),
        ("l4", DatabaseMode::Empirical),
        ("h200_sxm", DatabaseMode::Sol),
    ] {
        let model = AicModel {
            system: system.to_owned(),
            database_mode: mode,
            ..golden.plain("Qwen/Qwen3-32B")
        };
        let engine = plan(&model).unwrap()["engine"].clone();
        assert_eq!(engine["backend_version"], "0.24.0");
        assert_eq!(engine["database_mode"], mode.name().to_uppercase());
        assert_eq!(engine["enable_shared_layer"], false);
    }
}

#[test]
fn without_a_list_of_names_the_only_version_there_is_is_the_current_one() {
    let golden = Golden::open();
    let systems = tempfile::tempdir().unwrap();
    fs::copy(
        golden.systems.path().join("h200_sxm.yaml"),
        systems.path().join("h200_sxm.yaml"),
    )
    .unwrap();
    let data = |path: &str| fs::create_dir_all(systems.path().join("data/h200_sxm").join(path)).unwrap();
    data("gemm/vllm/0.24.0");
    data("attention/vllm/0.24.0");
    let model = AicModel {
        systems_path: systems.path().to_owned(),
        ..golden.plain("Qwen/Qwen3-32B")
    };
    assert_eq!(plan(&model).unwrap()["engine"]["backend_version"], "0.24.0");
    data("vllm/0.20.0");
    let limits = AicModel {
        database_mode: DatabaseMode::Sol,
        ..model.clone()
    };
    assert_eq!(plan(&limits).unwrap()["engine"]["backend_version"], "current");
    refused(&model, &["vllm current", "query_versions.yaml", "0.20.0, 0.24.0"]);
}

#[test]
fn no_room_for_a_kv_cache_names_the_memory_and_the_way_out() {
    let golden = Golden::open();
    let model = AicModel {
        system: "l40s".to_owned(),
        ..golden.plain("Qwen/Qwen3-32B")
    };
    contains(
        &sized(&model).unwrap_err(),
        &[
            "no KV budget: non-KV memory (70757384192 bytes) meets/exceeds the KV-cache memory limit \
             (capacity=48305799168 bytes)",
            "l40s",
            "--num-gpu-blocks-override",
        ],
    );
}

#[test]
fn a_capacity_that_nobody_measured_or_asked_for_in_earnest_is_refused() {
    let golden = Golden::open();
    let model = AicModel {
        tp: 3,
        ..golden.plain("made/dense-int4")
    };
    contains(&sized(&model).unwrap_err(), &["nccl_mem.3", "h200_sxm.yaml"]);
    let model = golden.plain("tiny");
    for (query, word) in [
        (MemoryQuery { fraction: 1.5, ..QUERY }, "fraction"),
        (
            MemoryQuery {
                fraction: f64::NAN,
                ..QUERY
            },
            "fraction",
        ),
        (MemoryQuery { block_size: 0, ..QUERY }, "block size"),
        (MemoryQuery { fraction: 0.0, ..QUERY }, "no KV budget"),
    ] {
        contains(&kv_blocks(&model, &query).unwrap_err().to_string(), &[word]);
    }
}

#[test]
fn a_system_file_without_a_number_names_the_key() {
    let golden = Golden::open();
    let systems = tempfile::tempdir().unwrap();
    let model = AicModel {
        systems_path: systems.path().to_owned(),
        ..golden.plain("tiny")
    };
    let write = |text: &str| fs::write(systems.path().join("h200_sxm.yaml"), text).unwrap();
    for (text, words) in [
        ("data_dir: data\ngpu: {}\n", ["h200_sxm.yaml", "gpu.mem_capacity"]),
        (
            "data_dir: data\ngpu: {mem_capacity: 0}\n",
            ["h200_sxm.yaml", "gpu.mem_capacity"],
        ),
        (
            "data_dir: data\ngpu: {mem_capacity: 1e300}\n",
            ["h200_sxm.yaml", "gpu.mem_capacity"],
        ),
        (
            "data_dir: data\ngpu: {mem_capacity: 9}\n",
            ["h200_sxm.yaml", "misc.other_mem"],
        ),
        (
            "data_dir: data\ngpu: {mem_capacity: 9}\nmisc: {other_mem: 1}\n",
            ["h200_sxm.yaml", "misc.nccl_mem.1"],
        ),
        ("gpu: {mem_capacity: 9}\n", ["h200_sxm.yaml", "data_dir"]),
        ("[1, 2]\n", ["h200_sxm.yaml", "expected an object"]),
        ("data_dir: [\n", ["h200_sxm.yaml", "line"]),
        ("", ["h200_sxm.yaml", "data_dir"]),
    ] {
        write(text);
        contains(&sized(&model).unwrap_err(), &words);
    }
    let long = "#".repeat((16 << 20) + 1);
    write(&long);
    contains(&sized(&model).unwrap_err(), &["larger than 16777216 bytes"]);
    fs::remove_file(systems.path().join("h200_sxm.yaml")).unwrap();
    contains(
        &sized(&model).unwrap_err(),
        &["it has none, so it may be the wrong directory"],
    );
}
