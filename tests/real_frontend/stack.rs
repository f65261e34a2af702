//! The surroundings of one test: a scratch directory, discovery, and the frontends it asks for.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use crate::broker::Broker;
use crate::etcd::Etcd;
use crate::frontend::{Discovery, Frontend, FrontendOptions, RouterMode};
use crate::nats::Nats;
use crate::release::Release;

/// Where fleet and frontends find each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    Etcd,
    Files,
}

/// How requests travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requests {
    Tcp,
    Nats,
}

/// How events travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Events {
    Zmq,
    /// Through a broker that everybody is told of.
    Broker,
    /// Through a broker that has a record in discovery, which has to be files.
    DiscoveredBroker,
    Nats,
}

/// Discovery and scratch space; frontends and fleets of a test find each other through it.
pub(crate) struct Stack {
    /// The etcd, unless discovery goes through files.
    pub(crate) etcd: Option<Etcd>,
    /// The NATS server, where a plane needs one.
    pub(crate) nats: Option<Nats>,
    /// The ZeroMQ broker, where events go through one.
    pub(crate) broker: Option<Broker>,
    planes: Vec<(&'static str, String)>,
    discovery: Discovery,
    namespace: String,
    // Last: the servers above write into it until they have ended.
    scratch: TempDir,
}

impl Stack {
    /// With an etcd of its own.
    pub(crate) fn on_etcd() -> Self {
        let scratch = scratch();
        let etcd = Etcd::start(scratch.path());
        Self {
            discovery: Discovery::Etcd(etcd.endpoint()),
            etcd: Some(etcd),
            nats: None,
            broker: None,
            planes: Vec::new(),
            namespace: namespace(),
            scratch,
        }
    }

    /// With a directory; no server runs.
    pub(crate) fn on_files() -> Self {
        let scratch = scratch();
        let root = scratch.path().join("discovery");
        Self {
            etcd: None,
            nats: None,
            broker: None,
            planes: Vec::new(),
            discovery: Discovery::Files(root),
            namespace: namespace(),
            scratch,
        }
    }

    /// With these planes, and the servers that they need.
    pub(crate) fn on(store: Store, requests: Requests, events: Events) -> Self {
        let mut stack = match store {
            Store::Etcd => Self::on_etcd(),
            Store::Files => Self::on_files(),
        };
        if requests == Requests::Nats || events == Events::Nats {
            let nats = Nats::start(stack.scratch.path());
            stack.planes.push(("NATS_SERVER", nats.url()));
            stack.nats = Some(nats);
        }
        if requests == Requests::Nats {
            stack.planes.push(("DYN_REQUEST_PLANE", "nats".to_owned()));
        }
        match events {
            Events::Zmq => {}
            Events::Nats => stack.planes.push(("DYN_EVENT_PLANE", "nats".to_owned())),
            Events::Broker => {
                let broker = Broker::start(stack.scratch.path());
                stack.planes.push(("DYN_ZMQ_BROKER_URL", broker.url()));
                stack.broker = Some(broker);
            }
            Events::DiscoveredBroker => {
                let broker = Broker::start(stack.scratch.path());
                stack.announce(&broker);
                stack.planes.push(("DYN_ZMQ_BROKER_ENABLED", "true".to_owned()));
                stack.broker = Some(broker);
            }
        }
        stack
    }

    /// With further variables of fleet and frontends.
    pub(crate) fn with_variables(mut self, variables: &[(&'static str, &str)]) -> Self {
        let variables = variables.iter().map(|(name, value)| (*name, (*value).to_owned()));
        self.planes.extend(variables);
        self
    }

    /// Writes the record that a broker of Dynamo's own would put into discovery.
    fn announce(&self, broker: &Broker) {
        let Discovery::Files(root) = &self.discovery else {
            panic!("only files can be written by a test");
        };
        let [publishers, routers] = broker.endpoints();
        let record = serde_json::json!({
            "type": "EventChannel",
            "scope": {"kind": "component", "namespace": self.namespace, "component": "zmq_broker"},
            "topic": "zmq_broker",
            "instance_id": 77,
            "transport": {"kind": "ZmqBroker", "config": {"xsub_endpoints": [publishers], "xpub_endpoints": [routers]}},
        });
        let bucket = root.join("v1/event_channels");
        std::fs::create_dir_all(&bucket).expect("the scratch directory is writable");
        let encoded = |byte: u8| {
            if byte.is_ascii_alphanumeric() {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        };
        let key = format!("namespace/{}/component/zmq_broker/topic/zmq_broker/4d", self.namespace);
        let name: String = key.bytes().map(encoded).collect();
        let temporary = bucket.join(".tmp_0123456789abcdef");
        std::fs::write(&temporary, record.to_string()).expect("the scratch directory is writable");
        std::fs::rename(&temporary, bucket.join(&name)).expect("the scratch directory is writable");
        let file = std::fs::File::options().append(true).open(bucket.join(name));
        // Dated into the future, so that it does not expire while a test runs.
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(3600);
        file.and_then(|file| file.set_modified(later))
            .expect("our own file can be dated");
    }

    /// What tells fleets and frontends where they find each other.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        let mut environment = self.discovery.environment();
        environment.extend(self.planes.iter().cloned());
        environment
    }

    /// Where fleet and frontends find each other.
    pub(crate) fn discovery(&self) -> &Discovery {
        &self.discovery
    }

    /// The namespace of this test's workers.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A directory for files of the test.
    pub(crate) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// A frontend that migrates nothing.
    pub(crate) fn frontend(&self, release: Release, router_mode: RouterMode) -> Frontend {
        self.frontend_with(&FrontendOptions {
            release,
            router_mode,
            migration_limit: 0,
        })
    }

    /// A frontend.
    pub(crate) fn frontend_with(&self, options: &FrontendOptions) -> Frontend {
        Frontend::start(self.scratch.path(), &self.environment(), &self.namespace, options)
    }
}

fn scratch() -> TempDir {
    tempfile::Builder::new()
        .prefix("ghostfleet-test-")
        .tempdir()
        .expect("the temporary directory is writable")
}

/// One that no other test uses, also not one in another process.
fn namespace() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The model directory that ships with the project.
pub(crate) fn model_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/tiny-model")
}
