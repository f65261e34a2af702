//! The measured-GPU performance model of a group: what the settings `aic_*`, an estimator's configuration and the engine
//! documents of both releases say of it, as one request.
//!
//! Source: Dynamo 1.4.2 and 1.6.1 (`dynamo.mocker`, engine core).

mod estimator;

use std::path::{Path, PathBuf};

use super::ConfigError;
use super::choices::{External, Finite, TimingModel};
use super::layers::{Layered, Origin, flag};
use super::rules::{check_model_is_built_in, refused};
use super::settings::Settings;
use crate::aic::{self, AicModel, Backend, DatabaseMode, Dtypes, MemoryQuery, Reach};
use crate::engine::{EngineConfig, EngineKind, Semantics, SharedTiming, TimingConfig};
use estimator::Estimator;

/// GPU system unless said.
const SYSTEM: &str = "h200_sxm";

/// Version of the measurements unless said.
const VERSION: &str = "current";

/// What a pass reaches where a limit is not set.
const UNLIMITED_TOKENS: u32 = 8192;
const UNLIMITED_SEQS: u32 = 256;
const UNLIMITED_LEN: u32 = 32_768;

/// Settings that say what the model is of, and that a whole estimator's configuration stands for.
const IDENTITY: &[&str] = &[
    "aic_system",
    "aic_backend",
    "aic_backend_version",
    "aic_model_path",
    "aic_tp_size",
    "aic_moe_tp_size",
    "aic_moe_ep_size",
    "aic_attention_dp_size",
    "aic_gemm_dtype",
    "aic_moe_dtype",
    "aic_fmha_dtype",
    "aic_kv_cache_dtype",
    "aic_comm_dtype",
];

/// Of these, sizes that an engine document has beside its timing model.
const SIZES: &[&str] = &["aic_tp_size", "aic_attention_dp_size"];

/// A group's passes take as long as those of measured GPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct AicTiming {
    /// The deployment; without a path it is of the model that the fleet serves.
    model: AicModel,
    /// Share of GPU memory that KV blocks may be made of; `None`: the number of blocks is given.
    memory: Option<f64>,
    /// What asked for it, for errors.
    place: String,
    /// GPUs of one rank, and ranks, where an estimator's configuration says so.
    topology: (Option<u32>, Option<u32>),
}

/// Whether any setting turns the model on.
pub(super) fn is_on(s: &Settings) -> bool {
    s.aic_perf_model == Some(true) || s.ais_perf_config.is_some() || of_document(s).is_some()
}

/// Ranks of a worker of Dynamo 1.6.1 whose attention is data parallel, and the setting that says so.
pub(super) fn ranks(s: &Settings) -> Option<(&'static str, u32)> {
    if s.semantics.unwrap_or_default() != Semantics::V1_6_1 {
        return None;
    }
    let flat = s.aic_attention_dp_size.map(|ranks| ("aic_attention_dp_size", ranks));
    flat.or_else(|| {
        // What cannot be read is told where the model is asked for.
        let config = estimator::document(s.ais_perf_config.as_deref()?).ok()?;
        Some(("ais_perf_config", Estimator::of(&config).ok()?.attention_dp?))
    })
}

/// The configuration that a document's timing model brings.
fn of_document(s: &Settings) -> Option<&serde_json::Value> {
    match &s.timing_model {
        Some(TimingModel::External(External::Ais(config))) => Some(config),
        Some(
            TimingModel::Polynomial | TimingModel::Fixed { .. } | TimingModel::External(External::DynamoProfile(_)),
        )
        | None => None,
    }
}

/// The model that merged settings ask for.
///
/// # Errors
/// [`ConfigError::Value`] names the setting: two that say the same, an unknown word, a file that cannot be read.
pub(super) fn request(layered: &Layered, s: &Settings) -> Result<Option<AicTiming>, ConfigError> {
    if !is_on(s) {
        return Ok(None);
    }
    if of_document(s).is_some() {
        check_model_is_built_in(layered, "timing_model")?;
    }
    let (key, estimator) = said(layered, s)?;
    let is_flat = matches!(key, "aic_perf_model" | "aic_backend");
    if s.planner_profile_data.is_some() {
        let why = "and --planner-profile-data exclude each other: choose one timing provider";
        return Err(refused(layered, key, why));
    }
    if s.timing_model.is_some() && key != "timing_model" {
        let why = format!("and {} exclude each other: choose one timing provider", flag(key));
        return Err(refused(layered, "timing_model", &why));
    }
    let wrong = |key: &str, why: &str| Err(refused(layered, key, why));
    for (flat, said, of_model) in [
        ("aic_tp_size", s.aic_tp_size, estimator.tp),
        ("aic_attention_dp_size", s.aic_attention_dp_size, estimator.attention_dp),
    ] {
        if let Some(size) = of_model.filter(|_| said.is_some_and(|said| Some(said) != of_model)) {
            return wrong(flat, &format!("is another size than the {size} of {}", flag(key)));
        }
    }
    let backend = estimator.backend.as_deref();
    let backend = match backend.unwrap_or(s.engine_type.unwrap_or_default().word()) {
        "vllm" => Backend::Vllm,
        "sglang" => Backend::Sglang,
        "trtllm" => Backend::Trtllm,
        other => {
            let why = format!("has no backend {other:?}; use vllm, sglang or trtllm");
            return wrong(if is_flat { "aic_backend" } else { key }, &why);
        }
    };
    let Some(systems_path) = estimator.systems_path.or_else(|| s.aic_systems_path.clone()) else {
        let why = "needs measurements: give their directory as --aic-systems-path or GHOSTFLEET_AIC_SYSTEMS_PATH (it is \
                   aiconfigurator_core/systems in the wheel of `pip download --no-deps aiconfigurator-core==0.12.0`)";
        return wrong(key, why);
    };
    let nextn = estimator.nextn.or(s.aic_nextn).unwrap_or(0);
    if let Some(drafts) = s.aic_nextn.filter(|&drafts| drafts != nextn) {
        let why = format!("has nextn {nextn}, but aic_nextn is {drafts}; they must be equal");
        return wrong(key, &why);
    }
    let mut model = AicModel {
        model_path: PathBuf::from(estimator.model.unwrap_or_default()),
        system: estimator.system.unwrap_or_else(|| SYSTEM.to_owned()),
        backend,
        backend_version: estimator.backend_version.unwrap_or_else(|| VERSION.to_owned()),
        tp: estimator.tp.or(s.aic_tp_size).unwrap_or(1),
        moe_tp: estimator.moe_tp_size,
        moe_ep: estimator.moe_ep_size,
        attention_dp: estimator.attention_dp.or(s.aic_attention_dp_size).unwrap_or(1),
        nextn,
        dtypes: Dtypes {
            gemm: estimator.gemm_dtype,
            moe: estimator.moe_dtype,
            fmha: estimator.fmha_dtype,
            kv_cache: estimator.kv_cache_dtype,
            comm: estimator.comm_dtype,
        },
        database_mode: database_mode(layered, key, estimator.database_mode.as_ref(), s)?,
        systems_path,
        model_configs: s.aic_model_configs.clone(),
        plan: s.aic_plan.clone(),
    };
    if model.model_configs.is_none() {
        // Where the wheel has it.
        let beside = model.systems_path.join("../model_configs");
        model.model_configs = beside.is_dir().then_some(beside);
    }
    let share = match backend {
        Backend::Vllm => estimator.gpu_memory_utilization.or(s.gpu_memory_utilization),
        Backend::Sglang => estimator.mem_fraction_static.or(s.mem_fraction_static),
        Backend::Trtllm => estimator.free_gpu_memory_fraction.or(s.free_gpu_memory_fraction),
    };
    let share = share.map_or_else(|| default_share(backend), Finite::get);
    if !(share > 0.0 && share <= 1.0) {
        return wrong(
            key,
            &format!("has a share of GPU memory of {share}; it must be above 0 and at most 1"),
        );
    }
    Ok(Some(AicTiming {
        topology: if is_flat {
            (None, None)
        } else {
            (estimator.tp, estimator.attention_dp)
        },
        model,
        memory: s.num_gpu_blocks_override.is_none().then_some(share),
        place: layered.origin(key).unwrap_or(&Origin::Flag).key(key),
    }))
}

/// Share of GPU memory unless said.
fn default_share(backend: Backend) -> f64 {
    match backend {
        Backend::Vllm | Backend::Trtllm => 0.9,
        Backend::Sglang => 0.88,
    }
}

/// Which setting asks for the model, and what it and its like say.
fn said(layered: &Layered, s: &Settings) -> Result<(&'static str, Estimator), ConfigError> {
    let read = |key: &'static str, config: &serde_json::Value| {
        Estimator::of(config)
            .map(|estimator| (key, estimator))
            .map_err(|error| {
                refused(
                    layered,
                    key,
                    &format!("is no configuration of the AIC performance model: {error}"),
                )
            })
    };
    if let Some(config) = of_document(s) {
        if s.aic_perf_model == Some(true) || s.ais_perf_config.is_some() {
            let why = "asks for the AIC performance model a second time; give it in one place";
            return Err(refused(layered, "timing_model", why));
        }
        stands_alone(layered, "timing_model", |flat| !SIZES.contains(&flat))?;
        return read("timing_model", config);
    }
    let Some(text) = &s.ais_perf_config else {
        // A flat document names a backend to turn the model on.
        let by_backend = matches!(layered.origin("aic_perf_model"), Some(Origin::EngineArgs { .. }));
        let key = if by_backend { "aic_backend" } else { "aic_perf_model" };
        return Ok((key, Estimator::of_settings(s)));
    };
    stands_alone(layered, "ais_perf_config", |_| true)?;
    let config = estimator::document(text)
        .map_err(|error| refused(layered, "ais_perf_config", &format!("cannot be used: {error}")))?;
    read("ais_perf_config", &config)
}

/// A whole configuration leaves no room for flat settings of the model, at least for those that are `named`.
fn stands_alone(layered: &Layered, key: &str, named: impl Fn(&str) -> bool) -> Result<(), ConfigError> {
    let mut flat = IDENTITY.iter().filter(|flat| named(flat));
    match flat.find(|flat| layered.value(flat).is_some()) {
        None => Ok(()),
        Some(flat) => {
            let why = format!("cannot be combined with {}; put that into it", flag(key));
            Err(refused(layered, flat, &why))
        }
    }
}

/// Where pass times come from: what a whole configuration says in `key`, or the setting.
fn database_mode(
    layered: &Layered,
    key: &str,
    said: Option<&String>,
    s: &Settings,
) -> Result<DatabaseMode, ConfigError> {
    let (key, word) = match (said, &s.aic_database_mode) {
        (Some(word), _) => (key, word),
        (None, Some(word)) => ("aic_database_mode", word),
        (None, None) => return Ok(DatabaseMode::default()),
    };
    let found = DatabaseMode::ALL
        .into_iter()
        .find(|mode| mode.name() == word.to_lowercase());
    found.ok_or_else(|| {
        let known = DatabaseMode::ALL.map(DatabaseMode::name).join(", ");
        refused(
            layered,
            key,
            &format!("has no database mode {word:?}; use one of {known}"),
        )
    })
}

impl AicTiming {
    /// The deployment whose passes are looked up.
    pub fn model(&self) -> &AicModel {
        &self.model
    }

    /// What is timed by what, in a few words.
    pub fn words(&self) -> String {
        let model = &self.model;
        let (backend, version) = (model.backend.name(), &model.backend_version);
        let of = if model.model_path.as_os_str().is_empty() {
            "the model".to_owned()
        } else {
            model.model_path.display().to_string()
        };
        format!(
            "{of} on {} with {backend} {version}, TP {} ({})",
            model.system,
            model.tp,
            model.database_mode.name()
        )
    }

    /// GPUs of one rank and ranks of attention, where a configuration of an estimator says them.
    pub(super) fn topology(&self) -> (Option<u32>, Option<u32>) {
        self.topology
    }

    /// The model that flat settings name, whether or not they turn it on; it is asked for times only.
    ///
    /// # Errors
    /// As of a document: [`ConfigError::Value`] names the setting.
    pub fn of_flags(flags: &Settings) -> Result<Self, ConfigError> {
        let mut layered = Layered::default();
        let on = Settings {
            aic_perf_model: Some(true),
            num_gpu_blocks_override: Some(1),
            ..flags.clone()
        };
        layered.put(&on, &Origin::Flag);
        let wanted = request(&layered, &layered.settings()?)?;
        wanted.ok_or_else(|| ConfigError::Invalid("no AIC performance model is asked for".to_owned()))
    }

    /// The pass times of this model, tried as far as `reach` goes. `served`: directory of the model that the fleet serves.
    ///
    /// # Errors
    /// As [`Self::settle`].
    pub fn timing(&self, served: Option<&Path>, reach: Reach) -> Result<SharedTiming, ConfigError> {
        let timing = aic::timing(&self.of_model(served)?, reach);
        timing.map(SharedTiming::new).map_err(|error| self.wrong(&error))
    }

    fn of_model(&self, served: Option<&Path>) -> Result<AicModel, ConfigError> {
        let mut model = self.model.clone();
        if model.model_path.as_os_str().is_empty() {
            let served = served.ok_or_else(|| self.wrong(&"no model; give it as aic_model_path"))?;
            served.clone_into(&mut model.model_path);
        }
        Ok(model)
    }

    fn wrong(&self, error: &dyn std::fmt::Display) -> ConfigError {
        ConfigError::Invalid(format!("{}: {error}", self.place))
    }

    /// `engine` with the pass times of this model, and with as many KV blocks as it leaves memory for unless their number
    /// is given. `served`: directory of the model that the fleet serves.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] in one line: the model cannot be planned, there is no evaluator in this build, there are no
    /// measurements, they lack something, or no memory is left for a KV block.
    pub fn settle(&self, engine: EngineConfig, served: Option<&Path>) -> Result<EngineConfig, ConfigError> {
        let max_num_batched_tokens = engine.max_num_batched_tokens.unwrap_or(UNLIMITED_TOKENS);
        let reach = Reach {
            max_num_batched_tokens,
            max_num_seqs: engine.max_num_seqs.unwrap_or(UNLIMITED_SEQS),
            max_model_len: engine.max_model_len.unwrap_or(UNLIMITED_LEN),
        };
        let timing = self.timing(served, reach)?;
        let num_gpu_blocks = match self.memory {
            None => engine.num_gpu_blocks,
            Some(fraction) => {
                let query = MemoryQuery {
                    fraction,
                    max_num_batched_tokens,
                    block_size: engine.block_size,
                };
                let estimate = aic::kv_blocks(&self.of_model(served)?, &query);
                estimate.map_err(|error| self.wrong(&error))?.blocks
            }
        };
        let engine = EngineConfig {
            timing: TimingConfig::Shared(timing),
            num_gpu_blocks,
            ..engine
        };
        engine.validate().map_err(|error| self.wrong(&error))?;
        Ok(engine)
    }
}

/// Whether the share of GPU memory `key` is read: with the model of its engine.
pub(super) fn reads_share(key: &str, s: &Settings) -> bool {
    let kind = match s.aic_backend.as_deref() {
        Some("vllm") => EngineKind::Vllm,
        Some("sglang") => EngineKind::Sglang,
        Some("trtllm") => EngineKind::Trtllm,
        Some(_) | None => s.engine_type.unwrap_or_default(),
    };
    let own = match kind {
        EngineKind::Vllm => "gpu_memory_utilization",
        EngineKind::Sglang => "mem_fraction_static",
        EngineKind::Trtllm => "free_gpu_memory_fraction",
    };
    is_on(s) && s.num_gpu_blocks_override.is_none() && key == own
}
