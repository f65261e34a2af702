//! Mooncake traces, loaded or read on the way.

use std::fs;
use std::path::Path;

use crate::replay::trace::{MooncakeOptions, MooncakeRows, MooncakeScan, read_mooncake};
use crate::replay::{Load, StreamSource};

use super::files;
use super::{RunError, Workload};

/// Files from this size on, bytes, are read while they are replayed where that is possible: it costs a second reading.
const STREAM_FROM: u64 = 64 << 20;
/// What a packed file may unpack to, at least.
const PACKED: u64 = 6;

/// The workload of a Mooncake trace.
pub(super) fn read(path: &Path, options: MooncakeOptions, load: Load) -> Result<Workload, RunError> {
    let open = || files::open(path).map(|lines| MooncakeRows::new(lines, options));
    if !options.delta && is_large(path) {
        let scan = MooncakeScan::of(open()?)?;
        if let Some(source) = StreamSource::new(open()?, scan, load) {
            return Ok(Workload::Stream {
                source: Box::new(source),
                block_tokens: options.block_tokens,
            });
        }
    }
    Ok(Workload::Sessions(read_mooncake(open()?)?))
}

/// Whether a trace is large, and a file: a pipe cannot be read twice.
fn is_large(path: &Path) -> bool {
    let packed = path.extension().is_some_and(|extension| extension == "gz");
    let factor = if packed { PACKED } else { 1 };
    fs::metadata(path).is_ok_and(|about| about.is_file() && about.len().saturating_mul(factor) >= STREAM_FROM)
}
