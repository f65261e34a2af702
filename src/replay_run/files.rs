//! Trace files.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;

use crate::replay::trace::{Lines, TraceError};
use crate::replay::{IdSink, ReadAt};

/// Bytes read at a time from begin to end.
const BUFFER: usize = 1 << 20;
/// Bytes read at a time here and there.
const PLACE_BUFFER: usize = 1 << 16;
/// Files from this size on, bytes, are played from the file: it costs a second reading.
const LARGE: u64 = 64 << 20;
/// What packed files begin with.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// What a packed file may unpack to, at least.
const PACKED: u64 = 6;

fn failed(path: &Path, source: io::Error) -> TraceError {
    TraceError::Io {
        file: path.display().to_string(),
        source,
    }
}

fn is_named_packed(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gz")
}

/// Whether a file is packed, by its name or by how it begins; one that cannot be read is for its reader to tell.
fn is_packed(path: &Path) -> bool {
    let begins = || beginning(&mut File::open(path)?);
    is_named_packed(path) || begins().is_ok_and(|begin| begin == GZIP)
}

/// The first bytes, as many as say whether the rest is packed.
fn beginning(file: &mut File) -> io::Result<Vec<u8>> {
    let mut begin = Vec::new();
    file.take(GZIP.len() as u64).read_to_end(&mut begin)?;
    Ok(begin)
}

/// The lines of a file, unpacked when its name ends in `.gz` or it begins as packed ones do.
pub(super) fn open(path: &Path) -> Result<Lines<Box<dyn BufRead>>, TraceError> {
    let mut file = File::open(path).map_err(|source| {
        if path == Path::new("-") && source.kind() == io::ErrorKind::NotFound {
            let (file, what) = ("-".into(), "no such file; standard input is /dev/stdin".into());
            return TraceError::File { file, what };
        }
        failed(path, source)
    })?;
    let begin = beginning(&mut file).map_err(|source| failed(path, source))?;
    let packed = is_named_packed(path) || begin == GZIP;
    // A pipe does not go back to what was read of it.
    let plain = BufReader::with_capacity(BUFFER, Cursor::new(begin).chain(file));
    let reader: Box<dyn BufRead> = if packed {
        Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(plain)))
    } else {
        Box::new(plain)
    };
    Ok(Lines::new(path.display().to_string(), reader))
}

/// Whether traces are large, and files: a pipe cannot be read twice.
pub(super) fn are_large(paths: &[PathBuf]) -> bool {
    let size = |path: &PathBuf| {
        let about = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some(about.len().saturating_mul(if is_packed(path) { PACKED } else { 1 }))
    };
    let sizes: Option<Vec<u64>> = paths.iter().map(size).collect();
    sizes.is_some_and(|sizes| sizes.iter().sum::<u64>() >= LARGE)
}

/// A file whose lines can be read in any order and by several readers; a packed one is unpacked into a temporary file that
/// has no name and goes with its last reader.
pub(super) struct AnyOrder {
    name: String,
    path: PathBuf,
    unpacked: Option<File>,
}

impl AnyOrder {
    pub(super) fn new(path: &Path) -> Result<Self, TraceError> {
        let unpacked = is_packed(path).then(|| unpack(path)).transpose();
        Ok(Self {
            name: path.display().to_string(),
            path: path.to_owned(),
            unpacked: unpacked.map_err(|source| failed(path, source))?,
        })
    }

    /// The lines, once more.
    pub(super) fn lines(&self) -> Result<Lines<BufReader<Place>>, TraceError> {
        let file = match &self.unpacked {
            Some(unpacked) => unpacked.try_clone(),
            None => File::open(&self.path),
        };
        let file = file.map_err(|source| failed(&self.path, source))?;
        let place = Place { file, at: 0 };
        Ok(Lines::new(
            self.name.clone(),
            BufReader::with_capacity(PLACE_BUFFER, place),
        ))
    }
}

/// A place in a file of its own, also where others read the same open file.
#[derive(Debug)]
pub(super) struct Place {
    file: File,
    at: u64,
}

impl Read for Place {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = std::os::unix::fs::FileExt::read_at(&self.file, into, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl io::Seek for Place {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        let at = match to {
            io::SeekFrom::Start(at) => Some(at),
            io::SeekFrom::Current(by) => self.at.checked_add_signed(by),
            io::SeekFrom::End(by) => self.file.metadata()?.len().checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "before the begin of the file"))?;
        Ok(self.at)
    }
}

fn unpack(path: &Path) -> io::Result<File> {
    let mut packed = MultiGzDecoder::new(BufReader::with_capacity(BUFFER, File::open(path)?));
    let mut file = nameless()?;
    io::copy(&mut packed, &mut file)?;
    Ok(file)
}

/// A temporary file that goes with its last reader.
fn nameless() -> io::Result<File> {
    let place = std::env::temp_dir().join(format!("ghostfleet-trace-{}", uuid::Uuid::new_v4().simple()));
    let file = File::options().read(true).write(true).create_new(true).open(&place)?;
    fs::remove_file(&place)?;
    Ok(file)
}

/// Where the hash ids of a graph go while its traces are read: memory, or a temporary file where the traces are large.
pub(super) fn id_sink(paths: &[PathBuf]) -> Result<IdSink, TraceError> {
    if !are_large(paths) {
        return Ok(IdSink::default());
    }
    let files = || -> io::Result<(File, File)> {
        let file = nameless()?;
        Ok((file.try_clone()?, file))
    };
    let (writer, reader) = files().map_err(|source| failed(&std::env::temp_dir(), source))?;
    let writer = Box::new(BufWriter::with_capacity(BUFFER, writer));
    Ok(IdSink::away(writer, Arc::new(Spool(reader))))
}

/// A temporary file with the hash ids of a graph.
#[derive(Debug)]
struct Spool(File);

impl ReadAt for Spool {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.0, into, at)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use crate::replay::trace::{MooncakeFile, MooncakeOptions, RequestFile};

    use super::*;

    #[test]
    fn a_packed_trace_is_known_by_its_first_bytes_whatever_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.jsonl");
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        writeln!(packed, "{{}}").unwrap();
        let packed = packed.finish().unwrap();
        fs::write(&path, &packed).unwrap();
        assert!(open(&path).unwrap().advance().unwrap());
        assert!(AnyOrder::new(&path).unwrap().lines().unwrap().advance().unwrap());
        // Text that is shorter than those bytes is no trouble.
        fs::write(&path, "1").unwrap();
        assert!(open(&path).unwrap().advance().unwrap());
        fs::write(&path, &packed[..packed.len() - 4]).unwrap();
        let mut lines = open(&path).unwrap();
        assert!(lines.advance().unwrap());
        let error = lines.advance().unwrap_err().to_string();
        assert!(
            error.contains("t.jsonl: it is no whole gzip file (") && error.ends_with("as its first bytes say"),
            "{error}"
        );
    }

    #[test]
    fn a_packed_trace_is_played_from_a_file_without_a_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.jsonl.gz");
        let mut packed = flate2::write::GzEncoder::new(File::create(&path).unwrap(), flate2::Compression::fast());
        for at in 0..3 {
            writeln!(
                packed,
                r#"{{"session_id":"s","timestamp":{at},"output_length":1,"hash_ids":[{at}]}}"#
            )
            .unwrap();
        }
        packed.finish().unwrap();
        let file = AnyOrder::new(&path).unwrap();
        let options = MooncakeOptions {
            block_tokens: 4,
            delta: false,
            timed: true,
            rules: crate::engine::Semantics::V1_6_1,
        };
        assert!(MooncakeFile::new(|| file.lines(), options).is_ok());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        let shards = vec![file.lines().unwrap()];
        let error = RequestFile::new(shards, None, crate::engine::Semantics::V1_6_1)
            .err()
            .unwrap();
        assert!(
            error.to_string().contains("t.jsonl.gz, line 1: event_type is missing"),
            "{error}"
        );
    }
}
