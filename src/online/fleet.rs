//! The workers of a run in real time: those of `serve`, found in memory, with the replay's engines.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::cluster::{Cluster, RankDoor};
use crate::replay::{FleetSpec, PrefillSpec};
use crate::replay_run::RunError;
use crate::types::WorkerId;

use super::wrong;

/// Files of a model: the workers want one, though nobody reads text here.
const MODEL: [(&str, &str); 4] = [
    ("config.json", include_str!("../../config/tiny-model/config.json")),
    (
        "generation_config.json",
        include_str!("../../config/tiny-model/generation_config.json"),
    ),
    ("tokenizer.json", include_str!("../../config/tiny-model/tokenizer.json")),
    (
        "tokenizer_config.json",
        include_str!("../../config/tiny-model/tokenizer_config.json"),
    ),
];

/// Doors of a side's workers, by worker and rank.
pub(super) type Doors = Vec<Vec<RankDoor>>;

/// Workers that are ready.
pub(super) struct LiveFleet {
    pub(super) cluster: Cluster,
    /// Of the workers that answer.
    pub(super) serving: Doors,
    /// Of the prefill side, if there is one, and the ports at which its workers are met.
    pub(super) prefill: Doors,
    pub(super) ports: Vec<u16>,
    _model: ModelDirectory,
}

impl LiveFleet {
    /// Starts them.
    ///
    /// # Errors
    /// [`RunError`] when they cannot be started.
    pub(super) fn start(spec: &FleetSpec) -> Result<Self, RunError> {
        let model = ModelDirectory::write()?;
        let cluster = start(spec, &model.0)?;
        let prefillers = spec.prefill.as_ref().map_or(0, |prefill| prefill.pool.workers);
        let doors = |from: u32, count: u32| -> Result<Doors, RunError> {
            let of = |worker| cluster.doors(&WorkerId(worker).to_string());
            let doors = (from..from + count).map(of).collect::<Result<_, _>>();
            doors.map_err(|error| wrong(&error))
        };
        let ports = (0..prefillers)
            .map(|worker| port(&cluster, worker))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            prefill: doors(0, prefillers)?,
            serving: doors(prefillers, spec.serving.workers)?,
            ports,
            cluster,
            _model: model,
        })
    }
}

/// Port at which a prefill worker is met.
fn port(cluster: &Cluster, worker: u32) -> Result<u16, RunError> {
    let port = cluster.rendezvous_port(&WorkerId(worker).to_string());
    let port = port.map_err(|error| wrong(&error))?;
    port.ok_or_else(|| wrong(&format_args!("prefill worker {worker} has no rendezvous")))
}

/// A directory with the model's files, as long as it is needed.
struct ModelDirectory(PathBuf);

impl ModelDirectory {
    fn write() -> Result<Self, RunError> {
        let path = std::env::temp_dir().join(format!("ghostfleet-online-{}", std::process::id()));
        let directory = Self(path.clone());
        let failed = |error: std::io::Error| RunError::Write(path.display().to_string(), error);
        std::fs::create_dir_all(&path).map_err(failed)?;
        for (name, text) in MODEL {
            let text = if name == "config.json" {
                unlimited(text)
            } else {
                text.to_owned()
            };
            std::fs::write(path.join(name), text).map_err(failed)?;
        }
        Ok(directory)
    }
}

impl Drop for ModelDirectory {
    fn drop(&mut self) {
        // What stays behind are a few small files in a directory for such files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A model's configuration without a bound on the context: the workload decides.
fn unlimited(config: &str) -> String {
    let mut document: serde_json::Value = serde_json::from_str(config).unwrap_or_default();
    if let Some(keys) = document.as_object_mut() {
        keys.insert("max_position_embeddings".into(), i32::MAX.into());
    }
    document.to_string()
}

/// A group of workers as a configuration file has it.
fn group(text: &mut String, name: &str, workers: u32, ranks: u32, more: &str) {
    // Writing to a text cannot fail.
    let _ = writeln!(
        text,
        "[[group]]\nname = \"{name}\"\nnum_workers = {workers}\ndata_parallel_size = {ranks}\n{more}"
    );
}

/// How KV travels, for both groups.
fn transfer(prefill: &PrefillSpec) -> String {
    let timing = if prefill.missing_only {
        "destination_missing"
    } else {
        "full_prompt"
    };
    let link = &prefill.transfer;
    // Without a size nothing takes time, whatever the model's config says.
    let bandwidth = link.bytes_per_token.and(link.bandwidth_gb_s).unwrap_or(0.0);
    let bytes = link
        .bytes_per_token
        .map_or_else(String::new, |bytes| format!("kv_bytes_per_token = {bytes}\n"));
    format!("kv_transfer_timing_mode = \"{timing}\"\nkv_transfer_bandwidth = {bandwidth:?}\n{bytes}")
}

fn start(spec: &FleetSpec, model: &Path) -> Result<Cluster, RunError> {
    let mut text = String::new();
    let serving = &spec.serving;
    match &spec.prefill {
        None => group(&mut text, "workers", serving.workers, serving.dp_size, ""),
        Some(prefill) => {
            let ports = vec!["0"; prefill.pool.workers as usize].join(",");
            let more = format!("disaggregation_mode = \"prefill\"\nbootstrap_ports = \"{ports}\"\n");
            group(&mut text, "prefill", prefill.pool.workers, prefill.pool.dp_size, &more);
            let more = "disaggregation_mode = \"decode\"\n";
            group(&mut text, "decode", serving.workers, serving.dp_size, more);
            text.insert_str(0, &transfer(prefill));
        }
    }
    let path = model.join("fleet.toml");
    std::fs::write(&path, text).map_err(|error| RunError::Write(path.display().to_string(), error))?;
    let flags = [
        "--config",
        &path.display().to_string(),
        "--model-path",
        &model.display().to_string(),
        "--discovery-backend",
        "mem",
        "--stagger-delay",
        "0",
    ]
    .map(str::to_owned);
    let mut config = crate::serve::config_from(flags, &BTreeMap::new()).map_err(|error| wrong(&error))?;
    let pools = spec.prefill.iter().map(|prefill| &prefill.pool).chain([serving]);
    for (group, pool) in config.groups.iter_mut().zip(pools) {
        group.engine = pool.engine.clone();
    }
    Cluster::start(&config).map_err(|error| wrong(&error))
}
