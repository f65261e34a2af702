//! A server process of a test's own; it ends with the test.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::fleet::PATIENCE;

/// A running server.
pub(crate) struct Server(Child);

impl Server {
    /// Starts a program and waits until `port` is open on loopback.
    pub(crate) fn start(program: &str, arguments: &[String], port: u16) -> Self {
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", program])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = Self(child);
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = server.0.try_wait().unwrap();
            assert!(ended.is_none(), "{program} ended: {ended:?}; arguments {arguments:?}");
            assert!(begun.elapsed() < PATIENCE, "{program} does not listen on {port}");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
