//! The hub's cache on disk, shared with the Python and Rust hub clients.
//!
//! ```text
//! <cache>/models--<org>--<name>/refs/<revision>           commit hash
//!                               snapshots/<commit>/<file>  link to ../../blobs/<etag>
//!                               blobs/<etag>               content
//! ```
//! Files appear under their final name only when they are complete, and the ref only when all files are there, so that
//! a broken-off download is never taken for a snapshot.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::files::{CONFIG, TOKENIZER, TOKENIZER_CONFIG};
use super::{HubId, ModelError};

/// Longest ref file worth reading; it holds one hash.
const MAX_REF_BYTES: u64 = 256;

/// One model's part of the cache.
pub(super) struct ModelCache {
    root: PathBuf,
}

/// A snapshot directory.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// Its path.
    pub(super) dir: PathBuf,
    /// Its commit.
    pub(super) commit: String,
}

impl ModelCache {
    pub(super) fn new(cache: &Path, id: &HubId) -> Self {
        Self {
            root: cache.join(format!("models--{}", id.repo.replace('/', "--"))),
        }
    }

    /// The snapshot of a revision, when it has the files without which there is no model.
    pub(super) fn find(&self, revision: &str) -> Option<Snapshot> {
        let named = self.read_ref(revision).unwrap_or_else(|| revision.to_owned());
        let commit = Some(named).filter(|commit| is_commit(commit))?;
        let dir = self.snapshot_dir(&commit);
        let complete = [CONFIG, TOKENIZER, TOKENIZER_CONFIG]
            .iter()
            .all(|file| dir.join(file).is_file());
        complete.then_some(Snapshot { dir, commit })
    }

    fn read_ref(&self, revision: &str) -> Option<String> {
        let mut text = String::new();
        File::open(self.ref_path(revision))
            .ok()?
            .take(MAX_REF_BYTES)
            .read_to_string(&mut text)
            .ok()?;
        Some(text.trim().to_owned())
    }

    /// Whether a file of a snapshot is there already.
    pub(super) fn has(&self, commit: &str, file: &str) -> bool {
        self.snapshot_dir(commit).join(file).is_file()
    }

    /// Stores one file of a snapshot. `etag` names the content; `size` is its length when it is known.
    pub(super) fn store(&self, commit: &str, file: &str, etag: &str, mut content: impl Read) -> Result<(), StoreError> {
        let blob = self.root.join("blobs").join(etag);
        let link = self.snapshot_dir(commit).join(file);
        for parent in [blob.parent(), link.parent()].into_iter().flatten() {
            fs::create_dir_all(parent).map_err(|source| ModelError::unwritable(parent, source))?;
        }
        if !blob.is_file() {
            let partial = blob.with_file_name(format!("{etag}.{}.incomplete", uuid::Uuid::new_v4().simple()));
            let copied = write_file(&partial, &mut content).and_then(|()| {
                fs::rename(&partial, &blob).map_err(|source| ModelError::unwritable(&blob, source).into())
            });
            if let Err(error) = copied {
                // The file is ours and incomplete; when it cannot be removed the first error is the one to tell.
                let _ = fs::remove_file(&partial);
                return Err(error);
            }
        }
        link_blob(&blob, &link, etag).map_err(|source| ModelError::unwritable(&link, source))?;
        Ok(())
    }

    /// Makes a revision point at a commit.
    pub(super) fn write_ref(&self, revision: &str, commit: &str) -> Result<(), ModelError> {
        let path = self.ref_path(revision);
        let write = || {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            let partial = path.with_file_name(format!(".{}", uuid::Uuid::new_v4().simple()));
            fs::write(&partial, commit)?;
            fs::rename(&partial, &path)
        };
        write().map_err(|source| ModelError::unwritable(&path, source))
    }

    pub(super) fn snapshot_dir(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    fn ref_path(&self, revision: &str) -> PathBuf {
        self.root.join("refs").join(revision)
    }
}

/// Why a file was not stored.
pub(super) enum StoreError {
    /// The disk's side.
    Disk(ModelError),
    /// The network's side.
    Body(io::Error),
}

impl From<ModelError> for StoreError {
    fn from(error: ModelError) -> Self {
        Self::Disk(error)
    }
}

fn write_file(path: &Path, content: &mut impl Read) -> Result<(), StoreError> {
    let disk = |source| StoreError::Disk(ModelError::unwritable(path, source));
    let mut file = File::create(path).map_err(disk)?;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match content.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => file.write_all(&buffer[..read]).map_err(disk)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(StoreError::Body(error)),
        }
    }
    file.sync_all().map_err(disk)
}

/// Links a snapshot's file to its blob; where links are not to be had, copies it.
fn link_blob(blob: &Path, link: &Path, etag: &str) -> io::Result<()> {
    if link.is_file() {
        return Ok(());
    }
    // A link that leads nowhere (its blob was removed) is in the way.
    match fs::remove_file(link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    #[cfg(unix)]
    let linked = std::os::unix::fs::symlink(Path::new("../../blobs").join(etag), link);
    #[cfg(not(unix))]
    let linked: io::Result<()> = Err(io::ErrorKind::Unsupported.into());
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(_) => fs::copy(blob, link).map(|_| ()),
        Ok(()) => Ok(()),
    }
}

/// Whether a text is a commit hash (and so a harmless directory name).
pub(super) fn is_commit(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn id() -> HubId {
        HubId {
            repo: "org/name".into(),
            revision: None,
        }
    }

    #[test]
    fn a_stored_snapshot_is_found_by_ref_and_by_commit_once_it_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let cache = ModelCache::new(dir.path(), &id());
        cache.write_ref("refs/pr/1", COMMIT).unwrap();
        for (index, file) in [CONFIG, TOKENIZER, TOKENIZER_CONFIG].iter().enumerate() {
            assert!(cache.find("refs/pr/1").is_none(), "{file} is not there yet");
            cache
                .store(COMMIT, file, &format!("etag{index}"), file.as_bytes())
                .ok()
                .unwrap();
        }
        let found = cache.find("refs/pr/1").unwrap();
        assert_eq!(found.commit, COMMIT);
        assert_eq!(fs::read_to_string(found.dir.join(CONFIG)).unwrap(), CONFIG);
        assert!(dir.path().join("models--org--name/blobs/etag0").is_file());
        assert!(cache.find(COMMIT).is_some());
        assert!(cache.find("main").is_none());
    }

    #[test]
    fn a_broken_download_leaves_nothing_behind() {
        struct Breaks;
        impl Read for Breaks {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::ConnectionReset.into())
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let cache = ModelCache::new(dir.path(), &id());
        assert!(matches!(
            cache.store(COMMIT, CONFIG, "etag", Breaks),
            Err(StoreError::Body(_))
        ));
        assert_eq!(
            fs::read_dir(dir.path().join("models--org--name/blobs"))
                .unwrap()
                .count(),
            0
        );
        assert!(!cache.has(COMMIT, CONFIG));
    }

    #[test]
    fn a_ref_that_is_no_commit_hash_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let cache = ModelCache::new(dir.path(), &id());
        cache.write_ref("main", "../../../etc").unwrap();
        assert!(cache.find("main").is_none());
    }

    #[test]
    fn a_link_without_its_blob_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let cache = ModelCache::new(dir.path(), &id());
        cache.store(COMMIT, CONFIG, "old", &b"old"[..]).ok().unwrap();
        fs::remove_file(dir.path().join("models--org--name/blobs/old")).unwrap();
        cache.store(COMMIT, CONFIG, "new", &b"new"[..]).ok().unwrap();
        assert_eq!(fs::read(cache.snapshot_dir(COMMIT).join(CONFIG)).unwrap(), b"new");
    }
}
