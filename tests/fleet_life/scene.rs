//! A fleet in this process with its own discovery directory.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use ghostfleet::actors::registry::{InUse, WorkerSnapshot};
use ghostfleet::cluster::Cluster;
use ghostfleet::serve::config_from;
use serde_json::Value;
use tempfile::TempDir;

use crate::caller::{call, chat};

/// How long anything in these tests may take before it counts as never.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

pub(crate) struct Scene {
    pub(crate) cluster: Cluster,
    store: TempDir,
}

impl Scene {
    /// A fleet with these flags beside the model and a directory of its own.
    pub(crate) fn start(flags: &[&str]) -> Self {
        let store = TempDir::new().unwrap();
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/tiny-model");
        let mut args = vec![
            "--model-path".to_owned(),
            model.display().to_string(),
            "--model-name".to_owned(),
            "tiny".to_owned(),
            "--discovery-backend".to_owned(),
            "file".to_owned(),
            "--file-kv".to_owned(),
            store.path().display().to_string(),
            "--block-size".to_owned(),
            "4".to_owned(),
        ];
        args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let config = config_from(args, &BTreeMap::new()).unwrap();
        let cluster = Cluster::start(&config).unwrap();
        Self { cluster, store }
    }

    /// Values of all records in a bucket, such as `v1/instances`.
    pub(crate) fn records(&self, bucket: &str) -> Vec<Value> {
        let Ok(entries) = std::fs::read_dir(self.store.path().join(bucket)) else {
            return Vec::new();
        };
        let files = entries.map(|entry| entry.unwrap().path());
        let files = files.filter(|path| !path.file_name().unwrap().to_string_lossy().starts_with(".tmp_"));
        // A file may go between the listing and the reading.
        files
            .filter_map(|path| std::fs::read(path).ok())
            .map(|text| serde_json::from_slice(&text).unwrap())
            .collect()
    }

    /// `generate` instances, by id.
    pub(crate) fn instances(&self) -> BTreeMap<u64, String> {
        let generate = |record: &Value| record["endpoint"] == "generate";
        let address = |record: &Value| record["transport"]["tcp"].as_str().unwrap().to_owned();
        let records = self.records("v1/instances");
        records
            .iter()
            .filter(|r| generate(r))
            .map(|r| (r["instance_id"].as_u64().unwrap(), address(r)))
            .collect()
    }

    /// Whether this worker answers a short request to its end.
    #[track_caller]
    pub(crate) fn answers(&self, worker: usize) -> bool {
        let mut answer = call(&self.address(worker), "a", &chat(&[1, 2, 3], 1)).unwrap();
        answer.finish().unwrap().complete
    }

    /// Address of the `generate` endpoint of `w<N>`, which may still be on its way into the store.
    pub(crate) fn address(&self, worker: usize) -> String {
        let mut address = None;
        self.until("the worker is listed", |scene| {
            address = scene.instances().remove(&scene.worker(worker).instance_id);
            address.is_some()
        });
        address.unwrap()
    }

    /// Source record of a rank's KV stream.
    pub(crate) fn source(&self, worker: usize, rank: u64) -> Option<Value> {
        let instance = self.worker(worker).instance_id;
        self.records("v1/event_sources").into_iter().find(|record| {
            let of = &record["metadata"]["worker"];
            of["worker_id"] == instance && of["dp_rank"] == rank
        })
    }

    pub(crate) fn worker(&self, worker: usize) -> WorkerSnapshot {
        self.cluster.snapshot().workers.remove(worker)
    }

    /// Waits until a condition holds.
    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let begin = Instant::now();
        while !holds(self) {
            assert!(
                begin.elapsed() < PATIENCE,
                "never happened: {what}; {:#?}",
                self.cluster.snapshot()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until nothing is in use any more.
    pub(crate) fn until_nothing_is_left(&self) {
        self.until("no stream, sequence or block in use", |scene| {
            scene.cluster.snapshot().in_use() == InUse::default()
        });
    }
}
