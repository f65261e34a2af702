//! Whether a model is a mixture of experts, from its `config.json`.

use std::io;
use std::path::Path;

use serde_json::{Map, Value};

use super::files::CONFIG;
use super::info::TextConfig;

/// Keys of the number of experts. Source: config classes of `transformers` 5.24.
const KEYS: [&str; 4] = [
    "num_experts",
    "n_routed_experts",
    "num_local_experts",
    "moe_num_experts",
];

/// Whether the model in `directory` has more than one expert.
///
/// # Errors
/// Those of its `config.json`: not there, not readable, not a JSON object.
pub fn has_experts(directory: &Path) -> io::Result<bool> {
    let config: Map<String, Value> = serde_json::from_slice(&std::fs::read(directory.join(CONFIG))?)?;
    let config = TextConfig(&config);
    Ok(KEYS
        .iter()
        .any(|key| config.number(key).is_some_and(|experts| experts > 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_are_found_in_the_config_and_in_its_text_part() {
        let directory = tempfile::tempdir().unwrap();
        let has = |config: &str| {
            std::fs::write(directory.path().join(CONFIG), config).unwrap();
            has_experts(directory.path())
        };
        assert!(has(r#"{"n_routed_experts": 256}"#).unwrap());
        assert!(has(r#"{"text_config": {"num_local_experts": 8}}"#).unwrap());
        assert!(!has(r#"{"hidden_size": 64, "num_experts": 0}"#).unwrap());
        assert!(has("[]").is_err());
        assert!(has_experts(Path::new("/nowhere")).is_err());
    }
}
