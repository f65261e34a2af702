//! NPZ files: NumPy arrays by name in a ZIP archive, stored or deflated.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::npy::{self, Array, NpyError};
use super::{LoadError, open};

/// An NPZ file open for reading.
pub(super) struct Npz {
    path: PathBuf,
    archive: ZipArchive<BufReader<File>>,
}

impl Npz {
    pub(super) fn open(path: &Path) -> Result<Self, LoadError> {
        let file = BufReader::new(open(path)?);
        let archive = ZipArchive::new(file).map_err(|error| LoadError::NotNpz {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        Ok(Self {
            path: path.to_owned(),
            archive,
        })
    }

    /// Reads the array `name`.
    pub(super) fn array(&mut self, name: &'static str) -> Result<Array, LoadError> {
        let file = format!("{name}.npy");
        if self.archive.index_for_name(&file).is_none() {
            return Err(self.missing(name));
        }
        let read = match self.archive.by_name(&file) {
            Ok(member) => npy::read(member),
            Err(error) => Err(NpyError::Read(error.to_string())),
        };
        read.map_err(|error| match error {
            NpyError::Dtype(dtype) => LoadError::Dtype {
                path: self.path.clone(),
                array: name,
                dtype,
            },
            NpyError::Truncated
            | NpyError::Magic
            | NpyError::Version(..)
            | NpyError::Header(_)
            | NpyError::HeaderLength(_)
            | NpyError::TooLarge
            | NpyError::Read(_) => LoadError::Array {
                path: self.path.clone(),
                array: name,
                reason: error.to_string(),
            },
        })
    }

    /// Reads the array `name`, which has `dimensions` axes.
    pub(super) fn shaped(&mut self, name: &'static str, dimensions: usize) -> Result<Array, LoadError> {
        let array = self.array(name)?;
        if array.shape.len() == dimensions {
            return Ok(array);
        }
        Err(LoadError::Shape {
            path: self.path.clone(),
            array: name,
            found: array.shape,
            expected: format!("{dimensions} axes"),
        })
    }

    fn missing(&self, name: &'static str) -> LoadError {
        let files = self.archive.file_names().take(20).flatten();
        let mut found: Vec<String> = files.map(|file| file.trim_end_matches(".npy").to_owned()).collect();
        found.sort_unstable();
        LoadError::MissingArray {
            path: self.path.clone(),
            array: name,
            found: if found.is_empty() {
                "nothing".to_owned()
            } else {
                found.join(", ")
            },
        }
    }
}

/// Writes arrays of `f64`, each with its name and shape. The same arrays give the same bytes.
pub(super) fn write(path: &Path, arrays: &[(&str, &[usize], &[f64])]) -> std::io::Result<()> {
    let mut archive = ZipWriter::new(BufWriter::new(File::create(path)?));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, shape, data) in arrays {
        archive.start_file(format!("{name}.npy"), stored)?;
        npy::write(&mut archive, shape, data)?;
    }
    archive.finish()?.flush()
}
