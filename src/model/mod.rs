//! What `--model-path` means: the model's config and tokenizer files, from a local directory or from the Hugging Face
//! hub, and what is made of them: the deployment card, the tokenizer, the limits an engine needs. Weights are never
//! read, let alone downloaded.
//!
//! [`Model::resolve`] blocks (disk, network) and is called once per fleet; all workers share the result.

mod cache;
pub mod card;
pub mod detokenize;
mod experts;
mod files;
mod hub;
mod info;
mod kv_size;
mod options;
mod progress;
mod spec;
mod strftime;
pub mod template;
pub mod tokenizer;

use std::io;
use std::path::{Path, PathBuf};

pub use experts::has_experts;
pub use files::{ChatTemplateFile, CheckedFile, ModelFiles};
pub use info::ModelInfo;
pub use kv_size::{CACHE_DTYPES, KvShape, KvSizeRule};
pub use options::{DEFAULT_ENDPOINT, HubOptions};
pub use spec::{HubId, ModelSpec};

/// A model's files and what they say.
#[derive(Debug, Clone)]
pub struct Model {
    /// Where it came from.
    pub origin: Origin,
    /// Absolute path of the directory with the files.
    pub dir: PathBuf,
    /// The files.
    pub files: ModelFiles,
    /// Limits and token ids.
    pub info: ModelInfo,
}

/// Where a model came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A directory.
    Local,
    /// The hub, or its cache.
    Hub {
        /// Repository, and revision when one was asked for.
        id: HubId,
        /// Commit of the snapshot.
        commit: String,
    },
}

impl Model {
    /// Finds the model that `spec` names: a directory, or a hub id (`Qwen/Qwen3-0.6B`, `org/name@revision`). A hub
    /// model comes from the cache when that holds its config and tokenizer, else those files are downloaded.
    ///
    /// # Errors
    /// [`ModelError`] says what is missing or broken and what to do.
    pub fn resolve(spec: &str, options: &HubOptions) -> Result<Self, ModelError> {
        match ModelSpec::parse(spec)? {
            ModelSpec::Directory(dir) => Self::read(Origin::Local, dir),
            ModelSpec::Hub(id) => {
                let snapshot = hub::snapshot(&id, options)?;
                let commit = snapshot.commit;
                Self::read(Origin::Hub { id, commit }, snapshot.dir)
            }
        }
    }

    /// Name for clients when no other is given: the hub id, or the path of the directory.
    pub fn name(&self) -> String {
        match &self.origin {
            Origin::Local => self.dir.display().to_string(),
            Origin::Hub { id, .. } => id.repo.clone(),
        }
    }

    fn read(origin: Origin, dir: PathBuf) -> Result<Self, ModelError> {
        let contents = files::read(&dir)?;
        let info = ModelInfo::read(&contents)?;
        Ok(Self {
            origin,
            dir,
            files: contents.files,
            info,
        })
    }
}

/// Why there is no model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Neither a directory nor an id.
    #[error(
        "model path {spec} does not exist and is no Hugging Face id; give a directory with config.json and \
         tokenizer.json, or an id such as Qwen/Qwen3-0.6B"
    )]
    NoSuchPath {
        /// What was given.
        spec: String,
    },
    /// A file was given.
    #[error("model path {} is a file; give the directory that holds it", path.display())]
    NotADirectory {
        /// What was given.
        path: PathBuf,
    },
    /// A needed file is not there.
    #[error("model directory {} has no {file}: {hint}", dir.display())]
    MissingFile {
        /// Where it was looked for.
        dir: PathBuf,
        /// Its name.
        file: &'static str,
        /// What it is for and where to get it.
        hint: &'static str,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file has the wrong content.
    #[error("{} is not usable: {reason}; replace it with the file of the model's repository", path.display())]
    Broken {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Offline and not cached.
    #[error(
        "model {id} is not in the cache {} and HF_HUB_OFFLINE forbids a download; give --model-path a local directory \
         with config.json, tokenizer.json and tokenizer_config.json, point HF_HOME or HF_HUB_CACHE at a cache that has \
         the model, or unset HF_HUB_OFFLINE", cache.display()
    )]
    Offline {
        /// Repository.
        id: String,
        /// Where it was looked for.
        cache: PathBuf,
    },
    /// Nowhere to put a download.
    #[error("no cache directory for model {id}: set HF_HOME or HF_HUB_CACHE, or give --model-path a local directory")]
    NoCache {
        /// Repository.
        id: String,
    },
    /// 401 or 403.
    #[error(
        "{endpoint} refuses access to model {id} (HTTP {status}{}): it is gated, private or misspelt; set HF_TOKEN to \
         a token that may read it, or give --model-path a local directory",
        detail_suffix(detail)
    )]
    Forbidden {
        /// Hub.
        endpoint: String,
        /// Repository.
        id: String,
        /// 401 or 403.
        status: u16,
        /// The hub's own words, possibly empty.
        detail: String,
    },
    /// 404.
    #[error(
        "model {id} was not found at {endpoint}{}; check the spelling of the id and its revision (no directory of that \
         name exists either)",
        detail_suffix(detail)
    )]
    NotFound {
        /// Hub.
        endpoint: String,
        /// Repository.
        id: String,
        /// The hub's own words, possibly empty.
        detail: String,
    },
    /// No connection, or it broke.
    #[error(
        "cannot download model {id} from {endpoint}: {reason}; check the network and HF_ENDPOINT, or give --model-path \
         a local directory"
    )]
    Unreachable {
        /// Hub.
        endpoint: String,
        /// Repository.
        id: String,
        /// What failed.
        reason: String,
    },
    /// The hub answered with something unusable.
    #[error("{endpoint} gave an unusable answer for model {id}: {reason}")]
    BadAnswer {
        /// Hub.
        endpoint: String,
        /// Repository.
        id: String,
        /// What was wrong.
        reason: String,
    },
    /// The cache cannot be written.
    #[error("cannot write {}: {source}; {}", path.display(), write_hint(source))]
    Unwritable {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl ModelError {
    fn unreadable(path: &Path, source: io::Error) -> Self {
        Self::Unreadable {
            path: path.to_owned(),
            source,
        }
    }

    fn broken(path: &Path, reason: &(impl ToString + ?Sized)) -> Self {
        Self::Broken {
            path: path.to_owned(),
            reason: reason.to_string(),
        }
    }

    fn unwritable(path: &Path, source: io::Error) -> Self {
        Self::Unwritable {
            path: path.to_owned(),
            source,
        }
    }
}

fn detail_suffix(detail: &str) -> String {
    if detail.is_empty() {
        String::new()
    } else {
        format!(": {detail}")
    }
}

fn write_hint(source: &io::Error) -> &'static str {
    if source.kind() == io::ErrorKind::StorageFull || source.kind() == io::ErrorKind::QuotaExceeded {
        "the disk is full: free some space, or set HF_HOME or HF_HUB_CACHE to a directory on another disk"
    } else {
        "set HF_HOME or HF_HUB_CACHE to a directory that can be written"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_named_with_the_way_out() {
        let error = ModelError::unwritable(Path::new("/cache/blobs/x"), io::ErrorKind::StorageFull.into());
        let text = error.to_string();
        assert!(
            text.contains("/cache/blobs/x") && text.contains("disk is full") && text.contains("HF_HOME"),
            "{text}"
        );
        let text = ModelError::unwritable(Path::new("/x"), io::ErrorKind::PermissionDenied.into()).to_string();
        assert!(!text.contains("full") && text.contains("HF_HUB_CACHE"), "{text}");
    }
}
