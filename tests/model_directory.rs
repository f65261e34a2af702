//! A model directory: what is read from it, the card that is made of it, and what the user is told when it is not usable.

#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;

use ghostfleet::model::card::{self, CardOptions, EmptyName, Role};
use ghostfleet::model::tokenizer::{Chat, ModelTokenizer};
use ghostfleet::model::{HubOptions, Model, ModelError};
use serde_json::{Value, json};

const TINY: &str = "config/tiny-model";

fn copy_of_tiny() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(TINY).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

fn resolve(dir: &Path) -> Result<Model, ModelError> {
    Model::resolve(dir.to_str().unwrap(), &HubOptions::default())
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    change(&mut value);
    std::fs::write(path, value.to_string()).unwrap();
}

fn options(role: Role) -> CardOptions {
    CardOptions {
        display_name: "probe-model".to_owned(),
        block_size: 16,
        migration_limit: 3,
        context_length: None,
        total_kv_blocks: 16_384,
        max_num_seqs: Some(256),
        max_num_batched_tokens: Some(8192),
        data_parallel_size: 1,
        kv_events: false,
        local_indexer: false,
        role,
        lora_of: None,
        recorded_answers: false,
    }
}

fn card_of(model: &Model, options: &CardOptions) -> Value {
    serde_json::from_str(&card::render(model, options).unwrap()).unwrap()
}

#[test]
fn a_missing_file_is_named_with_what_to_do() {
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        let dir = copy_of_tiny();
        std::fs::remove_file(dir.path().join(file)).unwrap();
        let error = resolve(dir.path()).unwrap_err().to_string();
        let named = error.contains(&format!("has no {file}")) && error.contains(dir.path().to_str().unwrap());
        assert!(
            named && error.contains("copy it from the model's repository"),
            "{error}"
        );
    }
    let dir = copy_of_tiny();
    std::fs::remove_file(dir.path().join("generation_config.json")).unwrap();
    assert_eq!(resolve(dir.path()).unwrap().files.generation_config, None);
}

#[test]
fn broken_json_is_an_error_that_names_the_file() {
    for file in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    ] {
        for content in ["{", "[]", "{\"vocab_size\": }", "\u{0}"] {
            let dir = copy_of_tiny();
            std::fs::write(dir.path().join(file), content).unwrap();
            let error = resolve(dir.path()).unwrap_err().to_string();
            assert!(
                error.contains(file) && error.contains("not usable"),
                "{content}: {error}"
            );
        }
    }
}

#[test]
fn a_file_that_cannot_be_read_is_an_error() {
    let dir = copy_of_tiny();
    std::fs::remove_file(dir.path().join("config.json")).unwrap();
    std::fs::create_dir(dir.path().join("config.json")).unwrap();
    assert!(matches!(resolve(dir.path()), Err(ModelError::Unreadable { .. })));
}

#[test]
fn a_path_that_does_not_exist_is_no_id_either() {
    let error = Model::resolve("/no/such/dir", &HubOptions::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("/no/such/dir does not exist") && error.contains("Qwen/Qwen3-0.6B"),
        "{error}"
    );
}

#[test]
fn limits_and_ids_come_from_the_configs() {
    let model = resolve(Path::new(TINY)).unwrap();
    assert_eq!(model.info.context_length, Some(32_768));
    assert_eq!(model.info.eos_token_ids, [0, 2]);
    assert_eq!(model.info.special_token_ids, [0, 1, 2]);
    assert_eq!(model.info.generated_ids.1, model.info.vocab_size);
    assert!(model.info.vocab_size < 2000);

    let dir = copy_of_tiny();
    edit(&dir.path().join("config.json"), |config| {
        *config = json!({ "text_config": { "max_position_embeddings": 777, "vocab_size": 1900, "eos_token_id": 7 } });
    });
    std::fs::remove_file(dir.path().join("generation_config.json")).unwrap();
    let info = resolve(dir.path()).unwrap().info;
    assert_eq!((info.context_length, info.vocab_size), (Some(777), 1900));
    assert_eq!(info.eos_token_ids, [2, 7], "the tokenizer names <|im_end|>");
    assert_eq!(info.generated_ids.1, 1900);

    edit(&dir.path().join("config.json"), |config| *config = json!({}));
    edit(&dir.path().join("tokenizer_config.json"), |config| {
        config["model_max_length"] = json!(1e30);
    });
    let info = resolve(dir.path()).unwrap().info;
    assert_eq!((info.context_length, info.vocab_size), (None, model.info.vocab_size));
}

#[test]
fn every_generated_id_of_the_tiny_model_is_a_word() {
    let model = resolve(Path::new(TINY)).unwrap();
    let tokenizer = ModelTokenizer::load(&model).unwrap();
    let (lo, hi) = model.info.generated_ids;
    assert!(hi - lo > 800);
    for id in lo..hi {
        let text = tokenizer.decode(&[id], true).unwrap();
        let word = text.strip_prefix(' ').unwrap_or_else(|| panic!("{id} is {text:?}"));
        assert!(
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphabetic()),
            "{id} is {text:?}"
        );
    }
}

#[test]
fn the_tiny_model_formats_a_chat() {
    let tokenizer = ModelTokenizer::load(&resolve(Path::new(TINY)).unwrap()).unwrap();
    let messages = [
        json!({"role": "system", "content": "be brief"}),
        json!({"role": "user", "content": "hello"}),
    ];
    let prompt = tokenizer.render_chat(&Chat::new(&messages)).unwrap();
    assert_eq!(
        prompt,
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    );
    let ids = tokenizer.encode(&prompt, false).unwrap();
    assert_eq!(ids[0], 1);
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), prompt);
}

/// Dynamo 1.6.1 and 1.4.2 accept this card.
#[test]
fn the_card_is_the_one_that_frontends_accept() {
    let dir = copy_of_tiny();
    let model = resolve(dir.path()).unwrap();
    let file = |name: &str| {
        let bytes = std::fs::read(dir.path().join(name)).unwrap();
        let checksum = format!("blake3:{}", blake3::hash(&bytes).to_hex());
        json!({ "path": dir.path().join(name), "checksum": checksum, "size": bytes.len() })
    };
    let expected = json!({
        "display_name": "probe-model", "slug": "probe-model",
        "model_info": { "hf_config_json": file("config.json") },
        "tokenizer": { "hf_tokenizer_json": file("tokenizer.json") },
        "prompt_formatter": { "hf_tokenizer_config_json": file("tokenizer_config.json") },
        "gen_config": { "hf_generation_config_json": file("generation_config.json") },
        "architectural_max_context_length": 32768, "context_length": 32768,
        "kv_cache_block_size": 16, "migration_limit": 3,
        "model_type": "Chat | Completions", "model_input": "Tokens", "worker_type": "aggregated", "needs": [],
        "runtime_config": {
            "context_length": 32768, "total_kv_blocks": 16384, "max_num_seqs": 256, "max_num_batched_tokens": 8192,
            "tool_call_parser": null, "reasoning_parser": null, "data_parallel_start_rank": 0, "data_parallel_size": 1,
            "enable_local_indexer": false, "kv_event_publishing_enabled": false,
        },
        "media_decoder": null, "media_fetcher": null,
    });
    assert_eq!(card_of(&model, &options(Role::Aggregated)), expected);
}

#[test]
fn a_card_names_its_role_and_what_it_needs() {
    let model = resolve(Path::new(TINY)).unwrap();
    let card = card_of(&model, &options(Role::Prefill));
    assert_eq!(
        (&card["model_type"], &card["worker_type"]),
        (&json!(""), &json!("prefill"))
    );
    assert_eq!(card["needs"], json!([["decode"]]));
    assert!(card["runtime_config"].get("disaggregated_endpoint").is_none());
    let met: Value =
        serde_json::from_str(&card::with_rendezvous(&card.to_string(), "127.0.0.1", 8998).unwrap()).unwrap();
    let endpoint = json!({ "bootstrap_host": "127.0.0.1", "bootstrap_port": 8998 });
    assert_eq!(met["runtime_config"]["disaggregated_endpoint"], endpoint);
    assert_eq!((&met["slug"], &met["needs"]), (&card["slug"], &card["needs"]));
    let card = card_of(&model, &options(Role::Decode));
    assert_eq!(card["needs"], json!([["prefill"]]));
    assert_eq!(card["model_type"], "Chat | Completions");
    assert!(card["runtime_config"].get("disaggregated_endpoint").is_none());
}

#[test]
fn a_shorter_context_goes_into_the_card() {
    let model = resolve(Path::new(TINY)).unwrap();
    let card = card_of(
        &model,
        &CardOptions {
            context_length: Some(512),
            ..options(Role::Aggregated)
        },
    );
    assert_eq!(
        (&card["context_length"], &card["runtime_config"]["context_length"]),
        (&json!(512), &json!(512))
    );
    assert_eq!(card["architectural_max_context_length"], 32768);
}

#[test]
fn a_template_file_beside_the_tokenizer_is_in_the_card_and_wins() {
    let messages = [json!({"role": "user", "content": "x"})];
    let dir = copy_of_tiny();
    let body = r#"{"chat_template": "json {{ messages[0].content }}"}"#;
    std::fs::write(dir.path().join("chat_template.json"), body).unwrap();
    let model = resolve(dir.path()).unwrap();
    let template = &card_of(&model, &options(Role::Aggregated))["chat_template_file"]["hf_chat_template_json"];
    assert_eq!(
        (&template["is_custom"], &template["file"]["size"]),
        (&json!(false), &json!(body.len()))
    );
    assert_eq!(
        ModelTokenizer::load(&model)
            .unwrap()
            .render_chat(&Chat::new(&messages))
            .unwrap(),
        "json x"
    );

    std::fs::write(
        dir.path().join("chat_template.jinja"),
        "jinja {{ messages[0].content }}",
    )
    .unwrap();
    let model = resolve(dir.path()).unwrap();
    let template = &card_of(&model, &options(Role::Aggregated))["chat_template_file"]["hf_chat_template"];
    assert!(
        template["file"]["path"]
            .as_str()
            .unwrap()
            .ends_with("/chat_template.jinja")
    );
    assert_eq!(
        ModelTokenizer::load(&model)
            .unwrap()
            .render_chat(&Chat::new(&messages))
            .unwrap(),
        "jinja x"
    );

    std::fs::write(dir.path().join("chat_template.jinja"), "{% if %}").unwrap();
    let error = ModelTokenizer::load(&resolve(dir.path()).unwrap())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("chat_template.jinja"), "{error}");
}

/// As Dynamo 1.4.2 registers `Qwen/Qwen3-0.6B`; a pinned revision has no `hf://` address.
#[test]
fn a_hub_models_card_carries_hub_addresses_unless_a_revision_is_pinned() {
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    let cache = tempfile::tempdir().unwrap();
    let root = cache.path().join("models--Qwen--Qwen3-0.6B");
    std::fs::create_dir_all(root.join("refs")).unwrap();
    std::fs::create_dir_all(root.join("snapshots")).unwrap();
    std::fs::write(root.join("refs/main"), COMMIT).unwrap();
    std::os::unix::fs::symlink(std::path::absolute(TINY).unwrap(), root.join("snapshots").join(COMMIT)).unwrap();
    let hub = HubOptions {
        offline: true,
        cache: Some(cache.path().to_owned()),
        ..HubOptions::default()
    };
    let model = Model::resolve("Qwen/Qwen3-0.6B", &hub).unwrap();
    let named = CardOptions {
        display_name: model.name(),
        ..options(Role::Aggregated)
    };
    let card = card_of(&model, &named);
    assert_eq!(card["source_path"], "Qwen/Qwen3-0.6B");
    assert_eq!(card["slug"], "qwen_qwen3-0_6b");
    assert_eq!(
        card["tokenizer"]["hf_tokenizer_json"]["path"],
        "hf://Qwen/Qwen3-0.6B/tokenizer.json"
    );
    let model = Model::resolve(&format!("Qwen/Qwen3-0.6B@{COMMIT}"), &hub).unwrap();
    let path = &card_of(&model, &named)["tokenizer"]["hf_tokenizer_json"]["path"];
    assert!(Path::new(path.as_str().unwrap()).is_file(), "{path}");
}

#[test]
fn slugs_follow_the_peers_rule() {
    for (name, slug) in [
        ("Qwen/Qwen3-0.6B", "qwen_qwen3-0_6b"),
        ("/models/tiny", "models_tiny"),
        ("__A b.\u{e9}", "a_b__"),
    ] {
        assert_eq!(card::slug(name).unwrap(), slug);
    }
    assert_eq!(card::slug("/_/"), Err(EmptyName("/_/".to_owned())));
}

#[test]
fn the_tiny_model_is_what_its_script_makes() {
    let status = std::process::Command::new("python3")
        .args(["scripts/make-tiny-model", "--check"])
        .status()
        .unwrap();
    assert!(status.success());
}
