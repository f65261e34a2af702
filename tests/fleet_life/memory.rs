//! Discovery inside the process: fleets and a consumer that share a map.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use ghostfleet::actors::death::Death;
use ghostfleet::cluster::Cluster;
use ghostfleet::serve::config_from;
use ghostfleet::transport::discovery::mem::{Change, Watch};
use ghostfleet::transport::discovery::record::{EndpointInstance, RequestAddress};
use ghostfleet::transport::discovery::{DiscoveryConfig, MemStore};

use crate::caller::{call, chat};
use crate::scene::PATIENCE;

fn fleet(store: &MemStore, workers: u32) -> Cluster {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/tiny-model");
    let workers = workers.to_string();
    let args = [
        "--model-path",
        model.to_str().unwrap(),
        "--discovery-backend",
        "mem",
        "--block-size",
        "4",
        "--speedup-ratio",
        "0",
        "--num-workers",
        &workers,
    ];
    let mut config = config_from(args, &BTreeMap::new()).unwrap();
    assert_eq!(config.discovery, DiscoveryConfig::Mem(MemStore::of_process()));
    config.discovery = DiscoveryConfig::Mem(store.clone());
    Cluster::start(&config).unwrap()
}

/// Follows `generate` instances until there are `count`.
async fn follow(watch: &mut Watch, seen: &mut BTreeMap<String, String>, count: usize) {
    while seen.len() != count {
        let changes = tokio::time::timeout(PATIENCE, watch.next()).await;
        for change in changes.expect("a change comes in time") {
            match change {
                Change::Put(record) => {
                    let instance = EndpointInstance::decode(&record.value).unwrap();
                    let RequestAddress::Tcp(address) = instance.address else {
                        panic!("not a TCP worker");
                    };
                    seen.insert(record.key, address);
                }
                Change::Delete(key) => {
                    seen.remove(&key);
                }
            }
        }
    }
}

#[test]
fn a_consumer_sees_the_workers_of_two_fleets_come_die_and_leave() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let store = MemStore::new(Duration::from_secs(1));
    let mut watch = store.watch("v1/instances/dynamo/backend/generate/");
    let mut seen = BTreeMap::new();
    let (first, second) = (fleet(&store, 2), fleet(&store, 1));
    runtime.block_on(follow(&mut watch, &mut seen, 3));
    for (number, address) in seen.values().enumerate() {
        let mut answer = call(address, &number.to_string(), &chat(&[1, 2, 3, 4, 5], 3)).unwrap();
        assert_eq!(answer.finish().unwrap().tokens.len(), 3);
    }
    first.kill("w0", Death::Crash).unwrap();
    runtime.block_on(follow(&mut watch, &mut seen, 2));
    second.stop();
    runtime.block_on(follow(&mut watch, &mut seen, 1));
    first.stop();
    runtime.block_on(follow(&mut watch, &mut seen, 0));
    assert_eq!(store.list(""), []);
}
