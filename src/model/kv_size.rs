//! How many bytes of KV cache one token takes, from a model's `config.json`.

use serde_json::Value;

use super::info::TextConfig;

/// What the KV cache holds of one token in one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cached {
    /// Keys and values of every KV head.
    Heads {
        kv_heads: u64,
        /// Width of a head as the config says it; `None`: hidden size over attention heads.
        head_dim: Option<u64>,
    },
    /// One compressed vector and its rotary part (multi-head latent attention).
    Latent { width: u64 },
}

/// Shape of a model's KV cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvShape {
    layers: u64,
    hidden: u64,
    heads: u64,
    kv_heads: u64,
    cached: Cached,
    /// `dtype` of the config.
    dtype: Option<String>,
}

/// How a shape becomes bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvSizeRule {
    /// As the engine lays its cache out: the config's own head width, latent attention compressed.
    Real,
    /// As Dynamo's emulator counts: keys and values of every KV head, hidden size over attention heads wide, whatever
    /// else the config says; `fp8_e5m2` counts as two bytes. Source: Dynamo 1.6.1 and 1.4.2.
    Mocker,
}

/// Values of `--kv-cache-dtype`. Source: Dynamo 1.4.2.
pub const CACHE_DTYPES: [&str; 7] = [
    "auto",
    "bfloat16",
    "fp8",
    "fp8_ds_mla",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_inc",
];

impl KvShape {
    pub(super) fn read(config: &TextConfig<'_>) -> Option<Self> {
        let number = |key: &str| config.number(key).map(u64::from);
        let layers = number("num_hidden_layers").or_else(|| number("n_layer"))?;
        let heads = number("num_attention_heads").or_else(|| number("n_head"))?;
        let hidden = number("hidden_size").or_else(|| number("n_embd"))?;
        let kv_heads = number("num_key_value_heads")
            .or_else(|| number("num_kv_heads"))
            .unwrap_or(heads);
        let cached = match number("kv_lora_rank") {
            Some(rank) => Cached::Latent {
                width: rank + number("qk_rope_head_dim").unwrap_or(0),
            },
            None => Cached::Heads {
                kv_heads,
                head_dim: number("head_dim"),
            },
        };
        let dtype = config.get("dtype").or_else(|| config.get("torch_dtype"));
        Some(Self {
            layers,
            hidden,
            heads,
            kv_heads,
            cached,
            dtype: dtype.and_then(Value::as_str).map(str::to_owned),
        })
    }

    /// Bytes per token with this `--kv-cache-dtype` (`auto`: the config's type, else two bytes).
    pub fn bytes_per_token(&self, cache_dtype: &str, rule: KvSizeRule) -> u64 {
        let dtype = match cache_dtype {
            "auto" => self.dtype.as_deref().unwrap_or("float16"),
            named => named,
        };
        let of_heads = |heads: u64, width: u64| heads.saturating_mul(width).saturating_mul(2);
        let plain = of_heads(self.kv_heads, self.hidden / self.heads);
        let elements = match (rule, self.cached) {
            (KvSizeRule::Mocker, _) => plain,
            (KvSizeRule::Real, Cached::Latent { width }) => width,
            (KvSizeRule::Real, Cached::Heads { kv_heads, head_dim }) => {
                head_dim.map_or(plain, |width| of_heads(kv_heads, width))
            }
        };
        self.layers
            .saturating_mul(elements)
            .saturating_mul(element_bytes(dtype, rule))
    }
}

fn element_bytes(dtype: &str, rule: KvSizeRule) -> u64 {
    match (dtype, rule) {
        ("float32", _) => 4,
        ("float8_e4m3fn" | "float8_e5m2" | "fp8" | "fp8_ds_mla" | "fp8_e4m3" | "fp8_inc" | "int8", _)
        | ("fp8_e5m2", KvSizeRule::Real) => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    fn shape(config: &Value) -> Option<KvShape> {
        let config: Map<String, Value> = config.as_object().unwrap().clone();
        KvShape::read(&TextConfig(&config))
    }

    fn bytes(config: &Value, dtype: &str) -> (u64, u64) {
        let shape = shape(config).unwrap();
        (
            shape.bytes_per_token(dtype, KvSizeRule::Real),
            shape.bytes_per_token(dtype, KvSizeRule::Mocker),
        )
    }

    #[test]
    fn grouped_heads_are_counted_with_the_configs_own_width_where_it_has_one() {
        let mut config = json!({
            "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "hidden_size": 1024,
            "torch_dtype": "bfloat16",
        });
        assert_eq!(bytes(&config, "auto"), (28 * 2 * 8 * 64 * 2, 28 * 2 * 8 * 64 * 2));
        config["head_dim"] = json!(128);
        assert_eq!(bytes(&config, "auto"), (28 * 2 * 8 * 128 * 2, 28 * 2 * 8 * 64 * 2));
        assert_eq!(bytes(&config, "fp8"), (28 * 2 * 8 * 128, 28 * 2 * 8 * 64));
        assert_eq!(bytes(&config, "fp8_e5m2"), (28 * 2 * 8 * 128, 28 * 2 * 8 * 64 * 2));
        config["torch_dtype"] = json!("float32");
        assert_eq!(bytes(&config, "auto").0, 28 * 2 * 8 * 128 * 4);
        assert_eq!(bytes(&config, "bfloat16").0, 28 * 2 * 8 * 128 * 2);
    }

    #[test]
    fn without_grouping_every_head_has_keys_and_values() {
        let config = json!({"n_layer": 12, "n_head": 12, "n_embd": 768});
        assert_eq!(bytes(&config, "auto").0, 12 * 2 * 12 * 64 * 2);
    }

    #[test]
    fn latent_attention_caches_one_compressed_vector() {
        let config = json!({"text_config": {
            "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 7168,
            "kv_lora_rank": 512, "qk_rope_head_dim": 64, "dtype": "bfloat16",
        }});
        assert_eq!(bytes(&config, "auto"), (61 * 576 * 2, 61 * 2 * 128 * 56 * 2));
    }

    #[test]
    fn a_config_without_a_shape_has_no_size() {
        assert_eq!(shape(&json!({"hidden_size": 64})), None);
        assert_eq!(
            shape(&json!({"num_hidden_layers": 2, "num_attention_heads": 0, "hidden_size": 64})),
            None
        );
    }
}
