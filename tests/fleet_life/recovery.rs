//! Routers that start at once ask every rank for its cache at once.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ghostfleet::transport::request_plane::tcp::frame;
use ghostfleet::transport::request_plane::{Codec, control, two_part};
use serde_json::{Value, json};

use crate::caller::{call, chat};
use crate::scene::{PATIENCE, Scene};

const WORKERS: usize = 64;
const RANKS: usize = 4;

/// One rank's recovery endpoint.
struct Source {
    address: String,
    worker: u64,
    rank: u64,
}

fn sources(scene: &Scene) -> Vec<Source> {
    let records = scene.records("v1/event_sources");
    let sources = records.iter().map(|record| Source {
        address: record["metadata"]["recovery_target"]["transport"]["tcp"]
            .as_str()
            .unwrap()
            .to_owned(),
        worker: record["metadata"]["worker"]["worker_id"].as_u64().unwrap(),
        rank: record["metadata"]["worker"]["dp_rank"].as_u64().unwrap(),
    });
    sources.collect()
}

/// Sends one query, the answer to be sent to `home`, and waits for the acknowledgement.
fn query(source: &Source, home: SocketAddr) {
    let (host, path) = source.address.split_once('/').unwrap();
    let mut connection = TcpStream::connect(host).unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    let body = json!({
        "worker_id": source.worker, "dp_rank": source.rank, "start_event_id": null, "end_event_id": null,
        "supports_tree_dump_failed": true, "kind": "recovery",
    });
    let mut payload = Vec::new();
    let control = control::encode("q", Codec::Msgpack, home, "subject");
    two_part::write(&mut payload, &control, &rmp_serde::to_vec_named(&body).unwrap());
    let mut bytes = Vec::new();
    frame::encode(&mut bytes, path, "{}", &payload);
    connection.write_all(&bytes).unwrap();
    let mut length = [0; 4];
    connection.read_exact(&mut length).unwrap();
    assert_eq!(u32::from_be_bytes(length), 0, "the query is taken");
}

/// Reads one answer to its sentinel.
fn read_dump(mut socket: TcpStream) -> Value {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut dump = Value::Null;
    loop {
        let mut prefix = [0; two_part::PREFIX_BYTES];
        socket.read_exact(&mut prefix).unwrap();
        let prefix = two_part::decode_prefix(&prefix, 1 << 24).unwrap();
        let mut header = vec![0; usize::try_from(prefix.header).unwrap()];
        socket.read_exact(&mut header).unwrap();
        let mut data = vec![0; usize::try_from(prefix.data).unwrap()];
        socket.read_exact(&mut data).unwrap();
        if header == b"\"sentinel\"" {
            return dump;
        }
        if let Ok(item) = rmp_serde::from_slice::<Value>(&data)
            && item["data"]["TreeDump"].is_object()
        {
            dump = item["data"]["TreeDump"].clone();
        }
    }
}

/// A router that asks all ranks, then reads all answers; the blocks it learns of.
fn router(sources: &[Source]) -> usize {
    let home = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = home.local_addr().unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let answers = (0..WORKERS * RANKS).map(|_| read_dump(home.accept().unwrap().0));
            answers
                .map(|dump| {
                    let events = dump["events"].as_array().expect("a dump").clone();
                    let blocks = events.iter().map(|event| &event["event"]["data"]["stored"]["blocks"]);
                    blocks.map(|blocks| blocks.as_array().unwrap().len()).sum::<usize>()
                })
                .sum()
        });
        for source in sources {
            query(source, address);
        }
        reader.join().unwrap()
    })
}

#[test]
fn two_routers_learn_256_caches_while_others_never_read() {
    let (workers, ranks) = (WORKERS.to_string(), RANKS.to_string());
    let scene = Scene::start(&[
        "--speedup-ratio",
        "0",
        "--stagger-delay",
        "0",
        "--num-workers",
        &workers,
        "--data-parallel-size",
        &ranks,
    ]);
    for worker in 0..WORKERS {
        let address = scene.address(worker);
        for rank in 0..RANKS {
            let mut request = chat(&(0..10).collect::<Vec<u32>>(), 1);
            request["routing"] = json!({ "dp_rank": rank });
            call(&address, &format!("{worker}-{rank}"), &request)
                .unwrap()
                .finish()
                .unwrap();
        }
    }
    let sources = sources(&scene);
    assert_eq!(sources.len(), WORKERS * RANKS);
    // A caller that takes connections and nothing else, more of them than there are sockets for answers.
    let deaf = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let deaf_address = deaf.local_addr().unwrap();
    let taken = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&taken);
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in deaf.incoming().flatten() {
            kept.push(stream);
            counter.fetch_add(1, Ordering::SeqCst);
        }
    });
    for source in sources.iter().chain(&sources[..44]) {
        query(source, deaf_address);
    }
    scene.until("the deaf caller has every socket", |_| {
        taken.load(Ordering::SeqCst) >= 256
    });
    let learned = std::thread::scope(|scope| {
        let routers = [(); 2].map(|()| scope.spawn(|| router(&sources)));
        // Meanwhile ranks go on serving.
        let mut answer = call(&scene.address(0), "meanwhile", &chat(&[1, 2, 3], 50)).unwrap();
        assert_eq!(answer.finish().unwrap().tokens.len(), 50);
        routers.map(|router| router.join().unwrap())
    });
    let blocks = 2 * WORKERS * RANKS;
    assert!(
        learned.iter().all(|learned| (blocks..=blocks + 13).contains(learned)),
        "{learned:?}"
    );
    let recovery = scene
        .cluster
        .snapshot()
        .workers
        .into_iter()
        .map(|worker| worker.recovery);
    let (answered, built) = recovery.fold((0, 0), |(answered, built), counts| {
        (answered + counts.answered_total, built + counts.dumps_built_total)
    });
    assert!(answered >= 2 * 256 + 256, "{answered}");
    // One dump per cache, however many ask; w0/r0 changed once in between.
    assert!((256..=270).contains(&built), "{built}");
}
