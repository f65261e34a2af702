//! The command as a process.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use tempfile::TempDir;

pub(crate) fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/tiny-model")
}

/// The command without the caller's own settings.
pub(crate) fn ghostfleet() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ghostfleet"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["DYN_", "ETCD_", "GHOSTFLEET_", "HF_", "NATS_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        {
            command.env_remove(name);
        }
    }
    command
}

pub(crate) fn serve(store: &TempDir, flags: &[&str]) -> Command {
    let mut command = ghostfleet();
    command
        .arg("serve")
        .arg("--model-path")
        .arg(model())
        .args(["--model-name", "tiny"]);
    command
        .args(["--discovery-backend", "file", "--file-kv"])
        .arg(store.path())
        .args(flags);
    command
}

/// Runs a command that is expected to end by itself.
pub(crate) fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

/// Asserts exit code and words of an error.
pub(crate) fn assert_refused(output: &Output, code: i32, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) out: BufReader<ChildStdout>,
    pub(crate) said: String,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut running = Self {
            child,
            out,
            said: String::new(),
        };
        running.read_until("ready: ");
        running
    }

    pub(crate) fn read_until(&mut self, words: &str) {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert_ne!(
                self.out.read_line(&mut line).unwrap(),
                0,
                "ended before {words:?}: {}",
                self.said
            );
            self.said.push_str(&line);
        }
    }

    /// Of the only worker, started with `--http-port 0`.
    pub(crate) fn http_address(&mut self) -> String {
        self.read_until("http ports: ");
        let ports = self.said.lines().last().unwrap();
        ports.split("http://").nth(1).unwrap().to_owned()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let killed = Command::new("kill")
            .arg(signal)
            .arg(self.child.id().to_string())
            .status()
            .unwrap();
        assert!(killed.success());
    }

    pub(crate) fn end(mut self) -> (String, Option<i32>) {
        self.out.read_to_string(&mut self.said).unwrap();
        let code = self.child.wait().unwrap().code();
        (std::mem::take(&mut self.said), code)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only has an effect when a test failed half-way.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
