//! Parallelism of an engine document.
//!
//! Source: Dynamo 1.4.2 and 1.6.1 replay. A worker takes tensor x data-parallel GPUs; data parallelism of attention is
//! ranks by another name.

use super::ConfigError;
use super::aic::AicTiming;
use super::layers::Layered;
use super::rules::refused;
use super::settings::Settings;

/// The GPUs of a worker; ranks that only attention names become those of `settings`. `aic`: the model of its pass times,
/// which may name them too.
///
/// # Errors
/// [`ConfigError::Value`] when the two numbers of ranks differ, or there are more GPUs than can be counted.
pub(super) fn take(layered: &Layered, settings: &mut Settings, aic: Option<&AicTiming>) -> Result<u32, ConfigError> {
    let (tensor, attention) = aic.map_or((None, None), AicTiming::topology);
    settings.aic_tp_size = settings.aic_tp_size.or(tensor);
    settings.aic_attention_dp_size = settings.aic_attention_dp_size.or(attention);
    let ranks = settings.data_parallel_size.unwrap_or(1);
    let ranks = match settings.aic_attention_dp_size {
        Some(attention) if ranks != 1 && ranks != attention => {
            let why = format!("must equal dp_size, which is {ranks}");
            return Err(refused(layered, "aic_attention_dp_size", &why));
        }
        Some(attention) => attention,
        None => ranks,
    };
    settings.data_parallel_size = Some(ranks);
    let tensor = settings.aic_tp_size.unwrap_or(1);
    tensor.checked_mul(ranks).ok_or_else(|| {
        let why = format!("with {ranks} ranks makes more GPUs than can be counted");
        refused(layered, "aic_tp_size", &why)
    })
}
