//! Dynamo's standalone indexer as a process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::ports::free_ports;

/// `python -m dynamo.indexer` of release 1.6.1.
pub(crate) struct Indexer {
    child: Child,
    pub(crate) port: u16,
}

impl Indexer {
    pub(crate) fn start() -> Self {
        let python = std::env::var_os("GHOSTFLEET_DYNAMO_161").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/dynamo-1.6.1/bin/python"),
            PathBuf::from,
        );
        assert!(
            python.is_file(),
            "{} does not exist; run scripts/setup or set GHOSTFLEET_DYNAMO_161",
            python.display()
        );
        let port = free_ports();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(python)
            .args(["-m", "dynamo.indexer", "--threads", "1", "--port", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, port }
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Option<Value> {
        let url = format!("http://127.0.0.1:{}/{path}", self.port);
        let mut answer = ureq::post(url).send_json(body).ok()?;
        answer.body_mut().read_json().ok()
    }
}

impl Drop for Indexer {
    fn drop(&mut self) {
        // Fails only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
