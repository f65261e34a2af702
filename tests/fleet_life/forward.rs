//! What planners are told of forward passes.

use serde_json::Value;
use tokio::runtime::Builder;
use zeromq::{Socket, SocketRecv, SubSocket};

use crate::caller::{call, chat};
use crate::scene::{PATIENCE, Scene};

/// Address of the worker's channel for forward passes.
fn channel(scene: &Scene) -> Option<String> {
    let records = scene.records("v1/event_channels");
    let record = records
        .iter()
        .find(|record| record["topic"] == "forward-pass-metrics")?;
    Some(record["transport"]["config"]["endpoint"].as_str().unwrap().to_owned())
}

/// Payloads of messages until one fits.
fn until(scene: &Scene, fits: impl Fn(&Value) -> bool, mut meanwhile: impl FnMut(&Value)) -> Vec<Value> {
    let address = channel(scene).expect("a channel");
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut socket = SubSocket::new();
        socket.connect(&address).await.unwrap();
        socket.subscribe("forward-pass-metrics").await.unwrap();
        let mut seen = Vec::new();
        loop {
            let message = tokio::time::timeout(PATIENCE, socket.recv())
                .await
                .expect("in time")
                .unwrap();
            let frame = message.get(3).expect("four frames");
            let envelope: ghostfleet_envelope::Envelope = rmp_serde::from_slice(&frame[5..]).unwrap();
            assert_eq!(envelope.topic, "forward-pass-metrics");
            let payload: Value = rmp_serde::from_slice(&envelope.payload).unwrap();
            meanwhile(&payload);
            let done = fits(&payload);
            seen.push(payload);
            if done {
                return seen;
            }
        }
    })
}

/// The part of an envelope that these tests read.
mod ghostfleet_envelope {
    #[derive(serde::Deserialize)]
    pub(super) struct Envelope {
        pub(super) topic: String,
        pub(super) payload: Bytes,
    }

    pub(super) struct Bytes(Vec<u8>);

    impl std::ops::Deref for Bytes {
        type Target = [u8];
        fn deref(&self) -> &[u8] {
            &self.0
        }
    }

    impl<'de> serde::Deserialize<'de> for Bytes {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Visitor;
            impl serde::de::Visitor<'_> for Visitor {
                type Value = Bytes;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("bytes")
                }
                fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Bytes, E> {
                    Ok(Bytes(bytes.to_vec()))
                }
            }
            deserializer.deserialize_bytes(Visitor)
        }
    }
}

#[test]
fn nothing_is_told_unless_asked_for() {
    let scene = Scene::start(&["--speedup-ratio", "0"]);
    assert_eq!(channel(&scene), None);
}

#[test]
fn every_pass_is_told_and_an_idle_rank_sends_zeros() {
    let scene = Scene::start(&["--speedup-ratio", "0", "--forward-pass-metrics", "full"]);
    let mut asked = false;
    let prefill = |payload: &Value| payload["scheduled_requests"]["num_prefill_requests"].as_u64().unwrap();
    let decode = |payload: &Value| payload["scheduled_requests"]["num_decode_requests"].as_u64().unwrap();
    let idle = |payload: &Value| prefill(payload) + decode(payload) == 0;
    let seen_work = std::cell::Cell::new(false);
    let messages = until(
        &scene,
        |payload| seen_work.get() && idle(payload),
        |payload| {
            // The first heartbeat shows that the subscription has arrived.
            if !asked {
                asked = true;
                assert_eq!(payload["wall_time"], 0.0);
                let request = chat(&(0..10).collect::<Vec<u32>>(), 6);
                call(&scene.address(0), "a", &request).unwrap().finish().unwrap();
            }
            seen_work.set(seen_work.get() || !idle(payload));
        },
    );
    let counters: Vec<_> = messages
        .iter()
        .map(|payload| payload["counter_id"].as_u64().unwrap())
        .collect();
    assert!(counters.windows(2).all(|pair| pair[1] == pair[0] + 1), "{counters:?}");
    let instance = scene.worker(0).instance_id.to_string();
    assert!(
        messages
            .iter()
            .all(|payload| payload["worker_id"] == instance.as_str() && payload["version"] == 1)
    );
    let work: Vec<_> = messages.iter().filter(|payload| !idle(payload)).collect();
    // A pass for the prompt, which brings the first token, and five more.
    assert_eq!(work.len(), 6, "{messages:#?}");
    assert_eq!(
        (prefill(work[0]), &work[0]["scheduled_requests"]["sum_prefill_tokens"]),
        (1, &Value::from(10))
    );
    assert!(
        work[1..]
            .iter()
            .all(|payload| decode(payload) == 1 && prefill(payload) == 0)
    );
    scene.until_nothing_is_left();
}

#[test]
fn a_heartbeat_tells_a_busy_rank_once_a_second() {
    let scene = Scene::start(&["--forward-pass-metrics", "heartbeat"]);
    let mut answer = call(&scene.address(0), "a", &chat(&(0..10).collect::<Vec<u32>>(), 100_000)).unwrap();
    let busy = |payload: &Value| payload["scheduled_requests"]["num_decode_requests"] == 1;
    let messages = until(&scene, busy, |_| ());
    let last = messages.last().unwrap();
    assert!(last["wall_time"].as_f64().unwrap() > 0.0);
    let (told, passes) = (
        last["counter_id"].as_u64().unwrap(),
        scene.worker(0).ranks[0].passes_total,
    );
    assert!(told < passes, "{told} messages of {passes} passes");
    answer.say("kill");
    scene.until_nothing_is_left();
}
