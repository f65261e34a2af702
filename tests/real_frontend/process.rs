//! A server process of a test: its log is kept and shown when the test fails, and it never outlives the test.

use std::ffi::OsStr;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::wait::eventually;

/// Lines of a log that a failing test shows.
const SHOWN_LINES: usize = 120;

/// A running server.
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program` with its output going to `<name>.log` in `scratch`. Call from the test's own thread: when that
    /// ends, however it ends, the kernel ends the process.
    pub(crate) fn start(name: &str, program: &Path, scratch: &Path, prepare: impl FnOnce(&mut Command)) -> Self {
        let log = scratch.join(format!("{name}.log"));
        let output = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .expect("the scratch directory is writable");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        // What the shell of whoever runs the tests has set must not reach the servers.
        for (variable, _) in std::env::vars_os() {
            if ["DYN_", "ETCD_", "NATS_", "GHOSTFLEET_"]
                .iter()
                .any(|p| variable.to_string_lossy().starts_with(p))
            {
                command.env_remove(variable);
            }
        }
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a file handle can be cloned"))
            .stderr(output);
        prepare(&mut command);
        let child = command.spawn().expect("setpriv (package util-linux) can be run");
        Self {
            name: name.to_owned(),
            child,
            log,
        }
    }

    /// Waits until `ready` says so.
    ///
    /// # Errors
    /// The exit status when the process ends before that.
    pub(crate) fn wait_ready(&mut self, limit: Duration, ready: impl Fn() -> bool) -> Result<(), ExitStatus> {
        let child = &mut self.child;
        eventually(limit, &format!("{} is ready", self.name), || {
            if let Some(status) = child.try_wait().expect("our own child can be waited for") {
                return Some(Err(status));
            }
            ready().then_some(Ok(()))
        })
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end (SIGTERM) and waits for that.
    #[track_caller]
    pub(crate) fn terminate(&mut self, limit: Duration) -> ExitStatus {
        signal(self.pid(), "TERM");
        let child = &mut self.child;
        eventually(limit, &format!("{} ends after SIGTERM", self.name), || {
            child.try_wait().expect("our own child can be waited for")
        })
    }

    /// Ends it at once (SIGKILL): no goodbye to anybody.
    pub(crate) fn kill(&mut self) {
        // Fails only when it has ended already.
        let _ = self.child.kill();
        self.child.wait().expect("our own child can be waited for");
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Prints the end of its log.
    pub(crate) fn show_log(&self) {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        let skipped = lines.len().saturating_sub(SHOWN_LINES);
        eprintln!(
            "---- {} (pid {}), {skipped} earlier lines left out",
            self.name,
            self.pid()
        );
        for line in &lines[skipped..] {
            eprintln!("{}", line.chars().take(600).collect::<String>());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_log();
        }
        self.kill();
    }
}

fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill")
        .args([OsStr::new("-s"), OsStr::new(name)])
        .arg(pid.to_string())
        .status();
    assert!(
        sent.expect("kill can be run").success(),
        "SIG{name} could not be sent to {pid}"
    );
}

/// A loopback port that was free a moment ago. Whoever binds it may still lose it to somebody else, so starting a server
/// on it is tried again with another one.
pub(crate) fn free_port() -> u16 {
    free_ports(1)
}

/// The first of `count` consecutive ports that were free a moment ago.
pub(crate) fn free_ports(count: u16) -> u16 {
    let bind = |port: u16| TcpListener::bind(("127.0.0.1", port));
    for _ in 0..100 {
        let first = bind(0).expect("loopback has a free port");
        let port = first.local_addr().expect("a bound socket has an address").port();
        let others: Option<Vec<_>> = (1..count).map(|i| bind(port.checked_add(i)?).ok()).collect();
        if others.is_some() {
            return port;
        }
    }
    panic!("no {count} consecutive free ports on loopback");
}
