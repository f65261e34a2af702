//! Fleets on NATS: requests, acks, service questions, events, a server that goes away. A raw client stands in for the
//! frontend.

#![allow(clippy::unwrap_used)]

#[path = "../fleet_life/cable.rs"]
#[allow(dead_code)]
mod cable;
mod durable_faults;
mod outage;
mod scene;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use ghostfleet::actors::death::Death;
use ghostfleet::cluster::Cluster;
use ghostfleet::faults::Fault;
use ghostfleet::serve::config_from;
use ghostfleet::transport::discovery::record::{EVENT_CHANNELS, EndpointInstance, INSTANCES, RequestAddress};
use ghostfleet::transport::discovery::{DiscoveryConfig, MemStore};
use ghostfleet::transport::event_plane::envelope;
use ghostfleet::transport::nats::{NatsAuth, NatsConnector, NatsOptions, NatsOutbox, OutboxLimits};
use ghostfleet::transport::request_plane::{Codec, two_part};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::scene::{PATIENCE, Scene, Server, call, chat, fleet, tokens};

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn requests_are_acked_and_answered_in_both_codecs() {
    for connections in ["shared", "per-worker"] {
        let flags = ["--num-workers", "2", "--speedup-ratio", "0", "--request-codec", "json"];
        let scene = Scene::start(&[&flags[..], &["--nats-connections", connections]].concat());
        assert!(
            scene
                .endpoints("generate")
                .iter()
                .all(|endpoint| endpoint.codec == Some(Codec::Json))
        );
        for worker in 0..2 {
            let subject = scene.subject(worker);
            let id = scene.cluster.snapshot().workers[worker].instance_id;
            assert_eq!(subject, format!("dynamo_backend.generate-{id:x}"));
            for codec in [Codec::Json, Codec::Msgpack] {
                let answer = call(&scene.client, &subject, codec, chat(&[1, 2, 3], 4));
                let items = scene.runtime.block_on(answer).unwrap();
                assert_eq!(tokens(&items), 4);
                assert_eq!(items.last().unwrap()["complete_final"], true);
            }
        }
    }
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn a_request_that_cannot_be_served_is_refused_in_the_words_of_the_tcp_plane() {
    let scene = Scene::start(&[]);
    let subject = scene.subject(0);
    let ask = |payload: Vec<u8>| {
        let reply = scene
            .runtime
            .block_on(scene.client.request(subject.clone(), payload.into()));
        String::from_utf8(reply.unwrap().payload.to_vec()).unwrap()
    };
    let quic = br#"{"id":"a","payload_codec":"json","connection_info":{"transport":"quic-response","info":"{}"}}"#;
    let mut payload = Vec::new();
    two_part::write(&mut payload, quic, b"{}");
    assert_eq!(
        ask(payload),
        "Server unavailable: response plane quic not supported; use tcp (DYN_RESPONSE_PLANE)"
    );
    let truncated = ask(b"short".to_vec());
    assert!(
        truncated.starts_with("Server unavailable: two-part frame is truncated"),
        "{truncated}"
    );
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn a_crashed_worker_has_no_responders_and_a_drained_one_leaves_in_order() {
    for connections in ["shared", "per-worker"] {
        let scene = Scene::start(&[
            "--num-workers",
            "3",
            "--speedup-ratio",
            "0",
            "--nats-connections",
            connections,
        ]);
        let subjects: Vec<String> = (0..3).map(|worker| scene.subject(worker)).collect();
        scene.cluster.kill("w0", Death::Crash).unwrap();
        scene.cluster.drain("w1").unwrap();
        let ask = |subject: &str| {
            scene
                .runtime
                .block_on(call(&scene.client, subject, Codec::Json, chat(&[1], 1)))
        };
        scene.until("the crashed worker is gone", |_| {
            ask(&subjects[0]).is_err_and(|error| error.contains("no responders"))
        });
        scene.until("the drained worker is gone", |_| {
            ask(&subjects[1]).is_err_and(|error| error.contains("no responders"))
        });
        assert_eq!(tokens(&ask(&subjects[2]).unwrap()), 1);
    }
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn each_worker_answers_service_questions() {
    let scene = Scene::start(&["--num-workers", "3", "--speedup-ratio", "0"]);
    let ask = |subject: &str, count: usize| -> Vec<Value> {
        scene.runtime.block_on(async {
            let inbox = scene.client.new_inbox();
            let mut answers = scene.client.subscribe(inbox.clone()).await.unwrap();
            scene
                .client
                .publish_with_reply(subject.to_owned(), inbox, Bytes::new())
                .await
                .unwrap();
            let mut read = Vec::new();
            while read.len() < count {
                let answer = tokio::time::timeout(PATIENCE, answers.next()).await.unwrap().unwrap();
                read.push(serde_json::from_slice(&answer.payload).unwrap());
            }
            read
        })
    };
    let pings = ask("$SRV.PING", 3);
    let ids: BTreeSet<&str> = pings.iter().map(|ping| ping["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 3);
    assert!(pings.iter().all(|ping| ping["name"] == "dynamo_backend"));
    // `generate` and the recovery endpoint.
    for info in ask("$SRV.INFO.dynamo_backend", 3) {
        assert_eq!(info["endpoints"].as_array().unwrap().len(), 2, "{info}");
    }
    let subject = scene.subject(0);
    let called = call(&scene.client, &subject, Codec::Json, chat(&[1], 1));
    scene.runtime.block_on(called).unwrap();
    let stats = ask("$SRV.STATS", 3);
    let mut endpoints = stats.iter().flat_map(|stats| stats["endpoints"].as_array().unwrap());
    let generate = endpoints
        .find(|endpoint| endpoint["subject"] == subject.as_str())
        .unwrap();
    assert_eq!(generate["num_requests"], 1);
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn a_server_that_goes_away_costs_nothing_within_the_bound() {
    let mut scene = Scene::start(&["--speedup-ratio", "0"]);
    let subject = scene.subject(0);
    assert_eq!(scene.store.list(EVENT_CHANNELS).len(), 2, "KV events and load figures");
    scene.server.kill();
    scene.server.restart();
    let mut answered = None;
    scene.until("requests are served again", |scene| {
        let asked = call(
            &scene.client,
            &subject,
            Codec::Json,
            chat(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 4),
        );
        answered = scene.runtime.block_on(asked).ok();
        answered.is_some()
    });
    assert_eq!(tokens(&answered.unwrap()), 4);
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn an_outbox_keeps_what_it_may_while_the_server_is_away_and_counts_the_rest() {
    let mut server = Server::start(&[]);
    let runtime = Runtime::new().unwrap();
    let options = NatsOptions::new(&server.url(), NatsAuth::None, PATIENCE).unwrap();
    let connector = NatsConnector::new(options);
    let link = runtime.block_on(connector.connect()).unwrap();
    let limits = OutboxLimits {
        messages: 1000,
        ..OutboxLimits::WORKER
    };
    let outbox = NatsOutbox::start(link, limits, runtime.handle());
    server.kill();
    let body = |number: u32| Bytes::copy_from_slice(&number.to_be_bytes());
    // Far more than the bound and everything in front of the socket can hold.
    for number in 0..20_000 {
        outbox.send(&"s".into(), body(number));
    }
    let stats = outbox.stats();
    assert!(stats.waiting <= 1000 && stats.dropped > 10_000, "{stats:?}");
    server.restart();
    runtime.block_on(async {
        let client = async_nats::connect(server.url()).await.unwrap();
        let mut subscriber = client.subscribe("s").await.unwrap();
        client.flush().await.unwrap();
        // What waited comes when the outbox has found the server again, which may be before we listen; a last message
        // comes for certain.
        let mut last = None;
        let begun = Instant::now();
        while last != Some(u32::MAX) {
            assert!(
                begun.elapsed() < PATIENCE,
                "nothing comes any more: {:?}",
                outbox.stats()
            );
            outbox.send(&"s".into(), body(u32::MAX));
            if let Ok(Some(message)) = tokio::time::timeout(Duration::from_millis(100), subscriber.next()).await {
                let number = u32::from_be_bytes(message.payload[..].try_into().unwrap());
                assert!(last.is_none_or(|last| last < number), "{number} after {last:?}");
                last = Some(number);
            }
        }
    });
    assert_eq!(outbox.stats().refused, 0);
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn events_are_envelopes_on_the_subject_of_their_topic() {
    let scene = Scene::start(&["--speedup-ratio", "0"]);
    let subject = scene.subject(0);
    scene.runtime.block_on(async {
        let all = "namespace.dynamo.component.backend.endpoint.generate.kv-events";
        let mut events = scene.client.subscribe(all).await.unwrap();
        scene.client.flush().await.unwrap();
        let prompt: Vec<u32> = (0..9).collect();
        call(&scene.client, &subject, Codec::Json, chat(&prompt, 1))
            .await
            .unwrap();
        let event = tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap();
        assert!(event.headers.is_none() && event.reply.is_none());
        let envelope = envelope::decode(&event.payload).unwrap();
        assert_eq!((envelope.topic, envelope.sequence), ("kv-events", 0));
        let batch: Value = Codec::Msgpack.decode(envelope.payload).unwrap();
        assert_eq!(batch[0]["event"]["event_id"], 1);
        assert_eq!(
            batch[0]["event"]["data"]["stored"]["blocks"].as_array().unwrap().len(),
            2
        );
    });
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn groups_of_one_fleet_have_planes_and_codecs_of_their_own() {
    let server = Server::start(&[]);
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "nats_server = \"{}\"\n\
         [[group]]\nname = \"a\"\nendpoint = \"dyn://a.backend.generate\"\n\
         [[group]]\nname = \"b\"\nendpoint = \"dyn://b.backend.generate\"\nrequest_plane = \"nats\"\n\
         event_plane = \"nats\"\nrequest_codec = \"json\"\n",
        server.url()
    );
    std::fs::write(file.path(), text).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/tiny-model");
    let args = [
        "--config",
        file.path().to_str().unwrap(),
        "--model-path",
        model.to_str().unwrap(),
    ];
    let args = args
        .into_iter()
        .chain(["--discovery-backend", "mem", "--speedup-ratio", "0"]);
    let mut config = config_from(args, &BTreeMap::new()).unwrap();
    let store = MemStore::default();
    config.discovery = DiscoveryConfig::Mem(store.clone());
    let cluster = Cluster::start(&config).unwrap();
    let records = store.list(INSTANCES);
    let endpoints: Vec<_> = records
        .iter()
        .map(|record| EndpointInstance::decode(&record.value).unwrap())
        .collect();
    // `generate` and the recovery endpoint of each.
    assert_eq!(endpoints.len(), 4);
    for endpoint in &endpoints {
        let expected = match endpoint.name.namespace() {
            "a" => (true, Some(Codec::Msgpack)),
            _ => (false, Some(Codec::Json)),
        };
        assert_eq!(
            (matches!(endpoint.address, RequestAddress::Tcp(_)), endpoint.codec),
            expected
        );
    }
    let runtime = Runtime::new().unwrap();
    let client = runtime.block_on(async_nats::connect(server.url())).unwrap();
    let id = cluster.snapshot().workers[1].instance_id;
    let subject = format!("b_backend.generate-{id:x}");
    let asked = call(&client, &subject, Codec::Json, chat(&[1], 2));
    assert_eq!(tokens(&runtime.block_on(asked).unwrap()), 2);
    cluster.stop();
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn signing_in_works_and_a_wrong_password_is_told_at_once() {
    let server = Server::start(&["--user", "u", "--pass", "right"]);
    let variables = |password: &str| {
        let pairs = [("NATS_AUTH_USERNAME", "u"), ("NATS_AUTH_PASSWORD", password)];
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    };
    let cluster = fleet(&server.url(), &[], &MemStore::default(), &variables("right")).unwrap();
    cluster.stop();
    let refused = fleet(&server.url(), &[], &MemStore::default(), &variables("wrong"))
        .err()
        .unwrap();
    assert!(
        refused.contains("NATS_AUTH_PASSWORD") && !refused.contains("wrong"),
        "{refused}"
    );
}

#[test]
fn a_server_that_is_not_there_is_an_error_that_says_where_it_was_looked_for() {
    let port = std::net::TcpListener::bind(("127.0.0.1", 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let url = format!("nats://127.0.0.1:{port}");
    let flags = ["--nats-connect-timeout", "0.3"];
    let error = fleet(&url, &flags, &MemStore::default(), &BTreeMap::new())
        .err()
        .unwrap();
    assert!(
        error.contains(&url) && error.contains("0.3 s") && error.contains("NATS_SERVER"),
        "{error}"
    );
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn forward_passes_and_load_figures_travel_by_nats_too() {
    let scene = Scene::start(&["--speedup-ratio", "0", "--forward-pass-metrics", "full"]);
    let subject = scene.subject(0);
    let instance = scene.cluster.snapshot().workers[0].instance_id;
    let topics = ["forward-pass-metrics", "kv_metrics"];
    let channels = scene.store.list(EVENT_CHANNELS);
    for topic in topics {
        let of_topic = |key: &str| key.contains(&format!("/topic/{topic}/"));
        assert_eq!(
            channels.iter().filter(|record| of_topic(&record.key)).count(),
            1,
            "{topic}"
        );
    }
    scene.runtime.block_on(async {
        let scope = "namespace.dynamo.component.backend.endpoint.generate";
        let mut passes = scene.client.subscribe(format!("{scope}.{}", topics[0])).await.unwrap();
        let mut loads = scene.client.subscribe(format!("{scope}.{}", topics[1])).await.unwrap();
        scene.client.flush().await.unwrap();
        // More passes than the rank runs at one go: blocks are seen in use in between.
        call(&scene.client, &subject, Codec::Json, chat(&[7; 9], 60))
            .await
            .unwrap();
        // Heartbeats of the idle rank may come first.
        let pass: Value = loop {
            let message = tokio::time::timeout(PATIENCE, passes.next()).await.unwrap().unwrap();
            let envelope = envelope::decode(&message.payload).unwrap();
            assert_eq!(envelope.topic, topics[0]);
            let pass: Value = Codec::Msgpack.decode(envelope.payload).unwrap();
            if pass["scheduled_requests"]["num_prefill_requests"] == 1 {
                break pass;
            }
        };
        assert_eq!(pass["worker_id"], instance.to_string());
        assert_eq!(pass["scheduled_requests"]["sum_prefill_tokens"], 9);
        let load = tokio::time::timeout(PATIENCE, loads.next()).await.unwrap().unwrap();
        let envelope = envelope::decode(&load.payload).unwrap();
        let load: Value = Codec::Msgpack.decode(envelope.payload).unwrap();
        assert_eq!((&load["worker_id"], &load["dp_rank"]), (&json!(instance), &json!(0)));
        assert!(load["kv_used_blocks"].is_u64());
    });
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn faults_of_events_and_requests_act_on_nats_too() {
    let scene = Scene::start(&["--speedup-ratio", "0"]);
    let mut heard = scene.runtime.block_on(async {
        let heard = scene
            .client
            .subscribe("namespace.dynamo.component.backend.endpoint.generate.kv-events")
            .await;
        scene.client.flush().await.unwrap();
        heard.unwrap()
    });
    let only = |line: &str| {
        let fault = line.parse::<Fault>().unwrap();
        scene.cluster.change_faults(None, vec![fault]).unwrap();
    };
    let subject = scene.subject(0);
    let ask = |n: u32| {
        let answer = call(&scene.client, &subject, Codec::Json, chat(&[n; 64], 1));
        scene
            .runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(1), answer).await })
    };
    let mut soon = || -> Option<Vec<u64>> {
        let next = scene
            .runtime
            .block_on(async { tokio::time::timeout(Duration::from_millis(300), heard.next()).await });
        let message = next.ok()??;
        let envelope = envelope::decode(&message.payload).unwrap();
        let events: Vec<Value> = rmp_serde::from_slice(envelope.payload).unwrap();
        Some(
            events
                .iter()
                .map(|event| event["event"]["event_id"].as_u64().unwrap())
                .collect(),
        )
    };
    assert!(ask(1).unwrap().is_ok());
    let before = *soon().unwrap().last().unwrap();
    only("w0 events.drop");
    assert!(ask(2).unwrap().is_ok());
    assert_eq!(soon(), None);
    only("w0 events.duplicate copies=1");
    assert!(ask(3).unwrap().is_ok());
    let (one, two) = (soon().unwrap(), soon().unwrap());
    assert_eq!((one[0], &one), (before + 2, &two), "what was lost leaves a gap");
    only("w0 silent");
    assert!(ask(4).unwrap().is_ok());
    assert_eq!(soon(), None);
    // There is no connection to reset: the call disappears.
    for line in ["w0 request.black_hole", "w0 request.reset_peer"] {
        only(line);
        assert!(ask(5).is_err(), "{line}");
    }
    only("w0 response.limit_data bytes=10");
    let cut = scene.runtime.block_on(async {
        tokio::spawn({
            let (client, subject) = (scene.client.clone(), subject.clone());
            async move {
                call(&client, &subject, Codec::Json, chat(&[6; 64], 1))
                    .await
                    .map(|items| items.len())
            }
        })
        .await
    });
    assert!(cut.is_err(), "the answer breaks off: {cut:?}");
}
