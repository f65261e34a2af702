//! Where the Hugging Face hub and its cache are: the one place that knows the environment variables.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The public hub.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// How to reach the hub and where its cache lies.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// Base address, without a slash at the end.
    pub endpoint: String,
    /// Cache directory: the one that holds `models--org--name`. `None`: there is no home directory to put it in.
    pub cache: Option<PathBuf>,
    /// Access token for gated and private models; sent to `endpoint` only.
    pub token: Option<String>,
    /// Never use the network.
    pub offline: bool,
    /// Say what is being downloaded.
    pub progress: bool,
    /// Longest wait for a connection, and for each further answer or piece of data.
    pub patience: Duration,
}

impl Default for HubOptions {
    fn default() -> Self {
        Self {
            endpoint: DEFAULT_ENDPOINT.to_owned(),
            cache: None,
            token: None,
            offline: false,
            progress: false,
            patience: Duration::from_secs(30),
        }
    }
}

impl HubOptions {
    /// The options of this process: see [`from_lookup`](Self::from_lookup).
    pub fn from_env() -> Self {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    /// Reads `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HUB_OFFLINE` and
    /// `HF_HUB_DISABLE_PROGRESS_BARS` through `lookup`, with the names' older forms, and the token file. An empty value
    /// counts as unset.
    ///
    /// Source: environment variables of `huggingface_hub` 0.36.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let text = |name: &str| set(name).map(|value| value.to_string_lossy().trim().to_owned());
        let user_home = set("HOME").map(PathBuf::from);
        let path = |name: &str| set(name).map(|value| expand_home(PathBuf::from(value), user_home.as_deref()));
        let hub_home = path("HF_HOME").or_else(|| {
            path("XDG_CACHE_HOME")
                .or_else(|| user_home.as_ref().map(|home| home.join(".cache")))
                .map(|cache| cache.join("huggingface"))
        });
        let token_file = path("HF_TOKEN_PATH").or_else(|| hub_home.as_ref().map(|home| home.join("token")));
        let defaults = Self::default();
        Self {
            endpoint: text("HF_ENDPOINT").map_or(defaults.endpoint, |url| url.trim_end_matches('/').to_owned()),
            cache: path("HF_HUB_CACHE")
                .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
                .or_else(|| hub_home.map(|home| home.join("hub"))),
            token: text("HF_TOKEN")
                .or_else(|| text("HUGGING_FACE_HUB_TOKEN"))
                .or_else(|| token_file.and_then(|file| std::fs::read_to_string(file).ok()))
                .map(|token| token.trim().to_owned())
                .filter(|token| !token.is_empty()),
            offline: ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]
                .iter()
                .any(|name| text(name).is_some_and(|value| is_true(&value))),
            progress: !text("HF_HUB_DISABLE_PROGRESS_BARS").is_some_and(|value| is_true(&value)),
            patience: defaults.patience,
        }
    }
}

/// What the Python hub client takes for "yes".
fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())
}

fn expand_home(path: PathBuf, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> HubOptions {
        HubOptions::from_lookup(|name| {
            vars.iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn nothing_set_means_the_public_hub_and_the_cache_below_home() {
        let options = read(&[("HOME", "/u/ada")]);
        assert_eq!(options.endpoint, DEFAULT_ENDPOINT);
        assert_eq!(options.cache, Some(PathBuf::from("/u/ada/.cache/huggingface/hub")));
        assert_eq!(options.token, None);
        assert!(!options.offline);
        assert!(options.progress);
    }

    #[test]
    fn the_cache_variable_beats_the_home_variable() {
        let options = read(&[("HOME", "/u/ada"), ("HF_HOME", "~/hf"), ("HF_HUB_CACHE", "/big/hub")]);
        assert_eq!(options.cache, Some(PathBuf::from("/big/hub")));
        let options = read(&[("HOME", "/u/ada"), ("HF_HOME", "~/hf")]);
        assert_eq!(options.cache, Some(PathBuf::from("/u/ada/hf/hub")));
    }

    #[test]
    fn the_token_file_is_used_when_the_variable_is_not_set() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), "hf_file\n").unwrap();
        let home = home.path().to_str().unwrap().to_owned();
        assert_eq!(read(&[("HF_HOME", &home)]).token.as_deref(), Some("hf_file"));
        assert_eq!(
            read(&[("HF_HOME", &home), ("HF_TOKEN", "hf_env")]).token.as_deref(),
            Some("hf_env")
        );
    }

    #[test]
    fn offline_takes_the_usual_words_for_yes() {
        for yes in ["1", "true", "YES", "On"] {
            assert!(read(&[("HF_HUB_OFFLINE", yes)]).offline, "{yes}");
        }
        for no in ["", "0", "false", "no"] {
            assert!(!read(&[("HF_HUB_OFFLINE", no)]).offline, "{no}");
        }
    }

    #[test]
    fn an_endpoint_loses_its_last_slash() {
        assert_eq!(
            read(&[("HF_ENDPOINT", "http://127.0.0.1:1/")]).endpoint,
            "http://127.0.0.1:1"
        );
    }
}
