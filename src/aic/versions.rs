//! Which version of an engine the measurements are of: `current` and `previous` by name, any other as it is.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::system::{self, System};
use super::{AicError, AicModel, Backend, DatabaseMode};

const FILE: &str = "query_versions.yaml";

/// Versions by engine, and by system where that has others.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
struct QueryVersions {
    #[serde(default)]
    defaults: BTreeMap<String, Named>,
    #[serde(default)]
    overrides: BTreeMap<String, BTreeMap<String, Named>>,
}

/// What the names mean.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
struct Named {
    #[serde(default)]
    current: Option<String>,
    #[serde(default)]
    previous: Option<String>,
}

/// The name of the directory that has a model's measurements.
///
/// # Errors
/// [`AicError::Version`] lists the versions there are.
pub(super) fn resolve(model: &AicModel, system: &System) -> Result<String, AicError> {
    let there = measured(model, system)?;
    let refused = |why: &str| AicError::Version {
        system: model.system.clone(),
        backend: model.backend.name(),
        version: model.backend_version.clone(),
        systems_path: model.systems_path.clone(),
        way_out: way_out(why, &there),
    };
    let given = model.backend_version.as_str();
    let version = match given {
        "current" | "previous" => {
            let path = model.systems_path.join(FILE);
            let named = if path.is_file() {
                let versions: QueryVersions = system::yaml(&path)?;
                versions.of(&model.system, model.backend)
            } else {
                Named::default()
            };
            let version = if given == "current" {
                named.current
            } else {
                named.previous
            };
            match (version, there.as_slice()) {
                (Some(version), _) => version,
                // A directory cut down to what one engine needs goes without the list of names.
                (None, [only]) if given == "current" => only.clone(),
                // A directory of limits only has no versions, and none is looked up.
                (None, _) if model.database_mode == DatabaseMode::Sol => given.to_owned(),
                (None, _) => return Err(refused(&format!("{FILE} does not say which version that is; "))),
            }
        }
        "next" => return Err(refused("which version that is depends on all the data; ")),
        literal if system::is_word(literal) => literal.to_owned(),
        _ => return Err(refused("that is no version; ")),
    };
    match model.database_mode {
        DatabaseMode::Silicon | DatabaseMode::Hybrid if !there.contains(&version) => Err(refused("")),
        DatabaseMode::Silicon | DatabaseMode::Hybrid | DatabaseMode::Empirical | DatabaseMode::Sol => Ok(version),
    }
}

fn way_out(why: &str, there: &[String]) -> String {
    if there.is_empty() {
        return format!(
            "{why}there are none at all; choose another --aic-system, or --aic-database-mode sol, which needs none"
        );
    }
    format!("{why}give one of these as --aic-backend-version: {}", there.join(", "))
}

impl QueryVersions {
    fn of(&self, system: &str, backend: Backend) -> Named {
        let own = self.overrides.get(system).and_then(|own| own.get(backend.name()));
        own.or_else(|| self.defaults.get(backend.name()))
            .cloned()
            .unwrap_or_default()
    }
}

/// Versions that the system has measurements of, sorted as text: `<data>/<kind>/<backend>/<version>`, or in older data
/// `<data>/<backend>/<version>`.
fn measured(model: &AicModel, system: &System) -> Result<Vec<String>, AicError> {
    let data = model.systems_path.join(&system.file.data_dir);
    let mut versions = Vec::new();
    let backend = model.backend.name();
    let mut places = vec![data.join(backend)];
    if data.is_dir() {
        places.extend(system::entries(&data)?.iter().map(|kind| data.join(kind).join(backend)));
    }
    for place in places.iter().filter(|place| place.is_dir()) {
        versions.extend(directories(place)?);
    }
    versions.sort();
    versions.dedup();
    Ok(versions)
}

fn directories(place: &Path) -> Result<Vec<String>, AicError> {
    let mut names = system::entries(place)?;
    names.retain(|name| place.join(name).is_dir());
    Ok(names)
}
