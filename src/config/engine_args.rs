//! `--extra-engine-args`: the peer's engine settings as one JSON document, in two dialects.
//!
//! Dynamo 1.4.2 reads a flat object, 1.6.1 a nested one (`{"engine": {...}, "dynamo": {...}, ...}`) with other names. Both
//! are translated here into [`Settings`], key by key, and nothing else: what a value may be is decided in one place for
//! flags, files and documents alike. A document counts as said where it is named, just below the settings that are said
//! there one by one; so flags win over it. (In 1.4.2 a document replaces every flag.)

use std::path::Path;

use serde_json::{Map, Value, json};

use super::ConfigError;
use super::engine_keys::Meaning::{
    AnyCase, BeyondOne, Count, Limit, NoEffect, NotNull, Object, Section, Setting, Unmodelled, With, ZeroIsDefault,
};
use super::engine_keys::{FLAT, Key, NESTED};
use super::layers::Origin;
use super::settings::Settings;
use super::unique_json;

/// Longest document.
const MAX_BYTES: u64 = 1 << 20;

/// Whether the text is a document itself rather than the path of one.
pub(super) fn is_inline(text: &str) -> bool {
    text.trim_start().starts_with(['{', '['])
}

/// What a document says.
#[derive(Debug)]
pub(super) struct Document {
    /// Whether it is in the nested dialect of 1.6.1.
    pub(super) nested: bool,
    /// The path of each key and the settings that it stands for.
    pub(super) said: Vec<(String, Settings)>,
}

/// Reads a document that is named at `named_by`.
///
/// # Errors
/// [`ConfigError::EngineArgs`] names the document and the path of the key.
pub(super) fn read(text: &str, named_by: &Origin) -> Result<Document, ConfigError> {
    let inline = is_inline(text);
    let failed = |error: String| ConfigError::EngineArgs {
        named_by: named_by.document(),
        document: if inline { String::new() } else { format!(" {text}") },
        error,
    };
    if inline {
        return parse(text).map_err(failed);
    }
    let path = Path::new(text);
    let about = std::fs::metadata(path).map_err(|error| {
        failed(format!(
            "{error}; give the path of a JSON file, or the JSON object itself"
        ))
    })?;
    if !about.is_file() || about.len() > MAX_BYTES {
        return Err(failed("it must be a regular file of at most 1 MiB".to_owned()));
    }
    let document = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    parse(&document).map_err(failed)
}

fn parse(document: &str) -> Result<Document, String> {
    let document = unique_json::read(document)?;
    let Value::Object(members) = document else {
        return Err("the document must be an object".to_owned());
    };
    let nested = members.keys().any(|key| is_key(NESTED, key) && !is_key(FLAT, key));
    let keys = if nested { NESTED } else { FLAT };
    let mut said = Vec::new();
    walk(keys, "", &members, &mut said)?;
    once(&said)?;
    if !nested && members.get("aic_backend").is_some_and(|backend| !backend.is_null()) {
        // A backend is what turns the model on.
        said.push(("aic_backend".to_owned(), one("aic_perf_model", &Value::from(true))?));
    }
    Ok(Document { nested, said })
}

fn is_key(keys: &[Key], path: &str) -> bool {
    keys.iter().any(|(known, _)| *known == path)
}

/// Two names of one setting contradict each other, or one is too many.
fn once(said: &[(String, Settings)]) -> Result<(), String> {
    for (index, (path, settings)) in said.iter().enumerate() {
        let keys = said_keys(settings);
        if let Some((other, _)) = said[..index].iter().find(|(_, other)| said_keys(other) == keys) {
            return Err(format!(
                "`{other}` and `{path}` are the same setting; leave one of them out"
            ));
        }
    }
    Ok(())
}

/// What settings say, by name.
fn said_keys(settings: &Settings) -> Vec<String> {
    match serde_json::to_value(settings) {
        Ok(Value::Object(values)) => values
            .into_iter()
            .filter_map(|(key, value)| (!value.is_null()).then_some(key))
            .collect(),
        Ok(_) | Err(_) => Vec::new(),
    }
}

fn walk(
    keys: &[Key],
    prefix: &str,
    members: &Map<String, Value>,
    said: &mut Vec<(String, Settings)>,
) -> Result<(), String> {
    for (name, value) in members {
        let path = format!("{prefix}{name}");
        let Some(&(_, meaning)) = keys.iter().find(|(known, _)| *known == path) else {
            return Err(unknown_key(keys, &path));
        };
        let (setting, value) = match (meaning, value) {
            (Object | Section | With(_), Value::Object(inner)) => {
                if let With(wanted) = meaning
                    && let Some(missing) = wanted.iter().find(|name| !inner.contains_key(**name))
                {
                    return Err(format!("`{path}` needs `{missing}`"));
                }
                walk(keys, &format!("{path}."), inner, said)?;
                continue;
            }
            (Object | With(_) | Setting(_), Value::Null) | (NoEffect, _) => continue,
            (Object | Section | With(_), _) => return Err(format!("`{path}` must be an object")),
            (Unmodelled(assumed), value) if assumed.is(value) => continue,
            (Unmodelled(_), value) => return Err(format!("`{path}` is not modelled; leave it out (it is {value})")),
            (NotNull(_) | BeyondOne(_) | Count(_) | AnyCase(_) | ZeroIsDefault(_), Value::Null) => {
                return Err(format!("`{path}` must not be null"));
            }
            (Count(_), value) if value == &json!(0) => return Err(format!("`{path}` 0 must be at least 1")),
            (Limit(setting), Value::Null) => (setting, Value::from("unlimited")),
            (ZeroIsDefault(_), value) if value == &json!(0) => continue,
            (BeyondOne(_), value) if value == &json!(1) => continue,
            (AnyCase(setting), Value::String(word)) => (setting, Value::from(word.to_lowercase())),
            (
                Setting(setting)
                | NotNull(setting)
                | BeyondOne(setting)
                | Count(setting)
                | Limit(setting)
                | ZeroIsDefault(setting)
                | AnyCase(setting),
                value,
            ) => (setting, value.clone()),
        };
        said.push((
            path.clone(),
            one(setting, &value).map_err(|error| format!("`{path}`: {error}"))?,
        ));
    }
    Ok(())
}

/// Settings that say one thing.
fn one(setting: &str, value: &Value) -> Result<Settings, String> {
    let members = Map::from_iter([(setting.to_owned(), value.clone())]);
    serde_json::from_value(Value::Object(members)).map_err(|error| error.to_string())
}

fn unknown_key(keys: &[Key], path: &str) -> String {
    let split = |path: &str| -> (String, String) {
        let (parent, last) = path.rsplit_once('.').unwrap_or(("", path));
        (parent.to_owned(), last.to_owned())
    };
    let (parent, last) = split(path);
    // The right name in the wrong place is nearer than a similar name.
    let likeness = |known: &str| {
        let (its_parent, its_last) = split(known);
        strsim::jaro_winkler(&last, &its_last) - if its_parent == parent { 0.0 } else { 0.05 }
    };
    let nearest = keys
        .iter()
        .map(|(known, _)| (likeness(known), *known))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((_, known)) = nearest.filter(|(score, _)| *score > 0.8) {
        return format!("unknown key `{path}`; did you mean `{known}`?");
    }
    let beside = keys
        .iter()
        .map(|(known, _)| *known)
        .filter(|known| split(known).0 == parent);
    format!(
        "unknown key `{path}`; known keys there: {}",
        beside.collect::<Vec<_>>().join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::choices::Limit as Bound;
    use crate::engine::EngineKind;

    fn merged(document: &str) -> Map<String, Value> {
        let mut all = Map::new();
        for (_, settings) in read(document, &Origin::Flag).unwrap().said {
            let Value::Object(values) = serde_json::to_value(settings).unwrap() else {
                unreachable!()
            };
            all.extend(values.into_iter().filter(|(_, value)| !value.is_null()));
        }
        all
    }

    #[test]
    fn both_dialects_say_the_same_under_their_own_names() {
        let flat = r#"{"engine_type": "SGLang", "num_gpu_blocks": 100, "block_size": 16, "max_num_seqs": null,
            "dp_size": 2, "worker_type": "aggregated", "kv_bytes_per_token": 7, "bootstrap_port": 9000,
            "sglang": {"schedule_policy": "lpm", "clip_max_new_tokens": 99},
            "reasoning": {"start_thinking_token_id": 1, "end_thinking_token_id": 2, "thinking_ratio": 0.5}}"#;
        let nested = r#"{"dp_size": 2, "engine": {"backend": "sglang", "num_gpu_blocks": 100, "block_size": 16,
            "max_num_seqs": null, "worker_type": "aggregated", "kv_transfer_bytes_per_token": 7,
            "sglang": {"schedule_policy": "lpm", "clip_max_new_tokens": 99}}, "dynamo": {"bootstrap_port": 9000,
            "reasoning": {"start_thinking_token_id": 1, "end_thinking_token_id": 2, "thinking_ratio": 0.5}}}"#;
        assert_eq!(merged(flat), merged(nested));
        let settings: Settings = serde_json::from_value(Value::Object(merged(flat))).unwrap();
        assert_eq!(settings.engine_type, Some(EngineKind::Sglang));
        assert_eq!(settings.max_num_seqs, Some(Bound::Unlimited));
        assert_eq!(settings.bootstrap_ports.as_deref(), Some("9000"));
    }

    #[test]
    fn every_key_names_a_setting_of_groups_once() {
        for keys in [FLAT, NESTED] {
            for (index, (path, meaning)) in keys.iter().enumerate() {
                assert!(keys[..index].iter().all(|(other, _)| other != path), "{path} twice");
                match meaning {
                    Setting(name) | NotNull(name) | BeyondOne(name) | Count(name) | Limit(name)
                    | ZeroIsDefault(name) | AnyCase(name) => {
                        assert!(Settings::GROUP_KEYS.contains(name), "{path} -> {name}");
                    }
                    Object | Section | With(_) | NoEffect | Unmodelled(_) => {}
                }
            }
        }
    }

    fn refused(document: &str, message: &str) {
        let error = read(document, &Origin::Flag).unwrap_err().to_string();
        assert!(
            error.starts_with("--extra-engine-args: ") && error.contains(message),
            "{document}: {error}"
        );
    }

    #[test]
    fn unusable_documents_are_refused_with_the_path_of_the_key() {
        for (document, message) in [
            (
                r#"{"blok_size": 64}"#,
                "unknown key `blok_size`; did you mean `block_size`?",
            ),
            (
                r#"{"engine": {"blok_size": 64}}"#,
                "unknown key `engine.blok_size`; did you mean `engine.block_size`?",
            ),
            (
                r#"{"engine": {}, "block_size": 64}"#,
                "unknown key `block_size`; did you mean `engine.block_size`?",
            ),
            (
                r#"{"sglang": {"page": 1}}"#,
                "unknown key `sglang.page`; did you mean `sglang.page_size`?",
            ),
            (
                r#"{"dynamo": {"zzz": 1}}"#,
                "unknown key `dynamo.zzz`; known keys there: dynamo.enable_local_indexer",
            ),
            (
                r#"{"block_size": "many"}"#,
                "`block_size`: invalid type: string \"many\", expected u32",
            ),
            (
                r#"{"engine": {"max_num_seqs": -1}}"#,
                "`engine.max_num_seqs`: expected a whole number or \"unlimited\"",
            ),
            (
                r#"{"enable_prefix_caching": null}"#,
                "`enable_prefix_caching` must not be null",
            ),
            (
                r#"{"engine": {"num_gpu_blocks": null}}"#,
                "`engine.num_gpu_blocks` must not be null",
            ),
            (
                r#"{"engine_type": "llama"}"#,
                "`engine_type`: unknown variant `llama`, expected one of `vllm`, `sglang`, `trtllm`",
            ),
            (
                r#"{"engine": {"backend": "VLLM"}}"#,
                "`engine.backend`: unknown variant `VLLM`",
            ),
            (r#"{"sglang": 7}"#, "`sglang` must be an object"),
            (
                r#"{"engine": {"state_cache": {}}}"#,
                "`engine.state_cache` is not modelled; leave it out",
            ),
            (
                r#"{"engine": {"timing_model": {"type": "external", "provider": "zz"}}}"#,
                "unknown variant `zz`",
            ),
            (
                r#"{"engine": {"timing_model": {"type": "fixed", "prefill_ms": 1}}}"#,
                "missing field `decode_ms`",
            ),
            (r#"{"block_size": 64} and more"#, "trailing characters"),
            (r#"{"block_size": 64"#, "EOF while parsing"),
        ] {
            refused(document, message);
        }
    }

    #[test]
    fn documents_that_the_peers_refuse_are_refused() {
        for (document, message) in [
            (
                r#"{"engine": {"emit_kv_events": 7}}"#,
                "`engine.emit_kv_events` is not modelled; leave it out (it is 7)",
            ),
            (
                r#"{"engine": {"kv_cache_groups": [{"name": "a"}]}}"#,
                "`engine.kv_cache_groups` is not modelled",
            ),
            (
                r#"{"engine": {"native_host_offload": {}}}"#,
                "`engine.native_host_offload` needs `num_host_blocks`",
            ),
            (
                r#"{"engine": {"native_host_offload": {"num_host_blocks": 0}}}"#,
                "`engine.native_host_offload.num_host_blocks` 0 must be at least 1",
            ),
            (
                r#"{"engine": {"g3_offload": {"num_g3_blocks": 8}}}"#,
                "`engine.g3_offload` needs `scope`",
            ),
            (
                r#"{"engine": {"g3_offload": {"scope": "worker_local"}}}"#,
                "`engine.g3_offload` needs `num_g3_blocks`",
            ),
            (r#"{"engine": {"sglang": null}}"#, "`engine.sglang` must be an object"),
            (r#"{"worker_type": null}"#, "`worker_type` must not be null"),
            (
                r#"{"engine": {"sglang": {"schedule_policy": null}}}"#,
                "`engine.sglang.schedule_policy` must not be null",
            ),
            (r#"{"block_size": 64, "block_size": 32}"#, "`block_size` is there twice"),
            (
                r#"{"engine": {"sglang": {"clip_max_new_tokens": 1, "clip_max_new_tokens": 1}}}"#,
                "`clip_max_new_tokens` is there twice",
            ),
            (
                r#"{"engine": {"kv_transfer_bytes_per_token": 1, "kv_bytes_per_token": 2}}"#,
                "`engine.kv_bytes_per_token` and `engine.kv_transfer_bytes_per_token` are the same setting",
            ),
        ] {
            refused(document, message);
        }
    }

    #[test]
    fn what_the_peer_assumes_anyway_is_accepted() {
        let document = r#"{"tensor_parallel_size": 1, "num_gpu_blocks_is_explicit": true, "cuda_graph_reserved_bytes": null,
            "engine": {"emit_kv_events": false, "emit_kv_token_ids": false, "kv_cache_groups": [], "state_cache": null,
            "native_host_offload": null, "max_model_len": null}}"#;
        assert_eq!(merged(document), Map::new());
        assert_eq!(merged(r#"{"engine": {"emit_kv_events": true}}"#), Map::new());
        assert_eq!(merged(r#"{"block_size": 0, "has_perf_model": false}"#), Map::new());
    }

    #[test]
    fn a_key_that_one_dialect_has_decides_the_dialect() {
        let nested = |document: &str| read(document, &Origin::Flag).unwrap().nested;
        assert!(nested(r#"{"dp_size": 2, "tensor_parallel_size": 1}"#));
        assert!(nested(r#"{"num_gpu_blocks_is_explicit": true}"#));
        assert!(!nested(r#"{"dp_size": 2, "startup_time": 1.0}"#));
        assert!(!nested("{}"));
        let error = read(r#"{"tensor_parallel_size": 1, "block_size": 64}"#, &Origin::Flag).unwrap_err();
        assert!(
            error.to_string().contains("did you mean `engine.block_size`?"),
            "{error}"
        );
    }

    #[test]
    fn a_document_may_be_a_file_and_an_absent_one_is_named() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("engine.json");
        let name = path.to_str().unwrap();
        let read = |name| read(name, &Origin::Flag);
        let error = read(name).unwrap_err().to_string();
        assert!(
            error.contains(name) && error.contains("or the JSON object itself"),
            "{error}"
        );
        std::fs::write(&path, r#"{"block_size": 32, "typo": 1}"#).unwrap();
        let error = read(name).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("unknown key `typo`"), "{error}");
        std::fs::write(&path, r#"{"block_size": 32}"#).unwrap();
        assert_eq!(read(name).unwrap().said.len(), 1);
        assert!(read(directory.path().to_str().unwrap()).is_err());
    }
}
