//! Faults on the other planes: the engines' native streams, brokers, lower tiers, the HTTP port.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ghostfleet::transport::event_plane::envelope;
use serde_json::Value;
use tokio::runtime::Builder;
use zeromq::{Socket, SocketRecv, SubSocket};

use crate::admin::Admin;
use crate::caller::{call, chat};
use crate::ear::ask;
use crate::ports::free_ports;
use crate::scene::PATIENCE;

/// A subscriber on a thread of its own; hears the frames of every message.
struct Frames(Receiver<Vec<Vec<u8>>>);

impl Frames {
    /// Connects to a publisher, or has publishers connect to it.
    fn new(address: String, binds: bool) -> Self {
        let (heard, frames) = channel();
        std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut socket = SubSocket::new();
                if binds {
                    socket.bind(&address).await.unwrap();
                } else {
                    socket.connect(&address).await.unwrap();
                }
                socket.subscribe("").await.unwrap();
                // Ends with the publisher's socket, or when nobody wants to hear more.
                while let Ok(message) = socket.recv().await {
                    let frames = message.into_vec().iter().map(|frame| frame.to_vec()).collect();
                    if heard.send(frames).is_err() {
                        return;
                    }
                }
            });
        });
        Self(frames)
    }

    fn next(&self) -> Vec<Vec<u8>> {
        self.0.recv_timeout(PATIENCE).expect("a message")
    }

    fn soon(&self) -> Option<Vec<Vec<u8>>> {
        self.0.recv_timeout(Duration::from_millis(300)).ok()
    }

    /// Asks until something is heard, then until nothing is.
    fn wake(&self, admin: &Admin) {
        for n in 1.. {
            ask(admin, 1_000 + n);
            if self.soon().is_some() {
                break;
            }
            assert!(n < 100, "nothing is heard");
        }
        while self.soon().is_some() {}
    }
}

/// Number and content of a native batch.
fn native(frames: &[Vec<u8>]) -> (u64, Option<Value>) {
    let number = u64::from_be_bytes(frames[1].as_slice().try_into().unwrap());
    (number, rmp_serde::from_slice(&frames[2]).ok())
}

#[test]
fn faults_of_events_act_on_native_streams_too() {
    let port = free_ports();
    let admin = Admin::start(&["--speedup-ratio", "0", "--zmq-kv-events-ports", &port.to_string()]);
    let ear = Frames::new(format!("tcp://127.0.0.1:{port}"), false);
    ear.wake(&admin);
    let heard = |n: u32| {
        ask(&admin, n);
        native(&ear.next())
    };
    let under = |line: &str, n: u32| {
        let id = admin.fault(line);
        let heard = heard(n);
        admin.delete(&format!("/v1/faults/f{id}"));
        while ear.soon().is_some() {}
        heard
    };
    let (first, truth) = heard(1);
    let truth = truth.unwrap();
    assert_eq!(truth[1][0]["block_hashes"].as_array().unwrap().len(), 2);
    // A lost batch leaves a gap in numbers, a silent publisher none.
    let id = admin.fault("w0 events.drop");
    ask(&admin, 2);
    assert_eq!(ear.soon(), None);
    admin.delete(&format!("/v1/faults/f{id}"));
    assert_eq!(heard(3).0, first + 2);
    let id = admin.fault("w0 silent");
    ask(&admin, 4);
    assert_eq!(ear.soon(), None);
    admin.delete(&format!("/v1/faults/f{id}"));
    assert_eq!(heard(5).0, first + 3);
    assert_eq!(under("w0 gap ids=5", 6).0, first + 9);
    // What it says is changed.
    let (_, wrong) = under("w0 wrong_rank rank=7", 7);
    assert_eq!(wrong.unwrap()[2], 7);
    let (_, wrong) = under("w0 wrong_block_size factor=2", 8);
    let wrong = wrong.unwrap();
    let halves = wrong[1][0]["block_hashes"].as_array().unwrap().len();
    assert_eq!((halves, &wrong[1][0]["block_size"]), (4, &2.into()));
    let (_, wrong) = under("w0 duplicate_hash", 9);
    let hashes = wrong.unwrap()[1][0]["block_hashes"].clone();
    assert_eq!((hashes.as_array().unwrap().len(), &hashes[0]), (4, &hashes[1]));
    let (_, wrong) = under("w0 wrong_hash", 10);
    let wrong = wrong.unwrap()[1][0]["block_hashes"][0].to_string();
    assert!(!admin.get("/v1/cache/w0").1.to_string().contains(&wrong));
    assert_eq!(under("w0 renumber first=0", 11).0, 0);
    // Sent again, held, released in order.
    let id = admin.fault("w0 events.duplicate copies=1");
    assert_eq!(heard(12), native(&ear.next()));
    admin.delete(&format!("/v1/faults/f{id}"));
    let id = admin.fault("w0 events.hold");
    ask(&admin, 13);
    ask(&admin, 14);
    assert_eq!(ear.soon(), None);
    assert_eq!(
        admin.get("/v1/actors/w0/r0/native").1["inside"]["said"]["held_messages"],
        2
    );
    admin.delete(&format!("/v1/faults/f{id}"));
    let (one, two) = (native(&ear.next()).0, native(&ear.next()).0);
    assert_eq!(one + 1, two);
    // Out of turn.
    let id = admin.fault("w0 storm per_s=200");
    for _ in 0..20 {
        ear.next();
    }
    admin.delete(&format!("/v1/faults/f{id}"));
}

/// Event ids in the payload of an enveloped message.
fn events(frames: &[Vec<u8>]) -> Vec<Value> {
    let (_, envelope) = envelope::decode_frames(frames).unwrap();
    rmp_serde::from_slice::<Vec<Value>>(envelope.payload).unwrap()
}

fn ids(frames: &[Vec<u8>]) -> Vec<u64> {
    events(frames)
        .iter()
        .map(|event| event["event"]["event_id"].as_u64().unwrap())
        .collect()
}

#[test]
fn faults_of_events_act_behind_brokers_too() {
    let ports = free_ports();
    let ear = Frames::new(format!("tcp://127.0.0.1:{ports}"), true);
    let broker = format!("xsub=tcp://127.0.0.1:{ports},xpub=tcp://127.0.0.1:{}", ports + 1);
    let admin = Admin::start(&["--speedup-ratio", "0", "--zmq-broker-url", &broker]);
    let kv = || {
        loop {
            let frames = ear.soon()?;
            if String::from_utf8_lossy(&frames[0]).ends_with("kv-events") {
                return Some(ids(&frames));
            }
        }
    };
    ear.wake(&admin);
    ask(&admin, 1);
    let before = *kv().unwrap().last().unwrap();
    let id = admin.fault("w0 events.drop");
    ask(&admin, 2);
    assert_eq!(kv(), None);
    admin.delete(&format!("/v1/faults/f{id}"));
    ask(&admin, 3);
    assert_eq!(kv().unwrap()[0], before + 2, "what was lost leaves a gap");
    let id = admin.fault("w0 events.duplicate copies=1");
    ask(&admin, 4);
    assert_eq!(kv().unwrap(), kv().unwrap());
    admin.delete(&format!("/v1/faults/f{id}"));
    admin.fault("w0 silent");
    ask(&admin, 5);
    assert_eq!(kv(), None);
}

#[test]
fn faults_of_events_act_on_lower_tiers_too() {
    let admin = Admin::start(&[
        "--speedup-ratio",
        "0",
        "--num-gpu-blocks-override",
        "12",
        "--num-g2-blocks",
        "400",
        "--kv-bytes-per-token",
        "1000",
    ]);
    let channels = admin.scene.records("v1/event_channels");
    let channel = channels.iter().find(|record| record["topic"] == "kv-events").unwrap();
    let ear = Frames::new(
        channel["transport"]["config"]["endpoint"].as_str().unwrap().to_owned(),
        false,
    );
    ear.wake(&admin);
    let lower = |from: u32, to: u32| {
        let mut lower = Vec::new();
        for n in from..to {
            ask(&admin, n);
            while let Ok(frames) = ear.0.recv_timeout(Duration::from_millis(20)) {
                if frames[0] == b"kv-events" {
                    lower.extend(
                        events(&frames)
                            .into_iter()
                            .filter(|event| event["storage_tier"] != "device"),
                    );
                }
            }
        }
        lower
    };
    let healthy = lower(1, 12);
    assert!(
        healthy.iter().any(|event| event["storage_tier"] == "host_pinned"),
        "{healthy:?}"
    );
    let id = admin.fault("w0 silent");
    assert_eq!(lower(20, 32), Vec::<Value>::new());
    admin.delete(&format!("/v1/faults/f{id}"));
    admin.fault("w0 wrong_rank rank=9");
    let wrong = lower(40, 52);
    assert!(
        !wrong.is_empty() && wrong.iter().all(|event| event["event"]["dp_rank"] == 9),
        "{wrong:?}"
    );
}

/// What came of one HTTP request: the bytes, and the error that ended them, if one did.
fn http(admin: &Admin, patience: Duration) -> (Vec<u8>, Option<ErrorKind>) {
    let stream = TcpStream::connect(admin.scene.worker(0).http.unwrap()).unwrap();
    exchange(stream, patience, "close")
}

fn exchange(stream: TcpStream, patience: Duration, connection: &str) -> (Vec<u8>, Option<ErrorKind>) {
    let body = r#"{"prompt":"one two three","max_tokens":20,"ignore_eos":true}"#;
    complete(stream, body, patience, connection)
}

fn complete(mut stream: TcpStream, body: &str, patience: Duration, connection: &str) -> (Vec<u8>, Option<ErrorKind>) {
    stream.set_read_timeout(Some(patience)).unwrap();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: w\r\nConnection: {connection}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut said = Vec::new();
    // A connection may be reset before all is written.
    let ended = stream
        .write_all((head + body).as_bytes())
        .and_then(|()| stream.read_to_end(&mut said));
    (said, ended.err().map(|error| error.kind()))
}

#[test]
fn faults_of_requests_and_responses_act_on_the_http_port_too() {
    let port = free_ports().to_string();
    let admin = Admin::start(&["--speedup-ratio", "0", "--http-port", &port]);
    let only = |line: &str| {
        let (status, answer) = admin.put("/v1/faults", &serde_json::json!([line]));
        assert_eq!(status, 200, "{answer}");
    };
    let long = PATIENCE;
    let (whole, error) = http(&admin, long);
    assert!(whole.starts_with(b"HTTP/1.1 200") && error.is_none());
    // A connection from before the fault gives one more answer, and then makes room for one that has it.
    let early = TcpStream::connect(admin.scene.worker(0).http.unwrap()).unwrap();
    admin.scene.until("it is accepted", |_| {
        let mut early = early.try_clone().unwrap();
        early.write_all(b"GET /ping HTTP/1.1\r\nHost: w\r\n\r\n").unwrap();
        early.read(&mut [0; 4096]).unwrap() > 0
    });
    only("w0 response.limit_data bytes=20");
    let (said, _) = exchange(early, long, "keep-alive");
    assert!(
        said.len() > 20
            && String::from_utf8_lossy(&said)
                .to_lowercase()
                .contains("connection: close")
    );
    let (said, error) = http(&admin, long);
    assert_eq!((said.as_slice(), error), (&whole[..20], None));
    only("w0 response.reset_peer");
    assert_eq!(http(&admin, long).1, Some(ErrorKind::ConnectionReset));
    only("w0 response.slow_close ms=300");
    let begin = Instant::now();
    assert_eq!(http(&admin, long).1, None);
    assert!(begin.elapsed() >= Duration::from_millis(300));
    only("w0 response.bandwidth bytes_per_s=2000");
    let begin = Instant::now();
    let (said, _) = http(&admin, long);
    assert!(
        begin.elapsed() >= Duration::from_millis(said.len() as u64 / 4),
        "{} bytes",
        said.len()
    );
    only("w0 request.latency ms=300");
    let begin = Instant::now();
    assert!(http(&admin, long).0.starts_with(b"HTTP/1.1 200"));
    assert!(begin.elapsed() >= Duration::from_millis(300));
    only("w0 request.reset_peer");
    assert_eq!(http(&admin, long).1, Some(ErrorKind::ConnectionReset));
    only("w0 request.black_hole");
    let (said, error) = http(&admin, Duration::from_millis(300));
    assert_eq!((said, error), (Vec::new(), Some(ErrorKind::WouldBlock)));
    admin.delete("/v1/faults");
    let mut answer = call(&admin.scene.address(0), "a", &chat(&[1, 2, 3], 2)).unwrap();
    assert!(answer.finish().unwrap().complete);
    admin.scene.until_nothing_is_left();
}

/// Asked and happened of the only fault.
fn counts(admin: &Admin) -> (u64, u64) {
    let (_, listed) = admin.get("/v1/faults");
    let count = |name: &str| listed[0][name].as_u64().unwrap();
    (count("asked"), count("happened"))
}

#[test]
fn answers_over_http_are_spoiled_and_what_has_no_form_there_is_not_counted() {
    let port = free_ports().to_string();
    let admin = Admin::start(&["--speedup-ratio", "0", "--http-port", &port]);
    let only = |line: &str| {
        let (status, answer) = admin.put("/v1/faults", &serde_json::json!([line]));
        assert_eq!(status, 200, "{answer}");
    };
    let connect = || TcpStream::connect(admin.scene.worker(0).http.unwrap()).unwrap();
    let stream = r#"{"prompt":"one two three","max_tokens":20,"ignore_eos":true,"stream":true}"#;
    only("w0 malformed_frame after_tokens=3");
    let (said, error) = complete(connect(), stream, PATIENCE, "close");
    let said = String::from_utf8(said).unwrap();
    assert_eq!(error, None);
    let events: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    let is_json = |event: &&str| serde_json::from_str::<Value>(event).is_ok();
    assert!(events[..3].iter().all(is_json), "{said}");
    assert_eq!(events[3], "not a frame", "{said}");
    assert_eq!(
        events.iter().filter(|event| !is_json(event)).count(),
        2,
        "that and [DONE]: {said}"
    );
    assert_eq!(counts(&admin), (1, 1));
    let whole = |said: Vec<u8>| {
        String::from_utf8(said)
            .unwrap()
            .split_once("\r\n\r\n")
            .unwrap()
            .1
            .to_owned()
    };
    let (said, error) = http(&admin, PATIENCE);
    assert!(error.is_none() && serde_json::from_str::<Value>(&whole(said)).is_err());
    assert_eq!(counts(&admin), (2, 2));
    only("w0 malformed_frame after_tokens=20");
    let (said, _) = http(&admin, PATIENCE);
    assert!(
        serde_json::from_str::<Value>(&whole(said)).is_ok(),
        "it has no more tokens"
    );
    assert_eq!(counts(&admin), (1, 0));
    for line in [
        "w0 ack_withheld",
        "w0 no_call_home",
        "w0 no_prologue",
        "w0 duplicate_final",
        "w0 missing_final",
    ] {
        only(line);
        assert!(http(&admin, PATIENCE).0.starts_with(b"HTTP/1.1 200"));
        assert_eq!(counts(&admin), (0, 0), "{line}");
    }
    admin.scene.until_nothing_is_left();
}

/// The value of a metric on the worker's own page.
fn on_page(admin: &Admin, name: &str) -> f64 {
    let mut stream = TcpStream::connect(admin.scene.worker(0).http.unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: w\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let line = page.lines().find(|line| line.starts_with(name)).expect(name);
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[test]
fn load_figures_on_the_http_port_are_those_that_are_told() {
    let port = free_ports().to_string();
    let admin = Admin::start(&[
        "--http-port",
        &port,
        "--num-gpu-blocks-override",
        "100",
        "--timing-model",
        r#"{"type":"fixed","prefill_ms":1.0,"decode_ms":2.0}"#,
    ]);
    let usage = || on_page(&admin, "vllm:kv_cache_usage_perc{");
    let running = || on_page(&admin, "vllm:num_requests_running{");
    let becomes = |what: &str, holds: &dyn Fn() -> bool| admin.scene.until(what, |_| holds());
    let begin = || call(&admin.scene.address(0), "a", &chat(&[1; 8], 100_000)).unwrap();
    // The page shows what was told while somebody lies.
    let rests = || {
        admin.scene.until_nothing_is_left();
        let id = admin.fault("w0 lying high=0");
        becomes("it is told that nothing runs", &|| {
            (running().to_bits(), usage().to_bits()) == (0, 0)
        });
        admin.delete(&format!("/v1/faults/f{id}"));
    };
    assert!(usage() < 0.5);
    // A lie, and the truth again when it is over.
    let id = admin.fault("w0 lying high=50");
    // Blocks are counted as the engine does, and it keeps one for itself.
    let lied = || (usage() - 0.5).abs() < 0.01;
    becomes("half of the blocks are said to be used", &lied);
    let mut answer = begin();
    answer.read_tokens(1);
    becomes("the rest is true", &|| running() > 0.0);
    assert!(lied());
    admin.delete(&format!("/v1/faults/f{id}"));
    becomes("the truth", &|| usage() < 0.5);
    drop(answer);
    rests();
    // Frozen, it stays as it was.
    let id = admin.fault("w0 frozen");
    let mut answer = begin();
    answer.read_tokens(20);
    assert_eq!(
        (running().to_bits(), usage().to_bits()),
        (0, 0),
        "nobody was told of it"
    );
    admin.delete(&format!("/v1/faults/f{id}"));
    assert!(running() > 0.0 && usage() > 0.0);
    drop(answer);
    rests();
    // Late, it is what it was: a day ago there was nothing.
    let id = admin.fault("w0 stale ms=86400000");
    let mut answer = begin();
    answer.read_tokens(20);
    assert_eq!((running().to_bits(), usage().to_bits()), (0, 0));
    admin.delete(&format!("/v1/faults/f{id}"));
    assert!(running() > 0.0);
    let id = admin.fault("w0 stale ms=1");
    becomes("it arrives", &|| running() > 0.0 && usage() > 0.0);
    admin.delete(&format!("/v1/faults/f{id}"));
    drop(answer);
    admin.scene.until_nothing_is_left();
}
