//! A fleet with a map for discovery, so that nothing but the plane under test is on a wire.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use ghostfleet::actors::registry::InUse;
use ghostfleet::cluster::Cluster;
use ghostfleet::serve::config_from;
use ghostfleet::transport::discovery::record::{EndpointInstance, INSTANCES, RequestAddress};
use ghostfleet::transport::discovery::{DiscoveryConfig, MemStore};

/// How long anything may take before it counts as never.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

/// Variables of a fleet.
pub(crate) type Variables<'a> = &'a [(&'a str, &'a Path)];

pub(crate) struct Fleet {
    pub(crate) cluster: Cluster,
    store: MemStore,
}

impl Fleet {
    /// A fleet of one worker without modelled delays, with these further flags and variables.
    pub(crate) fn start(flags: &[&str], variables: Variables<'_>) -> Result<Self, String> {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/tiny-model");
        let fixed = ["--model-path", model.to_str().unwrap(), "--discovery-backend", "mem"];
        let fast = ["--block-size", "4", "--speedup-ratio", "0"];
        let flags = fixed.iter().chain(&fast).chain(flags).copied();
        let mut config = config_from(flags, &environment(variables)).map_err(|error| error.to_string())?;
        let store = MemStore::default();
        config.discovery = DiscoveryConfig::Mem(store.clone());
        let cluster = Cluster::start(&config).map_err(|error| error.to_string())?;
        Ok(Self { cluster, store })
    }

    /// Address and path of the worker's `generate`.
    pub(crate) fn address(&self) -> String {
        let records = self.store.list(INSTANCES);
        let endpoints = records
            .iter()
            .map(|record| EndpointInstance::decode(&record.value).unwrap());
        let generate = endpoints
            .into_iter()
            .find(|endpoint| endpoint.name.endpoint() == "generate");
        match generate.unwrap().address {
            RequestAddress::Tcp(address) | RequestAddress::Nats(address) => address,
        }
    }

    /// Waits until a condition holds.
    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < PATIENCE, "never happened: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.until("nothing in use", |fleet| {
                fleet.cluster.snapshot().in_use() == InUse::default()
            });
        }
    }
}

pub(crate) fn environment(variables: Variables<'_>) -> BTreeMap<String, String> {
    let pairs = variables.iter();
    pairs
        .map(|(name, value)| ((*name).to_owned(), value.display().to_string()))
        .collect()
}
