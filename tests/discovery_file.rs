//! A file store as a fleet uses it: many leases at once, expiry in the background.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use ghostfleet::transport::discovery::{Discovery, DiscoveryConfig, DiscoveryError, FileOptions, Record, Renewal};

async fn connect(root: &std::path::Path, ttl: Duration) -> Discovery {
    let options = FileOptions {
        root: root.to_owned(),
        ttl,
    };
    Discovery::connect(&DiscoveryConfig::File(options))
        .await
        .expect("a writable directory")
}

fn records(worker: u32) -> Vec<Record> {
    ["v1/instances/", "v1/mdc/"]
        .map(|bucket| Record {
            key: format!("{bucket}n/c/e/{worker:x}"),
            value: "{}".into(),
        })
        .to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_come_live_and_go_one_by_one() {
    let root = tempfile::tempdir().unwrap();
    let discovery = connect(root.path(), Duration::from_secs(10)).await;
    let started = (0..64).map(|worker| {
        let discovery = discovery.clone();
        tokio::spawn(async move {
            let lease = discovery.open().await.unwrap();
            discovery.publish(&lease, &records(worker)).await.unwrap();
            let alive = discovery.renew(&lease).await.unwrap();
            assert_eq!(
                alive,
                Renewal::Alive {
                    ttl: Duration::from_secs(10)
                }
            );
            lease
        })
    });
    let mut leases = Vec::new();
    for started in started.collect::<Vec<_>>() {
        leases.push(started.await.unwrap());
    }
    assert_eq!(discovery.list("v1/").await.unwrap().len(), 128);
    assert_eq!(discovery.list("v1/mdc/").await.unwrap().len(), 64);

    discovery.close(leases.remove(0)).await.unwrap();
    let key = records(1)[0].key.clone();
    discovery.withdraw(&leases[0], &[key]).await.unwrap();
    assert_eq!(discovery.list("v1/instances/").await.unwrap().len(), 62);
    assert_eq!(discovery.list("v1/mdc/").await.unwrap().len(), 63);
    assert_eq!(
        discovery.renew(&leases[0]).await.unwrap(),
        Renewal::Alive {
            ttl: Duration::from_secs(10)
        }
    );
}

#[tokio::test]
async fn files_that_nobody_touches_expire_in_the_background() {
    let root = tempfile::tempdir().unwrap();
    let stale = root.path().join("v1/instances/stale");
    std::fs::create_dir_all(stale.parent().unwrap()).unwrap();
    std::fs::write(&stale, "{}").unwrap();
    let file = std::fs::File::options().write(true).open(&stale).unwrap();
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(11))
        .unwrap();

    let discovery = connect(root.path(), Duration::from_secs(10)).await;
    let lease = discovery.open().await.unwrap();
    discovery.publish(&lease, &records(1)).await.unwrap();
    // The store looks for expired files right at its start; nothing but the file itself tells of it.
    let gone = async {
        while stale.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.unwrap();
    assert_eq!(discovery.list("v1/").await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_second_store_on_the_same_directory_sees_the_records_and_cannot_renew_them() {
    let root = tempfile::tempdir().unwrap();
    let (one, two) = (
        connect(root.path(), Duration::from_secs(10)).await,
        connect(root.path(), Duration::from_secs(10)).await,
    );
    let lease = one.open().await.unwrap();
    one.publish(&lease, &records(7)).await.unwrap();
    assert_eq!(two.list("v1/").await.unwrap(), one.list("v1/").await.unwrap());
    assert!(matches!(two.renew(&lease).await, Err(DiscoveryError::ForeignLease)));
    assert!(matches!(
        two.publish(&lease, &records(7)).await,
        Err(DiscoveryError::ForeignLease)
    ));
    assert!(matches!(two.close(lease).await, Err(DiscoveryError::ForeignLease)));
}

#[tokio::test]
async fn a_time_to_live_below_a_second_is_refused() {
    let options = FileOptions {
        root: std::env::temp_dir().join("never-made"),
        ttl: Duration::from_millis(999),
    };
    let error = Discovery::connect(&DiscoveryConfig::File(options))
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("at least 1 s"), "{error}");
}
