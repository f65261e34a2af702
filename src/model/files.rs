//! The files of a model directory: which there are, and one pass over each for digest and content.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::ModelError;
use super::info::TokenizerSummary;

pub(super) const CONFIG: &str = "config.json";
pub(super) const TOKENIZER: &str = "tokenizer.json";
pub(super) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const CHAT_TEMPLATE_JINJA: &str = "chat_template.jinja";
const CHAT_TEMPLATE_JSON: &str = "chat_template.json";

/// A file to fetch from the hub.
pub(super) struct Wanted {
    /// Its name.
    pub(super) name: &'static str,
    /// Set when there is no model without it: why, and where to get it.
    pub(super) required: Option<&'static str>,
}

/// Everything that is ever downloaded. The files without a reader here are those that other programs expect beside a
/// tokenizer in the shared cache.
pub(super) const WANTED: [Wanted; 8] = [
    Wanted {
        name: CONFIG,
        required: Some("it has the context length and the vocabulary size; copy it from the model's repository"),
    },
    Wanted {
        name: TOKENIZER,
        required: Some(
            "frontends tokenize with it (tokenizer.model and vocab.txt will not do); copy it from the model's \
             repository or save one with transformers' save_pretrained",
        ),
    },
    Wanted {
        name: TOKENIZER_CONFIG,
        required: Some("frontends format chat requests with it; copy it from the model's repository"),
    },
    Wanted {
        name: GENERATION_CONFIG,
        required: None,
    },
    Wanted {
        name: CHAT_TEMPLATE_JINJA,
        required: None,
    },
    Wanted {
        name: CHAT_TEMPLATE_JSON,
        required: None,
    },
    Wanted {
        name: "special_tokens_map.json",
        required: None,
    },
    Wanted {
        name: "added_tokens.json",
        required: None,
    },
];

/// A file with what a frontend checks it by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedFile {
    /// Absolute path.
    pub path: PathBuf,
    /// Digest of the content.
    pub blake3: blake3::Hash,
    /// Length in bytes.
    pub size: u64,
}

/// A chat template beside the tokenizer's config, which it overrules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChatTemplateFile {
    /// `chat_template.jinja`: the template itself.
    Jinja(CheckedFile),
    /// `chat_template.json`: an object with the template under `chat_template`.
    Json(CheckedFile),
}

impl ChatTemplateFile {
    /// The file.
    pub fn file(&self) -> &CheckedFile {
        match self {
            Self::Jinja(file) | Self::Json(file) => file,
        }
    }
}

/// The files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFiles {
    /// `config.json`.
    pub config: CheckedFile,
    /// `tokenizer.json`.
    pub tokenizer: CheckedFile,
    /// `tokenizer_config.json`.
    pub tokenizer_config: CheckedFile,
    /// `generation_config.json`.
    pub generation_config: Option<CheckedFile>,
    /// `chat_template.jinja` or else `chat_template.json`.
    pub chat_template: Option<ChatTemplateFile>,
}

/// The files with what was read from them.
pub(super) struct Contents {
    pub(super) files: ModelFiles,
    pub(super) config: Map<String, Value>,
    pub(super) generation_config: Map<String, Value>,
    pub(super) tokenizer_config: Map<String, Value>,
    pub(super) tokenizer: TokenizerSummary,
}

/// Reads a model directory.
pub(super) fn read(dir: &Path) -> Result<Contents, ModelError> {
    let (config_file, config) = needed(dir, CONFIG)?;
    let (tokenizer_file, tokenizer) = needed(dir, TOKENIZER)?;
    let (tokenizer_config_file, tokenizer_config) = needed(dir, TOKENIZER_CONFIG)?;
    let generation = optional(dir, GENERATION_CONFIG)?;
    let chat_template = match optional_bytes(dir, CHAT_TEMPLATE_JINJA)? {
        Some((file, _)) => Some(ChatTemplateFile::Jinja(file)),
        None => optional::<Map<String, Value>>(dir, CHAT_TEMPLATE_JSON)?.map(|(file, _)| ChatTemplateFile::Json(file)),
    };
    let (generation_file, generation_config) = generation.unzip();
    Ok(Contents {
        files: ModelFiles {
            config: config_file,
            tokenizer: tokenizer_file,
            tokenizer_config: tokenizer_config_file,
            generation_config: generation_file,
            chat_template,
        },
        config,
        generation_config: generation_config.unwrap_or_default(),
        tokenizer_config,
        tokenizer,
    })
}

fn needed<T: DeserializeOwned>(dir: &Path, name: &'static str) -> Result<(CheckedFile, T), ModelError> {
    let hint = WANTED
        .iter()
        .find(|wanted| wanted.name == name)
        .and_then(|wanted| wanted.required)
        .unwrap_or_default();
    optional(dir, name)?.ok_or_else(|| ModelError::MissingFile {
        dir: dir.to_owned(),
        file: name,
        hint,
    })
}

fn optional<T: DeserializeOwned>(dir: &Path, name: &str) -> Result<Option<(CheckedFile, T)>, ModelError> {
    let Some((file, bytes)) = optional_bytes(dir, name)? else {
        return Ok(None);
    };
    let value = serde_json::from_slice(&bytes).map_err(|error| ModelError::broken(&file.path, &error))?;
    Ok(Some((file, value)))
}

fn optional_bytes(dir: &Path, name: &str) -> Result<Option<(CheckedFile, Vec<u8>)>, ModelError> {
    let path = dir.join(name);
    if fs::metadata(&path).is_ok_and(|meta| !meta.is_file()) {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
        return Err(ModelError::unreadable(&path, source));
    }
    match fs::read(&path) {
        Ok(bytes) => {
            let file = CheckedFile {
                blake3: blake3::hash(&bytes),
                size: bytes.len() as u64,
                path,
            };
            Ok(Some((file, bytes)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ModelError::unreadable(&path, error)),
    }
}
