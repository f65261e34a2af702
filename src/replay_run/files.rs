//! Trace files.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::replay::trace::{Lines, TraceError};

/// Bytes read at a time.
const BUFFER: usize = 1 << 20;

/// The lines of a file, unpacked when its name ends in `.gz`.
pub(super) fn open(path: &Path) -> Result<Lines<Box<dyn BufRead>>, TraceError> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|source| TraceError::Io {
        file: name.clone(),
        source,
    })?;
    let plain = BufReader::with_capacity(BUFFER, file);
    let packed = path.extension().is_some_and(|extension| extension == "gz");
    let reader: Box<dyn BufRead> = if packed {
        Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(plain)))
    } else {
        Box::new(plain)
    };
    Ok(Lines::new(name, reader))
}
