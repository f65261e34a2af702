//! A server that the drill starts: a router, an index. It has a free port, a log, and ends with the drill.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::error::DrillError;
use super::group;
use super::scenario::server::Command;
use super::tail::tail;

/// How often it is looked whether it is ready.
const LOOK: Duration = Duration::from_millis(100);

/// A port that was free a moment ago may be taken when the server wants it.
const ATTEMPTS: u32 = 3;

/// How often it is told what is being waited for.
const TELL: Duration = Duration::from_secs(5);

/// The way out when the program, or its Python package, is not found.
const ENVIRONMENT: &str = "is its environment on the PATH? `export PATH=$PWD/.venv/dynamo-1.6.1/bin:$PATH`";

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

/// Where a server is started, and who hears of it.
#[derive(Clone, Copy)]
pub(super) struct Surroundings<'a> {
    /// What it is, for messages: `frontend`.
    pub(super) what: &'static str,
    pub(super) places: &'a Places,
    /// Where its log goes.
    pub(super) scratch: &'a Path,
    pub(super) tell: &'a dyn Fn(&str),
}

/// A server that the drill has started; it ends with this.
#[derive(Debug)]
pub(super) struct Process {
    what: &'static str,
    child: Child,
    log: PathBuf,
    /// `host:port`.
    pub(super) authority: String,
}

impl Process {
    /// Starts one and waits until `look` is content with what is at its address.
    pub(super) async fn start(
        surroundings: Surroundings<'_>,
        command: &Command,
        look: impl AsyncFn(&str) -> Result<(), String>,
    ) -> Result<Self, DrillError> {
        let Surroundings { what, tell, .. } = surroundings;
        let mut attempt = 1;
        loop {
            let mut process = Self::spawn(surroundings, command, attempt)?;
            let authority = process.authority.clone();
            let limit = command.ready_within.duration();
            let ready = wait_ready(
                (what, tell),
                limit,
                async || look(&authority).await,
                || process.has_ended(),
            );
            match ready.await {
                Ok(()) => return Ok(process),
                Err(NotReady::Ended(..)) if attempt < ATTEMPTS && process.has_lost_its_port() => attempt += 1,
                Err(why) => return Err(process.explain(&why)),
            }
        }
    }

    fn spawn(surroundings: Surroundings<'_>, command: &Command, attempt: u32) -> Result<Self, DrillError> {
        let Surroundings {
            what, places, scratch, ..
        } = surroundings;
        let io = |act: String| move |error| DrillError::Io(act, error);
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(io(format!("find a free port for the {what}")))?;
        let port = listener
            .local_addr()
            .map_err(io(format!("find a free port for the {what}")))?
            .port();
        drop(listener);
        let log = scratch.join(format!("{what}-{attempt}.log"));
        let words: Vec<String> = command.words.iter().map(|word| places.fill(word, port)).collect();
        let variables = command
            .env
            .iter()
            .map(|(name, value)| (name.as_str(), places.fill(value, port)));
        let own = places.environment.iter().map(|(name, value)| (*name, value.clone()));
        // A shell that starts the server for us ends with it and with whatever else it has started.
        let child = group::leader(&words, &log)
            .map_err(io(format!("write the {what}'s log")))?
            .envs(own)
            .env("DYN_SDK_DISABLE_ANSI_LOGGING", "1")
            .envs(variables)
            .spawn();
        let child = child.map_err(|error| {
            DrillError::Frontend(format!(
                "cannot start the {what} {:?}: {error}; put the program's path into the command, or {ENVIRONMENT}",
                words[0]
            ))
        })?;
        Ok(Self {
            what,
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
            Some(status) => Err(self.explain(&NotReady::Ended(self.what, status))),
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

impl Drop for Process {
    fn drop(&mut self) {
        group::end(&mut self.child);
    }
}

/// Why a server is not ready.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotReady {
    #[error("the {0} has ended ({1})")]
    Ended(&'static str, String),
    #[error("the {what} was not ready within {} s: {missing}", waited.as_secs())]
    Late {
        what: &'static str,
        waited: Duration,
        missing: String,
    },
}

/// Waits until `look` is content; it says what is missing.
pub(super) async fn wait_ready(
    (what, tell): (&'static str, &dyn Fn(&str)),
    limit: Duration,
    look: impl AsyncFn() -> Result<(), String>,
    mut ended: impl FnMut() -> Option<String>,
) -> Result<(), NotReady> {
    let begun = Instant::now();
    let mut missing = "it does not answer".to_owned();
    let looking = async {
        let mut told = begun;
        loop {
            match look().await {
                Ok(()) => return,
                Err(why) => missing = why,
            }
            if told.elapsed() >= TELL {
                told = Instant::now();
                let waited = begun.elapsed().as_secs();
                let limit = limit.as_secs();
                tell(&format!(
                    "waiting for the {what} for {waited} s of {limit} s: {missing}"
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
        Some(status) => NotReady::Ended(what, status),
        None => NotReady::Late {
            what,
            waited: limit,
            missing,
        },
    })
}
