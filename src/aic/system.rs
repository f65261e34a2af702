//! A GPU system: its YAML file in the systems directory, and which kernel of attention an engine takes on it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{AicError, AicModel, files};
use crate::plain_words::plain;

/// Files of a systems directory that describe no system.
const NO_SYSTEMS: [&str; 3] = ["attention_lane_defaults", "perf_data_reuse_manifest", "query_versions"];
const LANES: &str = "attention_lane_defaults.yaml";

/// The part of a system's file that matters here.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct SystemFile {
    /// Directory of the measurements, relative to the systems directory.
    pub(super) data_dir: String,
    pub(super) gpu: Gpu,
    #[serde(default)]
    pub(super) misc: Misc,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Gpu {
    /// Bytes.
    #[serde(default)]
    pub(super) mem_capacity: Option<u64>,
    /// Generation of the instruction set: 90 for Hopper.
    #[serde(default)]
    sm_version: Option<u64>,
}

/// Memory that is taken before a model is loaded.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(super) struct Misc {
    /// Bytes of communication buffers by tensor parallel size.
    #[serde(default)]
    pub(super) nccl_mem: BTreeMap<u64, u64>,
    /// Bytes.
    #[serde(default)]
    pub(super) other_mem: Option<u64>,
}

/// Kernel of attention by engine, version and generation of the instruction set.
type Lanes = BTreeMap<String, BTreeMap<String, BTreeMap<u64, String>>>;

/// A system with the file it came from.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct System {
    pub(super) path: PathBuf,
    pub(super) file: SystemFile,
}

impl System {
    /// Reads a model's system.
    ///
    /// # Errors
    /// [`AicError::System`] lists the systems there are; [`AicError::Content`] names the key.
    pub(super) fn read(model: &AicModel) -> Result<Self, AicError> {
        let path = model.systems_path.join(format!("{}.yaml", model.system));
        if !is_word(&model.system) || !path.is_file() {
            return Err(AicError::System {
                system: model.system.clone(),
                systems_path: model.systems_path.clone(),
                known: known(&model.systems_path)?,
            });
        }
        let file = yaml(&path)?;
        Ok(Self { path, file })
    }

    /// Kernels of attention in the order in which measurements are looked for; those not named come after.
    ///
    /// # Errors
    /// The list of kernels cannot be read; there need be none.
    pub(super) fn lanes(&self, model: &AicModel, version: &str) -> Result<Vec<String>, AicError> {
        let path = model.systems_path.join(LANES);
        let table: Lanes = if path.is_file() { yaml(&path)? } else { Lanes::new() };
        let ordinary = "default".to_owned();
        let (wanted, sm) = (release(version), self.file.gpu.sm_version);
        let versions = table.get(model.backend.name());
        let newest = versions
            .into_iter()
            .flatten()
            .filter(|(version, _)| release(version) <= wanted)
            .max_by_key(|(version, _)| release(version));
        let lane = newest
            .and_then(|(_, lanes)| lanes.get(&sm?))
            .filter(|lane| **lane != ordinary);
        Ok(lane.cloned().into_iter().chain([ordinary]).collect())
    }
}

/// The leading numbers of a version: `1.3.0rc20` is 1, 3, 0.
fn release(version: &str) -> Vec<u64> {
    let mut numbers = Vec::new();
    for part in version.split('.') {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        let Ok(number) = digits.parse() else { break };
        numbers.push(number);
        if digits.len() < part.len() {
            break;
        }
    }
    numbers
}

/// A YAML file; errors name the key.
pub(super) fn yaml<T: DeserializeOwned>(path: &Path) -> Result<T, AicError> {
    let text = files::text(path)?;
    let document: serde_norway::Value =
        serde_norway::from_str(&text).map_err(|error| files::content(path, error.to_string()))?;
    serde_path_to_error::deserialize(document)
        .map_err(|error| files::content(path, plain(&error.path().to_string(), &error.inner().to_string())))
}

/// Whether a text can be the name of one file or directory.
pub(super) fn is_word(text: &str) -> bool {
    !text.is_empty() && text != "." && text != ".." && !text.contains(['/', '\\', '\0'])
}

/// The systems of a directory, in words.
fn known(systems_path: &Path) -> Result<String, AicError> {
    let names = entries(systems_path)?;
    let names = names.iter().filter_map(|name| name.strip_suffix(".yaml"));
    let names: Vec<&str> = names.filter(|name| !NO_SYSTEMS.contains(name)).collect();
    Ok(if names.is_empty() {
        "none, so it may be the wrong directory".to_owned()
    } else {
        names.join(", ")
    })
}

/// Names in a directory, sorted.
pub(super) fn entries(directory: &Path) -> Result<Vec<String>, AicError> {
    let failed = |source| AicError::Read {
        path: directory.to_owned(),
        source,
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_candidate_counts_as_its_release() {
        assert_eq!(release("1.3.0rc20"), [1, 3, 0]);
        assert_eq!(release("0.5.14.post1"), [0, 5, 14]);
        assert_eq!(release("rc1"), Vec::<u64>::new());
        assert!(release("0.5.14") > release("0.5.9"));
        assert!(release("99999999999999999999999.1").is_empty());
    }
}
