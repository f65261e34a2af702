//! Flags of `ghostfleet predict` and `ghostfleet recommend`.

use std::path::PathBuf;

use clap::{Args, Parser, ValueEnum};

/// What both commands take.
#[derive(Debug, Clone, Args)]
pub struct PredictionArgs {
    /// What to replay and on what, YAML.
    #[arg(short, long, value_name = "FILE.yaml")]
    pub config: PathBuf,
    /// Sections that the file may have: engine knows traffic, engine and evaluation; dynamo adds router and planner.
    #[arg(long, value_enum, default_value_t = Stack::Engine)]
    pub stack: Stack,
    /// Replace a value of the file: dot path and YAML, for instance traffic.load.concurrency=8; the last one counts.
    #[arg(long = "set", value_name = "PATH=YAML")]
    pub overrides: Vec<String>,
    /// Directory of the results.
    #[arg(long, value_name = "DIR", default_value = "ghostfleet-output")]
    pub output_dir: PathBuf,
    /// Write over the results of an earlier run.
    #[arg(long)]
    pub overwrite: bool,
    /// What to print.
    #[arg(long, value_enum, default_value_t = PredictionFormat::Table)]
    pub format: PredictionFormat,
}

/// Replay the workload of a YAML file and predict what it would measure.
#[derive(Debug, Clone, Parser)]
pub struct PredictArgs {
    /// Shared flags.
    #[command(flatten)]
    pub shared: PredictionArgs,
    /// Write one line of JSON per request to requests.jsonl.
    #[arg(long)]
    pub capture_per_request: bool,
    /// Write curves over time and latency distributions as one HTML page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Try variants of a YAML file and recommend the best.
///
/// Any value under traffic, engine and router may be a domain: {choices: [..]} or {range: {min, max, step, scale}}.
/// Sections optimization and optimizer say what is best and how to look for it.
#[derive(Debug, Clone, Parser)]
pub struct RecommendArgs {
    /// Shared flags.
    #[command(flatten)]
    pub shared: PredictionArgs,
    /// Replays at a time [default: cores].
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    /// Try only part I of N, I from 0, and write it down for --merge.
    #[arg(long, value_name = "I/N", value_parser = shard, conflicts_with = "merge")]
    pub shard: Option<(u32, u32)>,
    /// Put the parts together that --shard wrote: files, or directories with such files. Nothing is replayed.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub merge: Vec<PathBuf>,
}

/// What a configuration is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Stack {
    /// Engines behind a round robin.
    Engine,
    /// Engines behind a router of Dynamo.
    Dynamo,
}

/// What goes to the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PredictionFormat {
    /// A table.
    Table,
    /// The result as JSON.
    Json,
}

fn shard(text: &str) -> Result<(u32, u32), String> {
    let parts = text.split_once('/').and_then(|(index, count)| {
        let parts = (index.parse::<u32>().ok()?, count.parse::<u32>().ok()?);
        (parts.0 < parts.1).then_some(parts)
    });
    parts.ok_or_else(|| format!("{text} is not I/N with I from 0 to N - 1, for instance 0/8"))
}
