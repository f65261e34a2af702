//! An etcd of one test's own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::{Process, free_port};

const START_LIMIT: Duration = Duration::from_secs(20);
const ATTEMPTS: u32 = 3;

/// A running etcd on loopback.
pub(crate) struct Etcd {
    process: Process,
    scratch: PathBuf,
    ports: [u16; 2],
    // Memory, where there is a memory file system: etcd syncs every write, which a disk shared with others makes slow.
    data: tempfile::TempDir,
}

impl Etcd {
    /// Starts one; its log goes to `scratch`.
    pub(crate) fn start(scratch: &Path) -> Self {
        for attempt in 1..=ATTEMPTS {
            let mut named = tempfile::Builder::new();
            let named = named.prefix("ghostfleet-etcd-");
            let data = named.tempdir_in("/dev/shm").or_else(|_| named.tempdir());
            let data = data.expect("the temporary directory is writable");
            let ports = [free_port(), free_port()];
            match spawn(scratch, data.path(), ports) {
                Ok(process) => {
                    return Self {
                        process,
                        scratch: scratch.to_owned(),
                        ports,
                        data,
                    };
                }
                Err(process) if attempt == ATTEMPTS => process.show_log(),
                Err(_) => {}
            }
        }
        panic!("etcd did not start in {ATTEMPTS} attempts; its log is above");
    }

    /// `http://127.0.0.1:port`.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    /// Kills it as a power cut would.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again on the same address with the data it had.
    pub(crate) fn restart(&mut self) {
        match spawn(&self.scratch, self.data.path(), self.ports) {
            Ok(process) => self.process = process,
            Err(process) => {
                process.show_log();
                panic!("etcd did not come back on port {}; its log is above", self.ports[0]);
            }
        }
    }

    /// Starts it again on the same address, empty.
    pub(crate) fn restart_empty(&mut self) {
        for entry in std::fs::read_dir(self.data.path()).expect("the data directory can be read") {
            let path = entry.expect("the data directory can be read").path();
            std::fs::remove_dir_all(path).expect("the data directory is writable");
        }
        self.restart();
    }
}

/// Starts etcd and waits until it answers; `Err` when it ended instead.
fn spawn(scratch: &Path, data: &Path, [client, peer]: [u16; 2]) -> Result<Process, Process> {
    let client = format!("http://127.0.0.1:{client}");
    let peer = format!("http://127.0.0.1:{peer}");
    let mut process = Process::start("etcd", Path::new("etcd"), scratch, |command| {
        command.arg("--data-dir").arg(data);
        command.args(["--name", "test", "--initial-cluster", &format!("test={peer}")]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        // One member elects itself; no need to wait for others.
        command.args(["--heartbeat-interval", "20", "--election-timeout", "200"]);
    });
    let health = format!("{client}/health");
    let healthy = || {
        let answer = ureq::get(&health)
            .config()
            .proxy(None)
            .timeout_global(Some(Duration::from_secs(2)))
            .build()
            .call();
        answer.is_ok_and(|mut a| {
            a.body_mut()
                .read_to_string()
                .is_ok_and(|text| text.contains("\"true\""))
        })
    };
    match process.wait_ready(START_LIMIT, healthy) {
        Ok(()) => Ok(process),
        Err(_status) => Err(process),
    }
}
