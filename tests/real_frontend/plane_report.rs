//! What the scenario has shown on one combination of planes, written down for the table in the README.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use crate::release::Release;
use crate::stack::{Events, Requests, Store};

/// Directory of the reports; nothing is written unless `scripts/test` names one.
const DIRECTORY: &str = "GHOSTFLEET_PLANE_REPORTS";

/// Parts of the scenario, in the order of the table's columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    List,
    Stream,
    KvRouting,
    LateFrontend,
    Cancel,
    Crash,
    Drain,
}

impl Part {
    fn word(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Stream => "stream",
            Self::KvRouting => "KV routing",
            Self::LateFrontend => "late frontend",
            Self::Cancel => "cancel",
            Self::Crash => "crash",
            Self::Drain => "drain",
        }
    }
}

/// The report of one run: a file named after combination and release, with a line for each part that held.
pub(crate) struct PlaneReport {
    file: Option<PathBuf>,
}

impl PlaneReport {
    /// Begins an empty one; a run that is tried again begins anew.
    pub(crate) fn begin(release: Release, store: Store, requests: Requests, events: Events) -> Self {
        let store = match store {
            Store::Etcd => "etcd",
            Store::Files => "file",
        };
        let requests = match requests {
            Requests::Tcp => "tcp",
            Requests::Nats => "nats",
        };
        let events = match events {
            Events::Zmq => "zmq",
            Events::Broker | Events::DiscoveredBroker => "broker",
            Events::Nats => "nats",
        };
        let name = format!("{store} {requests} {events} {}", release.version());
        let file = std::env::var_os(DIRECTORY).map(|directory| PathBuf::from(directory).join(name));
        if let Some(file) = &file {
            std::fs::write(file, "").expect("the directory of the reports is writable");
        }
        Self { file }
    }

    /// One that nobody reads.
    pub(crate) fn unwritten() -> Self {
        Self { file: None }
    }

    /// This part held.
    pub(crate) fn shown(&self, part: Part) {
        if let Some(file) = &self.file {
            let mut file = OpenOptions::new().append(true).open(file).expect("the report is there");
            writeln!(file, "{}", part.word()).expect("the report is writable");
        }
    }
}
