//! The measured-GPU performance model ("AIC", in newer releases "AIS") up to the numbers themselves: what a model and
//! its deployment become before an evaluator looks latencies up. Reads a model's `config.json` and a GPU system's YAML
//! file; needs neither the measurements nor the evaluator, so it is in every build.
//!
//! [`plan`] lists the operations of one forward pass, [`kv_blocks`] says how many KV blocks a rank has memory for.
//! Source of every rule: `aiconfigurator-core` 0.12.0; the plan is written in the form that `aisimulate-core` 0.13.0
//! reads.

mod config_files;
mod error;
#[cfg(feature = "aic")]
mod evaluator;
mod exclusions;
mod files;
mod formats;
mod latent;
mod lowering;
mod memory;
mod operations;
mod parallelism;
mod quantization;
mod ready_plan;
mod shape;
mod system;
mod timing;
mod versions;

use std::path::PathBuf;

use serde_json::{Value, json};

use self::config_files::ModelConfig;
pub use self::error::AicError;
use self::lowering::Deployed;
use self::operations::Phase;
use self::parallelism::Parallelism;
use self::quantization::Formats;
use self::shape::Shape;
use self::system::System;
pub use self::timing::{BUILT_IN, NOT_BUILT_IN, Reach, TimingError, timing};

/// Version of the plan's form that [`plan`] writes. Source: `aisimulate-core` 0.13.0.
pub const PLAN_SCHEMA: u64 = 27;

/// A model as it is deployed on one kind of GPU.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AicModel {
    /// Directory with `config.json` and maybe `hf_quant_config.json`; or a name (`org/model`) that `model_configs` has.
    pub model_path: PathBuf,
    /// GPU system: the name of a YAML file in `systems_path`, as `h200_sxm`.
    pub system: String,
    /// Engine whose kernels were measured.
    pub backend: Backend,
    /// `current`, `previous`, or a version that the data has.
    pub backend_version: String,
    /// Tensor parallel size of attention and dense layers.
    pub tp: u32,
    /// Tensor parallel size of the experts.
    pub moe_tp: Option<u32>,
    /// Expert parallel size.
    pub moe_ep: Option<u32>,
    /// Data parallel size of attention.
    pub attention_dp: u32,
    /// Draft tokens per decode step; 0: no speculation.
    pub nextn: u32,
    /// Number formats that overrule the model's own.
    pub dtypes: Dtypes,
    /// Where latencies come from.
    pub database_mode: DatabaseMode,
    /// Directory with `<system>.yaml` and `data/`.
    pub systems_path: PathBuf,
    /// Directory with `<org>--<model>_config.json` files.
    pub model_configs: Option<PathBuf>,
    /// A plan made elsewhere, taken instead of one made from the model.
    pub plan: Option<PathBuf>,
}

/// Engine whose kernels were measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Backend {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM.
    Trtllm,
}

impl Backend {
    /// All, in the order in which they are named to users.
    pub const ALL: [Self; 3] = [Self::Vllm, Self::Sglang, Self::Trtllm];

    /// Its name in flags, plans and data directories.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Trtllm => "trtllm",
        }
    }
}

/// Number formats as the user wrote them. `None`, and the words `auto`, `none`, `null` and nothing: the model's own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Dtypes {
    /// Of weights in matrix products.
    pub gemm: Option<String>,
    /// Of the experts' weights.
    pub moe: Option<String>,
    /// Of attention.
    pub fmha: Option<String>,
    /// Of the KV cache.
    pub kv_cache: Option<String>,
    /// Of what GPUs send to each other.
    pub comm: Option<String>,
}

/// Where latencies come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DatabaseMode {
    /// Measurements; a shape without them is an error.
    #[default]
    Silicon,
    /// Measurements, and estimates for a shape without them.
    Hybrid,
    /// Estimates from a GPU's limits and how far kernels reach them.
    Empirical,
    /// A GPU's limits; needs no measurements.
    Sol,
}

impl DatabaseMode {
    /// All, in the order in which they are named to users.
    pub const ALL: [Self; 4] = [Self::Silicon, Self::Hybrid, Self::Empirical, Self::Sol];

    /// Its name in flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::Silicon => "silicon",
            Self::Hybrid => "hybrid",
            Self::Empirical => "empirical",
            Self::Sol => "sol",
        }
    }

    /// Its name in plans.
    fn plan_name(self) -> &'static str {
        match self {
            Self::Silicon => "SILICON",
            Self::Hybrid => "HYBRID",
            Self::Empirical => "EMPIRICAL",
            Self::Sol => "SOL",
        }
    }

    /// Whether measurements of other versions stand in for those that are missing.
    fn borrows(self) -> bool {
        match self {
            Self::Silicon | Self::Hybrid => true,
            Self::Empirical | Self::Sol => false,
        }
    }
}

/// What KV memory is asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryQuery {
    /// Part of GPU memory in `(0, 1]` that the engine may use: of all of it with vLLM and `SGLang`, of what weights and
    /// activations leave with `TensorRT`-LLM.
    pub fraction: f64,
    /// Most tokens of one forward pass.
    pub max_num_batched_tokens: u32,
    /// Tokens per KV block.
    pub block_size: u32,
}

/// Memory of one GPU, in bytes where no other unit is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvEstimate {
    /// KV blocks that fit.
    pub blocks: u32,
    /// KV tokens that fit.
    pub tokens: u64,
    /// Weights.
    pub weights: u64,
    /// Activations of the largest forward pass.
    pub activations: u64,
    /// Buffers of the communication library.
    pub comm: u64,
    /// Driver, runtime and the like.
    pub other: u64,
    /// All that is not KV cache.
    pub non_kv: u64,
    /// KV cache of one token.
    pub kv_per_token: u64,
    /// Memory of the GPU.
    pub capacity: u64,
}

/// Most draft tokens of one step. Source: Dynamo 1.4.2 and 1.6.1.
const MAX_NEXTN: u32 = 5;

/// The operations of one forward pass, as the JSON form of the evaluator's plan, version [`PLAN_SCHEMA`]. Names of
/// versions are resolved: `engine.backend_version` is the name of a data directory.
///
/// # Errors
/// [`AicError`]: a file cannot be read or does not say what is needed, the model is of a family whose operations are
/// not known here, sizes and number formats do not fit the model, or there are no measurements of that version.
pub fn plan(model: &AicModel) -> Result<Value, AicError> {
    if let Some(path) = &model.plan {
        return ready_plan::read(path, model);
    }
    let described = Described::read(model)?;
    let system = System::read(model)?;
    let version = versions::resolve(model, &system)?;
    let lanes = system.lanes(model, &version)?;
    let deployed = described.deployed(model);
    let list = |phase: Phase| -> Vec<Value> {
        let operations = deployed.operations(phase);
        operations
            .iter()
            .map(|operation| operation.json(phase, &lanes))
            .collect()
    };
    Ok(json!({
        "schema_version": PLAN_SCHEMA,
        "engine": described.engine(model, &version),
        "context_ops": list(Phase::Context),
        "generation_ops": list(Phase::Generation),
    }))
}

/// KV blocks that one rank has memory for. A ready plan does not matter here: what the model takes follows from its
/// config.
///
/// # Errors
/// [`AicError`]: as [`plan`], but measurements are not needed; the system's YAML file lacks a number; nothing is left for
/// the KV cache.
pub fn kv_blocks(model: &AicModel, query: &MemoryQuery) -> Result<KvEstimate, AicError> {
    let described = match Described::read(model) {
        Err(AicError::Architecture {
            model, architecture, ..
        }) => {
            let what = format!("{model}, a {architecture},");
            return Err(AicError::NoCapacity { what });
        }
        described => described?,
    };
    let system = System::read(model)?;
    memory::kv_blocks(&described.deployed(model), &system, query)
}

/// What a model's config and its deployment come to.
struct Described {
    shape: Shape,
    formats: Formats,
    parallelism: Parallelism,
}

impl Described {
    fn read(model: &AicModel) -> Result<Self, AicError> {
        if model.nextn > MAX_NEXTN {
            let why = format!("--aic-nextn must be in 1..={MAX_NEXTN}, not {}", model.nextn);
            return Err(AicError::Deployment(why));
        }
        let files = ModelConfig::read(model)?;
        let shape = Shape::read(&model.model_path.display().to_string(), &files)?;
        let formats = Formats::resolve(&files, model.backend, &model.dtypes, shape.experts.is_some())?;
        let parallelism = Parallelism::resolve(model, &files, &shape, &formats)?;
        Ok(Self {
            shape,
            formats,
            parallelism,
        })
    }

    fn deployed<'a>(&'a self, model: &'a AicModel) -> Deployed<'a> {
        Deployed {
            model,
            shape: &self.shape,
            formats: &self.formats,
            parallelism: &self.parallelism,
        }
    }

    /// The settings of a plan.
    fn engine(&self, model: &AicModel, version: &str) -> Value {
        let mut engine = json!({
            "schema_version": 1,
            "model_name": model.model_path.display().to_string(),
            "system_name": model.system,
            "systems_path": null,
            "backend": model.backend.name(),
            "backend_version": version,
            "kv_block_size": null,
            "tp_size": model.tp,
            "pp_size": 1,
            "attention_dp_size": model.attention_dp,
            "moe_tp_size": self.parallelism.moe_tp,
            "moe_ep_size": self.parallelism.moe_ep,
            "cp_size": 1,
            "weight_dtype": self.formats.gemm.setting,
            "moe_dtype": self.formats.moe.setting,
            "activation_dtype": self.formats.fmha.setting,
            "kv_cache_dtype": self.formats.kv_cache.setting,
            "enable_shared_layer": model.database_mode.borrows(),
            "strict_provenance": false,
            "database_mode": model.database_mode.plan_name(),
            "transfer_policy": null,
            "tolerate_dirless_version": false,
            "extra": {},
        });
        if model.nextn > 0 {
            engine["nextn"] = json!(model.nextn);
        }
        engine
    }
}
