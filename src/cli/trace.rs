//! Flags of `ghostfleet trace`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::TraceFormat;

/// Look at trace files, change their form, make new ones.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Print how many requests, how long, how often, and how much of their prompts an endless cache would have.
    Stat(StatArgs),
    /// Write any trace as Mooncake rows, or as agentic Mooncake rows if its requests wait for one another.
    Convert(ConvertTraceArgs),
    /// Write synthetic load as a Mooncake trace.
    Synth(SynthArgs),
}

/// A trace.
#[derive(Debug, Clone, Args)]
pub struct TraceInput {
    /// Trace; several shards only with --trace-format dynamo or weka.
    #[arg(value_name = "TRACE", required = true)]
    pub files: Vec<PathBuf>,
    /// Form of the trace.
    #[arg(long, value_enum, default_value_t = TraceFormat::Mooncake)]
    pub trace_format: TraceFormat,
    /// Tokens per hash id [default: 512; for dynamo and weka what the trace says].
    #[arg(long, value_name = "TOKENS")]
    pub trace_block_size: Option<u32>,
    /// Rows may lack time stamps; all sessions then begin at once.
    #[arg(long)]
    pub untimed: bool,
}

/// Describe a trace.
#[derive(Debug, Clone, Parser)]
pub struct StatArgs {
    /// The trace.
    #[command(flatten)]
    pub input: TraceInput,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = StatFormat::Text)]
    pub format: StatFormat,
}

/// How a description is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatFormat {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}

/// Change the form of a trace.
#[derive(Debug, Clone, Parser)]
pub struct ConvertTraceArgs {
    /// The trace.
    #[command(flatten)]
    pub input: TraceInput,
    /// File to write; replaced if it is there.
    #[arg(short, long, value_name = "FILE.jsonl")]
    pub output: PathBuf,
}

/// Make a trace.
#[derive(Debug, Clone, Parser)]
pub struct SynthArgs {
    /// Prompt tokens of each request.
    #[arg(long, value_name = "TOKENS")]
    pub input_tokens: u32,
    /// Tokens to generate for each.
    #[arg(long, value_name = "TOKENS")]
    pub output_tokens: u32,
    /// Requests, or sessions with --turns-per-session above 1.
    #[arg(long, value_name = "N")]
    pub request_count: u32,
    /// Poisson arrivals, mean requests per second.
    #[arg(long, value_name = "PER_SECOND", conflicts_with = "arrival_interval_ms")]
    pub request_rate: Option<f64>,
    /// Even arrivals, ms; without it and --request-rate all at once.
    #[arg(long, value_name = "MS")]
    pub arrival_interval_ms: Option<f64>,
    /// Seed of the arrival times.
    #[arg(long, value_name = "SEED", default_value_t = 42)]
    pub arrival_seed: u64,
    /// Requests of a session, one after the other.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub turns_per_session: u32,
    /// Share of each prompt that a group has in common, 0 to 1.
    #[arg(long, value_name = "RATIO", default_value_t = 0.0)]
    pub shared_prefix_ratio: f64,
    /// Such groups; 0: nothing is shared.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub num_prefix_groups: u32,
    /// Wait between the turns of a session, ms.
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    pub inter_turn_delay_ms: f64,
    /// Tokens per hash id.
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    pub trace_block_size: u32,
    /// File to write; replaced if it is there.
    #[arg(short, long, value_name = "FILE.jsonl")]
    pub output: PathBuf,
}
