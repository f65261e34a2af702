//! A nats-server, a fleet on it, and a raw client that stands in for the frontend.

use std::collections::BTreeMap;
use std::net::TcpStream as StdTcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use async_nats::Client;
use ghostfleet::actors::registry::InUse;
use ghostfleet::cluster::Cluster;
use ghostfleet::serve::config_from;
use ghostfleet::transport::discovery::record::{EndpointInstance, INSTANCES, RequestAddress};
use ghostfleet::transport::discovery::{DiscoveryConfig, MemStore};
use ghostfleet::transport::request_plane::{Codec, control, two_part};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// How long anything may take before it counts as never.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

/// A nats-server that ends with the test.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    arguments: Vec<String>,
}

impl Server {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        for _ in 0..5 {
            let port = std::net::TcpListener::bind(("127.0.0.1", 0))
                .unwrap()
                .local_addr()
                .unwrap()
                .port();
            let mut child = spawn(port, &arguments);
            if wait_open(&mut child, port) {
                return Self { child, port, arguments };
            }
        }
        panic!("nats-server does not start");
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn restart(&mut self) {
        self.child = spawn(self.port, &self.arguments);
        assert!(wait_open(&mut self.child, self.port), "nats-server does not come back");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(port: u16, arguments: &[String]) -> Child {
    Command::new("setpriv")
        .args([
            "--pdeathsig",
            "KILL",
            "--",
            "nats-server",
            "--addr",
            "127.0.0.1",
            "--port",
        ])
        .arg(port.to_string())
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn wait_open(child: &mut Child, port: u16) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if StdTcpStream::connect(("127.0.0.1", port)).is_ok() {
            return true;
        }
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// A fleet on NATS with a map for discovery, and a client beside it.
pub(crate) struct Scene {
    pub(crate) runtime: Runtime,
    pub(crate) server: Server,
    pub(crate) store: MemStore,
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
}

impl Scene {
    pub(crate) fn start(flags: &[&str]) -> Self {
        let server = Server::start(&[]);
        let url = server.url();
        Self::between(server, &url, flags)
    }

    /// A fleet that reaches the server by this address; the client beside it goes straight to it.
    pub(crate) fn between(server: Server, url: &str, flags: &[&str]) -> Self {
        let runtime = Runtime::new().unwrap();
        let store = MemStore::default();
        let cluster = fleet(url, flags, &store, &BTreeMap::new()).unwrap();
        let client = runtime.block_on(async_nats::connect(server.url())).unwrap();
        Self {
            runtime,
            server,
            store,
            cluster,
            client,
        }
    }

    /// Endpoint records whose endpoint starts with this.
    pub(crate) fn endpoints(&self, name: &str) -> Vec<EndpointInstance> {
        let records = self.store.list(INSTANCES);
        let decoded = records
            .iter()
            .map(|record| EndpointInstance::decode(&record.value).unwrap());
        decoded
            .filter(|endpoint| endpoint.name.endpoint().starts_with(name))
            .collect()
    }

    pub(crate) fn subject(&self, worker: usize) -> String {
        let id = self.cluster.snapshot().workers[worker].instance_id;
        let endpoints = self.endpoints("generate");
        let endpoint = endpoints.iter().find(|endpoint| endpoint.instance.0 == id).unwrap();
        match &endpoint.address {
            RequestAddress::Nats(subject) => subject.clone(),
            RequestAddress::Tcp(address) => panic!("a TCP address: {address}"),
        }
    }

    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < PATIENCE, "never happened: {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.until("nothing in use", |scene| {
                scene.cluster.snapshot().in_use() == InUse::default()
            });
        }
    }
}

pub(crate) fn fleet(
    url: &str,
    flags: &[&str],
    store: &MemStore,
    variables: &BTreeMap<String, String>,
) -> Result<Cluster, String> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/tiny-model");
    let fixed = [
        "--model-path",
        model.to_str().unwrap(),
        "--discovery-backend",
        "mem",
        "--block-size",
        "4",
    ];
    let planes = ["--request-plane", "nats", "--event-plane", "nats", "--nats-server", url];
    let flags = fixed.iter().chain(&planes).chain(flags).copied();
    let mut config = config_from(flags, variables).map_err(|error| error.to_string())?;
    config.discovery = DiscoveryConfig::Mem(store.clone());
    Cluster::start(&config).map_err(|error| error.to_string())
}

pub(crate) fn chat(prompt: &[u32], max_tokens: u32) -> Value {
    json!({"token_ids": prompt, "stop_conditions": {"max_tokens": max_tokens, "ignore_eos": true}})
}

/// Calls as a frontend does; the items of the answer, or the refusal.
pub(crate) async fn call(client: &Client, subject: &str, codec: Codec, request: Value) -> Result<Vec<Value>, String> {
    let home = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let control = control::encode("id", codec, home.local_addr().unwrap(), "s");
    let body = match codec {
        Codec::Json => request.to_string().into_bytes(),
        Codec::Msgpack => rmp_serde::to_vec_named(&request).unwrap(),
    };
    let mut payload = Vec::new();
    two_part::write(&mut payload, &control, &body);
    let reply = client
        .request(subject.to_owned(), payload.into())
        .await
        .map_err(|error| error.to_string())?;
    if !reply.payload.is_empty() {
        return Err(String::from_utf8(reply.payload.to_vec()).unwrap());
    }
    let (mut socket, _) = tokio::time::timeout(PATIENCE, home.accept()).await.unwrap().unwrap();
    let mut items = Vec::new();
    loop {
        let mut prefix = [0; two_part::PREFIX_BYTES];
        socket.read_exact(&mut prefix).await.unwrap();
        let prefix = two_part::decode_prefix(&prefix, 1 << 24).unwrap();
        let mut header = vec![0; usize::try_from(prefix.header).unwrap()];
        let mut data = vec![0; usize::try_from(prefix.data).unwrap()];
        socket.read_exact(&mut header).await.unwrap();
        socket.read_exact(&mut data).await.unwrap();
        if header == b"\"sentinel\"" {
            return Ok(items);
        }
        if header.is_empty() {
            items.push(codec.decode::<Value>(&data).unwrap());
        }
    }
}

pub(crate) fn tokens(items: &[Value]) -> usize {
    let ids = items
        .iter()
        .filter_map(|item| item["data"]["data"]["token_ids"].as_array());
    ids.map(Vec::len).sum()
}
