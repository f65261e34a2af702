//! Workloads that are request graphs, or may be.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::cli::{ReplayArgs, TraceFormat, WekaTimes};
use crate::replay::trace::{
    NestedTimes, RequestFile, RequestTrace, RequestTraceReader, TraceError, WekaReader, read_agentic,
};
use crate::replay::{AgenticSource, Graph, Source, from_file};

use super::files::{self, AnyOrder};
use super::workload;
use super::{RunError, Workload};

/// Files of a Weka corpus.
const MAX_FILES: usize = 100_000;

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
            let mut reader = RequestTraceReader::new(wanted, args.semantics);
            for path in &args.trace_files {
                reader.read(files::open(path)?)?;
            }
            Ok(match reader.finish()? {
                RequestTrace::Agentic(graph) => Workload::Graph(graph),
                RequestTrace::Independent(trace) => Workload::Sessions(trace),
            })
        }
        TraceFormat::Weka => {
            let mut reader = WekaReader::new(wanted);
            for path in &args.trace_files {
                for path in weka_files(path)? {
                    let failed = |source| failed(&path, source);
                    let name = path.display().to_string();
                    reader.read(&name, File::open(&path).map_err(failed)?)?;
                }
            }
            let nested = match args.weka_nested_times {
                WekaTimes::Auto => NestedTimes::Auto,
                WekaTimes::Absolute => NestedTimes::Absolute,
                WekaTimes::Relative => NestedTimes::Relative,
            };
            Ok(Workload::Graph(reader.finish(nested)?))
        }
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

fn failed(path: &Path, source: std::io::Error) -> TraceError {
    TraceError::Io {
        file: path.display().to_string(),
        source,
    }
}

/// A file, or every JSON and JSONL file below a directory by name; symbolic links are not followed.
fn weka_files(path: &Path) -> Result<Vec<PathBuf>, RunError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    let mut open = vec![path.to_owned()];
    while let Some(directory) = open.pop() {
        let entries = fs::read_dir(&directory).map_err(|source| failed(&directory, source))?;
        for entry in entries {
            let entry = entry.map_err(|source| failed(&directory, source))?;
            let kind = entry.file_type().map_err(|source| failed(&entry.path(), source))?;
            let path = entry.path();
            let json = path.extension().is_some_and(|end| end == "json" || end == "jsonl");
            if kind.is_dir() {
                open.push(path);
            } else if kind.is_file() && json {
                found.push(path);
            }
            if found.len() + open.len() > MAX_FILES {
                let path = directory.display();
                return Err(RunError::Invalid(format!(
                    "{path}: more than {MAX_FILES} files and directories"
                )));
            }
        }
    }
    if found.is_empty() {
        let path = path.display();
        return Err(RunError::Invalid(format!(
            "{path}: no .json or .jsonl file in this directory"
        )));
    }
    found.sort();
    Ok(found)
}
