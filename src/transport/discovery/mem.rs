//! Discovery inside one process: fleets and an in-process consumer share a map. Nothing is on any wire.
//!
//! Leases run out here as in any other store; there is no task that watches them, whoever looks or waits sees to it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{DiscoveryError, Record, Renewal};

/// A map of records. Clones share it.
#[derive(Clone)]
pub struct MemStore {
    shared: Arc<Shared>,
    ttl: Duration,
}

struct Shared {
    map: Mutex<Map>,
    /// Counts changes, for those who wait for one.
    revision: watch::Sender<u64>,
}

#[derive(Default)]
struct Map {
    records: BTreeMap<String, Entry>,
    leases: BTreeMap<u64, Instant>,
    next_lease: u64,
    revision: u64,
}

struct Entry {
    value: Bytes,
    lease: u64,
    /// Change that brought this value.
    revision: u64,
}

/// A lease in a map. Dropping it lets it run out.
#[derive(Debug)]
pub struct MemLease {
    id: u64,
    store: MemStore,
}

/// A change that a consumer sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A record is there, new or with another value.
    Put(Record),
    /// The record of this key is gone.
    Delete(String),
}

/// Follows the records below a prefix. It holds what it has told, not what happened in between: a consumer that is slow
/// sees fewer changes, never a wrong state, and costs no more memory.
#[derive(Debug)]
pub struct Watch {
    store: MemStore,
    prefix: String,
    told: BTreeMap<String, u64>,
    revision: watch::Receiver<u64>,
}

impl MemStore {
    /// An empty map whose leases live for `ttl` after each renewal.
    pub fn new(ttl: Duration) -> Self {
        Self {
            shared: Arc::new(Shared {
                map: Mutex::default(),
                revision: watch::channel(0).0,
            }),
            ttl,
        }
    }

    /// The map that all fleets of this process share unless they are given one of their own; 10 s leases.
    pub fn of_process() -> Self {
        static STORE: LazyLock<MemStore> = LazyLock::new(MemStore::default);
        STORE.clone()
    }

    /// Time from a renewal to the end of a lease.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Follows the records whose key starts with `prefix`, beginning with those that are there.
    pub fn watch(&self, prefix: &str) -> Watch {
        Watch {
            store: self.clone(),
            prefix: prefix.to_owned(),
            told: BTreeMap::new(),
            revision: self.shared.revision.subscribe(),
        }
    }

    /// All records whose key starts with `prefix`, by key.
    pub fn list(&self, prefix: &str) -> Vec<Record> {
        let map = self.current();
        map.below(prefix).map(|(key, entry)| entry.record(key)).collect()
    }

    pub(super) fn grant(&self) -> MemLease {
        let mut map = self.current();
        map.next_lease += 1;
        let id = map.next_lease;
        map.leases.insert(id, Instant::now() + self.ttl);
        MemLease {
            id,
            store: self.clone(),
        }
    }

    pub(super) fn publish(&self, lease: &MemLease, records: &[Record]) -> Result<(), DiscoveryError> {
        let mut map = self.current();
        self.own(lease)?;
        if !map.leases.contains_key(&lease.id) {
            return Err(DiscoveryError::LeaseGone);
        }
        for record in records {
            map.revision += 1;
            let entry = Entry {
                value: record.value.clone(),
                lease: lease.id,
                revision: map.revision,
            };
            map.records.insert(record.key.clone(), entry);
        }
        self.tell(&map);
        Ok(())
    }

    pub(super) fn renew(&self, lease: &MemLease) -> Result<Renewal, DiscoveryError> {
        let mut map = self.current();
        self.own(lease)?;
        Ok(match map.leases.get_mut(&lease.id) {
            Some(deadline) => {
                *deadline = Instant::now() + self.ttl;
                Renewal::Alive { ttl: self.ttl }
            }
            None => Renewal::Lost,
        })
    }

    pub(super) fn withdraw(&self, keys: &[String]) {
        let mut map = self.current();
        for key in keys {
            if map.records.remove(key).is_some() {
                map.revision += 1;
            }
        }
        self.tell(&map);
    }

    pub(super) fn revoke(&self, lease: &MemLease) -> Result<(), DiscoveryError> {
        let mut map = self.current();
        self.own(lease)?;
        map.end(lease.id);
        self.tell(&map);
        Ok(())
    }

    fn own(&self, lease: &MemLease) -> Result<(), DiscoveryError> {
        if lease.store == *self {
            Ok(())
        } else {
            Err(DiscoveryError::ForeignLease)
        }
    }

    /// The map without what has run out.
    fn current(&self) -> MutexGuard<'_, Map> {
        // A panic elsewhere leaves these plain maps whole.
        let mut map = self.shared.map.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let over = map.leases.iter().filter(|(_, deadline)| **deadline <= now);
        let over: Vec<u64> = over.map(|(id, _)| *id).collect();
        if !over.is_empty() {
            for lease in over {
                map.end(lease);
            }
            self.tell(&map);
        }
        map
    }

    fn tell(&self, map: &Map) {
        self.shared.revision.send_if_modified(|told| {
            let news = *told != map.revision;
            *told = map.revision;
            news
        });
    }
}

impl Default for MemStore {
    fn default() -> Self {
        Self::new(Duration::from_secs(10))
    }
}

impl PartialEq for MemStore {
    /// Whether both are the same map.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Eq for MemStore {}

impl fmt::Debug for MemStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemStore")
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

impl Map {
    fn below(&self, prefix: &str) -> impl Iterator<Item = (&String, &Entry)> {
        self.records
            .range(prefix.to_owned()..)
            .take_while(move |(key, _)| key.starts_with(prefix))
    }

    fn end(&mut self, lease: u64) {
        self.leases.remove(&lease);
        let before = self.records.len();
        self.records.retain(|_, entry| entry.lease != lease);
        if self.records.len() != before {
            self.revision += 1;
        }
    }
}

impl Entry {
    fn record(&self, key: &str) -> Record {
        Record {
            key: key.to_owned(),
            value: self.value.clone(),
        }
    }
}

impl Watch {
    /// Waits for changes and tells them: deletions first, each key at most once. Never empty.
    pub async fn next(&mut self) -> Vec<Change> {
        loop {
            self.revision.mark_unchanged();
            let (changes, next_end) = self.look();
            if !changes.is_empty() {
                return changes;
            }
            let ended = async {
                match next_end {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The sender lives in the store that we hold.
                _ = self.revision.changed() => {}
                () = ended => {}
            }
        }
    }

    /// What has changed since the last look, and when the next lease runs out.
    fn look(&mut self) -> (Vec<Change>, Option<Instant>) {
        let map = self.store.current();
        let gone = self.told.keys().filter(|key| !map.records.contains_key(*key));
        let mut changes: Vec<Change> = gone.cloned().map(Change::Delete).collect();
        for (key, entry) in map.below(&self.prefix) {
            if self.told.get(key) != Some(&entry.revision) {
                changes.push(Change::Put(entry.record(key)));
            }
        }
        if !changes.is_empty() {
            self.told = map
                .below(&self.prefix)
                .map(|(key, entry)| (key.clone(), entry.revision))
                .collect();
        }
        (changes, map.leases.values().min().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, value: &str) -> Record {
        Record {
            key: key.to_owned(),
            value: Bytes::copy_from_slice(value.as_bytes()),
        }
    }

    fn put(key: &str, value: &str) -> Change {
        Change::Put(record(key, value))
    }

    #[tokio::test]
    async fn a_consumer_sees_what_is_there_and_then_what_changes() {
        let store = MemStore::default();
        let lease = store.grant();
        let records = [record("v1/a", "1"), record("v1/b", "2"), record("v2/c", "3")];
        store.publish(&lease, &records).expect("alive");
        let mut watch = store.watch("v1/");
        assert_eq!(watch.next().await, [put("v1/a", "1"), put("v1/b", "2")]);
        store.withdraw(&["v1/a".to_owned(), "v2/c".to_owned()]);
        store
            .publish(&lease, &[record("v1/b", "4"), record("v1/d", "5")])
            .expect("alive");
        let changes = [Change::Delete("v1/a".to_owned()), put("v1/b", "4"), put("v1/d", "5")];
        assert_eq!(watch.next().await, changes);
        store.revoke(&lease).expect("ours");
        let gone = ["v1/b", "v1/d"].map(|key| Change::Delete(key.to_owned()));
        assert_eq!(watch.next().await, gone);
    }

    #[tokio::test]
    async fn a_lease_that_is_not_renewed_ends_before_the_eyes_of_a_waiting_consumer() {
        let store = MemStore::new(Duration::from_millis(40));
        let silent = store.grant();
        store.publish(&silent, &[record("v1/silent", "")]).expect("alive");
        let mut watch = store.watch("v1/");
        assert_eq!(watch.next().await.len(), 1);
        assert_eq!(watch.next().await, [Change::Delete("v1/silent".to_owned())]);
        assert_eq!(store.renew(&silent).ok(), Some(Renewal::Lost));
        let late = store.publish(&silent, &[record("v1/late", "")]);
        assert!(matches!(late, Err(DiscoveryError::LeaseGone)));
        assert_eq!(store.list("v1/"), []);
    }

    #[test]
    fn a_renewed_lease_lives_and_a_dropped_one_is_left_to_run_out() {
        let store = MemStore::default();
        let lease = store.grant();
        store.publish(&lease, &[record("v1/a", "")]).expect("alive");
        assert_eq!(store.renew(&lease).ok(), Some(Renewal::Alive { ttl: store.ttl() }));
        drop(lease);
        assert_eq!(store.list("v1/").len(), 1);
    }

    #[tokio::test]
    async fn leases_of_another_map_are_refused() {
        let (one, other) = (MemStore::default(), MemStore::default());
        let lease = one.grant();
        assert!(matches!(other.renew(&lease), Err(DiscoveryError::ForeignLease)));
        assert!(matches!(other.publish(&lease, &[]), Err(DiscoveryError::ForeignLease)));
        assert_eq!(MemStore::of_process(), MemStore::of_process());
    }
}
