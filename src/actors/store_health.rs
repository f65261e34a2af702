//! Whether the discovery store does what it is asked, put together from what every registrar meets: 256 of them report
//! one outage, and again now and then for as long as it lasts for any of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::transport::discovery::DiscoveryError;
use crate::transport::repeated::Repeated;

/// See the module. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct StoreHealth(Arc<Health>);

#[derive(Debug, Default)]
struct Health {
    outage: Mutex<Option<Outage>>,
    unsaid_goodbyes: AtomicUsize,
    said: Repeated,
}

/// A store that does not do what it is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// Since when.
    pub since: Instant,
    /// The last failure, with the way out of it.
    pub reason: String,
    /// Workers that meet it.
    pub workers: usize,
}

/// What one registrar tells of the store. Dropping it withdraws what it said.
#[derive(Debug)]
pub(super) struct Witness {
    health: StoreHealth,
    fails: bool,
}

impl StoreHealth {
    fn outage(&self) -> MutexGuard<'_, Option<Outage>> {
        self.0.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn witness(&self) -> Witness {
        Witness {
            health: self.clone(),
            fails: false,
        }
    }

    /// The outage, while there is one.
    pub fn trouble(&self) -> Option<Outage> {
        self.outage().clone()
    }

    /// Workers that left while the store could not be told: their records stay until their leases run out.
    pub fn unsaid_goodbyes(&self) -> usize {
        self.0.unsaid_goodbyes.load(Ordering::Relaxed)
    }
}

impl Witness {
    pub(super) fn failed(&mut self, error: &DiscoveryError) {
        let first = !std::mem::replace(&mut self.fails, true);
        let (workers, since) = {
            let mut outage = self.health.outage();
            let outage = outage.get_or_insert_with(|| Outage {
                since: Instant::now(),
                reason: String::new(),
                workers: 0,
            });
            outage.reason = error.to_string();
            outage.workers += usize::from(first);
            (outage.workers, outage.since)
        };
        if self.health.0.said.say().is_some() {
            tracing::warn!(
                %error,
                workers,
                lasts_s = since.elapsed().as_secs(),
                "discovery fails; what runs goes on, and discovery is tried again"
            );
        }
    }

    /// Whether it was the last that met the outage.
    fn withdraw(&mut self) -> Option<Outage> {
        if !std::mem::take(&mut self.fails) {
            return None;
        }
        let mut outage = self.health.outage();
        let left = outage.as_mut().map_or(0, |outage| {
            outage.workers = outage.workers.saturating_sub(1);
            outage.workers
        });
        if left > 0 { None } else { outage.take() }
    }

    /// The worker leaves, and its records stay.
    pub(super) fn goodbye_unsaid(&self) {
        self.health.0.unsaid_goodbyes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn worked(&mut self) {
        if let Some(outage) = self.withdraw() {
            self.health.0.said.forget();
            tracing::info!(lasted_s = outage.since.elapsed().as_secs(), "discovery works again");
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.withdraw();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_lasts_until_it_is_over_for_everybody_who_met_it() {
        let health = StoreHealth::default();
        let [mut one, mut other, mut lucky] = [0; 3].map(|_| health.witness());
        assert_eq!(health.trouble(), None);
        one.failed(&DiscoveryError::Closed);
        let first = health.trouble().expect("an outage");
        other.failed(&DiscoveryError::LeaseGone);
        other.failed(&DiscoveryError::LeaseGone);
        lucky.worked();
        let second = health.trouble().expect("the same outage");
        assert_eq!((second.since, second.workers), (first.since, 2));
        assert_eq!(second.reason, DiscoveryError::LeaseGone.to_string());
        one.worked();
        assert_eq!(health.trouble().map(|outage| outage.workers), Some(1));
        drop(other);
        assert_eq!(health.trouble(), None);
    }
}
