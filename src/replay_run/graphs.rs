//! Workloads that are request graphs, or may be.

use crate::cli::{ReplayArgs, TraceFormat};
use crate::replay::trace::{Graph, RequestTrace, RequestTraceReader, read_agentic};
use crate::replay::{AgenticSource, Load, SessionSource, Source};

use super::RunError;
use super::files;

/// The workload of an agentic or a Dynamo trace; `default_tokens` per hash id where the trace does not say it.
pub(super) fn source(args: &ReplayArgs, default_tokens: u32) -> Result<Box<dyn Source>, RunError> {
    let wanted = args.trace_block_size;
    if args.trace_format == TraceFormat::Dynamo {
        let mut reader = RequestTraceReader::new(wanted);
        for path in &args.trace_files {
            reader.read(files::open(path)?)?;
        }
        return match reader.finish()? {
            RequestTrace::Agentic(graph) => play(args, &graph),
            RequestTrace::Independent(trace) => {
                let load = match args.replay_concurrency {
                    Some(most) => Load::Concurrency(most),
                    None => Load::Timestamps {
                        speedup: args.arrival_speedup_ratio,
                    },
                };
                Ok(Box::new(SessionSource::new(trace, load)))
            }
        };
    }
    let path = args.trace_files.first();
    let path = path.ok_or_else(|| RunError::Usage("an agentic trace needs a file".into()))?;
    play(args, &read_agentic(files::open(path)?, wanted, default_tokens)?)
}

fn play(args: &ReplayArgs, graph: &Graph) -> Result<Box<dyn Source>, RunError> {
    if args.replay_concurrency.is_some() {
        let what = "a trace of request graphs sets its own pace; leave out --replay-concurrency";
        return Err(RunError::Invalid(what.into()));
    }
    let source = AgenticSource::new(
        &graph.requests,
        graph.block_tokens,
        args.arrival_speedup_ratio,
        args.agentic_lanes,
    )?;
    Ok(Box::new(source.with_origin(graph.origin.clone())))
}
