//! The files of a Weka corpus.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::cli::{ReplayArgs, WekaTimes};
use crate::replay::Graph;
use crate::replay::trace::{NestedTimes, TraceError, WekaCorpus, WekaFile};

use super::RunError;
use super::files::id_sink;

/// Files and directories of a corpus.
const MAX_FILES: usize = 100_000;

/// The graph of a corpus.
pub(super) fn read(args: &ReplayArgs) -> Result<Graph, RunError> {
    let mut files = Vec::new();
    for path in &args.trace_files {
        // One path names its files from itself on; several are told apart by their whole names.
        let space = if args.trace_files.len() > 1 {
            path.display().to_string()
        } else {
            String::new()
        };
        collect(path, &space, &mut files)?;
    }
    let open = |file: &WekaFile| File::open(&file.shown).map_err(|source| failed(Path::new(&file.shown), source));
    let mut corpus = WekaCorpus::new(args.trace_block_size);
    for file in &files {
        corpus.scan(file, open(file)?)?;
    }
    let nested = match args.weka_nested_times {
        WekaTimes::Auto => NestedTimes::Auto,
        WekaTimes::Absolute => NestedTimes::Absolute,
        WekaTimes::Relative => NestedTimes::Relative,
    };
    let paths: Vec<PathBuf> = files.iter().map(|file| PathBuf::from(&file.shown)).collect();
    let mut reader = corpus.settle(nested, id_sink(&paths)?)?;
    for file in &files {
        reader.read(file, open(file)?)?;
    }
    Ok(reader.finish()?)
}

fn failed(path: &Path, source: std::io::Error) -> TraceError {
    TraceError::Io {
        file: path.display().to_string(),
        source,
    }
}

fn invalid<T>(path: &Path, what: &str) -> Result<T, RunError> {
    Err(RunError::Invalid(format!("{}: {what}", path.display())))
}

/// Adds a file, or every JSON and JSONL file below a directory by name.
fn collect(root: &Path, space: &str, files: &mut Vec<WekaFile>) -> Result<(), RunError> {
    let about = fs::symlink_metadata(root).map_err(|source| failed(root, source))?;
    if about.is_symlink() {
        return invalid(root, "a symbolic link; give the file or directory itself");
    }
    if !about.is_dir() {
        let name = root.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|_| ending(root).is_some()) else {
            return invalid(root, "expected a name that ends in .json or .jsonl");
        };
        files.push(file(root, &below(space, name), about.len()));
        return Ok(());
    }
    let mut found = Vec::new();
    let mut open = vec![(root.to_owned(), space.to_owned())];
    while let Some((directory, space)) = open.pop() {
        let entries = fs::read_dir(&directory).map_err(|source| failed(&directory, source))?;
        for entry in entries {
            let path = entry.map_err(|source| failed(&directory, source))?.path();
            let about = fs::symlink_metadata(&path).map_err(|source| failed(&path, source))?;
            if about.is_symlink() {
                return invalid(&path, "a symbolic link; a corpus must not contain any");
            }
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(name) = name.map(|name| below(&space, name)) else {
                return invalid(&path, "the name is no valid UTF-8");
            };
            if about.is_dir() {
                open.push((path, name));
            } else if about.is_file() && ending(&path).is_some() {
                found.push(file(&path, &name, about.len()));
            }
            if found.len() + open.len() > MAX_FILES {
                return invalid(root, &format!("more than {MAX_FILES} files and directories"));
            }
        }
    }
    if found.is_empty() {
        return invalid(root, "no .json or .jsonl file in this directory");
    }
    found.sort_by(|a, b| a.relative.cmp(&b.relative));
    files.extend(found);
    Ok(())
}

/// A name in a directory of the corpus.
fn below(space: &str, name: &str) -> String {
    if space.is_empty() {
        name.to_owned()
    } else {
        format!("{space}/{name}")
    }
}

/// Whether a file may hold several documents, by its ending; `None`: it holds none.
fn ending(path: &Path) -> Option<bool> {
    let ending = path.extension()?;
    if ending.eq_ignore_ascii_case("jsonl") {
        Some(true)
    } else {
        ending.eq_ignore_ascii_case("json").then_some(false)
    }
}

fn file(path: &Path, relative: &str, bytes: u64) -> WekaFile {
    WekaFile {
        shown: path.display().to_string(),
        relative: relative.to_owned(),
        several: ending(path) == Some(true),
        bytes,
    }
}
