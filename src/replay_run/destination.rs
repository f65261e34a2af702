//! Where results go: whether they can go there is known before the run, and a file is replaced only by a whole one.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::RunError;
use crate::distinct_files::Clash;

/// Names that are tried for a file that replaces none.
const MAX_TWINS: u32 = 10_000;

fn failed(path: &Path, error: io::Error) -> RunError {
    RunError::Write(path.display().to_string(), error)
}

/// Makes sure that `path` can be written, with the directories that are missing above it; leaves nothing behind.
///
/// # Errors
/// [`RunError::Write`] names the file.
pub(crate) fn check(path: &Path) -> Result<(), RunError> {
    let try_out = || -> io::Result<()> {
        match fs::metadata(path) {
            Ok(about) if about.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            // A pipe or a device is written as it is.
            Ok(about) if !about.is_file() => return Ok(()),
            Ok(_) => drop(File::options().write(true).open(path)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut above = path.parent().unwrap_or(Path::new(""));
        while !above.as_os_str().is_empty() && !above.exists() {
            above = above.parent().unwrap_or(Path::new(""));
        }
        let partial = partial(&above.join("ghostfleet"));
        drop(File::create(&partial)?);
        fs::remove_file(partial)
    };
    try_out().map_err(|error| failed(path, error))
}

/// Takes in a file that is written; an error where it is one of the command already.
///
/// # Errors
/// [`RunError`] names both.
pub(crate) fn distinct(path: &Path, take: impl FnOnce(&Path) -> Result<(), Clash>) -> Result<(), RunError> {
    take(path).map_err(|clash| match clash {
        Clash::Taken(what) => RunError::Usage(what),
        Clash::Io(error) => failed(path, error),
    })
}

/// Writes a file whole: it appears under its name when it is complete.
///
/// # Errors
/// [`RunError::Write`] names the file; what was there before is still there.
pub(crate) fn write(path: &Path, content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<(), RunError> {
    let create = || -> io::Result<()> {
        if fs::metadata(path).is_ok_and(|about| !about.is_file()) {
            return fill(File::options().write(true).open(path)?, content);
        }
        // A link stays a link.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        place(path, content, |partial| fs::rename(partial, target))
    };
    create().map_err(|error| failed(path, error))
}

/// Writes a file whole under a name that no file has: that of `path`, or the first free one of `NAME_2.END`, `NAME_3.END`
/// and so on. Returns where it is.
///
/// # Errors
/// [`RunError::Write`] names the file.
pub(crate) fn write_new(
    path: &Path,
    content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<PathBuf, RunError> {
    let claim_and_move = |partial: &Path| {
        let free = claim(path)?;
        fs::rename(partial, &free).map(|()| free)
    };
    place(path, content, claim_and_move).map_err(|error| failed(path, error))
}

/// Makes the first of the names that is free, so that nobody else takes it.
fn claim(path: &Path) -> io::Result<PathBuf> {
    for number in 1..=MAX_TWINS {
        let name = if number == 1 {
            path.to_owned()
        } else {
            twin(path, number)
        };
        match File::create_new(&name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|_| name),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// `path` with a number before its ending.
fn twin(path: &Path, number: u32) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("_{number}"));
    if let Some(end) = path.extension() {
        name.push(".");
        name.push(end);
    }
    path.with_file_name(name)
}

fn fill(file: File, content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    content(&mut out)?;
    out.flush()
}

/// Writes a file beside `path` and has it moved where it belongs.
fn place<T>(
    path: &Path,
    content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    to_move: impl FnOnce(&Path) -> io::Result<T>,
) -> io::Result<T> {
    make_room(path)?;
    let partial = partial(path);
    let written = fill(File::create(&partial)?, content);
    let moved = written.and_then(|()| to_move(&partial));
    if moved.is_err() {
        // What went wrong before counts.
        let _ = fs::remove_file(&partial);
    }
    moved
}

/// Creates a file that is written while the run goes on.
///
/// # Errors
/// [`RunError::Write`] names the file.
pub(crate) fn create(path: &Path) -> Result<BufWriter<File>, RunError> {
    let create = || -> io::Result<File> {
        make_room(path)?;
        File::create(path)
    };
    create().map(BufWriter::new).map_err(|error| failed(path, error))
}

fn make_room(path: &Path) -> io::Result<()> {
    match path.parent().filter(|above| !above.as_os_str().is_empty()) {
        Some(above) => fs::create_dir_all(above),
        None => Ok(()),
    }
}

/// Name of a file in the making, beside the one that it will be.
fn partial(path: &Path) -> PathBuf {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.partial", std::process::id()));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_is_told_without_leaving_anything_behind() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        check(&at.join("deep/deeper/r.json")).unwrap();
        assert_eq!(fs::read_dir(at).unwrap().count(), 0);
        let error = check(at).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("cannot write {}: ", at.display())),
            "{error}"
        );
        fs::write(at.join("file"), "").unwrap();
        assert!(check(&at.join("file/r.json")).is_err());
        check(Path::new("/dev/null")).unwrap();
    }

    #[test]
    fn a_new_file_takes_the_first_name_that_is_free() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/r.json");
        for (text, name) in [("one", "r.json"), ("two", "r_2.json"), ("three", "r_3.json")] {
            let written = write_new(&path, |out| out.write_all(text.as_bytes())).unwrap();
            assert_eq!(written, path.with_file_name(name));
            assert_eq!(fs::read_to_string(written).unwrap(), text);
        }
        assert!(write_new(&path, |_| Err(io::ErrorKind::StorageFull.into())).is_err());
        assert_eq!(fs::read_dir(directory.path().join("deep")).unwrap().count(), 3);
    }

    #[test]
    fn a_file_is_replaced_by_a_whole_one_or_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r.json");
        write(&path, |out| out.write_all(b"one")).unwrap();
        let broken = |out: &mut BufWriter<File>| {
            out.write_all(b"two")?;
            Err(io::ErrorKind::StorageFull.into())
        };
        assert!(write(&path, broken).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"one");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write(&link, |out| out.write_all(b"three")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"three");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
        write(Path::new("/dev/null"), |out| out.write_all(b"four")).unwrap();
    }
}
