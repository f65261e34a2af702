//! LoRA adapters: names that clients may ask for instead of the model's.

use std::sync::Arc;

use super::ConfigError;
use super::layers::Layered;
use super::rules::refused;

/// One adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoraModule {
    /// Name that clients use.
    pub name: Arc<str>,
    /// Where it is said to be; never read.
    pub path: Option<String>,
}

/// Most adapters of a group.
const MAX_ADAPTERS: usize = 256;

/// Reads `name[=path]`, comma separated.
pub(super) fn resolve(layered: &Layered, text: Option<&str>) -> Result<Vec<LoraModule>, ConfigError> {
    let wrong = |why: &str| Err(refused(layered, "lora_modules", why));
    let mut modules: Vec<LoraModule> = Vec::new();
    for word in text.unwrap_or_default().split(',').map(str::trim) {
        if word.is_empty() {
            continue;
        }
        let (name, path) = match word.split_once('=') {
            Some((name, path)) => (name.trim(), Some(path.trim().to_owned())),
            None => (word, None),
        };
        if name.is_empty() {
            return wrong("must be names, comma separated, each with or without =PATH");
        }
        if modules.iter().any(|module| &*module.name == name) {
            return wrong(&format!("names {name:?} twice"));
        }
        modules.push(LoraModule {
            name: name.into(),
            path,
        });
    }
    if modules.len() > MAX_ADAPTERS {
        return wrong(&format!("names more than {MAX_ADAPTERS} adapters"));
    }
    Ok(modules)
}
