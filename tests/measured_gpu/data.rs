//! Where the measurements are, and models deployed on them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ghostfleet::aic::{self, AicModel, Backend, DatabaseMode, Dtypes, Reach};
use ghostfleet::engine::{DecodeBatch, PassTiming, PrefillBatch};

/// The directory of systems.
pub(crate) fn systems() -> PathBuf {
    let unpacked = || {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        root.join(".venv/aiconfigurator-core-0.12.0/aiconfigurator_core/systems")
    };
    let systems = std::env::var_os("GHOSTFLEET_MEASUREMENTS").map_or_else(unpacked, PathBuf::from);
    assert!(
        systems.join("query_versions.yaml").is_file(),
        "{} has no measurements; run scripts/setup, or set GHOSTFLEET_MEASUREMENTS to the directory systems of an unpacked \
         wheel aiconfigurator-core 0.12.0",
        systems.display()
    );
    systems
}

/// A model by its name, on one GPU.
pub(crate) fn model(name: &str, system: &str, backend: Backend) -> AicModel {
    let systems = systems();
    AicModel {
        model_path: PathBuf::from(name),
        system: system.to_owned(),
        backend,
        backend_version: "current".to_owned(),
        tp: 1,
        moe_tp: None,
        moe_ep: None,
        attention_dp: 1,
        nextn: 0,
        dtypes: Dtypes::default(),
        database_mode: DatabaseMode::Silicon,
        model_configs: Some(systems.join("../model_configs")),
        systems_path: systems,
        plan: None,
    }
}

/// What a rank with the deployment asks.
pub(crate) fn timing(model: &AicModel) -> Arc<dyn PassTiming> {
    let reach = Reach {
        max_num_batched_tokens: 8192,
        max_num_seqs: 256,
        max_model_len: 32_768,
    };
    aic::timing(model, reach).unwrap().of_rank()
}

pub(crate) fn prefill(timing: &dyn PassTiming, requests: u32, isl: u32, prefix: u32) -> f64 {
    timing.prefill_ms(PrefillBatch {
        requests,
        mean_isl: isl,
        mean_prefix: prefix,
    })
}

pub(crate) fn decode(timing: &dyn PassTiming, requests: u32, context: u32) -> f64 {
    timing.decode_ms(DecodeBatch {
        requests,
        kv_tokens: u64::from(requests) * u64::from(context),
        mean_context: context,
        capacity_tokens: 1 << 20,
    })
}
