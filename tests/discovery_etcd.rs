//! An etcd store against a real etcd: lease life, bursts, outages. Needs `etcd` on the PATH.

#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ghostfleet::transport::discovery::{
    Discovery, DiscoveryConfig, DiscoveryError, EtcdOptions, Lease, Record, Renewal,
};

/// A server with its own data directory; killed, not stopped, at the end.
struct Server {
    child: Child,
    client_port: u16,
    peer_port: u16,
}

impl Server {
    fn start(data: &Path) -> Self {
        let [client_port, peer_port] = [(); 2].map(|()| free_port());
        Self {
            child: spawn(data, client_port, peer_port),
            client_port,
            peer_port,
        }
    }

    fn restart(&mut self, data: &Path) {
        self.kill();
        self.child = spawn(data, self.client_port, self.peer_port);
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn options(&self) -> EtcdOptions {
        EtcdOptions {
            endpoints: vec![format!("http://127.0.0.1:{}", self.client_port)],
            ..EtcdOptions::default()
        }
    }

    async fn connect(&self) -> Discovery {
        Discovery::connect(&DiscoveryConfig::Etcd(self.options()))
            .await
            .unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn spawn(data: &Path, client_port: u16, peer_port: u16) -> Child {
    let client = format!("http://127.0.0.1:{client_port}");
    let peer = format!("http://127.0.0.1:{peer_port}");
    Command::new("etcd")
        .args(["--log-level", "error", "--data-dir"])
        .arg(data)
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("these tests need the program `etcd` on the PATH (Debian and Ubuntu: package etcd-server)")
}

fn records(worker: u32) -> Vec<Record> {
    let key = |bucket: &str, rest: &str| format!("v1/{bucket}/{rest}{worker:x}");
    let mut records = vec![
        Record {
            key: key("instances", "n/c/e/"),
            value: r#"{"type":"Endpoint"}"#.into(),
        },
        Record {
            key: key("mdc", "n/c/e/"),
            value: "c".repeat(3000).into(),
        },
    ];
    for topic in 0..5 {
        records.push(Record {
            key: key("event_channels", &format!("t{topic}/")),
            value: "e".repeat(400).into(),
        });
    }
    records
}

async fn keys(discovery: &Discovery) -> Vec<String> {
    let records = discovery.list("v1/").await.unwrap();
    records.into_iter().map(|record| record.key).collect()
}

async fn register(discovery: &Discovery, worker: u32) -> Lease {
    let lease = discovery.open().await.unwrap();
    discovery.publish(&lease, &records(worker)).await.unwrap();
    lease
}

/// Repeats a renewal until the server answers again.
async fn renewed(discovery: &Discovery, lease: &Lease) -> Renewal {
    loop {
        match discovery.renew(lease).await {
            Ok(renewal) => return renewal,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    }
}

#[tokio::test]
#[ignore = "needs etcd-server: scripts/test"]
async fn records_are_published_listed_withdrawn_and_revoked_with_their_lease() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let discovery = server.connect().await;
    let lease = register(&discovery, 1).await;
    let other = register(&discovery, 2).await;
    assert_eq!(lease.ttl(), Duration::from_secs(10));

    let mut expected = [records(1), records(2)].concat();
    expected.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(discovery.list("v1/").await.unwrap(), expected);
    assert_eq!(discovery.list("v1/instances/").await.unwrap().len(), 2);

    let mut changed = records(1);
    changed[0].value = "changed".into();
    discovery.publish(&lease, &changed[..1]).await.unwrap();
    assert_eq!(discovery.list(&changed[0].key).await.unwrap(), changed[..1]);

    let withdrawn: Vec<String> = records(1)[..2].iter().map(|record| record.key.clone()).collect();
    discovery.withdraw(&lease, &withdrawn).await.unwrap();
    discovery.withdraw(&lease, &withdrawn).await.unwrap();
    assert_eq!(keys(&discovery).await.len(), 12);
    assert_eq!(
        discovery.renew(&lease).await.unwrap(),
        Renewal::Alive {
            ttl: Duration::from_secs(10)
        }
    );

    discovery.close(lease).await.unwrap();
    let left = keys(&discovery).await;
    let mut expected: Vec<String> = records(2).into_iter().map(|record| record.key).collect();
    expected.sort();
    assert_eq!(left, expected);
    discovery.close(other).await.unwrap();
    assert_eq!(keys(&discovery).await, [""; 0]);
}

#[tokio::test]
#[ignore = "needs etcd-server: scripts/test"]
async fn a_renewed_lease_outlives_one_that_is_not() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let options = EtcdOptions {
        ttl: Duration::from_secs(2),
        ..server.options()
    };
    let discovery = Discovery::connect(&DiscoveryConfig::Etcd(options)).await.unwrap();
    let kept = register(&discovery, 1).await;
    let dead = register(&discovery, 2).await;
    let dropped = register(&discovery, 3).await;
    drop(dropped);

    // The server's clock, not ours, decides when: renew one lease until it has deleted the keys of the others.
    let mut ticks = tokio::time::interval(kept.ttl() / 3);
    while keys(&discovery).await.len() > 7 {
        ticks.tick().await;
        assert_eq!(
            discovery.renew(&kept).await.unwrap(),
            Renewal::Alive { ttl: kept.ttl() }
        );
    }
    assert!(keys(&discovery).await.iter().all(|key| key.ends_with("/1")));

    assert_eq!(discovery.renew(&dead).await.unwrap(), Renewal::Lost);
    assert!(matches!(
        discovery.publish(&dead, &records(2)).await,
        Err(DiscoveryError::LeaseGone)
    ));
    assert_eq!(
        discovery.renew(&kept).await.unwrap(),
        Renewal::Alive { ttl: kept.ttl() }
    );
    // A store that renews nothing yet has to tell a lost lease from a failed stream.
    let idle = Discovery::connect(&DiscoveryConfig::Etcd(server.options()))
        .await
        .unwrap();
    assert_eq!(idle.renew(&dead).await.unwrap(), Renewal::Lost);
    assert_eq!(
        idle.renew(&kept).await.unwrap(),
        Renewal::Alive {
            ttl: Duration::from_secs(2)
        }
    );
    discovery.close(dead).await.unwrap();

    let again = register(&discovery, 2).await;
    assert_eq!(keys(&discovery).await.len(), 14);
    assert_eq!(
        discovery.renew(&again).await.unwrap(),
        Renewal::Alive { ttl: again.ttl() }
    );
}

#[tokio::test]
#[ignore = "needs etcd-server: scripts/test"]
async fn leases_survive_a_crash_of_the_server_that_keeps_its_data() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    // A short lease gives up on a dead server soon; the server restarts the time of the leases it finds in its data.
    let options = EtcdOptions {
        ttl: Duration::from_secs(4),
        ..server.options()
    };
    let discovery = Discovery::connect(&DiscoveryConfig::Etcd(options)).await.unwrap();
    let leases = [register(&discovery, 1).await, register(&discovery, 2).await];
    for lease in &leases {
        assert_eq!(renewed(&discovery, lease).await, Renewal::Alive { ttl: lease.ttl() });
    }

    server.kill();
    let error = discovery.renew(&leases[0]).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(
        error.to_string().contains(&format!("127.0.0.1:{}", server.client_port)),
        "{error}"
    );
    let error = discovery.publish(&leases[0], &records(1)).await.unwrap_err();
    assert!(error.is_transient(), "{error}");

    server.restart(data.path());
    for lease in &leases {
        assert_eq!(renewed(&discovery, lease).await, Renewal::Alive { ttl: lease.ttl() });
    }
    assert_eq!(keys(&discovery).await.len(), 14);
}

#[tokio::test]
#[ignore = "needs etcd-server: scripts/test"]
async fn leases_are_lost_with_the_data_of_the_server_and_can_be_opened_again() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let discovery = server.connect().await;
    let leases = [register(&discovery, 1).await, register(&discovery, 2).await];
    assert_eq!(
        renewed(&discovery, &leases[0]).await,
        Renewal::Alive { ttl: leases[0].ttl() }
    );

    let empty = tempfile::tempdir().unwrap();
    server.restart(empty.path());
    for lease in &leases {
        assert_eq!(renewed(&discovery, lease).await, Renewal::Lost);
    }
    assert_eq!(keys(&discovery).await, [""; 0]);
    let fresh = register(&discovery, 1).await;
    assert_eq!(keys(&discovery).await.len(), 7);
    assert_eq!(renewed(&discovery, &fresh).await, Renewal::Alive { ttl: fresh.ttl() });
}

#[tokio::test]
#[ignore = "needs etcd-server: scripts/test"]
async fn one_dead_endpoint_of_two_does_not_matter() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let mut options = server.options();
    options.endpoints.insert(0, format!("http://127.0.0.1:{}", free_port()));
    let discovery = Discovery::connect(&DiscoveryConfig::Etcd(options)).await.unwrap();
    for worker in 0..50 {
        let lease = register(&discovery, worker).await;
        assert_eq!(
            discovery.renew(&lease).await.unwrap(),
            Renewal::Alive { ttl: lease.ttl() }
        );
        discovery.close(lease).await.unwrap();
    }
}

#[tokio::test]
#[ignore = "needs etcd-server: scripts/test"]
async fn a_server_that_starts_late_is_waited_for() {
    let data = tempfile::tempdir().unwrap();
    let [client_port, peer_port] = [(); 2].map(|()| free_port());
    let options = EtcdOptions {
        endpoints: vec![format!("127.0.0.1:{client_port}")],
        ..EtcdOptions::default()
    };
    let connecting = tokio::spawn(async move { Discovery::connect(&DiscoveryConfig::Etcd(options)).await });
    tokio::task::yield_now().await;
    let _server = Server {
        child: spawn(data.path(), client_port, peer_port),
        client_port,
        peer_port,
    };
    let discovery = connecting.await.unwrap().unwrap();
    register(&discovery, 1).await;
}

#[tokio::test]
#[ignore = "needs etcd-server: scripts/test"]
async fn a_server_that_asks_for_a_password_gets_it_or_refuses_at_once() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    server.connect().await;
    let mut admin = etcd_client::Client::connect(&server.options().endpoints, None)
        .await
        .unwrap();
    admin.user_add("root", "right", None).await.unwrap();
    admin.user_grant_role("root", "root").await.unwrap();
    admin.auth_enable().await.unwrap();

    let with_password = |password: &str| {
        let user = Some(("root".to_owned(), password.to_owned()));
        DiscoveryConfig::Etcd(EtcdOptions {
            user,
            ..server.options()
        })
    };
    let discovery = Discovery::connect(&with_password("right")).await.unwrap();
    let lease = register(&discovery, 1).await;
    assert_eq!(
        discovery.renew(&lease).await.unwrap(),
        Renewal::Alive { ttl: lease.ttl() }
    );

    let error = Discovery::connect(&with_password("wrong")).await.unwrap_err();
    assert!(matches!(error, DiscoveryError::Refused { .. }), "{error:?}");
    let nobody = Discovery::connect(&DiscoveryConfig::Etcd(server.options()))
        .await
        .unwrap();
    let error = nobody.list("v1/").await.unwrap_err();
    assert!(matches!(error, DiscoveryError::Refused { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd-server: scripts/test"]
async fn a_fleet_of_1024_workers_registers_at_once_and_renews_on_one_stream() {
    const WORKERS: u32 = 1024;
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let options = EtcdOptions {
        ttl: Duration::from_secs(60),
        ..server.options()
    };
    let discovery = Discovery::connect(&DiscoveryConfig::Etcd(options)).await.unwrap();

    let started = Instant::now();
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let discovery = discovery.clone();
            tokio::spawn(async move { register(&discovery, worker).await })
        })
        .collect();
    let mut leases = Vec::new();
    for worker in workers {
        leases.push(worker.await.unwrap());
    }
    println!(
        "{WORKERS} workers with 7 records each registered in {:?}",
        started.elapsed()
    );
    let started = Instant::now();
    assert_eq!(keys(&discovery).await.len(), 7 * WORKERS as usize);
    println!("listed in {:?}", started.elapsed());

    let started = Instant::now();
    let renewals: Vec<_> = leases
        .into_iter()
        .map(|lease| {
            let discovery = discovery.clone();
            tokio::spawn(async move {
                assert_eq!(
                    discovery.renew(&lease).await.unwrap(),
                    Renewal::Alive { ttl: lease.ttl() }
                );
                lease
            })
        })
        .collect();
    let mut leases = Vec::new();
    for renewal in renewals {
        leases.push(renewal.await.unwrap());
    }
    println!("renewed in {:?}", started.elapsed());

    let started = Instant::now();
    let closing: Vec<_> = leases
        .into_iter()
        .map(|lease| {
            let discovery = discovery.clone();
            tokio::spawn(async move { discovery.close(lease).await.unwrap() })
        })
        .collect();
    for closed in closing {
        closed.await.unwrap();
    }
    println!("closed in {:?}", started.elapsed());
    assert_eq!(keys(&discovery).await, [""; 0]);
}

#[tokio::test]
async fn without_a_server_the_error_names_the_addresses_and_the_way_out() {
    let endpoints = vec![
        format!("http://127.0.0.1:{}", free_port()),
        format!("127.0.0.1:{}", free_port()),
    ];
    let options = EtcdOptions {
        endpoints: endpoints.clone(),
        connect_limit: Duration::from_secs(1),
        ..EtcdOptions::default()
    };
    let error = Discovery::connect(&DiscoveryConfig::Etcd(options))
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains(&endpoints.join(", ")), "{error}");
    for part in [
        "within 1 s",
        "refused",
        "start etcd",
        "ETCD_ENDPOINTS",
        "--discovery-backend file",
    ] {
        assert!(error.contains(part), "'{part}' is missing in: {error}");
    }
}

#[tokio::test]
async fn options_that_cannot_work_are_refused_at_once() {
    let good = EtcdOptions::default();
    for (options, part) in [
        (
            EtcdOptions {
                endpoints: vec![],
                ..good.clone()
            },
            "no etcd endpoint",
        ),
        (
            EtcdOptions {
                endpoints: vec!["https://x:2379".into()],
                ..good.clone()
            },
            "needs TLS",
        ),
        (
            EtcdOptions {
                endpoints: vec!["http://a b".into()],
                ..good.clone()
            },
            "invalid uri",
        ),
        (
            EtcdOptions {
                ttl: Duration::from_millis(1500),
                ..good.clone()
            },
            "1.5s",
        ),
        (
            EtcdOptions {
                ttl: Duration::ZERO,
                ..good
            },
            "0ns",
        ),
    ] {
        let error = Discovery::connect(&DiscoveryConfig::Etcd(options)).await.unwrap_err();
        assert!(matches!(error, DiscoveryError::Options(_)), "{error:?}");
        assert!(error.to_string().contains(part), "{error}");
    }
}
