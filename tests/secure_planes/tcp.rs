//! TLS of the TCP request plane, without any server: listeners of workers, and the response sockets that they dial.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::certificates::{Authority, Pair};
use crate::fleet::{Fleet, PATIENCE};
use crate::frontend::{Frontend, ask, small_listener};

/// Certificates of a test and a fleet that uses them.
struct Scene {
    runtime: tokio::runtime::Runtime,
    authority: Authority,
    fleet: Fleet,
    _scratch: TempDir,
}

fn variables<'a>(authority: &'a Path, own: &'a Pair) -> Vec<(&'static str, &'a Path)> {
    vec![
        ("DYN_TCP_TLS_CERT_PATH", &own.certificate),
        ("DYN_TCP_TLS_KEY_PATH", &own.key),
        ("DYN_TCP_TLS_CA_CERT_PATH", authority),
        ("DYN_TCP_TLS_CLIENT_CERT_PATH", &own.certificate),
        ("DYN_TCP_TLS_CLIENT_KEY_PATH", &own.key),
    ]
}

impl Scene {
    fn start(flags: &[&str], further: impl FnOnce(&Path) -> Vec<(&'static str, PathBuf)>) -> Self {
        let scratch = TempDir::new().unwrap();
        let authority = Authority::new(scratch.path(), "authority");
        let (path, own) = (authority.path(), authority.loopback("worker"));
        let further = further(&path);
        let mut variables = variables(&path, &own);
        variables.extend(further.iter().map(|(name, value)| (*name, value.as_path())));
        let fleet = Fleet::start(flags, &variables).unwrap();
        Self {
            runtime: tokio::runtime::Runtime::new().unwrap(),
            authority,
            fleet,
            _scratch: scratch,
        }
    }

    fn plain() -> Self {
        Self::start(&[], |_| Vec::new())
    }
}

#[test]
fn requests_and_answers_travel_encrypted_on_shared_and_own_listeners() {
    for ports in ["shared", "per-worker"] {
        let scene = Scene::start(&["--ports", ports], |_| Vec::new());
        let frontend = Frontend::new(&scene.authority);
        let address = scene.fleet.address();
        let answered = scene.runtime.block_on(async {
            let mut answer = frontend.call(&address, 5).await.unwrap();
            answer.finish().await
        });
        assert_eq!(answered, 5);
    }
}

#[test]
fn a_reader_that_is_slow_for_a_while_gets_everything_in_the_end() {
    let scene = Scene::plain();
    let frontend = Frontend::new(&scene.authority);
    let address = scene.fleet.address();
    let answered = scene.runtime.block_on(async {
        let mut answer = frontend.call(&address, 1500).await.unwrap();
        answer.dawdle(Duration::from_millis(300)).await;
        answer.finish().await
    });
    assert_eq!(answered, 1500);
}

#[test]
fn a_kill_inside_the_encryption_cancels() {
    let scene = Scene::start(&["--speedup-ratio", "1"], |_| Vec::new());
    let frontend = Frontend::new(&scene.authority);
    let address = scene.fleet.address();
    scene.runtime.block_on(async {
        let mut answer = frontend.call(&address, 1900).await.unwrap();
        answer.tokens(1).await;
        answer.kill().await;
        scene.fleet.until("the stream is cancelled", |fleet| {
            fleet.cluster.snapshot().workers[0].open_streams == 0
        });
    });
}

#[test]
fn a_worker_that_asks_for_certificates_serves_nobody_without_one() {
    let scene = Scene::start(&[], |authority| {
        vec![("DYN_TCP_TLS_CLIENT_CA_CERT_PATH", authority.to_owned())]
    });
    let address = scene.fleet.address();
    let stranger_scratch = TempDir::new().unwrap();
    let stranger = Authority::new(stranger_scratch.path(), "stranger").loopback("frontend");
    scene.runtime.block_on(async {
        let mut frontend = Frontend::new(&scene.authority);
        frontend
            .call(&address, 1)
            .await
            .err()
            .expect("no certificate, no answer");
        frontend.identity = Some(stranger);
        frontend
            .call(&address, 1)
            .await
            .err()
            .expect("a stranger's certificate");
        frontend.identity = Some(scene.authority.loopback("frontend"));
        assert_eq!(frontend.call(&address, 3).await.unwrap().finish().await, 3);
    });
}

#[test]
fn peers_without_tls_are_turned_away_and_do_not_hang() {
    let scene = Scene::start(&[], |_| {
        vec![("DYN_TCP_TLS_HANDSHAKE_TIMEOUT_SECS", PathBuf::from("1"))]
    });
    let address = scene.fleet.address();
    let (host, path) = address.split_once('/').unwrap();
    scene.runtime.block_on(async {
        let mut plain = TcpStream::connect(host).await.unwrap();
        let home = small_listener();
        ask(&mut plain, path, &home, &json!({"token_ids": [1]}))
            .await
            .expect_err("a plain request is no handshake");
        let mut silent = TcpStream::connect(host).await.unwrap();
        silent.write_all(&[0x16]).await.unwrap();
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(PATIENCE, silent.read_to_end(&mut rest)).await;
        drop(closed.expect("a handshake that never ends is ended"));
        let mut answer = Frontend::new(&scene.authority).call(&address, 2).await.unwrap();
        assert_eq!(answer.finish().await, 2);
    });
}

#[test]
fn a_response_server_that_cannot_be_trusted_hears_nothing() {
    let scene = Scene::plain();
    let address = scene.fleet.address();
    let stranger_scratch = TempDir::new().unwrap();
    let stranger = Authority::new(stranger_scratch.path(), "stranger").loopback("frontend");
    let elsewhere = scene.authority.sign("elsewhere", &["192.0.2.1"]);
    scene.runtime.block_on(async {
        for server in [stranger, elsewhere] {
            let mut frontend = Frontend::new(&scene.authority);
            frontend.server = Some(server);
            frontend.call(&address, 1).await.err().expect("the worker hangs up");
        }
    });
    scene.fleet.until("both calls are over", |fleet| {
        fleet.cluster.snapshot().workers[0].open_streams == 0
    });
}

#[test]
fn a_response_server_that_wants_a_certificate_which_the_worker_has_not_completes_nothing() {
    let scratch = TempDir::new().unwrap();
    let authority = Authority::new(scratch.path(), "authority");
    let (path, own) = (authority.path(), authority.loopback("worker"));
    let mut variables = variables(&path, &own);
    variables.retain(|(name, _)| !name.starts_with("DYN_TCP_TLS_CLIENT_"));
    let fleet = Fleet::start(&[], &variables).unwrap();
    let frontend = Frontend::new(&authority);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let address = fleet.address();
    // Of short answers everything is out before the refusal comes.
    for tokens in [1, 1, 1, 2000] {
        let refused = runtime.block_on(frontend.call(&address, tokens));
        refused.err().expect("no certificate, no answer");
    }
    fleet.until("all calls are over", |fleet| {
        let worker = fleet.cluster.snapshot().workers.remove(0);
        assert_eq!(worker.completed_total, 0);
        (worker.open_streams, worker.cancelled_total) == (0, 4)
    });
}

#[test]
fn a_server_name_stands_in_for_the_address() {
    let scene = Scene::start(&[], |_| {
        vec![("DYN_TCP_TLS_SERVER_NAME", PathBuf::from("frontend.test"))]
    });
    let address = scene.fleet.address();
    scene.runtime.block_on(async {
        let mut frontend = Frontend::new(&scene.authority);
        frontend.call(&address, 1).await.err().expect("not of that name");
        frontend.server = Some(scene.authority.sign("named", &["frontend.test"]));
        assert_eq!(frontend.call(&address, 2).await.unwrap().finish().await, 2);
    });
}

#[test]
fn without_a_check_any_certificate_will_do() {
    let scratch = TempDir::new().unwrap();
    let authority = Authority::new(scratch.path(), "authority");
    let (path, own) = (authority.path(), authority.loopback("worker"));
    let mut variables = variables(&path, &own);
    variables.retain(|(name, _)| *name != "DYN_TCP_TLS_CA_CERT_PATH");
    variables.push(("DYN_TCP_TLS_INSECURE", Path::new("true")));
    let fleet = Fleet::start(&[], &variables).unwrap();
    let stranger_scratch = TempDir::new().unwrap();
    let mut frontend = Frontend::new(&authority);
    frontend.server = Some(Authority::new(stranger_scratch.path(), "stranger").loopback("frontend"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let address = fleet.address();
    let answered = runtime.block_on(async { frontend.call(&address, 4).await.unwrap().finish().await });
    assert_eq!(answered, 4);
}
