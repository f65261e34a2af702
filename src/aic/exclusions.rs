//! Weights that a checkpoint leaves out of its quantization: parts of latent attention, and experts that all tokens share.
//!
//! Source: `aiconfigurator-core` 0.12.0, which follows such lists in the families with latent attention only.

use serde_json::Value;

use super::config_files::ModelConfig;
use super::formats::{BFLOAT16, Format};

/// Formats of weights that may be left out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Excluded {
    /// Projections of queries.
    pub(super) queries: Format,
    /// Projections of keys and values.
    pub(super) keys: Format,
    /// Projection of what attention gives.
    pub(super) output: Format,
    pub(super) shared_experts: Format,
}

const QUERIES: [&str; 3] = ["q_a_proj", "q_b_proj", "q_proj"];
const KEYS: [&str; 5] = ["kv_a_proj", "kv_b_proj", "kv_proj", "k_proj", "v_proj"];
const OUTPUT: [&str; 1] = ["o_proj"];
/// Of sparse attention; named here because a pattern with it does not mean all of attention.
const INDEXER: [&str; 1] = ["indexer"];

impl Excluded {
    /// `gemm`: the format of matrix products; `chosen`: it is the user's.
    pub(super) fn of(model: &ModelConfig, gemm: Format, chosen: bool) -> Self {
        let patterns = patterns(model);
        let names = |part: &[&str]| {
            let named = |pattern: &&str| part.iter().any(|name| pattern.contains(name));
            patterns.iter().any(named)
        };
        let whole = patterns.iter().any(|pattern| {
            let parts = [&QUERIES[..], &KEYS, &OUTPUT, &INDEXER];
            pattern.contains("self_attn") && !parts.concat().iter().any(|name| pattern.contains(name))
        });
        let of_attention = |part: &[&str]| if whole || names(part) { BFLOAT16 } else { gemm };
        let shared = patterns
            .iter()
            .any(|pattern| pattern.to_lowercase().contains("shared_expert"));
        Self {
            queries: of_attention(&QUERIES),
            keys: of_attention(&KEYS),
            output: of_attention(&OUTPUT),
            shared_experts: if shared && !chosen { BFLOAT16 } else { gemm },
        }
    }
}

/// Names of modules, or patterns of such, that are not quantized.
fn patterns(model: &ModelConfig) -> Vec<&str> {
    let config = ["modules_to_not_convert", "exclude_modules", "ignore"].map(|key| (&model.quantization, key));
    let model_opt = ["exclude_modules", "ignore"].map(|key| (&model.model_opt, key));
    config
        .into_iter()
        .chain(model_opt)
        .filter_map(|(map, key)| map.get(key)?.as_array())
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}
