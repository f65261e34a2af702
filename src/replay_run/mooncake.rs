//! Mooncake traces: loaded, read on the way, or played from the file.

use std::path::PathBuf;

use crate::replay::trace::{MooncakeFile, MooncakeOptions, MooncakeRows, MooncakeScan, read_mooncake};
use crate::replay::{Load, StreamSource, from_file};

use super::files::{self, AnyOrder};
use super::{RunError, Workload};

/// The workload of a Mooncake trace.
pub(super) fn read(path: &PathBuf, options: MooncakeOptions, load: Load) -> Result<Workload, RunError> {
    let open = || files::open(path).map(|lines| MooncakeRows::new(lines, options));
    if !files::are_large(std::slice::from_ref(path)) {
        return Ok(Workload::Sessions(read_mooncake(open()?)?));
    }
    let stream = |source| Workload::Stream {
        source,
        block_tokens: options.block_tokens,
    };
    if !options.delta {
        let scan = MooncakeScan::of(open()?)?;
        if let Some(source) = StreamSource::new(open()?, scan, load) {
            return Ok(stream(Box::new(source)));
        }
    }
    let file = AnyOrder::new(path)?;
    let file = MooncakeFile::new(|| file.lines(), options)?;
    Ok(stream(from_file(file, load)))
}
