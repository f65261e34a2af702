//! `ghostfleet trace`: describe, convert and make trace files.

mod playback;
mod stat;
mod write;

use std::io::Write;
use std::path::Path;

use clap::Parser;

use crate::cli::{
    ConvertTraceArgs, ReplayArgs, StatArgs, StatFormat, SynthArgs, TraceCommand, TraceFormat, TraceInput,
};
use crate::distinct_files::DistinctFiles;
use crate::replay::{Arrivals, Load, SessionSource, SyntheticError, SyntheticSpec};
use crate::replay_run::{RunError, Workload, destination, workload};

/// Why a trace command failed.
#[derive(Debug, thiserror::Error)]
pub enum TraceCommandError {
    /// The trace or its flags, or a result that could not be written.
    #[error(transparent)]
    Input(#[from] RunError),
    /// Flags of synthetic load.
    #[error(transparent)]
    Synthetic(#[from] SyntheticError),
    /// Something that only later releases of the forms can say.
    #[error("{0}")]
    Form(String),
    /// A result could not be written.
    #[error("cannot write {0}: {1}")]
    Write(String, std::io::Error),
}

impl TraceCommandError {
    /// Process exit code: 2 for input that makes no sense, 1 when a file could not be written.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Input(RunError::Write(..)) | Self::Write(..) => 1,
            Self::Input(_) | Self::Synthetic(_) | Self::Form(_) => 2,
        }
    }
}

/// Runs a command; descriptions go to `out`.
///
/// # Errors
/// [`TraceCommandError`] names file, line and field, or the flag.
pub fn run(command: &TraceCommand, out: &mut dyn Write) -> Result<(), TraceCommandError> {
    match command {
        TraceCommand::Stat(args) => describe(args, out),
        TraceCommand::Convert(args) => convert(args),
        TraceCommand::Synth(args) => synth(args),
    }
}

fn describe(args: &StatArgs, out: &mut dyn Write) -> Result<(), TraceCommandError> {
    let (found, block_tokens) = read(&args.input)?;
    let mut source = found.source(&replay_args(&args.input)?)?;
    let stat = stat::Stat::of(source.as_mut(), block_tokens);
    if let Some(error) = source.failure() {
        return Err(RunError::from(error).into());
    }
    let text = match args.format {
        StatFormat::Json => format!("{:#}\n", stat.to_json()),
        StatFormat::Text => stat.to_string(),
    };
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    printed.map_err(|error| TraceCommandError::Write("standard output".into(), error))
}

fn convert(args: &ConvertTraceArgs) -> Result<(), TraceCommandError> {
    let mut files = DistinctFiles::default();
    for path in &args.input.files {
        files.reads("the trace", path);
    }
    destination::distinct(&args.output, |output| files.writes("--output", output))?;
    let (found, block_tokens) = read(&args.input)?;
    if let Workload::Graph(graph) = &found {
        return save(&args.output, |out| write::graph(graph, out));
    }
    let mut source = found.source(&replay_args(&args.input)?)?;
    let mut failure = None;
    let saved = save(&args.output, |out| {
        write::sessions(source.as_mut(), block_tokens, out)?;
        failure = source.failure();
        // Half a trace takes no place.
        match &failure {
            Some(_) => Err(std::io::Error::other("the trace cannot be read on")),
            None => Ok(()),
        }
    });
    match failure {
        Some(error) => Err(RunError::from(error).into()),
        None => saved,
    }
}

fn synth(args: &SynthArgs) -> Result<(), TraceCommandError> {
    if args.trace_block_size == 0 {
        return Err(SyntheticError::Zero("trace_block_size").into());
    }
    let arrivals = match (args.request_rate, args.arrival_interval_ms) {
        (Some(rate), _) => Arrivals::Poisson {
            rate,
            seed: args.arrival_seed,
        },
        (None, gap) => Arrivals::Interval(gap.unwrap_or(0.0)),
    };
    let spec = SyntheticSpec {
        input_tokens: args.input_tokens,
        output_tokens: args.output_tokens,
        count: args.request_count,
        arrivals,
        turns: args.turns_per_session,
        shared_prefix_ratio: args.shared_prefix_ratio,
        prefix_groups: args.num_prefix_groups,
        inter_turn_delay_ms: args.inter_turn_delay_ms,
        speedup: 1.0,
        block_size: args.trace_block_size,
    };
    spec.validate()?;
    let mut source = SessionSource::new(spec.sessions(), Load::Timestamps { speedup: 1.0 });
    save(&args.output, |out| {
        write::sessions(&mut source, args.trace_block_size, out)
    })
}

/// A trace as the flags of a replay, which knows how to read it.
fn replay_args(input: &TraceInput) -> Result<ReplayArgs, TraceCommandError> {
    let mut args =
        ReplayArgs::try_parse_from(["replay"]).map_err(|error| TraceCommandError::Form(error.to_string()))?;
    args.trace_files.clone_from(&input.files);
    args.trace_format = input.trace_format;
    args.trace_block_size = input.trace_block_size;
    let untimed = input.untimed || input.trace_format == TraceFormat::AppliedComputeAgentic;
    args.replay_concurrency = untimed.then_some(usize::MAX);
    Ok(args)
}

/// A trace and its tokens per hash id.
fn read(input: &TraceInput) -> Result<(Workload, u32), TraceCommandError> {
    let found = workload(&replay_args(input)?)?;
    let block_tokens = found.block_tokens();
    Ok((found, block_tokens))
}

fn save(path: &Path, content: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<(), TraceCommandError> {
    Ok(destination::write(path, |out| content(out))?)
}
