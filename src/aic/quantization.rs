//! Number formats of a model: those that the user chose, else those of its checkpoint.
//!
//! A checkpoint tells them in `quantization_config` of `config.json`, in `hf_quant_config.json`, or in both; the latter
//! goes first. Source: `aiconfigurator-core` 0.12.0.

use std::path::Path;

use serde_json::{Map, Value};

use super::config_files::ModelConfig;
use super::exclusions::Excluded;
use super::formats::{BFLOAT16, FP8, Field, Format};
use super::{AicError, Backend, Dtypes};

/// Number formats of a deployment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Formats {
    /// Weights in matrix products.
    pub(super) gemm: Format,
    /// Weights of experts.
    pub(super) moe: Format,
    /// Attention.
    pub(super) fmha: Format,
    /// KV cache.
    pub(super) kv_cache: Format,
    /// Weights that the checkpoint may leave out.
    pub(super) excluded: Excluded,
}

impl Formats {
    /// The user's formats, and for those not chosen the checkpoint's. `experts`: the model has some.
    ///
    /// # Errors
    /// [`AicError::Dtype`] for a choice that there is not; [`AicError::Quantization`] for a checkpoint whose formats are
    /// not understood where they are needed.
    pub(super) fn resolve(
        model: &ModelConfig,
        backend: Backend,
        chosen: &Dtypes,
        experts: bool,
    ) -> Result<Self, AicError> {
        let gemm = Field::Gemm.chosen(chosen.gemm.as_deref())?;
        let moe = Field::Moe.chosen(chosen.moe.as_deref())?;
        let fmha = Field::Fmha.chosen(chosen.fmha.as_deref())?;
        let kv_cache = Field::KvCache.chosen(chosen.kv_cache.as_deref())?;
        // Checked, though no operation of the known families has a choice of what is sent.
        Field::Comm.chosen(chosen.comm.as_deref())?;

        let checkpoint = Checkpoint::read(model)?;
        let weights = match (gemm, moe) {
            (Some(gemm), Some(moe)) => Weights { gemm, moe },
            (Some(gemm), None) if !experts => {
                let moe = checkpoint.weights(experts).map_or(BFLOAT16, |weights| weights.moe);
                Weights { gemm, moe }
            }
            _ => checkpoint.weights(experts)?,
        };
        let cached = match checkpoint.kv_cache() {
            Err(_) if kv_cache.is_some() => None,
            cached => cached?,
        };
        let low_precision = checkpoint.computes_in_fp8(cached);
        let fmha = fmha.unwrap_or(match backend {
            Backend::Sglang | Backend::Trtllm if low_precision => FP8,
            // vLLM was measured in bfloat16 only.
            Backend::Sglang | Backend::Trtllm | Backend::Vllm => BFLOAT16,
        });
        let kv_cache = kv_cache.unwrap_or(if low_precision { FP8 } else { cached.unwrap_or(BFLOAT16) });
        Ok(Self {
            gemm: gemm.unwrap_or(weights.gemm),
            excluded: Excluded::of(model, gemm.unwrap_or(weights.gemm), gemm.is_some()),
            moe: moe.unwrap_or(weights.moe),
            fmha,
            kv_cache,
        })
    }
}

/// A format that is in the table of its field.
fn format_named(field: Field, name: &'static str) -> Format {
    field
        .named(name)
        .expect("the tables have every format that this file names")
}

/// Formats of a checkpoint's weights.
#[derive(Debug, Clone, Copy)]
struct Weights {
    gemm: Format,
    moe: Format,
}

/// What a checkpoint says of itself.
struct Checkpoint<'a> {
    path: &'a Path,
    /// `quantization_config`.
    config: &'a Map<String, Value>,
    model_opt: &'a Map<String, Value>,
    /// The algorithm, in lower case.
    algorithm: Option<String>,
}

impl<'a> Checkpoint<'a> {
    fn read(model: &'a ModelConfig) -> Result<Self, AicError> {
        let mut checkpoint = Self {
            path: &model.path,
            config: &model.quantization,
            model_opt: &model.model_opt,
            algorithm: None,
        };
        let mut keys = vec![
            (checkpoint.model_opt, "quant_algo"),
            (checkpoint.config, "quant_algo"),
            (checkpoint.config, "quant_method"),
            (checkpoint.config, "quantization_method"),
        ];
        if checkpoint.config.is_empty() {
            keys.push((checkpoint.model_opt, "quantization_algo"));
        }
        checkpoint.algorithm = checkpoint.first_word(&keys)?;
        Ok(checkpoint)
    }

    /// The first of these that is a word, in lower case.
    fn first_word(&self, keys: &[(&Map<String, Value>, &str)]) -> Result<Option<String>, AicError> {
        for (map, key) in keys {
            match map.get(*key) {
                None | Some(Value::Null) => {}
                Some(Value::String(word)) if word.trim().is_empty() => {}
                Some(Value::String(word)) => return Ok(Some(word.trim().to_lowercase())),
                Some(_) => return Err(self.unknown(format!("{key} of its quantization is no word"))),
            }
        }
        Ok(None)
    }

    /// Formats of the weights.
    fn weights(&self, experts: bool) -> Result<Weights, AicError> {
        let both = |gemm: &'static str, moe: &'static str| Weights {
            gemm: format_named(Field::Gemm, gemm),
            moe: format_named(Field::Moe, moe),
        };
        let Some(algorithm) = &self.algorithm else {
            return Ok(both("bfloat16", "bfloat16"));
        };
        match algorithm.as_str() {
            "fp8_block" => Ok(both("fp8_block", "fp8_block")),
            "fp8" if self.has_blocks() => Ok(both("fp8_block", "fp8_block")),
            "fp8" if self.scales_as_it_runs() => Ok(both("fp8", "fp8")),
            // A checkpoint with scales of its own need not say so.
            "fp8" => Ok(both("fp8_static", "fp8")),
            "nvfp4" => Ok(both("nvfp4", "nvfp4")),
            "mxfp4" | "w4a16_mxfp4" => Ok(both("bfloat16", "w4a16_mxfp4")),
            "compressed-tensors" => self.compressed_tensors(experts),
            other => Err(self.unknown(format!(
                "what its quantization {other:?} means for matrix products and experts is not known"
            ))),
        }
    }

    /// Formats of a checkpoint that lists groups of layers; the first group with a format stands for all.
    fn compressed_tensors(&self, experts: bool) -> Result<Weights, AicError> {
        let groups = self.config.get("config_groups").and_then(Value::as_object);
        let format = groups.into_iter().flat_map(Map::values).find_map(|group| {
            let weights = group.get("weights")?;
            let kind = weights.get("type").and_then(Value::as_str).unwrap_or("").to_lowercase();
            let in_blocks = weights.get("strategy").and_then(Value::as_str) == Some("block")
                || weights.get("block_structure").is_some_and(says_something);
            match (weights.get("num_bits")?.as_u64()?, kind.as_str()) {
                (4, kind) if kind.contains("int") => Some("int4_wo"),
                (8, kind) if kind.contains("int") => Some("int8_wo"),
                (8, kind) if kind.contains("float") => Some(if in_blocks { "fp8_block" } else { "fp8" }),
                (4, kind) if kind.contains("float") => Some("w4a16_mxfp4"),
                _ => None,
            }
        });
        let mut weights = Weights {
            gemm: BFLOAT16,
            moe: BFLOAT16,
        };
        let Some(name) = format else { return Ok(weights) };
        let ignored = self.config.get("ignore").and_then(Value::as_array);
        let ignored: Vec<String> = ignored
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_lowercase)
            .collect();
        let unmeasured = |of: &str| self.unknown(format!("{of} in its format {name} were not measured"));
        let attention = ["self_attn", "q_proj", "k_proj", "v_proj", "o_proj"];
        if !ignored
            .iter()
            .any(|layer| attention.iter().any(|part| layer.contains(part)))
        {
            weights.gemm = Field::Gemm.named(name).ok_or_else(|| unmeasured("matrix products"))?;
        }
        let of_routed_experts = |layer: &String| layer.contains("expert") && !layer.contains("shared_expert");
        if experts && !ignored.iter().any(of_routed_experts) {
            weights.moe = Field::Moe.named(name).ok_or_else(|| unmeasured("experts"))?;
        } else if let Some(moe) = Field::Moe
            .named(name)
            .filter(|_| !ignored.iter().any(of_routed_experts))
        {
            weights.moe = moe;
        }
        Ok(weights)
    }

    /// Format of the KV cache, if the checkpoint says.
    fn kv_cache(&self) -> Result<Option<Format>, AicError> {
        let word = self.first_word(&[
            (self.model_opt, "kv_cache_quant_algo"),
            (self.config, "kv_cache_quant_algo"),
            (self.config, "kv_cache_quant_method"),
            (self.config, "kv_cache_dtype"),
        ])?;
        let name = match word.as_deref() {
            Some("fp8" | "e4m3" | "e5m2") => Some("fp8"),
            Some("fp16" | "float16" | "bf16" | "bfloat16") => Some("bfloat16"),
            Some("auto") => None,
            Some(other) => return Err(self.unknown(format!("its KV cache format {other:?} is not known"))),
            None => self.kv_cache_scheme(),
        };
        Ok(name.and_then(|name| Field::KvCache.named(name)))
    }

    fn kv_cache_scheme(&self) -> Option<&'static str> {
        let scheme = self.config.get("kv_cache_scheme")?;
        let kind = scheme.get("type")?.as_str()?.to_lowercase();
        if kind.contains("fp8") {
            return Some("fp8");
        }
        match scheme.get("num_bits")?.as_u64()? {
            bits if kind == "float" && bits <= 8 => Some("fp8"),
            bits if kind == "float" && bits >= 16 => Some("bfloat16"),
            _ => None,
        }
    }

    /// Whether attention runs in eight bits, over a cache in eight bits.
    fn computes_in_fp8(&self, cached: Option<Format>) -> bool {
        let Some(algorithm) = &self.algorithm else { return false };
        ["fp8", "fp8_block", "nvfp4"].contains(&algorithm.as_str()) || cached.is_some_and(|format| format.name == "fp8")
    }

    /// Weights have one scale for each block.
    fn has_blocks(&self) -> bool {
        self.config.get("weight_block_size").is_some_and(says_something)
    }

    /// Activations are scaled by what they turn out to be.
    fn scales_as_it_runs(&self) -> bool {
        match self.config.get("activation_scheme").and_then(Value::as_str) {
            Some(scheme) if scheme.eq_ignore_ascii_case("dynamic") => return true,
            Some(scheme) if scheme.eq_ignore_ascii_case("static") => return false,
            _ => {}
        }
        let groups = self.config.get("config_groups").and_then(Value::as_object);
        groups.into_iter().flat_map(Map::values).any(|group| {
            let dynamic = |part: &str| group.get(part).and_then(|part| part.get("dynamic"));
            ["input_activations", "weights"]
                .into_iter()
                .filter_map(dynamic)
                .any(says_something)
        })
    }

    fn unknown(&self, why: String) -> AicError {
        AicError::Quantization {
            path: self.path.to_owned(),
            why,
        }
    }
}

/// Whether a value is other than nothing: null, no, 0, an empty text or list.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(yes) => *yes,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// Rows of a block of weights in eight bits.
pub(super) fn block_rows(model: &ModelConfig) -> Option<u64> {
    let size = model.quantization.get("weight_block_size")?;
    size.get(0)?.as_u64().filter(|rows| *rows > 0)
}
