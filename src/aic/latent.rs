//! The operations of models with latent attention, where keys and values are kept compressed.
//!
//! Source: `aiconfigurator-core` 0.12.0, family `DEEPSEEK`, with experts not so far apart that they need a network of their
//! own. Whatever the checkpoint, one expert is shared by all tokens.

use super::Backend;
use super::formats::{BFLOAT16, FP8, Format};
use super::lowering::{Deployed, Pass, activation, gemm, norm, operation};
use super::operations::{Attention, Kind, Latent, Operation, Phase};
use super::shape::{Experts, KV_RANK, NOPE_DIM, Q_RANK, ROPE_DIM, VALUE_DIM};

/// Heads of the model whose kernels were measured; others are looked up as if they had as many.
const MEASURED_HEADS: u64 = 128;

impl Pass<'_> {
    /// All but what goes from one pipeline stage to the next.
    pub(super) fn latent(&self, experts: Experts) -> Vec<Operation> {
        let Deployed {
            model,
            shape,
            parallelism,
            ..
        } = self.deployed;
        let hidden = shape.hidden;
        let embedding = Kind::Embedding {
            vocab: shape.vocab,
            hidden,
        };
        let mut operations = vec![
            self.once("embedding", embedding),
            self.layered("add_norm_1", norm(hidden)),
        ];
        operations.extend(self.latent_attention());
        operations.push(self.layered("add_norm_2", norm(hidden)));
        let (shared, routed) = (self.shared(), self.routed(self.expert_group(experts)));
        match self.phase {
            Phase::Context => operations.extend(shared.into_iter().chain(routed)),
            // On two streams.
            Phase::Generation => operations.push(operation("moe_overlap", 1.0, Kind::Overlap(routed, shared))),
        }
        operations.push(self.logits());
        if model.backend == Backend::Vllm {
            let tp = parallelism.tp;
            let mut reduce = self.layered("tp_allreduce", Kind::AllReduce { hidden, tp });
            // After attention and after the experts.
            reduce.scale *= 2.0;
            operations.push(reduce);
        }
        operations
    }

    /// Attention with its projections: measured as a whole where all have one format, else part by part.
    fn latent_attention(&self) -> Vec<Operation> {
        let Deployed { shape, formats, .. } = self.deployed;
        let kept = formats.excluded;
        let parts = self.latent_parts();
        if kept.queries != kept.keys || kept.keys != kept.output {
            return parts;
        }
        let module = self.layered(
            "mla_module",
            Kind::Latent(self.kernel(self.heads(), Some((kept.output, shape.heads)))),
        );
        let block = Kind::Fallback(Box::new(module), parts);
        vec![operation("mla_block", 1.0, block)]
    }

    fn latent_parts(&self) -> Vec<Operation> {
        let Deployed {
            model, shape, formats, ..
        } = self.deployed;
        let (heads, hidden, kept) = (self.heads(), shape.hidden, formats.excluded);
        let compressed = if kept.queries == BFLOAT16 && kept.keys == BFLOAT16 {
            BFLOAT16
        } else {
            formats.gemm
        };
        let compress = gemm(Q_RANK + KV_RANK + ROPE_DIM, hidden, compressed);
        let queries = gemm(heads * (NOPE_DIM + ROPE_DIM), Q_RANK, kept.queries);
        let mut parts = vec![
            self.layered("downscale_gemm", compress),
            self.layered("q_b_proj_gemm", queries),
        ];
        if self.phase == Phase::Context {
            let expand = gemm(heads * (NOPE_DIM + VALUE_DIM), KV_RANK, kept.keys);
            parts.push(self.layered("kv_b_proj_gemm", expand));
        }
        parts.extend(match (model.backend, self.phase) {
            (Backend::Vllm, _) => vec![self.layered("attention", self.expanded())],
            (Backend::Sglang | Backend::Trtllm, Phase::Context) => vec![self.latent_kernel()],
            (Backend::Sglang | Backend::Trtllm, Phase::Generation) => vec![
                self.product("bmm_pre", true),
                self.latent_kernel(),
                self.product("bmm_post", false),
            ],
        });
        parts.push(self.layered("proj_gemm", gemm(hidden, heads * VALUE_DIM, kept.output)));
        parts
    }

    /// Heads of one GPU.
    fn heads(&self) -> u64 {
        self.deployed.shape.heads / self.deployed.parallelism.tp
    }

    /// Attention over keys and values that were expanded again, as vLLM does it.
    fn expanded(&self) -> Kind {
        let Deployed {
            shape,
            formats,
            parallelism,
            ..
        } = self.deployed;
        Kind::Attention(Attention {
            heads: self.heads(),
            kv_heads: shape.kv_heads / parallelism.tp,
            head_dim: VALUE_DIM,
            window: 0,
            fmha: formats.fmha,
            kv_cache: formats.kv_cache,
            qk_norm: false,
        })
    }

    fn kernel(&self, heads: u64, module: Option<(Format, u64)>) -> Latent {
        let formats = self.deployed.formats;
        Latent {
            heads,
            fmha: formats.fmha,
            kv_cache: formats.kv_cache,
            module,
        }
    }

    fn latent_kernel(&self) -> Operation {
        let heads = MEASURED_HEADS / self.deployed.parallelism.tp;
        self.layered("attention", Kind::Latent(self.kernel(heads, None)))
    }

    fn product(&self, name: &'static str, before: bool) -> Operation {
        let format = match self.deployed.formats.excluded.keys {
            BFLOAT16 => BFLOAT16,
            _ => FP8,
        };
        let heads = self.heads();
        self.layered(name, Kind::LatentProduct { heads, format, before })
    }

    /// The expert that all tokens go to.
    fn shared(&self) -> Vec<Operation> {
        let Deployed {
            shape,
            formats,
            parallelism,
            ..
        } = self.deployed;
        let (hidden, format) = (shape.hidden, formats.excluded.shared_experts);
        let (gate_and_up, down) = (
            2 * shape.intermediate / parallelism.tp,
            shape.intermediate / parallelism.tp,
        );
        vec![
            self.layered("shared_gate_up_gemm", gemm(gate_and_up, hidden, format)),
            self.layered("shared_act_gate", activation(gate_and_up, down)),
            self.layered("shared_ffn2_gemm", gemm(hidden, down, format)),
        ]
    }
}
