//! The operations that a model consists of.
//!
//! Source: `aiconfigurator-core` 0.12.0, families `LLAMA`, `MOE` and (in `latent`) `DEEPSEEK`, without pipeline or context
//! parallelism.

use super::AicModel;
use super::formats::{BFLOAT16, Format};
use super::operations::{Attention, Direction, ExpertGroup, Kind, Operation, Phase, as_f64};
use super::parallelism::Parallelism;
use super::quantization::Formats;
use super::shape::{Experts, Family, Shape};

/// Tokens that a banded layer looks back to, in every second layer. Source: as above.
pub(super) const BAND: u64 = 128;

/// A model as it is deployed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deployed<'a> {
    pub(super) model: &'a AicModel,
    pub(super) shape: &'a Shape,
    pub(super) formats: &'a Formats,
    pub(super) parallelism: &'a Parallelism,
}

impl Deployed<'_> {
    /// The operations of one forward pass, in order.
    pub(super) fn operations(&self, phase: Phase) -> Vec<Operation> {
        let pass = Pass {
            deployed: *self,
            phase,
            depth: self.depth(phase),
        };
        let mut operations = match (self.shape.family, self.shape.experts) {
            (Family::LatentMoe, Some(experts)) => pass.latent(experts),
            (_, Some(experts)) => [pass.attention(), pass.experts(experts)].concat(),
            (_, None) => [pass.attention(), pass.mlp()].concat(),
        };
        operations.push(operation(
            "p2p",
            0.0,
            Kind::PeerToPeer {
                hidden: self.shape.hidden,
            },
        ));
        operations
    }

    /// Passes through the whole model that one pass costs: draft tokens take a layer more each.
    fn depth(&self, phase: Phase) -> f64 {
        let layers = as_f64(self.shape.layers);
        match (phase, self.model.nextn) {
            (Phase::Context, _) | (Phase::Generation, 0) => 1.0,
            (Phase::Generation, nextn) => (f64::from(nextn) + layers) / layers,
        }
    }
}

/// One forward pass of a model.
pub(super) struct Pass<'a> {
    pub(super) deployed: Deployed<'a>,
    pub(super) phase: Phase,
    depth: f64,
}

impl Pass<'_> {
    /// An operation of every layer.
    pub(super) fn layered(&self, name: &'static str, kind: Kind) -> Operation {
        operation(name, as_f64(self.deployed.shape.layers) * self.depth, kind)
    }

    /// An operation at one end of the model.
    pub(super) fn once(&self, name: &'static str, kind: Kind) -> Operation {
        operation(name, self.depth, kind)
    }

    /// Everything up to what comes after attention.
    fn attention(&self) -> Vec<Operation> {
        let Deployed {
            shape,
            formats,
            parallelism,
            ..
        } = self.deployed;
        let tp = parallelism.tp;
        let (hidden, heads) = (shape.hidden, shape.heads / tp);
        let kv_heads = shape.kv_heads.div_ceil(tp);
        let width = heads * shape.head_dim;
        let attention = Attention {
            heads,
            kv_heads,
            head_dim: shape.head_dim,
            window: 0,
            fmha: formats.fmha,
            kv_cache: formats.kv_cache,
            qk_norm: shape.qk_norm,
        };
        let norm = norm(hidden);
        let mut operations = Vec::new();
        let mut whole = self.layered("attention", Kind::Attention(attention));
        if shape.family == Family::BandedMoe {
            whole.scale /= 2.0;
            let banded = Attention {
                window: BAND,
                ..attention
            };
            operations.push(operation("attention", whole.scale, Kind::Attention(banded)));
        }
        let vocab = shape.vocab / tp;
        let qkv = width + 2 * kv_heads * shape.head_dim;
        operations.extend([
            self.once("embedding", Kind::Embedding { vocab, hidden }),
            self.layered("add_norm_1", norm.clone()),
            self.layered("qkv_gemm", gemm(qkv, hidden, formats.gemm)),
            whole,
            self.layered("proj_gemm", gemm_after(hidden, width, formats.gemm)),
            self.layered("add_norm_2", norm),
        ]);
        operations
    }

    fn mlp(&self) -> Vec<Operation> {
        let Deployed {
            shape,
            formats,
            parallelism,
            ..
        } = self.deployed;
        let (hidden, tp) = (shape.hidden, parallelism.tp);
        let (gate_and_up, down) = (2 * shape.intermediate / tp, shape.intermediate / tp);
        let reduce = Kind::AllReduce { hidden, tp };
        let act = activation(gate_and_up, down);
        vec![
            self.layered("gate_ffn1_gemm", gemm(gate_and_up, hidden, formats.gemm)),
            self.layered("act_gate", act),
            self.layered("ffn2_gemm", gemm_after(hidden, down, formats.gemm)),
            self.logits(),
            self.once("embedding_ar", reduce.clone()),
            self.layered("ar_1", reduce.clone()),
            self.layered("ar_2", reduce),
        ]
    }

    fn experts(&self, experts: Experts) -> Vec<Operation> {
        let Deployed { shape, parallelism, .. } = self.deployed;
        let (hidden, tp) = (shape.hidden, parallelism.tp);
        let mut operations = self.routed(ExpertGroup {
            sent_as_prompts: true,
            load: "power_law_1.2",
            ..self.expert_group(experts)
        });
        // Prefill of this family goes without it in the original, too.
        if self.phase == Phase::Generation {
            operations.push(self.logits());
        }
        operations.push(self.once("embedding_ar", Kind::AllReduce { hidden, tp }));
        operations
    }

    /// Experts as they are spread.
    pub(super) fn expert_group(&self, experts: Experts) -> ExpertGroup {
        let Deployed {
            model,
            shape,
            formats,
            parallelism,
        } = self.deployed;
        ExpertGroup {
            hidden: shape.hidden,
            intermediate: shape.intermediate,
            topk: experts.topk,
            experts: experts.count,
            tp: parallelism.moe_tp.unwrap_or(1),
            ep: parallelism.moe_ep.unwrap_or(1),
            attention_dp: parallelism.attention_dp,
            format: formats.moe,
            backend: model.backend,
            load: "power_law_1.01",
            sent_as_prompts: self.phase == Phase::Context,
        }
    }

    /// To the experts and back.
    pub(super) fn routed(&self, group: ExpertGroup) -> Vec<Operation> {
        vec![
            self.layered("router_gemm", gemm(group.experts, group.hidden, BFLOAT16)),
            self.layered("moe_pre_dispatch", Kind::Dispatch(group, Direction::ToExperts)),
            self.layered("moe", Kind::Experts(group)),
            self.layered("moe_post_dispatch", Kind::Dispatch(group, Direction::FromExperts)),
        ]
    }

    pub(super) fn logits(&self) -> Operation {
        let Deployed { shape, parallelism, .. } = self.deployed;
        let product = gemm(shape.vocab / parallelism.tp, shape.hidden, BFLOAT16);
        self.once("logits_gemm", product)
    }
}

/// A sum with the residual and its norm: both are read and written, in two bytes a number.
pub(super) fn norm(hidden: u64) -> Kind {
    Kind::Elementwise {
        bytes_per_token: 2.0 * as_f64(4 * hidden),
    }
}

/// Gate and value become one, in two bytes a number.
pub(super) fn activation(gate_and_up: u64, down: u64) -> Kind {
    Kind::Elementwise {
        bytes_per_token: 2.0 * as_f64(gate_and_up + down),
    }
}

pub(super) fn operation(name: &'static str, scale: f64, kind: Kind) -> Operation {
    Operation { name, scale, kind }
}

pub(super) fn gemm(n: u64, k: u64, format: Format) -> Kind {
    Kind::Gemm {
        n,
        k,
        format,
        low_precision_input: false,
    }
}

/// A product of what the operation before left in few bits.
fn gemm_after(n: u64, k: u64, format: Format) -> Kind {
    Kind::Gemm {
        n,
        k,
        format,
        low_precision_input: true,
    }
}
