//! Which files describe a model: those of its directory, or those that a directory of configs has under its name.

use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use super::shape::TEXT;
use super::{AicError, AicModel, files};

/// What the files of a model say.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ModelConfig {
    /// Where `config` came from.
    pub(super) path: PathBuf,
    /// `config.json`.
    pub(super) config: Map<String, Value>,
    /// `quantization_config` of that, or of its part about text.
    pub(super) quantization: Map<String, Value>,
    /// `quantization` of `hf_quant_config.json`, which `ModelOpt` writes beside it.
    pub(super) model_opt: Map<String, Value>,
}

impl ModelConfig {
    /// Reads the files of a model.
    ///
    /// # Errors
    /// [`AicError`] names the file, or says where the model was looked for.
    pub(super) fn read(model: &AicModel) -> Result<Self, AicError> {
        let (path, model_opt) = paths(model)?;
        let config = files::json_object(&path)?;
        let model_opt = files::optional_json_object(&model_opt)?.unwrap_or_default();
        let key = "quantization_config";
        let quantization = if config.contains_key(key) {
            part(&config, key)
        } else {
            part(&part(&config, TEXT), key)
        };
        Ok(Self {
            quantization,
            model_opt: part(&model_opt, "quantization"),
            path,
            config,
        })
    }
}

/// An object in an object; nothing where there is none.
fn part(object: &Map<String, Value>, key: &str) -> Map<String, Value> {
    match object.get(key) {
        Some(Value::Object(part)) => part.clone(),
        _ => Map::new(),
    }
}

/// Paths of the config and of what `ModelOpt` says.
fn paths(model: &AicModel) -> Result<(PathBuf, PathBuf), AicError> {
    let directory = &model.model_path;
    if directory.is_dir() {
        return Ok((directory.join("config.json"), directory.join("hf_quant_config.json")));
    }
    let missing = |why: String| AicError::Model {
        model: directory.display().to_string(),
        why,
    };
    let Some(configs) = &model.model_configs else {
        let why = "there is no such directory; give the model's directory as --model-path, or the model_configs directory of \
                   aiconfigurator-core as --aic-model-configs";
        return Err(missing(why.to_owned()));
    };
    let Some(name) = file_name(directory) else {
        return Err(missing(
            "there is no such directory, and it is no name of a model".to_owned(),
        ));
    };
    let config = configs.join(format!("{name}_config.json"));
    if config.is_file() {
        return Ok((config, configs.join(format!("{name}_hf_quant_config.json"))));
    }
    Err(missing(format!(
        "there is neither such a directory nor {}; give a directory that has the file",
        config.display()
    )))
}

/// How a directory of configs spells the name of a model: `org--model`. `None`: a path that is no such name.
fn file_name(model: &Path) -> Option<String> {
    let part = |component| match component {
        Component::Normal(part) => part.to_str(),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => None,
    };
    let parts: Option<Vec<&str>> = model.components().map(part).collect();
    parts.filter(|parts| !parts.is_empty()).map(|parts| parts.join("--"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_name_becomes_a_file_name() {
        assert_eq!(file_name(Path::new("Qwen/Qwen3-32B")).unwrap(), "Qwen--Qwen3-32B");
        assert_eq!(file_name(Path::new("tiny")).unwrap(), "tiny");
        for other in ["", "/srv/models/x", "../x", "a/../b", "./a"] {
            assert_eq!(file_name(Path::new(other)), None, "{other}");
        }
    }
}
