//! What keeps it from running.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::process::{Running, assert_refused, ghostfleet, model, run, serve};

#[test]
fn a_port_that_two_settings_want_is_refused_before_anything_starts() {
    let store = TempDir::new().unwrap();
    let flags = ["--num-workers", "4", "--http-port", "7000", "--system-port", "7003"];
    let output = run(&mut serve(&store, &flags));
    assert_refused(&output, 2, &["port 7003", "--system-port", "--http-port for w3"]);
    assert!(output.stdout.is_empty(), "no start screen");
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
fn groups_that_share_host_memory_have_to_agree_on_it_before_anything_starts() {
    let store = TempDir::new().unwrap();
    let file = store.path().join("fleet.toml");
    let shared = "host_offload_scope = \"cluster_shared\"\nkv_bytes_per_token = 1000";
    let group = |name: &str, rest: &str| format!("[[group]]\nname = \"{name}\"\nnum_workers = 1\n{shared}\n{rest}\n");
    for (other, words) in [
        ("num_host_blocks = 50\nkv_layout_id = \"x\"", "100 blocks of"),
        ("num_host_blocks = 100\nkv_layout_id = \"y\"", "the same kv_layout_id"),
    ] {
        let first = group("a", "num_host_blocks = 100\nkv_layout_id = \"x\"");
        std::fs::write(&file, first + &group("b", other)).unwrap();
        let output = run(serve(&store, &["--config"]).arg(&file));
        assert_refused(&output, 2, &["host memory that workers share", words]);
        assert!(output.stdout.is_empty(), "no start screen");
    }
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
