//! Over how many GPUs a model is spread, and whether it can be.

use super::config_files::ModelConfig;
use super::quantization::{Formats, block_rows};
use super::shape::{Experts, Family, Shape};
use super::{AicError, AicModel};

/// How a model is spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parallelism {
    pub(super) tp: u64,
    pub(super) attention_dp: u64,
    /// As given where there are no experts, which nothing then depends on.
    pub(super) moe_tp: Option<u64>,
    pub(super) moe_ep: Option<u64>,
}

/// How experts are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExpertSizes {
    pub(super) tp: u64,
    pub(super) ep: u64,
}

impl Parallelism {
    /// Takes the sizes of a deployment; of the two for experts, one that is not given follows from the other.
    ///
    /// # Errors
    /// [`AicError::Deployment`] says which sizes do not fit, and to what.
    pub(super) fn resolve(
        model: &AicModel,
        files: &ModelConfig,
        shape: &Shape,
        formats: &Formats,
    ) -> Result<Self, AicError> {
        let (tp, attention_dp) = (u64::from(model.tp), u64::from(model.attention_dp));
        for (flag, size) in [
            ("--aic-tp-size", Some(model.tp)),
            ("--aic-attention-dp-size", Some(model.attention_dp)),
            ("--aic-moe-tp-size", model.moe_tp),
            ("--aic-moe-ep-size", model.moe_ep),
        ] {
            if size == Some(0) {
                return Err(AicError::Deployment(format!("{flag} must be at least 1")));
            }
        }
        if !shape.heads.is_multiple_of(tp) {
            return Err(AicError::Deployment(format!(
                "num_attention_heads {} of {} should be divisible by --aic-tp-size {tp}",
                shape.heads,
                model.model_path.display()
            )));
        }
        let mut spread = Self {
            tp,
            attention_dp,
            moe_tp: model.moe_tp.map(u64::from),
            moe_ep: model.moe_ep.map(u64::from),
        };
        if let Some(experts) = shape.experts {
            let sizes = spread.of_experts()?;
            check_experts(sizes, experts, files, shape, formats)?;
            (spread.moe_tp, spread.moe_ep) = (Some(sizes.tp), Some(sizes.ep));
        }
        Ok(spread)
    }

    /// Sizes for experts, both of them.
    fn of_experts(&self) -> Result<ExpertSizes, AicError> {
        let width = self.tp * self.attention_dp;
        let attention = format!(
            "--aic-tp-size ({}) * --aic-attention-dp-size ({}) = {width}",
            self.tp, self.attention_dp
        );
        let rest = |flag: &str, given: u64| {
            if width.is_multiple_of(given) {
                return Ok(width / given);
            }
            Err(AicError::Deployment(format!(
                "{attention} is not divisible by {flag} ({given}), so the other size of the experts does not follow"
            )))
        };
        let sizes = match (self.moe_tp, self.moe_ep) {
            (Some(tp), Some(ep)) => ExpertSizes { tp, ep },
            (Some(tp), None) => ExpertSizes {
                tp,
                ep: rest("--aic-moe-tp-size", tp)?,
            },
            (None, Some(ep)) => ExpertSizes {
                tp: rest("--aic-moe-ep-size", ep)?,
                ep,
            },
            (None, None) => {
                return Err(AicError::Deployment(
                    "at least one of moe_tp_size or moe_ep_size must be set for MoE models: give --aic-moe-tp-size or \
                     --aic-moe-ep-size"
                        .to_owned(),
                ));
            }
        };
        if sizes.tp * sizes.ep == width {
            return Ok(sizes);
        }
        Err(AicError::Deployment(format!(
            "{attention}, but --aic-moe-tp-size ({}) * --aic-moe-ep-size ({}) = {}; these must be equal",
            sizes.tp,
            sizes.ep,
            sizes.tp * sizes.ep
        )))
    }
}

fn check_experts(
    sizes: ExpertSizes,
    experts: Experts,
    files: &ModelConfig,
    shape: &Shape,
    formats: &Formats,
) -> Result<(), AicError> {
    if experts.count < sizes.ep {
        return Err(AicError::Deployment(format!(
            "--aic-moe-ep-size {} cannot be larger than the model's {} experts",
            sizes.ep, experts.count
        )));
    }
    // Where the checkpoint has no blocks of its own, those of the format.
    let rows = block_rows(files).unwrap_or(128);
    let part = shape.intermediate / sizes.tp;
    // The original does not look at this where attention is latent.
    let checked = shape.family != Family::LatentMoe && formats.moe.name == "fp8_block";
    if checked && !part.is_multiple_of(rows) {
        return Err(AicError::Deployment(format!(
            "an expert's width {} over --aic-moe-tp-size {} is not divisible by the {rows} rows of a block of weights; \
             give a smaller --aic-moe-tp-size and a larger --aic-moe-ep-size",
            shape.intermediate, sizes.tp
        )));
    }
    Ok(())
}
