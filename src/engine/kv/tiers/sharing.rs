//! Tiers that many ranks share: who joins them, on what terms, and how they are told of changes.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::super::config::{ConfigError, SharedTier, TierConfig};
use super::super::super::tier_use::{DiskUse, HostUse};
use super::host::Host;
use super::levels::Level;
use super::link::ClientId;

/// Host memory and disk that ranks share whose configuration says so. Empty until the first of them joins; it sets the
/// terms. Clones are the same memory.
#[derive(Clone, Default)]
pub struct SharedMemory(Arc<Pools>);

#[derive(Default)]
struct Pools {
    host: Mutex<Option<Pool<Host>>>,
    disk: Mutex<Option<Pool<Level>>>,
    clients: AtomicU32,
    changes: Changes,
}

/// A tier with what its ranks agree on.
struct Pool<T> {
    terms: Terms,
    tier: Arc<Mutex<T>>,
}

/// What ranks agree on that share a tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Terms {
    pub(super) shared: SharedTier,
    pub(super) block_size: u32,
    pub(super) bytes_per_token: u64,
    pub(super) blocks: u32,
}

impl Terms {
    pub(super) fn of_host(shared: SharedTier, config: &TierConfig, block_size: u32) -> Self {
        Self {
            shared,
            block_size,
            bytes_per_token: config.bytes_per_token,
            blocks: config.host_blocks,
        }
    }

    pub(super) fn of_disk(shared: SharedTier, config: &TierConfig, block_size: u32) -> Self {
        Self {
            blocks: config.disk_blocks,
            ..Self::of_host(shared, config, block_size)
        }
    }
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            shared,
            block_size,
            bytes_per_token,
            blocks,
        } = self;
        write!(
            f,
            "{blocks} blocks of {block_size} tokens with {bytes_per_token} bytes each, {} GB/s of all workers to it and {} GB/s \
             from it",
            shared.down, shared.up
        )
    }
}

/// Counts what happens to shared tiers, to be read without a lock.
#[derive(Debug, Clone, Default)]
pub(super) struct Changes(Arc<AtomicU64>);

impl Changes {
    pub(super) fn count(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMemory").finish_non_exhaustive()
    }
}

impl SharedMemory {
    /// Nobody's yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Grows with whatever happens to it. Ranks whose [`Engine::wakes_at`](crate::engine::Engine::wakes_at) was asked
    /// before may have to wake earlier then.
    pub fn changes(&self) -> u64 {
        self.0.changes.0.load(Ordering::Acquire)
    }

    /// Use of the host memory, once a rank has joined it.
    pub fn host(&self) -> Option<HostUse> {
        let pool = lock(&self.0.host);
        let Pool { terms, tier } = pool.as_ref()?;
        let (resident, coming) = lock(tier).occupancy();
        Some(HostUse {
            capacity_blocks: u64::from(terms.blocks),
            resident_blocks: resident as u64,
            used_blocks: (resident + coming) as u64,
        })
    }

    /// Use of the disk, once a rank has joined it.
    pub fn disk(&self) -> Option<DiskUse> {
        let pool = lock(&self.0.disk);
        let used = lock(&pool.as_ref()?.tier).used();
        Some(used)
    }

    /// A number for a rank that joins.
    pub(super) fn client(&self) -> ClientId {
        self.0.clients.fetch_add(1, Ordering::Relaxed)
    }

    /// The host memory, made by the first who asks.
    ///
    /// # Errors
    /// Others have joined it on other terms.
    pub(super) fn join_host(
        &self,
        terms: Terms,
        make: impl FnOnce(Changes) -> Host,
    ) -> Result<Held<Host>, ConfigError> {
        join(&self.0.host, "host memory", terms, || make(self.0.changes.clone()))
    }

    /// The disk, made by the first who asks.
    ///
    /// # Errors
    /// Others have joined it on other terms.
    pub(super) fn join_disk(
        &self,
        terms: Terms,
        make: impl FnOnce(Changes) -> Level,
    ) -> Result<Held<Level>, ConfigError> {
        join(&self.0.disk, "disk", terms, || make(self.0.changes.clone()))
    }
}

fn join<T>(
    pool: &Mutex<Option<Pool<T>>>,
    what: &'static str,
    terms: Terms,
    make: impl FnOnce() -> T,
) -> Result<Held<T>, ConfigError> {
    let mut pool = lock(pool);
    let pool = pool.get_or_insert_with(|| Pool {
        terms,
        tier: Arc::new(Mutex::new(make())),
    });
    if pool.terms != terms {
        return Err(ConfigError::SharedOnOtherTerms {
            what,
            theirs: pool.terms.to_string(),
            own: terms.to_string(),
            hint: if pool.terms.shared.layout == terms.shared.layout {
                ""
            } else {
                ", the same kv_layout_id and tensor-parallel size"
            },
        });
    }
    Ok(Held::Shared(Arc::clone(&pool.tier)))
}

/// A rank that panics while it holds a tier leaves it as it was between two of its steps at worst.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A tier as one rank has it.
#[derive(Debug)]
pub(super) enum Held<T> {
    Own(Box<T>),
    Shared(Arc<Mutex<T>>),
}

impl<T> Held<T> {
    pub(super) fn get(&mut self) -> Guard<'_, T> {
        match self {
            Self::Own(tier) => Guard::Own(tier),
            Self::Shared(tier) => Guard::Shared(lock(tier)),
        }
    }

    pub(super) fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        match self {
            Self::Own(tier) => look(tier),
            Self::Shared(tier) => look(&lock(tier)),
        }
    }

    pub(super) fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }
}

/// A tier while one rank works on it.
pub(super) enum Guard<'a, T> {
    Own(&'a mut T),
    Shared(MutexGuard<'a, T>),
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Own(tier) => tier,
            Self::Shared(tier) => tier,
        }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match self {
            Self::Own(tier) => tier,
            Self::Shared(tier) => tier,
        }
    }
}
