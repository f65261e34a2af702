//! Measured hardware profiles as files: a performance NPZ, or a directory of profiler results that is fitted on load.
//!
//! Reading happens here, once, at start; what an engine gets is the pure [`Profile`]. Source: the forms that Dynamo 1.4.2
//! and 1.6.1 take as `--planner-profile-data`.

mod fit;
mod npy;
mod npz;
mod raw;

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::distinct_files::{Clash, DistinctFiles};
use crate::engine::{Profile, ProfileError, ProfilePoints};

pub use fit::FitError;
use npz::Npz;

/// Longest file.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// A profile that cannot be read. Every message names the file.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// No such file, no permission, and the like.
    #[error("cannot read {}: {reason}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Far larger than any profile.
    #[error("{} has {bytes} bytes, more than the {limit} a profile may have", path.display())]
    TooLarge {
        /// Which file.
        path: PathBuf,
        /// Its size, bytes.
        bytes: u64,
        /// Largest size, bytes.
        limit: u64,
    },
    /// A path of no known form.
    #[error(
        "{} is no profile; give (1) an NPZ file with the float64 arrays prefill_isl, prefill_ttft_ms, \
         decode_active_kv_tokens, decode_context_length and decode_itl, (2) a directory with \
         selected_prefill_interpolation/raw_data.npz and selected_decode_interpolation/raw_data.npz, or (3) a directory \
         with prefill_raw_data.json and decode_raw_data.json", path.display()
    )]
    Unrecognized {
        /// Which path.
        path: PathBuf,
    },
    /// A directory with one of the two sides.
    #[error("{} has {found} data but lacks {missing}", path.display())]
    OneSided {
        /// Which directory.
        path: PathBuf,
        /// The side that is there.
        found: &'static str,
        /// Where the other one is looked for.
        missing: String,
    },
    /// Not a ZIP archive.
    #[error("{} is no NPZ file: {reason}", path.display())]
    NotNpz {
        /// Which file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// An archive without an array that it should have.
    #[error("{} has no array {array}; it has {found}", path.display())]
    MissingArray {
        /// Which file.
        path: PathBuf,
        /// What is missing.
        array: &'static str,
        /// What is there.
        found: String,
    },
    /// An array whose bytes cannot be read.
    #[error("array {array} of {}: {reason}", path.display())]
    Array {
        /// Which file.
        path: PathBuf,
        /// Which array.
        array: &'static str,
        /// Why.
        reason: String,
    },
    /// An array of the wrong element type.
    #[error("array {array} of {} has element type {dtype}; save it as float64", path.display())]
    Dtype {
        /// Which file.
        path: PathBuf,
        /// Which array.
        array: &'static str,
        /// Its type as NumPy writes it.
        dtype: String,
    },
    /// An array of the wrong shape.
    #[error("array {array} of {} has shape {found:?} instead of {expected}", path.display())]
    Shape {
        /// Which file.
        path: PathBuf,
        /// Which array.
        array: &'static str,
        /// Its shape.
        found: Vec<usize>,
        /// What it should be.
        expected: String,
    },
    /// Broken JSON, or a key missing.
    #[error("{}: {reason}", path.display())]
    Json {
        /// Which file.
        path: PathBuf,
        /// Line, column and what was expected.
        reason: String,
    },
    /// Points that are no grid.
    #[error("{}: {source}", path.display())]
    Grid {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: ProfileError,
    },
    /// Samples that no grid can be made of.
    #[error("{}: {source}", path.display())]
    Fit {
        /// Which directory.
        path: PathBuf,
        /// Why.
        source: FitError,
    },
}

/// Why a conversion failed.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The input.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The output.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The output is the input, or a part of it.
    #[error("{0}")]
    Same(String),
}

impl ConvertError {
    /// Process exit code: 1 the output could not be written, 2 bad input.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Load(_) | Self::Same(_) => 2,
            Self::Write { .. } => 1,
        }
    }
}

/// Reads a profile: a performance NPZ file or a directory of profiler results.
///
/// # Errors
/// [`LoadError`] names the file, the array and what it should be.
pub fn load(path: &Path) -> Result<Profile, LoadError> {
    let found = std::fs::metadata(path).map_err(|error| LoadError::Read {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    if found.is_dir() {
        let (prefill, decode) = raw::read(path)?;
        let points = fit::grid(&prefill, &decode).map_err(|source| LoadError::Fit {
            path: path.to_owned(),
            source,
        })?;
        return grid(path, points);
    }
    let mut npz = match Npz::open(path) {
        Err(LoadError::NotNpz { path, .. }) => return Err(LoadError::Unrecognized { path }),
        other => other?,
    };
    let mut exact = |name: &'static str, dimensions: usize| {
        let array = npz.shaped(name, dimensions)?;
        if array.dtype.ends_with("f8") {
            return Ok(array);
        }
        Err(LoadError::Dtype {
            path: path.to_owned(),
            array: name,
            dtype: array.dtype,
        })
    };
    let prefill_isl = exact("prefill_isl", 1)?.data;
    let prefill_ttft_ms = exact("prefill_ttft_ms", 1)?.data;
    let decode_active_kv_tokens = exact("decode_active_kv_tokens", 1)?.data;
    let decode_context_length = exact("decode_context_length", 1)?.data;
    let decode_itl = exact("decode_itl", 2)?;
    let expected = [decode_active_kv_tokens.len(), decode_context_length.len()];
    if decode_itl.shape != expected {
        return Err(LoadError::Shape {
            path: path.to_owned(),
            array: "decode_itl",
            found: decode_itl.shape,
            expected: format!("{expected:?} (decode_active_kv_tokens by decode_context_length)"),
        });
    }
    let points = ProfilePoints {
        prefill_isl,
        prefill_ttft_ms,
        decode_active_kv_tokens,
        decode_context_length,
        decode_itl: decode_itl.data,
    };
    grid(path, points)
}

fn grid(path: &Path, points: ProfilePoints) -> Result<Profile, LoadError> {
    Profile::new(points).map_err(|source| LoadError::Grid {
        path: path.to_owned(),
        source,
    })
}

/// Writes a profile as a performance NPZ that [`load`] and Dynamo's mocker read.
///
/// # Errors
/// Of the file system.
pub fn save(profile: &Profile, path: &Path) -> std::io::Result<()> {
    let points = profile.points();
    let (kv, contexts) = (points.decode_active_kv_tokens.len(), points.decode_context_length.len());
    npz::write(
        path,
        &[
            ("prefill_isl", &[points.prefill_isl.len()], &points.prefill_isl),
            (
                "prefill_ttft_ms",
                &[points.prefill_ttft_ms.len()],
                &points.prefill_ttft_ms,
            ),
            ("decode_active_kv_tokens", &[kv], &points.decode_active_kv_tokens),
            ("decode_context_length", &[contexts], &points.decode_context_length),
            ("decode_itl", &[kv, contexts], &points.decode_itl),
        ],
    )
}

/// Reads any form of profile and writes it as a performance NPZ; returns it.
///
/// # Errors
/// [`ConvertError`]; nothing is written when the input is at fault.
pub fn convert(from: &Path, to: &Path) -> Result<Profile, ConvertError> {
    let failed = |source| ConvertError::Write {
        path: to.to_owned(),
        source,
    };
    let mut files = DistinctFiles::default();
    if from.is_dir() {
        raw::files(from).for_each(|path| files.reads("the profile", &path));
    } else {
        files.reads("the profile", from);
    }
    files.writes("--output", to).map_err(|clash| match clash {
        Clash::Taken(what) => ConvertError::Same(what),
        Clash::Io(source) => failed(source),
    })?;
    let profile = load(from)?;
    save(&profile, to).map_err(failed)?;
    Ok(profile)
}

/// Opens a regular file of reasonable size.
fn open(path: &Path) -> Result<File, LoadError> {
    let failed = |reason: String| LoadError::Read {
        path: path.to_owned(),
        reason,
    };
    // A pipe or device would block or never end; it is refused before it is opened.
    let about = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?;
    if !about.is_file() {
        return Err(failed("it is not a regular file".to_owned()));
    }
    if about.len() > MAX_FILE_BYTES {
        return Err(LoadError::TooLarge {
            path: path.to_owned(),
            bytes: about.len(),
            limit: MAX_FILE_BYTES,
        });
    }
    File::open(path).map_err(|error| failed(error.to_string()))
}
