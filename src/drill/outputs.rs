//! The files that reports go to: apart from each other and from what is read, and writable before anything runs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::DrillError;
use super::report::{Report, documents, junit, page};
use crate::cli::DrillArgs;
use crate::distinct_files::{Clash, DistinctFiles};

/// The files by their flags.
fn files(args: &DrillArgs) -> impl Iterator<Item = (&'static str, &PathBuf)> {
    let files = [("--json", &args.json), ("--junit", &args.junit), ("--html", &args.html)];
    files
        .into_iter()
        .filter_map(|(flag, file)| Some((flag, file.as_ref()?)))
}

/// Refuses files that would overwrite each other or a scenario, and makes the others.
///
/// # Errors
/// [`DrillError`] names the flags and the file.
pub(super) fn prepare(args: &DrillArgs) -> Result<(), DrillError> {
    let mut known = DistinctFiles::default();
    for path in &args.scenarios {
        known.reads("the scenario", path);
    }
    for (flag, path) in files(args) {
        known.writes(flag, path).map_err(|clash| match clash {
            Clash::Taken(what) => DrillError::Input(what),
            Clash::Io(source) => cannot_write(path, source),
        })?;
    }
    files(args).try_for_each(|(_, path)| write(path, ""))
}

/// Writes every report that is asked for.
///
/// # Errors
/// [`DrillError::Write`] names the file.
pub(super) fn write_all(args: &DrillArgs, reports: &[Report]) -> Result<(), DrillError> {
    if let Some(path) = &args.json {
        write(path, &format!("{}\n", documents(reports)))?;
    }
    if let Some(path) = &args.junit {
        write(path, &junit(reports))?;
    }
    if let Some(path) = &args.html {
        write(path, &page(reports))?;
    }
    Ok(())
}

fn cannot_write(path: &Path, source: io::Error) -> DrillError {
    DrillError::Write {
        path: path.to_owned(),
        source,
    }
}

fn write(path: &Path, text: &str) -> Result<(), DrillError> {
    fs::write(path, text).map_err(|source| cannot_write(path, source))
}
