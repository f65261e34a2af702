//! Form of the recordings.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Debug, Deserialize)]
pub(crate) struct Case {
    workload: Workload,
    /// Other files, by their names; flags call their directory `<beside>`.
    #[serde(default)]
    beside: BTreeMap<String, String>,
    pub(crate) dynamo_1_4_2: Option<Recorded>,
    pub(crate) dynamo_1_6_1: Option<Recorded>,
    /// What a planner said, tick by tick.
    #[serde(default)]
    pub(crate) scaling_script: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Workload {
    #[serde(default)]
    format: Option<String>,
    #[serde(default)]
    files: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    input_tokens: Option<u32>,
    #[serde(default)]
    output_tokens: Option<u32>,
    #[serde(default)]
    request_count: Option<u32>,
    #[serde(default)]
    load: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Recorded {
    #[serde(default)]
    pub(crate) arguments: Map<String, Value>,
    #[serde(default)]
    flags: Vec<String>,
    pub(crate) report: Option<Map<String, Value>>,
    pub(crate) records: Option<Records>,
    /// What it was told.
    pub(crate) scaling_snapshots: Option<Vec<Value>>,
    /// What its own planner did.
    pub(crate) scaling: Option<Value>,
    pub(crate) spread_over_20_runs: Option<Map<String, Value>>,
    pub(crate) error: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Records {
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<Value>>,
}

impl Recorded {
    /// Flags of `replay`, the workload's left out.
    pub(crate) fn flags(&self) -> Vec<String> {
        let mut flags = self.flags.clone();
        for (key, value) in &self.arguments {
            let (flag, value) = match (key.as_str(), value) {
                ("trace_format" | "execution_model", _) => continue,
                ("max_sim_time_ms", Value::Number(ms)) => (
                    "max-sim-time-seconds".to_owned(),
                    (ms.as_f64().unwrap() / 1e3).to_string(),
                ),
                (_, Value::String(text)) => (key.replace('_', "-"), text.clone()),
                (_, value) => (key.replace('_', "-"), value.to_string()),
            };
            flags.extend([format!("--{flag}"), value]);
        }
        flags
    }

    pub(crate) fn is_kv_routed(&self) -> bool {
        self.flags().iter().any(|flag| flag == "kv_router")
    }
}

impl Case {
    /// Writes the trace files.
    pub(crate) fn write_files(&self, directory: &Path) {
        for (name, text) in &self.beside {
            std::fs::write(super::inside(directory, name), text).unwrap();
        }
        for (name, lines) in &self.workload.files {
            let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
            let path = super::inside(directory, name);
            if path.extension().is_some_and(|extension| extension == "gz") {
                let file = std::fs::File::create(path).unwrap();
                let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
                packed.write_all(text.as_bytes()).unwrap();
                packed.finish().unwrap();
            } else {
                std::fs::write(path, text).unwrap();
            }
        }
    }

    /// The flags that name the workload; load and turns come from the recorded arguments.
    pub(crate) fn workload_flags(&self, directory: &Path) -> Vec<String> {
        let workload = &self.workload;
        let files = workload
            .files
            .keys()
            .map(|name| super::inside(directory, name).display().to_string());
        let mut flags: Vec<String> = files.collect();
        if let Some(format) = &workload.format {
            flags.extend(["--trace-format".to_owned(), format.clone()]);
        }
        for (flag, value) in [
            ("--input-tokens", workload.input_tokens),
            ("--output-tokens", workload.output_tokens),
            ("--request-count", workload.request_count),
        ] {
            flags.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value.to_string()]));
        }
        assert!(
            !workload.files.is_empty() || !workload.load.is_empty(),
            "a workload has files or a load"
        );
        flags
    }
}
