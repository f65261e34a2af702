//! Why there is no plan, or no KV capacity.

use std::io;
use std::path::PathBuf;

/// Why a model cannot be planned or sized: names file, key, system, backend or version, and the way out.
#[derive(Debug, thiserror::Error)]
pub enum AicError {
    /// A file that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file whose content is not what it should be: too large, no JSON or YAML, a key missing or with no sense.
    #[error("{}: {why}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the key.
        why: String,
    },
    /// Nothing says what the model looks like.
    #[error("the AIC performance model needs the config.json of {model}: {why}")]
    Model {
        /// The model, as given.
        model: String,
        /// Where it was looked for, and what to do.
        why: String,
    },
    /// A model whose operations are not known here.
    #[error(
        "model {model} is a {architecture}, whose operations are not known here; make a plan of it with aiconfigurator-core \
         and give that as --aic-plan, or take one of {known}"
    )]
    Architecture {
        /// The model.
        model: String,
        /// First entry of its `architectures`.
        architecture: String,
        /// What is known.
        known: String,
    },
    /// A checkpoint in a number format that no kernel was measured with, or that is not told by its config.
    #[error("{}: {why}; state --aic-gemm-dtype, --aic-moe-dtype and --aic-kv-cache-dtype", path.display())]
    Quantization {
        /// The config.
        path: PathBuf,
        /// What is not understood.
        why: String,
    },
    /// A number format that the field does not have.
    #[error(
        "unsupported AIC {field} quant mode {value:?} (normalized to {normalized:?}); supported values: {supported}"
    )]
    Dtype {
        /// `gemm`, `moe`, `fmha`, `kvcache` or `comm`.
        field: &'static str,
        /// As given.
        value: String,
        /// As looked up.
        normalized: String,
        /// What there is.
        supported: String,
    },
    /// Sizes that do not fit the model or each other.
    #[error("{0}")]
    Deployment(String),
    /// No such GPU system.
    #[error("no GPU system {system} in {}; it has {known}: choose one as --aic-system", systems_path.display())]
    System {
        /// As given.
        system: String,
        /// Where it was looked for.
        systems_path: PathBuf,
        /// What there is.
        known: String,
    },
    /// No such measurements.
    #[error("no measurements of {backend} {version} on {system} in {}: {way_out}", systems_path.display())]
    Version {
        /// The GPU system.
        system: String,
        /// `vllm`, `sglang` or `trtllm`.
        backend: &'static str,
        /// As given.
        version: String,
        /// Where it was looked for.
        systems_path: PathBuf,
        /// What there is, and what to do.
        way_out: String,
    },
    /// Memory is full before the first KV block.
    #[error(
        "no KV budget: non-KV memory ({non_kv} bytes) meets/exceeds the KV-cache memory limit (capacity={capacity} bytes) of \
         {system}; use more tensor parallelism, a larger fraction of memory or another --aic-system, or give the number of \
         blocks as --num-gpu-blocks-override"
    )]
    NoKvBudget {
        /// The GPU system.
        system: String,
        /// Weights, activations, communication buffers and the rest, bytes.
        non_kv: u64,
        /// Memory of the GPU, bytes.
        capacity: u64,
    },
    /// The size of the KV cache has no answer for this deployment.
    #[error("the AIC KV capacity of {what} is not known; give the number of blocks as --num-gpu-blocks-override")]
    NoCapacity {
        /// Of what.
        what: String,
    },
}
