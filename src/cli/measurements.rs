//! Flags that say where the measurements of the AIC performance model are, for commands without the settings of `serve`.

use std::path::PathBuf;

use clap::Args;

use crate::config::Settings;

/// Where the measurements are.
#[derive(Debug, Clone, Default, Args)]
pub struct Measurements {
    /// AIC performance model: directory of the measurements, `systems` of the wheel aiconfigurator-core 0.12.0;
    /// `AICONFIGURATOR_SYSTEMS_PATH` in the environment means the same.
    #[arg(long, value_name = "DIR", env = "GHOSTFLEET_AIC_SYSTEMS_PATH")]
    pub aic_systems_path: Option<PathBuf>,
    /// AIC performance model: directory of configs of known models [default: `model_configs` beside the measurements].
    #[arg(long, value_name = "DIR", env = "GHOSTFLEET_AIC_MODEL_CONFIGS")]
    pub aic_model_configs: Option<PathBuf>,
    /// AIC performance model: silicon, hybrid, empirical or sol [default: silicon].
    #[arg(long, value_name = "MODE", env = "GHOSTFLEET_AIC_DATABASE_MODE")]
    pub aic_database_mode: Option<String>,
    /// AIC performance model: plan of operations, made elsewhere, instead of one made from the model's config.json.
    #[arg(long, value_name = "FILE", env = "GHOSTFLEET_AIC_PLAN")]
    pub aic_plan: Option<PathBuf>,
}

impl Measurements {
    /// The same as settings.
    pub fn settings(&self) -> Settings {
        let given = self.aic_systems_path.clone();
        Settings {
            aic_systems_path: given.or_else(|| std::env::var_os("AICONFIGURATOR_SYSTEMS_PATH").map(PathBuf::from)),
            aic_model_configs: self.aic_model_configs.clone(),
            aic_database_mode: self.aic_database_mode.clone(),
            aic_plan: self.aic_plan.clone(),
            ..Settings::default()
        }
    }
}
