//! Passes of measured GPUs: what a document says of model, hardware and parallelism, as the AIC performance model takes it.
//!
//! Without measurements (`GHOSTFLEET_AIC_SYSTEMS_PATH`), or in a build that cannot read them, model and hardware are labels,
//! and passes take the built-in times.

use clap::Parser;
use serde_json::{Map, Value, json};

use crate::cli::{Measurements, ReplayArgs};

use super::PredictError;
use super::document::{Backend, Capacity, Engine, Timing, Worker};

/// Whether passes of a worker are looked up.
pub(super) fn is_asked_for(worker: &Worker) -> bool {
    worker.timing == Timing::Default {} && Measurements::CAN_BE_READ && has_measurements()
}

/// Whether the environment of a replay names something to look passes up in.
fn has_measurements() -> bool {
    let args = ReplayArgs::try_parse_from(["replay"]);
    args.is_ok_and(|args| args.measurements.settings().aic_systems_path.is_some())
}

/// The model as `timing_model` of an engine document.
///
/// # Errors
/// [`PredictError::Config`]: parallelism that the model does not know.
pub(super) fn timing_model(path: &str, engine: &Engine, worker: &Worker, role: &str) -> Result<Value, PredictError> {
    let sizes = worker.parallelism;
    if sizes.pipeline != 1 {
        return Err(PredictError::Config(format!(
            "{path}.parallelism.pipeline is {}: passes of measured GPUs are known without pipelines only; use 1, or another \
             {path}.timing",
            sizes.pipeline
        )));
    }
    let mut config = Map::new();
    let mut put = |key: &str, value: Value| {
        config.insert(key.to_owned(), value);
    };
    put("model", engine.model.clone().into());
    put("system", engine.hardware.clone().into());
    put("backend", json!(engine.backend));
    if let Some(version) = &engine.backend_version {
        put("backend_version", version.clone().into());
    }
    put("tp", sizes.tensor.into());
    put("attention_dp", sizes.attention_data.into());
    put("moe_tp_size", sizes.moe_tensor.into());
    put("moe_ep_size", sizes.moe_expert.into());
    put("worker_type", role.into());
    if let Capacity::Default {
        memory_fraction: Some(share),
    } = worker.kv_cache.capacity
    {
        let key = match engine.backend {
            Backend::Vllm => "gpu_memory_utilization",
            Backend::Sglang => "mem_fraction_static",
            Backend::Trtllm => "free_gpu_memory_fraction",
        };
        put(key, share.into());
    }
    Ok(json!({"type": "external", "provider": "ais", "config": config}))
}

/// The same as the router's own model, of the workers that compute prompts.
///
/// # Errors
/// [`PredictError::Config`]: there are no measurements.
pub(super) fn of_router(args: &mut ReplayArgs, engine: &Engine, worker: &Worker) -> Result<(), PredictError> {
    if !Measurements::CAN_BE_READ {
        return Err(PredictError::Config(format!(
            "router.prefill_load_model: {}, or use type none",
            Measurements::WHY_NOT
        )));
    }
    if !has_measurements() {
        return Err(PredictError::Config(
            "router.prefill_load_model needs measurements of GPUs: name their directory in GHOSTFLEET_AIC_SYSTEMS_PATH, or use type \
             none"
            .to_owned(),
        ));
    }
    let sizes = worker.parallelism;
    let backend = match engine.backend {
        Backend::Vllm => "vllm",
        Backend::Sglang => "sglang",
        Backend::Trtllm => "trtllm",
    };
    args.aic_backend = Some(backend.to_owned());
    args.aic_system = Some(engine.hardware.clone());
    args.aic_model_path = Some(engine.model.clone());
    args.aic_backend_version.clone_from(&engine.backend_version);
    args.aic_tp_size = Some(sizes.tensor);
    args.aic_attention_dp_size = Some(sizes.attention_data);
    args.aic_moe_tp_size = Some(sizes.moe_tensor);
    args.aic_moe_ep_size = Some(sizes.moe_expert);
    Ok(())
}
