//! The fleet of a drill: from the scenario's keys to running workers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::content::Foretold;
use super::error::DrillError;
use super::process::Places;
use super::router::Expected;
use super::scenario::load::Target;
use super::scenario::{Fleet, Scenario};
use crate::cluster::Cluster;
use crate::config::{Config, ConfigFile, DiscoveryBackend, Group, Merged, Ports, RequestPlane, Settings, layers};
use crate::engine::{EngineConfig, SeededTokens, WorkerRole};
use crate::model::tokenizer::ModelTokenizer;
use crate::model::{HubOptions, Model};
use crate::transport::discovery::DiscoveryConfig;

/// How the fleet is to be.
pub(super) struct Wanted<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) seed: Option<u64>,
    pub(super) environment: &'a BTreeMap<String, String>,
    /// Where files of discovery go, when nobody else has to find them.
    pub(super) scratch: Option<&'a Path>,
    /// Whether loads have no router to ask.
    pub(super) direct: bool,
}

impl Wanted<'_> {
    /// The checked settings. Said by the drill: the seed; by need, where discovery's files are and that workers have HTTP
    /// faces. Flags win over the environment, so what the drill says is what happens.
    pub(super) fn config(&self) -> Result<Config, DrillError> {
        let first = self.merge(&Settings::default())?;
        let settings = first.fleet.settings()?;
        let mut own = Settings::default();
        if self.seed.is_some()
            || first
                .fleet
                .origin("seed")
                .is_none_or(|origin| *origin == layers::Origin::Default)
        {
            own.seed = Some(self.seed.unwrap_or(self.scenario.seed));
        }
        if let Some(scratch) = self.scratch
            && settings.discovery_backend == Some(DiscoveryBackend::File)
        {
            own.file_kv = Some(scratch.join("discovery"));
        }
        let mut targets = self.scenario.loads.iter().map(|load| load.target);
        let mut programs = self.scenario.programs.iter().map(|program| program.target);
        let asks_workers =
            targets.any(|target| target == Target::Workers) || programs.any(|target| target == Target::Workers);
        if (self.direct || asks_workers) && settings.http_port.is_none() {
            own.http_port = Some(0);
        }
        let merged = self.merge(&own)?;
        Ok(Config::resolve(&merged, self.environment)?)
    }

    fn merge(&self, own: &Settings) -> Result<Merged, DrillError> {
        let Fleet { config, keys, text } = &self.scenario.fleet;
        let path = &self.scenario.path;
        let inline = ConfigFile::from_table(path, keys.clone(), text)?;
        let Some(config) = config else {
            return Ok(layers::merge(own, self.environment, Some(&inline))?);
        };
        let file = ConfigFile::read(config)?;
        let (keys, groups) = inline.fleet();
        if groups > 0 {
            let why = "fleet.group and fleet.config exclude each other; write the groups into the config";
            return Err(DrillError::Input(format!("{}: {why}", path.display())));
        }
        let own = Settings {
            seed: own.seed.or(keys.seed),
            file_kv: own.file_kv.clone().or_else(|| keys.file_kv.clone()),
            http_port: own.http_port.or(keys.http_port),
            ..keys.clone()
        };
        Ok(layers::merge(&own, self.environment, Some(&file))?)
    }
}

/// What a router of this fleet has to serve.
pub(super) fn expected(config: &Config, cluster: &Cluster) -> Expected {
    let (first, end) = cluster.facts().token_ids;
    Expected {
        model: config.model_name.clone(),
        workers: usize::try_from(config.num_workers()).unwrap_or(usize::MAX),
        endpoints: config
            .groups
            .iter()
            .map(|group| group.endpoint.endpoint().to_owned())
            .collect::<BTreeSet<_>>(),
        prompt: (0..8).map(|place| (first + place).min(end - 1)).collect(),
    }
}

/// The tokens of every answer, as its client knows them beforehand.
///
/// # Errors
/// Why no client can know them.
pub(super) fn foretold(config: &Config, cluster: &Cluster) -> Result<Foretold, &'static str> {
    let tokens = tokens(config, cluster)?;
    let model = cluster.facts().model_dir.to_str();
    let model = model.and_then(|dir| Model::resolve(dir, &HubOptions::default()).ok());
    // A vocabulary that cannot be read here still has ids.
    let tokenizer = model.and_then(|model| ModelTokenizer::load(&model).ok());
    Ok(Foretold {
        tokens,
        tokenizer: tokenizer.map(Arc::new),
    })
}

fn tokens(config: &Config, cluster: &Cluster) -> Result<SeededTokens, &'static str> {
    let (first, end) = cluster.facts().token_ids;
    if cluster.facts().eos_token_ids.iter().any(|id| (first..end).contains(id)) {
        return Err("an id that ends answers is among those that workers draw");
    }
    let seed = config.groups.first().map(|group| group.engine.seed);
    let mut found = Err("there are no workers");
    for group in &config.groups {
        if Some(group.engine.seed) != seed {
            return Err("groups of workers draw tokens by different seeds");
        }
        let engine = EngineConfig {
            token_ids: (first, end),
            ..group.engine.clone()
        };
        found = Ok(SeededTokens::of(&engine).ok_or("answers begin with reasoning, or have another emulator's tokens")?);
    }
    found
}

/// What placeholders of a router's command stand for.
pub(super) fn places(config: &Config) -> Places {
    let discovery = match &config.discovery {
        DiscoveryConfig::File(file) => {
            let root = std::path::absolute(&file.root).unwrap_or_else(|_| file.root.clone());
            root.display().to_string()
        }
        DiscoveryConfig::Etcd(etcd) => etcd.endpoints.join(","),
        DiscoveryConfig::Mem(_) => String::new(),
    };
    let group = config.groups.first();
    Places {
        discovery,
        namespace: group.map_or_else(String::new, |group| group.endpoint.namespace().to_owned()),
        model: config.model_name.clone(),
        environment: group.map_or_else(Vec::new, |group| config.frontend_environment(group)),
    }
}

/// How a router that somebody else has started comes to know this fleet.
pub(super) fn way_to(config: &Config) -> String {
    let backend = match &config.discovery {
        DiscoveryConfig::File(_) => "file",
        DiscoveryConfig::Etcd(_) => "etcd",
        DiscoveryConfig::Mem(_) => {
            return "no other program can look into a fleet whose discovery_backend is mem; use file or etcd"
                .to_owned();
        }
    };
    let Places {
        namespace, environment, ..
    } = places(config);
    let environment: Vec<String> = environment
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    format!(
        "it finds the workers where they register: start it with `--discovery-backend {backend}` for the namespace \
         {namespace}, and start it and the drill with `{}`, or let the drill start it (--frontend-command)",
        environment.join(" ")
    )
}

/// Which workers only prefill, by position.
pub(super) fn prefill(config: &Config) -> Vec<bool> {
    by_worker(config, |group| group.engine.role == WorkerRole::Prefill)
}

/// Which workers have an address that nobody listens at while they are away, by position.
pub(super) fn unseen_when_away(config: &Config) -> Vec<bool> {
    by_worker(config, |group| {
        group.request_plane != RequestPlane::Tcp || config.ports == Ports::PerWorker
    })
}

fn by_worker(config: &Config, is_so: impl Fn(&Group) -> bool) -> Vec<bool> {
    let workers = config.groups.iter().flat_map(|group| {
        let many = usize::try_from(group.num_workers).unwrap_or(usize::MAX);
        std::iter::repeat_n(is_so(group), many)
    });
    workers.collect()
}
