//! Trace files by their form.

use crate::cli::{ReplayArgs, TraceFormat};
use crate::replay::trace::{AppliedFile, MooncakeOptions, SharedPrefix, read_applied_compute};
use crate::replay::{Graph, Load, SessionSource, SessionTrace, Source, from_file};

use super::RunError;
use super::files::AnyOrder;
use super::{files, graphs, mooncake};

/// Tokens per hash id unless the flag or the trace says otherwise.
const BLOCK_TOKENS: u32 = 512;

/// A trace that was read, or is ready to be read on the way.
pub enum Workload {
    /// Requests that wait for one another.
    Graph(Graph),
    /// Sessions of requests.
    Sessions(SessionTrace),
    /// Requests that come from the file one by one.
    Stream {
        /// The requests.
        source: Box<dyn Source>,
        /// Tokens per hash id.
        block_tokens: u32,
    },
}

/// Reads the trace that the flags name.
///
/// # Errors
/// [`RunError`] names the file, the line and the field at fault.
pub fn workload(args: &ReplayArgs) -> Result<Workload, RunError> {
    let Some(first) = args.trace_files.first() else {
        return Err(RunError::Usage("no trace file is given".into()));
    };
    let block_tokens = args.trace_block_size.unwrap_or(BLOCK_TOKENS);
    if block_tokens == 0 {
        return Err(RunError::Invalid("--trace-block-size is 0, expected at least 1".into()));
    }
    match args.trace_format {
        TraceFormat::Mooncake | TraceFormat::MooncakeDelta => {
            let options = MooncakeOptions {
                block_tokens,
                delta: args.trace_format == TraceFormat::MooncakeDelta,
                timed: args.replay_concurrency.is_none(),
                rules: args.semantics,
            };
            mooncake::read(first, options, load(args))
        }
        TraceFormat::AppliedComputeAgentic => {
            let prefix = SharedPrefix {
                ratio: args.trace_shared_prefix_ratio,
                groups: args.trace_num_prefix_groups,
            };
            if files::are_large(&args.trace_files) {
                let file = AppliedFile::new(AnyOrder::new(first)?.lines()?, block_tokens, prefix)?;
                return Ok(Workload::Stream {
                    source: from_file(file, load(args)),
                    block_tokens,
                });
            }
            let trace = read_applied_compute(files::open(first)?, block_tokens, prefix)?;
            Ok(Workload::Sessions(trace))
        }
        TraceFormat::AgenticMooncake | TraceFormat::Dynamo | TraceFormat::Weka => graphs::read(args, BLOCK_TOKENS),
    }
}

/// When sessions start.
pub(super) fn load(args: &ReplayArgs) -> Load {
    match args.replay_concurrency {
        Some(most) => Load::Concurrency(most),
        None => Load::Timestamps {
            speedup: args.arrival_speedup_ratio,
        },
    }
}

impl Workload {
    /// Tokens per hash id.
    pub fn block_tokens(&self) -> u32 {
        match self {
            Self::Graph(graph) => graph.block_tokens,
            Self::Sessions(trace) => trace.block_tokens(),
            Self::Stream { block_tokens, .. } => *block_tokens,
        }
    }

    /// The trace as the flags want it played.
    ///
    /// # Errors
    /// [`RunError`] names the request or the flag at fault.
    pub fn source(self, args: &ReplayArgs) -> Result<Box<dyn Source>, RunError> {
        match self {
            Self::Graph(graph) => graphs::play(args, graph),
            Self::Sessions(trace) => Ok(Box::new(SessionSource::new(trace, load(args)))),
            Self::Stream { source, .. } => Ok(source),
        }
    }
}
