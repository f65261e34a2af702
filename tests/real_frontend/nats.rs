//! A nats-server of one test's own.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::{Process, free_port};

const START_LIMIT: Duration = Duration::from_secs(20);
const ATTEMPTS: u32 = 3;

/// A running nats-server on loopback.
pub(crate) struct Nats {
    process: Process,
    scratch: PathBuf,
    port: u16,
    jetstream: bool,
}

impl Nats {
    /// Starts one; its log goes to `scratch`.
    pub(crate) fn start(scratch: &Path) -> Self {
        Self::with(scratch, false)
    }

    /// One with `JetStream`, which keeps its files in `scratch`.
    pub(crate) fn start_with_jetstream(scratch: &Path) -> Self {
        Self::with(scratch, true)
    }

    fn with(scratch: &Path, jetstream: bool) -> Self {
        for attempt in 1..=ATTEMPTS {
            let port = free_port();
            match spawn(scratch, port, jetstream) {
                Ok(process) => {
                    return Self {
                        process,
                        scratch: scratch.to_owned(),
                        port,
                        jetstream,
                    };
                }
                Err(process) if attempt == ATTEMPTS => process.show_log(),
                Err(_) => {}
            }
        }
        panic!("nats-server did not start in {ATTEMPTS} attempts; its log is above");
    }

    /// `nats://127.0.0.1:port`.
    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills it as a power cut would.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again on the same address.
    pub(crate) fn restart(&mut self) {
        match spawn(&self.scratch, self.port, self.jetstream) {
            Ok(process) => self.process = process,
            Err(process) => {
                process.show_log();
                panic!("nats-server did not come back on port {}; its log is above", self.port);
            }
        }
    }
}

/// Starts it and waits until it takes connections; `Err` when it ended instead.
fn spawn(scratch: &Path, port: u16, jetstream: bool) -> Result<Process, Process> {
    let mut process = Process::start("nats-server", Path::new("nats-server"), scratch, |command| {
        command.args(["--addr", "127.0.0.1", "--port", &port.to_string()]);
        if jetstream {
            command.arg("-js").arg("-sd").arg(scratch.join("jetstream"));
        }
    });
    match process.wait_ready(START_LIMIT, || TcpStream::connect(("127.0.0.1", port)).is_ok()) {
        Ok(()) => Ok(process),
        Err(_status) => Err(process),
    }
}
