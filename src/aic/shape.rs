//! Dimensions of a model, from its `config.json`.

use std::path::Path;

use serde_json::{Map, Value};

use super::config_files::ModelConfig;
use super::{AicError, files};

/// Largest dimension that is believed; no model comes near, and no product of two overflows.
const MAX_DIMENSION: u64 = 1 << 24;

/// Which operations a model consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// Grouped-query attention and a gated MLP.
    Dense,
    /// Grouped-query attention and experts.
    Moe,
    /// As `Moe`, but every other layer attends to a window only.
    BandedMoe,
    /// Latent attention and experts, one of which every token goes to.
    LatentMoe,
}

/// A known architecture.
struct Architecture {
    name: &'static str,
    family: Family,
    /// Queries and keys are normalised before attention.
    qk_norm: bool,
    /// It sees, too: the dimensions of what reads and writes are in a part of the config.
    sees: bool,
}

const fn architecture(name: &'static str, family: Family, qk_norm: bool) -> Architecture {
    let sees = false;
    Architecture {
        name,
        family,
        qk_norm,
        sees,
    }
}

/// A model that sees; its eyes take no time, and its norm of queries and keys is left out as in the original.
const fn seeing(name: &'static str, family: Family) -> Architecture {
    Architecture {
        sees: true,
        ..architecture(name, family, false)
    }
}

/// Part of the config of a model that sees.
pub(super) const TEXT: &str = "text_config";

/// Source: `aiconfigurator-core` 0.12.0.
const ARCHITECTURES: [Architecture; 12] = [
    architecture("LlamaForCausalLM", Family::Dense, false),
    architecture("Qwen2ForCausalLM", Family::Dense, false),
    architecture("Qwen3ForCausalLM", Family::Dense, true),
    architecture("MiMoForCausalLM", Family::Dense, false),
    architecture("MixtralForCausalLM", Family::Moe, false),
    architecture("Qwen2MoeForCausalLM", Family::Moe, false),
    architecture("Qwen3MoeForCausalLM", Family::Moe, true),
    architecture("MiniMaxM2ForCausalLM", Family::Moe, true),
    architecture("GptOssForCausalLM", Family::BandedMoe, false),
    architecture("DeepseekV3ForCausalLM", Family::LatentMoe, false),
    seeing("Qwen3VLForConditionalGeneration", Family::Dense),
    seeing("Qwen3VLMoeForConditionalGeneration", Family::Moe),
];

/// Rank of compressed queries in latent attention.
pub(super) const Q_RANK: u64 = 1536;
/// Rank of compressed keys and values.
pub(super) const KV_RANK: u64 = 512;
/// Width of a head's query and key without the rotary part.
pub(super) const NOPE_DIM: u64 = 128;
/// Width of the rotary part.
pub(super) const ROPE_DIM: u64 = 64;
/// Width of a head's value.
pub(super) const VALUE_DIM: u64 = 128;
/// Their products with widths of heads still fit a plan; no model comes near.
const MAX_LATENT_HEADS: u64 = 1 << 16;
/// The one shape of latent attention that measurements are of.
const LATENT: [(&str, u64); 5] = [
    ("q_lora_rank", Q_RANK),
    ("kv_lora_rank", KV_RANK),
    ("qk_nope_head_dim", NOPE_DIM),
    ("qk_rope_head_dim", ROPE_DIM),
    ("v_head_dim", VALUE_DIM),
];

/// Dimensions of a model; none is 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) family: Family,
    pub(super) layers: u64,
    pub(super) hidden: u64,
    pub(super) heads: u64,
    pub(super) kv_heads: u64,
    pub(super) head_dim: u64,
    /// Width of the MLP; of one expert where there are experts.
    pub(super) intermediate: u64,
    pub(super) vocab: u64,
    /// Longest sequence, tokens.
    pub(super) context: u64,
    pub(super) qk_norm: bool,
    pub(super) sees: bool,
    pub(super) experts: Option<Experts>,
}

/// How many experts there are, and how many a token goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Experts {
    pub(super) count: u64,
    pub(super) topk: u64,
}

impl Shape {
    /// Reads the dimensions. `model`: its name for messages.
    ///
    /// # Errors
    /// [`AicError`] names the key that is missing or makes no sense, or the architecture that is not known.
    pub(super) fn read(model: &str, files: &ModelConfig) -> Result<Self, AicError> {
        let mut config = Dimensions {
            path: &files.path,
            config: &files.config,
        };
        let architecture = config.architecture(model)?;
        if let (true, Some(Value::Object(text))) = (architecture.sees, files.config.get(TEXT)) {
            config.config = text;
        }
        let hidden = config.needed(&["hidden_size"])?;
        let heads = config.needed(&["num_attention_heads"])?;
        let head_dim = match config.optional(&["head_dim", "attention_head_dim"])? {
            Some(width) => width,
            None if hidden >= heads => hidden / heads,
            None => return Err(config.wrong("hidden_size", "is smaller than num_attention_heads")),
        };
        let kv_heads = config.optional(&["num_key_value_heads"])?.unwrap_or(heads);
        if (heads + 2 * kv_heads) * head_dim > u64::from(u32::MAX) {
            return Err(config.wrong("head_dim", "is too large for that many heads"));
        }
        let experts = match architecture.family {
            Family::Dense => None,
            Family::Moe | Family::BandedMoe | Family::LatentMoe => {
                let count = [
                    "num_local_experts",
                    "n_routed_experts",
                    "moe_num_experts",
                    "num_experts",
                ];
                let topk = ["num_experts_per_tok", "top_k_experts", "moe_top_k"];
                Some(Experts {
                    count: config.needed(&count)?,
                    topk: config.needed(&topk)?,
                })
            }
        };
        if architecture.family == Family::LatentMoe {
            if heads > MAX_LATENT_HEADS {
                return Err(config.wrong("num_attention_heads", "is too large for latent attention"));
            }
            for (key, measured) in LATENT {
                let given = config.needed(&[key])?;
                if given != measured {
                    let what = format!("is {given}; latent attention was measured with {measured}");
                    return Err(config.wrong(key, &what));
                }
            }
        }
        let width: &[&str] = match experts {
            None => &["intermediate_size"],
            Some(_) => &["moe_intermediate_size", "intermediate_size"],
        };
        Ok(Self {
            family: architecture.family,
            layers: config.needed(&["num_hidden_layers"])?,
            hidden,
            heads,
            kv_heads,
            head_dim,
            intermediate: config.needed(width)?,
            vocab: config.needed(&["vocab_size"])?,
            context: config.needed(&["max_position_embeddings"])?,
            qk_norm: architecture.qk_norm,
            sees: architecture.sees,
            experts,
        })
    }
}

/// A config with the file it came from.
struct Dimensions<'a> {
    path: &'a Path,
    config: &'a Map<String, Value>,
}

impl Dimensions<'_> {
    fn architecture(&self, model: &str) -> Result<&'static Architecture, AicError> {
        let named = self.config.get("architectures").and_then(|named| named.get(0));
        let Some(named) = named.and_then(Value::as_str) else {
            return Err(self.wrong("architectures", "has no name of an architecture"));
        };
        let known = ARCHITECTURES.iter().find(|known| known.name == named);
        known.ok_or_else(|| AicError::Architecture {
            model: model.to_owned(),
            architecture: named.to_owned(),
            known: ARCHITECTURES.map(|known| known.name).join(", "),
        })
    }

    /// The first of these keys that has a number other than 0.
    fn optional(&self, keys: &[&str]) -> Result<Option<u64>, AicError> {
        for key in keys {
            let Some(value) = self.config.get(*key).filter(|value| !value.is_null()) else {
                continue;
            };
            match value.as_u64() {
                Some(0) => {}
                Some(number) if number <= MAX_DIMENSION => return Ok(Some(number)),
                _ => return Err(self.wrong(key, &format!("is no whole number up to {MAX_DIMENSION}"))),
            }
        }
        Ok(None)
    }

    fn needed(&self, keys: &[&str]) -> Result<u64, AicError> {
        self.optional(keys)?
            .ok_or_else(|| self.wrong(keys[0], "is missing; the AIC performance model needs it"))
    }

    fn wrong(&self, key: &str, what: &str) -> AicError {
        files::content(self.path, format!("{key} {what}"))
    }
}
