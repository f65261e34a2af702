//! Operations of a forward pass and how a plan writes them.

use serde_json::{Value, json};

use super::Backend;
use super::formats::{BFLOAT16, Format};

/// What a forward pass is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Prompt tokens.
    Context,
    /// One more token of each answer.
    Generation,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Context => "context",
            Self::Generation => "generation",
        }
    }
}

/// One operation; its latency counts `scale` times.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Operation {
    /// Its name without the phase.
    pub(super) name: &'static str,
    pub(super) scale: f64,
    pub(super) kind: Kind,
}

/// What an operation does. Sizes are those of one GPU.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    Embedding {
        vocab: u64,
        hidden: u64,
    },
    /// Reads and writes so many bytes for each token.
    Elementwise {
        bytes_per_token: f64,
    },
    Gemm {
        n: u64,
        k: u64,
        format: Format,
        /// The operation before leaves its result in few bits.
        low_precision_input: bool,
    },
    Attention(Attention),
    /// Tokens go to their experts, or come back.
    Dispatch(ExpertGroup, Direction),
    Experts(ExpertGroup),
    AllReduce {
        hidden: u64,
        tp: u64,
    },
    /// Attention over compressed keys and values.
    Latent(Latent),
    /// Products that compress or expand keys and values of one head each.
    LatentProduct {
        heads: u64,
        format: Format,
        before: bool,
    },
    /// One operation measured as a whole, or if it was not, these.
    Fallback(Box<Operation>, Vec<Operation>),
    /// Two lists at the same time.
    Overlap(Vec<Operation>, Vec<Operation>),
    /// From one pipeline stage to the next, of which there is one.
    PeerToPeer {
        hidden: u64,
    },
}

/// Attention of one GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Attention {
    pub(super) heads: u64,
    pub(super) kv_heads: u64,
    pub(super) head_dim: u64,
    /// Tokens that one looks back to; 0: all.
    pub(super) window: u64,
    pub(super) fmha: Format,
    pub(super) kv_cache: Format,
    pub(super) qk_norm: bool,
}

/// The experts of a layer and how GPUs share them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ExpertGroup {
    pub(super) hidden: u64,
    /// Width of one expert.
    pub(super) intermediate: u64,
    pub(super) topk: u64,
    pub(super) experts: u64,
    pub(super) tp: u64,
    pub(super) ep: u64,
    pub(super) attention_dp: u64,
    pub(super) format: Format,
    pub(super) backend: Backend,
    /// How tokens spread over experts: the name of a distribution.
    pub(super) load: &'static str,
    /// Tokens are sent as those of prompts are.
    pub(super) sent_as_prompts: bool,
}

/// Latent attention of one GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Latent {
    pub(super) heads: u64,
    pub(super) fmha: Format,
    pub(super) kv_cache: Format,
    /// With its projections in this format, in a model of so many heads.
    pub(super) module: Option<(Format, u64)>,
}

/// Where tokens go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    ToExperts,
    FromExperts,
}

/// Matrix products of an expert: gate, up and down.
const EXPERT_PRODUCTS: f64 = 3.0;

impl Operation {
    /// Its form in a plan. `lanes`: kernels of attention, the preferred first.
    pub(super) fn json(&self, phase: Phase, lanes: &[String]) -> Value {
        let name = format!("{}_{}", phase.name(), self.name);
        let scale = self.scale;
        match &self.kind {
            Kind::Embedding { vocab, hidden } => json!({"Embedding": {
                "name": name, "scale_factor": scale, "vocab_size": vocab, "hidden_size": hidden,
                "quant_mode": BFLOAT16.name, "seq_split": 1,
            }}),
            Kind::Elementwise { bytes_per_token } => json!({"Elementwise": {
                "name": name, "scale_factor": scale, "bytes_per_token": bytes_per_token, "scale_num_tokens": 1,
                "seq_split": 1,
            }}),
            Kind::Gemm {
                n,
                k,
                format,
                low_precision_input,
            } => json!({"Gemm": {
                "name": name, "scale_factor": scale, "n": n, "k": k, "quant_mode": format.name, "scale_num_tokens": 1,
                "low_precision_input": low_precision_input, "seq_split": 1, "below_grid_sol": false,
            }}),
            Kind::Attention(attention) => attention.json(&name, scale, phase, lanes),
            Kind::Dispatch(group, direction) => json!({"MoeDispatch": {
                "name": name, "scale_factor": scale, "hidden_size": group.hidden, "topk": group.topk,
                "num_experts": group.experts, "moe_tp_size": group.tp, "moe_ep_size": group.ep,
                "attention_dp_size": group.attention_dp, "pre_dispatch": *direction == Direction::ToExperts,
                "attn_ar_modeled": false, "backend": group.backend.name(), "flavor": group.exchange(), "comm_quant": "half",
                "moe_quant": group.format.name, "attn_cp_size": 1, "is_context": group.sent_as_prompts, "sms": 12,
                "scale_num_tokens": 1,
            }}),
            Kind::Experts(group) => json!({"Moe": {
                "name": name, "scale_factor": scale, "hidden_size": group.hidden, "inter_size": group.intermediate,
                "topk": group.topk, "num_experts": group.experts, "moe_tp_size": group.tp, "moe_ep_size": group.ep,
                "attention_dp_size": group.attention_dp, "quant_mode": group.format.name,
                "workload_distribution": group.load, "is_gated": true, "moe_backend": null, "enable_eplb": false,
                "is_context": true,
            }}),
            Kind::AllReduce { hidden, tp } => json!({"CustomAllReduce": {
                "name": name, "scale_factor": scale, "hidden_size": hidden, "tp_size": tp, "quant": "half",
                "seq_split": 1,
            }}),
            Kind::Latent(latent) => latent.json(&name, scale, phase),
            Kind::LatentProduct { heads, format, before } => json!({"MlaBmm": {
                "name": name, "scale_factor": scale, "num_heads": heads, "quant_mode": format.name, "is_pre": before,
            }}),
            Kind::Fallback(whole, parts) => json!({"Fallback": {
                "name": name, "primary": whole.json(phase, lanes), "fallback": list(parts, phase, lanes),
            }}),
            Kind::Overlap(one, other) => json!({"Overlap": {
                "name": name, "group_a": list(one, phase, lanes), "group_b": list(other, phase, lanes),
            }}),
            Kind::PeerToPeer { hidden } => json!({"P2P": {
                "name": name, "scale_factor": scale, "pp_size": 1, "hidden_size": hidden, "seq_split": 1,
            }}),
        }
    }

    /// Bytes of weights that one GPU keeps for it.
    pub(super) fn weight_bytes(&self) -> f64 {
        let bytes = match &self.kind {
            Kind::Embedding { vocab, hidden } => as_f64(*vocab) * as_f64(*hidden) * BFLOAT16.bytes,
            Kind::Gemm { n, k, format, .. } => as_f64(*n) * as_f64(*k) * format.bytes,
            Kind::Experts(group) => {
                let all = as_f64(group.hidden) * as_f64(group.intermediate) * as_f64(group.experts);
                let all = all * group.format.bytes * EXPERT_PRODUCTS;
                ((all / as_f64(group.ep)).floor() / as_f64(group.tp)).floor()
            }
            Kind::Fallback(_, parts) => parts.iter().map(Self::weight_bytes).sum(),
            Kind::Overlap(one, other) => one.iter().chain(other).map(Self::weight_bytes).sum(),
            Kind::Elementwise { .. }
            | Kind::Attention(_)
            | Kind::Latent(_)
            | Kind::LatentProduct { .. }
            | Kind::Dispatch(..)
            | Kind::AllReduce { .. }
            | Kind::PeerToPeer { .. } => 0.0,
        };
        bytes * self.scale
    }
}

/// Operations in the form of a plan.
pub(super) fn list(operations: &[Operation], phase: Phase, lanes: &[String]) -> Vec<Value> {
    operations
        .iter()
        .map(|operation| operation.json(phase, lanes))
        .collect()
}

impl Latent {
    fn json(&self, name: &str, scale: f64, phase: Phase) -> Value {
        let (heads, fmha, kv_cache) = (self.heads, self.fmha.name, self.kv_cache.name);
        let mut fields = json!({
            "name": name, "scale_factor": scale, "num_heads": heads, "kv_cache_dtype": kv_cache,
        });
        let kind = match (self.module, phase) {
            (Some((format, native)), _) => {
                fields["fmha_quant_mode"] = json!(fmha);
                fields["gemm_quant_mode"] = json!(format.name);
                fields["native_num_heads"] = json!(native);
                match phase {
                    Phase::Context => "MlaModuleContext",
                    Phase::Generation => "MlaModuleGeneration",
                }
            }
            (None, Phase::Context) => {
                fields["fmha_quant_mode"] = json!(fmha);
                fields["cp_size"] = json!(1);
                "ContextMla"
            }
            (None, Phase::Generation) => "GenerationMla",
        };
        json!({ kind: fields })
    }
}

impl ExpertGroup {
    /// How the engine sends tokens to experts.
    fn exchange(&self) -> &'static str {
        match self.backend {
            Backend::Vllm | Backend::Sglang => "CustomAllReduce",
            Backend::Trtllm => "TrtllmAlltoall",
        }
    }
}

impl Attention {
    fn json(&self, name: &str, scale: f64, phase: Phase, lanes: &[String]) -> Value {
        let kind = match phase {
            Phase::Context => "ContextAttention",
            Phase::Generation => "GenerationAttention",
        };
        let mut fields = json!({
            "name": name, "scale_factor": scale, "n": self.heads, "n_kv": self.kv_heads, "head_size": self.head_dim,
            "window_size": self.window, "kv_cache_dtype": self.kv_cache.name, "lane_order": lanes,
        });
        if phase == Phase::Context {
            fields["fmha_quant_mode"] = json!(self.fmha.name);
            fields["use_qk_norm"] = json!(self.qk_norm);
            fields["cp_size"] = json!(1);
        }
        json!({ kind: fields })
    }
}

/// Exact: dimensions are below 2^53.
#[allow(clippy::cast_precision_loss)]
pub(super) fn as_f64(number: u64) -> f64 {
    number as f64
}
