//! How many KV blocks a rank has memory for.
//!
//! Source: `aiconfigurator-core` 0.12.0, `estimate_kv_cache`, as Dynamo 1.4.2 calls it. In floating point, as there, so
//! that the last block comes out the same. Draft tokens are not counted, as there.

use super::formats::Format;
use super::lowering::{BAND, Deployed};
use super::operations::{Phase, as_f64};
use super::parallelism::Parallelism;
use super::shape::{Family, KV_RANK, ROPE_DIM, Shape};
use super::system::System;
use super::{AicError, Backend, KvEstimate, MemoryQuery, files};

const MIB: f64 = 1_048_576.0;

/// How an engine uses memory.
struct Usage {
    /// Bytes of activations per token and unit of width, in halves, with 1, 2, 4, and 8 or more GPUs.
    coefficients: [f64; 4],
    /// The same of families that nobody looked into.
    ordinary: [f64; 4],
    /// Bytes of activations at the least.
    floor: f64,
    /// What activations take on top.
    activation_overhead: f64,
    /// What the rest takes on top.
    other_overhead: f64,
    /// The fraction is of what the model leaves, not of all memory.
    of_free: bool,
}

/// What activations of experts take, compared with those of an MLP.
const EXPERTS: f64 = 2.0;

impl Usage {
    fn of(backend: Backend) -> Self {
        let lean = Self {
            coefficients: [11.0, 6.5, 5.0, 5.0],
            ordinary: [10.0, 6.0, 5.0, 5.0],
            floor: 70.0 * MIB,
            activation_overhead: 0.0,
            other_overhead: 0.0,
            of_free: false,
        };
        match backend {
            Backend::Vllm => lean,
            Backend::Trtllm => Self { of_free: true, ..lean },
            Backend::Sglang => Self {
                coefficients: [14.0, 8.5, 6.5, 6.5],
                ordinary: [13.0, 8.0, 6.5, 6.5],
                floor: 90.0 * MIB,
                activation_overhead: 0.15,
                other_overhead: 0.20,
                of_free: false,
            },
        }
    }

    fn coefficient(&self, shape: &Shape, tp: u64) -> Option<f64> {
        let known = if shape.sees { self.ordinary } else { self.coefficients };
        let scale = match shape.family {
            Family::Moe | Family::BandedMoe | Family::LatentMoe if !shape.sees => EXPERTS,
            Family::Dense | Family::Moe | Family::BandedMoe | Family::LatentMoe => 1.0,
        };
        let [one, two, four, more] = known.map(|coefficient| coefficient * scale);
        match tp {
            1 => Some(one),
            2 => Some(two),
            4 => Some(four),
            8.. => Some(more),
            _ => None,
        }
    }
}

/// Capacity for the KV cache of a deployment.
///
/// # Errors
/// [`AicError`]: the system's file lacks a number, this tensor parallel size was never measured, or nothing is left.
pub(super) fn kv_blocks(deployed: &Deployed<'_>, system: &System, query: &MemoryQuery) -> Result<KvEstimate, AicError> {
    check(query)?;
    let Deployed {
        model,
        shape,
        formats,
        parallelism,
    } = *deployed;
    let usage = Usage::of(model.backend);
    let missing = |key: &str| files::content(&system.path, format!("{key} is missing; KV capacity needs it"));
    let capacity = system.file.gpu.mem_capacity.filter(|bytes| *bytes > 0);
    let capacity = as_f64(capacity.ok_or_else(|| missing("gpu.mem_capacity"))?);
    let other = as_f64(system.file.misc.other_mem.ok_or_else(|| missing("misc.other_mem"))?);
    let buffered = parallelism.tp.min(8);
    let comm = system.file.misc.nccl_mem.get(&buffered);
    let comm = as_f64(*comm.ok_or_else(|| missing(&format!("misc.nccl_mem.{buffered}")))?);

    let weights: f64 = deployed
        .operations(Phase::Context)
        .iter()
        .map(super::operations::Operation::weight_bytes)
        .sum();
    let coefficient = usage
        .coefficient(shape, parallelism.tp)
        .ok_or_else(|| AicError::NoCapacity {
            what: format!(
                "a model over {} GPUs, which is none of 1, 2, 4, and 8 or more,",
                parallelism.tp
            ),
        })?;
    let width = as_f64(2 * u64::from(query.max_num_batched_tokens)) * as_f64(shape.heads * shape.head_dim);
    let activations = width * coefficient + workspace(deployed, query);
    let activations = activations.max(usage.floor) * (1.0 + usage.activation_overhead);
    let other = other * (1.0 + usage.other_overhead);
    let non_kv = weights + activations + other + comm;

    let budget = if usage.of_free {
        (capacity - non_kv) * query.fraction
    } else {
        capacity * query.fraction - non_kv
    };
    if budget <= 0.0 {
        return Err(AicError::NoKvBudget {
            system: model.system.clone(),
            non_kv: whole(non_kv),
            capacity: whole(capacity),
        });
    }
    let growth = KvGrowth::of(shape, parallelism, formats.kv_cache);
    let tokens = growth.tokens_in(budget);
    let blocks = u32::try_from(tokens / u64::from(query.block_size)).map_err(|_| AicError::NoCapacity {
        what: format!(
            "{tokens} tokens in blocks of {}, which are too many to count,",
            query.block_size
        ),
    })?;
    Ok(KvEstimate {
        blocks,
        tokens,
        weights: whole(weights),
        activations: whole(activations),
        comm: whole(comm),
        other: whole(other),
        non_kv: whole(non_kv),
        kv_per_token: whole(growth.bytes(1)),
        capacity: whole(capacity),
    })
}

/// Bytes in which tokens are sorted by expert; counted where attention is latent.
fn workspace(deployed: &Deployed<'_>, query: &MemoryQuery) -> f64 {
    let Deployed {
        model,
        shape,
        parallelism,
        ..
    } = *deployed;
    let (Family::LatentMoe, Some(experts)) = (shape.family, shape.experts) else {
        return 0.0;
    };
    let width = match model.backend {
        Backend::Vllm | Backend::Trtllm => shape.heads * shape.head_dim,
        Backend::Sglang => shape.hidden,
    };
    let tokens = f64::from(query.max_num_batched_tokens) * as_f64(width) * as_f64(parallelism.attention_dp);
    let routed = tokens * as_f64(experts.count) * as_f64(experts.topk) / as_f64(parallelism.moe_ep.unwrap_or(1));
    // A scale of four bytes for each block of 128.
    routed / 128.0 * 4.0
}

fn check(query: &MemoryQuery) -> Result<(), AicError> {
    if !(0.0..=1.0).contains(&query.fraction) {
        let why = format!("the fraction of GPU memory must be from 0 to 1, not {}", query.fraction);
        return Err(AicError::Deployment(why));
    }
    if query.block_size == 0 {
        return Err(AicError::Deployment("the KV block size must be at least 1".to_owned()));
    }
    Ok(())
}

/// How the KV cache of one sequence grows.
struct KvGrowth {
    /// Bytes of one token in one layer.
    layer: f64,
    /// Layers that keep every token.
    whole: u64,
    /// Layers that keep [`BAND`] tokens.
    banded: u64,
}

impl KvGrowth {
    fn of(shape: &Shape, parallelism: &Parallelism, format: Format) -> Self {
        let elements = match shape.family {
            Family::Dense | Family::Moe | Family::BandedMoe => {
                shape.kv_heads.div_ceil(parallelism.tp) * shape.head_dim * 2
            }
            // Every GPU keeps all of it.
            Family::LatentMoe => KV_RANK + ROPE_DIM,
        };
        let banded = match shape.family {
            Family::Dense | Family::Moe | Family::LatentMoe => 0,
            Family::BandedMoe => shape.layers / 2,
        };
        Self {
            layer: as_f64(elements) * format.bytes,
            whole: shape.layers - banded,
            banded,
        }
    }

    /// Bytes of this many tokens.
    fn bytes(&self, tokens: u64) -> f64 {
        let kept = as_f64(self.banded) * as_f64(tokens.min(BAND)) + as_f64(self.whole) * as_f64(tokens);
        self.layer * kept
    }

    /// Most tokens whose KV cache fits.
    fn tokens_in(&self, budget: f64) -> u64 {
        let banded = self.layer * as_f64(self.banded) * as_f64(BAND);
        let each = self.layer * as_f64(self.whole);
        let grown = if budget >= self.bytes(BAND) {
            whole_times(budget - banded, each)
        } else {
            whole_times(budget, self.bytes(1))
        };
        whole(grown)
    }
}

/// How often a number goes into another, exactly: a quotient just below a whole number is not taken for it.
fn whole_times(of: f64, each: f64) -> f64 {
    ((of - of % each) / each).round()
}

/// Without the fraction of a byte or token.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(number: f64) -> u64 {
    number as u64
}
