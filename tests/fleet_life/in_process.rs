//! `mem` discovery: a consumer in the same process follows a fleet through its map, with nothing on any wire but the
//! requests themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use ghostfleet::actors::death::Death;
use ghostfleet::actors::registry::InUse;
use ghostfleet::cluster::Cluster;
use ghostfleet::serve::config_from;
use ghostfleet::transport::discovery::mem::{Change, Watch};
use ghostfleet::transport::discovery::record::{EndpointInstance, INSTANCES, RequestAddress};
use ghostfleet::transport::discovery::{DiscoveryConfig, MemStore};

use crate::caller::{call, chat};
use crate::scene::PATIENCE;

/// A fleet of three on this map.
fn fleet(store: &MemStore) -> Cluster {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/tiny-model");
    let fixed = ["--model-path", model.to_str().unwrap(), "--discovery-backend", "mem"];
    let flags = fixed.into_iter().chain(["--num-workers", "3", "--speedup-ratio", "0"]);
    let mut config = config_from(flags, &BTreeMap::new()).unwrap();
    config.discovery = DiscoveryConfig::Mem(store.clone());
    Cluster::start(&config).unwrap()
}

/// What a consumer believes: addresses of `generate` by key.
#[derive(Default)]
struct Consumer {
    known: BTreeMap<String, (u64, String)>,
}

impl Consumer {
    /// Follows until it knows exactly these instances.
    async fn until(&mut self, watch: &mut Watch, expected: &BTreeSet<u64>) {
        let follow = async {
            while self.ids() != *expected {
                for change in watch.next().await {
                    match change {
                        Change::Put(record) => {
                            let endpoint = EndpointInstance::decode(&record.value).unwrap();
                            let RequestAddress::Tcp(address) = endpoint.address else {
                                panic!("{record:?}")
                            };
                            if endpoint.name.endpoint() == "generate" {
                                self.known.insert(record.key, (endpoint.instance.0, address));
                            }
                        }
                        Change::Delete(key) => drop(self.known.remove(&key)),
                    }
                }
            }
        };
        let followed = tokio::time::timeout(PATIENCE, follow).await;
        assert!(followed.is_ok(), "knows {:?}, expected {expected:?}", self.ids());
    }

    fn ids(&self) -> BTreeSet<u64> {
        self.known.values().map(|(id, _)| *id).collect()
    }

    fn address(&self, id: u64) -> &str {
        let found = self.known.values().find(|(known, _)| *known == id);
        &found.unwrap().1
    }
}

#[test]
fn a_consumer_in_the_process_sees_workers_come_serve_crash_drain_and_return() {
    let store = MemStore::new(Duration::from_secs(1));
    let mut watch = store.watch(INSTANCES);
    let cluster = fleet(&store);
    let ids = || -> Vec<u64> {
        let workers = cluster.snapshot().workers;
        workers.iter().map(|worker| worker.instance_id).collect()
    };
    let first = ids();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut consumer = Consumer::default();
    let mut know = |ids: &[u64]| {
        runtime.block_on(consumer.until(&mut watch, &ids.iter().copied().collect()));
        for id in ids {
            let mut answer = call(consumer.address(*id), "r", &chat(&[1, 2, 3], 2)).unwrap();
            assert_eq!(answer.finish().unwrap().tokens.len(), 2);
        }
    };
    know(&first);
    cluster.kill("w0", Death::Crash).unwrap();
    // Only the end of its lease tells.
    know(&first[1..]);
    cluster.drain("w1").unwrap();
    know(&first[2..]);
    let begun = std::time::Instant::now();
    while cluster.restart("w0", false).is_err() {
        assert!(begun.elapsed() < PATIENCE, "the dead worker cannot be restarted");
        std::thread::sleep(Duration::from_millis(5));
    }
    let begun = std::time::Instant::now();
    while ids()[0] == first[0] {
        assert!(begun.elapsed() < PATIENCE, "no new incarnation");
        std::thread::sleep(Duration::from_millis(5));
    }
    know(&[ids()[0], first[2]]);
    assert_eq!(cluster.stop().in_use(), InUse::default());
}

#[test]
fn fleets_on_maps_of_their_own_do_not_see_each_other_and_those_on_one_do() {
    let (one, other) = (MemStore::default(), MemStore::default());
    let fleets = [fleet(&one), fleet(&one), fleet(&other)];
    let generate = |store: &MemStore| {
        let records = store.list(INSTANCES);
        let endpoints = records
            .iter()
            .map(|record| EndpointInstance::decode(&record.value).unwrap());
        endpoints
            .filter(|endpoint| endpoint.name.endpoint() == "generate")
            .count()
    };
    assert_eq!((generate(&one), generate(&other)), (6, 3));
    for fleet in fleets {
        fleet.stop();
    }
    assert_eq!((generate(&one), generate(&other)), (0, 0));
}
