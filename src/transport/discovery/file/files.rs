//! The files of a file store: names, atomic writes, touching, expiry. Blocking and single-threaded.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use crate::transport::discovery::name::{percent_decode, percent_encode};
use crate::transport::discovery::record::{EVENT_CHANNELS, EVENT_SOURCES, INSTANCES, MODELS};
use crate::transport::discovery::{DiscoveryError, Record};

/// Names that start so are files in the making: not records, not expired, not deleted.
const TEMPORARY: &str = ".tmp_";

/// Longest file name of common Linux file systems, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// Most bytes read of one record; what is longer is not a record of ours or Dynamo's.
const MAX_RECORD_BYTES: u64 = 4 << 20;

/// The directories that hold records.
const BUCKETS: [&str; 4] = [INSTANCES, MODELS, EVENT_CHANNELS, EVENT_SOURCES];

/// Bytes that opening a store writes to see whether it can be written: about what a card has, so that a full disk shows.
const PROBE_BYTES: usize = 4096;

/// Now, by the clock that files are dated with and by one that nobody sets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) wall: SystemTime,
    pub(super) steady: Instant,
}

impl Moment {
    pub(super) fn now() -> Self {
        Self {
            wall: SystemTime::now(),
            steady: Instant::now(),
        }
    }
}

/// A lease exists while its token does.
#[derive(Debug)]
pub(super) struct LeaseToken(u64);

/// Where a record lives, relative to the root.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// Index into [`BUCKETS`].
    bucket: usize,
    name: Arc<str>,
}

#[derive(Debug)]
struct Held {
    token: Weak<LeaseToken>,
    places: BTreeSet<Place>,
    /// When its files were last made young.
    touched: Instant,
}

/// A directory of records, and which lease holds which of its files.
#[derive(Debug)]
pub(super) struct Files {
    /// One per bucket.
    directories: [PathBuf; BUCKETS.len()],
    ttl: Duration,
    next_lease: u64,
    leases: BTreeMap<u64, Held>,
    holders: BTreeMap<Place, u64>,
    /// Files of leases that were dropped, and when they run out.
    orphans: BTreeMap<Place, Instant>,
    /// Old files that are no records, as they were when they were read; not read again until they change.
    foreign: BTreeMap<Place, Stamp>,
    clock: Clock,
}

/// Tells whether a file has been written since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            modified: metadata.modified().ok(),
            bytes: metadata.len(),
        }
    }
}

/// What is known of the clock that files are dated with.
#[derive(Debug, Default)]
struct Clock {
    last: Option<Moment>,
    /// After a jump ahead every file looks old: until then their owners may touch them.
    doubtful_until: Option<Instant>,
}

/// What becomes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Stays,
    /// Its lease lives but its date says otherwise.
    IsTouched,
    Goes,
}

impl Files {
    /// Makes the directories and proves that they can be written.
    pub(super) fn open(root: &Path, ttl: Duration) -> Result<Self, DiscoveryError> {
        let files = Self {
            directories: BUCKETS.map(|bucket| root.join(bucket)),
            ttl,
            next_lease: 0,
            leases: BTreeMap::new(),
            holders: BTreeMap::new(),
            orphans: BTreeMap::new(),
            foreign: BTreeMap::new(),
            clock: Clock::default(),
        };
        for (bucket, directory) in files.directories.iter().enumerate() {
            fs::create_dir_all(directory).map_err(failed("make the discovery directory", directory))?;
            let probe = files.write_temporary(bucket, &[b' '; PROBE_BYTES])?;
            fs::remove_file(&probe).map_err(failed("remove", &probe))?;
        }
        Ok(files)
    }

    /// Starts a lease without files.
    pub(super) fn grant(&mut self) -> Arc<LeaseToken> {
        let token = Arc::new(LeaseToken(self.next_lease));
        self.next_lease += 1;
        self.leases.insert(
            token.0,
            Held {
                token: Arc::downgrade(&token),
                places: BTreeSet::new(),
                touched: Instant::now(),
            },
        );
        token
    }

    /// Writes records one after the other; each appears whole or not at all.
    pub(super) fn publish(&mut self, token: &LeaseToken, records: &[Record]) -> Result<(), DiscoveryError> {
        for record in records {
            let place = place(&record.key)?;
            if !self.leases.contains_key(&token.0) {
                return Err(DiscoveryError::LeaseGone);
            }
            self.write(&place, &record.value)?;
            self.release(&place);
            self.orphans.remove(&place);
            self.holders.insert(place.clone(), token.0);
            if let Some(held) = self.leases.get_mut(&token.0) {
                held.places.insert(place);
            }
        }
        Ok(())
    }

    /// Marks the files of a lease as changed now. `false`: one of them is gone, and with it the lease; the others are
    /// removed then.
    pub(super) fn touch(&mut self, token: &LeaseToken) -> Result<bool, DiscoveryError> {
        let Some(held) = self.leases.get(&token.0) else {
            return Ok(false);
        };
        for place in &held.places {
            let path = self.path(place);
            match make_young(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.revoke(token)?;
                    return Ok(false);
                }
                Err(error) => return Err(failed("touch", &path)(error)),
            }
        }
        if let Some(held) = self.leases.get_mut(&token.0) {
            held.touched = Instant::now();
        }
        Ok(true)
    }

    /// Removes files by key, whoever holds them.
    pub(super) fn withdraw(&mut self, keys: &[String]) -> Result<(), DiscoveryError> {
        for key in keys {
            let place = place(key)?;
            self.remove(&place)?;
            self.release(&place);
        }
        Ok(())
    }

    /// Ends a lease and removes its files. A file that cannot be removed does not keep the others.
    pub(super) fn revoke(&mut self, token: &LeaseToken) -> Result<(), DiscoveryError> {
        let Some(held) = self.leases.remove(&token.0) else {
            return Ok(());
        };
        let mut outcome = Ok(());
        for place in &held.places {
            self.holders.remove(place);
            outcome = outcome.and(self.remove(place).map(drop));
        }
        outcome
    }

    /// Deletes record files that nobody has touched for the TTL, and forgets leases that were dropped. Returns how many
    /// files it deleted. A file that cannot be deleted does not keep the others.
    ///
    /// # Errors
    /// The first that could not be deleted, after all others.
    pub(super) fn reap(&mut self, now: Moment) -> Result<usize, DiscoveryError> {
        self.forget_dropped();
        self.clock.look(now, self.ttl);
        let mut reaped = 0;
        let mut outcome = Ok(());
        let known = std::mem::take(&mut self.foreign);
        for bucket in 0..BUCKETS.len() {
            for (name, metadata) in self.record_files(bucket)? {
                let place = Place { bucket, name };
                match self.fate(&place, &metadata, now) {
                    Fate::Stays => {}
                    Fate::IsTouched => {
                        let path = self.path(&place);
                        outcome = outcome.and(make_young(&path).map_err(failed("touch", &path)));
                    }
                    // Nothing that writes records writes anything but JSON: the rest is somebody's, however old.
                    Fate::Goes if !self.is_ours(&place) && self.is_foreign(&place, &metadata, &known)? => {
                        self.foreign.insert(place, Stamp::of(&metadata));
                    }
                    Fate::Goes => match self.remove(&place) {
                        Ok(removed) => reaped += usize::from(removed),
                        Err(error) => outcome = outcome.and(Err(error)),
                    },
                }
            }
        }
        self.orphans.retain(|_, deadline| *deadline >= now.steady);
        outcome.map(|()| reaped)
    }

    /// Whether this process has written it.
    fn is_ours(&self, place: &Place) -> bool {
        self.holders.contains_key(place) || self.orphans.contains_key(place)
    }

    /// Whether an old file is no record, by what is `known` from before or by what it holds.
    fn is_foreign(
        &self,
        place: &Place,
        metadata: &Metadata,
        known: &BTreeMap<Place, Stamp>,
    ) -> Result<bool, DiscoveryError> {
        if known.get(place) == Some(&Stamp::of(metadata)) {
            return Ok(true);
        }
        is_record(&self.path(place)).map(|is_record| !is_record)
    }

    fn fate(&self, place: &Place, metadata: &Metadata, now: Moment) -> Fate {
        let old = expired(metadata, now.wall, self.ttl);
        // Of our own files we know when they were touched, whatever their date says.
        if let Some(held) = self.holders.get(place).and_then(|lease| self.leases.get(lease)) {
            let age = now.steady.saturating_duration_since(held.touched);
            return match (age > self.ttl, old) {
                (true, _) => Fate::Goes,
                (false, true) => Fate::IsTouched,
                (false, false) => Fate::Stays,
            };
        }
        let over = self.orphans.get(place).is_some_and(|deadline| *deadline < now.steady);
        if over || (old && !self.clock.is_doubtful(now)) {
            Fate::Goes
        } else {
            Fate::Stays
        }
    }

    /// Records whose key starts with `prefix`, by key. Left out are expired ones, and those of others that may not be
    /// read.
    pub(super) fn list(&self, prefix: &str, now: Moment) -> Result<Vec<Record>, DiscoveryError> {
        let mut records = Vec::new();
        for (bucket, bucket_key) in BUCKETS.iter().enumerate() {
            if !bucket_key.starts_with(prefix) && !prefix.starts_with(bucket_key) {
                continue;
            }
            for (name, metadata) in self.record_files(bucket)? {
                let Some(rest) = percent_decode(&name) else { continue };
                let key = format!("{bucket_key}{rest}");
                let place = Place { bucket, name };
                if !key.starts_with(prefix) || self.fate(&place, &metadata, now) == Fate::Goes {
                    continue;
                }
                if let Some(value) = read(&self.path(&place))? {
                    records.push(Record { key, value });
                }
            }
        }
        records.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(records)
    }

    fn path(&self, place: &Place) -> PathBuf {
        self.directories[place.bucket].join(&*place.name)
    }

    /// Names and states of the record files of a bucket. Files that vanish meanwhile are left out.
    fn record_files(&self, bucket: usize) -> Result<Vec<(Arc<str>, Metadata)>, DiscoveryError> {
        let directory = &self.directories[bucket];
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed("list", directory)(error)),
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed("list", directory))?;
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| !name.starts_with(TEMPORARY)) else {
                continue;
            };
            match entry.metadata() {
                Ok(metadata) if metadata.is_file() => files.push((Arc::from(name), metadata)),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed("inspect", &entry.path())(error)),
            }
        }
        Ok(files)
    }

    /// Creates or replaces a file in one step, so that no watcher ever reads a part of it.
    fn write(&self, place: &Place, value: &[u8]) -> Result<(), DiscoveryError> {
        let temporary = match self.write_temporary(place.bucket, value) {
            Err(DiscoveryError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let directory = &self.directories[place.bucket];
                fs::create_dir_all(directory).map_err(failed("make the discovery directory", directory))?;
                self.write_temporary(place.bucket, value)?
            }
            written => written?,
        };
        let path = self.path(place);
        // A link is what Dynamo makes for a new key. It fails when the key exists, or where there are no links.
        let moved = match fs::hard_link(&temporary, &path) {
            Ok(()) => fs::remove_file(&temporary),
            Err(_) => fs::rename(&temporary, &path),
        };
        moved.map_err(|error| {
            let _ = fs::remove_file(&temporary);
            failed("write", &path)(error)
        })
    }

    fn write_temporary(&self, bucket: usize, value: &[u8]) -> Result<PathBuf, DiscoveryError> {
        let (unique, _) = uuid::Uuid::new_v4().as_u64_pair();
        let path = self.directories[bucket].join(format!("{TEMPORARY}{unique:016x}"));
        let written = File::create_new(&path).and_then(|mut file| file.write_all(value));
        if let Err(error) = written {
            let _ = fs::remove_file(&path);
            return Err(failed("write", &path)(error));
        }
        Ok(path)
    }

    /// Deletes a file; `false` when there was none.
    fn remove(&self, place: &Place) -> Result<bool, DiscoveryError> {
        let path = self.path(place);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("remove", &path)(error)),
        }
    }

    /// Takes a file out of the lease that holds it, if any.
    fn release(&mut self, place: &Place) {
        let holder = self.holders.remove(place);
        if let Some(held) = holder.and_then(|lease| self.leases.get_mut(&lease)) {
            held.places.remove(place);
        }
    }

    fn forget_dropped(&mut self) {
        let (holders, orphans, ttl) = (&mut self.holders, &mut self.orphans, self.ttl);
        self.leases.retain(|_, held| {
            let kept = held.token.strong_count() > 0;
            if !kept {
                for place in std::mem::take(&mut held.places) {
                    holders.remove(&place);
                    orphans.insert(place, held.touched + ttl);
                }
            }
            kept
        });
    }
}

impl Clock {
    /// Compares both clocks with the last time.
    fn look(&mut self, now: Moment, ttl: Duration) {
        let last = self.last.replace(now);
        let Some(last) = last else { return };
        let passed = now.steady.saturating_duration_since(last.steady);
        // A machine that slept is the same: its steady clock slept, too.
        let ahead = now
            .wall
            .duration_since(last.wall)
            .unwrap_or_default()
            .saturating_sub(passed);
        if ahead > ttl / 2 {
            self.doubtful_until = Some(now.steady + ttl);
            tracing::warn!(
                "the clock has jumped ahead by {:.1} s: discovery files of others that look old now stay for another \
                 {:.1} s, so that their owners can touch them",
                ahead.as_secs_f32(),
                ttl.as_secs_f32()
            );
        }
    }

    fn is_doubtful(&self, now: Moment) -> bool {
        self.doubtful_until.is_some_and(|until| now.steady < until)
    }
}

/// Dates a file now, in one call without opening it, so that its watchers wake up once and not three times.
fn make_young(path: &Path) -> io::Result<()> {
    rustix::fs::utimensat(CWD, path, &MODIFIED_NOW, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from)
}

const MODIFIED_NOW: Timestamps = Timestamps {
    last_access: Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_OMIT,
    },
    last_modification: Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    },
};

/// A file is expired when its last change is longer ago than `ttl`; one from the future is fresh.
fn expired(metadata: &Metadata, now: SystemTime, ttl: Duration) -> bool {
    metadata
        .modified()
        .is_ok_and(|modified| now.duration_since(modified).is_ok_and(|age| age > ttl))
}

/// Directory and file name of a key: every byte of the name that is no ASCII letter or digit is percent-encoded.
fn place(key: &str) -> Result<Place, DiscoveryError> {
    let refused = |reason| DiscoveryError::Key {
        key: key.to_owned(),
        reason,
    };
    let (bucket, rest) = BUCKETS
        .iter()
        .enumerate()
        .find_map(|(index, bucket)| Some((index, key.strip_prefix(bucket)?)))
        .filter(|(_, rest)| !rest.is_empty())
        .ok_or_else(|| refused("is not below v1/instances/, v1/mdc/, v1/event_channels/ or v1/event_sources/"))?;
    let name = percent_encode(rest, |byte| byte.is_ascii_alphanumeric());
    if name.len() > MAX_NAME_BYTES {
        return Err(refused(
            "makes a file name of more than 255 bytes; use shorter names or etcd",
        ));
    }
    Ok(Place {
        bucket,
        name: name.into(),
    })
}

/// Contents of a record file; `None` when it has vanished, may not be read or is too large for a record.
fn read(path: &Path) -> Result<Option<Bytes>, DiscoveryError> {
    let mut value = Vec::new();
    let outcome = File::open(path).and_then(|file| file.take(MAX_RECORD_BYTES + 1).read_to_end(&mut value));
    match outcome {
        Ok(length) if length as u64 <= MAX_RECORD_BYTES => Ok(Some(value.into())),
        Ok(_) => {
            tracing::warn!(path = %path.display(), "skipped a discovery file of more than {MAX_RECORD_BYTES} bytes");
            Ok(None)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            tracing::debug!(path = %path.display(), "skipped a discovery file that may not be read");
            Ok(None)
        }
        Err(error) => Err(failed("read", path)(error)),
    }
}

/// Whether a file holds a JSON object, as every record is.
fn is_record(path: &Path) -> Result<bool, DiscoveryError> {
    let value = read(path)?;
    Ok(value.is_some_and(|value| serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&value).is_ok()))
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DiscoveryError {
    move |source| DiscoveryError::File {
        operation,
        path: path.to_owned(),
        source,
    }
}
