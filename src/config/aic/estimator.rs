//! The configuration of an estimator, in the form of Dynamo 1.6.1: `timing_model.config` and `--ais-perf-config`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::super::choices::Finite;
use super::super::engine_args::is_inline;
use super::super::settings::Settings;

/// Longest file.
const MAX_BYTES: u64 = 1 << 20;

/// What is looked up, as far as somebody says it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Estimator {
    #[serde(alias = "model_path")]
    pub(super) model: Option<String>,
    pub(super) system: Option<String>,
    pub(super) backend: Option<String>,
    pub(super) backend_version: Option<String>,
    #[serde(alias = "tp_size")]
    pub(super) tp: Option<u32>,
    #[serde(alias = "attention_dp_size")]
    pub(super) attention_dp: Option<u32>,
    pub(super) moe_tp_size: Option<u32>,
    pub(super) moe_ep_size: Option<u32>,
    #[serde(alias = "gemm_quant_mode")]
    pub(super) gemm_dtype: Option<String>,
    #[serde(alias = "moe_quant_mode")]
    pub(super) moe_dtype: Option<String>,
    #[serde(alias = "fmha_quant_mode")]
    pub(super) fmha_dtype: Option<String>,
    #[serde(alias = "kvcache_quant_mode")]
    pub(super) kv_cache_dtype: Option<String>,
    #[serde(alias = "comm_quant_mode")]
    pub(super) comm_dtype: Option<String>,
    pub(super) nextn: Option<u32>,
    pub(super) gpu_memory_utilization: Option<Finite>,
    pub(super) mem_fraction_static: Option<Finite>,
    pub(super) free_gpu_memory_fraction: Option<Finite>,
    pub(super) systems_path: Option<PathBuf>,
    pub(super) database_mode: Option<String>,
    /// Of pipelines and contexts in parts only one is modelled.
    #[serde(alias = "pp_size")]
    pp: Option<u32>,
    cp_size: Option<u32>,
    /// What the worker does; its role says so anyway.
    worker_type: Option<WorkerType>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WorkerType {
    Aggregated,
    Prefill,
    Decode,
}

impl Estimator {
    /// Reads a configuration.
    ///
    /// # Errors
    /// Names the key and what is expected.
    pub(super) fn of(config: &Value) -> Result<Self, String> {
        if !config.is_object() {
            return Err("it must be an object".to_owned());
        }
        let read: Self = serde_json::from_value(config.clone()).map_err(|error| error.to_string())?;
        let sizes = [
            ("tp", read.tp),
            ("attention_dp", read.attention_dp),
            ("moe_tp_size", read.moe_tp_size),
            ("moe_ep_size", read.moe_ep_size),
        ];
        if let Some((key, _)) = sizes.iter().find(|(_, size)| *size == Some(0)) {
            return Err(format!("{key} must be at least 1"));
        }
        let parts = [("pp", read.pp), ("cp_size", read.cp_size)];
        if let Some((key, _)) = parts.iter().find(|(_, size)| size.is_some_and(|size| size != 1)) {
            return Err(format!("{key} must be 1: other sizes are not modelled"));
        }
        if read.nextn.is_some_and(|drafts| drafts > 5) {
            return Err("nextn must be in 0..=5".to_owned());
        }
        Ok(read)
    }

    /// What flat settings say.
    pub(super) fn of_settings(s: &Settings) -> Self {
        let text = |setting: &Option<String>| setting.clone().filter(|text| !text.is_empty());
        Self {
            model: text(&s.aic_model_path),
            system: text(&s.aic_system),
            backend: text(&s.aic_backend),
            backend_version: text(&s.aic_backend_version),
            tp: s.aic_tp_size,
            attention_dp: s.aic_attention_dp_size,
            moe_tp_size: s.aic_moe_tp_size,
            moe_ep_size: s.aic_moe_ep_size,
            gemm_dtype: s.aic_gemm_dtype.clone(),
            moe_dtype: s.aic_moe_dtype.clone(),
            fmha_dtype: s.aic_fmha_dtype.clone(),
            kv_cache_dtype: s.aic_kv_cache_dtype.clone(),
            comm_dtype: s.aic_comm_dtype.clone(),
            ..Self::default()
        }
    }
}

/// A configuration that is given as JSON, or as the path of a JSON or YAML file.
///
/// # Errors
/// Says what is wrong with the text or the file.
pub(super) fn document(text: &str) -> Result<Value, String> {
    if is_inline(text) {
        return serde_json::from_str(text).map_err(|error| error.to_string());
    }
    let path = Path::new(text);
    let about = std::fs::metadata(path)
        .map_err(|error| format!("{error}; give the path of a JSON or YAML file, or the JSON object itself"))?;
    if !about.is_file() || about.len() > MAX_BYTES {
        return Err("it must be a regular file of at most 1 MiB".to_owned());
    }
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    // JSON is YAML.
    serde_norway::from_str(&text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn old_and_new_names_of_a_size_are_the_same() {
        let new = json!({"model": "m", "tp": 2, "attention_dp": 3, "gemm_dtype": "fp8", "worker_type": "prefill"});
        let old = json!({"model_path": "m", "tp_size": 2, "attention_dp_size": 3, "gemm_quant_mode": "fp8",
            "worker_type": "prefill", "nextn": null, "cp_size": null});
        assert_eq!(Estimator::of(&new).unwrap(), Estimator::of(&old).unwrap());
    }

    #[test]
    fn what_is_not_modelled_is_refused_by_its_name() {
        for (config, words) in [
            (json!({"cp_size": 2}), "cp_size must be 1"),
            (json!({"pp_size": 2}), "pp must be 1"),
            (json!({"dcp": 2}), "unknown field `dcp`"),
            (json!({"tp": 0}), "tp must be at least 1"),
            (json!({"tp": "two"}), "expected u32"),
            (json!({"nextn": 6}), "0..=5"),
            (json!({"worker_type": "both"}), "unknown variant `both`"),
            (json!([]), "must be an object"),
        ] {
            let error = Estimator::of(&config).unwrap_err();
            assert!(error.contains(words), "{config}: {error}");
        }
    }

    #[test]
    fn a_file_may_be_yaml() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("e.yaml");
        std::fs::write(&path, "system: l40s\ntp: 2\n").unwrap();
        let read = Estimator::of(&document(path.to_str().unwrap()).unwrap()).unwrap();
        assert_eq!((read.system.as_deref(), read.tp), (Some("l40s"), Some(2)));
        assert!(document("/no/such/file").unwrap_err().contains("JSON or YAML"));
        assert!(document("{").unwrap_err().contains("EOF"));
    }
}
