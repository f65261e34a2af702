//! A real Dynamo frontend of one test's own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::client::Client;
use crate::process::{Process, free_port};
use crate::release::Release;

const START_LIMIT: Duration = Duration::from_secs(60);
const ATTEMPTS: u32 = 3;

/// Where fleet and frontend find each other.
#[derive(Debug, Clone)]
pub(crate) enum Discovery {
    /// An etcd at this URL.
    Etcd(String),
    /// Files below this directory.
    Files(PathBuf),
}

impl Discovery {
    /// The variables that lead a Dynamo process (or ours) there.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Etcd(endpoint) => {
                vec![
                    ("DYN_DISCOVERY_BACKEND", "etcd".to_owned()),
                    ("ETCD_ENDPOINTS", endpoint.clone()),
                ]
            }
            Self::Files(root) => {
                vec![
                    ("DYN_DISCOVERY_BACKEND", "file".to_owned()),
                    ("DYN_FILE_KV", root.display().to_string()),
                ]
            }
        }
    }
}

/// How the frontend chooses workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouterMode {
    /// One after the other.
    RoundRobin,
    /// By KV overlap and load.
    Kv,
}

/// What to start.
#[derive(Debug, Clone)]
pub(crate) struct FrontendOptions {
    /// Release.
    pub(crate) release: Release,
    /// How it chooses.
    pub(crate) router_mode: RouterMode,
    /// How often it may move a request whose worker died.
    pub(crate) migration_limit: u32,
}

/// A running frontend on loopback.
pub(crate) struct Frontend {
    process: Process,
    client: Client,
}

impl Frontend {
    /// Starts one that sees `namespace` only, and waits until it answers HTTP.
    pub(crate) fn start(
        scratch: &Path,
        environment: &[(&'static str, String)],
        namespace: &str,
        options: &FrontendOptions,
    ) -> Self {
        for attempt in 1..=ATTEMPTS {
            let port = free_port();
            let client = Client::new(port);
            let mut process = spawn(scratch, environment, namespace, options, port);
            match process.wait_ready(START_LIMIT, || client.is_live()) {
                Ok(()) => return Self { process, client },
                Err(_status) if attempt == ATTEMPTS => process.show_log(),
                Err(_status) => {}
            }
        }
        panic!(
            "the Dynamo {} frontend did not start in {ATTEMPTS} attempts; its log is above",
            options.release.version()
        );
    }

    /// Starts one with a command line as `serve` prints it, variables first; only `python` and the port are replaced.
    pub(crate) fn start_printed(scratch: &Path, release: Release, line: &str) -> Self {
        let words: Vec<_> = line.split_whitespace().collect();
        let python = words
            .iter()
            .position(|word| *word == "python")
            .expect("the command names python");
        let (variables, arguments) = (&words[..python], &words[python + 1..]);
        let port = free_port();
        let name = format!("frontend-{}-{port}", release.version());
        let mut process = Process::start(&name, &release.python(), scratch, |command| {
            command.env("HF_HUB_OFFLINE", "1").env("DYN_HTTP_HOST", "127.0.0.1");
            for variable in variables {
                let (name, value) = variable
                    .split_once('=')
                    .expect("what stands before python sets a variable");
                command.env(name, value);
            }
            let mut is_port = false;
            for argument in arguments {
                let own = port.to_string();
                command.arg(if is_port { own.as_str() } else { *argument });
                is_port = *argument == "--http-port";
            }
        });
        let client = Client::new(port);
        let ready = process.wait_ready(START_LIMIT, || client.is_live());
        assert!(ready.is_ok(), "the printed command failed: {line}");
        Self { process, client }
    }

    /// A client of it.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Kills it as a crash would.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }
}

fn spawn(
    scratch: &Path,
    environment: &[(&'static str, String)],
    namespace: &str,
    options: &FrontendOptions,
    port: u16,
) -> Process {
    let release = options.release;
    let name = format!("frontend-{}-{port}", release.version());
    Process::start(&name, &release.python(), scratch, |command| {
        command.args(["-m", "dynamo.frontend", "--http-host", "127.0.0.1"]);
        command.args(["--http-port", &port.to_string(), "--namespace", namespace]);
        command.args(["--migration-limit", &options.migration_limit.to_string()]);
        command.args([
            "--router-mode",
            match options.router_mode {
                RouterMode::RoundRobin => "round-robin",
                RouterMode::Kv => "kv",
            },
        ]);
        command.envs(environment.iter().cloned());
        // Everything on loopback.
        command
            .env("DYN_TCP_RPC_HOST", "127.0.0.1")
            .env("DYN_EVENT_PLANE_HOST", "127.0.0.1");
        command.env("DYN_TCP_RESPONSE_STREAM_HOST", release.loopback_response_host());
        // No download, no colours in the log.
        command
            .env("HF_HUB_OFFLINE", "1")
            .env("DYN_SDK_DISABLE_ANSI_LOGGING", "1");
    })
}
