//! `--extra-engine-args`: the peer's engine settings as one JSON document, in two dialects.
//!
//! Dynamo 1.4.2 reads a flat object, 1.6.1 a nested one (`{"engine": {...}, "dynamo": {...}, ...}`) with other names. Both
//! are translated here into [`Settings`], key by key, and nothing else: what a value may be is decided in one place for
//! flags, files and documents alike. A document counts as said where it is named, just below the settings that are said
//! there one by one; so flags win over it. (In 1.4.2 a document replaces every flag.)

use std::path::Path;

use serde_json::{Map, Value, json};

use super::ConfigError;
use super::layers::Origin;
use super::settings::Settings;

/// Longest document.
const MAX_BYTES: u64 = 1 << 20;

/// What a key of a document means.
#[derive(Debug, Clone, Copy)]
enum Meaning {
    /// A setting; null is as good as absent.
    Setting(&'static str),
    /// A setting; null is refused.
    NotNull(&'static str),
    /// A limit; null takes it away.
    Limit(&'static str),
    /// A setting whose 0 stands for its default.
    ZeroIsDefault(&'static str),
    /// A setting whose words may be written in any case.
    AnyCase(&'static str),
    /// An object whose members are keys of their own.
    Object,
    /// Says nothing that matters here.
    NoEffect,
    /// Not modelled; only what the peer assumes anyway is accepted.
    Unmodelled(Assumed),
}

/// What the peer assumes when a key is absent.
#[derive(Debug, Clone, Copy)]
enum Assumed {
    Nothing,
    True,
    One,
    Word(&'static str),
}

impl Assumed {
    fn is(self, value: &Value) -> bool {
        match self {
            Self::Nothing => value.is_null(),
            Self::True => value == &json!(true) || value.is_null(),
            Self::One => value == &json!(1),
            Self::Word(word) => value == &json!(word),
        }
    }
}

type Key = (&'static str, Meaning);

use Meaning::{AnyCase, Limit, NoEffect, NotNull, Object, Setting, Unmodelled, ZeroIsDefault};

/// Dynamo 1.4.2.
const FLAT: &[Key] = &[
    ("engine_type", AnyCase("engine_type")),
    ("num_gpu_blocks", Setting("num_gpu_blocks_override")),
    ("block_size", ZeroIsDefault("block_size")),
    ("max_model_len", Setting("max_model_len")),
    ("max_num_seqs", Limit("max_num_seqs")),
    ("max_num_batched_tokens", Limit("max_num_batched_tokens")),
    ("enable_prefix_caching", NotNull("enable_prefix_caching")),
    ("enable_chunked_prefill", NotNull("enable_chunked_prefill")),
    ("g1_backend", Setting("g1_backend")),
    ("speedup_ratio", NotNull("speedup_ratio")),
    ("decode_speedup_ratio", NotNull("decode_speedup_ratio")),
    ("dp_size", NotNull("data_parallel_size")),
    ("startup_time", Setting("startup_time")),
    ("worker_type", Setting("disaggregation_mode")),
    ("is_prefill", Setting("is_prefill_worker")),
    ("is_decode", Setting("is_decode_worker")),
    ("planner_profile_data", Setting("planner_profile_data")),
    ("aic_backend", Setting("aic_backend")),
    ("aic_system", Setting("aic_system")),
    ("aic_backend_version", Setting("aic_backend_version")),
    ("aic_tp_size", Setting("aic_tp_size")),
    ("aic_model_path", Setting("aic_model_path")),
    ("aic_moe_tp_size", Setting("aic_moe_tp_size")),
    ("aic_moe_ep_size", Setting("aic_moe_ep_size")),
    ("aic_attention_dp_size", Setting("aic_attention_dp_size")),
    ("aic_gemm_dtype", Setting("aic_gemm_dtype")),
    ("aic_moe_dtype", Setting("aic_moe_dtype")),
    ("aic_fmha_dtype", Setting("aic_fmha_dtype")),
    ("aic_kv_cache_dtype", Setting("aic_kv_cache_dtype")),
    ("aic_comm_dtype", Setting("aic_comm_dtype")),
    ("aic_nextn", Setting("aic_nextn")),
    ("aic_nextn_accept_rates", Setting("aic_nextn_accept_rates")),
    ("aic_mtp_seed", Setting("aic_mtp_seed")),
    ("gpu_memory_utilization", Setting("gpu_memory_utilization")),
    ("mem_fraction_static", Setting("mem_fraction_static")),
    ("free_gpu_memory_fraction", Setting("free_gpu_memory_fraction")),
    ("enable_local_indexer", Setting("enable_local_indexer")),
    ("bootstrap_port", Setting("bootstrap_ports")),
    ("zmq_kv_events_port", Setting("zmq_kv_events_ports")),
    ("zmq_replay_port", Setting("zmq_replay_ports")),
    ("handoff_session_timeout_ms", Setting("handoff_session_timeout_ms")),
    ("kv_bytes_per_token", Setting("kv_bytes_per_token")),
    ("kv_transfer_bandwidth", Setting("kv_transfer_bandwidth")),
    ("kv_transfer_timing_mode", Setting("kv_transfer_timing_mode")),
    ("num_g2_blocks", Setting("num_g2_blocks")),
    ("num_g3_blocks", Setting("num_g3_blocks")),
    ("offload_batch_size", Setting("offload_batch_size")),
    ("enable_g4_storage", Setting("enable_g4_storage")),
    ("bandwidth_g1_to_g2_gbps", Setting("bandwidth_g1_to_g2_gbps")),
    ("bandwidth_g2_to_g1_gbps", Setting("bandwidth_g2_to_g1_gbps")),
    ("bandwidth_g2_to_g3_gbps", Setting("bandwidth_g2_to_g3_gbps")),
    ("bandwidth_g3_to_g2_gbps", Setting("bandwidth_g3_to_g2_gbps")),
    ("bandwidth_g2_to_g4_gbps", Setting("bandwidth_g2_to_g4_gbps")),
    ("bandwidth_g4_to_g2_gbps", Setting("bandwidth_g4_to_g2_gbps")),
    ("reasoning", Setting("reasoning")),
    ("response_replay_trace_path", Setting("response_replay_trace_path")),
    ("preemption_mode", NotNull("preemption_mode")),
    ("router_queue_policy", Setting("router_queue_policy")),
    ("sglang", Object),
    ("sglang.schedule_policy", Setting("sglang_schedule_policy")),
    ("sglang.page_size", Setting("sglang_page_size")),
    ("sglang.max_prefill_tokens", Setting("sglang_max_prefill_tokens")),
    ("sglang.chunked_prefill_size", Setting("sglang_chunked_prefill_size")),
    ("sglang.clip_max_new_tokens", Setting("sglang_clip_max_new_tokens")),
    (
        "sglang.schedule_conservativeness",
        Setting("sglang_schedule_conservativeness"),
    ),
    ("trtllm", Object),
    (
        "trtllm.capacity_scheduler_policy",
        Setting("trtllm_capacity_scheduler_policy"),
    ),
    ("has_perf_model", NoEffect),
];

/// Dynamo 1.6.1.
const NESTED: &[Key] = &[
    ("dp_size", NotNull("data_parallel_size")),
    ("tensor_parallel_size", Unmodelled(Assumed::One)),
    ("startup_time", Setting("startup_time")),
    ("num_gpu_blocks_is_explicit", NoEffect),
    ("gpu_memory_utilization", Setting("gpu_memory_utilization")),
    ("mem_fraction_static", Setting("mem_fraction_static")),
    ("free_gpu_memory_fraction", Setting("free_gpu_memory_fraction")),
    ("cuda_graph_reserved_bytes", Unmodelled(Assumed::Nothing)),
    ("engine", Object),
    ("engine.backend", NotNull("engine_type")),
    ("engine.num_gpu_blocks", NotNull("num_gpu_blocks_override")),
    ("engine.block_size", NotNull("block_size")),
    ("engine.max_model_len", Setting("max_model_len")),
    ("engine.max_num_seqs", Limit("max_num_seqs")),
    ("engine.max_num_batched_tokens", Limit("max_num_batched_tokens")),
    ("engine.prefill_schedule_interval", NotNull("prefill_schedule_interval")),
    (
        "engine.prefill_decode_interval",
        NotNull("sglang_prefill_decode_interval"),
    ),
    ("engine.enable_prefix_caching", NotNull("enable_prefix_caching")),
    ("engine.enable_chunked_prefill", NotNull("enable_chunked_prefill")),
    ("engine.speedup_ratio", NotNull("speedup_ratio")),
    ("engine.decode_speedup_ratio", NotNull("decode_speedup_ratio")),
    ("engine.aic_nextn", Setting("aic_nextn")),
    ("engine.aic_nextn_accept_rates", Setting("aic_nextn_accept_rates")),
    ("engine.aic_mtp_seed", Setting("aic_mtp_seed")),
    ("engine.worker_type", Setting("disaggregation_mode")),
    ("engine.preemption_mode", NotNull("preemption_mode")),
    ("engine.emit_kv_events", Unmodelled(Assumed::True)),
    ("engine.emit_kv_token_ids", NoEffect),
    ("engine.kv_transfer_bytes_per_token", Setting("kv_bytes_per_token")),
    ("engine.kv_bytes_per_token", Setting("kv_bytes_per_token")),
    ("engine.kv_cache_bytes_per_token", Setting("kv_cache_bytes_per_token")),
    ("engine.kv_cache_groups", Unmodelled(Assumed::Nothing)),
    ("engine.kv_cache_capacity_bytes", Unmodelled(Assumed::Nothing)),
    ("engine.native_host_offload", Object),
    (
        "engine.native_host_offload.scope",
        Unmodelled(Assumed::Word("dp_rank_local")),
    ),
    ("engine.native_host_offload.num_host_blocks", NotNull("num_host_blocks")),
    (
        "engine.native_host_offload.d2h_bandwidth_gbps",
        NotNull("host_offload_d2h_bandwidth_gbps"),
    ),
    (
        "engine.native_host_offload.h2d_bandwidth_gbps",
        NotNull("host_offload_h2d_bandwidth_gbps"),
    ),
    (
        "engine.native_host_offload.latency_to_first_byte_ms",
        NotNull("host_offload_latency_ms"),
    ),
    // Of pools that workers share.
    ("engine.native_host_offload.shared_d2h_bandwidth_gbps", NoEffect),
    ("engine.native_host_offload.shared_h2d_bandwidth_gbps", NoEffect),
    ("engine.native_host_offload.kv_layout_id", NoEffect),
    ("engine.g3_offload", Object),
    ("engine.g3_offload.scope", Unmodelled(Assumed::Word("worker_local"))),
    ("engine.g3_offload.num_g3_blocks", NotNull("num_g3_blocks")),
    ("engine.g3_offload.latency_to_first_byte_ms", NotNull("g3_latency_ms")),
    (
        "engine.g3_offload.read_bandwidth_gbps",
        NotNull("bandwidth_g3_to_g2_gbps"),
    ),
    (
        "engine.g3_offload.write_bandwidth_gbps",
        NotNull("bandwidth_g2_to_g3_gbps"),
    ),
    ("engine.g3_offload.shared_read_bandwidth_gbps", NoEffect),
    ("engine.g3_offload.shared_write_bandwidth_gbps", NoEffect),
    ("engine.state_cache", Unmodelled(Assumed::Nothing)),
    ("engine.prefix_match_unit", Unmodelled(Assumed::Nothing)),
    ("engine.kv_transfer_bandwidth", Setting("kv_transfer_bandwidth")),
    ("engine.kv_transfer_timing_mode", Setting("kv_transfer_timing_mode")),
    ("engine.timing_model", Setting("timing_model")),
    ("engine.sglang", Object),
    ("engine.sglang.schedule_policy", Setting("sglang_schedule_policy")),
    ("engine.sglang.max_prefill_tokens", Setting("sglang_max_prefill_tokens")),
    (
        "engine.sglang.chunked_prefill_size",
        Setting("sglang_chunked_prefill_size"),
    ),
    (
        "engine.sglang.clip_max_new_tokens",
        Setting("sglang_clip_max_new_tokens"),
    ),
    (
        "engine.sglang.schedule_conservativeness",
        Setting("sglang_schedule_conservativeness"),
    ),
    ("engine.trtllm", Object),
    (
        "engine.trtllm.capacity_scheduler_policy",
        Setting("trtllm_capacity_scheduler_policy"),
    ),
    ("dynamo", Object),
    ("dynamo.enable_local_indexer", Setting("enable_local_indexer")),
    ("dynamo.bootstrap_port", Setting("bootstrap_ports")),
    (
        "dynamo.handoff_session_timeout_ms",
        Setting("handoff_session_timeout_ms"),
    ),
    ("dynamo.reasoning", Setting("reasoning")),
    (
        "dynamo.response_replay_trace_path",
        Setting("response_replay_trace_path"),
    ),
    ("dynamo.zmq_kv_events_port", Setting("zmq_kv_events_ports")),
    ("dynamo.zmq_replay_port", Setting("zmq_replay_ports")),
    ("dynamo.router_queue_policy", Setting("router_queue_policy")),
];

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
    let document: Value = serde_json::from_str(document).map_err(|error| error.to_string())?;
    let Value::Object(members) = document else {
        return Err("the document must be an object".to_owned());
    };
    let nested = ["engine", "dynamo"].iter().any(|key| members.contains_key(*key));
    let keys = if nested { NESTED } else { FLAT };
    let mut said = Vec::new();
    walk(keys, "", &members, &mut said)?;
    if !nested && members.get("aic_backend").is_some_and(|backend| !backend.is_null()) {
        // A backend is what turns the model on.
        said.push(("aic_backend".to_owned(), one("aic_perf_model", &Value::from(true))?));
    }
    Ok(Document { nested, said })
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
            (Object, Value::Object(inner)) => {
                walk(keys, &format!("{path}."), inner, said)?;
                continue;
            }
            (Object | Setting(_), Value::Null) | (NoEffect, _) => continue,
            (Object, _) => return Err(format!("`{path}` must be an object")),
            (Unmodelled(assumed), value) if assumed.is(value) => continue,
            (Unmodelled(_), value) => return Err(format!("`{path}` is not modelled; leave it out (it is {value})")),
            (NotNull(_) | AnyCase(_) | ZeroIsDefault(_), Value::Null) => {
                return Err(format!("`{path}` must not be null"));
            }
            (Limit(setting), Value::Null) => (setting, Value::from("unlimited")),
            (ZeroIsDefault(_), value) if value == &json!(0) => continue,
            (AnyCase(setting), Value::String(word)) => (setting, Value::from(word.to_lowercase())),
            (
                Setting(setting) | NotNull(setting) | Limit(setting) | ZeroIsDefault(setting) | AnyCase(setting),
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
                    Setting(name) | NotNull(name) | Limit(name) | ZeroIsDefault(name) | AnyCase(name) => {
                        assert!(Settings::GROUP_KEYS.contains(name), "{path} -> {name}");
                    }
                    Object | NoEffect | Unmodelled(_) => {}
                }
            }
        }
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
            let error = read(document, &Origin::Flag).unwrap_err().to_string();
            assert!(
                error.starts_with("--extra-engine-args: ") && error.contains(message),
                "{document}: {error}"
            );
        }
    }

    #[test]
    fn what_the_peer_assumes_anyway_is_accepted() {
        let document = r#"{"tensor_parallel_size": 1, "num_gpu_blocks_is_explicit": true, "cuda_graph_reserved_bytes": null,
            "engine": {"emit_kv_events": true, "state_cache": null, "sglang": null, "max_model_len": null}}"#;
        assert_eq!(merged(document), Map::new());
        assert_eq!(merged(r#"{"block_size": 0, "has_perf_model": false}"#), Map::new());
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
