//! The `serve` command as a user or a CI job meets it: what it prints, how it ends, and what it says when it cannot run.

#![allow(clippy::unwrap_used)]

#[path = "certificates/mod.rs"]
#[allow(dead_code)]
mod certificates;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use tempfile::TempDir;

use crate::certificates::Authority;

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/tiny-model")
}

/// The command without the caller's own settings.
fn ghostfleet() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ghostfleet"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["DYN_", "ETCD_", "GHOSTFLEET_", "HF_", "NATS_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        {
            command.env_remove(name);
        }
    }
    command
}

fn serve(store: &TempDir, flags: &[&str]) -> Command {
    let mut command = ghostfleet();
    command
        .arg("serve")
        .arg("--model-path")
        .arg(model())
        .args(["--model-name", "tiny"]);
    command
        .args(["--discovery-backend", "file", "--file-kv"])
        .arg(store.path())
        .args(flags);
    command
}

/// Runs a command that is expected to end by itself.
fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

/// Asserts exit code and words of an error.
fn assert_refused(output: &Output, code: i32, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
    said: String,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut running = Self {
            child,
            out,
            said: String::new(),
        };
        running.read_until("ready: ");
        running
    }

    fn read_until(&mut self, words: &str) {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert_ne!(
                self.out.read_line(&mut line).unwrap(),
                0,
                "ended before {words:?}: {}",
                self.said
            );
            self.said.push_str(&line);
        }
    }

    /// Of the only worker, started with `--http-port 0`.
    fn http_address(&mut self) -> String {
        self.read_until("http ports: ");
        let ports = self.said.lines().last().unwrap();
        ports.split("http://").nth(1).unwrap().to_owned()
    }

    fn signal(&self, signal: &str) {
        let killed = Command::new("kill")
            .arg(signal)
            .arg(self.child.id().to_string())
            .status()
            .unwrap();
        assert!(killed.success());
    }

    fn end(mut self) -> (String, Option<i32>) {
        self.out.read_to_string(&mut self.said).unwrap();
        let code = self.child.wait().unwrap().code();
        (std::mem::take(&mut self.said), code)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only has an effect when a test failed half-way.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_start_screen_says_what_runs_and_how_to_attach_and_sigterm_drains() {
    let store = TempDir::new().unwrap();
    let summary = store.path().join("summary.json");
    let mut command = serve(&store, &["--num-workers", "3", "--seed", "9", "--summary"]);
    let running = Running::start(command.arg(&summary));
    let directory = store.path().display().to_string();
    for words in [
        "3 x dyn://dynamo.backend.generate",
        "seed 9",
        "--discovery-backend file",
        &format!("DYN_FILE_KV={directory}"),
    ] {
        assert!(
            running.said.contains(words),
            "{words:?} is missing in: {}",
            running.said
        );
    }
    running.signal("-TERM");
    let (said, code) = running.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("3 of 3 workers left in good order"), "{said}");
    assert!(said.contains("left over: 0 streams, 0 sequences, 0 blocks"), "{said}");
    let summary: serde_json::Value = serde_json::from_slice(&std::fs::read(summary).unwrap()).unwrap();
    assert_eq!(summary["drained"], true);
    assert_eq!(summary["fleet"]["workers"].as_array().unwrap().len(), 3);
}

#[test]
fn a_port_that_two_settings_want_is_refused_before_anything_starts() {
    let store = TempDir::new().unwrap();
    let flags = ["--num-workers", "4", "--http-port", "7000", "--system-port", "7003"];
    let output = run(&mut serve(&store, &flags));
    assert_refused(&output, 2, &["port 7003", "--system-port", "--http-port for w3"]);
    assert!(output.stdout.is_empty(), "no start screen");
}

#[test]
fn an_expired_certificate_is_told_with_file_and_date_and_the_command_has_what_frontends_need() {
    let store = TempDir::new().unwrap();
    let authority = Authority::new(store.path(), "authority");
    let old = authority.in_years("old", 2001..2002);
    let early = authority.in_years("early", 2600..2601);
    let start = |variables: &[(&str, &Path)]| {
        let mut command = serve(&store, &[]);
        for (name, value) in variables {
            command.env(name, value);
        }
        let mut running = Running::start(&mut command);
        running.signal("-TERM");
        let mut log = String::new();
        running.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (running.end().0, log)
    };
    let (screen, log) = start(&[
        ("DYN_TCP_TLS_CERT_PATH", &old.certificate),
        ("DYN_TCP_TLS_KEY_PATH", &old.key),
    ]);
    for words in ["DYN_TCP_TLS_CERT_PATH", "old-cert.pem", "has expired on 2002-01-01"] {
        assert!(log.contains(words), "{words:?} is missing in {log}");
    }
    let wanted = " DYN_TCP_TLS_CA_CERT_PATH='<the authority of the workers'\\'' certificate>' ";
    assert!(screen.contains(wanted) && !screen.contains('$'), "{screen}");
    let ca = authority.path();
    let (screen, log) = start(&[
        ("DYN_TCP_TLS_CERT_PATH", &early.certificate),
        ("DYN_TCP_TLS_KEY_PATH", &early.key),
        ("DYN_TCP_TLS_CLIENT_CA_CERT_PATH", &ca),
        ("DYN_TCP_TLS_CA_CERT_PATH", &ca),
    ]);
    assert!(log.contains("early-cert.pem) is not valid before 2600-01-01"), "{log}");
    for words in [
        format!(" DYN_TCP_TLS_CA_CERT_PATH={} ", ca.display()),
        format!(" DYN_TCP_TLS_KEY_PATH={} ", early.key.display()),
        " DYN_TCP_TLS_CLIENT_KEY_PATH='<its key>' ".to_owned(),
    ] {
        assert!(screen.contains(&words), "{words:?} is missing in {screen}");
    }
}

/// The command on a file system of its own that soon is full.
fn serve_on_a_small_disk(directory: &Path, flags: &[&str]) -> Command {
    let mount = "mount -t tmpfs -o size=80k none \"$0\" && exec \"$@\"";
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
    let port = TcpListener::bind(("127.0.0.1", 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
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
#[ignore = "needs nats-server: scripts/test"]
fn events_that_nobody_took_make_the_end_unclean() {
    let store = TempDir::new().unwrap();
    let port = TcpListener::bind(("127.0.0.1", 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
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
fn print_config_names_the_origin_of_every_value() {
    let store = TempDir::new().unwrap();
    let file = store.path().join("fleet.toml");
    std::fs::write(&file, "num_workers = 5\nblock_size = 32\n").unwrap();
    let mut command = serve(&store, &["--print-config", "--block-size", "16", "--config"]);
    let output = run(command.arg(&file).env("DYN_NAMESPACE", "elsewhere"));
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8(output.stdout).unwrap();
    let line = |key: &str| {
        said.lines()
            .find(|line| line.starts_with(&format!("{key} = ")))
            .unwrap()
            .to_owned()
    };
    assert_eq!(line("block_size"), "block_size = 16  # flag");
    assert_eq!(line("num_workers"), format!("num_workers = 5  # {}", file.display()));
    assert_eq!(
        line("namespace"),
        "namespace = \"elsewhere\"  # environment DYN_NAMESPACE"
    );
    assert_eq!(line("max_num_seqs"), "max_num_seqs = 256  # default");
    // What is printed is a config file again.
    std::fs::write(&file, &said).unwrap();
    let again = run(ghostfleet().args(["serve", "--print-config", "--config"]).arg(&file));
    assert_eq!(
        again.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&again.stderr)
    );
}

#[test]
fn a_port_in_use_is_named_with_the_way_out() {
    let store = TempDir::new().unwrap();
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = run(&mut serve(&store, &["--tcp-port", &port]));
    assert_refused(&output, 1, &[&format!("127.0.0.1:{port}"), "DYN_TCP_RPC_PORT"]);
    let output = run(&mut serve(&store, &["--tcp-port", &port, "--ports", "per-worker"]));
    assert_refused(&output, 1, &["w0", &format!("127.0.0.1:{port}")]);
    let output = run(&mut serve(&store, &["--http-port", &port]));
    assert_refused(&output, 1, &["w0", &format!("127.0.0.1:{port}")]);
}

#[test]
fn an_etcd_that_does_not_answer_is_named_after_the_stated_limit() {
    let store = TempDir::new().unwrap();
    let closed = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let mut command = serve(&store, &["--discovery-backend", "etcd", "--etcd-connect-timeout", "1"]);
    let output = run(command.env("ETCD_ENDPOINTS", format!("http://{closed}")));
    assert_refused(
        &output,
        1,
        &[&closed.to_string(), "within 1 s", "--discovery-backend file"],
    );
}

#[test]
fn more_workers_than_descriptors_allow_are_refused_with_the_number_that_fits() {
    let store = TempDir::new().unwrap();
    let binary = env!("CARGO_BIN_EXE_ghostfleet");
    let limited = |workers: &str| {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "ulimit -n 700 && exec \"$@\"",
            "sh",
            binary,
            "serve",
            "--num-workers",
            workers,
        ]);
        command
            .arg("--model-path")
            .arg(model())
            .args(["--discovery-backend", "file", "--file-kv"])
            .arg(store.path());
        command
    };
    let output = run(&mut limited("500"));
    assert_refused(
        &output,
        1,
        &["500 workers need", "may open 700", "124 workers fit", "ulimit -Hn"],
    );
    let running = Running::start(&mut limited("100"));
    running.signal("-INT");
    assert_eq!(running.end().1, Some(0));
}

#[test]
fn a_model_that_is_not_usable_is_bad_input() {
    let store = TempDir::new().unwrap();
    let empty = TempDir::new().unwrap();
    std::fs::copy(model().join("config.json"), empty.path().join("config.json")).unwrap();
    let with_model = |path: &Path| {
        let mut command = ghostfleet();
        command
            .args(["serve", "--discovery-backend", "file", "--file-kv"])
            .arg(store.path());
        command
            .env("HF_HUB_OFFLINE", "1")
            .env("HF_HOME", store.path())
            .arg("--model-path")
            .arg(path);
        run(&mut command)
    };
    assert_refused(
        &with_model(empty.path()),
        2,
        &["tokenizer.json", &empty.path().display().to_string()],
    );
    assert_refused(
        &with_model(Path::new("some-org/some-model")),
        2,
        &["some-org/some-model", "HF_HUB_OFFLINE"],
    );
    let output = run(ghostfleet().arg("serve"));
    assert_refused(&output, 2, &["--model-path", "config/quickstart.toml"]);
    let output = run(&mut serve(&store, &["--max-model-len", "999999"]));
    assert_refused(&output, 2, &["max_model_len 999999", "context length"]);
}

#[test]
fn an_unwritable_store_is_named() {
    let store = TempDir::new().unwrap();
    let file = store.path().join("file");
    std::fs::write(&file, "").unwrap();
    let output = run(serve(&store, &["--file-kv"]).arg(&file));
    assert_refused(&output, 1, &[&file.display().to_string()]);
}

#[test]
fn groups_of_one_endpoint_have_to_agree_on_what_their_card_says() {
    let store = TempDir::new().unwrap();
    let file = store.path().join("fleet.toml");
    let group = |name: &str, rest: &str| format!("[[group]]\nname = \"{name}\"\nnum_workers = 1\n{rest}\n");
    std::fs::write(&file, group("a", "block_size = 16") + &group("b", "block_size = 32")).unwrap();
    let output = run(serve(&store, &["--config"]).arg(&file));
    assert_refused(&output, 2, &["\"a\"", "\"b\"", "block_size is 16 in one and 32"]);
    let elsewhere = "block_size = 32\nendpoint = \"dyn://dynamo.other.generate\"";
    std::fs::write(&file, group("a", "block_size = 16") + &group("b", elsewhere)).unwrap();
    let running = Running::start(serve(&store, &["--config"]).arg(&file));
    running.signal("-TERM");
    assert_eq!(running.end().1, Some(0));
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
fn a_summary_that_cannot_be_written_is_refused_before_anything_starts() {
    let store = TempDir::new().unwrap();
    let nowhere = store.path().join("none").join("summary.json");
    let output = run(serve(&store, &["--summary"]).arg(&nowhere));
    assert_refused(&output, 1, &[&nowhere.display().to_string()]);
    assert!(!store.path().join("v1").exists(), "nothing was registered");
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

#[test]
fn a_block_size_that_the_chosen_pool_cannot_have_is_named() {
    let store = TempDir::new().unwrap();
    for pool in [["--eviction-backend", "multi_lru"], ["--g1-backend", "kvbm"]] {
        let output = run(serve(&store, &pool).args(["--block-size", "48"]));
        assert_refused(
            &output,
            2,
            &["block_size", "48", "power of two", "--eviction-backend native"],
        );
    }
    let both = ["--g1-backend", "native", "--eviction-backend", "lru"];
    assert_refused(&run(&mut serve(&store, &both)), 2, &["--g1-backend", "contradict"]);
}

#[test]
fn free_http_ports_are_printed_and_answer() {
    let store = TempDir::new().unwrap();
    let mut running = Running::start(&mut serve(&store, &["--num-workers", "2", "--http-port", "0"]));
    running.read_until("http ports: ");
    let line = running.said.lines().last().unwrap();
    let urls: Vec<&str> = line
        .split("http://")
        .skip(1)
        .map(|rest| rest.trim_end_matches(", w1 "))
        .collect();
    assert_eq!(urls.len(), 2, "{line}");
    for address in urls {
        let mut answer = ureq::get(&format!("http://{address}/v1/models")).call().unwrap();
        assert!(
            answer.body_mut().read_to_string().unwrap().contains("\"tiny\""),
            "{address}"
        );
    }
    running.signal("-TERM");
    assert_eq!(running.end().1, Some(0));
}

#[test]
fn help_shows_defaults_and_flags_of_the_peer_are_explained() {
    let help = run(ghostfleet().args(["serve", "--help"]));
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    for words in ["[default: 16384]", "[default: lifo]", "[default: -1]", "[default: on]"] {
        assert!(help.contains(words), "{words:?} is missing");
    }
    let store = TempDir::new().unwrap();
    let refused = run(&mut serve(&store, &["--router-temperature", "1"]));
    assert_refused(
        &refused,
        2,
        &["--router-temperature belongs to a router", "dynamo.frontend"],
    );
    let refused = run(&mut serve(&store, &["--aic-nextn", "1", "--ais-nextn", "2"]));
    assert_refused(&refused, 2, &["two spellings of one flag"]);
}
