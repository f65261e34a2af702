//! Tells a directory from a hub id.

use std::path::{Path, PathBuf};

use super::ModelError;

/// What a `--model-path` value names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSpec {
    /// A directory that exists; absolute.
    Directory(PathBuf),
    /// A repository of the hub.
    Hub(HubId),
}

/// A repository of the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubId {
    /// `org/name`, or `name` for the oldest models.
    pub repo: String,
    /// Branch, tag or commit; `None`: `main`.
    pub revision: Option<String>,
}

impl HubId {
    /// The revision to ask for.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl ModelSpec {
    /// Reads a value: what exists on disk is a directory; `[hf://]org/name[@revision]` is a hub id.
    ///
    /// # Errors
    /// [`ModelError::NotADirectory`] for a file, [`ModelError::NoSuchPath`] for what is neither.
    pub fn parse(spec: &str) -> Result<Self, ModelError> {
        let path = Path::new(spec);
        if path.is_dir() {
            let dir = std::path::absolute(path).map_err(|source| ModelError::unreadable(path, source))?;
            return Ok(Self::Directory(dir));
        }
        // A link that leads nowhere, or in a circle, is meant as a path all the same.
        if path.symlink_metadata().is_ok() {
            if let Err(source) = path.metadata() {
                return Err(ModelError::unreadable(path, source));
            }
            return Err(ModelError::NotADirectory { path: path.to_owned() });
        }
        let id = spec.strip_prefix("hf://").unwrap_or(spec);
        let (repo, revision) = match id.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision)),
            None => (id, None),
        };
        if is_repo(repo) && revision.is_none_or(is_revision) {
            Ok(Self::Hub(HubId {
                repo: repo.to_owned(),
                revision: revision.map(str::to_owned),
            }))
        } else {
            Err(ModelError::NoSuchPath { spec: spec.to_owned() })
        }
    }
}

/// Longest repository id the hub takes.
const MAX_REPO_LEN: usize = 96;
const MAX_REVISION_LEN: usize = 255;

/// Source: `validate_repo_id` of `huggingface_hub` 0.36: one or two parts of letters, digits, `-`, `_`, `.`, which may
/// not begin or end with `-` or `.`, and neither `--` nor `..` anywhere.
fn is_repo(repo: &str) -> bool {
    let part = |part: &str| {
        let bytes = part.as_bytes();
        let inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let outer = |byte: Option<&u8>| byte.is_some_and(|byte| !matches!(byte, b'-' | b'.'));
        bytes.iter().all(inner) && outer(bytes.first()) && outer(bytes.last())
    };
    repo.len() <= MAX_REPO_LEN
        && repo.split('/').count() <= 2
        && repo.split('/').all(part)
        && !repo.contains("--")
        && !repo.contains("..")
        && Path::new(repo).extension().is_none_or(|ext| ext != "git")
}

/// Also keeps a revision from leaving the cache's `refs` directory.
fn is_revision(revision: &str) -> bool {
    !revision.is_empty()
        && revision.len() <= MAX_REVISION_LEN
        && revision
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte))
        && revision
            .split('/')
            .all(|part| !part.is_empty() && !part.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(spec: &str) -> Option<(String, Option<String>)> {
        match ModelSpec::parse(spec) {
            Ok(ModelSpec::Hub(HubId { repo, revision })) => Some((repo, revision)),
            Ok(ModelSpec::Directory(_)) | Err(_) => None,
        }
    }

    #[test]
    fn ids_are_told_from_paths() {
        assert_eq!(hub("Qwen/Qwen3-0.6B"), Some(("Qwen/Qwen3-0.6B".into(), None)));
        assert_eq!(hub("hf://Qwen/Qwen3-0.6B"), Some(("Qwen/Qwen3-0.6B".into(), None)));
        assert_eq!(
            hub("org/name@refs/pr/3"),
            Some(("org/name".into(), Some("refs/pr/3".into())))
        );
        assert_eq!(hub("gpt2"), Some(("gpt2".into(), None)));
        for path in [
            "",
            "/models/x",
            "./x/y",
            "../x",
            "~/models",
            "a/b/c",
            "a//b",
            "/",
            "x y",
            "org/..",
            "org/na--me",
            "org/name.git",
            "org/name@",
            "org/name@../../x",
            "org/name@a/../b",
            "org/-x",
            "org/\u{e9}",
        ] {
            assert_eq!(hub(path), None, "{path}");
        }
        assert_eq!(hub(&"x".repeat(97)), None);
    }

    #[test]
    fn a_directory_wins_over_an_id_and_becomes_absolute() {
        let ModelSpec::Directory(dir) = ModelSpec::parse("src").unwrap() else {
            panic!("src is a directory")
        };
        assert!(dir.is_absolute() && dir.ends_with("src"));
    }

    #[test]
    fn a_file_is_refused_with_the_way_out() {
        let error = ModelSpec::parse("Cargo.toml").unwrap_err().to_string();
        assert!(
            error.contains("Cargo.toml is a file") && error.contains("directory"),
            "{error}"
        );
    }
}
