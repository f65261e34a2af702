//! The router under test: found at its address, or started, waited for, and ended.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::client::{self, Answer, Ask};
use super::error::DrillError;
use super::group;
use super::scenario::frontend::Command;
use super::tail::tail;

/// How often it is looked whether the router is ready.
const LOOK: Duration = Duration::from_millis(100);

/// Longest wait for one small page.
const PAGE_LIMIT: Duration = Duration::from_secs(5);

/// A port that was free a moment ago may be taken when the router wants it.
const ATTEMPTS: u32 = 3;

/// How often it is told what is being waited for.
const TELL: Duration = Duration::from_secs(5);

/// The way out when the router's program, or its Python package, is not found.
const ENVIRONMENT: &str = "is its environment on the PATH? `export PATH=$PWD/.venv/dynamo-1.6.1/bin:$PATH`";

/// What a router has to serve.
#[derive(Debug, Clone)]
pub(super) struct Expected {
    /// Model.
    pub(super) model: String,
    /// Workers.
    pub(super) workers: usize,
    /// Last parts of their endpoints' names.
    pub(super) endpoints: BTreeSet<String>,
    /// An ordinary prompt.
    pub(super) prompt: Vec<u32>,
}

/// What placeholders stand for.
#[derive(Debug, Clone)]
pub(super) struct Places {
    /// Discovery directory, or servers.
    pub(super) discovery: String,
    /// Namespace of the first group.
    pub(super) namespace: String,
    /// Model.
    pub(super) model: String,
    /// What leads a router to the fleet.
    pub(super) environment: Vec<(&'static str, String)>,
}

impl Places {
    fn fill(&self, text: &str, port: u16) -> String {
        text.replace("{port}", &port.to_string())
            .replace("{discovery}", &self.discovery)
            .replace("{namespace}", &self.namespace)
            .replace("{model}", &self.model)
    }
}

/// A router that the drill has started; it ends with this.
#[derive(Debug)]
pub(super) struct Router {
    child: Child,
    log: PathBuf,
    /// `host:port`.
    pub(super) authority: String,
}

impl Router {
    /// Starts one and waits until it serves what is expected.
    pub(super) async fn start(
        command: &Command,
        places: &Places,
        expected: &Expected,
        scratch: &Path,
        tell: &dyn Fn(&str),
    ) -> Result<Self, DrillError> {
        let mut attempt = 1;
        loop {
            let mut router = Self::spawn(command, places, scratch, attempt)?;
            let limit = command.ready_within.duration();
            match wait_ready(&router.authority.clone(), expected, limit, tell, || router.has_ended()).await {
                Ok(()) => return Ok(router),
                Err(NotReady::Ended(_)) if attempt < ATTEMPTS && router.has_lost_its_port() => attempt += 1,
                Err(why) => return Err(router.explain(&why)),
            }
        }
    }

    fn spawn(command: &Command, places: &Places, scratch: &Path, attempt: u32) -> Result<Self, DrillError> {
        let io = |what: &str| {
            let what = what.to_owned();
            move |error| DrillError::Io(what, error)
        };
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(io("find a free port for the frontend"))?;
        let port = listener
            .local_addr()
            .map_err(io("find a free port for the frontend"))?
            .port();
        drop(listener);
        let log = scratch.join(format!("frontend-{attempt}.log"));
        let output = File::create(&log).map_err(io("write the frontend's log"))?;
        let errors = output.try_clone().map_err(io("write the frontend's log"))?;
        let words: Vec<String> = command.words.iter().map(|word| places.fill(word, port)).collect();
        let variables = command
            .env
            .iter()
            .map(|(name, value)| (name.as_str(), places.fill(value, port)));
        let own = places.environment.iter().map(|(name, value)| (*name, value.clone()));
        let child = std::process::Command::new(&words[0])
            .args(&words[1..])
            .envs(own)
            .env("DYN_SDK_DISABLE_ANSI_LOGGING", "1")
            .envs(variables)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            // A shell that starts the router for us ends with it and with whatever else it has started.
            .process_group(0)
            .spawn();
        let child = child.map_err(|error| {
            DrillError::Frontend(format!(
                "cannot start the frontend {:?}: {error}; put the program's path into the command, or {ENVIRONMENT}",
                words[0]
            ))
        })?;
        Ok(Self {
            child,
            log,
            authority: format!("127.0.0.1:{port}"),
        })
    }

    fn has_ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(Some(status)) => Some(status.to_string()),
            Ok(None) | Err(_) => None,
        }
    }

    /// Whether it is still there.
    ///
    /// # Errors
    /// How it ended, with the end of its log.
    pub(super) fn check_alive(&mut self) -> Result<(), DrillError> {
        match self.has_ended() {
            None => Ok(()),
            Some(status) => Err(self.explain(&NotReady::Ended(status))),
        }
    }

    fn explain(&self, why: &NotReady) -> DrillError {
        let log = self.log_tail();
        if log.trim().is_empty() {
            return DrillError::Frontend(format!("{why}; it wrote nothing"));
        }
        let hint = if log.contains("No module named 'dynamo") {
            format!("; {ENVIRONMENT}")
        } else {
            String::new()
        };
        DrillError::Frontend(format!("{why}{hint}; the end of its log:\n{log}"))
    }

    /// Whether it says that somebody else has the port that it was to have.
    fn has_lost_its_port(&self) -> bool {
        let log = self.log_tail().to_lowercase();
        [
            "address already in use",
            "address in use",
            "eaddrinuse",
            "port is already",
        ]
        .iter()
        .any(|words| log.contains(words))
    }

    /// The end of its log.
    pub(super) fn log_tail(&self) -> String {
        tail(&self.log)
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        group::end(&mut self.child);
    }
}

/// Why a router is not ready.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotReady {
    #[error("the frontend has ended ({0})")]
    Ended(String),
    #[error("the frontend was not ready within {} s: {missing}", waited.as_secs())]
    Late { waited: Duration, missing: String },
}

/// Waits until the router at `authority` lists the model with all workers and answers a request.
pub(super) async fn wait_ready(
    authority: &str,
    expected: &Expected,
    limit: Duration,
    tell: &dyn Fn(&str),
    mut ended: impl FnMut() -> Option<String>,
) -> Result<(), NotReady> {
    let begun = Instant::now();
    let mut missing = "it does not answer".to_owned();
    let looking = async {
        let mut told = begun;
        loop {
            match look(authority, expected).await {
                Ok(()) => return,
                Err(why) => missing = why,
            }
            if told.elapsed() >= TELL {
                told = Instant::now();
                let waited = begun.elapsed().as_secs();
                let limit = limit.as_secs();
                tell(&format!(
                    "waiting for the frontend for {waited} s of {limit} s: {missing}"
                ));
            }
            sleep(LOOK).await;
        }
    };
    // One look may take long: a program that has ended is not waited for meanwhile.
    let ending = async {
        loop {
            if let Some(status) = ended() {
                return status;
            }
            sleep(LOOK).await;
        }
    };
    let reached = tokio::select! {
        () = looking => Ok(()),
        status = ending => Err(Some(status)),
        () = sleep(limit) => Err(None),
    };
    reached.map_err(|status| match status {
        Some(status) => NotReady::Ended(status),
        None => NotReady::Late { waited: limit, missing },
    })
}

async fn look(authority: &str, expected: &Expected) -> Result<(), String> {
    let page = async |path| client::get(authority, path, PAGE_LIMIT).await;
    let models = page("/v1/models").await.ok_or("it does not answer")?;
    let models: Value = serde_json::from_slice(&models.1).unwrap_or_default();
    let listed = models["data"]
        .as_array()
        .is_some_and(|all| all.iter().any(|model| model["id"] == *expected.model));
    if !listed {
        return Err(format!("it does not list the model {}", expected.model));
    }
    // Only Dynamo's frontends tell their instances.
    if let Some((_, health)) = page("/health").await
        && let Ok(health) = serde_json::from_slice::<Value>(&health)
        && let Some(instances) = health["instances"].as_array()
    {
        let ours = |instance: &&Value| {
            instance["endpoint"]
                .as_str()
                .is_some_and(|name| expected.endpoints.contains(name))
        };
        let known: BTreeSet<u64> = instances
            .iter()
            .filter(ours)
            .filter_map(|instance| instance["instance_id"].as_u64())
            .collect();
        if known.len() < expected.workers {
            return Err(format!("it knows {} of {} workers", known.len(), expected.workers));
        }
    }
    let body = json!({
        "model": expected.model, "prompt": expected.prompt, "max_tokens": 1, "stream": false,
    });
    let mut answer = Answer::default();
    let ask = Ask {
        authority: authority.to_owned(),
        body: body.to_string().into(),
        stream: false,
        first_token_timeout: PAGE_LIMIT,
        timeout: PAGE_LIMIT,
    };
    client::ask(ask, &mut answer).await;
    match answer.failure {
        None => Ok(()),
        Some(failure) => Err(format!("a request fails with {}: {}", failure.kind, failure.detail)),
    }
}
