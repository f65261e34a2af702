//! Discovery in a directory: one file per record, alive as long as somebody touches it.
//!
//! ```text
//! <root>/v1/instances/dynamo%2Fbackend%2Fgenerate%2F2a       the record's JSON
//! <root>/v1/mdc/...  <root>/v1/event_channels/...  <root>/v1/event_sources/...
//! ```
//! A lease is a set of files: renewing touches them, and every participant deletes files that have not been touched for
//! the TTL. All participants have to agree on the TTL; that of Dynamo 1.6.1 and 1.4.2 is 10 s. Files are dated by a
//! clock that may be set: for its own files this store goes by a steady one, and after a jump ahead it spares those of
//! others for one TTL.
//!
//! One plain thread does all file work, whatever the number of workers. Renewals that come close together cross to it
//! as one piece of work: at a thousand workers, waking it for each would cost several times the touching.

mod files;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, sleep};

use self::files::{Files, LeaseToken, Moment};
use super::{DiscoveryError, GATHER_RENEWALS, Record, Renewal};

/// Pieces of work that wait for the thread; further callers wait to queue.
const QUEUE: usize = 64;

/// Renewals that cross to the thread at once.
const MAX_BATCH: usize = 1024;

/// How often a full disk is looked at.
const ROOM_LOOK: Duration = Duration::from_millis(200);

/// Options of a file store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOptions {
    /// Directory; made when missing (`DYN_FILE_KV`).
    pub root: PathBuf,
    /// Age at which any participant deletes an untouched file; at least 1 s.
    pub ttl: Duration,
    /// How long to wait at the start for room on a full disk.
    pub room_limit: Duration,
}

impl Default for FileOptions {
    /// `<system temp dir>/dynamo_store_kv` and 10 s, as Dynamo has them; no wait.
    fn default() -> Self {
        Self {
            root: std::env::temp_dir().join("dynamo_store_kv"),
            ttl: Duration::from_secs(10),
            room_limit: Duration::ZERO,
        }
    }
}

/// A directory of records. Clones share it.
#[derive(Debug, Clone)]
pub struct FileStore {
    thread: FileThread,
    renewals: mpsc::Sender<RenewRequest>,
    ttl: Duration,
}

/// A lease in a file store. Its files are forgotten, not deleted, when it is dropped.
#[derive(Debug)]
pub struct FileLease {
    token: Arc<LeaseToken>,
    store: Arc<()>,
}

#[derive(Debug)]
struct RenewRequest {
    token: Arc<LeaseToken>,
    answer: oneshot::Sender<Result<bool, DiscoveryError>>,
}

impl FileStore {
    /// Opens a directory, making it if need be, and starts to delete expired files in it. Waits for room on a full disk.
    ///
    /// # Errors
    /// [`DiscoveryError::File`] when it cannot be made or written, [`DiscoveryError::StillFull`] after
    /// [`FileOptions::room_limit`], [`DiscoveryError::Options`] for a TTL below 1 s.
    pub async fn open(options: &FileOptions) -> Result<Self, DiscoveryError> {
        let FileOptions { root, ttl, room_limit } = options.clone();
        if ttl < Duration::from_secs(1) {
            return Err(DiscoveryError::Options(format!(
                "file discovery needs a TTL of at least 1 s, not {ttl:?}"
            )));
        }
        let thread = FileThread::start_with_room(root, ttl, room_limit).await?;
        let (renewals, requests) = mpsc::channel(MAX_BATCH);
        tokio::spawn(keep(thread.clone(), requests, ttl));
        Ok(Self { thread, renewals, ttl })
    }

    /// Time after which an untouched file is deleted.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    pub(super) async fn grant(&self) -> Result<FileLease, DiscoveryError> {
        let token = self.thread.run(|files| Ok(files.grant())).await?;
        Ok(FileLease {
            token,
            store: Arc::clone(&self.thread.identity),
        })
    }

    pub(super) async fn publish(&self, lease: &FileLease, records: &[Record]) -> Result<(), DiscoveryError> {
        let token = self.token(lease)?;
        let records = records.to_vec();
        self.thread.run(move |files| files.publish(&token, &records)).await
    }

    pub(super) async fn renew(&self, lease: &FileLease) -> Result<Renewal, DiscoveryError> {
        let token = self.token(lease)?;
        let (answer, answered) = oneshot::channel();
        let queued = self.renewals.send(RenewRequest { token, answer }).await;
        queued.map_err(|_| DiscoveryError::Closed)?;
        let alive = answered.await.map_err(|_| DiscoveryError::Closed)??;
        Ok(if alive {
            Renewal::Alive { ttl: self.ttl }
        } else {
            Renewal::Lost
        })
    }

    pub(super) async fn withdraw(&self, keys: &[String]) -> Result<(), DiscoveryError> {
        let keys = keys.to_vec();
        self.thread.run(move |files| files.withdraw(&keys)).await
    }

    pub(super) async fn revoke(&self, lease: &FileLease) -> Result<(), DiscoveryError> {
        let token = self.token(lease)?;
        self.thread.run(move |files| files.revoke(&token)).await
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<Record>, DiscoveryError> {
        let prefix = prefix.to_owned();
        self.thread.run(move |files| files.list(&prefix, Moment::now())).await
    }

    fn token(&self, lease: &FileLease) -> Result<Arc<LeaseToken>, DiscoveryError> {
        if !Arc::ptr_eq(&lease.store, &self.thread.identity) {
            return Err(DiscoveryError::ForeignLease);
        }
        Ok(Arc::clone(&lease.token))
    }
}

type Work = Box<dyn FnOnce(&mut Files) + Send>;

/// The thread that owns the files; it ends with the last handle.
#[derive(Debug, Clone)]
struct FileThread {
    work: mpsc::Sender<Work>,
    identity: Arc<()>,
}

impl FileThread {
    /// Starts as soon as the disk has room for it, within a limit.
    async fn start_with_room(root: PathBuf, ttl: Duration, limit: Duration) -> Result<Self, DiscoveryError> {
        let begun = Instant::now();
        let mut told = false;
        loop {
            let error = match Self::start(root.clone(), ttl).await {
                Ok(thread) => return Ok(thread),
                Err(error) if error.is_full_disk() && !limit.is_zero() => error,
                Err(error) => return Err(error),
            };
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(DiscoveryError::StillFull {
                    waited: limit,
                    error: Box::new(error),
                });
            }
            if !std::mem::replace(&mut told, true) {
                tracing::warn!(%error, limit_s = limit.as_secs_f32(), "discovery fails; waiting for room");
            }
            sleep(ROOM_LOOK.min(left)).await;
        }
    }

    async fn start(root: PathBuf, ttl: Duration) -> Result<Self, DiscoveryError> {
        let (work, mut pieces) = mpsc::channel::<Work>(QUEUE);
        let (opened, outcome) = oneshot::channel();
        let directory = root.clone();
        let body = move || match Files::open(&root, ttl) {
            Ok(mut files) => {
                let _ = opened.send(Ok(()));
                while let Some(piece) = pieces.blocking_recv() {
                    piece(&mut files);
                }
            }
            Err(error) => drop(opened.send(Err(error))),
        };
        std::thread::Builder::new()
            .name("discovery-files".into())
            .spawn(body)
            .map_err(|source| DiscoveryError::File {
                operation: "start the thread for",
                path: directory,
                source,
            })?;
        outcome.await.map_err(|_| DiscoveryError::Closed)??;
        Ok(Self {
            work,
            identity: Arc::new(()),
        })
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Files) -> Result<T, DiscoveryError> + Send + 'static,
    ) -> Result<T, DiscoveryError> {
        let (answer, answered) = oneshot::channel();
        let piece: Work = Box::new(move |files| {
            // The caller may have stopped waiting.
            let _ = answer.send(work(files));
        });
        self.work.send(piece).await.map_err(|_| DiscoveryError::Closed)?;
        answered.await.map_err(|_| DiscoveryError::Closed)?
    }
}

/// Renews leases and, every third of the TTL but at most once per second, deletes expired files; ends with the store.
async fn keep(thread: FileThread, mut requests: mpsc::Receiver<RenewRequest>, ttl: Duration) {
    let mut ticks = tokio::time::interval((ttl / 3).max(Duration::from_secs(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut batch = Vec::new();
    let mut failing = false;
    loop {
        let kept = tokio::select! {
            _ = ticks.tick() => reap(&thread, &mut failing).await,
            received = requests.recv_many(&mut batch, MAX_BATCH) => {
                if received == 0 {
                    return;
                }
                sleep(GATHER_RENEWALS).await;
                while batch.len() < MAX_BATCH && let Ok(request) = requests.try_recv() {
                    batch.push(request);
                }
                touch(&thread, std::mem::take(&mut batch)).await
            }
        };
        if kept.is_err() {
            return;
        }
    }
}

async fn touch(thread: &FileThread, batch: Vec<RenewRequest>) -> Result<(), DiscoveryError> {
    let touch_all = move |files: &mut Files| {
        let touched = batch
            .into_iter()
            .map(|request| (request.answer, files.touch(&request.token)));
        Ok(touched.collect::<Vec<_>>())
    };
    for (answer, alive) in thread.run(touch_all).await? {
        // The caller may have stopped waiting.
        let _ = answer.send(alive);
    }
    Ok(())
}

/// `failing`: whether it did not work the last time, so that what stays wrong is not said every few seconds.
async fn reap(thread: &FileThread, failing: &mut bool) -> Result<(), DiscoveryError> {
    let failed_before = std::mem::take(failing);
    match thread.run(|files| files.reap(Moment::now())).await {
        Ok(0) => {}
        Ok(count) => tracing::debug!(count, "deleted expired discovery files"),
        Err(DiscoveryError::Closed) => return Err(DiscoveryError::Closed),
        Err(error) => {
            *failing = true;
            if !failed_before {
                tracing::warn!(%error, "cannot delete expired discovery files; the others are deleted");
            }
        }
    }
    Ok(())
}
