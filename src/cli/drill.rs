//! Arguments of `drill`.

use std::path::PathBuf;

use clap::Parser;

/// Run scenarios: a fleet, a router, a load, faults on a timeline, checks; print the verdict.
///
/// Exit codes: 0 every check that applies holds, 3 one does not, 1 a drill did not run to its end,
/// 130 it was interrupted, 2 bad input.
#[derive(Debug, Parser)]
pub struct DrillArgs {
    /// Scenario files (TOML), run one after the other.
    #[arg(value_name = "FILE.toml", required = true)]
    pub scenarios: Vec<PathBuf>,
    /// Router that runs already, as `http://host:port`, instead of the scenario's. Fleet and router have to share discovery.
    #[arg(long, value_name = "URL", conflicts_with_all = ["frontend_command", "no_frontend"])]
    pub frontend: Option<String>,
    /// Command that starts a router, instead of the scenario's; NAME=value words before it are its environment, and
    /// {port}, {discovery}, {namespace} and {model} are filled in.
    #[arg(long, value_name = "COMMAND", conflicts_with = "no_frontend")]
    pub frontend_command: Option<String>,
    /// Go straight at the workers' HTTP faces; checks that are about a router are skipped.
    #[arg(long)]
    pub no_frontend: bool,
    /// Seed of every choice, instead of the scenario's.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Write verdict, evidence and figures as JSON; a list when there are several scenarios.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the verdict as `JUnit` XML.
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Write one page with timeline, plots and evidence.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}
