//! Discovery: the store through which routers learn of workers.
//!
//! A worker opens a [`Lease`], publishes its [`Record`]s under it and renews it; routers see the records until they are
//! withdrawn, the lease is closed, or it runs out because nobody renews it any more. The last is what the death of a
//! process looks like, so a lease that is dropped is deliberately *not* closed.
//!
//! One store serves the whole fleet: it holds one connection (etcd) or one thread (files), whatever the number of leases. It keeps no clock for them: who wants a lease to live calls [`Discovery::renew`] every third of
//! [`Lease::ttl`].

mod error;
pub mod etcd;
pub mod file;
pub mod mem;
pub mod name;
pub mod record;

use std::time::Duration;

pub use error::DiscoveryError;
pub use etcd::EtcdOptions;
pub use file::FileOptions;
pub use mem::MemStore;
pub use name::{EndpointName, NameError};
pub use record::Record;

/// Time that a renewal waits for others to go with it. Far below any lease time, and one wake-up of the server or of
/// the file thread then serves many leases.
const GATHER_RENEWALS: Duration = Duration::from_millis(50);

/// Which store to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiscoveryConfig {
    /// An etcd cluster.
    Etcd(EtcdOptions),
    /// A directory on this machine.
    File(FileOptions),
    /// A map in this process.
    Mem(MemStore),
}

/// A connected store. Clones share it; it may be used from any thread of a tokio runtime.
#[derive(Debug, Clone)]
pub enum Discovery {
    /// An etcd cluster.
    Etcd(etcd::EtcdStore),
    /// A directory on this machine.
    File(file::FileStore),
    /// A map in this process.
    Mem(MemStore),
}

/// The life of a set of records. Dropping it lets them run out; [`Discovery::close`] removes them at once.
#[derive(Debug)]
pub struct Lease {
    ttl: Duration,
    kind: LeaseKind,
}

#[derive(Debug)]
enum LeaseKind {
    Etcd(etcd::EtcdLease),
    File(file::FileLease),
    Mem(mem::MemLease),
}

impl Lease {
    /// Time from the last renewal to the end of the lease, as granted by the store.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }
}

/// What became of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// The lease lives for another `ttl`.
    Alive {
        /// Time to its end unless it is renewed again.
        ttl: Duration,
    },
    /// The lease is gone, and so are its records.
    Lost,
}

impl Discovery {
    /// Connects to a store. Background work of the store runs on the calling tokio runtime.
    ///
    /// # Errors
    /// Etcd: [`DiscoveryError::NotConnected`] when no endpoint answers within
    /// [`EtcdOptions::connect_limit`], at once [`DiscoveryError::Refused`] for bad credentials. File:
    /// [`DiscoveryError::File`] when the directory cannot be made or written. Both: [`DiscoveryError::Options`].
    pub async fn connect(config: &DiscoveryConfig) -> Result<Self, DiscoveryError> {
        match config {
            DiscoveryConfig::Etcd(options) => etcd::EtcdStore::connect(options).await.map(Self::Etcd),
            DiscoveryConfig::File(options) => file::FileStore::open(options).await.map(Self::File),
            DiscoveryConfig::Mem(store) => Ok(Self::Mem(store.clone())),
        }
    }

    /// Opens a lease without records.
    ///
    /// # Errors
    /// [`DiscoveryError::Unreachable`] or [`DiscoveryError::Refused`] (etcd only).
    pub async fn open(&self) -> Result<Lease, DiscoveryError> {
        match self {
            Self::Etcd(store) => {
                let (lease, ttl) = store.grant().await?;
                Ok(Lease {
                    ttl,
                    kind: LeaseKind::Etcd(lease),
                })
            }
            Self::File(store) => {
                let lease = store.grant().await?;
                Ok(Lease {
                    ttl: store.ttl(),
                    kind: LeaseKind::File(lease),
                })
            }
            Self::Mem(store) => Ok(Lease {
                ttl: store.ttl(),
                kind: LeaseKind::Mem(store.grant()),
            }),
        }
    }

    /// Makes records visible, in the order given, replacing what their keys held. A key taken over from another lease
    /// belongs to this one from then on.
    ///
    /// # Errors
    /// [`DiscoveryError::LeaseGone`] when the lease has ended. After any other error some of the records may be visible.
    pub async fn publish(&self, lease: &Lease, records: &[Record]) -> Result<(), DiscoveryError> {
        match (self, &lease.kind) {
            (Self::Etcd(store), LeaseKind::Etcd(lease)) => store.publish(lease, records).await,
            (Self::File(store), LeaseKind::File(lease)) => store.publish(lease, records).await,
            (Self::Mem(store), LeaseKind::Mem(lease)) => store.publish(lease, records),
            (Self::Etcd(_) | Self::File(_) | Self::Mem(_), _) => Err(DiscoveryError::ForeignLease),
        }
    }

    /// Restarts the time of a lease.
    ///
    /// # Errors
    /// [`DiscoveryError::Unreachable`]: nothing is known of the lease, try again soon. A lease that has ended is no
    /// error but [`Renewal::Lost`].
    pub async fn renew(&self, lease: &Lease) -> Result<Renewal, DiscoveryError> {
        let renewal = match (self, &lease.kind) {
            (Self::Etcd(store), LeaseKind::Etcd(etcd)) => store.renew(etcd, lease.ttl).await,
            (Self::File(store), LeaseKind::File(lease)) => store.renew(lease).await,
            (Self::Mem(store), LeaseKind::Mem(lease)) => store.renew(lease),
            (Self::Etcd(_) | Self::File(_) | Self::Mem(_), _) => Err(DiscoveryError::ForeignLease),
        };
        match &renewal {
            Ok(Renewal::Alive { .. }) => {}
            Ok(Renewal::Lost) => metrics::counter!("ghostfleet_discovery_leases_lost_total").increment(1),
            Err(_) => metrics::counter!("ghostfleet_discovery_failed_renewals_total").increment(1),
        }
        renewal
    }

    /// Removes keys, whichever lease holds them. Keys that are not there are no error.
    ///
    /// # Errors
    /// The store could not be asked; some of the keys may be gone.
    pub async fn withdraw(&self, lease: &Lease, keys: &[String]) -> Result<(), DiscoveryError> {
        match (self, &lease.kind) {
            (Self::Etcd(store), LeaseKind::Etcd(_)) => store.withdraw(keys).await,
            (Self::File(store), LeaseKind::File(_)) => store.withdraw(keys).await,
            (Self::Mem(store), LeaseKind::Mem(_)) => {
                store.withdraw(keys);
                Ok(())
            }
            (Self::Etcd(_) | Self::File(_) | Self::Mem(_), _) => Err(DiscoveryError::ForeignLease),
        }
    }

    /// Ends a lease and removes all of its records at once. A lease that has ended already is no error.
    ///
    /// # Errors
    /// The store could not be asked; the records then run out with the lease.
    pub async fn close(&self, lease: Lease) -> Result<(), DiscoveryError> {
        match (self, &lease.kind) {
            (Self::Etcd(store), LeaseKind::Etcd(lease)) => store.revoke(lease).await,
            (Self::File(store), LeaseKind::File(lease)) => store.revoke(lease).await,
            (Self::Mem(store), LeaseKind::Mem(lease)) => store.revoke(lease),
            (Self::Etcd(_) | Self::File(_) | Self::Mem(_), _) => Err(DiscoveryError::ForeignLease),
        }
    }

    /// All records whose key starts with `prefix`, by key.
    ///
    /// # Errors
    /// The store could not be read.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Record>, DiscoveryError> {
        match self {
            Self::Etcd(store) => store.list(prefix).await,
            Self::File(store) => store.list(prefix).await,
            Self::Mem(store) => Ok(store.list(prefix)),
        }
    }

    /// Lease time asked for. What a store grants may be longer: see [`Lease::ttl`].
    pub fn ttl(&self) -> Duration {
        match self {
            Self::Etcd(store) => store.ttl(),
            Self::File(store) => store.ttl(),
            Self::Mem(store) => store.ttl(),
        }
    }
}
