//! The model deployment card: what a worker tells frontends about its model.
//!
//! Source: `card_json` of Dynamo 1.6.1 and 1.4.2; both read the same card.

use std::sync::Arc;

use serde::Serialize;
use serde_json::json;

use super::{ChatTemplateFile, CheckedFile, Model, Origin};

/// What the card says beyond the model's files. It holds nothing of a single worker, so that all workers of a group can
/// share one text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardOptions {
    /// Name that clients use.
    pub display_name: String,
    /// Tokens per KV block; equal to that of the KV events.
    pub block_size: u32,
    /// Migrations per request that a frontend may try (it only reports the value; its own flag decides).
    pub migration_limit: u32,
    /// Longest sequence in tokens (`max_model_len`); `None`: what the model's config says.
    pub context_length: Option<u32>,
    /// KV blocks per rank.
    pub total_kv_blocks: u64,
    /// Running requests per rank; `None`: no limit.
    pub max_num_seqs: Option<u32>,
    /// Token budget of a pass; `None`: no limit.
    pub max_num_batched_tokens: Option<u32>,
    /// Data-parallel ranks per worker.
    pub data_parallel_size: u32,
    /// KV events are published.
    pub kv_events: bool,
    /// The worker answers index recovery queries.
    pub local_indexer: bool,
    /// Part in the fleet.
    pub role: Role,
    /// The card is that of a LoRA adapter, one of so many; `None`: of the model itself.
    pub lora_of: Option<u32>,
    /// Requests may ask for recorded answers.
    pub recorded_answers: bool,
}

/// Part of a worker in the fleet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Role {
    /// Prefill and decode.
    #[default]
    Aggregated,
    /// Prefill alone; needs decode workers. [`with_rendezvous`] adds where they meet.
    Prefill,
    /// Decode alone; needs prefill workers.
    Decode,
}

impl Role {
    /// `worker_type` of the card.
    pub fn worker_type(self) -> &'static str {
        match self {
            Self::Aggregated => "aggregated",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }

    /// `model_type` of the card: what clients may ask the worker for.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Aggregated | Self::Decode => "Chat | Completions",
            Self::Prefill => "",
        }
    }

    fn needs(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Aggregated => &[],
            Self::Prefill => &[&["decode"]],
            Self::Decode => &[&["prefill"]],
        }
    }
}

/// The display name has nothing to make a slug of.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("model name {0:?} has no letter or digit; give --model-name one")]
pub struct EmptyName(pub String);

/// Builds the card of `model`, as JSON.
///
/// # Errors
/// [`EmptyName`].
pub fn render(model: &Model, options: &CardOptions) -> Result<Arc<str>, EmptyName> {
    let files = &model.files;
    let checked = |file: &CheckedFile| Checked::new(model, file);
    let context_length = options.context_length.or(model.info.context_length).unwrap_or(0);
    let mut card = json!({
        "display_name": options.display_name,
        "slug": slug(&options.display_name)?,
        "model_info": { "hf_config_json": checked(&files.config) },
        "tokenizer": { "hf_tokenizer_json": checked(&files.tokenizer) },
        "prompt_formatter": { "hf_tokenizer_config_json": checked(&files.tokenizer_config) },
        "context_length": context_length,
        "kv_cache_block_size": options.block_size,
        "migration_limit": options.migration_limit,
        "model_type": options.role.model_type(),
        "model_input": "Tokens",
        "worker_type": options.role.worker_type(),
        "needs": options.role.needs(),
        "runtime_config": {
            "context_length": context_length,
            "total_kv_blocks": options.total_kv_blocks,
            "max_num_seqs": options.max_num_seqs,
            "max_num_batched_tokens": options.max_num_batched_tokens,
            "tool_call_parser": null,
            "reasoning_parser": null,
            "data_parallel_start_rank": 0,
            "data_parallel_size": options.data_parallel_size,
            "enable_local_indexer": options.local_indexer,
            "kv_event_publishing_enabled": options.kv_events,
        },
        "media_decoder": null,
        "media_fetcher": null,
    });
    if let Some(adapters) = options.lora_of {
        card["lora"] = json!({ "name": options.display_name, "max_gpu_lora_count": adapters });
    }
    if options.recorded_answers {
        card["runtime_config"]["runtime_data"] = json!({ "output_replay_consumer": true });
    }
    if let Origin::Hub { id, .. } = &model.origin {
        card["source_path"] = json!(id.repo);
    }
    if let Some(file) = &files.generation_config {
        card["gen_config"] = json!({ "hf_generation_config_json": checked(file) });
    }
    if let Some(template) = &files.chat_template {
        let key = match template {
            ChatTemplateFile::Jinja(_) => "hf_chat_template",
            ChatTemplateFile::Json(_) => "hf_chat_template_json",
        };
        card["chat_template_file"] = json!({ key: { "is_custom": false, "file": checked(template.file()) } });
    }
    if let Some(length) = model.info.context_length {
        card["architectural_max_context_length"] = json!(length);
    }
    Ok(card.to_string().into())
}

/// The card of one prefill worker: that of its group, and where decode workers meet it.
///
/// # Errors
/// When `card` is no card.
pub fn with_rendezvous(card: &str, host: &str, port: u16) -> Result<String, serde_json::Error> {
    let mut card: serde_json::Value = serde_json::from_str(card)?;
    card["runtime_config"]["disaggregated_endpoint"] = json!({ "bootstrap_host": host, "bootstrap_port": port });
    Ok(card.to_string())
}

/// Name as a key: ASCII lower case, everything but `[a-z0-9_-]` as `_`, no `_` in front.
///
/// # Errors
/// [`EmptyName`].
pub fn slug(name: &str) -> Result<String, EmptyName> {
    let keep = |c: char| {
        if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_' {
            c
        } else {
            '_'
        }
    };
    let slug: String = name.to_lowercase().chars().map(keep).collect();
    let slug = slug.trim_start_matches('_');
    if slug.is_empty() {
        Err(EmptyName(name.to_owned()))
    } else {
        Ok(slug.to_owned())
    }
}

/// `CheckedFile` of the card.
#[derive(Serialize)]
struct Checked {
    path: String,
    checksum: String,
    size: u64,
}

impl Checked {
    /// A hub model's files are `hf://<id>/<file>`, so that a frontend on any host finds them. That address has no room for
    /// a revision: a pinned one keeps its local paths, because the branch's files would fail the digest.
    fn new(model: &Model, file: &CheckedFile) -> Self {
        let name = file.path.file_name().map(|name| name.to_string_lossy());
        let path = match (&model.origin, name) {
            (Origin::Hub { id, .. }, Some(name)) if id.revision.is_none() => format!("hf://{}/{name}", id.repo),
            (Origin::Hub { .. } | Origin::Local, _) => file.path.display().to_string(),
        };
        Self {
            path,
            checksum: format!("blake3:{}", file.blake3),
            size: file.size,
        }
    }
}
