//! Flags that say where the measurements of the AIC performance model are, for commands without the settings of `serve`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use crate::config::{MEASURED_GPUS_BUILT_IN, NO_MEASURED_GPUS, Settings};

/// Where the measurements are.
#[derive(Debug, Clone, Default, Args)]
pub struct Measurements {
    /// AIC performance model: directory of the measurements, `systems` of the wheel aiconfigurator-core 0.12.0;
    /// `AICONFIGURATOR_SYSTEMS_PATH` in the environment means the same.
    #[arg(long, value_name = "DIR", env = "GHOSTFLEET_AIC_SYSTEMS_PATH", value_parser = path())]
    pub aic_systems_path: Option<PathBuf>,
    /// AIC performance model: directory of configs of known models [default: `model_configs` beside the measurements].
    #[arg(long, value_name = "DIR", env = "GHOSTFLEET_AIC_MODEL_CONFIGS", value_parser = path())]
    pub aic_model_configs: Option<PathBuf>,
    /// AIC performance model: silicon, hybrid, empirical or sol [default: silicon].
    #[arg(long, value_name = "MODE", env = "GHOSTFLEET_AIC_DATABASE_MODE")]
    pub aic_database_mode: Option<String>,
    /// AIC performance model: plan of operations, made elsewhere, instead of one made from the model's config.json.
    #[arg(long, value_name = "FILE", env = "GHOSTFLEET_AIC_PLAN", value_parser = path())]
    pub aic_plan: Option<PathBuf>,
}

/// A path that may be empty: a variable that is set to nothing says nothing.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

impl Measurements {
    /// Whether this build can read measurements.
    pub const CAN_BE_READ: bool = MEASURED_GPUS_BUILT_IN;

    /// Why a build cannot, and the way out.
    pub const WHY_NOT: &str = NO_MEASURED_GPUS;

    /// The same as settings.
    pub fn settings(&self) -> Settings {
        let said = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        let elsewhere = || said(&std::env::var_os("AICONFIGURATOR_SYSTEMS_PATH").map(PathBuf::from));
        Settings {
            aic_systems_path: said(&self.aic_systems_path).or_else(elsewhere),
            aic_model_configs: said(&self.aic_model_configs),
            aic_database_mode: self.aic_database_mode.clone().filter(|mode| !mode.is_empty()),
            aic_plan: said(&self.aic_plan),
            ..Settings::default()
        }
    }
}
