//! A whole fleet, real schedulers and KV pools included, among hostile peers: it goes on serving, and afterwards no
//! stream is open, no sequence alive and no block referenced.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use ghostfleet::actors::registry::{InUse, WorkerState};
use ghostfleet::cluster::Cluster;
use ghostfleet::config::{Config, ConfigFile, Settings, layers};
use ghostfleet::transport::discovery::record::{EndpointInstance, INSTANCES, RequestAddress};
use ghostfleet::transport::discovery::{Discovery, DiscoveryConfig, FileOptions};
use ghostfleet::transport::request_plane::{Codec, control, two_part};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::scene::{Answer, Peer, ResponseServer, request_to};

/// Most open requests per worker.
const CAPACITY: u32 = 24;

/// Longest wait for the fleet to be empty.
const PATIENCE: Duration = Duration::from_secs(25);

/// An endpoint as discovery names it.
#[derive(Debug, Clone)]
struct Target {
    address: SocketAddr,
    path: String,
}

struct Fleet {
    cluster: Cluster,
    generate: Vec<Target>,
    recovery: Vec<Target>,
    _directory: tempfile::TempDir,
}

impl Fleet {
    /// Two workers with two ranks each, few KV blocks and fewer places in a batch than requests come.
    fn start(runtime: &tokio::runtime::Runtime) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("discovery");
        let text = format!(
            "model_path = 'config/tiny-model'\nnum_workers = 2\ndata_parallel_size = 2\nblock_size = 16\n\
             max_num_seqs = 4\nnum_gpu_blocks_override = 128\nmax_open_requests = {CAPACITY}\n\
             max_model_len = 1024\ndiscovery_backend = 'file'\nfile_kv = '{}'\nstagger_delay = 0.0\n",
            root.display()
        );
        let file = ConfigFile::parse(Path::new("test.toml"), &text).unwrap();
        let merged = layers::merge(&Settings::default(), &BTreeMap::new(), Some(&file)).unwrap();
        let cluster = Cluster::start(&Config::resolve(&merged, &BTreeMap::new()).unwrap()).unwrap();
        let options = FileOptions {
            root,
            ..FileOptions::default()
        };
        let records = runtime.block_on(async {
            let discovery = Discovery::connect(&DiscoveryConfig::File(options)).await.unwrap();
            discovery.list(INSTANCES).await.unwrap()
        });
        let mut fleet = Self {
            cluster,
            generate: Vec::new(),
            recovery: Vec::new(),
            _directory: directory,
        };
        for record in records {
            let endpoint = EndpointInstance::decode(&record.value).unwrap();
            let RequestAddress::Tcp(address) = endpoint.address else {
                panic!("{record:?}")
            };
            let (address, path) = address.split_once('/').unwrap();
            let target = Target {
                address: address.parse().unwrap(),
                path: path.to_owned(),
            };
            if endpoint.name.endpoint() == "generate" {
                fleet.generate.push(target);
            } else {
                fleet.recovery.push(target);
            }
        }
        assert_eq!((fleet.generate.len(), fleet.recovery.len()), (2, 4));
        fleet
    }

    /// Every worker streams to a well-behaved frontend.
    async fn serves(&self) {
        for target in &self.generate {
            let home = ResponseServer::start();
            assert_eq!(call(target, &home, &body(5)).await, "");
            home.accept().await.whole_answer(5).await;
        }
    }

    async fn settled(&self) {
        let started = Instant::now();
        loop {
            let snapshot = self.cluster.snapshot();
            let streams: u32 = snapshot
                .workers
                .iter()
                .flat_map(|worker| &worker.ranks)
                .map(|rank| rank.streams)
                .sum();
            if snapshot.in_use() == InUse::default() && streams == 0 {
                break;
            }
            assert!(
                started.elapsed() < PATIENCE,
                "left behind: {streams} streams, {:?}",
                snapshot.in_use()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for worker in self.cluster.snapshot().workers {
            assert_eq!(
                (worker.state, worker.restarts),
                (WorkerState::Ready, 0),
                "{}",
                worker.path
            );
            assert_eq!(
                worker.accepted_total,
                worker.completed_total + worker.failed_total + worker.cancelled_total,
                "{}",
                worker.path
            );
        }
    }
}

fn body(max_tokens: u32) -> Vec<u8> {
    let body = serde_json::json!({
        "token_ids": (0..100).collect::<Vec<u32>>(),
        "stop_conditions": {"max_tokens": max_tokens, "ignore_eos": true},
    });
    body.to_string().into_bytes()
}

/// Sends one request on a connection of its own; returns the ack.
async fn call(target: &Target, home: &ResponseServer, body: &[u8]) -> String {
    let mut peer = connect(target).await;
    peer.send(&request_to(&target.path, &home.control(), body)).await;
    peer.ack().await.unwrap()
}

async fn connect(target: &Target) -> Peer {
    Peer(TcpStream::connect(target.address).await.unwrap())
}

fn with_fleet(test: impl AsyncFnOnce(&Fleet)) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let fleet = Fleet::start(&runtime);
    runtime.block_on(async {
        fleet.serves().await;
        // Its stream is counted until both ends are closed.
        fleet.settled().await;
        test(&fleet).await;
        fleet.settled().await;
        fleet.serves().await;
        fleet.settled().await;
    });
}

#[test]
fn requests_of_vanished_frontends_leave_the_batch_the_queue_and_the_kv_cache() {
    with_fleet(async |fleet| {
        let mut answers: Vec<Answer> = Vec::new();
        for target in &fleet.generate {
            let home = ResponseServer::start();
            let mut peer = connect(target).await;
            peer.send(&request_to(&target.path, &home.control(), &body(900)).repeat(40))
                .await;
            let mut acks = Vec::new();
            for _ in 0..40 {
                acks.push(peer.ack().await.unwrap());
            }
            let accepted = usize::try_from(CAPACITY).unwrap();
            assert!(acks[..accepted].iter().all(String::is_empty), "{acks:?}");
            assert!(
                acks[accepted..]
                    .iter()
                    .all(|ack| ack == "Server overloaded: worker at capacity"),
                "{acks:?}"
            );
            for _ in 0..accepted {
                let mut answer = home.accept().await;
                for _ in 0..2 {
                    answer.frame().await.unwrap();
                }
                answers.push(answer);
            }
        }
        // Some generate and hold blocks, the others wait.
        let in_use = fleet.cluster.snapshot().in_use();
        assert!(in_use.sequences > 0 && in_use.active_blocks > 0, "{in_use:?}");
        assert_eq!(in_use.open_streams, u64::from(CAPACITY) * 2);
        for (index, mut answer) in answers.into_iter().enumerate() {
            let mut kill = Vec::new();
            two_part::write(&mut kill, b"\"kill\"", b"");
            match index % 5 {
                0 => answer.reset(),
                1 => drop(answer),
                2 => answer.0.shutdown().await.unwrap(),
                3 => answer.0.write_all(&kill).await.unwrap(),
                _ => answer.0.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap(),
            }
        }
    });
}

#[test]
fn rubbish_on_every_endpoint_costs_only_those_who_send_it() {
    with_fleet(async |fleet| {
        let patient = ResponseServer::start();
        for target in &fleet.generate {
            assert_eq!(call(target, &patient, &body(60)).await, "");
        }
        let nested = |opening: &[u8]| [&[0x82, 0xa1, b'x'], &opening.repeat(100_000)[..]].concat();
        for target in fleet.generate.iter().chain(&fleet.recovery) {
            let mut absurd = connect(target).await;
            absurd.send(&[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]).await;
            assert!(absurd.ack().await.unwrap().contains("exceeds the limit"));
            assert_eq!(absurd.ack().await, None);

            let whole = request_to(&target.path, b"{}", &body(5));
            for cut in (1..whole.len()).step_by(29) {
                connect(target).await.send(&whole[..cut]).await;
            }

            let nobody = control::encode("request-1", Codec::Json, ([127, 0, 0, 1], 1).into(), "subject-1");
            let mut peer = connect(target).await;
            peer.send(&request_to(&target.path, &nobody, &body(5))).await;
            assert_eq!(peer.ack().await.as_deref(), Some(""));

            let home = ResponseServer::start();
            let msgpack = control::encode("request-1", Codec::Msgpack, home.address(), "subject-1");
            for rubbish in [
                vec![],
                vec![0xc1; 1000],
                nested(&[0x91]),
                nested(&[0x81, 0xa1, b'x']),
                nested(&[0xdc, 9, 9]),
            ] {
                peer.send(&request_to(&target.path, &msgpack, &rubbish)).await;
                assert_eq!(peer.ack().await.as_deref(), Some(""));
                let mut answer = home.accept().await;
                answer.ends_properly().await;
            }
        }
        for _ in &fleet.generate {
            patient.accept().await.whole_answer(60).await;
        }
    });
}
