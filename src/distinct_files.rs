//! Files that a command reads and files that it writes: what is written takes the place of nothing else among them.
//!
//! Files are told apart by what they are: other spellings, symbolic links and hard links lead to the same one.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Symbolic links that are followed to where a file would be made.
const MAX_LINKS: usize = 40;

/// Why a file cannot be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Clash {
    /// It is a file of the command already. Names both, and what each is for.
    #[error("{0}")]
    Taken(String),
    /// It leads nowhere.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The files of one command.
#[derive(Debug, Default)]
pub(crate) struct DistinctFiles(Vec<Known>);

#[derive(Debug)]
struct Known {
    /// What it is for: a flag, or words.
    what: String,
    path: PathBuf,
    file: Identity,
}

/// Which file a path leads to, however it is spelled.
#[derive(Debug)]
struct Identity {
    /// Without links.
    place: PathBuf,
    /// Device and number, if it is there.
    there: Option<(u64, u64)>,
    /// With all that is in it.
    is_directory: bool,
}

impl DistinctFiles {
    /// Takes in a file or a directory that is read; one that is not there is for the reader to tell.
    pub(crate) fn reads(&mut self, what: &str, path: &Path) {
        if let Ok(Some(file)) = Identity::of(path) {
            self.push(what, path, file);
        }
    }

    /// Takes in a file that is written.
    ///
    /// # Errors
    /// [`Clash`] when it is one of those before, or in a directory among them.
    pub(crate) fn writes(&mut self, what: &str, path: &Path) -> Result<(), Clash> {
        let Some(file) = Identity::of(path)? else { return Ok(()) };
        let shown = path.display();
        for known in &self.0 {
            let other = known.named(path);
            if known.file.is(&file) {
                return Err(Clash::Taken(format!(
                    "{what} {shown} is the same file as {other}, which it would overwrite; name another"
                )));
            }
            if known.file.has(&file) {
                return Err(Clash::Taken(format!(
                    "{what} {shown} lies in {other}, of which it would be a part; name another place"
                )));
            }
        }
        self.push(what, path, file);
        Ok(())
    }

    /// Takes in a directory that goes, with all that is in it.
    ///
    /// # Errors
    /// [`Clash`] when one of those before is in it.
    pub(crate) fn replaces(&mut self, what: &str, path: &Path) -> Result<(), Clash> {
        let Some(file) = Identity::of(path)? else { return Ok(()) };
        if let Some(known) = self
            .0
            .iter()
            .find(|known| file.has(&known.file) || file.is(&known.file))
        {
            let (shown, other) = (path.display(), known.named(path));
            return Err(Clash::Taken(format!(
                "{what} {shown} is replaced with all that is in it, and {other} is; name another place"
            )));
        }
        self.push(what, path, file);
        Ok(())
    }

    fn push(&mut self, what: &str, path: &Path, file: Identity) {
        self.0.push(Known {
            what: what.to_owned(),
            path: path.to_owned(),
            file,
        });
    }
}

impl Known {
    /// For a message in which `beside` stands already.
    fn named(&self, beside: &Path) -> String {
        if self.path == beside {
            return self.what.clone();
        }
        format!("{} ({})", self.what, self.path.display())
    }
}

impl Identity {
    /// `None`: what is written there is kept apart by who reads it: a terminal, a pipe.
    fn of(path: &Path) -> io::Result<Option<Self>> {
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            match fs::metadata(&path) {
                Ok(found) if found.is_file() || found.is_dir() => {
                    return Ok(Some(Self {
                        place: path.canonicalize()?,
                        there: Some((found.dev(), found.ino())),
                        is_directory: found.is_dir(),
                    }));
                }
                Ok(_) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            let folder = settled(path.parent().unwrap_or(Path::new("")))?;
            let Ok(target) = fs::read_link(&path) else {
                let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
                return Ok(Some(Self {
                    place: folder.join(name),
                    there: None,
                    is_directory: false,
                }));
            };
            // A link to a file that is not there yet.
            path = folder.join(target);
        }
        Err(io::Error::other("too many symbolic links"))
    }

    fn is(&self, other: &Self) -> bool {
        self.place == other.place || self.there.is_some() && self.there == other.there
    }

    /// Whether the other one is below this directory.
    fn has(&self, other: &Self) -> bool {
        self.is_directory && self.place != other.place && other.place.starts_with(&self.place)
    }
}

/// A folder without links, also where it has yet to be made.
fn settled(folder: &Path) -> io::Result<PathBuf> {
    if folder.as_os_str().is_empty() {
        return Path::new(".").canonicalize();
    }
    match folder.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let above = settled(folder.parent().ok_or(error)?)?;
            Ok(match folder.file_name() {
                Some(name) => above.join(name),
                None => above.parent().map(Path::to_owned).unwrap_or(above),
            })
        }
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn taken(files: &mut DistinctFiles, what: &str, path: &Path) -> String {
        match files.writes(what, path) {
            Err(Clash::Taken(why)) => why,
            other => panic!("{}: {other:?}", path.display()),
        }
    }

    #[test]
    fn a_file_is_known_by_any_spelling_and_through_links() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        fs::write(at.join("read"), "").unwrap();
        fs::create_dir(at.join("deep")).unwrap();
        symlink(at.join("read"), at.join("link")).unwrap();
        symlink("later", at.join("dangling")).unwrap();
        fs::hard_link(at.join("read"), at.join("twin")).unwrap();
        let mut files = DistinctFiles::default();
        files.reads("the trace", &at.join("read"));
        files.reads("the trace", &at.join("not there"));
        for name in ["read", "./read", "deep/../read", "link", "twin"] {
            let why = taken(&mut files, "--html", &at.join(name));
            assert!(why.contains("is the same file as the trace"), "{why}");
        }
        files.writes("--html", &at.join("new/deeper/../p")).unwrap();
        let why = taken(&mut files, "--json", &at.join("new/p"));
        assert!(why.contains("is the same file as --html ("), "{why}");
        files.writes("--json", &at.join("dangling")).unwrap();
        let why = taken(&mut files, "--junit", &at.join("later"));
        assert!(why.contains("is the same file as --json ("), "{why}");
    }

    #[test]
    fn what_lies_in_a_directory_that_is_read_or_replaced_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        fs::create_dir_all(at.join("corpus/deep")).unwrap();
        fs::create_dir(at.join("results")).unwrap();
        fs::write(at.join("results/c.yaml"), "").unwrap();
        let mut files = DistinctFiles::default();
        files.reads("the trace", &at.join("corpus"));
        files.reads("--config", &at.join("results/c.yaml"));
        let why = taken(&mut files, "--report-json", &at.join("corpus/deep/r.json"));
        assert!(why.contains("lies in the trace ("), "{why}");
        files.writes("--report-json", &at.join("corpus.json")).unwrap();
        let Err(Clash::Taken(why)) = files.replaces("the directory", &at.join("results")) else {
            panic!("a file that is read goes");
        };
        assert!(why.contains("and --config ("), "{why}");
    }

    #[test]
    fn devices_may_take_anything_any_number_of_times() {
        let mut files = DistinctFiles::default();
        files.reads("the trace", Path::new("/dev/null"));
        files.writes("--json", Path::new("/dev/null")).unwrap();
        files.writes("--html", Path::new("/dev/null")).unwrap();
    }
}
