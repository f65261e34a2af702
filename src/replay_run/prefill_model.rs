//! The router's own model of prefill times: the flags `--aic-*` of Dynamo 1.4.2's replay.

use std::sync::Arc;

use crate::aic::Reach;
use crate::cli::ReplayArgs;
use crate::config::{AicTiming, Settings};
use crate::engine::{PassTiming, PrefillBatch};
use crate::router::{PrefillLoadModel, PrefillTimes, RouterConfig};

use super::RunError;
use super::plan::{invalid, usage};

/// What the router asks: prompts one by one, as short as any and as long as a pass.
const REACH: Reach = Reach {
    max_num_batched_tokens: 8192,
    max_num_seqs: 1,
    max_model_len: 8192,
};

/// A dtype that says something.
fn dtype(given: Option<&String>) -> Option<String> {
    let given = given.map(|given| given.trim());
    let given = given.filter(|dtype| !dtype.is_empty() && !dtype.eq_ignore_ascii_case("auto"));
    given.map(str::to_owned)
}

/// The flags as settings of a model.
fn settings(args: &ReplayArgs) -> Settings {
    Settings {
        aic_backend: args.aic_backend.clone(),
        aic_system: args.aic_system.clone(),
        aic_model_path: args.aic_model_path.clone(),
        aic_backend_version: args.aic_backend_version.clone(),
        aic_tp_size: args.aic_tp_size,
        aic_moe_tp_size: args.aic_moe_tp_size,
        aic_moe_ep_size: args.aic_moe_ep_size,
        aic_attention_dp_size: args.aic_attention_dp_size,
        aic_gemm_dtype: dtype(args.aic_gemm_dtype.as_ref()),
        aic_moe_dtype: dtype(args.aic_moe_dtype.as_ref()),
        aic_fmha_dtype: dtype(args.aic_fmha_dtype.as_ref()),
        aic_kv_cache_dtype: dtype(args.aic_kv_cache_dtype.as_ref()),
        aic_comm_dtype: dtype(args.aic_comm_dtype.as_ref()),
        aic_nextn: args.aic_nextn,
        aic_nextn_accept_rates: args.aic_nextn_accept_rates.clone(),
        ..Settings::default()
    }
}

/// Whether any of the flags says something; each of them needs the three that name the model.
///
/// # Errors
/// [`RunError::Usage`] names what lacks.
pub(super) fn is_asked_for(args: &ReplayArgs) -> Result<bool, RunError> {
    if settings(args) == Settings::default() {
        return Ok(false);
    }
    let identity = [
        ("--aic-backend", args.aic_backend.is_some()),
        ("--aic-system", args.aic_system.is_some()),
        ("--aic-model-path", args.aic_model_path.is_some()),
    ];
    let missing = identity.iter().filter(|(_, given)| !given).map(|(flag, _)| *flag);
    let missing: Vec<_> = missing.collect();
    if missing.is_empty() {
        return Ok(true);
    }
    usage(format!(
        "the router's prefill model needs {} too",
        missing.join(" and ")
    ))
}

/// The model that a router has, if it has one; whoever names one has it.
///
/// # Errors
/// [`RunError`]: the configuration asks for a model that no flags name, or does not count what the model is about; and
/// whatever keeps the model from answering.
pub(super) fn of_router(args: &ReplayArgs, router: &RouterConfig) -> Result<Option<Arc<dyn PrefillTimes>>, RunError> {
    let named = is_asked_for(args)?;
    if !named && router.router_prefill_load_model != PrefillLoadModel::None {
        return invalid(
            "router_prefill_load_model in --router-config asks for a model that no flag names; give --aic-backend, --aic-system \
             and --aic-model-path, or use none",
        );
    }
    if !named {
        return Ok(None);
    }
    if !router.router_track_prefill_tokens {
        return invalid(
            "the router's prefill model (--aic-backend) needs router_track_prefill_tokens in --router-config",
        );
    }
    let beside = args.measurements.settings();
    let model = AicTiming::of_flags(&Settings {
        aic_systems_path: beside.aic_systems_path,
        aic_model_configs: beside.aic_model_configs,
        aic_database_mode: beside.aic_database_mode,
        ..settings(args)
    });
    let timing = model.and_then(|model| model.timing(None, REACH));
    let timing = timing.map_err(|error| RunError::Invalid(format!("the router's prefill model: {error}")))?;
    Ok(Some(Arc::new(Prompts(timing.of_rank()))))
}

/// Passes of one prompt each.
#[derive(Debug)]
struct Prompts(Arc<dyn PassTiming>);

impl PrefillTimes for Prompts {
    fn prefill_ms(&self, new: u64, prefix: u64) -> f64 {
        let tokens = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        self.0.prefill_ms(PrefillBatch {
            requests: 1,
            mean_isl: tokens(new.saturating_add(prefix)),
            mean_prefix: tokens(prefix),
        })
    }
}
