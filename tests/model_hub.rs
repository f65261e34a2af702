//! A model named by a hub id: what is downloaded, what is cached, and what the user is told when it cannot be had.
//!
//! The hub is a stand-in on loopback that answers the two routes of the real one, with its three ways to deliver a file:
//! directly, by a relative redirect, and by a redirect to a content server.

#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ghostfleet::model::{HubOptions, Model, ModelError, Origin};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TINY: &str = "config/tiny-model";
const TOKEN: &str = "hf_secret";

/// One request as the stand-in saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    server: &'static str,
    path: String,
    token: Option<String>,
}

/// What the stand-in holds and how it misbehaves.
#[derive(Clone, Default)]
struct Hub {
    files: BTreeMap<String, Vec<u8>>,
    /// Answer everything with this status and this explanation.
    refuse: Option<(u16, &'static str)>,
    /// Refuse whoever does not send `TOKEN`.
    gated: bool,
    /// Cut this file's body in half.
    cut: Option<&'static str>,
    /// Answer 503 to so many requests first.
    busy: u32,
    /// Answer the listing with this.
    listing: Option<&'static str>,
    /// Take requests and never answer.
    silent: bool,
}

struct Standin {
    endpoint: String,
    state: Arc<Mutex<(Hub, Vec<Seen>)>>,
}

impl Standin {
    fn start(hub: Hub) -> Self {
        let state = Arc::new(Mutex::new((hub, Vec::new())));
        let content = TcpListener::bind("127.0.0.1:0").unwrap();
        let content_url = format!("http://{}", content.local_addr().unwrap());
        let main = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", main.local_addr().unwrap());
        for (server, listener) in [("content", content), ("hub", main)] {
            let state = Arc::clone(&state);
            let content_url = content_url.clone();
            std::thread::spawn(move || {
                let mut kept = Vec::new();
                for stream in listener.incoming().map_while(Result::ok) {
                    kept.extend(serve(server, stream, &state, &content_url));
                }
            });
        }
        Self { endpoint, state }
    }

    fn options(&self, cache: &Path) -> HubOptions {
        HubOptions {
            endpoint: self.endpoint.clone(),
            cache: Some(cache.to_owned()),
            token: Some(TOKEN.to_owned()),
            patience: Duration::from_secs(10),
            ..HubOptions::default()
        }
    }

    fn change(&self, change: impl FnOnce(&mut Hub)) {
        change(&mut self.state.lock().unwrap().0);
    }

    fn seen(&self) -> Vec<Seen> {
        self.state.lock().unwrap().1.clone()
    }

    fn requests(&self) -> usize {
        self.seen().len()
    }
}

/// Answers one request; returns the connection when it is to be left open without an answer.
fn serve(
    server: &'static str,
    mut stream: TcpStream,
    state: &Mutex<(Hub, Vec<Seen>)>,
    content_url: &str,
) -> Option<TcpStream> {
    let (path, token) = read_request(&stream)?;
    let hub = {
        let mut state = state.lock().unwrap();
        state.1.push(Seen {
            server,
            path: path.clone(),
            token: token.clone(),
        });
        let hub = state.0.clone();
        state.0.busy = hub.busy.saturating_sub(1);
        hub
    };
    if hub.silent {
        return Some(stream);
    }
    let (status, headers, body) = answer(server, &hub, &path, token.as_deref(), content_url);
    let cut = hub.cut.is_some_and(|file| status == 200 && path.ends_with(file));
    let sent = if cut { &body[..body.len() / 2] } else { &body[..] };
    let head = format!(
        "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    // The client may have hung up; the test sees what it got.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(sent));
    None
}

fn read_request(stream: &TcpStream) -> Option<(String, Option<String>)> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let mut token = None;
    for line in lines.take_while(|line| !line.is_empty()) {
        if let Some((name, value)) = line.split_once(": ")
            && name.eq_ignore_ascii_case("authorization")
        {
            token = value.strip_prefix("Bearer ").map(str::to_owned);
        }
    }
    Some((path, token))
}

fn answer(server: &str, hub: &Hub, path: &str, token: Option<&str>, content: &str) -> (u16, String, Vec<u8>) {
    let file = |name: &str| hub.files.get(name).cloned();
    let none = (404, "x-error-message: Entry not found\r\n".to_owned(), Vec::new());
    if server == "content" {
        return file(path.trim_start_matches("/blob/")).map_or(none, |body| (200, String::new(), body));
    }
    if hub.busy > 0 {
        return (503, String::new(), Vec::new());
    }
    if let Some((status, text)) = hub.refuse {
        return (status, format!("x-error-message: {text}\r\n"), Vec::new());
    }
    if hub.gated && token != Some(TOKEN) {
        return (
            401,
            "x-error-message: Access to model org/tiny is restricted.\r\n".to_owned(),
            Vec::new(),
        );
    }
    if path == "/api/models/org/tiny/revision/main" || path == "/api/models/org/tiny/revision/refs%2Fpr%2F1" {
        let siblings: Vec<_> = hub
            .files
            .keys()
            .map(|name| serde_json::json!({ "rfilename": name }))
            .collect();
        let body = serde_json::json!({ "sha": COMMIT, "siblings": siblings }).to_string();
        let body = hub.listing.map_or(body, str::to_owned);
        return (200, String::new(), body.into());
    }
    if let Some(name) = path.strip_prefix("/api/resolve-cache/") {
        return file(name).map_or(none, |body| (200, "etag: \"cached\"\r\n".to_owned(), body));
    }
    let Some(name) = path.strip_prefix(&format!("/org/tiny/resolve/{COMMIT}/")) else {
        return none;
    };
    match name {
        "tokenizer.json" => {
            let headers = format!("x-linked-etag: \"linked\"\r\nlocation: {content}/blob/{name}\r\n");
            (302, headers, Vec::new())
        }
        "tokenizer_config.json" => (307, format!("location: /api/resolve-cache/{name}\r\n"), Vec::new()),
        _ => file(name).map_or(none, |body| (200, format!("etag: \"etag-{}\"\r\n", name.len()), body)),
    }
}

fn tiny() -> Hub {
    let mut hub = Hub::default();
    for name in [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        hub.files
            .insert(name.to_owned(), std::fs::read(Path::new(TINY).join(name)).unwrap());
    }
    for weights in ["model.safetensors", "pytorch_model.bin", "README.md"] {
        hub.files.insert(weights.to_owned(), b"not wanted".to_vec());
    }
    hub
}

fn failure(hub: &Standin, cache: &Path) -> String {
    Model::resolve("org/tiny", &hub.options(cache)).unwrap_err().to_string()
}

#[test]
fn only_config_and_tokenizer_files_are_downloaded_and_the_token_stays_with_the_hub() {
    let cache = tempfile::tempdir().unwrap();
    let hub = Standin::start(Hub { gated: true, ..tiny() });
    let model = Model::resolve("org/tiny", &hub.options(cache.path())).unwrap();
    assert_eq!(model.name(), "org/tiny");
    assert!(matches!(&model.origin, Origin::Hub { commit, .. } if commit == COMMIT));
    assert_eq!(model.dir, cache.path().join("models--org--tiny/snapshots").join(COMMIT));
    let local = Model::resolve(TINY, &HubOptions::default()).unwrap();
    assert_eq!(model.files.tokenizer.blake3, local.files.tokenizer.blake3);
    assert_eq!(model.info, local.info);

    let seen = hub.seen();
    assert_eq!(seen.len(), 7, "a listing, four files, two redirects: {seen:#?}");
    for request in &seen {
        let wanted = ["safetensors", ".bin", "README"]
            .iter()
            .all(|weights| !request.path.contains(weights));
        assert!(wanted, "{request:?}");
        let token = (request.server == "hub").then_some(TOKEN);
        assert_eq!(request.token.as_deref(), token, "{request:?}");
    }
    let blobs = cache.path().join("models--org--tiny/blobs");
    let mut names: Vec<_> = std::fs::read_dir(&blobs)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["cached", "etag-11", "etag-22", "linked"]);
    let reference = std::fs::read_to_string(cache.path().join("models--org--tiny/refs/main")).unwrap();
    assert_eq!(reference, COMMIT);
}

#[test]
fn the_second_run_asks_the_hub_for_nothing_and_offline_works_too() {
    let cache = tempfile::tempdir().unwrap();
    let hub = Standin::start(tiny());
    let first = Model::resolve("org/tiny", &hub.options(cache.path())).unwrap();
    let requests = hub.requests();
    for offline in [false, true] {
        let again = Model::resolve(
            "org/tiny",
            &HubOptions {
                offline,
                ..hub.options(cache.path())
            },
        )
        .unwrap();
        assert_eq!(again.files, first.files);
    }
    assert_eq!(hub.requests(), requests);
}

#[test]
fn a_snapshot_that_another_program_cached_is_used() {
    let cache = tempfile::tempdir().unwrap();
    let root = cache.path().join("models--org--tiny");
    let snapshot = root.join("snapshots").join(COMMIT);
    std::fs::create_dir_all(root.join("refs")).unwrap();
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::write(root.join("refs/main"), format!("{COMMIT}\n")).unwrap();
    for entry in std::fs::read_dir(TINY).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), snapshot.join(entry.file_name())).unwrap();
    }
    let options = HubOptions {
        offline: true,
        cache: Some(cache.path().to_owned()),
        ..HubOptions::default()
    };
    assert_eq!(Model::resolve("org/tiny", &options).unwrap().dir, snapshot);
    let pinned = Model::resolve(&format!("org/tiny@{COMMIT}"), &options).unwrap();
    assert_eq!(pinned.dir, snapshot);
}

#[test]
fn offline_without_a_cache_says_what_to_pass_instead() {
    let cache = tempfile::tempdir().unwrap();
    let hub = Standin::start(tiny());
    let options = HubOptions {
        offline: true,
        ..hub.options(cache.path())
    };
    let error = Model::resolve("org/tiny", &options).unwrap_err().to_string();
    for part in [
        "org/tiny",
        "HF_HUB_OFFLINE",
        "--model-path",
        "local directory",
        "HF_HOME",
        "config.json",
    ] {
        assert!(error.contains(part), "{part} is missing in: {error}");
    }
    assert_eq!(hub.requests(), 0);
}

#[test]
fn a_revision_is_kept_apart_from_main() {
    let cache = tempfile::tempdir().unwrap();
    let hub = Standin::start(tiny());
    let options = hub.options(cache.path());
    Model::resolve("org/tiny@refs/pr/1", &options).unwrap();
    assert!(hub.seen()[0].path.ends_with("/revision/refs%2Fpr%2F1"));
    assert!(cache.path().join("models--org--tiny/refs/refs/pr/1").is_file());
    let requests = hub.requests();
    Model::resolve("org/tiny", &options).unwrap();
    assert_eq!(
        hub.requests(),
        requests + 1,
        "main is listed, its files are there already"
    );
}

#[test]
fn a_gated_model_asks_for_a_token() {
    let cache = tempfile::tempdir().unwrap();
    let hub = Standin::start(Hub { gated: true, ..tiny() });
    let options = HubOptions {
        token: None,
        ..hub.options(cache.path())
    };
    let error = Model::resolve("org/tiny", &options).unwrap_err();
    assert!(matches!(error, ModelError::Forbidden { status: 401, .. }));
    let error = error.to_string();
    assert!(
        error.contains("HF_TOKEN") && error.contains("restricted") && error.contains(&hub.endpoint),
        "{error}"
    );
    hub.change(|hub| hub.refuse = Some((403, "awaiting review")));
    let error = failure(&hub, cache.path());
    assert!(
        error.contains("HTTP 403") && error.contains("awaiting review"),
        "{error}"
    );
}

#[test]
fn an_unknown_model_is_not_found() {
    let cache = tempfile::tempdir().unwrap();
    let hub = Standin::start(tiny());
    let error = Model::resolve("org/other", &hub.options(cache.path())).unwrap_err();
    assert!(matches!(error, ModelError::NotFound { .. }));
    let error = error.to_string();
    assert!(
        error.contains("org/other") && error.contains("spelling") && error.contains(&hub.endpoint),
        "{error}"
    );
}

#[test]
fn a_hub_that_cannot_be_reached_is_named() {
    let cache = tempfile::tempdir().unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let options = HubOptions {
        endpoint: endpoint.clone(),
        cache: Some(cache.path().to_owned()),
        ..HubOptions::default()
    };
    let error = Model::resolve("org/tiny", &options).unwrap_err();
    assert!(matches!(error, ModelError::Unreachable { .. }));
    let error = error.to_string();
    assert!(error.contains(&endpoint) && error.contains("HF_ENDPOINT"), "{error}");
}

#[test]
fn a_hub_that_never_answers_is_given_up() {
    let cache = tempfile::tempdir().unwrap();
    let hub = Standin::start(Hub { silent: true, ..tiny() });
    let options = HubOptions {
        patience: Duration::from_millis(200),
        ..hub.options(cache.path())
    };
    let error = Model::resolve("org/tiny", &options).unwrap_err();
    assert!(matches!(error, ModelError::Unreachable { .. }), "{error}");
}

#[test]
fn a_busy_hub_is_asked_again_a_few_times() {
    let cache = tempfile::tempdir().unwrap();
    let hub = Standin::start(Hub { busy: 2, ..tiny() });
    Model::resolve("org/tiny", &hub.options(cache.path())).unwrap();
    let other = tempfile::tempdir().unwrap();
    hub.change(|hub| hub.busy = 1000);
    let error = failure(&hub, other.path());
    assert!(error.contains("503"), "{error}");
}

#[test]
fn a_download_that_breaks_off_is_told_and_done_again_next_time() {
    let cache = tempfile::tempdir().unwrap();
    let hub = Standin::start(Hub {
        cut: Some("tokenizer.json"),
        ..tiny()
    });
    let error = failure(&hub, cache.path());
    assert!(error.contains("tokenizer.json broke off"), "{error}");
    assert!(!cache.path().join("models--org--tiny/refs/main").exists());
    hub.change(|hub| hub.cut = None);
    let before = hub.requests();
    Model::resolve("org/tiny", &hub.options(cache.path())).unwrap();
    let again = &hub.seen()[before..];
    assert!(
        !again.iter().any(|request| request.path.ends_with("/config.json")),
        "{again:#?}"
    );
}

#[test]
fn a_repository_without_a_tokenizer_is_refused_before_anything_big_is_fetched() {
    let cache = tempfile::tempdir().unwrap();
    let mut files = tiny();
    files.files.remove("tokenizer.json");
    let hub = Standin::start(files);
    let error = failure(&hub, cache.path());
    assert!(
        error.contains("org/tiny") && error.contains("no tokenizer.json") && error.contains("copy it"),
        "{error}"
    );
}

#[test]
fn nonsense_from_the_hub_is_an_error() {
    let cache = tempfile::tempdir().unwrap();
    let hub = Standin::start(tiny());
    for listing in ["<html>", "{}", r#"{"sha":"../../etc","siblings":[]}"#] {
        hub.change(|hub| hub.listing = Some(listing));
        let error = Model::resolve("org/tiny", &hub.options(cache.path())).unwrap_err();
        assert!(matches!(error, ModelError::BadAnswer { .. }), "{error}");
        assert!(error.to_string().contains(&hub.endpoint), "{error}");
    }
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "in the way").unwrap();
    let hub = Standin::start(tiny());
    let error = failure(&hub, &file.join("hub"));
    assert!(
        error.contains("cannot write") && error.contains("file/hub") && error.contains("HF_HUB_CACHE"),
        "{error}"
    );
}

#[test]
fn no_place_for_a_cache_is_an_error() {
    let error = Model::resolve("org/tiny", &HubOptions::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("HF_HOME"), "{error}");
}
