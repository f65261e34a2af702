//! The files that reports go to: apart from each other and from what is read, and writable before anything runs.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::DrillError;
use super::report::{Report, documents, junit, page};
use crate::cli::DrillArgs;

/// Symbolic links that are followed to where a file would be made.
const MAX_LINKS: usize = 40;

/// Which file a path leads to, however it is spelled.
#[derive(Debug, PartialEq)]
enum Identity {
    /// One that is there, by device and number.
    There(u64, u64),
    /// One that would be made.
    ToBeMade(PathBuf),
}

impl Identity {
    /// `None`: what is written there is kept apart by who reads it: a terminal, a pipe.
    fn of(path: &Path) -> io::Result<Option<Self>> {
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            match fs::metadata(&path) {
                Ok(found) if found.is_file() => return Ok(Some(Self::There(found.dev(), found.ino()))),
                Ok(_) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            let folder = match path.parent() {
                Some(folder) if folder != Path::new("") => folder.canonicalize()?,
                Some(_) | None => Path::new(".").canonicalize()?,
            };
            match fs::read_link(&path) {
                // A link to a file that is not there yet.
                Ok(target) => path = folder.join(target),
                Err(_) => {
                    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
                    return Ok(Some(Self::ToBeMade(folder.join(name))));
                }
            }
        }
        Err(io::Error::other("too many symbolic links"))
    }
}

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
    let mut known = Vec::new();
    for path in &args.scenarios {
        // It has been read.
        known.extend(
            Identity::of(path)
                .ok()
                .flatten()
                .map(|file| ("the scenario", path, file)),
        );
    }
    for (flag, path) in files(args) {
        let Some(file) = Identity::of(path).map_err(|source| cannot_write(path, source))? else {
            continue;
        };
        if let Some((other, first, _)) = known.iter().find(|(_, _, other)| *other == file) {
            let same = if *first == path {
                String::new()
            } else {
                format!(" ({})", first.display())
            };
            return Err(DrillError::Input(format!(
                "{flag} {} is the same file as {other}{same}, which it would overwrite; name another",
                path.display()
            )));
        }
        known.push((flag, path, file));
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
