//! What the model adds to the memory for KV below the GPU's.

use super::StartError;
use super::disaggregation::size_rule;
use crate::config::Group;
use crate::engine::TierConfig;
use crate::model::Model;

/// The tiers of a group with the size of their blocks: as said, else by the model's config, as the launcher of Dynamo
/// 1.4.2 does.
///
/// # Errors
/// Neither says it.
pub(super) fn settle(group: &Group, model: &Model) -> Result<Option<TierConfig>, StartError> {
    let Some(tiers) = group.engine.tiers.filter(|_| group.tiers_by_model) else {
        return Ok(group.engine.tiers);
    };
    let shape = model.info.kv_shape.as_ref();
    let dtype = &group.disaggregation.transfer.cache_dtype;
    let bytes = shape.map_or(0, |shape| shape.bytes_per_token(dtype, size_rule(&group.engine)));
    if bytes == 0 {
        return Err(StartError::Settings(format!(
            "num_g2_blocks needs to know how large the KV of a token is, which {} does not say; give --kv-bytes-per-token",
            model.dir.join("config.json").display()
        )));
    }
    Ok(Some(TierConfig {
        bytes_per_token: bytes,
        ..tiers
    }))
}
