//! Workloads that are request graphs, or may be.

use crate::cli::{ReplayArgs, TraceFormat};
use crate::replay::trace::{RequestFile, RequestTrace, RequestTraceReader, read_agentic};
use crate::replay::{AgenticSource, Graph, Source, from_file};

use super::files::{self, AnyOrder};
use super::weka;
use super::workload;
use super::{RunError, Workload};

/// The workload of an agentic, a Dynamo or a Weka trace; `default_tokens` per hash id where the trace does not say it.
pub(super) fn read(args: &ReplayArgs, default_tokens: u32) -> Result<Workload, RunError> {
    let wanted = args.trace_block_size;
    match args.trace_format {
        TraceFormat::Dynamo => {
            if files::are_large(&args.trace_files)
                && let Some(workload) = independent(args)?
            {
                return Ok(workload);
            }
            let mut reader =
                RequestTraceReader::new(wanted, args.semantics).with_ids(files::id_sink(&args.trace_files)?);
            for path in &args.trace_files {
                reader.read(files::open(path)?)?;
            }
            Ok(match reader.finish()? {
                RequestTrace::Agentic(graph) => Workload::Graph(graph),
                RequestTrace::Independent(trace) => Workload::Sessions(trace),
            })
        }
        TraceFormat::Weka => Ok(Workload::Graph(weka::read(args)?)),
        TraceFormat::AgenticMooncake
        | TraceFormat::Mooncake
        | TraceFormat::MooncakeDelta
        | TraceFormat::AppliedComputeAgentic => {
            let path = args.trace_files.first();
            let path = path.ok_or_else(|| RunError::Usage("an agentic trace needs a file".into()))?;
            Ok(Workload::Graph(read_agentic(
                files::open(path)?,
                wanted,
                default_tokens,
                files::id_sink(&args.trace_files)?,
            )?))
        }
    }
}

/// Large shards of independent requests; `None`: they belong to agents.
fn independent(args: &ReplayArgs) -> Result<Option<Workload>, RunError> {
    let shards = args.trace_files.iter().map(|path| AnyOrder::new(path)?.lines());
    let shards = shards.collect::<Result<Vec<_>, _>>()?;
    let file = RequestFile::new(shards, args.trace_block_size, args.semantics)?;
    Ok(file.map(|file| {
        let block_tokens = file.tokens_per_id();
        Workload::Stream {
            source: from_file(file, workload::load(args)),
            block_tokens,
        }
    }))
}

/// A graph as the flags want it played.
pub(super) fn play(args: &ReplayArgs, graph: Graph) -> Result<Box<dyn Source>, RunError> {
    if args.replay_concurrency.is_some() {
        let what = "a trace of request graphs sets its own pace; leave out --replay-concurrency";
        return Err(RunError::Invalid(what.into()));
    }
    let source = AgenticSource::new(graph, args.arrival_speedup_ratio, args.agentic_lanes)?;
    Ok(Box::new(source))
}
