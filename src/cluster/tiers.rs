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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::HubOptions;

    /// Bytes of a token on the host, by the settings or by the model.
    fn bytes(model: &Model, flags: &[&str]) -> Result<Option<u64>, String> {
        let args = ["--model-path", "m", "--discovery-backend", "mem"];
        let args = args.iter().chain(flags).copied();
        let config = crate::serve::config_from(args, &BTreeMap::new()).expect("a config");
        let settled = settle(&config.groups[0], model).map_err(|error| error.to_string())?;
        Ok(settled.map(|tiers| tiers.bytes_per_token))
    }

    #[test]
    fn the_model_sizes_the_blocks_of_the_host_unless_they_are_sized() {
        let mut model = Model::resolve("config/tiny-model", &HubOptions::default()).expect("a model");
        let shape = model.info.kv_shape.clone().expect("a shape");
        let of_model = shape.bytes_per_token("auto", crate::model::KvSizeRule::Real);
        assert_eq!(bytes(&model, &["--num-g2-blocks", "8"]), Ok(Some(of_model)));
        let said = ["--num-g2-blocks", "8", "--kv-bytes-per-token", "7"];
        assert_eq!(bytes(&model, &said), Ok(Some(7)));
        assert_eq!(bytes(&model, &[]), Ok(None));
        model.info.kv_shape = None;
        assert_eq!(bytes(&model, &said), Ok(Some(7)));
        let error = bytes(&model, &["--num-g2-blocks", "8"]).expect_err("no size");
        assert!(error.contains("--kv-bytes-per-token"), "{error}");
    }
}
