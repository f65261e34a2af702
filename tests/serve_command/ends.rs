//! How it ends when not all is well.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::process::{Running, assert_refused, ghostfleet, model, run, serve};

/// The command on a file system of its own that soon is full.
fn serve_on_a_small_disk(directory: &Path, flags: &[&str]) -> Command {
    let mount = "mount -t tmpfs -o size=80k none \"$0\" && exec \"$@\"";
    serve_on_a_disk_of(mount, directory, flags)
}

/// The command in a shell that makes a file system first.
fn serve_on_a_disk_of(mount: &str, directory: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    let root = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0;
    command.arg("--mount").args((!root).then_some("--map-root-user"));
    command.args(["sh", "-c", mount]).arg(directory);
    command
        .arg(env!("CARGO_BIN_EXE_ghostfleet"))
        .args(["serve", "--model-path"]);
    command.arg(model()).args(["--discovery-backend", "file", "--file-kv"]);
    command.arg(directory).args(["--num-workers", "20"]).args(flags);
    command
}

/// A port that nobody has a moment later.
fn free_port() -> u16 {
    let socket = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    socket.local_addr().unwrap().port()
}

#[test]
#[ignore = "needs to mount a file system: scripts/test"]
fn a_disk_that_is_full_at_registration_is_told_and_given_up_after_the_stated_limit() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().display().to_string();
    let output = run(&mut serve_on_a_small_disk(
        directory.path(),
        &["--registration-timeout", "1"],
    ));
    let words = [
        "of 20 workers could be registered",
        "--registration-timeout",
        "/20: waiting for discovery, at most 1 s",
        &path,
        "No space left",
        "free some space or choose another directory (DYN_FILE_KV)",
    ];
    assert_refused(&output, 1, &words);
    // Told to stop while it waits, it says what it waited for.
    let port = free_port();
    let mut child = serve_on_a_small_disk(directory.path(), &["--system-port", &port.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("waiting for discovery, at most 60 s") {
        line.clear();
        assert_ne!(errors.read_line(&mut line).unwrap(), 0, "ended before");
    }
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let mut probe = agent.get(format!("http://127.0.0.1:{port}/health")).call().unwrap();
    assert_eq!(probe.status().as_u16(), 503);
    let reason = probe.body_mut().read_to_string().unwrap();
    for words in ["workers are registered", "discovery fails: cannot write", &path] {
        assert!(reason.contains(words), "{words:?} is missing in {reason}");
    }
    let killed = Command::new("kill").arg("-TERM").arg(child.id().to_string()).status();
    assert!(killed.unwrap().success());
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said}{rest}");
    assert!(
        said.contains("were never registered") && !said.contains(" 20 of 20"),
        "{said}"
    );
    assert!(
        rest.contains("error: stopped before all workers were registered") && rest.contains("DYN_FILE_KV"),
        "{rest}"
    );
}

#[test]
#[ignore = "needs to mount a file system: scripts/test"]
fn a_disk_that_is_full_from_the_start_is_waited_for_until_the_stated_limit() {
    let directory = TempDir::new().unwrap();
    let mount = "mount -t tmpfs -o size=80k none \"$0\" && { head -c 90000 /dev/zero >\"$0/fill\"; exec \"$@\"; }";
    let output = run(&mut serve_on_a_disk_of(
        mount,
        directory.path(),
        &["--registration-timeout", "1"],
    ));
    let words = [
        "discovery fails; waiting for room",
        "waited 1 s for room (--registration-timeout)",
        "No space left",
        "free some space or choose another directory (DYN_FILE_KV)",
    ];
    assert_refused(&output, 1, &words);
}

#[test]
#[ignore = "needs to mount a file system: scripts/test"]
fn a_worker_that_finds_room_for_some_of_its_records_leaves_none_behind() {
    let directory = TempDir::new().unwrap();
    for kilobytes in [56, 64, 72] {
        let mount = format!(
            "mount -t tmpfs -o size={kilobytes}k none \"$0\" && {{ \"$@\"; code=$?; echo \"left:\" $(find \"$0\" -type f); \
             exit $code; }}"
        );
        let output = run(&mut serve_on_a_disk_of(
            &mount,
            directory.path(),
            &["--registration-timeout", "1"],
        ));
        assert_refused(&output, 1, &["of 20 workers could be registered"]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.ends_with("left:\n"), "of a disk of {kilobytes} KiB: {said}");
    }
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn events_that_nobody_took_make_the_end_unclean() {
    let store = TempDir::new().unwrap();
    let port = free_port();
    let mut nats = Command::new("nats-server")
        .args(["--addr", "127.0.0.1", "--port", &port.to_string()])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let url = format!("nats://127.0.0.1:{port}");
    let summary = store.path().join("summary.json");
    let flags = [
        "--event-plane",
        "nats",
        "--nats-server",
        &url,
        "--http-port",
        "0",
        "--speedup-ratio",
        "0",
    ];
    let mut running = Running::start(serve(&store, &flags).arg("--summary").arg(&summary));
    let address = running.http_address();
    nats.kill().unwrap();
    nats.wait().unwrap();
    let body = serde_json::json!({"model": "tiny", "prompt": vec![1; 70], "max_tokens": 1});
    ureq::post(format!("http://{address}/v1/completions"))
        .send_json(body)
        .unwrap();
    running.signal("-TERM");
    let mut errors = running.child.stderr.take().unwrap();
    let (said, code) = running.end();
    let mut log = String::new();
    errors.read_to_string(&mut log).unwrap();
    assert_eq!(code, Some(1), "{said}{log}");
    assert!(said.contains("event messages lost: 0 dropped at the bound, "), "{said}");
    assert!(log.contains("event messages were never delivered"), "{log}");
    // Its connection is retried all the time, which is no reason to fill the log.
    assert!(log.lines().count() < 20, "{log}");
    let summary: serde_json::Value = serde_json::from_slice(&std::fs::read(summary).unwrap()).unwrap();
    assert!(
        summary["events"]["undelivered"].as_u64().unwrap() > 0,
        "{}",
        summary["events"]
    );
}

#[test]
fn a_goodbye_that_discovery_does_not_hear_makes_the_end_unclean() {
    let store = TempDir::new().unwrap();
    let directory = store.path().join("kv");
    let mut running = Running::start(serve(&store, &[]).arg("--file-kv").arg(&directory));
    std::fs::rename(&directory, store.path().join("away")).unwrap();
    std::fs::write(&directory, "not a directory").unwrap();
    running.signal("-TERM");
    let mut errors = running.child.stderr.take().unwrap();
    let (said, code) = running.end();
    let mut log = String::new();
    errors.read_to_string(&mut log).unwrap();
    assert_eq!(code, Some(1), "{said}{log}");
    assert!(
        said.contains("0 of 1 workers left in good order, 1 could not tell discovery"),
        "{said}"
    );
    assert!(log.contains("their records stay until the leases run out"), "{log}");
}

#[test]
fn a_second_signal_cuts_answers_off_and_says_so() {
    let store = TempDir::new().unwrap();
    let slow = r#"{"type":"fixed","prefill_ms":1,"decode_ms":1000}"#;
    let mut running = Running::start(&mut serve(&store, &["--http-port", "0", "--timing-model", slow]));
    let address = running.http_address();
    let body = serde_json::json!({"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 500, "stream": true});
    let answer = ureq::post(format!("http://{address}/v1/completions"))
        .send_json(body)
        .unwrap();
    let mut stream = BufReader::new(answer.into_body().into_reader());
    stream.read_line(&mut String::new()).unwrap();
    running.signal("-TERM");
    running.read_until("draining");
    // Signals closer to each other count as one.
    std::thread::sleep(std::time::Duration::from_millis(400));
    running.signal("-TERM");
    let (said, code) = running.end();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("0 of 1 workers left in good order"), "{said}");
}

#[test]
fn a_drain_says_what_it_waits_for_answers_meanwhile_and_has_an_end() {
    let store = TempDir::new().unwrap();
    let port = free_port();
    let flags = ["--http-port", "0", "--admin-port", &port.to_string()];
    let mut command = serve(&store, &flags);
    let mut running = Running::start(command.env("DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS", "6"));
    let address = running.http_address();
    let body = serde_json::json!({"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 500, "stream": true});
    let answer = ureq::post(format!("http://{address}/v1/completions"))
        .send_json(body)
        .unwrap();
    let mut stream = BufReader::new(answer.into_body().into_reader());
    stream.read_line(&mut String::new()).unwrap();
    let admin = format!("http://127.0.0.1:{port}/v1");
    ureq::post(format!("{admin}/faults")).send("\"w0 hang\"").unwrap();
    running.signal("-TERM");
    running.read_until("draining, at most 6 s");
    let mut errors = BufReader::new(running.child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("draining for") {
        line.clear();
        assert_ne!(errors.read_line(&mut line).unwrap(), 0, "it ended without a word");
    }
    assert!(line.contains("waits for 1 answer: 1 of w0 (hangs);"), "{line}");
    let workers = ureq::get(format!("{admin}/workers")).call().unwrap();
    let workers: serde_json::Value = workers.into_body().read_json().unwrap();
    assert_eq!(workers[0]["state"], "draining", "{workers}");
    let (said, code) = running.end();
    let mut log = String::new();
    errors.read_to_string(&mut log).unwrap();
    assert_eq!(code, Some(1), "{said}{log}");
    assert!(
        log.contains("not drained within 6 s (--drain-timeout): 1 answers were cut off"),
        "{log}"
    );
}

#[test]
fn a_signal_ends_the_wait_for_a_hub_that_never_answers() {
    let store = TempDir::new().unwrap();
    let hub = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let endpoint = format!("http://{}", hub.local_addr().unwrap());
    let mut command = ghostfleet();
    command.args([
        "serve",
        "--model-path",
        "org/model",
        "--discovery-backend",
        "file",
        "--file-kv",
    ]);
    command
        .arg(store.path())
        .env("HF_ENDPOINT", endpoint)
        .env("HF_HOME", store.path());
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let silent = hub.accept().unwrap();
    let killed = Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    assert_refused(&output, 1, &["stopped before all workers were registered"]);
    drop(silent);
}

#[test]
fn a_standard_output_that_takes_nothing_ends_the_fleet_with_a_goodbye() {
    let store = TempDir::new().unwrap();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let child = serve(&store, &["--num-workers", "2"])
        .stdin(Stdio::null())
        .stdout(full.try_clone().unwrap())
        .stderr(full)
        .spawn()
        .unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(1));
    let instances = std::fs::read_dir(store.path().join("v1/instances")).unwrap();
    assert_eq!(instances.count(), 0, "records were left behind");
}
