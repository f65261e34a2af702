//! The command line: clap structs and nothing else.

pub mod ctl;
mod drill;
pub mod help;
mod measurements;
mod numbers;
pub mod peer_flags;
mod predict;
mod replay;
mod trace;

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

use crate::config::Settings;

pub use drill::DrillArgs;
pub use measurements::Measurements;
pub use predict::{PredictArgs, PredictionArgs, PredictionFormat, RecommendArgs, Stack};
pub use replay::{ReplayArgs, ReplayMode, RouterMode, TraceFormat, WekaTimes};
pub use trace::{ConvertTraceArgs, StatArgs, StatFormat, SynthArgs, TraceCommand, TraceInput};

/// A live fleet of emulated LLM-inference workers behind a real KV router. No GPU.
#[derive(Debug, Parser)]
#[command(name = "ghostfleet", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How log lines look on stderr.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// Log line format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a live fleet of emulated workers.
    Serve(Box<ServeArgs>),
    /// Replay a trace or synthetic load in virtual time.
    Replay(Box<ReplayArgs>),
    /// Predict what the workload of a YAML file would measure.
    Predict(Box<PredictArgs>),
    /// Try variants of a YAML file and recommend the best.
    Recommend(Box<RecommendArgs>),
    /// Describe, convert and make trace files.
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Run scenarios with faults and probe load against a router, and give a verdict.
    Drill(Box<DrillArgs>),
    /// Look at a running fleet, break it, mend it.
    Ctl(Box<ctl::CtlArgs>),
    /// Work on measured hardware profiles.
    #[command(subcommand)]
    Profile(ProfileCommand),
}

/// Work on measured hardware profiles.
#[derive(Debug, Subcommand)]
pub enum ProfileCommand {
    /// Write any form of profile as the NPZ that --planner-profile-data reads.
    Convert(ConvertArgs),
    /// Write the pass times of an engine, as of the AIC performance model, as such an NPZ.
    Export(ExportArgs),
}

/// Write any form of profile as a performance NPZ.
#[derive(Debug, Parser)]
pub struct ConvertArgs {
    /// A directory of profiler results, or an NPZ file.
    #[arg(value_name = "DIR|FILE")]
    pub input: PathBuf,
    /// NPZ file to write; replaced if it is there.
    #[arg(short, long, value_name = "FILE.npz")]
    pub output: PathBuf,
}

/// Write the pass times of an engine as a performance NPZ: one-prompt passes by length, decode steps by KV tokens and length.
#[derive(Debug, Parser)]
pub struct ExportArgs {
    /// Engine settings as JSON, inline or in a file, in the form of Dynamo 1.4.2 (flat) or 1.6.1 (nested), as
    /// `{"aic_backend": "vllm", "aic_model_path": "Qwen/Qwen3-32B"}`.
    #[arg(long, value_name = "JSON|FILE")]
    pub extra_engine_args: String,
    #[allow(missing_docs)]
    #[command(flatten)]
    pub measurements: Measurements,
    /// NPZ file to write; replaced if it is there.
    #[arg(short, long, value_name = "FILE.npz")]
    pub output: PathBuf,
}

/// Run a live fleet of emulated workers that a real router discovers and routes to.
///
/// A flag given twice means its last value.
#[derive(Debug, Parser)]
#[command(args_override_self = true)]
pub struct ServeArgs {
    /// Settings from a TOML file; flags and environment win over it.
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// Print every setting with the place it came from, and exit.
    #[arg(long)]
    pub print_config: bool,
    /// Write the run's summary (counts, lateness of passes, leaks) as JSON when the fleet ends.
    #[arg(long, value_name = "FILE")]
    pub summary: Option<PathBuf>,
    /// Everything else.
    #[command(flatten)]
    pub settings: Settings,
}
