//! The event stream of the engines themselves, read as a router outside Dynamo reads it.

use std::collections::BTreeMap;
use std::time::Duration;

use ghostfleet::actors::death::Death;
use ghostfleet::block_hash::hash_blocks;
use ghostfleet::types::HashSalt;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use crate::caller::{call, chat};
use crate::scene::{PATIENCE, Scene};

pub(crate) use crate::ports::free_ports;

const BLOCK_SIZE: usize = 4;

/// A fleet of one worker with native ports, and its first two ports.
fn start(flags: &[&str]) -> (Scene, u16, u16) {
    let (events, replay) = (free_ports(), free_ports());
    let (events_text, replay_text) = (events.to_string(), replay.to_string());
    let own = [
        "--speedup-ratio",
        "0",
        "--zmq-kv-events-ports",
        &events_text,
        "--zmq-replay-ports",
        &replay_text,
    ];
    (Scene::start(&[&own[..], flags].concat()), events, replay)
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn within<T>(runtime: &Runtime, work: impl Future<Output = T>) -> T {
    let bounded = async { tokio::time::timeout(PATIENCE, work).await };
    runtime.block_on(bounded).expect("it happens in time")
}

fn ask(scene: &Scene, id: &str, prompt: &[u32], tokens: u32) {
    call(&scene.address(0), id, &chat(prompt, tokens))
        .unwrap()
        .finish()
        .unwrap();
}

/// Replays everything from `start`: sequence number, topic (if framed) and batch of each message.
fn replay(runtime: &Runtime, port: u16, start: u64) -> Vec<(u64, Option<Vec<u8>>, Value)> {
    within(runtime, async {
        let mut dealer = DealerSocket::new();
        dealer.connect(&format!("tcp://127.0.0.1:{port}")).await.unwrap();
        let mut request = ZmqMessage::from(Vec::new());
        request.push_back(start.to_be_bytes().to_vec().into());
        dealer.send(request).await.unwrap();
        let mut messages = Vec::new();
        loop {
            let frames: Vec<_> = dealer.recv().await.unwrap().into_vec();
            let [.., sequence, batch] = &frames[..] else {
                panic!("{frames:?}")
            };
            assert!(frames[0].is_empty());
            let sequence = u64::from_be_bytes(sequence[..].try_into().unwrap());
            if sequence == u64::MAX {
                return messages;
            }
            let topic = (frames.len() == 4).then(|| frames[1].to_vec());
            messages.push((sequence, topic, rmp_serde::from_slice(batch).unwrap()));
        }
    })
}

/// Blocks that a reader of these batches believes in: hash and tokens. Copies are counted.
fn believed(batches: &[(u64, Option<Vec<u8>>, Value)]) -> BTreeMap<u64, (Vec<u32>, u32)> {
    let mut blocks: BTreeMap<u64, (Vec<u32>, u32)> = BTreeMap::new();
    for event in batches.iter().flat_map(|(_, _, batch)| batch[1].as_array().unwrap()) {
        let hashes = event["block_hashes"].as_array().into_iter().flatten();
        match event["type"].as_str().unwrap() {
            "BlockStored" => {
                let tokens: Vec<u32> = serde_json::from_value(event["token_ids"].clone()).unwrap();
                let parent = event["parent_block_hash"].as_u64();
                assert!(parent.is_none_or(|parent| blocks.contains_key(&parent)), "{event}");
                for (hash, tokens) in hashes.zip(tokens.chunks(BLOCK_SIZE)) {
                    let block = blocks.entry(hash.as_u64().unwrap()).or_insert((tokens.to_vec(), 0));
                    assert_eq!(block.0, tokens, "one hash, one content");
                    block.1 += 1;
                }
            }
            "BlockRemoved" => {
                for hash in hashes {
                    let hash = hash.as_u64().unwrap();
                    let block = blocks.get_mut(&hash).expect("only what was stored is removed");
                    block.1 -= 1;
                    if block.1 == 0 {
                        blocks.remove(&hash);
                    }
                }
            }
            _ => blocks.clear(),
        }
    }
    blocks
}

/// What a rank really has in its cache: hash of each block.
fn truth(scene: &Scene, rank: &str) -> Vec<u64> {
    let mut hashes: Vec<u64> = scene
        .cluster
        .cached_blocks(rank)
        .unwrap()
        .into_iter()
        .flatten()
        .map(|(_, block)| block.block_hash.0)
        .collect();
    hashes.sort_unstable();
    hashes
}

fn assert_believed(scene: &Scene, runtime: &Runtime, port: u16) {
    // Events of the last pass may still be on their way to the stream.
    scene.until("the stream tells the rank's cache", |scene| {
        let believed = believed(&replay(runtime, port, 0));
        believed.keys().copied().eq(truth(scene, "w0/r0"))
    });
}

#[test]
fn a_stream_tells_the_cache_with_its_tokens_over_store_evict_and_clear() {
    let (scene, _, port) = start(&["--num-gpu-blocks-override", "9"]);
    let runtime = runtime();
    let prompt: Vec<u32> = (100..110).collect();
    ask(&scene, "a", &prompt, 7);
    assert_believed(&scene, &runtime, port);
    let batches = replay(&runtime, port, 0);
    let numbers: Vec<_> = batches.iter().map(|(sequence, ..)| *sequence).collect();
    assert_eq!(numbers, (0..batches.len() as u64).collect::<Vec<_>>());
    assert!(batches.iter().all(|(_, topic, _)| topic.as_deref() == Some(b"")));
    let first = &batches[0].2[1][0];
    assert_eq!(first["token_ids"], serde_json::json!(&prompt[..8]));
    assert_eq!(
        first["block_hashes"],
        serde_json::json!(
            hash_blocks(&prompt, BLOCK_SIZE, &HashSalt::default(), false)
                .iter()
                .map(|block| block.block_hash.0)
                .collect::<Vec<_>>()
        )
    );
    // Generated blocks tell generated tokens: their hashes chain up to the prompt's.
    let blocks = believed(&batches);
    assert_eq!(blocks.len(), 4);
    let last = blocks
        .iter()
        .find(|(_, (tokens, _))| tokens[0] > 109 || tokens[0] < 100);
    assert!(last.is_some(), "{blocks:?}");
    // 8 usable blocks: the next prompts push the first one out.
    for round in 0..3_u32 {
        let other: Vec<u32> = (200 + 50 * round..218 + 50 * round).collect();
        ask(&scene, &format!("b{round}"), &other, 3);
    }
    assert_believed(&scene, &runtime, port);
    let removed = |batches: &[(u64, Option<Vec<u8>>, Value)]| {
        let kinds = batches
            .iter()
            .flat_map(|(_, _, batch)| batch[1].as_array().unwrap().clone());
        kinds.filter(|event| event["type"] == "BlockRemoved").count()
    };
    assert!(removed(&replay(&runtime, port, 0)) >= 4);
    assert!(scene.cluster.clear_cache("w0").unwrap() > 0);
    scene.until("the clearing is told", |_| {
        believed(&replay(&runtime, port, 0)).is_empty()
    });
    assert_eq!(truth(&scene, "w0/r0"), [0_u64; 0]);
    ask(&scene, "c", &prompt, 2);
    assert_believed(&scene, &runtime, port);
}

#[test]
fn a_killed_stream_or_rank_starts_again_from_the_true_cache() {
    let (scene, _, port) = start(&[]);
    let runtime = runtime();
    ask(&scene, "a", &(0..40).collect::<Vec<u32>>(), 3);
    assert_believed(&scene, &runtime, port);
    assert_eq!(truth(&scene, "w0/r0").len(), 10);
    for death in [Death::Crash, Death::Panic] {
        let told = replay(&runtime, port, 0).len() as u64;
        scene.cluster.kill("w0/r0/native", death).unwrap();
        scene.until("the new stream goes on with a clear", |_| {
            let more = replay(&runtime, port, told);
            let first = more.first();
            first.is_some_and(|(number, _, batch)| *number == told && batch[1][0]["type"] == "AllBlocksCleared")
        });
        assert_believed(&scene, &runtime, port);
    }
    scene.cluster.kill("w0/r0", Death::Crash).unwrap();
    scene.until("the empty cache of the new rank is told", |_| {
        believed(&replay(&runtime, port, 0)).is_empty()
    });
    scene.until("the rank serves again", |scene| truth_of_living(scene).is_some());
    ask(&scene, "b", &(0..40).collect::<Vec<u32>>(), 3);
    assert_believed(&scene, &runtime, port);
}

fn truth_of_living(scene: &Scene) -> Option<usize> {
    scene.cluster.cached_blocks("w0/r0").ok().map(|ranks| ranks.len())
}

#[test]
fn subscribers_hear_each_rank_on_its_own_port_under_the_topic_asked_for() {
    let flags = [
        "--data-parallel-size",
        "2",
        "--zmq-kv-events-topic",
        "kv@{worker}@{rank}@{model}",
        "--zmq-kv-events-format",
        "array",
        "--zmq-replay-frames",
        "4",
    ];
    let (scene, events, port) = start(&flags);
    let runtime = runtime();
    let mut subscribers: Vec<SubSocket> = within(&runtime, async {
        let mut sockets = Vec::new();
        for rank in 0..2 {
            let mut socket = SubSocket::new();
            socket
                .connect(&format!("tcp://127.0.0.1:{}", events + rank))
                .await
                .unwrap();
            socket.subscribe("kv@").await.unwrap();
            sockets.push(socket);
        }
        sockets
    });
    for (rank, socket) in subscribers.iter_mut().enumerate() {
        // A PUB socket drops what nobody has subscribed to yet, so ask until it is heard.
        let mut asked = 0_u32;
        let frames = loop {
            let mut request = chat(&(asked..asked + 8).collect::<Vec<u32>>(), 1);
            request["routing"] = serde_json::json!({ "dp_rank": rank });
            let mut answer = call(&scene.address(0), &format!("{rank}-{asked}"), &request).unwrap();
            answer.finish().unwrap();
            asked += 1;
            let heard =
                runtime.block_on(async { tokio::time::timeout(Duration::from_millis(100), socket.recv()).await });
            if let Ok(message) = heard {
                break message.unwrap().into_vec();
            }
            assert!(asked < 100, "rank {rank} is never heard");
        };
        assert_eq!(frames.len(), 3);
        assert_eq!(frames[0], format!("kv@w0@{rank}@tiny").as_bytes());
        let batch: Value = rmp_serde::from_slice(&frames[2]).unwrap();
        assert_eq!(
            (&batch[1][0][0], &batch[2]),
            (&Value::from("BlockStored"), &Value::from(rank))
        );
        let base = port + u16::try_from(rank).unwrap();
        let replayed = replay(&runtime, base, 0);
        assert!(replayed.iter().all(|(_, topic, _)| topic.is_none()));
        let sequence = u64::from_be_bytes(frames[1][..].try_into().unwrap());
        assert!(
            replayed
                .iter()
                .any(|(number, _, told)| *number == sequence && *told == batch)
        );
    }
}

#[test]
fn a_stream_may_connect_to_a_reader_that_listens_and_finds_it_again() {
    let runtime = runtime();
    let address = format!("tcp://127.0.0.1:{}", free_ports());
    let port = address.rsplit(':').next().unwrap().to_owned();
    let replay_port = free_ports();
    let replay_text = replay_port.to_string();
    let scene = Scene::start(&[
        "--speedup-ratio",
        "0",
        "--zmq-kv-events-ports",
        &port,
        "--zmq-kv-events-mode",
        "connect",
        "--zmq-replay-ports",
        &replay_text,
    ]);
    let mut asked = 0_u32;
    let mut next = None;
    // The reader comes after the stream, and once more after it has gone.
    for _ in 0..2 {
        let mut reader = within(&runtime, async {
            let mut socket = SubSocket::new();
            socket.bind(&address).await.unwrap();
            socket.subscribe("").await.unwrap();
            socket
        });
        let frames = loop {
            ask(
                &scene,
                &asked.to_string(),
                &(asked * 8..asked * 8 + 8).collect::<Vec<u32>>(),
                1,
            );
            asked += 1;
            let heard =
                runtime.block_on(async { tokio::time::timeout(Duration::from_millis(100), reader.recv()).await });
            if let Ok(message) = heard {
                break message.unwrap().into_vec();
            }
            assert!(asked < 400, "the stream never connects");
        };
        let sequence = u64::from_be_bytes(frames[1][..].try_into().unwrap());
        assert!(next.is_none_or(|next| sequence >= next), "its numbers go on");
        next = Some(sequence + 1);
        let batch: Value = rmp_serde::from_slice(&frames[2]).unwrap();
        assert_eq!(batch[1][0]["type"], "BlockStored");
        let closing = reader.close();
        assert!(within(&runtime, closing).is_empty(), "the reader goes in good order");
    }
    // What nobody heard is replayed.
    assert_believed(&scene, &runtime, replay_port);
}

#[test]
fn an_sglang_engine_speaks_as_sglang_does() {
    let (scene, _, port) = start(&["--engine-type", "sglang"]);
    let runtime = runtime();
    let prompt: Vec<u32> = (100..110).collect();
    ask(&scene, "a", &prompt, 3);
    scene.until("the prompt is told", |_| replay(&runtime, port, 0).len() >= 2);
    let batches = replay(&runtime, port, 0);
    assert_eq!(
        batches[0].2[1][0],
        serde_json::json!(["AllBlocksCleared"]),
        "it begins with a clear"
    );
    let stored = &batches[1].2[1][0];
    assert_eq!(stored.as_array().unwrap().len(), 7);
    assert_eq!(
        (&stored[0], &stored[2], &stored[6]),
        (&"BlockStored".into(), &Value::Null, &"GPU".into())
    );
    assert_eq!((&stored[3], &stored[4]), (&serde_json::json!(&prompt[..8]), &4.into()));
    let hashes: Vec<_> = hash_blocks(&prompt, BLOCK_SIZE, &HashSalt::default(), false)
        .iter()
        .map(|block| block.block_hash.0.cast_signed())
        .collect();
    assert_eq!(stored[1], serde_json::json!(hashes));
}

#[test]
fn groups_of_one_fleet_tell_their_events_each_in_its_own_form_and_way() {
    let broker = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let ports: [u16; 4] = std::array::from_fn(|_| free_ports());
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "speedup_ratio = 0\nzmq_broker_url = 'xsub=tcp://{},xpub=tcp://127.0.0.1:1'\n\
         [[group]]\nendpoint = 'dyn://old.backend.generate'\nzmq_kv_events_ports = {}\nzmq_replay_ports = {}\n\
         zmq_kv_events_format = 'array'\nzmq_replay_frames = 4\n\
         [[group]]\nendpoint = 'dyn://new.backend.generate'\nzmq_kv_events_ports = {}\nzmq_replay_ports = {}\n\
         zmq_kv_events_topic = 'kv@{{worker}}'\nzmq_broker_url = ''\nforward_pass_metrics = 'full'\n",
        broker.local_addr().unwrap(),
        ports[0],
        ports[1],
        ports[2],
        ports[3],
    );
    std::fs::write(file.path(), text).unwrap();
    let scene = Scene::start(&["--config", file.path().to_str().unwrap()]);
    let runtime = runtime();
    for worker in 0..2 {
        call(&scene.address(worker), "a", &chat(&(100..110).collect::<Vec<_>>(), 1))
            .unwrap()
            .finish()
            .unwrap();
    }
    let first_of = |port| {
        let mut first = None;
        scene.until("the stream has a batch", |_| {
            first = replay(&runtime, port, 0).into_iter().next();
            first.is_some()
        });
        let (_, topic, batch) = first.unwrap();
        (topic, batch[1][0].clone())
    };
    let (topic, event) = first_of(ports[1]);
    assert_eq!((topic, &event[0]), (None, &Value::from("BlockStored")), "{event}");
    let (topic, event) = first_of(ports[3]);
    assert_eq!(topic.as_deref(), Some(&b"kv@w1"[..]));
    assert_eq!(event["type"], "BlockStored", "{event}");
    // The first group speaks through the broker, the second one through sockets that routers find in discovery.
    broker.accept().unwrap();
    let channels = scene.records("v1/event_channels");
    assert!(
        channels
            .iter()
            .all(|channel| channel["scope"].to_string().contains("\"new\"")),
        "{channels:?}"
    );
    let topics: Vec<_> = channels
        .iter()
        .map(|channel| channel["topic"].as_str().unwrap())
        .collect();
    assert!(
        topics.contains(&"kv-events") && topics.contains(&"forward-pass-metrics"),
        "{topics:?}"
    );
}
