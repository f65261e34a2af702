//! A subscriber that does not read costs itself its messages, and nobody else anything.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ghostfleet::transport::event_plane::envelope;
use serde_json::Value;
use tokio::net::TcpSocket;
use tokio::runtime::{Builder, Runtime};
use zeromq::{Socket, SocketRecv, SubSocket};

use crate::caller::{call, chat};
use crate::scene::{PATIENCE, Scene};

/// Enough for more bytes of events than a subscriber's queue and the kernel's buffers hold.
const REQUESTS: u32 = 120;
const PROMPT_TOKENS: u32 = 16_000;

/// Where a rank's KV events are published.
fn events_address(scene: &Scene) -> String {
    let records = scene.records("v1/event_channels");
    let record = records.iter().find(|record| record["topic"] == "kv-events").unwrap();
    record["transport"]["config"]["endpoint"].as_str().unwrap().to_owned()
}

/// A connection that subscribes to everything and then does nothing.
fn stalled(runtime: &Runtime, address: &str) -> TcpStream {
    let address = address.strip_prefix("tcp://").unwrap().parse().unwrap();
    let stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.connect(address).await.unwrap()
    });
    let mut stream = stream.into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).unwrap();
    stream
        .write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB\x00\x01\x01")
        .unwrap();
    // The publisher's own greeting and READY show that it has read ours.
    let mut hello = [0; 64 + 2];
    stream.read_exact(&mut hello).unwrap();
    stream
}

/// Has a worker publish a lot; passes that it has run then.
fn load(scene: &Scene) -> u64 {
    let address = scene.address(0);
    for number in 0..REQUESTS {
        let first = number * PROMPT_TOKENS;
        let prompt: Vec<u32> = (first..first + PROMPT_TOKENS).collect();
        let outcome = call(&address, &number.to_string(), &chat(&prompt, 1))
            .unwrap()
            .finish()
            .unwrap();
        assert_eq!(outcome.tokens.len(), 1);
    }
    scene.until_nothing_is_left();
    scene.worker(0).ranks[0].passes_total
}

/// Counter of the fleet's metrics page; 0 when it is not there.
fn counter(scene: &Scene, name: &str) -> u64 {
    let address = scene.cluster.facts().status.unwrap();
    let mut answer = ureq::get(format!("http://{address}/metrics")).call().unwrap();
    let page = answer.body_mut().read_to_string().unwrap();
    let lines = page.lines().filter(|line| line.starts_with(name));
    lines
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
        .sum()
}

#[test]
fn a_slow_subscriber_slows_no_pass_and_takes_nothing_from_others() {
    let flags = ["--speedup-ratio", "0", "--system-port", "0"];
    let undisturbed = load(&Scene::start(&flags));

    let scene = Scene::start(&flags);
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let address = events_address(&scene);
    let stalled = stalled(&runtime, &address);
    let mut reader = runtime.block_on(async {
        let mut socket = SubSocket::new();
        socket.connect(&address).await.unwrap();
        socket.subscribe("kv-events").await.unwrap();
        socket
    });
    // Both subscriptions have arrived when the reader hears of a request of its own.
    let first = runtime.block_on(async {
        for number in 0_u32.. {
            let request = chat(&[2_000_000_000 + number; 8], 1);
            call(&scene.address(0), &format!("hello-{number}"), &request)
                .unwrap()
                .finish()
                .unwrap();
            let heard = tokio::time::timeout(std::time::Duration::from_millis(100), reader.recv()).await;
            if let Ok(message) = heard {
                return last_id(&message.unwrap().into_vec());
            }
        }
        unreachable!("the loop ends with a message")
    });
    let before = scene.worker(0).ranks.remove(0);
    let last = Arc::new(AtomicU64::new(first));
    let seen = Arc::clone(&last);
    let reading = runtime.spawn(async move {
        loop {
            for id in ids(&reader.recv().await.unwrap().into_vec()) {
                assert_eq!(id, seen.load(Ordering::SeqCst) + 1, "nothing is missing");
                seen.store(id, Ordering::SeqCst);
            }
        }
    });
    let passes = load(&scene);
    scene.until("the reader has everything", |scene| {
        assert!(!reading.is_finished(), "the reader has found a gap");
        let published = scene.worker(0).ranks[0].kv_events_total;
        published > u64::from(REQUESTS) && last.load(Ordering::SeqCst) == published
    });
    assert!(
        counter(&scene, "ghostfleet_event_messages_dropped_total") > 0,
        "the stalled one has lost messages"
    );
    assert!(scene.cluster.settle_events().dropped > 0, "and the summary will say so");
    assert_eq!(
        counter(&scene, "ghostfleet_kv_event_batches_lost_total"),
        0,
        "the rank waited for nobody"
    );
    assert_eq!(passes - before.passes_total, undisturbed);
    drop(stalled);
}

/// Event ids of a message, in order.
fn ids<T: AsRef<[u8]>>(frames: &[T]) -> Vec<u64> {
    let envelope = envelope::decode(&frames[3].as_ref()[5..]).unwrap();
    let batch: Value = rmp_serde::from_slice(envelope.payload).unwrap();
    let events = batch.as_array().unwrap().iter();
    events
        .map(|event| event["event"]["event_id"].as_u64().unwrap())
        .collect()
}

fn last_id<T: AsRef<[u8]>>(frames: &[T]) -> u64 {
    ids(frames).last().copied().unwrap()
}
